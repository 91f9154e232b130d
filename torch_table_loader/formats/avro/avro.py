"""Avro object container files: one row group, decoded by fastavro."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from typing_extensions import override

from torch_table_loader.arrow.datatypes import children_of
from torch_table_loader.errors import MissingExtraError, TableError
from torch_table_loader.format_contracts import HoldingReader, Traits
from torch_table_loader.messages import first_line
from torch_table_loader.read.failures import naming, reading
from torch_table_loader.read.file_ends import open_at_start
from torch_table_loader.read.reader_base import SequentialFile, WithoutStatistics, one_group, rows_without_columns
from torch_table_loader.records import FIELD_ID_KEY

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile, FileMeta

_ROWS_AT_A_TIME, _BYTES_AT_A_TIME = 4096, 4 << 20
"""Of a batch at most, but for a row that has more bytes."""

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
}
_HEADER = {
    "type": "record",
    "name": "header",
    "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "magic", "size": 4}},
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "sync", "size": 16}},
    ],
}
"""How a file begins."""

_NEEDED = ("avro.schema", "avro.codec")

_RECORDS = ("record", "error")
_NAMED = (*_RECORDS, "enum", "fixed")
_NULLS = ("null", {"type": "null"})
_MOST_TYPES = 10_000
"""Types of a schema, counted as often as they are used: a few that use one another twice each would be any number."""

_MOST_DIGITS = 76

_Plain = Callable[[Any], Any]
"""Makes a value that fastavro returns into one that pyarrow takes."""


@dataclass(frozen=True, slots=True)
class AvroReader(WithoutStatistics, HoldingReader):
    """Reads Avro files (https://avro.apache.org/docs/1.12.0/specification/)."""

    name: str = "avro"
    suffixes = (".avro",)
    traits = Traits(pruned="partitions", counted="the blocks", needs="fastavro")

    @override
    def inspect(self, storage: Storage, file: DataFile, schema: pa.Schema | None) -> FileMeta:
        whole = reading(storage, file, "an Avro file")
        with naming(storage, file), whole, open_at_start(storage, file) as source:
            try:
                avro = json.loads(_block_reader(source).metadata["avro.schema"])
                if not isinstance(avro, dict) or avro.get("type") not in _RECORDS:
                    raise TableError(
                        f"{file.name} must be an Avro file of records, whose fields are columns, got one of "
                        f"{_shown(avro)!r:.60}; write each value as a field of a record"
                    )
                arrow = arrow_schema(avro)
                source.seek(0)
                found = [(block.num_records, block.bytes_.getbuffer().nbytes) for block in _blocks(source)]
            except ValueError as error:
                if "you need to install" not in str(error):
                    raise
                raise MissingExtraError(f"{file.name}: {first_line(error)}") from error
        num_rows, largest = sum(rows for rows, _ in found), max((size for _, size in found), default=0)
        shares = len(arrow) * [sum(size for _, size in found) // max(1, len(arrow))]  # it does not say whose they are
        return one_group(arrow, num_rows, file, shares, largest + largest // 2)  # as a block, and as values

    @override
    def held_bytes(self, meta: FileMeta, group: int, columns: Sequence[str], max_rows: int, row_bytes: int) -> int:
        return min(_ROWS_AT_A_TIME, meta.group_rows[group]) * row_bytes

    @override
    def open(self, storage: Storage, file: DataFile, meta: FileMeta) -> SequentialFile:
        return SequentialFile(storage, file, partial(_decode, schema=meta.schema))


def arrow_schema(avro: Mapping[str, Any]) -> pa.Schema:
    """Return the Arrow schema of an Avro record, field ids included where it has any.

    >>> arrow_schema({"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "int"]}]}).types
    [DataType(int32)]
    """
    return pa.schema(_Types().fields_of(avro, ""))


@dataclass(slots=True)
class _Types:
    """Makes Arrow's types of a schema's, which may name one that came before."""

    named: dict[str, pa.DataType] = field(default_factory=dict)
    count: int = 0
    """How many types there are, each as often as it is used."""

    counts: dict[str, int] = field(default_factory=dict)

    def fields_of(self, record: Any, namespace: str) -> list[pa.Field]:
        """Return the fields of a record, which may use its name."""
        name, namespace = _full_name(record, namespace)
        self.named[name] = _unread(f"{name!r} within itself")
        return [self._field(each["name"], each["type"], each.get("field-id"), namespace) for each in record["fields"]]

    def _field(self, name: str, avro: Any, field_id: int | None, namespace: str) -> pa.Field:
        nullable = any(kind in _NULLS for kind in (avro if isinstance(avro, list) else [avro]))
        metadata = None
        if field_id is not None:
            metadata = {FIELD_ID_KEY: str(field_id)}
        return pa.field(name, self._type(avro, namespace), nullable=nullable, metadata=metadata)

    def _type(self, avro: Any, namespace: str) -> pa.DataType:
        self.count += 1
        if self.count > _MOST_TYPES:
            raise TableError(f"the schema must have at most {_MOST_TYPES} types, each as often as it is used, got more")
        if isinstance(avro, list):
            others = [kind for kind in avro if kind not in _NULLS]
            if len(others) > 1:
                return _unread(*(_shown(other) for other in others))
            return self._type(others[0], namespace) if others else pa.null()
        if isinstance(avro, str):
            return _PLAIN[avro] if avro in _PLAIN else self._known(avro, namespace)
        kind = avro["type"]
        if isinstance(kind, dict | list):
            return self._type(kind, namespace)
        if kind not in _NAMED:
            return _logical_type(avro) or self._nested(avro, namespace) or self._type(kind, namespace)
        before = self.count
        found = _logical_type(avro) or self._of_name(avro, namespace)
        name, _ = _full_name(avro, namespace)
        self.named[name], self.counts[name] = found, self.count - before
        return found

    def _known(self, name: str, namespace: str) -> pa.DataType:
        name = next((each for each in (_joined(name, namespace), name) if each in self.named), name)
        if name not in self.named:
            raise TableError(f"the schema must define each type before it is used, got {name!r:.60}")
        self.count += self.counts.get(name, 0)
        return self.named[name]

    def _of_name(self, avro: Any, namespace: str) -> pa.DataType:
        if avro["type"] in _RECORDS:
            return pa.struct(self.fields_of(avro, namespace))
        if avro["type"] == "fixed":
            return pa.binary(avro["size"])
        return pa.string()

    def _nested(self, avro: Any, namespace: str) -> pa.DataType | None:
        if avro["type"] == "array":
            item = avro["items"]
            if avro.get("logicalType") == "map" and isinstance(item, dict):
                return pa.map_(*self.fields_of(item, namespace))
            return pa.list_(self._field("element", item, avro.get("element-id"), namespace))
        if avro["type"] == "map":
            key = self._field("key", "string", avro.get("key-id"), namespace)
            return pa.map_(key, self._field("value", avro["values"], avro.get("value-id"), namespace))
        return None


def _unread(*kinds: str) -> pa.DataType:
    """Return a type that stands for values that are not read, with what they are."""
    return pa.dense_union([pa.field(kind, pa.null()) for kind in kinds])


def _refuse_unread(column: pa.Field, within: pa.DataType) -> None:
    """Refuse a column with values that are not read."""
    if pa.types.is_union(within):
        raise TableError(
            f"column {column.name!r} holds " + " or ".join(child.name for child in children_of(within)) + ", which "
            "is not read from Avro; leave it out of columns=[...], or write it as one type, such as text"
        )
    for child in children_of(within):
        _refuse_unread(column, child.type)


def _logical_type(avro: Any) -> pa.DataType | None:
    """Return the type of a logical type; None if it is to be read as what it is made of, as unknown ones are."""
    kind, logical = avro["type"], avro.get("logicalType")
    if logical in _LOGICAL and kind in ("int", "long"):
        found = _LOGICAL[logical]
        if avro.get("adjust-to-utc") is False:
            return pa.timestamp(found.unit)
        return found
    if logical == "uuid" and kind == "string":
        return pa.binary(16)
    if logical == "decimal" and kind in ("bytes", "fixed"):
        digits, scale = avro["precision"], avro.get("scale", 0)
        if digits > _MOST_DIGITS:
            return _unread(f"decimals of {digits} digits, and Arrow has {_MOST_DIGITS}")
        return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)
    return None


def _full_name(avro: Any, namespace: str) -> tuple[str, str]:
    """Return the full name of a type that has one, and the namespace that holds within it."""
    name = _joined(avro["name"], avro.get("namespace", namespace))
    return name, name.rpartition(".")[0]


def _joined(name: str, namespace: str) -> str:
    if "." in name or not namespace:
        return name
    return f"{namespace}.{name}"


def _shown(avro: Any) -> str:
    """Return a type in a few words."""
    if isinstance(avro, dict):
        return str(avro.get("name", avro.get("type")))
    return str(avro)


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
    if pa.types.is_list(kind) and (each := _plain(kind.value_type)) is not None:
        return lambda value: [None if v is None else each(v) for v in value]
    if pa.types.is_fixed_size_binary(kind):
        return lambda value: getattr(value, "bytes", value)  # a UUID, or bytes
    return None


def _same(value: Any) -> Any:
    return value


def _pairs(value: Any) -> Any:
    if isinstance(value, dict):
        return value.items()
    return [(entry["key"], entry["value"]) for entry in value]


def _decode(source: pa.NativeFile, columns: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    fields = [schema.field(name) for name in columns]
    for each in fields:
        _refuse_unread(each, each.type)
    plans = [(each, _plain(each.type)) for each in fields]
    for chunk in _chunks(source):
        if not fields:
            yield rows_without_columns(len(chunk))
            continue
        arrays = []
        for column, plan in plans:
            values = [row[column.name] for row in chunk]
            if plan is not None:
                values = [None if value is None else plan(value) for value in values]
            arrays.append(pa.array(values, column.type))
        values, batch = [], pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
        chunk.clear()  # before others are decoded
        yield batch


def _chunks(source: pa.NativeFile) -> Iterator[list[Any]]:
    """Decode the rows of a file, some at a time."""
    chunk: list[Any] = []
    num_bytes = 0
    for block in _blocks(source):
        before = 0
        for row in _rows(block):
            place = block.bytes_.tell()
            if chunk and (len(chunk) == _ROWS_AT_A_TIME or num_bytes + place - before > _BYTES_AT_A_TIME):
                yield chunk
                chunk, num_bytes = [], 0
            chunk.append(row)
            num_bytes, before = num_bytes + place - before, place
    if chunk:
        yield chunk


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
    """A file of which no more is asked than it holds: a damaged length would take memory first.

    Its header may be another.
    """

    source: pa.NativeFile
    header: BytesIO = field(default_factory=BytesIO)

    def read(self, num_bytes: int) -> bytes:
        if found := self.header.read(num_bytes):
            return found
        data: bytes = self.source.read(min(num_bytes, self.source.size() - self.source.tell()))
        return data

    def tell(self) -> int:
        place: int = self.source.tell()
        return place


def _block_reader(source: pa.NativeFile) -> Any:
    fastavro = _fastavro()
    try:
        return fastavro.block_reader(_WithinFile(source))
    except UnicodeDecodeError:  # metadata is bytes, which fastavro takes for text
        source.seek(0)
        header = fastavro.schemaless_reader(_WithinFile(source), _HEADER, handle_unicode_errors="replace")
        header["meta"] = {key: value for key, value in header["meta"].items() if key in _NEEDED}
        fastavro.schemaless_writer(own := BytesIO(), _HEADER, header)
        return fastavro.block_reader(_WithinFile(source, BytesIO(own.getvalue())))


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
