"""CSV with a header. Types come from ``schema=`` or from one parse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import csv
from typing_extensions import override

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.datatypes import decoded_type, is_text
from torch_table_loader.format_contracts import SettlingReader
from torch_table_loader.read.reader_base import refuse_duplicates
from torch_table_loader.read.text_files import TextReader, open_text
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile, FileMeta

_NULLS = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("N/A", "NA", "NULL", "NaN", "n/a", "nan", "null"),
)
"""Words that are null in columns that hold no text."""

_NULLS_ARE = b"nulls of CSV are"
_WORDS = {_NULLS_ARE: b"words"}
"""Marks a field that holds no text, and whose nulls are words or stand in quotes: values are parsed once more."""

_EMPTY = {_NULLS_ARE: b"empty text"}
"""Marks such a field whose values are all null, and all empty: it holds text if the table does not say otherwise."""


@dataclass(frozen=True, slots=True)
class CsvReader(TextReader, SettlingReader):
    """Reads comma-separated values with a header (RFC 4180), compressed or not.

    An empty field is null, and empty text if it stands in quotes. In columns that hold no text, `_NULLS` are null.
    """

    name: str = "csv"
    suffixes = (".csv",)

    @override
    def guessed(self, storage: Storage, file: DataFile, num_bytes: int) -> tuple[pa.Schema, int]:
        kept = num_bytes <= sizes().far_request_bytes  # what one request brings is not asked for twice
        with open_text(storage, file) as source:
            text = pa.py_buffer(source.read()) if kept else None
            first = source if text is None else pa.BufferReader(text)
            table = csv.read_csv(_Ended(first), *_options(), _convert({}, words=True))
        refuse_duplicates(table.schema, file)
        own = [pa.field(field.name, field.type) for field in table.schema]
        unsure = [place for place, field in enumerate(own) if table[place].null_count and not _is_text(field.type)]
        if unsure:
            names = [own[place].name for place in unsure]
            with open_text(storage, file) if text is None else pa.BufferReader(text) as source:
                found = self._texts(source, names)
            for place, (num_empty, num_words) in zip(unsure, found, strict=True):
                if num_empty < table[place].null_count:
                    own[place] = own[place].with_metadata(_WORDS if num_words else _EMPTY)
        return pa.schema(own), table.num_rows

    def _texts(self, source: pa.NativeFile, names: Sequence[str]) -> list[list[int]]:
        """Return how many fields of each column are empty without quotes, and how many are not empty."""
        found = [[0, 0] for _ in names]
        for batch in self.decoded(source, names, pa.schema([(name, pa.string()) for name in names])):
            for counts, column in zip(found, batch.columns, strict=True):
                counts[0] += column.null_count
                counts[1] += pc.sum(pc.not_equal(column, "")).as_py() or 0
        return found

    @override
    def settle(self, metas: Sequence[FileMeta]) -> Sequence[FileMeta]:
        kinds: dict[str, list[pa.DataType]] = {}
        for field in (field for meta in metas for field in meta.schema):
            kinds.setdefault(field.name, []).append(field.type)
        return [replace(meta, schema=pa.schema([_settled(f, kinds[f.name]) for f in meta.schema])) for meta in metas]

    @override
    def own_schema(self, storage: Storage, file: DataFile, schema: pa.Schema) -> pa.Schema:
        with open_text(storage, file) as source:
            header = csv.open_csv(_Ended(source), *_options()).schema
        refuse_duplicates(header, file)
        own = [pa.field(field.name, field.type) for field in schema if header.get_field_index(field.name) >= 0]
        # With no column to parse there would be no rows to count.
        return pa.schema(own or [pa.field(header.names[0], pa.string())])

    @override
    def counted(self, storage: Storage, file: DataFile, schema: pa.Schema) -> tuple[pa.Schema, int]:
        try:
            return TextReader.counted(self, storage, file, schema)
        except pa.ArrowInvalid as error:
            if "conversion error" not in str(error):
                raise
        marked = [field if _is_text(field.type) else field.with_metadata(_WORDS) for field in schema]
        return TextReader.counted(self, storage, file, pa.schema(marked))

    @override
    def decoded(self, source: pa.NativeFile, columns: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        read = list(columns) or schema.names[:1]  # a batch needs a column to have rows
        fields = [schema.field(name) for name in read]
        marked = [place for place, field in enumerate(fields) if _NULLS_ARE in (field.metadata or {})]
        types = {field.name: pa.string() if place in marked else field.type for place, field in enumerate(fields)}
        with csv.open_csv(_Ended(source), *_options(), _convert(types, words=False)) as batches:
            for batch in batches:
                yield _with_values(batch, {place: fields[place].type for place in marked}) if marked else batch


class _Ended:
    """A text whose last line ends with a line break: pyarrow takes a header without one for no header."""

    closed = False

    def __init__(self, source: pa.NativeFile) -> None:
        self._source = source
        self._last = b"\n"

    def read(self, length: int) -> bytes:
        parts: list[bytes] = []
        while length and (piece := self._source.read(length)):
            parts.append(piece)
            length -= len(piece)
            self._last = piece[-1:]
        if length and self._last not in (b"\n", b"\r"):
            parts.append(b"\n")
            self._last = b"\n"
        return b"".join(parts)

    def close(self) -> None:
        self.closed = True


def _options() -> tuple[csv.ReadOptions, csv.ParseOptions]:
    # Without `newlines_in_values`, a quoted line break at the edge of a block is an error or a wrong row.
    read = csv.ReadOptions(use_threads=False, block_size=sizes().csv_block_bytes)
    return read, csv.ParseOptions(newlines_in_values=True)


def _convert(types: dict[str, pa.DataType], *, words: bool) -> csv.ConvertOptions:
    """Return what becomes of fields: where `words`, of columns that hold no text, and else of those that do."""
    return csv.ConvertOptions(
        column_types=types,
        include_columns=list(types),
        null_values=list(_NULLS if words else _NULLS[:1]),
        strings_can_be_null=not words,
        quoted_strings_can_be_null=words,
    )


def _settled(field: pa.Field, kinds: Sequence[pa.DataType]) -> pa.Field:
    """Return a field of a file, as text if all its values are null words, and the table's column is of `kinds`."""
    if not pa.types.is_null(field.type) or field.metadata is None:
        return field
    others = [kind for kind in kinds if not pa.types.is_null(kind)]
    text = all(map(_is_text, others)) if others else field.metadata == _EMPTY
    return pa.field(field.name, pa.string()) if text else field


def _is_text(kind: pa.DataType) -> bool:
    return is_text(decoded_type(kind))


def _with_values(batch: pa.RecordBatch, types: dict[int, pa.DataType]) -> pa.RecordBatch:
    """Parse columns of texts once more, as types that are not text."""
    again = pa.BufferOutputStream()
    csv.write_csv(batch.select(list(types)), again)
    text = again.getvalue()
    read, parse = _options()
    read.block_size, parse.ignore_empty_lines = max(text.size, 1), False
    names = [batch.schema.names[place] for place in types]
    convert = _convert(dict(zip(names, types.values(), strict=True)), words=True)
    table = csv.read_csv(pa.BufferReader(text), read, parse, convert).combine_chunks()
    arrays = batch.columns
    for place, column in zip(types, table.columns, strict=True):
        arrays[place] = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    return pa.RecordBatch.from_arrays(arrays, batch.schema.names)
