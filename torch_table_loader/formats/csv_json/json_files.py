"""JSON. Types come from ``schema=``, from ``Json(types=)``, or from a parse."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import json
from typing_extensions import override

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.datatypes import decoded_type
from torch_table_loader.arrow.sound import sound_text
from torch_table_loader.errors import TableError
from torch_table_loader.formats.csv_json.json_keys import KeyedText
from torch_table_loader.formats.csv_json.json_text import ObjectLines, Written, leaves, retyped
from torch_table_loader.formats.csv_json.text_files import Parsed, TextReader, open_text
from torch_table_loader.messages import first_line
from torch_table_loader.nesting import Levels
from torch_table_loader.read.guessed_types import signed
from torch_table_loader.read.reader_base import refuse_duplicates
from torch_table_loader.read.text_options import Json
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile


_INT64 = 1 << 63
_NEWLINE = 10
_LINE_COPIES = 2
"""Times that a line is held while it is parsed: as text, and as a value."""
_CHANGED = re.compile(r"Column\(/(.+)\) (changed from .*)")


@dataclass(frozen=True, slots=True)
class JsonReader(TextReader):
    """Reads JSON, compressed or not."""

    name: str = "json"
    options: Json = field(default_factory=Json)
    suffixes = (".json", ".jsonl", ".ndjson")

    @property
    @override
    def text_ahead(self) -> int:
        return 2 * sizes().json_block_bytes

    @override
    def guessed(self, storage: Storage, file: DataFile, num_bytes: int) -> Parsed:
        given = pa.schema([pa.field(name, _as_json_reads(kind)) for name, kind in self.options.types.items()])
        table, at_once = self._measured(storage, file, num_bytes, json.ParseOptions(explicit_schema=given))
        if empty := [name for name in given.names if table.column(name).null_count == table.num_rows]:
            # Keys that no object has stand there as well; a file has no such columns.
            sure = pa.schema([each for each in given if each.name not in empty])
            found = self._parsed(storage, file, num_bytes, json.ParseOptions(explicit_schema=sure)).column_names
            table = table.drop_columns([name for name in empty if name not in found])
        refuse_duplicates(table.schema, file)
        kinds = {**{each.name: each.type for each in table.schema}, **self.options.types}
        fields = [pa.field(name, kinds[name]) for name in table.column_names]
        columns = dict(zip(table.schema.names, table.columns, strict=True))
        self._check_given(table, file)
        columns |= self._parsed_again(storage, file, num_bytes, fields)
        fields = [each if each.name in self.options.types else _zoned(each, columns[each.name]) for each in fields]
        fields = self._with_whole_numbers(storage, file, columns, fields)
        return Parsed(pa.schema(fields), table.num_rows, [columns[each.name].nbytes for each in fields], at_once)

    def _check_given(self, table: pa.Table, file: DataFile) -> None:
        for name, kind in self.options.types.items():
            if name not in table.column_names:
                continue
            try:
                table.column(name).cast(decoded_type(kind))
            except pa.ArrowException as error:
                raise TableError(
                    f"column {name!r} must be read as {kind}, as Json(types=) says, but {file.name} has a value that "
                    f"does not fit ({first_line(error)}); pass a type that holds it, or correct the value"
                ) from error

    def _parsed_again(
        self, storage: Storage, file: DataFile, num_bytes: int, fields: Sequence[pa.Field]
    ) -> dict[str, pa.ChunkedArray]:
        """Return columns in which times are texts, and nested doubles: as pyarrow guesses them, they may be torn."""
        texts = [retyped(each, _text_of_time) for each in fields if each.name not in self.options.types]
        known = {each.name: each for each in fields}
        asked = [
            each for each in texts if each != known[each.name] or (pa.types.is_nested(each.type) and _has_doubles(each))
        ]
        if not asked:
            return {}
        options = json.ParseOptions(explicit_schema=pa.schema(asked), unexpected_field_behavior="ignore")
        table = self._parsed(storage, file, num_bytes, options)
        return {each.name: table.column(each.name) for each in asked}

    def _with_whole_numbers(
        self, storage: Storage, file: DataFile, columns: Mapping[str, pa.ChunkedArray], fields: Sequence[pa.Field]
    ) -> list[pa.Field]:
        """Return fields with types that hold the whole numbers which pyarrow took for doubles."""
        unsure = [
            each.name
            for each in fields
            if each.name not in self.options.types and _has_doubles(each) and _may_be_large(columns[each.name])
        ]
        written = Written(unsure)
        if unsure:
            with open_text(storage, file) as source:
                for block in self.rows_of(source, file).blocks():
                    written.add(block)
        made = [written.typed(each, file.name) if each.name in unsure else each for each in fields]
        return [signed(each, columns[each.name]) for each in made]

    def _parsed(self, storage: Storage, file: DataFile, num_bytes: int, options: json.ParseOptions) -> pa.Table:
        return self._measured(storage, file, num_bytes, options)[0]

    def _measured(
        self, storage: Storage, file: DataFile, num_bytes: int, options: json.ParseOptions
    ) -> tuple[pa.Table, int]:
        """Return a file as a table, and what its longest line takes."""
        # With larger blocks if a line is longer than one.
        block = sizes().json_block_bytes
        while block < num_bytes:
            try:
                with open_text(storage, file) as source:
                    rows = self.rows_of(source, file)
                    return self._table(rows, file, block, options), self.at_once(rows)
            except pa.ArrowInvalid as error:
                if "straddl" not in str(error):
                    raise
            block *= 8
        with open_text(storage, file) as source:
            rows = self.rows_of(source, file)
            return self._table(rows, file, max(num_bytes, 1), options), self.at_once(rows)

    def _table(self, rows: _Lines, file: DataFile, block: int, options: json.ParseOptions) -> pa.Table:
        return _parsed(_Levelled(KeyedText(rows, file.name), file.name), block, options)

    @override
    def rows_of(self, source: pa.NativeFile, file: DataFile) -> _Lines:
        return _Lines(_lines(source, file.name), file.name)

    @override
    def at_once(self, text: _Lines) -> int:
        return _LINE_COPIES * text.longest

    @override
    def told(self, storage: Storage, file: DataFile, reason: str) -> TableError | None:
        if (found := _CHANGED.search(reason)) is None:
            return None
        place, kinds = found.groups()
        return TableError(
            f"{file.name} must hold values of one type as {place!r}, got values that {kinds}; write them as one type, "
            "or leave the key out with a schema= that does not name it"
        )

    @override
    def own_schema(self, storage: Storage, file: DataFile, schema: pa.Schema) -> pa.Schema:
        return pa.schema([pa.field(each.name, _as_json_reads(each.type)) for each in schema])

    @override
    def decoded(
        self, source: _Lines, file: DataFile, columns: Sequence[str], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        fields = [schema.field(name) for name in columns]
        read = pa.schema([pa.field(each.name, _as_json_reads(each.type)) for each in fields])
        options = json.ParseOptions(explicit_schema=read, unexpected_field_behavior="ignore")
        wanted = pa.schema([pa.field(each.name, decoded_type(each.type)) for each in fields])
        for block in chain.from_iterable(
            map(partial(_few_lines, sizes().sparse_values // max(1, len(fields))), source.blocks())
        ):
            table = sound_text(_parsed(pa.BufferReader(block), len(block), options))
            if wanted != read:
                table = table.cast(wanted)
            yield from table.to_batches()


class _Lines:
    """A text of lines, and how long the longest is of those that were read.

    Raises:
        TableError: a line is longer than any may be.
    """

    def __init__(self, source: Any, name: str) -> None:
        self._source = source
        self._name = name
        self._begun = 0
        self.longest = 0

    def read(self, length: int = -1) -> bytes:
        """Read on."""
        piece: bytes = self._source.read(length)
        first, last = piece.find(b"\n") + 1, piece.rfind(b"\n") + 1
        if not first:
            self._begun += len(piece)
            self._note(self._begun)
            return piece
        self._note(self._begun + first)
        self._begun = len(piece) - last
        if last - first > self.longest:
            ends = np.flatnonzero(np.frombuffer(piece, np.uint8)[first:last] == _NEWLINE)
            self._note(int(np.diff(ends, prepend=-1).max()))
        self._note(self._begun)
        return piece

    def blocks(self) -> Iterator[bytes]:
        """Cut what is left into blocks of whole lines; a block is longer only where a line is."""
        parts: list[bytes] = []
        while chunk := self.read(sizes().json_block_bytes):
            cut = chunk.rfind(b"\n") + 1
            if not cut:
                parts.append(chunk)
                continue
            yield b"".join((*parts, chunk[:cut]))
            parts = [chunk[cut:]]
        if any(parts):
            yield b"".join(parts)

    def _note(self, num_bytes: int) -> None:
        self.longest = max(self.longest, num_bytes)
        if num_bytes > sizes().json_line_bytes:
            raise TableError(
                f"{self._name}: a line is longer than {sizes().json_line_bytes} bytes, and parsing takes several "
                "times as many; write such rows as Parquet"
            )


class _Levelled:
    """A text whose levels are counted before pyarrow has it: types that it guesses nest as deep as the text.

    Where types are given, it parses without calling itself, and skips what has none.
    """

    closed = False

    def __init__(self, source: Any, name: str) -> None:
        self._source = source
        self._name = name
        self._levels = Levels()

    def read(self, length: int = -1) -> bytes:
        piece: bytes = self._source.read(length)
        self._levels.check(piece, self._name)
        return piece

    def close(self) -> None:
        self.closed = True


def _parsed(source: Any, num_bytes: int, options: json.ParseOptions) -> pa.Table:
    try:
        return json.read_json(source, json.ReadOptions(use_threads=False, block_size=num_bytes), options)
    except pa.ArrowInvalid as error:
        if "Empty JSON" not in str(error):
            raise
        return pa.table({})


def _lines(source: pa.NativeFile, name: str) -> Any:
    """Return a text with an object a line, also where it stands over several lines or in an array."""
    head = source.read(sizes().json_block_bytes)
    begin = head.removeprefix(codecs.BOM_UTF8).lstrip()
    begun = _Begun(head, source)
    if begin.startswith(b"[") or begin.partition(b"\n")[0].rstrip() == b"{":
        return ObjectLines(_Levelled(begun, name), name)
    return begun


class _Begun:
    """A text of which some bytes were read."""

    def __init__(self, head: bytes, source: pa.NativeFile) -> None:
        self._head = head
        self._source = source

    def read(self, length: int = -1) -> bytes:
        if self._head:
            if length < 0:
                length = len(self._head)
            piece, self._head = self._head[:length], self._head[length:]
            return piece
        rest: bytes = self._source.read(None if length < 0 else length)
        return rest


def _few_lines(most: int, block: bytes) -> Iterator[bytes]:
    """Cut a block into parts of at most so many lines: each becomes a value in every column."""
    if block.count(b"\n") <= most:
        yield block
        return
    lines, most = block.split(b"\n"), max(1, most)
    for start in range(0, len(lines), most):
        if any(part := lines[start : start + most]):
            yield b"\n".join(part)


def _has_doubles(own: pa.Field) -> bool:
    return bool(retyped(own, _half_of_double) != own)


def _half_of_double(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(kind):
        return pa.float16()
    return kind


def _may_be_large(column: pa.ChunkedArray) -> bool:
    """Return whether doubles of a column are all whole where one is beyond int64."""
    doubles = (leaf for chunk in column.chunks for leaf in leaves(chunk) if pa.types.is_floating(leaf.type))
    return any(map(_is_large, doubles))


def _is_large(values: pa.Array) -> bool:
    ends = pc.min_max(values).as_py()
    if ends["min"] is None or -_INT64 < ends["min"] <= ends["max"] < _INT64:
        return False
    return bool(pc.all(pc.equal(pc.floor(values), values)).as_py())


def _text_of_time(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.string()
    return kind


def _zoned(own: pa.Field, column: pa.ChunkedArray) -> pa.Field:
    """Return a field of times by their texts: in UTC if all name a zone, as text if some do."""
    if retyped(own, _text_of_time) == own:
        return own
    named = [pa.chunked_array(parts) for parts in zip(*map(leaves, column.chunks), strict=True)]
    places = iter(named)

    def of(kind: pa.DataType) -> pa.DataType:
        texts = next(places)
        if not pa.types.is_timestamp(kind):
            return kind
        zones = pc.match_substring_regex(texts, "[T ].*(Z|[+-][0-9:]+)$")
        if not pc.any(zones).as_py():
            return kind
        if pc.all(zones).as_py():
            return pa.timestamp(kind.unit, "UTC")
        return pa.string()

    return retyped(own, of)


def _as_json_reads(kind: pa.DataType) -> pa.DataType:
    """Return the type to parse as; text that pyarrow's JSON parser does not turn into a type is cast later."""
    kinds = pa.types
    if kinds.is_date(kind) or kinds.is_time(kind):
        return pa.string()
    return decoded_type(kind)
