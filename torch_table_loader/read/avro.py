"""Avro object container files: one row group, decoded by fastavro."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from typing_extensions import override

from torch_table_loader.arrow.datatypes import children_of
from torch_table_loader.errors import MissingExtraError
from torch_table_loader.format_contracts import Traits
from torch_table_loader.messages import first_line
from torch_table_loader.read.failures import reading
from torch_table_loader.read.far_files import open_at_start
from torch_table_loader.read.reader_base import SequentialFile, WithoutStatistics, one_group
from torch_table_loader.records import FIELD_ID_KEY

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile, FileMeta

_ROWS_AT_A_TIME = 4096
_LOGICAL = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "timestamp-nanos": pa.timestamp("ns", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "local-timestamp-nanos": pa.timestamp("ns"),
}
_PLAIN = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}

_Plain = Callable[[Any], Any]
"""Makes a value that fastavro returns into one that pyarrow takes."""


@dataclass(frozen=True, slots=True)
class AvroReader(WithoutStatistics):
    """Reads Avro files (https://avro.apache.org/docs/1.12.0/specification/)."""

    name: str = "avro"
    suffixes = (".avro",)
    traits = Traits(pruned="partitions", counted="the blocks", needs="fastavro")

    @override
    def inspect(self, storage: Storage, file: DataFile, schema: pa.Schema | None) -> FileMeta:
        with reading(storage, file, "an Avro file"), open_at_start(storage, file) as source:
            try:
                arrow = arrow_schema(json.loads(_block_reader(source).metadata["avro.schema"]))
                source.seek(0)
                num_rows = sum(block.num_records for block in _blocks(source))
            except ValueError as error:
                if "you need to install" not in str(error):
                    raise
                raise MissingExtraError(f"{file.name}: {first_line(error)}") from error
        return one_group(arrow, num_rows, file)

    @override
    def open(self, storage: Storage, file: DataFile, meta: FileMeta) -> SequentialFile:
        return SequentialFile(storage, file, partial(_decode, schema=meta.schema))


def arrow_schema(avro: Mapping[str, Any]) -> pa.Schema:
    """Return the Arrow schema of an Avro record, field ids included where it has any.

    >>> arrow_schema({"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "int"]}]}).types
    [DataType(int32)]
    """
    return pa.schema([_field(field["name"], field["type"], field.get("field-id")) for field in avro["fields"]])


def _field(name: str, avro: Any, field_id: int | None) -> pa.Field:
    nullable = isinstance(avro, list) and "null" in avro
    metadata = None if field_id is None else {FIELD_ID_KEY: str(field_id)}
    return pa.field(name, _type(_some(avro)), nullable=nullable, metadata=metadata)


def _some(avro: Any) -> Any:
    """Return the one type of a union that is not null."""
    if not isinstance(avro, list):
        return avro
    others = [kind for kind in avro if kind != "null"]
    if len(others) > 1:
        raise TypeError(f"a union of {others}")
    return others[0] if others else "null"


def _type(avro: Any) -> pa.DataType:
    if isinstance(avro, str):
        return _PLAIN[avro]
    kind, logical = avro["type"], avro.get("logicalType")
    if isinstance(kind, dict | list):
        return _type(_some(kind))
    if logical in _LOGICAL:
        found = _LOGICAL[logical]
        return pa.timestamp(found.unit) if avro.get("adjust-to-utc") is False else found
    if kind in ("record", "array", "map"):
        return _nested(avro)
    if logical == "decimal":
        return pa.decimal128(avro["precision"], avro.get("scale", 0))
    return pa.binary(avro["size"]) if kind == "fixed" else _PLAIN[kind]


def _nested(avro: Any) -> pa.DataType:
    if avro["type"] == "record":
        return pa.struct(list(arrow_schema(avro)))
    if avro["type"] == "array":
        item = avro["items"]
        if avro.get("logicalType") == "map":
            return pa.map_(*arrow_schema(item))
        return pa.list_(_field("element", item, avro.get("element-id")))
    key = _field("key", "string", avro.get("key-id"))
    return pa.map_(key, _field("value", avro["values"], avro.get("value-id")))


def _plain(kind: pa.DataType) -> _Plain | None:
    """Return what makes values of a type ready for pyarrow; None if they need no change."""
    if pa.types.is_struct(kind):
        inner = {child.name: _plain(child.type) for child in children_of(kind)}
        changed = {name: each for name, each in inner.items() if each is not None}
        if not changed:
            return None
        return lambda value: {n: changed[n](v) if n in changed and v is not None else v for n, v in value.items()}
    if pa.types.is_map(kind):
        key, item = _plain(kind.key_type) or _same, _plain(kind.item_type) or _same
        return lambda value: [(key(k), None if v is None else item(v)) for k, v in _pairs(value)]
    if pa.types.is_list(kind):
        each = _plain(kind.value_type)
        return None if each is None else lambda value: [None if v is None else each(v) for v in value]
    if pa.types.is_fixed_size_binary(kind):
        return lambda value: getattr(value, "bytes", value)  # a UUID, or bytes
    return None


def _same(value: Any) -> Any:
    return value


def _pairs(value: Any) -> Any:
    return value.items() if isinstance(value, dict) else [(entry["key"], entry["value"]) for entry in value]


def _decode(source: pa.NativeFile, columns: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Decode columns; if none is asked for, the first one, since a batch needs a column to have rows."""
    fields = [schema.field(name) for name in columns or schema.names[:1]]
    plans = [(field, _plain(field.type)) for field in fields]
    rows = chain.from_iterable(map(_rows, _blocks(source)))
    while chunk := list(islice(rows, _ROWS_AT_A_TIME)):
        arrays = []
        for field, plan in plans:
            values = [row[field.name] for row in chunk]
            if plan is not None:
                values = [None if value is None else plan(value) for value in values]
            arrays.append(pa.array(values, field.type))
        yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _blocks(source: pa.NativeFile) -> Iterator[Any]:
    """Read the blocks of a file to its end; fastavro takes a torn block for the end of the file."""
    blocks = _block_reader(source)
    end = source.tell()
    for block in blocks:
        num_bytes = block.bytes_.getbuffer().nbytes
        # Rows take a byte or more, unless they are nulls alone, which take none.
        if block.num_records < 0 or (num_bytes and not 0 < block.num_records <= num_bytes):
            raise pa.ArrowInvalid(
                f"the block at byte {block.offset} says {block.num_records} rows in {num_bytes} bytes"
            )
        end = block.offset + block.size
        yield block
    if end != source.size():
        raise pa.ArrowInvalid(f"the last block ends at byte {end} of {source.size()}")


@dataclass(frozen=True, slots=True)
class _WithinFile:
    """A file of which no more is asked than it holds: a damaged length would take memory first."""

    source: pa.NativeFile

    def read(self, num_bytes: int) -> bytes:
        data: bytes = self.source.read(min(num_bytes, self.source.size() - self.source.tell()))
        return data

    def tell(self) -> int:
        place: int = self.source.tell()
        return place


def _block_reader(source: pa.NativeFile) -> Any:
    return _fastavro().block_reader(_WithinFile(source))


def _rows(block: Any) -> Iterator[Any]:
    """Decode a block, and refuse one that has more rows than it says: they would be lost."""
    yield from block
    if block.bytes_.read(1):
        raise pa.ArrowInvalid(f"the block at byte {block.offset} holds more than the {block.num_records} rows it says")


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise MissingExtraError("Avro files need fastavro; pip install 'torch-table-loader[iceberg]'") from error
    return fastavro
