"""Token files as they lie, gathered by place like a row store, and read by ranges; lengths are in memory.

So are Arrow files with a list of tokens in each row. Where only the tokens themselves tell how long documents become,
or where they lie, the files are read once, and a row store keeps that: a few bytes a document.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_table_loader.arrow.arrays import number_type, numbers_of
from torch_table_loader.contracts import is_far
from torch_table_loader.engine.machine import in_parallel
from torch_table_loader.format_contracts import PLACE, PlacingReader
from torch_table_loader.planning.lists import ListLengths
from torch_table_loader.read.failures import changed_error
from torch_table_loader.read.footers import LazyFooters
from torch_table_loader.read.formats import reader_of
from torch_table_loader.read.list_groups import TOKENS
from torch_table_loader.store.far_rows import FilesOfRows, far_stores
from torch_table_loader.store.gather import StoredRows
from torch_table_loader.store.manifest import Manifest
from torch_table_loader.store.record_layout import WIDE_BYTES, Origin, Part, values_file
from torch_table_loader.text.kept_documents import KEPT, LACKS
from torch_table_loader.text.placed_documents import PlacedDocuments, PutIn
from torch_table_loader.text.token_files import TokenReader, begin_of, document_lengths
from torch_table_loader.text.tokens_read import ReadTokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from torch_table_loader.contracts import RangeStorage
    from torch_table_loader.engine.table import Table
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.ranges import OpenReader
    from torch_table_loader.records import FileMeta
    from torch_table_loader.store.far_rows import FarRows
    from torch_table_loader.store.record_layout import RecordLayout
    from torch_table_loader.text.kept_documents import KeptDocuments

_AT_ONCE = 1 << 20
"""Documents that are looked up together."""

_MEASURED_BYTES = 24
"""Bytes of memory at most that a document takes whose length was measured, the store of that included."""

_THINNED_BYTES = 16
"""Bytes more of a document where some are deleted: its row id, and where it lies."""


@dataclass(frozen=True, slots=True)
class TokensInPlace:
    """The token files of a table, each of them read as it lies. It pickles.

    Args:
        stage: makes of documents what a store would keep of them.
        measured: opens the rows that `MeasuredDocuments` makes of `table`; None where indexes of files say all.
    """

    table: Table
    stage: KeptDocuments
    measured: Callable[[], StoredRows | FarRows] | None = None

    @classmethod
    def of(cls, table: Table, options: LoaderOptions, stage: KeptDocuments) -> TokensInPlace | None:
        """Return the files of a table; None if they are compressed, or lack what a store would keep of them.

        A store that the caller asked for is built.
        """
        whole = table.filters is None and not table.layout.must_count and not table.left_out
        alone = stage.keeps_as_stored and set(options.column_names or ()) <= {stage.pack.ids}
        if options.rows_kept.place is not None or not (whole and alone) or isinstance(table.metas, LazyFooters):
            return None
        if not (table.storage.is_local or is_far(table.storage)):
            return None
        kept, readers = stage.schema(table.schema).field(0).type.value_type, list(map(reader_of, table.files))
        if not all(_holds_lists(meta.schema, stage.pack.ids, kept) for meta in table.metas):
            return None
        if stage.pack.ids == TOKENS and all(isinstance(reader, TokenReader) for reader in readers):
            return cls(table, stage)
        placed = partial(_placed, table, stage.pack.ids)
        found = in_parallel(placed, range(len(readers)), asks=table.storage)
        metas = tuple(meta for meta in found if meta is not None)
        if len(metas) < len(found):
            return None
        field = pa.field(PLACE, pa.int64(), nullable=False)
        return cls(replace(table, metas=metas, schema=table.schema.append(field)), stage)

    @property
    def to_measure(self) -> list[str]:
        """The columns of `table` that are read once, since only they say how long documents become; empty: none."""
        ids = self.stage.pack.ids
        if PLACE in self.table.schema.names:
            return [ids, PLACE]
        if self.stage.measured_by is None:
            return [ids]
        return []

    @property
    def remote(self) -> RangeStorage | None:
        """Where the files are, if that is not this machine."""
        storage = self.table.storage
        if is_far(storage):
            return storage
        return None

    @property
    def num_bytes(self) -> int:
        """Bytes in memory: of the lengths of documents."""
        rows, num_bytes = self.table.layout.num_rows, 0
        if self.table.layout.has_deletes:
            num_bytes += rows * _THINNED_BYTES
        if self.measured is not None:
            return num_bytes + rows * _MEASURED_BYTES
        if self.stage.changes_lengths:
            num_bytes += rows * WIDE_BYTES
        return num_bytes + self._stored().nbytes

    def check(self) -> None:
        """Refuse files that are no longer those that were listed; where they have tags, each request compares these.

        Raises:
            TableError: names the file.
        """
        for file in self.table.files:
            if self.remote is not None and file.version.etag is not None:
                continue
            now = self.table.storage.version(file.path)
            if not file.version.holds(now):
                raise changed_error(file, now)

    def open(self, layout: RecordLayout) -> StoredRows:
        """Return what reads the files by position; their documents are the rows.

        Raises:
            TableError: a file has changed since it was listed.
        """
        self.check()
        files = list(zip(self.table.files, self._values(layout), self._begins(), strict=True))
        live = self._live()
        return ReadTokens(layout, self.table.storage, files, *self._documents(layout, live), row_ids=live)

    def open_remote(self, layout: RecordLayout, open_reader: OpenReader, window_bytes: int) -> FarRows:
        """Return what reads parts of the files as if they were those of a store."""
        table = self.table
        parts = [
            Part(live, {}, 0, count, ()) for live, count in zip(self._live_rows(), self._values(layout), strict=True)
        ]
        manifest = Manifest("", layout.schema, tuple(parts), {}, 0.0, layout.flat, {}, {})
        named = {values_file(number): file for number, file in enumerate(table.files)}
        self.check()
        live = self._live()
        lengths, placed = self._documents(layout, live)
        origin = Origin("of the table's own token files", "build the loader again")
        files = FilesOfRows(manifest, named, origin, placed, np.array(self._begins()))
        return far_stores().rows_of_files(files, open_reader, window_bytes, lengths, live)

    def _values(self, layout: RecordLayout) -> list[int]:
        """Return how many values each file has room for."""
        size = layout.value_dtype.itemsize
        places = zip(self.table.files, self._begins(), strict=True)
        return [(file.version.num_bytes - begin) // size for file, begin in places]

    def _begins(self) -> list[int]:
        """Return the byte of each file from which on values count."""
        if PLACE in self.table.schema.names:  # which counts from the file's start
            return [0] * len(self.table.files)
        return list(map(begin_of, self.table.files, self.table.metas))

    def _documents(
        self, layout: RecordLayout, live: NDArray[np.int64] | None
    ) -> tuple[ListLengths, PlacedDocuments | None]:
        """Return how long documents are, and where, unless they lie one after another and nothing is put in.

        Args:
            live: the rows of the table that are documents; None: all.
        """
        pack = self.stage.pack
        put_in = PutIn(pack.bos_id, pack.eos_id, pack.sep_id)
        stored, first = self._stored(), 0
        strides = stored
        if live is not None and len(stored):
            places = ListLengths.of(stored).starts(live)
            stored, first, strides = stored[live], *_strides(places)
        if self.measured is None and live is None and not self.stage.changes_lengths:
            return ListLengths.of(stored), None
        if self.measured is None:
            lengths = ListLengths.of(self.stage.kept_lengths(stored))
            return lengths, PlacedDocuments(lengths, ListLengths.of(strides), None, put_in, first)
        found = _read(self.measured())
        lengths = ListLengths.of(found[KEPT])
        if PLACE in found:
            places, before = found[PLACE], np.cumsum([0, *self._values(layout)])
            edges = np.cumsum([0, *self._live_rows()]).tolist()
            for file, (start, stop) in enumerate(pairwise(edges)):
                places[start:stop] += before[file]
            first, strides = _strides(places)
        lacks = found[LACKS] if found[LACKS].any() else None
        return lengths, PlacedDocuments(lengths, ListLengths.of(strides), lacks, put_in, first)

    def _live_rows(self) -> list[int]:
        """Return how many rows of each file are documents."""
        layout = self.table.layout
        before: NDArray[np.int64] = np.concatenate(([0], np.cumsum(layout.group_live)))
        counts: list[int] = np.diff(before[layout.group_offsets]).tolist()
        return counts

    def _live(self) -> NDArray[np.int64] | None:
        """Return the rows that no delete takes, counted over the table; None for all."""
        table = self.table
        if not table.layout.has_deletes:
            return None
        gone = [table.deletes.positions(file) for file in table.files]
        kept = [file.keeps_deleted for file in table.files]
        found = []
        for number, (start, stop) in enumerate(pairwise(table.layout.file_starts.tolist())):
            rows = np.arange(start, stop)
            found.append(rows[gone[number]] if kept[number] else np.delete(rows, gone[number]))
        return np.concatenate(found)

    def _stored(self) -> NDArray[Any]:
        """Return the lengths that indexes of files say; none where files have no index."""
        if PLACE in self.table.schema.names:
            return np.empty(0, np.uint8)
        found = [np.empty(0, np.uint8), *map(document_lengths, self.table.metas)]
        if len(found) == 2:
            return found[1]
        return np.concatenate(found)


def _holds_lists(schema: pa.Schema, name: str, kind: pa.DataType) -> bool:
    """Return whether a file has a column of lists of values of a type."""
    if name not in schema.names or PLACE in schema.names:
        return False
    own = schema.field(name).type
    return bool((pt.is_list(own) or pt.is_large_list(own)) and own.value_type == kind)


def _placed(table: Table, column: str, number: int) -> FileMeta | None:
    file, reader = table.files[number], reader_of(table.files[number])
    if not isinstance(reader, PlacingReader):
        return None
    return reader.placed(table.storage, file, table.metas[number], column)


def _strides(places: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
    """Return where the first document begins, and how far each is from the next; the last reaches to itself."""
    return int(places[:1].sum()), np.diff(places, append=places[-1:])


def _read(rows: StoredRows | FarRows) -> dict[str, NDArray[Any]]:
    """Return the columns of all rows."""
    schema = rows.layout.schema
    found = {field.name: np.empty(rows.num_rows, number_type(field.type)) for field in schema}
    for first in range(0, rows.num_rows, _AT_ONCE):
        some = slice(first, min(first + _AT_ONCE, rows.num_rows))
        for name, column in zip(schema.names, rows.gather(np.arange(some.start, some.stop)), strict=True):
            found[name][some] = numbers_of(column)
    return found
