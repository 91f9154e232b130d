"""The table's files and row groups as columns, because a table may have a million row groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from torch_table_loader.errors import ConfigError
from torch_table_loader.planning.listed_files import ListedFiles
from torch_table_loader.records import DataFile, DataFileInfo, FileVersion, RowGroupInfo, Segment
from torch_table_loader.scrubbing import shown_url

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class TableLayout(Sequence[DataFileInfo]):
    """Files in canonical order with their row groups; reads as a sequence of `DataFileInfo`.

    Args:
        files: F data files.
        group_offsets: int64[F+1]; file f has the row groups ``group_offsets[f]:group_offsets[f + 1]``.
        group_rows: int64[G] rows of each row group, before deletes and filters.
        group_bytes: int64[G] bytes of each row group; see `RowGroupInfo`.
        group_kept: bool[G]; False if statistics prove that no row passes the filter.
        group_live: int64[G] rows left after deletes; −1 if they must be counted.
        whole: bool[F]; True if a file must not be cut.
        uri_prefix: what precedes the path of a file in its URI.
        snapshot_id: the snapshot of the table; None for a table without snapshots.
    """

    files: Sequence[DataFile]
    group_offsets: NDArray[np.int64]
    group_rows: NDArray[np.int64]
    group_bytes: NDArray[np.int64]
    group_kept: NDArray[np.bool_]
    group_live: NDArray[np.int64]
    whole: NDArray[np.bool_]
    uri_prefix: str = field(default="", repr=False)
    snapshot_id: int | None = None
    group_starts: NDArray[np.int64] = field(init=False)
    """int64[G+1]: the ordinal of each row group's first row among all rows of the table."""
    file_starts: NDArray[np.int64] = field(init=False)
    """int64[F+1]: the ordinal of each file's first row among all rows of the table."""
    file_rows: NDArray[np.int64] = field(init=False)
    """int64[F] rows of each file."""
    num_rows: int = field(init=False)
    """All rows, before deletes and filters."""
    has_deletes: bool = field(init=False)
    """Whether deletes leave fewer rows than the files have."""
    must_count: bool = field(init=False)
    """Whether rows must be read to know how many deletes leave."""

    def __post_init__(self) -> None:
        """Refuse columns of different lengths."""
        groups = len(self.group_rows)
        ends_right = len(self.group_offsets) == len(self.files) + 1 and int(self.group_offsets[-1]) == groups
        lengths = {len(self.group_bytes), len(self.group_kept), len(self.group_live)}
        if not ends_right or lengths != {groups} or len(self.whole) != len(self.files):
            raise ConfigError(
                f"TableLayout needs one entry for each of {groups} row groups of {len(self.files)} files, got "
                f"{len(self.group_bytes)} sizes, {len(self.group_kept)} marks and offsets to {self.group_offsets[-1:]}"
            )
        starts = np.zeros(groups + 1, dtype=np.int64)
        np.cumsum(self.group_rows, out=starts[1:])
        object.__setattr__(self, "group_starts", starts)
        object.__setattr__(self, "file_starts", starts[self.group_offsets])
        object.__setattr__(self, "file_rows", np.diff(self.file_starts))
        object.__setattr__(self, "num_rows", int(starts[-1]))
        object.__setattr__(self, "has_deletes", bool((self.group_live != self.group_rows).any()))
        object.__setattr__(self, "must_count", bool((self.group_live < 0).any()))

    def __str__(self) -> str:
        """Say how much there is, and how much of it is not read."""
        return (
            f"{len(self.group_rows)} row groups, {self.num_rows} rows; {self.pruned_files} files and "
            f"{self.pruned_groups} row groups are pruned"
        )

    @classmethod
    def of(
        cls,
        files: Sequence[DataFile],
        group_rows: Sequence[Sequence[int]],
        group_bytes: Sequence[Sequence[int]],
        group_kept: Sequence[Sequence[bool]] | None = None,
        uri_prefix: str = "",
    ) -> TableLayout:
        """Build from the row groups of each file; `group_kept` None keeps all of them."""
        offsets = np.zeros(len(files) + 1, dtype=np.int64)
        np.cumsum([len(rows) for rows in group_rows], out=offsets[1:])
        count = int(offsets[-1])
        kept = np.ones(count, dtype=np.bool_)
        if group_kept is not None:
            kept = _flat(group_kept, count, np.bool_)
        rows = _flat(group_rows, count, np.int64)
        return cls(
            files if isinstance(files, ListedFiles) else tuple(files),
            offsets,
            rows,
            _flat(group_bytes, count, np.int64),
            kept,
            rows,
            np.zeros(len(files), dtype=np.bool_),
            uri_prefix,
        )

    def without(self, deletes: Mapping[int, Sequence[int]], *, split_deletes: bool) -> TableLayout:
        """Return the table without its deleted rows.

        Args:
            deletes: for each file that has deletes, the rows left in its row groups; −1 if unknown.
        """
        live, whole = self.group_live.copy(), self.whole.copy()
        for file, own in deletes.items():
            groups = self.groups_of(file)
            part = slice(groups.start, groups.stop)
            live[part] = own
            whole[file] = not split_deletes and bool((live[part] != self.group_rows[part]).any())
        return replace(self, group_live=live, whole=whole)

    @classmethod
    def of_infos(cls, files: Sequence[DataFileInfo]) -> TableLayout:
        """Build from the files that a split strategy sees, for a strategy that is called outside a loader."""
        layout = cls.of(
            [
                DataFile(
                    file.uri or file.path,
                    file.path,
                    FileVersion(file.file_size or 0),
                    "",
                    tuple(file.partition.items()),
                )
                for file in files
            ],
            [[group.num_rows for group in file.row_groups] for file in files],
            [[group.num_bytes for group in file.row_groups] for file in files],
            [[group.kept for group in file.row_groups] for file in files],
        )
        return replace(layout, snapshot_id=next((file.snapshot_id for file in files), None))

    def same_rows(self, other: TableLayout) -> bool:
        """Whether the same files have the same row groups in another layout, so that numbers mean the same in both."""
        numbers = ((self.group_offsets, other.group_offsets), (self.group_rows, other.group_rows))
        if not all(np.array_equal(mine, others) for mine, others in numbers):
            return False
        pairs = zip(self.files, other.files, strict=True)
        return self.files is other.files or all(mine.path == others.path for mine, others in pairs)

    @property
    def file_bytes(self) -> NDArray[np.int64]:
        """int64[F] bytes of each file as stored."""
        if isinstance(self.files, ListedFiles):
            return self.files.num_bytes
        return np.array([file.version.num_bytes for file in self.files], dtype=np.int64)

    @property
    def num_bytes(self) -> int:
        """Bytes of all files as stored."""
        return int(self.file_bytes.sum())

    @property
    def kept_groups(self) -> NDArray[np.int64]:
        """int64[F] row groups of each file that are read."""
        return np.diff(np.concatenate(([0], np.cumsum(self.group_kept)))[self.group_offsets])

    @property
    def pruned_groups(self) -> int:
        """Row groups that are not read."""
        return int((~self.group_kept).sum())

    @property
    def pruned_files(self) -> int:
        """Files that have row groups but none that is read."""
        return int(((np.diff(self.group_offsets) > 0) & (self.kept_groups == 0)).sum())

    def part(self, files: NDArray[np.int64]) -> TableLayout:
        """Return a table of some of the files (int64[P]), in the given order."""
        first, count = self.group_offsets[files], np.diff(self.group_offsets)[files]
        offsets = np.zeros(len(files) + 1, dtype=np.int64)
        np.cumsum(count, out=offsets[1:])
        groups = np.arange(offsets[-1], dtype=np.int64) + np.repeat(first - offsets[:-1], count)
        return TableLayout(
            tuple(self.files[number] for number in files.tolist()),
            offsets,
            self.group_rows[groups],
            self.group_bytes[groups],
            self.group_kept[groups],
            self.group_live[groups],
            self.whole[files],
            self.uri_prefix,
            self.snapshot_id,
        )

    def groups_of(self, file: int) -> range:
        """Return the row groups of a file, numbered over the whole table."""
        return range(int(self.group_offsets[file]), int(self.group_offsets[file + 1]))

    def kept_segments(self, file: int) -> tuple[Segment, ...]:
        """Return the row groups of a file that may have live rows, whole and not counted."""
        groups = self.groups_of(file)
        starts = self.group_starts[groups.start : groups.stop + 1] - self.file_starts[file]
        kept = [at for at in range(len(groups)) if self.group_kept[groups[at]]]
        return tuple(Segment(at, int(starts[at]), int(starts[at + 1]), -1) for at in kept)

    def __len__(self) -> int:
        """Count the files."""
        return len(self.files)

    @overload
    def __getitem__(self, index: int) -> DataFileInfo: ...
    @overload
    def __getitem__(self, index: slice) -> list[DataFileInfo]: ...
    def __getitem__(self, index: int | slice) -> DataFileInfo | list[DataFileInfo]:
        """Describe one file, or several, for a split strategy."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        file = self.files[index]
        groups = slice(int(self.group_offsets[index]), int(self.group_offsets[index + 1]))
        rows, uri = self.group_rows[groups], file.path
        if self.uri_prefix:
            uri = f"{self.uri_prefix}{file.path.lstrip('/')}"
        return DataFileInfo(
            path=file.name,
            file_size=file.version.num_bytes,
            record_count=int(rows.sum()),
            partition=dict(file.partition),
            row_groups=tuple(
                map(
                    RowGroupInfo,
                    rows.tolist(),
                    self.group_bytes[groups].tolist(),
                    self.group_kept[groups].tolist(),
                )
            ),
            uri=shown_url(uri),
            snapshot_id=self.snapshot_id,
        )

    def __iter__(self) -> Iterator[DataFileInfo]:
        """Describe each file."""
        return (self[index] for index in range(len(self)))


def _flat(lists: Sequence[Sequence[Any]], count: int, dtype: type) -> NDArray[Any]:
    return np.fromiter(chain.from_iterable(lists), dtype=dtype, count=count)
