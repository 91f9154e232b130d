"""JSON lines: one object a line; types from ``schema=`` or one parse, rows in blocks of lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import json
from typing_extensions import override

from torch_table_loader.arrow.datatypes import decoded_type
from torch_table_loader.arrow.sound import sound_text
from torch_table_loader.format_contracts import Traits
from torch_table_loader.read.compressed import open_text, text_bytes, text_of
from torch_table_loader.read.failures import reading
from torch_table_loader.read.reader_base import (
    SequentialFile,
    WithoutStatistics,
    one_group,
    refuse_large_inference,
)
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile, FileMeta


@dataclass(frozen=True, slots=True)
class JsonReader(WithoutStatistics):
    """Reads JSON lines (https://jsonlines.org), compressed or not; keys that a line lacks are null."""

    name: str = "json"
    suffixes = (".json", ".jsonl", ".ndjson")
    traits = Traits(pruned="partitions")
    infers_types = True

    @override
    def inspect(self, storage: Storage, file: DataFile, schema: pa.Schema | None) -> FileMeta:
        with reading(storage, file):
            if schema is None:
                table = _infer(storage, file)
                return one_group(table.schema, table.num_rows, file)
            own = pa.schema([pa.field(field.name, _as_json_reads(field.type)) for field in schema])
            with open_text(storage, file) as source:
                num_rows = sum(batch.num_rows for batch in _decode(source, own.names, own))
            return one_group(own, num_rows, file)

    @override
    def open(self, storage: Storage, file: DataFile, meta: FileMeta) -> SequentialFile:
        return SequentialFile(
            storage, file, lambda source, columns: _decode(text_of(source, file), columns, meta.schema)
        )


def _decode(source: pa.NativeFile, columns: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    options = json.ParseOptions(
        explicit_schema=pa.schema([schema.field(name) for name in columns]), unexpected_field_behavior="ignore"
    )
    for block in _blocks_of_lines(source):
        yield from sound_text(_parse(pa.BufferReader(block), len(block), options)).to_batches()


def _parse(source: Any, num_bytes: int, options: json.ParseOptions | None = None) -> pa.Table:
    return json.read_json(source, json.ReadOptions(use_threads=False, block_size=num_bytes), options)


def _infer(storage: Storage, file: DataFile) -> pa.Table:
    """Parse the whole file, with larger blocks if a line is longer than one."""
    size = text_bytes(storage, file, sizes().inference_bytes)
    refuse_large_inference(file, size)
    block = sizes().json_block_bytes
    while block < size:
        try:
            with open_text(storage, file) as source:
                return _parse(source, block)
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error):
                raise
        block *= 8
    with open_text(storage, file) as source:
        return _parse(source, max(size, 1))


def _blocks_of_lines(source: pa.NativeFile) -> Iterator[bytes]:
    """Cut a file into blocks of whole lines; a block is longer only where a line is."""
    parts: list[bytes] = []
    num_bytes = 0
    block_bytes, most = sizes().json_block_bytes, sizes().json_line_bytes
    while chunk := source.read(block_bytes):
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
