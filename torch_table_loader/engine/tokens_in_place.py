"""Token files as they lie, gathered by place like a row store: mapped or read by ranges; lengths are in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torch_table_loader.contracts import is_far
from torch_table_loader.planning.slices import DocumentLengths
from torch_table_loader.read.failures import changed_error
from torch_table_loader.read.footers import LazyFooters
from torch_table_loader.read.formats import reader_of
from torch_table_loader.read.token_files import TOKENS, TokenReader, document_lengths
from torch_table_loader.store.gather import ListValues, StoredRows
from torch_table_loader.store.manifest import Manifest
from torch_table_loader.store.record_layout import Origin, Part, values_file
from torch_table_loader.store.remote import RemoteFiles, RemoteRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_table_loader.contracts import RangeStorage, Storage
    from torch_table_loader.engine.table import Table
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.read.kept_documents import KeptDocuments
    from torch_table_loader.records import DataFile, FileMeta
    from torch_table_loader.store.record_layout import RecordLayout
    from torch_table_loader.store.remote import OpenReader


@dataclass(frozen=True, slots=True)
class TokensInPlace:
    """The token files of a table, each of them tokens and nothing else. It pickles."""

    storage: Storage
    files: Sequence[DataFile]
    metas: Sequence[FileMeta]

    @classmethod
    def of(cls, table: Table, options: LoaderOptions, stage: KeptDocuments) -> TokensInPlace | None:
        """Return the files of a table; None if they are not all that a store would keep of them.

        A store that the caller asked for is built.
        """
        whole = options.filters is None and not table.layout.has_deletes and not table.left_out
        alone = stage.keeps_as_stored and set(options.column_names or ()) <= {stage.pack.ids}
        if options.rows_kept.place is not None or not (whole and alone) or isinstance(table.metas, LazyFooters):
            return None
        tokens = all(isinstance(reader_of(file), TokenReader) for file in table.files)
        if not (tokens and (table.storage.is_local or is_far(table.storage))):
            return None
        kept = stage.schema(table.schema).field(0).type.value_type
        alike = all(meta.schema.field(TOKENS).type.value_type == kept for meta in table.metas)
        return cls(table.storage, table.files, table.metas) if alike else None

    @property
    def remote(self) -> RangeStorage | None:
        """Where the files are, if that is not this machine."""
        return self.storage if is_far(self.storage) else None

    @property
    def num_bytes(self) -> int:
        """Bytes in memory: of the lengths of documents."""
        return sum(document_lengths(meta).nbytes for meta in self.metas)

    def check(self) -> None:
        """Refuse files that are no longer those that were listed; where they have tags, each request compares these.

        Raises:
            TableError: names the file.
        """
        for file in self.files:
            if self.remote is not None and file.version.etag is not None:
                continue
            now = self.storage.version(file.path)
            if not file.version.holds(now):
                raise changed_error(file, now)

    def open(self, layout: RecordLayout) -> StoredRows:
        """Map the files; their documents are the rows.

        Raises:
            TableError: a file has changed since it was listed.
        """
        some = [file.path for file in self.files if file.version.num_bytes]
        # As plain arrays, of which a slice costs a tenth of one of a memmap.
        values = [np.asarray(np.memmap(path, layout.value_dtype, mode="r")) for path in some]
        self.check()
        lengths = self._lengths()
        return StoredRows(
            layout, lengths.count, {}, frozenset(), [], lengths=lengths, values=ListValues.consecutive(values)
        )

    def open_remote(self, layout: RecordLayout, open_reader: OpenReader, window_bytes: int) -> RemoteRows:
        """Return what reads parts of the files as if they were those of a store; see `RemoteRows`."""
        parts, width = [], layout.value_dtype.itemsize
        for file, meta in zip(self.files, self.metas, strict=True):
            parts.append(Part(sum(meta.group_rows), {}, 0, file.version.num_bytes // width, ()))
        manifest = Manifest("", layout.schema, tuple(parts), {}, 0.0, layout.flat, {}, {})
        named = {values_file(number): file for number, file in enumerate(self.files)}
        self.check()
        files = RemoteFiles(manifest, named, Origin("of the table's own token files", "build the loader again"))
        return RemoteRows(files, open_reader, window_bytes, self._lengths())

    def _lengths(self) -> DocumentLengths:
        return DocumentLengths.of(np.concatenate([np.empty(0, np.uint8), *map(document_lengths, self.metas)]))
