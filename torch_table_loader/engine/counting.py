"""The counting pass: how many rows of each row group pass a row filter, known before training."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_table_loader.cancellation import Threads
from torch_table_loader.fetch.fetcher import TasksAhead
from torch_table_loader.planning.distinct import distinct
from torch_table_loader.planning.pack_counts import PackCounts, sum_of
from torch_table_loader.records import ReadTask, Segment
from torch_table_loader.source.plan_cache import CacheEntry

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.engine.table import Table
    from torch_table_loader.fetch.fetcher import FetchSettings
    from torch_table_loader.planning.splits import SegmentTable
    from torch_table_loader.read.row_stage import Counted
    from torch_table_loader.read.tasks import TaskReader
    from torch_table_loader.source.plan_cache import Plans

_log = logging.getLogger(__name__)

Progress = Callable[[Iterable[Any], int | None], Iterable[Any]]
"""Wraps the items of a pass, of which there are so many (None: unknown), to show how it goes."""


class LiveCounter:
    """Counts live rows under one filter; each part of a row group once, however often it is asked for."""

    def __init__(
        self,
        table: Table,
        reader: TaskReader,
        filter_key: str,
        cache: Plans | None,
        threads: int,
        progress: Progress,
        fetching: FetchSettings,
        seq_len: int = 0,
    ) -> None:
        """Count nothing yet; the filter's key names its counts in the cache.

        If rows are packed, `seq_len` is the tokens of a sequence.
        """
        self._seq_len = seq_len
        self._packed: dict[tuple[int, int, int], PackCounts] = {}
        self._table = table
        self._reader = reader
        self._key = filter_key
        self._cache = cache
        self._threads = threads
        self._progress = progress
        self._fetching = fetching
        self._group_live = np.full(len(table.layout.group_rows), -1, dtype=np.int64)
        self._parts: dict[tuple[int, int, int], int] = {}
        self._part_starts: dict[tuple[int, int], int] = {}
        self._load()

    def count(self, segments: SegmentTable, splits: NDArray[np.int64]) -> SegmentTable:
        """Fill in the live rows of some splits, and of what else their row groups hold."""
        wanted = np.zeros(len(segments.splits), dtype=np.bool_)
        wanted[splits] = True
        of_wanted = np.repeat(wanted, np.diff(segments.offsets))
        if not ((segments.live < 0) & of_wanted).any():
            return segments
        live = self._known(segments)
        touched = np.zeros(len(self._group_live), dtype=np.bool_)
        touched[segments.group[(live < 0) & of_wanted]] = True
        missing = np.flatnonzero((live < 0) & touched[segments.group])
        began = time.perf_counter()
        for part, counts in self._read(segments, missing):
            live[part] = [count for count, _ in counts]
            self._remember(segments, part, counts)
        _log.info(
            "counted live rows in %.2f s: %d in %d parts of row groups",
            *(time.perf_counter() - began, live[missing].sum(), len(missing)),
        )
        self._save(segments, missing)
        return segments.counted(live)

    def packed(self, segments: SegmentTable) -> PackCounts | None:
        """Add up what packing makes of the rows of some splits; None where that was not counted."""
        rows, kept = self._table.layout.group_rows, self._table.layout.group_kept
        parts = (self._part(segments, at) for at in range(len(segments.group)))
        found = [self._packed.get(part) for part in parts if kept[part[0]] and rows[part[0]]]
        return sum_of(found) if found else PackCounts(self._seq_len)

    def live_before(self, group: int, row: int) -> int:
        """Add up what was counted of a row group (numbered over the table) before a row of its file.

        The row is where one of the parts begins in which `count` has counted the row group.
        """
        layout = self._table.layout
        file = int(np.searchsorted(layout.group_offsets, group, side="right")) - 1
        first = int(layout.group_starts[group] - layout.file_starts[file])
        total = 0
        while row > first:
            start = self._part_starts[group, row]
            total += self._parts[group, start, row]
            row = start
        return total

    def _known(self, segments: SegmentTable) -> NDArray[np.int64]:
        """Return the live rows that were counted before; parts of row groups are looked up one by one."""
        whole = self._is_whole(segments)
        live = segments.live.copy()
        take = (live < 0) & whole
        live[take] = self._group_live[segments.group[take]]
        if self._parts:
            for at in np.flatnonzero((live < 0) & ~whole).tolist():
                live[at] = self._parts.get(self._part(segments, at), -1)
        return live

    def _is_whole(self, segments: SegmentTable) -> NDArray[np.bool_]:
        result: NDArray[np.bool_] = (
            segments.row_stop - segments.row_start == self._table.layout.group_rows[segments.group]
        )
        return result

    def _read(
        self, segments: SegmentTable, missing: NDArray[np.int64]
    ) -> Iterable[tuple[NDArray[np.int64], list[Counted]]]:
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

        def count(place: int) -> tuple[NDArray[np.int64], list[Counted]]:
            with tasks.storage_of(place) as storage:
                return parts[place], reader.counted(task_of(parts[place]), storage)

        needs = (partial(reader.needs_of_count, task_of(part)) for part in parts)
        tasks = TasksAhead(reader.storage, needs, self._fetching)
        with Threads(self._threads, "table-loader-count", joined=True) as pool, closing(tasks):
            yield from self._progress(pool.map(count, range(len(parts))), len(parts))

    def _remember(self, segments: SegmentTable, part: NDArray[np.int64], counts: list[Counted]) -> None:
        rows = self._table.layout.group_rows
        for at, (count, packed) in zip(part.tolist(), counts, strict=True):
            if packed is not None:
                self._packed[self._part(segments, at)] = packed
            group = int(segments.group[at])
            if segments.row_stop[at] - segments.row_start[at] == rows[group]:
                self._group_live[group] = count
            else:
                group, start, stop = part_key = self._part(segments, at)
                self._parts[part_key] = count
                self._part_starts[group, stop] = start

    @staticmethod
    def _part(segments: SegmentTable, at: int) -> tuple[int, int, int]:
        return int(segments.group[at]), int(segments.row_start[at]), int(segments.row_stop[at])

    def _load(self) -> None:
        """Load the counts of other ranks and runs from the cache."""
        if self._cache is None:
            return
        layout = self._table.layout
        for number, entry in enumerate(self._cache.get_many(layout.files)):
            if entry is not None and self._key in entry.counts:
                groups = layout.groups_of(number)
                self._group_live[groups.start : groups.stop] = entry.counts[self._key]
                self._load_packed(groups, entry.counts)

    def _load_packed(self, groups: range, counts: Mapping[str, tuple[int, ...]]) -> None:
        """Load what packing makes of the row groups of a file, where the cache has it."""
        if not all(name in counts for name in self._packed_keys):
            return
        each = zip(*(counts[name] for name in (self._key, *self._packed_keys)), strict=True)
        for group, numbers in zip(groups, each, strict=True):
            self._packed[self._whole(group)] = PackCounts(self._seq_len, *numbers)

    @property
    def _packed_keys(self) -> list[str]:
        """What the cache calls the fields of what packing makes of a row group; the sequences are those that live."""
        return [f"{self._key}-{each.name}" for each in fields(PackCounts)[2:]]

    def _whole(self, group: int) -> tuple[int, int, int]:
        layout = self._table.layout
        file = int(np.searchsorted(layout.group_offsets, group, side="right")) - 1
        start = int(layout.group_starts[group] - layout.file_starts[file])
        return group, start, start + int(layout.group_rows[group])

    def _save(self, segments: SegmentTable, counted: NDArray[np.int64]) -> None:
        """Put the files that are now counted whole into the cache."""
        if self._cache is None or not len(counted):
            return
        layout = self._table.layout
        numbers = distinct(np.searchsorted(layout.group_offsets, segments.group[counted], side="right") - 1)
        for number in numbers.tolist():
            groups = layout.groups_of(number)
            part = slice(groups.start, groups.stop)
            live = np.where(layout.group_kept[part] & (layout.group_rows[part] > 0), self._group_live[part], 0)
            if (live >= 0).all():
                counts = {self._key: tuple(live.tolist()), **self._packed_to_save(groups, live)}
                self._cache.put(layout.files[number], CacheEntry(self._table.metas[number], counts))

    def _packed_to_save(self, groups: range, live: NDArray[np.int64]) -> dict[str, tuple[int, ...]]:
        """Return what packing makes of the row groups of a file, by key of the cache; empty where nobody counted."""
        nothing = PackCounts(self._seq_len)
        found = [
            self._packed.get(self._whole(group), None if count else nothing)
            for group, count in zip(groups, live.tolist(), strict=True)
        ]
        if not self._seq_len or None in found:
            return {}
        names = [each.name for each in fields(PackCounts)[2:]]
        return {
            key: tuple(getattr(each, name) for each in found)
            for key, name in zip(self._packed_keys, names, strict=True)
        }
