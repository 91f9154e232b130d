"""JSON lines. Types come from ``schema=`` or from one parse."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import json
from typing_extensions import override

from torch_table_loader.arrow.datatypes import decoded_type
from torch_table_loader.arrow.sound import sound_text
from torch_table_loader.errors import TableError
from torch_table_loader.nesting import Levels
from torch_table_loader.read.reader_base import refuse_duplicates
from torch_table_loader.read.text_files import TextReader, open_text
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile


@dataclass(frozen=True, slots=True)
class JsonReader(TextReader):
    """Reads JSON lines (https://jsonlines.org), compressed or not; keys that a line lacks are null."""

    name: str = "json"
    suffixes = (".json", ".jsonl", ".ndjson")

    @override
    def guessed(self, storage: Storage, file: DataFile, num_bytes: int) -> tuple[pa.Schema, int]:
        table = self._parsed(storage, file, num_bytes)
        refuse_duplicates(table.schema, file)
        return table.schema, table.num_rows

    def _parsed(self, storage: Storage, file: DataFile, num_bytes: int) -> pa.Table:
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
