"""What a job has consumed of an epoch, over all ranks and all its topologies, and what remains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from torch_table_loader.planning.runs import Runs
from torch_table_loader.planning.windows import Window, stretches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.lanes import Section
    from torch_table_loader.planning.splits import SegmentTable


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """A window that was open when the topology changed: one unit, delivered in its remaining order.

    Args:
        parts: the places ``[start, stop)`` in its order that are not delivered yet.
    """

    window: Window
    parts: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Consumption:
    """Rows that splits no longer deliver.

    A row's place combines its file and its ordinal among the live rows of that file into one number
    (`SegmentTable.bases`). It stays the same when the table is split differently, and when the table grows.

    Args:
        starts: int64[K] sorted, disjoint intervals of places that were delivered or belong to an open window.
        stops: int64[K], exclusive.
        windows: every window that was open when a topology ended, oldest first.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    windows: tuple[OpenWindow, ...] = ()

    def units(self, num_splits: int) -> Runs:
        """Return what remains of open windows, as pieces; window w stands for the split ``num_splits + w``."""
        return Runs.of(
            [
                (num_splits + number, start, stop)
                for number, entry in enumerate(self.windows)
                for start, stop in entry.parts
            ]
        )

    def left_of(self, order: NDArray[np.int64], live: NDArray[np.int64], bases: NDArray[np.int64]) -> Runs:
        """Return what is left of whole splits, in some order, as pieces; empty pieces are left out.

        Args:
            order: int64[N] splits.
            live: int64[S] the rows of each split.
            bases: int64[S] the place of each split's first live row.
        """
        gap_starts = np.concatenate(([np.iinfo(np.int64).min], self.stops))
        gap_stops = np.concatenate((self.starts, [np.iinfo(np.int64).max]))
        first, count = _overlaps(bases, live, gap_starts, gap_stops)
        whole = (gap_starts[first] <= bases) & (gap_stops[first] >= bases + live)
        kinds = np.where(count > 0, np.where(whole, _WHOLE, _CUT), _GONE).astype(np.int8)
        kind = kinds[order]  # since the order is by chance, and little is looked up of the many that are gone
        kept = np.flatnonzero(kind != _GONE)
        split, cut = order[kept], np.flatnonzero(kind[kept] == _CUT)
        stop, pieces = live[split], count[split[cut]]
        counts = np.ones_like(split)
        counts[cut] = pieces
        at = np.cumsum(counts)[cut] - pieces
        split, stop = np.repeat(split, counts), np.repeat(stop, counts)
        start, number = np.zeros_like(split), np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        at = np.repeat(at, pieces) + number
        gap, base = first[split[at]] + number, bases[split[at]]
        start[at] = np.maximum(gap_starts[gap], base) - base
        stop[at] = np.minimum(gap_stops[gap], base + stop[at]) - base
        return Runs(split, start, stop)

    def with_delivered(self, parts: Iterable[tuple[Runs, Sequence[OpenWindow], NDArray[np.int64]]]) -> Consumption:
        """Return this consumption plus rows that were delivered, and windows that are open now.

        Args:
            parts: pieces, no row of which was consumed before, those windows, whose rows are all among the pieces, and
                the bases of the splits.
        """
        intervals = [(self.starts, self.stops)]
        used: dict[int, list[tuple[int, int]]] = {}
        opened: list[OpenWindow] = []
        for taken, open_now, bases in parts:
            opened += open_now
            plain = taken.split < len(bases)
            base = bases[taken.split[plain]]
            intervals.append((base + taken.start[plain], base + taken.stop[plain]))
            of_windows = zip(taken.split[~plain], taken.start[~plain], taken.stop[~plain], strict=True)
            for split, start, stop in of_windows:
                used.setdefault(int(split) - len(bases), []).append((int(start), int(stop)))
        kept = tuple(
            OpenWindow(entry.window, _without(entry.parts, used.get(number, ())))
            for number, entry in enumerate(self.windows)
        )
        return Consumption(*_merged(intervals), kept + tuple(opened))


def delivered_of(section: Section, segments: SegmentTable) -> tuple[Runs, list[OpenWindow]]:
    """Return the rows that a section has delivered, plus all rows of a window that is now open, and that window."""
    end, opened = section.skip, []
    if section.windows is not None and (rest := next(stretches(section, segments), None)) is not None:
        found = rest.open_window
        if found is not None:
            window, start = found
            length = window.runs.num_rows
            opened.append(OpenWindow(window, ((start, length),)))
            end += length - start
    return section.runs.slice(0, end), opened


def delivered_of_lane(
    lane: Section, segments: SegmentTable, taken: int, body: int
) -> tuple[Runs, Sequence[OpenWindow]]:
    """Return the same of a lane, given as a section of all its rows; for `taken` and `body` see `TakenLanes`."""
    section = replace(lane, runs=lane.runs.slice(0, body), skip=min(taken, body))
    rows, opened = delivered_of(section, segments)
    if taken <= body:
        return rows, opened
    return Runs.concat([rows, lane.runs.slice(body, taken)]), opened


_GONE, _WHOLE, _CUT = 0, 1, 2
"""What is left of a split: nothing, all of it, or parts."""


def _overlaps(
    bases: NDArray[np.int64], live: NDArray[np.int64], starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first of some sorted intervals that a split overlaps, and how many it does: int64[S] each."""
    begins, ends = bases, bases + live
    by_place: NDArray[np.int64] | slice = slice(None)
    if (begins[1:] < begins[:-1]).any() or (ends[1:] < ends[:-1]).any():
        by_place = np.lexsort((ends, begins))
        begins, ends = begins[by_place], ends[by_place]
    # Intervals are looked up among the splits, since these may be very many more.
    first, last = np.empty_like(bases), np.empty_like(bases)
    first[by_place] = _counted(np.searchsorted(begins, stops, side="left"), len(begins))
    last[by_place] = _counted(np.searchsorted(ends, starts, side="right"), len(ends))
    return np.minimum(first, len(stops) - 1), np.where(live > 0, last - first, 0)


def _counted(places: NDArray[np.intp], length: int) -> NDArray[np.int64]:
    """Return how many places are at or before each, of so many: int64[length]."""
    return np.cumsum(np.bincount(places, minlength=length)[:length])


def _merged(
    intervals: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sort disjoint intervals and join those that touch."""
    starts = np.concatenate([start for start, _ in intervals])
    stops = np.concatenate([stop for _, stop in intervals])
    full = stops > starts
    starts, stops = starts[full], stops[full]
    if not len(starts):
        return starts, stops
    starts.sort()
    stops.sort()  # of disjoint intervals, these come in the same order
    fresh = np.concatenate(([True], starts[1:] > stops[:-1]))
    last = np.concatenate((fresh[1:], [True]))
    return starts[fresh], stops[last]


def _without(parts: Sequence[tuple[int, int]], used: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return intervals without the parts that were used.

    >>> _without([(0, 10)], [(2, 4), (9, 10)])
    ((0, 2), (4, 9))
    """
    left = list(parts)
    for low, high in used:
        left = [
            piece
            for start, stop in left
            for piece in ((start, min(stop, low)), (max(start, high), stop))
            if piece[0] < piece[1]
        ]
    return tuple(left)


NOTHING_TAKEN = Consumption(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
"""What an epoch has delivered at its start."""
