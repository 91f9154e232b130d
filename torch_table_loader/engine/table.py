"""A table whose footers have been read, as a value."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow.datatypes import is_text, is_variable, width_of
from torch_table_loader.engine.machine import in_parallel
from torch_table_loader.engine.newest import Newest
from torch_table_loader.engine.sizing import CHUNK_BYTES
from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.format_contracts import (
    BoundsReader,
    HoldingReader,
    ListBoundsReader,
    NullProvingReader,
    RangedReader,
    SizingReader,
)
from torch_table_loader.messages import did_you_mean, note_of_folders
from torch_table_loader.planning.layout import TableLayout
from torch_table_loader.read.by_id import found_by_name
from torch_table_loader.read.deletes import Deletes
from torch_table_loader.read.failures import naming
from torch_table_loader.read.footers import LazyFooters
from torch_table_loader.read.formats import reader_of
from torch_table_loader.read.tasks import DEFAULT_MAX_ROWS, TaskReader
from torch_table_loader.records import ReadTask

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.contracts import Storage
    from torch_table_loader.ranges import KeepingStorage
    from torch_table_loader.read.row_stage import RowStage
    from torch_table_loader.records import DataFile, FileMeta, LeftOut

_CHUNKS_TO_SIZE = 1 << 14
"""Chunks of columns, in footers, that are looked through for the rows that decode to the most: some 4 us for each."""

_KEPT = 4
"""Choices of columns for which the sizes of row groups are kept."""

_REPEATED = 2
"""A row store that keeps each text once takes at most so many times the bytes of distinct texts and codes."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A table whose footers have been read.

    Args:
        metas: what each file's footer says, or will say when it is asked.
        schema: the unified schema, partition columns included.
        fingerprint: hash of relative names, sizes and row counts; or of table and snapshot.
        snapshot_id: of a table that has snapshots, the one that is read.
        start_snapshot_id: where only the rows are read that were appended after another snapshot, that one.
        changelog: whether the rows are those that came or went after that snapshot.
        filters: what rows must pass to be read; None for all.
        left_out: damaged parts that ``on_error="skip"`` leaves out.
        unread_keys: keys of ``key=value`` folders of which no columns are made, since not all files have them.
    """

    storage: Storage
    layout: TableLayout
    metas: tuple[FileMeta, ...] | LazyFooters
    schema: pa.Schema
    fingerprint: str
    deletes: Deletes
    snapshot_id: int | None = None
    description: str = ""
    notes: tuple[str, ...] = ()
    start_snapshot_id: int | None = None
    changelog: bool = False
    left_out: tuple[LeftOut, ...] = ()
    unread_keys: tuple[str, ...] = ()
    filters: Any = None
    _sized: Newest[tuple[str, ...], NDArray[np.int64]] = field(
        default_factory=partial(Newest, _KEPT), init=False, repr=False
    )

    @property
    def filter_key(self) -> str | None:
        """What tells the filter from others; None without one."""
        if self.filters is None:
            return None
        from torch_table_loader.predicates.filter_form import filter_key

        return filter_key(self.filters, self.schema)

    def hints(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        """Return hints for a caller who asked for some columns, or for all (None)."""
        if self.unread_keys and columns is None:
            return (note_of_folders(self.unread_keys),)
        return ()

    def no_column(self, name: str) -> ConfigError:
        """Return the error of a column that is not there, with what may have been meant."""
        if name in self.unread_keys:
            return ConfigError(f"the table has no column {name!r}: {note_of_folders([name])}")
        return ConfigError(f"the table has no column {name!r}{did_you_mean(name, self.schema.names, spare=20)}")

    @property
    def files(self) -> Sequence[DataFile]:
        """The data files in canonical order."""
        return self.layout.files

    @property
    def footer_bytes(self) -> int:
        """Bytes of raw footers that are held so that no footer is read twice."""
        if isinstance(self.metas, LazyFooters):
            return self.metas.num_bytes
        return sum(len(meta.footer) for meta in self.metas if meta.footer is not None)

    @property
    def brought_bytes(self) -> int:
        """Bytes of files that came with their footers, and wait for the first epoch."""
        return int(getattr(self.storage, "brought_bytes", 0))

    def let_go(self) -> None:
        """Drop those bytes: a job of several tables has one budget for what is fetched of all."""
        if self.brought_bytes:
            cast("KeepingStorage", self.storage).let_go()

    @property
    def estimated(self) -> bool:
        """Whether row groups are estimates, since footers are read later."""
        return isinstance(self.metas, LazyFooters)

    def reader(
        self,
        columns: Sequence[str],
        *,
        row_ids: bool = False,
        max_rows: int | None = None,
        stage: RowStage | None = None,
        encoded: Collection[str] = (),
        max_bytes: int = 0,
    ) -> TaskReader:
        """Make what reads the table's live rows.

        Args:
            row_ids: whether the last column is each row's ordinal among all physical rows.
            max_rows: that come at once; None for about a chunk of bytes.
            stage: makes other rows from the live ones; None delivers them as they are.
            encoded: columns of strings that may come as dictionaries.
            max_bytes: the most bytes of a single value; see `TaskReader`.
        """
        if max_rows is None:
            max_rows = min(DEFAULT_MAX_ROWS, max(1, CHUNK_BYTES // self.row_bytes(columns)))
        return TaskReader(
            self.storage,
            self.files,
            self.metas,
            self.schema,
            columns,
            filters=self.filters,
            row_id_bases=self.layout.file_starts[:-1] if row_ids else None,
            max_rows=max_rows,
            deletes=self.deletes,
            stage=stage,
            encoded=encoded,
            max_bytes=max_bytes,
        )

    def first_rows(self, columns: Sequence[str], count: int) -> pa.Table:
        """Read the first live rows, at most `count`, in the order of the files; see `reader`."""
        reader, left = self.reader(columns, max_rows=max(count, 1)), count
        found: list[pa.RecordBatch] = []
        for file in range(len(self.layout)):
            if left > 0 and (parts := self.layout.kept_segments(file)):
                found += reader.read(ReadTask(file, parts, take=left))
                left = count - sum(batch.num_rows for batch in found)
        return pa.Table.from_batches(found, reader.schema)

    def refuse_nulls(self, columns: frozenset[str]) -> None:
        """Refuse columns in which statistics prove a null, which would be an error on arrival; a filter may drop it.

        Raises:
            TableError: names the column, a file, and the remedies.
        """
        wanted = sorted(columns)
        if not wanted or self.estimated or self.filters is not None:
            return

        def check(index: int) -> None:
            file, meta = self.files[index], self.metas[index]
            kept = self._kept_groups(index)
            if file.deletes or not any(kept):
                return  # a delete may take the nulls
            with naming(self.storage, file):
                found = reader_of(file).null_columns(meta, self._in_file(index, wanted), kept)
            found |= {name for name, value in file.partition if value is None and name in columns}
            if file.columns is None:  # a column that a file does not have is null in it
                found |= columns - set(meta.schema.names) - {name for name, _ in file.partition}
            if found:
                raise TableError(
                    f"column {min(found)!r} has nulls in {file.name!r} (its metadata says so), but a tensor of ints "
                    f'or bools cannot hold them; pass nulls={{{min(found)!r}: fill}}, nulls="mask", or filter '
                    "them out"
                )

        in_parallel(check, range(len(self.files)))

    def null_free(self, columns: Sequence[str]) -> frozenset[str]:
        """Return those of some columns in which statistics prove that there is no null in what is read."""
        free = frozenset() if self.estimated else frozenset(columns)
        for index, file in enumerate(self.files):
            if not free:
                break
            reader, kept = reader_of(file), self._kept_groups(index)
            if any(kept):
                proven = {name for name, value in file.partition if value is not None}
                if isinstance(reader, NullProvingReader):
                    with naming(self.storage, file):
                        proven |= reader.null_free(self.metas[index], self._in_file(index, sorted(free)), kept)
                free &= proven
        return free

    def list_bounds(self, column: str) -> tuple[int, int] | None:
        """Return numbers between which the integers in a column of lists lie; None where statistics do not say."""
        found: list[tuple[int, int]] = []
        for index, file in enumerate(() if self.estimated else self.files):
            reader, names = reader_of(file), self._in_file(index, [column])
            if not isinstance(reader, ListBoundsReader) or names != [column]:
                return None
            with naming(self.storage, file):
                bounds = reader.list_bounds(file, self.metas[index], column)
            if bounds is None:
                return None
            found.append(bounds)
        if found:
            return (min(low for low, _ in found), max(high for _, high in found))
        return None

    def bounds(self, index: int, column: str) -> tuple[int, int | None, int | None] | None:
        """Return the nulls, least and greatest value of integers in a file; None where its footer is no proof."""
        file = self.files[index]
        if self.estimated or self.left_out or file.deletes or any(name == column for name, _ in file.partition):
            return None
        reader = reader_of(file)
        if not isinstance(reader, BoundsReader) or self._in_file(index, [column]) != [column]:
            return None
        with naming(self.storage, file):
            return reader.bounds(self.metas[index], column)

    def _kept_groups(self, index: int) -> list[bool]:
        groups = self.layout.groups_of(index)
        kept: list[bool] = self.layout.group_kept[groups.start : groups.stop].tolist()
        return kept

    def row_bytes(self, columns: Sequence[str], encoded: Sequence[str] = ()) -> int:
        """Estimate the decoded bytes of a row; values of variable width count at least as the files store them.

        Args:
            encoded: those that come as codes where files have dictionaries of them.
        """
        types = {name: self.schema.field(name).type for name in columns}
        plain = [name for name in columns if name not in encoded]
        guess = sum([width_of(types[name]) for name in plain]) + 8 * len(set(encoded)) or 1
        if not any(map(is_variable, types.values())):
            return guess
        return max([self._row_bytes(group, plain, columns, guess) for group in self._largest(columns)], default=guess)

    def _row_bytes(self, group: int, plain: Sequence[str], columns: Sequence[str], guess: int) -> int:
        """Return what a row of a row group decodes to: as its file says, or else at least as it is stored."""
        least, most = self._decoded(group, plain)
        if 0 < least == most and len(plain) == len(columns):
            return least
        num_rows = max(1, int(self.layout.group_rows[group]))
        stored = int(self.layout.group_bytes[group] / num_rows * self._read_share(group, columns))
        return max(guess, stored, least, min(most, CHUNK_BYTES // max(1, self.layout.num_rows)))

    def read_bytes(self, columns: Sequence[str], row_bytes: int) -> int:
        """Return what a row takes while it is decoded: small integers may be stored as larger ones.

        Args:
            row_bytes: what it has then.
        """
        return max([row_bytes, *(self._decoded(group, columns)[0] for group in self._largest(columns))])

    def open_bytes(self, columns: Sequence[str], max_rows: int, row_bytes: int, *, decides_order: bool = False) -> int:
        """Return what an open file holds beside the rows that it gave, where at most so many come at once.

        Args:
            decides_order: whether the order depends on it, so that what only near files say must not count.
        """
        found = [0]
        for group in self._largest(columns):
            index, num_rows = self._file_of(group), int(self.layout.group_rows[group])
            if self.estimated:
                found.append(num_rows * row_bytes)
                continue
            at, reader = group - int(self.layout.group_offsets[index]), reader_of(self.files[index])
            own = min(row_bytes, self._decoded(group, columns)[1] or row_bytes)
            if not isinstance(reader, HoldingReader):
                found.append(num_rows * own)
                continue
            with naming(self.storage, self.files[index]):
                meta, names = self.metas[index], self._in_file(index, columns)
                held = reader.held_bytes(meta, at, names, max_rows, own)
            if meta.at_once and not decides_order:
                held = min(held, meta.group_bytes[at] + meta.part_bytes(names))
            elif num_rows <= max_rows and self._decoded(group, columns)[0] > row_bytes and not decides_order:
                held = held * (1 << (num_rows - 1).bit_length()) // num_rows  # the room for values that are converted
            found.append(held)
        return max(found)

    def part_bytes(self, columns: Sequence[str], count: int) -> int:
        """Return what so many of the largest parts of files take that are decoded as one, as far as files say it."""
        if self.estimated:
            return 0
        parts = list[int]()
        for index, meta in enumerate(self.metas):
            if meta.at_once:  # where it does not say where row groups lie, one may be many such parts
                some = count if meta.group_ranges is None else min(count, len(meta.group_rows))
                parts += [meta.part_bytes(self._in_file(index, columns))] * some
        return sum(sorted(parts)[-count:])

    def beyond_bytes(self, columns: Sequence[str], row_bytes: int, rows: int, splits: int) -> int:
        """Return how much more than so many bytes each rows may decode to that come from so many splits."""
        if not self.part_bytes(columns, 1):
            return 0
        beyond = 0
        for index, meta in enumerate(self.metas):
            decoded = meta.decoded_bytes(self._in_file(index, columns)) if meta.at_once else None
            beyond += max(0, (decoded or 0) - meta.num_rows * row_bytes)
        parts = splits + rows // max(1, self.layout.num_rows // max(1, len(self.layout.group_rows)))
        return min(beyond, self.part_bytes(columns, parts))

    def _largest(self, columns: Sequence[str]) -> list[int]:
        """Return the row groups that hold the most bytes, the most rows, and the rows that decode to the most."""
        layout = self.layout
        if not layout.group_kept.any():
            return []
        sizes = [np.where(layout.group_kept, each, 0) for each in (layout.group_bytes, layout.group_rows)]
        if variable := _variable(self.schema, columns):
            sizes.append(self._sizes_of(variable) / np.maximum(1, layout.group_rows))
        return sorted({int(np.argmax(each)) for each in sizes})

    def _sizes_of(self, columns: tuple[str, ...]) -> NDArray[np.int64]:
        """Return what columns of variable width of each row group decode to; -1 where it is not known.

        Files that store the least of a row are asked first, since few bytes may stand for any number, until that has
        cost about as much as it may beside reading the footers.
        """
        if (known := self._sized.by_key.get(columns)) is not None:
            return known
        layout, found = self.layout, np.full(len(self.layout.group_rows), -1, np.int64)
        kept = np.flatnonzero(layout.group_kept & (layout.group_rows > 0))
        stored = layout.group_bytes[kept] / layout.group_rows[kept]
        files, left = set[int](), _CHUNKS_TO_SIZE
        for group in () if self.estimated else kept[np.argsort(stored, kind="stable")].tolist():
            if (index := self._file_of(group)) not in files:
                left -= len(self.metas[index].schema) * len(self.metas[index].group_rows)
                if files and left < 0:
                    break
                files.add(index)
            if least := self._decoded(group, columns)[0]:
                found[group] = least * layout.group_rows[group]
        return self._sized.add(columns, found)

    def _file_of(self, group: int) -> int:
        return int(np.searchsorted(self.layout.group_offsets, group, side="right")) - 1

    def kept_bytes(self, columns: Sequence[str], chunk_rows: Sequence[int]) -> int:
        """Estimate the bytes of a row that is kept, where texts are kept once if they repeat in each run of rows.

        Args:
            chunk_rows: of each of the runs that follow one another.
        """
        texts = tuple(name for name in columns if is_text(self.schema.field(name).type))
        others = [name for name in columns if name not in texts]
        layout, num_rows = self.layout, self.layout.num_rows
        if not num_rows:
            return 0
        most = -(-self._total_bytes(others) // num_rows)
        if not texts:
            return most
        group = int(np.argmax(np.where(layout.group_kept, layout.group_bytes, 0)))
        decoded, share = self._sizes_of(texts), self._read_share(group, texts)
        once = 2 * int(layout.group_bytes.sum() * share) // num_rows + 12 * len(texts)
        coded = layout.group_bytes * share + 4 * len(texts) * layout.group_rows
        chunks = np.searchsorted(np.cumsum(chunk_rows)[:-1], layout.group_starts[:-1], side="right")
        saved = np.bincount(chunks, np.where(decoded < 0, 0, decoded - _REPEATED * coded))
        if (saved < 0).any():  # codes do not pay there, and so they are kept nowhere
            once = max(once, -(-self._total_bytes(texts) // num_rows))
        return most + min(self.row_bytes(texts), once)

    def _total_bytes(self, columns: Sequence[str]) -> int:
        """Return what some columns of all rows decode to, about."""
        variable, layout = _variable(self.schema, columns), self.layout
        fixed = sum(width_of(self.schema.field(name).type) for name in columns if name not in variable)
        if not variable:
            return fixed * layout.num_rows
        found = self._sizes_of(variable)
        found = np.where(found < 0, layout.group_rows * self.row_bytes(variable), found)
        for index, meta in enumerate(() if self.estimated else self.metas):
            known, groups = meta.decoded_bytes(self._in_file(index, variable)), layout.groups_of(index)
            if known is not None and groups:
                found[groups.start : groups.stop] = known // len(groups) + 1
        return fixed * layout.num_rows + int(found.sum())

    def _decoded(self, group: int, columns: Sequence[str]) -> tuple[int, int]:
        """Return the bytes that a row of a row group decodes to in some columns, at the least and at the most.

        Both are 0 where the file's metadata does not say it.
        """
        index = self._file_of(group)
        if self.estimated or index >= len(self.files):
            return 0, 0
        file, meta, reader = self.files[index], self.metas[index], reader_of(self.files[index])
        at = group - int(self.layout.group_offsets[index])
        if not isinstance(reader, SizingReader) or not meta.group_rows[at]:
            return 0, 0
        with naming(self.storage, file):
            least, most = reader.decoded_bytes(meta, at, self._in_file(index, columns))
        return -(-least // meta.group_rows[at]), -(-most // meta.group_rows[at])

    def _read_share(self, group: int, columns: Sequence[str]) -> float:
        """Return the share of a row group's stored bytes that belongs to some columns; 1 if it is unknown.

        The row group is the largest one: others may lack a column that was added later, or hold only nulls.
        What the file stores under other names than the table counts as the columns'.
        """
        index = self._file_of(group)
        if self.estimated or index >= len(self.files) or not isinstance(reader_of(self.files[index]), RangedReader):
            return 1.0
        file, meta, reader = self.files[index], self.metas[index], cast("RangedReader", reader_of(self.files[index]))
        at, read = group - int(self.layout.group_offsets[index]), set(columns)
        others = self._in_file(index, [name for name in self.schema.names if name not in read])
        with naming(self.storage, file):
            unread, whole = (
                sum(stop - start for ranges in reader.ranges(file, meta, [at], names) for start, stop in ranges)
                for names in (others, meta.schema.names)
            )
        if whole:
            return 1 - unread / whole
        return 1.0

    def _in_file(self, index: int, columns: Sequence[str]) -> list[str]:
        """Return the columns that a file's statistics have under the table's own names."""
        file, meta = self.files[index], self.metas[index]
        if file.columns is None:
            return list(columns)
        return [name for name in columns if found_by_name(meta.schema, file.columns, {name})]


def _variable(schema: pa.Schema, columns: Sequence[str]) -> tuple[str, ...]:
    """Return those of some columns whose values vary in width."""
    return tuple(name for name in columns if is_variable(schema.field(name).type))
