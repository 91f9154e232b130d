"""The counting pass: how many rows of each row group pass a row filter, known before training."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from torch_table_loader.cancellation import Threads
from torch_table_loader.messages import no_bar
from torch_table_loader.planning.distinct import distinct
from torch_table_loader.ranges import TasksAhead
from torch_table_loader.records import ReadTask, Segment
from torch_table_loader.samples import sum_of
from torch_table_loader.source.plan_cache import CacheEntry

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.engine.table import Table
    from torch_table_loader.planning.keys import EpochKey
    from torch_table_loader.planning.layout import TableLayout
    from torch_table_loader.planning.splits import SegmentTable
    from torch_table_loader.ranges import FetchSettings
    from torch_table_loader.read.row_stage import Counted
    from torch_table_loader.read.tasks import TaskReader
    from torch_table_loader.samples import SampleCounts
    from torch_table_loader.source.plan_cache import Plans

_log = logging.getLogger(__name__)

_Piece = tuple[int, int, int]
"""A row group, numbered over the table, and the rows of its file where a piece of it begins and ends."""

Progress = Callable[[Iterable[Any], int | None], Iterable[Any]]
"""Wraps the items of a pass, of which there are so many (None: unknown), to show how it goes."""


class Counts:
    """The live rows under one filter, of whole row groups and of pieces of them, as far as they were counted."""

    def __init__(self, layout: TableLayout, part: Any = None) -> None:
        """Know nothing yet of a table's row groups; `part` is the filter beyond that of the reader that counts."""
        self.part = part
        self._group_rows = layout.group_rows
        self.group_live = np.full(len(layout.group_rows), -1, dtype=np.int64)
        self.pieces: dict[_Piece, int] = {}
        self.piece_starts: dict[tuple[int, int], int] = {}
        self.made: dict[_Piece, SampleCounts] = {}
        """What a stage counts of the samples that it makes of the rows."""
        self.cached = np.zeros(len(layout), dtype=np.bool_)
        """bool[F]: the files of which a cache has the counts."""

    def add(self, piece: _Piece, counted: Counted) -> None:
        """Add the live rows of a piece of a row group, or of a whole one."""
        (group, start, stop), (live, made) = piece, counted
        if made is not None:
            self.made[piece] = made
        if stop - start == self._group_rows[group]:
            self.group_live[group] = live
        else:
            self.pieces[piece] = live
            self.piece_starts[group, stop] = start

    def of(self, segments: SegmentTable) -> NDArray[np.int64]:
        """int64[T]: the live rows of each segment; −1 if unknown. Pieces of row groups are looked up one by one."""
        whole = segments.row_stop - segments.row_start == self._group_rows[segments.group]
        live = segments.live.copy()
        take = (live < 0) & whole
        live[take] = self.group_live[segments.group[take]]
        if self.pieces:
            for at in np.flatnonzero((live < 0) & ~whole).tolist():
                live[at] = self.pieces.get(_piece(segments, at), -1)
        return live


@dataclass(frozen=True, slots=True)
class Parts:
    """Filters that divide the rows of one table, each for a dataset of its own; what one counts, it counts for all.

    All filters name the same columns, so that counting for all reads no more than counting for one.

    Args:
        base: what the rows of all parts pass; None for all rows.
        filters: those of the parts, among these rows.
        counts: what was counted, by key, and of which table.
    """

    base: Any
    filters: tuple[Any, ...]
    counts: dict[str, tuple[TableLayout, Counts]] = field(default_factory=dict, repr=False)

    def joined(self, part: Any) -> Any:
        """Return the whole filter of a part."""
        if self.base is None:
            return part
        return self.base & part

    def counts_of(self, key: str, part: Any, layout: TableLayout) -> Counts:
        """Return what the datasets of all parts know of one part, of the table that has this layout."""
        known = self.counts.get(key)
        if known is None or not known[0].same_rows(layout):
            known = self.counts[key] = layout, Counts(layout, part)
        return known[1]


