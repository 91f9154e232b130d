"""CSV. Types come from ``schema=``, from ``Csv(types=)``, or from one parse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import csv
from typing_extensions import override

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.datatypes import decoded_type, is_text
from torch_table_loader.errors import TableError
from torch_table_loader.formats.csv_json.text_files import Parsed, TextReader, open_text
from torch_table_loader.messages import warn_caller
from torch_table_loader.read.compression import split_codec
from torch_table_loader.read.guessed_types import (
    CODES,
    WHOLE,
    Bounds,
    by_column,
    is_marked,
    signed,
    with_columns,
)
from torch_table_loader.read.reader_base import refuse_duplicates
from torch_table_loader.read.text_options import Csv
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

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

_BLOCKS_AHEAD = 32
"""Blocks of text that pyarrow reads ahead."""

_DELIMITERS = ",;\t|"
_MOST_DIGITS = 76
_INSIDE_OF_TIMES = b" tT-:.+/"
"""What stands between digits of one field; between those of two if it is the delimiter."""


@dataclass(frozen=True, slots=True)
class CsvReader(TextReader):
    """Reads CSV files (RFC 4180), compressed or not."""

    name: str = "csv"
    options: Csv = field(default_factory=Csv)
    suffixes = (".csv", ".tsv")
    number_text = pa.string()

    @property
    @override
    def text_ahead(self) -> int:
        return _BLOCKS_AHEAD * sizes().csv_block_bytes

    @override
    def guessed(self, storage: Storage, file: DataFile, num_bytes: int) -> Parsed:
        kept = num_bytes <= sizes().far_request_bytes  # what one request brings is not asked for twice
        with open_text(storage, file, self.options.encoding) as source:
            text, first = None, source
            if kept:
                text = pa.py_buffer(source.read())
                first = pa.BufferReader(text)
            read, parse = self._layout(file)
            scanned = _Scanned(first, parse)
            table = csv.read_csv(scanned, read, parse, self._convert(self.options.types, words=True))
        refuse_duplicates(table.schema, file)
        own = [pa.field(field.name, field.type) for field in table.schema]
        asked = [
            place
            for place, values in enumerate(table.columns)
            if self._is_unsure(own[place], values, codes=scanned.may_hold_codes)
        ]
        if asked:
            with self._again(storage, file, text) as source:
                found = self._texts(source, file, table.select(asked))
            for place, texts in zip(asked, found, strict=True):
                own[place] = texts.told_of(own[place], table.column(place), words=self.options.null_values is None)
        fields = [signed(*pair) for pair in zip(own, table.columns, strict=True)]
        return Parsed(pa.schema(fields), table.num_rows, [column.nbytes for column in table.columns])

    def _is_unsure(self, own: pa.Field, values: pa.ChunkedArray, *, codes: bool) -> bool:
        """Return whether the texts of a column may say more than what they were parsed as.

        Args:
            codes: whether the file may hold whole numbers with a zero in front.
        """
        if values.null_count and not _is_text(own.type):
            return True
        if own.name in self.options.types or (pa.types.is_integer(own.type) and not codes):
            return False
        return _may_be_whole(values)

    def _again(self, storage: Storage, file: DataFile, text: pa.Buffer | None) -> pa.NativeFile:
        """Open a file whose text was kept, or was not."""
        if text is None:
            return open_text(storage, file, self.options.encoding)
        return pa.BufferReader(text)

    def _texts(self, source: pa.NativeFile, file: DataFile, parsed: pa.Table) -> list[_Texts]:
        names, kinds = parsed.schema.names, parsed.schema.types
        nulls = pa.array(self._null_words(words=True), pa.string())
        whole = [name not in self.options.types and _may_be_whole(parsed[name]) for name in names]
        found = [_Texts(nulls, whole=each) for each in whole]
        for batch in self.decoded(source, file, names, pa.schema([(name, pa.string()) for name in names])):
            for texts, column, kind in zip(found, batch.columns, kinds, strict=True):
                texts.add(column, numbers=pa.types.is_integer(kind))
        return found

    @override
    def settle(self, metas: Sequence[FileMeta]) -> Sequence[FileMeta]:
        self._warn_of(metas)
        settled = TextReader.settle(self, metas)
        columns = by_column(settled)
        return with_columns(settled, {name: _settled_nulls(own) for name, own in columns.items()})

    def _warn_of(self, metas: Sequence[FileMeta]) -> None:
        """Warn of what shows that the files are written in another way."""
        for (name,) in (meta.schema.names for meta in metas if len(meta.schema.names) == 1):
            if (
                delimiter := _other_delimiter(name, self.options.delimiter)
            ) is not None and self.options.header is True:
                warn_caller(
                    f"a CSV file is read as one column, {name!r:.80}, whose name has a {delimiter!r}; if that stands "
                    f"between fields, pass format=Csv(delimiter={delimiter!r})"
                )
                break
        kinds = ((field.name, field.type) for meta in metas for field in meta.schema)
        of_bytes = (name for name, kind in kinds if pa.types.is_binary(kind) and name not in self.options.types)
        if (first := next(of_bytes, None)) is not None:
            warn_caller(
                f"column {first!r} of a CSV file is not text in UTF-8, and comes as bytes; pass the encoding that it "
                'has, such as format=Csv(encoding="latin-1"), or types= for bytes'
            )

    @override
    def told(self, storage: Storage, file: DataFile, reason: str) -> TableError | None:
        if "conversion error" in reason or "Error converting" in reason:
            return TableError(
                f"{file.name} must hold values of the types that were asked for, got one that does not fit ({reason}); "
                "pass a type that holds it as schema= or as format=Csv(types=...), or correct the value"
            )
        if "Expected 1 columns" not in reason or self.options.header is not True:
            return None
        with open_text(storage, file, self.options.encoding) as source:
            line = source.read(sizes().csv_block_bytes).partition(b"\n")[0].decode("utf-8", "replace")
        if (delimiter := _other_delimiter(line, self.options.delimiter)) is None:
            return None
        return TableError(
            f"{file.name} must have as many fields in each line as in its header {line!r:.80}, which is one field "
            f"({reason}); if a {delimiter!r} stands between fields, pass format=Csv(delimiter={delimiter!r})"
        )

    @override
    def own_schema(self, storage: Storage, file: DataFile, schema: pa.Schema) -> pa.Schema:
        with open_text(storage, file, self.options.encoding) as source:
            header = csv.open_csv(_Ended(source), *self._layout(file)).schema
        refuse_duplicates(header, file)
        own = [pa.field(field.name, field.type) for field in schema if header.get_field_index(field.name) >= 0]
        # With no column to parse there would be no rows to count.
        return pa.schema(own or [pa.field(header.names[0], pa.string())])

    @override
    def counted(self, storage: Storage, file: DataFile, schema: pa.Schema) -> Parsed:
        try:
            return TextReader.counted(self, storage, file, schema)
        except pa.ArrowInvalid as error:
            if "conversion error" not in str(error):
                raise
        fields = [field if _is_text(field.type) else field.with_metadata(_WORDS) for field in schema]
        return TextReader.counted(self, storage, file, pa.schema(fields))

    @override
    def decoded(
        self, source: pa.NativeFile, file: DataFile, columns: Sequence[str], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        read = list(columns) or schema.names[:1]  # a batch needs a column to have rows
        fields = [schema.field(name) for name in read]
        again = [place for place, field in enumerate(fields) if _NULLS_ARE in (field.metadata or {})]
        types = {field.name: pa.string() if place in again else field.type for place, field in enumerate(fields)}
        convert = self._convert(types, words=False)
        convert.include_columns = read
        with csv.open_csv(_Ended(source), *self._layout(file), convert) as batches:
            for batch in batches:
                if again:
                    yield self._with_values(batch, {place: fields[place].type for place in again})
                else:
                    yield batch

    def _with_values(self, batch: pa.RecordBatch, types: dict[int, pa.DataType]) -> pa.RecordBatch:
        """Parse columns of texts once more, as types that are not text."""
        again = pa.BufferOutputStream()
        csv.write_csv(batch.select(list(types)), again)
        text = again.getvalue()
        read = csv.ReadOptions(use_threads=False, block_size=max(text.size, 1))
        parse = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
        names = [batch.schema.names[place] for place in types]
        convert = self._convert(dict(zip(names, types.values(), strict=True)), words=True)
        table = csv.read_csv(pa.BufferReader(text), read, parse, convert).combine_chunks()
        arrays = batch.columns
        for place, column in zip(types, table.columns, strict=True):
            arrays[place] = column.chunk(0) if column.num_chunks else pa.array([], column.type)
        return pa.RecordBatch.from_arrays(arrays, batch.schema.names)

    def _layout(self, file: DataFile) -> tuple[csv.ReadOptions, csv.ParseOptions]:
        read = csv.ReadOptions(use_threads=False, block_size=sizes().csv_block_bytes)
        if self.options.header is False:
            read.autogenerate_column_names = True
        elif self.options.header is not True:
            read.column_names = list(self.options.header)
        by_name = ","
        if split_codec(file.name)[0].lower().endswith(".tsv"):
            by_name = "\t"
        # Without `newlines_in_values`, a quoted line break at the edge of a block is an error or a wrong row.
        return read, csv.ParseOptions(
            delimiter=self.options.delimiter or by_name, quote_char=self.options.quote or False, newlines_in_values=True
        )

    def _null_words(self, *, words: bool) -> list[str]:
        if self.options.null_values is not None:
            return ["", *self.options.null_values]
        if words:
            return list(_NULLS)
        return [""]

    def _convert(self, types: Mapping[str, Any], *, words: bool) -> csv.ConvertOptions:
        """Return what becomes of fields: where `words`, of columns that hold no text, and else of those that do."""
        return csv.ConvertOptions(
            column_types=dict(types),
            null_values=self._null_words(words=words),
            strings_can_be_null=not words,
            quoted_strings_can_be_null=words,
        )


class _Texts:
    """What the fields of a column say as texts, beyond the type that was guessed of them."""

    def __init__(self, null_words: pa.Array, *, whole: bool) -> None:
        self._null_words = null_words
        self._num_empty = 0
        self._num_words = 0
        self._all_whole = whole
        self._are_codes = False
        self._have_plus = False
        self._bounds = Bounds()

    def add(self, texts: pa.Array, *, numbers: bool) -> None:
        """Look at more fields, of which those that are empty without quotes are null.

        Args:
            numbers: whether they were parsed as integers, so that nothing else is among them.
        """
        self._num_empty += texts.null_count
        self._num_words += pc.sum(pc.not_equal(texts, "")).as_py() or 0
        if not self._all_whole:
            return
        values = texts.filter(pc.invert(pc.is_in(texts, value_set=self._null_words)))
        values = pc.utf8_trim(values, " \t")
        self._are_codes |= bool(pc.any(pc.match_substring_regex(values, "^[+-]?0.")).as_py())
        if numbers or not len(values):
            return
        self._have_plus |= pc.any(pc.starts_with(values, "+")).as_py()
        self._all_whole = pc.all(pc.match_substring_regex(values, "^[+-]?[0-9]+$")).as_py()
        if self._all_whole and pc.max(pc.binary_length(values)).as_py() > _MOST_DIGITS:
            self._are_codes = True
        elif self._all_whole:
            ends = pc.min_max(values.cast(pa.decimal256(_MOST_DIGITS, 0))).as_py()
            self._bounds.add(int(ends["min"]), int(ends["max"]))

    def told_of(self, own: pa.Field, values: pa.ChunkedArray, *, words: bool) -> pa.Field:
        """Return the field of a column with what its texts say.

        Args:
            words: whether words without quotes are null in columns that hold no text alone.
        """
        if self._num_empty < values.null_count:
            own = own.with_metadata(_WORDS if self._num_words and words else _EMPTY)
        if not self._all_whole:
            return own
        kind = self._bounds.type
        if self._are_codes or kind is None:
            return pa.field(own.name, pa.string(), metadata=CODES)
        if kind == pa.int64():  # in doubles with a plus, which pyarrow takes in no others
            return own
        if self._have_plus:
            kind = WHOLE
        return own.with_type(kind)


def _may_be_whole(values: pa.ChunkedArray) -> bool:
    """Return whether a column was guessed as whole numbers, or as doubles that are whole ones."""
    if not pa.types.is_floating(values.type):
        return bool(pa.types.is_integer(values.type))
    return bool(pc.all(pc.equal(pc.floor(values), values)).as_py())


def _settled_nulls(fields: Sequence[pa.Field]) -> list[pa.Field]:
    """Return the fields of one column in all files, with those as text that hold null words alone, if others do."""
    others = [field for field in fields if not pa.types.is_null(field.type)]
    unsure = [field for field in fields if pa.types.is_null(field.type) and _NULLS_ARE in (field.metadata or {})]
    text = all(map(_is_empty, unsure))
    if others:
        text = all(_is_text(field.type) for field in others)
    if not text:
        return list(fields)
    mark = CODES if others and all(is_marked(field, CODES) for field in others) else None
    became = pa.field("", pa.string(), metadata=mark)
    return [became.with_name(field.name) if any(field is each for each in unsure) else field for field in fields]


def _is_empty(own: pa.Field) -> bool:
    return is_marked(own, _EMPTY)


def _is_text(kind: pa.DataType) -> bool:
    return is_text(decoded_type(kind))


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


class _Scanned(_Ended):
    """A text of which all is looked at before pyarrow has it: whether a zero stands in front of another digit."""

    def __init__(self, source: pa.NativeFile, layout: csv.ParseOptions) -> None:
        super().__init__(source)
        between = f"{layout.delimiter}{layout.quote_char or ''}".encode()
        self.may_hold_codes = any(each in _INSIDE_OF_TIMES for each in between)
        self._before = b"\n\n"

    @override
    def read(self, length: int) -> bytes:
        piece = super().read(length)
        if not self.may_hold_codes:
            data = np.frombuffer(self._before + piece, np.uint8)
            self._before = data[-3:].tobytes()
            self.may_hold_codes = _begins_with_zero(data)
        return piece


def _begins_with_zero(data: NDArray[np.uint8]) -> bool:
    r"""Return whether a field may begin with a zero and another digit, of which two characters come before.

    >>> texts = b"a\n07", b'1,"-07', b"1,0.7", b"2026-01-01 07:01"
    >>> [_begins_with_zero(np.frombuffer(text, np.uint8)) for text in texts]
    [True, True, False, False]
    """
    digits = (data - 48) < 10
    after = digits[3:] | ((data[3:] | 32) == ord("x"))
    places = np.flatnonzero((data[2:-1] == 48) & after & ~digits[1:-2])
    before = data[1:-2][places]
    inside = digits[:-3][places] & np.isin(before, np.frombuffer(_INSIDE_OF_TIMES, np.uint8))
    return not inside.all()


def _other_delimiter(name: str, delimiter: str | None) -> str | None:
    """Return the character that seems to stand between fields, in the name of a file's only column."""
    return next((each for each in _DELIMITERS if each in name and each != (delimiter or ",")), None)
