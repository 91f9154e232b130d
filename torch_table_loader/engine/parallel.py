"""Planning asks many files at once: in threads, and in which order."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from torch_table_loader.cancellation import Threads

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage

FAR_REQUESTS = 128
"""Footers that are asked for at once where the store is far away: stores answer small requests in tens of
milliseconds, and a footer takes less than one of them to check."""

T = TypeVar("T")
R = TypeVar("R")


def in_parallel(work: Callable[[T], R], items: Sequence[T], *, asks: Storage | None = None) -> list[R]:
    """Map over threads, and return the results in the order of the items; the first error is raised.

    If the work waits for a storage (`asks`) that is remote, many items are asked for at once, however few
    CPUs there are. The first of those lie all over the table, so that what they teach holds for the others.
    """
    if len(items) <= 1:
        return [work(item) for item in items]
    near = asks is None or asks.is_local
    threads = min(4 * (os.cpu_count() or 1), FAR_REQUESTS) if near else FAR_REQUESTS
    order = range(len(items)) if near else halving(len(items))
    with Threads(min(len(items), threads), "table-loader-survey") as pool:
        found = dict(zip(order, pool.map(lambda place: work(items[place]), order), strict=True))
    return [found[place] for place in range(len(items))]


def halving(count: int) -> Sequence[int]:
    """Return all numbers below a count in an order of which each beginning is spread over them evenly.

    >>> halving(8)
    [0, 4, 2, 6, 1, 5, 3, 7]
    """
    width = count.bit_length()
    return sorted(range(count), key=lambda number: f"{number:0{width}b}"[::-1])
