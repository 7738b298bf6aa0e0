"""The verbs of the command line that are more than a few lines: a module a verb, each with `add(verbs)`."""
