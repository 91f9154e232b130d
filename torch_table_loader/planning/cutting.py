"""The built-in split strategies: four that cut and one that generates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from torch_table_loader.errors import ConfigError
from torch_table_loader.options import DEFAULT_SPLIT_BYTES
from torch_table_loader.planning.distinct import distinct
from torch_table_loader.planning.keys import derive_key
from torch_table_loader.planning.layout import TableLayout
from torch_table_loader.planning.permutation import permuted_range
from torch_table_loader.planning.splits import SplitTable
from torch_table_loader.records import Shard, Split
from torch_table_loader.units import integer, parse_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.records import DataFileInfo


@dataclass(frozen=True, slots=True)
class TargetSizeStrategy:
    """Consecutive row groups of a file, up to a target; a split has at least one row group. The default.

    Args:
        target_bytes: bytes of a split before compression: an int or "128MiB".
        target_rows: rows of a split; takes precedence over `target_bytes`.
        least_splits: how many splits a small table has, about, as far as row groups allow; its target is smaller.
    """

    target_bytes: int | str = DEFAULT_SPLIT_BYTES
    target_rows: int | None = None
    least_splits: int = 1

    def __post_init__(self) -> None:
        """Refuse targets below one."""
        _take_bytes(self, self.target_bytes)
        least = integer("TargetSizeStrategy: least_splits", self.least_splits, least=1)
        object.__setattr__(self, "least_splits", least)
        if self.target_rows is not None:
            _take_rows(self, self.target_rows)

    def __call__(self, files: Sequence[DataFileInfo]) -> Sequence[Split]:
        """Cut files between row groups."""
        layout = as_layout(files)
        target, column = self._target_of(layout)
        weights = np.where(layout.group_kept, column, 0)
        target = min(target, max(1, int(weights.sum()) // self.least_splits))
        offsets = layout.group_offsets
        sums = np.diff(np.concatenate(([0], np.cumsum(weights)))[offsets])
        inner: list[int] = []
        following = _next_cuts(weights, target)
        for file in np.flatnonzero((sums > target) & (np.diff(offsets) > 1)).tolist():
            end, group = int(offsets[file + 1]), following[offsets[file]]
            while group < end:
                inner.append(group)
                group = following[group]
        heads = offsets[:-1][np.diff(offsets) > 0]
        return _cut_at(layout, np.sort(np.append(heads, np.array(inner, dtype=np.int64))))

    def _target_of(self, layout: TableLayout) -> tuple[int, NDArray[np.int64]]:
        """Return the target, and what row groups have of that."""
        if self.target_rows is not None:
            return self.target_rows, layout.group_rows
        return cast("int", self.target_bytes), layout.group_bytes


@dataclass(frozen=True, slots=True)
class WholeFileStrategy:
    """Each file is one split; unshuffled, rank r of R reads files r, r + R, … The default of ``batch_by="file"``."""

    def __call__(self, files: Sequence[DataFileInfo]) -> Sequence[Split]:
        """Return each file as one split."""
        layout = as_layout(files)
        number = np.arange(len(layout), dtype=np.int64)
        return SplitTable(layout, number, np.zeros_like(number), layout.file_rows)


@dataclass(frozen=True, slots=True)
class SizeBalancedStrategy:
    """Splits of about equal bytes: each file is cut between row groups, into as many parts as its bytes require.

    Args:
        target_bytes: the most bytes of a split before compression, as far as row groups allow: an int or "128MiB".
    """

    target_bytes: int | str = DEFAULT_SPLIT_BYTES

    def __post_init__(self) -> None:
        """Refuse a target below one."""
        _take_bytes(self, self.target_bytes)

    def __call__(self, files: Sequence[DataFileInfo]) -> Sequence[Split]:
        """Cut files at the row groups nearest to equal parts."""
        layout, target = as_layout(files), parse_bytes(self.target_bytes)
        first_groups: list[NDArray[np.int64]] = []
        for file in range(len(layout)):
            groups = layout.groups_of(file)
            part = slice(groups.start, groups.stop)
            ends = np.cumsum(np.where(layout.group_kept[part], layout.group_bytes[part], 0))
            if not len(ends):
                continue
            parts = min(len(ends), max(1, -(-int(ends[-1]) // target)))
            wanted = np.arange(1, parts, dtype=np.int64) * int(ends[-1]) // parts
            after = np.searchsorted(ends, wanted, side="left")
            before = np.where(after > 0, ends[after - 1], 0)
            cuts = np.where(ends[after] - wanted <= wanted - before, after + 1, after)
            first_groups.append(groups.start + distinct(np.concatenate(([0], cuts[cuts < len(ends)]))))
        return _cut_at(layout, np.concatenate([np.empty(0, dtype=np.int64), *first_groups]))


@dataclass(frozen=True, slots=True)
class RowBalancedStrategy:
    """Splits of equal rows, cut inside row groups where needed. Splits of one file differ by at most one row.

    Args:
        target_rows: the most rows of a split.
    """

    target_rows: int = 1_000_000

    def __post_init__(self) -> None:
        """Refuse a target below one."""
        _take_rows(self, self.target_rows)

    def __call__(self, files: Sequence[DataFileInfo]) -> Sequence[Split]:
        """Cut files by rows."""
        layout = as_layout(files)
        rows = layout.file_rows
        parts = -(-rows // self.target_rows)
        offsets = np.concatenate(([0], np.cumsum(parts)))
        part = np.arange(offsets[-1], dtype=np.int64) - np.repeat(offsets[:-1], parts)
        rows, count = np.repeat(rows, parts), np.repeat(parts, parts)
        short, longer = rows // np.maximum(count, 1), rows % np.maximum(count, 1)
        start = part * short + np.minimum(part, longer)
        file = np.repeat(np.arange(len(layout), dtype=np.int64), parts)
        return SplitTable(layout, file, start, start + short + (part < longer))


@dataclass(frozen=True, slots=True)
class RoundRobinStrategy:
    """Whole files dealt in turn, first to ranks, then to workers (a generator of the five-argument form).

    Args:
        shuffle: permute the files each epoch.
        seed: the key of the permutation.
    """

    shuffle: bool = False
    seed: int = 42

    def generate(
        self, files: Sequence[DataFileInfo], num_workers: int, epoch: int, num_ranks: int = 1, rank: int = 0
    ) -> list[Shard]:
        """Return a shard for each worker of one rank."""
        order = range(len(files))
        if self.shuffle:
            key = derive_key(self.seed, epoch, "round-robin files")
            order = permuted_range(len(files), key).tolist()
        mine = order[rank::num_ranks]
        return [
            Shard(id=worker, splits=[Split(files[file]) for file in mine[worker::num_workers]])
            for worker in range(num_workers)
        ]


def as_layout(files: Sequence[DataFileInfo]) -> TableLayout:
    """Return the library's own table unchanged, or build one from files that list their row groups.

    Raises:
        ConfigError: a file lists no row groups.
    """
    if isinstance(files, TableLayout):
        return files
    for file in files:
        if not file.row_groups and file.record_count:
            raise ConfigError(f"the file {file.path!r} has {file.record_count} rows and names no row groups")
    return TableLayout.of_infos(files)


def _next_cuts(weights: NDArray[np.int64], target: int) -> list[int]:
    """Return for each row group where the split ends that begins with it, in a file without end.

    A split takes row groups up to the target; it has one with a weight, whatever that is, and those without before it.

    >>> _next_cuts(np.array([5, 3, 3, 0, 9, 1]), 6)
    [1, 4, 4, 5, 5, 6]
    """
    sums = np.concatenate(([0], np.cumsum(weights)))
    full = np.searchsorted(sums[1:], sums[:-1] + target, side="right")
    weighty = np.searchsorted(sums, sums[:-1], side="right")
    found: list[int] = np.maximum(full, weighty).tolist()
    return found


def _cut_at(layout: TableLayout, first_groups: NDArray[np.int64]) -> SplitTable:
    """Return splits that begin at the given row groups and end where the next one begins or the file ends."""
    file = np.searchsorted(layout.group_offsets, first_groups, side="right") - 1
    start = layout.group_starts[first_groups] - layout.file_starts[file]
    next_start = np.append(start[1:], 0)
    is_last = np.append(file[1:] != file[:-1], values=True)[: len(file)]
    return SplitTable(layout, file, start, np.where(is_last, layout.file_rows[file], next_start))


def _take_bytes(strategy: object, value: int | str) -> None:
    """Check a target in bytes, and store it as an int."""
    object.__setattr__(strategy, "target_bytes", parse_bytes(value, f"{type(strategy).__name__}: target_bytes"))


def _take_rows(strategy: object, value: int) -> None:
    """Check a target in rows, and store it as an int."""
    object.__setattr__(strategy, "target_rows", integer(f"{type(strategy).__name__}: target_rows", value, least=1))
