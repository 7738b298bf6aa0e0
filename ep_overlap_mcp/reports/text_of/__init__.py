"""Text for people: a module an answer, named as its module in `results`; each has `lines(result)`."""
