"""Which records of a file are read together: near ones are joined, and the wanted ones come in windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")


class Ranges(NamedTuple):
    """Parts of a file of records.

    Args:
        first: int64[k] the first record of each part.
        stop: int64[k] the record after its last.
        bounds: int64[k+1]; part i serves the wanted records ``bounds[i]:bounds[i + 1]``.
    """

    first: NDArray[np.int64]
    stop: NDArray[np.int64]
    bounds: NDArray[np.int64]


def coalesce(records: NDArray[np.int64], gap: int, most: int) -> Ranges:
    """Merge records that are near each other into parts of at most `most` records.

    Args:
        records: int64[n], n ≥ 1, ascending.
        gap: unwanted records that may be read between two wanted ones.

    >>> [column.tolist() for column in coalesce(np.array([3, 4, 9, 30, 31]), gap=5, most=10)]
    [[3, 30], [10, 32], [0, 3, 5]]
    """
    far = np.diff(records) > gap + 1
    run = np.concatenate(([0], np.cumsum(far)))
    start_of_run = records[np.flatnonzero(np.diff(run, prepend=-1))][run]
    cut = far | (np.diff((records - start_of_run) // most) > 0)
    bounds = np.concatenate(([0], np.flatnonzero(cut) + 1, [len(records)]))
    return Ranges(records[bounds[:-1]], records[bounds[1:] - 1] + 1, bounds)


def joined(
    start: NDArray[np.int64], stop: NDArray[np.int64], gap: int, files: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Join ranges that overlap or are near each other, in ascending order.

    The places [start, stop) and the files are int64[n].

    Args:
        gap: unneeded places that may be read between two ranges.
        files: int64[n] the file of each; ranges of different files stay apart.

    >>> found = joined(np.array([7, 0, 2]), np.array([9, 3, 4]), 2, np.array([0, 0, 0]))
    >>> [each.tolist() for each in found]
    [[0, 7], [4, 9]]
    """
    order = np.argsort(start, kind="stable")
    start, files, reach = start[order], files[order], np.maximum.accumulate(stop[order])
    breaks = np.flatnonzero((start[1:] > reach[:-1] + gap) | (files[1:] != files[:-1])) + 1
    heads = np.concatenate(([0], breaks)) if len(start) else breaks
    return start[heads], reach[np.append(breaks, len(start))[: len(heads)] - 1]


def in_windows(
    blocks: Iterator[tuple[NDArray[np.int64], T]],
    least: int,
    most: int,
    most_blocks: int | None = None,
    cost: Callable[[NDArray[np.int64], T], int] = lambda records, _: len(records),
) -> Iterator[list[tuple[NDArray[np.int64], T]]]:
    """Join blocks of records into windows that grow, so that the first is ready soon.

    Args:
        blocks: the records that are wanted next, each with a value for the caller's use.
        least: target records of the first window; each later target is twice the one before, up to `most`.
        most_blocks: the most blocks of a window, however few records they hold; None for any number.
        cost: returns how many records a block counts as.
    """
    aim, rows = min(least, most), 0
    window: list[tuple[NDArray[np.int64], T]] = []
    for block in blocks:
        window.append(block)
        rows += cost(*block)
        if rows >= aim or len(window) == most_blocks:
            yield window
            window, rows, aim = [], 0, min(2 * aim, most)
    if window:
        yield window
