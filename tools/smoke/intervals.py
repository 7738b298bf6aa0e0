"""Unions of half-open intervals in integer nanoseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time as disjoint intervals in order."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def intersection(some: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """The time that both cover."""
    left, right = union(some), union(others)
    both: list[Interval] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < end:
            both.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return both


def difference(some: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """The time that the first cover and the others do not."""
    left = union(some)
    if not left:
        return []
    gaps, end = [], left[0][0]
    for start, stop in union(others):
        gaps.append((end, start))
        end = stop
    gaps.append((end, left[-1][1]))
    return intersection(left, gaps)


def milliseconds(intervals: Iterable[Interval]) -> float:
    """The length of the union."""
    return sum(end - start for start, end in union(intervals)) / 1e6
