"""Footers that are read only when their file is; until then they are estimated from the table's metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_table_loader.errors import TableError
from torch_table_loader.planning.layout import TableLayout
from torch_table_loader.planning.listed_files import ListedFiles
from torch_table_loader.read.lru_cache import LRUCache

if TYPE_CHECKING:
    from torch_table_loader.records import DataFile, FileMeta

FOOTER_BYTES = 256 * 1024 * 1024
"""The most footers that a process holds; the least recently used goes first, and is read again."""

LEAST_SEEN = 32
"""Footers that must have been seen before the size of the next one is predicted."""

_HEADROOM = 4
_LIKE = 2
_LEAST_TAIL_BYTES = 4096
_PART_BYTES = 32 * 1024 * 1024
_META_BYTES = 4096


class FooterSizes:
    """The sizes of a table's footers so far, so that the next one is read with few bytes. Threads share it.

    Footers of one table differ little, as they name the same columns. So four times the largest one so far is read,
    unless the file is more than twice as large as all before it: it may have more row groups.
    """

    __slots__ = ("_file_bytes", "_footer_bytes", "_seen")

    def __init__(self) -> None:
        self._seen = self._file_bytes = self._footer_bytes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without what was learned."""
        return FooterSizes, ()

    def add(self, file: DataFile, meta: FileMeta) -> None:
        """Learn from a footer that was read."""
        if meta.footer is not None:
            # An update may be lost between two threads: the next footers have the same sizes.
            self._footer_bytes = max(self._footer_bytes, len(meta.footer))
            self._file_bytes = max(self._file_bytes, file.version.num_bytes)
            self._seen += 1

    def hint(self, file: DataFile) -> DataFile:
        """Return a file with `tail_bytes` set, if they can be predicted and are not set."""
        like = file.version.num_bytes <= _LIKE * self._file_bytes
        if self._seen < LEAST_SEEN or not like or file.tail_bytes is not None:
            return file
        return replace(file, tail_bytes=max(_LEAST_TAIL_BYTES, _HEADROOM * self._footer_bytes))


class LazyFooters:
    """The footers of a table's files, each read by `inspect` when it is asked for. It pickles, without its cache.

    The row groups of the plan are then estimates: a task's segments are fitted to the file when that is read.
    """

    def __init__(
        self, files: Sequence[DataFile], inspect: Callable[[DataFile], FileMeta], most_bytes: int = FOOTER_BYTES
    ) -> None:
        self._files = files
        self._inspect = inspect
        self._cache = LRUCache(most_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the cache."""
        return LazyFooters, (self._files, self._inspect, self._cache.most_bytes)

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self._files)

    def __getitem__(self, index: int) -> FileMeta:
        """Return a footer, from the cache or read now."""
        file = self._files[index]

        def make() -> tuple[FileMeta, int]:
            meta = self._inspect(file)
            check_rows(file, meta)
            return meta, _META_BYTES + len(meta.footer or b"")

        meta: FileMeta = self._cache.get(index, make)
        return meta

    def __iter__(self) -> Iterator[FileMeta]:
        """Yield all footers, in the order of the files."""
        return (self[index] for index in range(len(self)))

    @property
    def num_bytes(self) -> int:
        """Bytes in the cache."""
        return self._cache.num_bytes


def check_rows(file: DataFile, meta: FileMeta) -> None:
    """Refuse a file that has other rows than the table's metadata says, if it says so."""
    if file.num_rows is not None and file.num_rows != meta.num_rows:
        raise TableError(
            f"{file.name} must have {file.num_rows} rows, as the table's metadata says, got {meta.num_rows}; "
            "the file or the metadata is damaged: restore it, or write the file again"
        )


def estimated_groups(file: DataFile) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Estimate the row groups of a file from the table's metadata: rows and stored bytes of each.

    If the metadata says at which bytes row groups begin, there is one part for each; else one for each 32 MiB. Rows
    are divided in proportion to bytes.

    Raises:
        TableError: the metadata does not say how many rows the file has.
    """
    if file.num_rows is None:
        raise TableError(f"the table's metadata must say how many rows {file.name} has, but does not; read footers")
    size = file.version.num_bytes
    if size <= _PART_BYTES and not file.split_offsets:  # of tables of very many files most are one part
        return (file.num_rows,), (max(size, 1),)
    starts = sorted({offset for offset in file.split_offsets if 0 <= offset < size})
    starts = starts or list(range(0, size, _PART_BYTES)) or [0]
    stops = [*starts[1:], max(size, starts[-1] + 1)]
    num_bytes = tuple(stop - start for start, stop in zip(starts, stops, strict=True))
    edges = [file.num_rows * upto // sum(num_bytes) for upto in accumulate(num_bytes, initial=0)]
    return tuple(stop - start for start, stop in pairwise(edges)), num_bytes


def estimated_layout(files: Sequence[DataFile]) -> TableLayout:
    """Return the layout of files in estimated row groups (see `estimated_groups`), without pruning or deletes."""
    if not isinstance(files, ListedFiles) or files.says_splits:
        groups = list(map(estimated_groups, files))
        return TableLayout.of(files, [rows for rows, _ in groups], [num_bytes for _, num_bytes in groups])
    for place in np.flatnonzero(files.num_rows < 0)[:1].tolist():
        estimated_groups(files[place])  # which raises
    sizes = np.maximum(files.num_bytes, 1)
    parts = -(-sizes // _PART_BYTES)
    offsets = np.concatenate(([0], np.cumsum(parts)))
    size, rows = np.repeat(sizes, parts), np.repeat(files.num_rows, parts)
    start = (np.arange(offsets[-1]) - np.repeat(offsets[:-1], parts)) * _PART_BYTES
    stop = np.minimum(start + _PART_BYTES, size)
    if int(sizes.max(initial=0)) * int(rows.max(initial=0)) > np.iinfo(np.int64).max:
        rows = rows.astype(object)
    group_rows = (rows * stop // size - rows * start // size).astype(np.int64)
    kept, whole = np.ones(len(size), dtype=np.bool_), np.zeros(len(files), dtype=np.bool_)
    return TableLayout(files, offsets, group_rows, stop - start, kept, group_rows, whole)
