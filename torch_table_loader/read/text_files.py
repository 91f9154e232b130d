"""Text, compressed as a whole or not: CSV with a header, and JSON lines. Types come from ``schema=`` or from one parse.

Rows are streamed in blocks of bounded memory.
"""

from __future__ import annotations

import codecs
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import csv, json
from typing_extensions import override

from torch_table_loader.arrow.datatypes import decoded_type
from torch_table_loader.arrow.sound import sound_text
from torch_table_loader.errors import TableError
from torch_table_loader.format_contracts import Traits
from torch_table_loader.nesting import Levels
from torch_table_loader.read.failures import naming
from torch_table_loader.read.far_files import open_at_start
from torch_table_loader.read.reader_base import SequentialFile, WithoutStatistics, one_group, refuse_duplicates
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile, FileMeta

CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".zstd": "zstd", ".lz4": "lz4", ".br": "brotli"}
"""pyarrow's codec by the end of a file's name; LZ4 is the frame format."""

_OTHERS = (".xz", ".lzma", ".zip", ".7z", ".z", ".snappy", ".sz", ".lzo")
"""Ends of the names of compressed files that are not read."""

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
            table = self.guessed(storage, file, _bytes_to_infer(storage, file))
            refuse_duplicates(table.schema, file)
            return one_group(table.schema, table.num_rows, file)
        own = self.own_schema(storage, file, schema)
        with open_text(storage, file) as source:
            num_rows = sum(batch.num_rows for batch in self.decoded(source, own.names, own))
        return one_group(own, num_rows, file)

    @abstractmethod
    def guessed(self, storage: Storage, file: DataFile, num_bytes: int) -> pa.Table:
        """Parse a whole file of so many bytes of text, and guess its types."""

    @abstractmethod
    def own_schema(self, storage: Storage, file: DataFile, schema: pa.Schema) -> pa.Schema:
        """Return the columns to parse, of those of the caller's schema, and the types to parse them as."""

    @abstractmethod
    def decoded(self, source: pa.NativeFile, columns: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Stream columns of a text from its start."""


@dataclass(frozen=True, slots=True)
class CsvReader(TextReader):
    """Reads comma-separated values with a header (RFC 4180), compressed or not; null is what pyarrow takes for null."""

    name: str = "csv"
    suffixes = (".csv",)

    @override
    def guessed(self, storage: Storage, file: DataFile, num_bytes: int) -> pa.Table:
        with open_text(storage, file) as source:
            return csv.read_csv(source, *_csv_options())

    @override
    def own_schema(self, storage: Storage, file: DataFile, schema: pa.Schema) -> pa.Schema:
        with open_text(storage, file) as source:
            header = csv.open_csv(source, *_csv_options()).schema
        refuse_duplicates(header, file)
        own = [pa.field(field.name, field.type) for field in schema if header.get_field_index(field.name) >= 0]
        # With no column to parse there would be no rows to count.
        return pa.schema(own or [pa.field(header.names[0], pa.string())])

    @override
    def decoded(self, source: pa.NativeFile, columns: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        read = list(columns) or schema.names[:1]  # a batch needs a column to have rows
        types = {name: schema.field(name).type for name in read}
        convert = csv.ConvertOptions(column_types=types, include_columns=read)
        with csv.open_csv(source, *_csv_options(), convert) as batches:
            yield from batches


def _csv_options() -> tuple[csv.ReadOptions, csv.ParseOptions]:
    # Without `newlines_in_values`, a quoted line break at the edge of a block is an error or a wrong row.
    read = csv.ReadOptions(use_threads=False, block_size=sizes().csv_block_bytes)
    return read, csv.ParseOptions(newlines_in_values=True)


@dataclass(frozen=True, slots=True)
class JsonReader(TextReader):
    """Reads JSON lines (https://jsonlines.org), compressed or not; keys that a line lacks are null."""

    name: str = "json"
    suffixes = (".json", ".jsonl", ".ndjson")

    @override
    def guessed(self, storage: Storage, file: DataFile, num_bytes: int) -> pa.Table:
        # With larger blocks if a line is longer than one.
        block = sizes().json_block_bytes
        while block < num_bytes:
            try:
                with open_text(storage, file) as source:
                    return _parsed(_Levelled(source, file.name), block)
            except pa.ArrowInvalid as error:
                if "straddl" not in str(error):
                    raise
            block *= 8
        with open_text(storage, file) as source:
            return _parsed(_Levelled(source, file.name), max(num_bytes, 1))

    @override
    def own_schema(self, storage: Storage, file: DataFile, schema: pa.Schema) -> pa.Schema:
        return pa.schema([pa.field(field.name, _as_json_reads(field.type)) for field in schema])

    @override
    def decoded(self, source: pa.NativeFile, columns: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        options = json.ParseOptions(
            explicit_schema=pa.schema([schema.field(name) for name in columns]), unexpected_field_behavior="ignore"
        )
        for block in _blocks_of_lines(source):
            yield from sound_text(_parsed(pa.BufferReader(block), len(block), options)).to_batches()


class _Levelled:
    """A text whose levels are counted before pyarrow has it: types that it guesses nest as deep as the text.

    Where types are given, it parses without calling itself, and skips what has none.
    """

    closed = False

    def __init__(self, source: pa.NativeFile, name: str) -> None:
        self._source = source
        self._name = name
        self._levels = Levels()
        self._begun = False

    def read(self, length: int = -1) -> bytes:
        piece: bytes = self._source.read(None if length is None or length < 0 else length)
        if not self._begun:
            _check_begin(piece)
            self._begun = bool(piece)
        self._levels.check(piece, self._name)
        return piece

    def close(self) -> None:
        self.closed = True


def _parsed(source: Any, num_bytes: int, options: json.ParseOptions | None = None) -> pa.Table:
    return json.read_json(source, json.ReadOptions(use_threads=False, block_size=num_bytes), options)


def _check_begin(text: bytes) -> None:
    """Refuse JSON that its first bytes show to be no lines of objects."""
    text = text.removeprefix(codecs.BOM_UTF8).lstrip()
    if text.startswith(b"["):
        found = "an array"
    elif text.partition(b"\n")[0].rstrip() == b"{":
        found = "an object over several lines"
    else:
        return
    raise TableError(
        f"JSON must have an object in each line, got {found}; convert it to JSON lines, for example with "
        "jq -c '.[]' for an array of objects and jq -c . for others"
    )


def _blocks_of_lines(source: pa.NativeFile) -> Iterator[bytes]:
    """Cut a text into blocks of whole lines; a block is longer only where a line is."""
    parts: list[bytes] = []
    num_bytes = 0
    block_bytes, most = sizes().json_block_bytes, sizes().json_line_bytes
    begun = False
    while chunk := source.read(block_bytes):
        if not begun:
            _check_begin(chunk)
            begun = True
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            parts.append(chunk)
            if (num_bytes := num_bytes + len(chunk)) > most:
                raise pa.ArrowInvalid(f"a line is longer than {most} bytes")
            continue
        yield b"".join((*parts, chunk[:cut]))
        parts = [chunk[cut:]]
        num_bytes = len(parts[0])
    if any(parts):
        yield b"".join(parts)


def _as_json_reads(kind: pa.DataType) -> pa.DataType:
    """Return the type to parse as; text that pyarrow's JSON parser does not turn into a type is cast later."""
    kinds = pa.types
    if kinds.is_date(kind) or kinds.is_time(kind):
        return pa.string()
    return decoded_type(kind)


def split_codec(name: str) -> tuple[str, str]:
    """Split a file's name into the name without compression, and the suffix of the compression.

    >>> split_codec("day=1/x.csv.GZ"), split_codec("x.csv"), split_codec("x.json.xz")
    (('day=1/x.csv', '.gz'), ('x.csv', ''), ('x.json', '.xz'))
    """
    for suffix in (*CODECS, *_OTHERS):
        if name.lower().endswith(suffix):
            return name[: -len(suffix)], suffix
    return name, ""


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