class LiveCounter:
    """Counts live rows under a filter; each piece of a row group once, however often it is asked for."""

    def __init__(
        self,
        table: Table,
        reader: TaskReader,
        counts: Mapping[str, Counts],
        cache: Plans | None,
        threads: int,
        progress: Progress,
        fetching: FetchSettings,
        nothing: SampleCounts | None = None,
    ) -> None:
        """Count nothing yet.

        Args:
            counts: what is known, by the key that names it in the cache. The first is what is asked for, the others
                are counted where it is.
            nothing: what a stage counts of no rows, beside those that it makes; None if it counts nothing else.
        """
        self._nothing = nothing
        self._table = table
        self._reader = reader.counting([each.part for each in counts.values() if each.part is not None])
        self._all = counts
        self._key = next(iter(counts))
        self._own = counts[self._key]
        self._cache = cache
        self._threads = threads
        self._progress = progress
        self._fetching = fetching
        self._load()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the other parts, whose datasets stay in this process, and the progress bar."""
        reader = self._reader.counting([] if self._own.part is None else [self._own.part])
        return {**vars(self), "_reader": reader, "_all": {self._key: self._own}, "_progress": no_bar}

    def of_epoch(self, key: EpochKey) -> LiveCounter:
        """Return what counts in an epoch: this, unless a stage makes another number of rows in each."""
        if not self._reader.counts_by_epoch:
            return self
        other, layout = copy.copy(self), self._table.layout
        other._reader = self._reader.of_epoch(key, shuffle=False)
        other._all = {name: Counts(layout, counts.part) for name, counts in self._all.items()}
        other._own = other._all[self._key]
        return other

    def count(self, segments: SegmentTable, splits: NDArray[np.int64]) -> SegmentTable:
        """Fill in the live rows of some splits, and of what else their row groups hold."""
        wanted = np.zeros(len(segments.splits), dtype=np.bool_)
        wanted[splits] = True
        of_wanted = np.repeat(wanted, np.diff(segments.offsets))
        if not ((segments.live < 0) & of_wanted).any():
            return segments
        live = self._own.of(segments)
        touched = np.zeros(len(self._own.group_live), dtype=np.bool_)
        touched[segments.group[(live < 0) & of_wanted]] = True
        missing = np.flatnonzero((live < 0) & touched[segments.group])
        began = time.perf_counter()
        for part, counted in self._read(segments, missing):
            live[part] = [count for count, _ in counted[0]]
            for counts, found in zip(self._all.values(), counted, strict=True):
                for at, each in zip(part.tolist(), found, strict=True):
                    counts.add(_piece(segments, at), each)
        _log.info(
            "counted live rows in %.2f s: %d in %d pieces of row groups",
            *(time.perf_counter() - began, live[missing].sum(), len(missing)),
        )
        self._save(segments.group[of_wanted & (segments.live < 0)])
        return segments.counted(live)

    def made_of(self, segments: SegmentTable) -> SampleCounts | None:
        """Add up what was counted of the samples that are made of some splits; None where that was not counted."""
        rows, kept = self._table.layout.group_rows, self._table.layout.group_kept
        pieces = (_piece(segments, at) for at in range(len(segments.group)))
        found = [self._own.made.get(piece) for piece in pieces if kept[piece[0]] and rows[piece[0]]]
        if found:
            return sum_of(found)
        return self._nothing

    def live_before(self, group: int, row: int) -> int:
        """Add up what was counted of a row group (numbered over the table) before a row of its file.

        The row is where one of the pieces begins in which `count` has counted the row group.
        """
        layout = self._table.layout
        file = int(np.searchsorted(layout.group_offsets, group, side="right")) - 1
        first = int(layout.group_starts[group] - layout.file_starts[file])
        total = 0
        while row > first:
            start = self._own.piece_starts[group, row]
            total += self._own.pieces[group, start, row]
            row = start
        return total

    def _read(
        self, segments: SegmentTable, missing: NDArray[np.int64]
    ) -> Iterable[tuple[NDArray[np.int64], list[list[Counted]]]]:
        """Count the missing segments file by file, in parallel."""
        if not len(missing):
            return
        layout = self._table.layout
        file = np.searchsorted(layout.group_offsets, segments.group[missing], side="right") - 1
        order = np.lexsort((segments.row_start[missing], file))
        parts = np.split(missing[order], np.flatnonzero(np.diff(file[order])) + 1)
        reader = self._reader

        def task_of(part: NDArray[np.int64]) -> ReadTask:
            number = int(np.searchsorted(layout.group_offsets, segments.group[part[0]], side="right")) - 1
            groups = segments.group[part] - int(layout.group_offsets[number])
            rows = zip(
                groups.tolist(), segments.row_start[part].tolist(), segments.row_stop[part].tolist(), strict=True
            )
            return ReadTask(number, tuple(Segment(*row, -1) for row in rows))

        def count(place: int) -> tuple[NDArray[np.int64], list[list[Counted]]]:
            with tasks.storage_of(place) as storage:
                return parts[place], reader.counted(task_of(parts[place]), storage)

        needs = (partial(reader.needs_of_count, task_of(part)) for part in parts)
        tasks = TasksAhead(reader.storage, needs, self._fetching)
        with Threads(self._threads, "table-loader-count", joined=True) as pool, closing(tasks):
            yield from self._progress(pool.map(count, range(len(parts))), len(parts))

    def _load(self) -> None:
        """Load the counts of other ranks and runs from the cache."""
        if self._cache is None:
            return
        layout = self._table.layout
        for number, entry in enumerate(self._cache.get_many(layout.files)):
            if entry is not None and self._key in entry.counts:
                groups = layout.groups_of(number)
                self._own.group_live[groups.start : groups.stop] = entry.counts[self._key]
                self._own.cached[number] = True
                self._load_made(groups, entry.counts)

    def _load_made(self, groups: range, counts: Mapping[str, tuple[int, ...]]) -> None:
        """Load what was counted of the samples that are made of the row groups of a file, where the cache has it."""
        if self._nothing is None or not all(name in counts for name in self._made_keys):
            return
        each = zip(*(counts[name] for name in (self._key, *self._made_keys)), strict=True)
        for group, (live, *numbers) in zip(groups, each, strict=True):
            self._own.made[self._whole(group)] = self._nothing.with_numbers(live, numbers)

    @property
    def _made_keys(self) -> list[str]:
        """What the cache calls what is counted of the samples of a row group, beside their number: the live rows."""
        if self._nothing is None:
            return []
        return [f"{self._key}-{name}" for name in self._nothing.numbers]

    def _whole(self, group: int) -> _Piece:
        layout = self._table.layout
        file = int(np.searchsorted(layout.group_offsets, group, side="right")) - 1
        start = int(layout.group_starts[group] - layout.file_starts[file])
        return group, start, start + int(layout.group_rows[group])

    def _save(self, groups: NDArray[np.int64]) -> None:
        """Put the files of some row groups into the cache, if they are counted whole and it does not have them."""
        if self._cache is None or not len(groups):
            return
        layout, own = self._table.layout, self._own
        numbers = distinct(np.searchsorted(layout.group_offsets, groups, side="right") - 1)
        for number in numbers[~own.cached[numbers]].tolist():
            here = layout.groups_of(number)
            part = slice(here.start, here.stop)
            live = np.where(layout.group_kept[part] & (layout.group_rows[part] > 0), own.group_live[part], 0)
            if (live >= 0).all():
                counts = {self._key: tuple(live.tolist()), **self._made_to_save(here, live)}
                self._cache.put(layout.files[number], CacheEntry(self._table.metas[number], counts))
                own.cached[number] = True

    def _made_to_save(self, groups: range, live: NDArray[np.int64]) -> dict[str, tuple[int, ...]]:
        """Return what was counted of the samples of row groups, by key of the cache; empty where not all is."""
        found = [
            self._own.made.get(self._whole(group), None if count else self._nothing)
            for group, count in zip(groups, live.tolist(), strict=True)
        ]
        known = [each.numbers for each in found if each is not None]
        if self._nothing is None or len(known) < len(found):
            return {}
        return {
            key: tuple(cast("int", each[name]) for each in known)
            for key, name in zip(self._made_keys, self._nothing.numbers, strict=True)
        }


def _piece(segments: SegmentTable, at: int) -> _Piece:
    return int(segments.group[at]), int(segments.row_start[at]), int(segments.row_stop[at])
