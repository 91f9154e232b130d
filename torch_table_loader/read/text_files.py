"""What readers of text share, compressed as a whole or not. Types come from ``schema=`` or from one parse.

Rows are streamed in blocks of bounded memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from typing_extensions import override

from torch_table_loader.errors import TableError
from torch_table_loader.format_contracts import Traits
from torch_table_loader.read.compression import CODECS, split_codec
from torch_table_loader.read.failures import naming
from torch_table_loader.read.far_files import open_at_start
from torch_table_loader.read.reader_base import SequentialFile, WithoutStatistics, one_group
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile, FileMeta

_CHUNK_BYTES = 1 << 20


class TextReader(WithoutStatistics):
    """A reader of text."""

    __slots__ = ()

    traits = Traits(pruned="partitions")
    infers_types = True

    @override
    def inspect(self, storage: Storage, file: DataFile, schema: pa.Schema | None) -> FileMeta:
        with naming(storage, file):
            try:
                return self._inspected(storage, file, schema)
            except pa.ArrowInvalid as error:
                if "straddl" not in str(error):
                    raise
                raise TableError(
                    f"{file.name} must have rows of at most {sizes().csv_block_bytes} bytes, got a longer one, or an "
                    "unclosed quote; write such rows as Parquet or JSON lines"
                ) from error

    @override
    def open(self, storage: Storage, file: DataFile, meta: FileMeta) -> SequentialFile:
        return SequentialFile(
            storage, file, lambda source, columns: self.decoded(text_of(source, file), columns, meta.schema)
        )

    def _inspected(self, storage: Storage, file: DataFile, schema: pa.Schema | None) -> FileMeta:
        if schema is None:
            return one_group(*self.guessed(storage, file, _bytes_to_infer(storage, file)), file)
        return one_group(*self.counted(storage, file, self.own_schema(storage, file, schema)), file)

    def counted(self, storage: Storage, file: DataFile, schema: pa.Schema) -> tuple[pa.Schema, int]:
        """Parse a whole file as types, and return how to open it, and its number of rows."""
        with open_text(storage, file) as source:
            return schema, sum(batch.num_rows for batch in self.decoded(source, schema.names, schema))

    @abstractmethod
    def guessed(self, storage: Storage, file: DataFile, num_bytes: int) -> tuple[pa.Schema, int]:
        """Parse a whole file of so many bytes of text, guess its types, and count its rows."""

    @abstractmethod
    def own_schema(self, storage: Storage, file: DataFile, schema: pa.Schema) -> pa.Schema:
        """Return the columns to parse, of those of the caller's schema, and the types to parse them as."""

    @abstractmethod
    def decoded(self, source: pa.NativeFile, columns: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Stream columns of a text from its start."""


def open_text(storage: Storage, file: DataFile) -> pa.NativeFile:
    """Open the text of a file that is read from its start."""
    return text_of(open_at_start(storage, file), file)


def text_of(source: pa.NativeFile, file: DataFile) -> pa.NativeFile:
    """Return the text of a file that is open at its start; of a compressed one a stream, without seek or size.

    Closing the stream closes the file.

    Raises:
        TableError: the file is compressed in a way that is not read.
    """
    suffix = split_codec(file.name)[1]
    if not suffix:
        return source
    if suffix not in CODECS:
        source.close()
        raise TableError(
            f"{file.name} must be text, as it is or compressed ({', '.join(CODECS)}), got a name that ends with "
            f"{suffix!r}; compress it with gzip or zstd instead, or write it as Parquet"
        )
    return pa.CompressedInputStream(source, CODECS[suffix])


def _bytes_to_infer(storage: Storage, file: DataFile) -> int:
    """Return how many bytes of text a file has, of which types are to be guessed; refuse too many.

    Those of a compressed file are counted, in a pass of their own, up to what may be parsed at once: a small file may
    hold any amount of text.
    """
    most = sizes().inference_bytes
    with open_text(storage, file) as source:
        if isinstance(source, pa.CompressedInputStream):
            num_bytes = 0
            while num_bytes <= most and (chunk := source.read(_CHUNK_BYTES)):
                num_bytes += len(chunk)
        else:
            num_bytes = int(source.size())
    if num_bytes > most:
        raise TableError(
            f"{file.name} must be at most {most} bytes for its types to be guessed, got {num_bytes} bytes; "
            "pass schema= with its types, and it is read in blocks"
        )
    return num_bytes
