"""What readers of text share, compressed as a whole or not. Types come from ``schema=`` or from one parse.

Rows are streamed in blocks of bounded memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from typing_extensions import override

from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.format_contracts import HoldingReader, SettlingReader, Traits
from torch_table_loader.messages import did_you_mean
from torch_table_loader.read.compression import CODECS, split_codec
from torch_table_loader.read.failures import naming
from torch_table_loader.read.file_ends import open_at_start
from torch_table_loader.read.guessed_types import by_column, settled_numbers, with_columns
from torch_table_loader.read.reader_base import CountedColumns, SequentialFile, WithoutStatistics, one_group
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.read.text_options import Csv, Json
    from torch_table_loader.records import DataFile, FileMeta

_CHUNK_BYTES = 1 << 20


class Parsed(NamedTuple):
    """What a pass over a file found: how to open it, its rows, and what each column decodes to."""

    schema: pa.Schema
    num_rows: int
    column_bytes: Sequence[int]
    at_once: int = 0
    """What its longest row takes while it is parsed; 0 if rows are short."""

    def meta_of(self, file: DataFile) -> FileMeta:
        """Return the metadata of the file."""
        return one_group(self.schema, self.num_rows, file, self.column_bytes, self.at_once)


class TextReader(WithoutStatistics, CountedColumns, SettlingReader, HoldingReader):
    """A reader of text: a dataclass that says how it is written."""

    __slots__ = ()

    traits = Traits(pruned="partitions")
    infers_types = True
    options: Csv | Json
    number_text: pa.DataType | None = None
    """As what whole numbers are read where other files have text for them; None where they cannot be."""

    @property
    def settings(self) -> str:
        """What differs from the defaults, for tables' fingerprints."""
        return self.options.settings

    @override
    def inspect(self, storage: Storage, file: DataFile, schema: pa.Schema | None) -> FileMeta:
        with naming(storage, file):
            try:
                return self._inspected(storage, file, schema)
            except UnicodeDecodeError as error:
                raise TableError(
                    f"{file.name} must be text in {self.options.encoding}, got bytes that are not ({error}); pass the "
                    'encoding that it has, such as format=Csv(encoding="latin-1") of CSV, or write it in UTF-8'
                ) from error
            except pa.ArrowInvalid as error:
                if "straddl" not in str(error):
                    raise (self.told(storage, file, str(error)) or error) from error
                raise TableError(
                    f"{file.name} must have rows of at most {sizes().csv_block_bytes} bytes, got a longer one, or an "
                    "unclosed quote; write such rows as Parquet or JSON lines"
                ) from error

    @override
    def held_bytes(self, meta: FileMeta, group: int, columns: Sequence[str], max_rows: int, row_bytes: int) -> int:
        # Some of the text is here, and what a block of it was parsed to.
        return min(
            self.text_ahead + sizes().json_block_bytes,
            2 * (meta.group_bytes[group] + meta.group_rows[group] * row_bytes),
        )

    @property
    @abstractmethod
    def text_ahead(self) -> int:
        """Bytes of text that are read ahead of parsing."""

    @override
    def open(self, storage: Storage, file: DataFile, meta: FileMeta) -> SequentialFile:
        return SequentialFile(
            storage,
            file,
            lambda source, columns: self.decoded(
                self.rows_of(text_of(source, file, self.options.encoding), file), file, columns, meta.schema
            ),
        )

    @override
    def settle(self, metas: Sequence[FileMeta]) -> Sequence[FileMeta]:
        columns = by_column(metas)
        if metas and (unknown := [name for name in self.options.types if name not in columns]):
            raise ConfigError(
                f"types= names a column {unknown[0]!r} that no file has{did_you_mean(unknown[0], columns)}; correct it"
            )
        return with_columns(metas, {name: settled_numbers(own, self.number_text) for name, own in columns.items()})

    @abstractmethod
    def told(self, storage: Storage, file: DataFile, reason: str) -> TableError | None:
        """Return what to say where a file does not parse for a reason that a caller can mend; None of other reasons."""

    def _inspected(self, storage: Storage, file: DataFile, schema: pa.Schema | None) -> FileMeta:
        if schema is None:
            return self.guessed(storage, file, _bytes_to_infer(storage, file)).meta_of(file)
        if self.options.types:
            raise ConfigError(
                f"{type(self.options).__name__}(types=) says of some columns what schema= says of all, got both; leave "
                "one of them out"
            )
        return self.counted(storage, file, self.own_schema(storage, file, schema)).meta_of(file)

    def counted(self, storage: Storage, file: DataFile, schema: pa.Schema) -> Parsed:
        """Parse a whole file as types."""
        with open_text(storage, file, self.options.encoding) as source:
            text = self.rows_of(source, file)
            num_rows, sizes = 0, [0] * len(schema)
            for batch in self.decoded(text, file, schema.names, schema):
                num_rows += batch.num_rows
                sizes = [size + column.nbytes for size, column in zip(sizes, batch.columns, strict=True)]
            return Parsed(schema, num_rows, sizes, self.at_once(text))

    def rows_of(self, source: pa.NativeFile, file: DataFile) -> Any:  # noqa: ARG002 - of other readers
        """Return a text as `decoded` takes it."""
        return source

    def at_once(self, text: Any) -> int:  # noqa: ARG002 - of other readers
        """Return what the longest row takes of a text that `rows_of` gave, once that is read."""
        return 0

    @abstractmethod
    def guessed(self, storage: Storage, file: DataFile, num_bytes: int) -> Parsed:
        """Parse a whole file of so many bytes of text, guess its types, and count its rows."""

    @abstractmethod
    def own_schema(self, storage: Storage, file: DataFile, schema: pa.Schema) -> pa.Schema:
        """Return the columns to parse, of those of the caller's schema, and the types to parse them as."""

    @abstractmethod
    def decoded(
        self, source: Any, file: DataFile, columns: Sequence[str], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Stream columns of a text, as `rows_of` gives it, from its start."""


def open_text(storage: Storage, file: DataFile, encoding: str = "utf-8") -> pa.NativeFile:
    """Open the text of a file that is read from its start."""
    return text_of(open_at_start(storage, file), file, encoding)


def text_of(source: pa.NativeFile, file: DataFile, encoding: str = "utf-8") -> pa.NativeFile:
    """Return the text of a file that is open at its start, in UTF-8; if it is not as stored, without seek or size.

    Closing the stream closes the file.

    Raises:
        TableError: the file is compressed in a way that is not read.
    """
    text = _unpacked(source, file)
    if encoding == "utf-8":
        return text
    return pa.transcoding_input_stream(text, encoding, "utf-8")


def _unpacked(source: pa.NativeFile, file: DataFile) -> pa.NativeFile:
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
