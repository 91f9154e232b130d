"""The files of a snapshot left by a filter, as bytes for a plan cache, so that manifests are read once."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa

from torch_table_loader.source.iceberg.manifests import DeletesInfo, Entry, Span

_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("content", pa.int8()),
        ("format", pa.dictionary(pa.int8(), pa.string())),
        ("spec_id", pa.int32()),
        ("partition", pa.dictionary(pa.int32(), pa.string())),
        ("sequence_number", pa.int64()),
        ("first_row_id", pa.int64()),
        ("num_rows", pa.int64()),
        ("num_bytes", pa.int64()),
        ("split_offsets", pa.list_(pa.int64())),
        ("deletes", pa.string()),
        ("spans", pa.string()),
    ]
)
_NOTES = b"notes"
_PLAIN = (type(None), bool, int, str)
_TAGS: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "float": (float, float.hex, float.fromhex),
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "datetime": (dt.datetime, dt.datetime.isoformat, dt.datetime.fromisoformat),  # before its base class
    "date": (dt.date, dt.date.isoformat, dt.date.fromisoformat),
    "time": (dt.time, dt.time.isoformat, dt.time.fromisoformat),
    "decimal": (Decimal, str, Decimal),
    "uuid": (UUID, str, UUID),
}


def write_plan(entries: Sequence[Entry], notes: Sequence[str]) -> bytes:
    """Write the files of a snapshot, compressed."""
    rows = {name: [getattr(entry, name) for entry in entries] for name in _SCHEMA.names}
    rows["partition"] = [_text(entry.partition) for entry in entries]
    rows["deletes"] = [None if entry.deletes is None else _deletes_text(entry.deletes) for entry in entries]
    rows["spans"] = [_text(tuple(map(tuple, entry.spans))) for entry in entries]
    arrays = [pa.array(rows[field.name], field.type) for field in _SCHEMA]
    schema = _SCHEMA.with_metadata({_NOTES: json.dumps(list(notes))})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return bytes(sink.getvalue())


def read_plan(data: bytes) -> tuple[list[Entry], tuple[str, ...]]:
    """Read what `write_plan` wrote."""
    batch = pa.ipc.open_file(pa.BufferReader(data)).get_batch(0)
    columns = {name: batch.column(name) for name in _SCHEMA.names}
    partition, formats = columns["partition"], columns["format"].dictionary.to_pylist()
    values = [_value(text) for text in partition.dictionary.to_pylist()]
    lists = {name: column.to_pylist() for name, column in columns.items() if name not in ("partition", "format")}
    lists["partition"] = [values[place] for place in partition.indices.to_pylist()]
    lists["format"] = [formats[place] for place in columns["format"].indices.to_pylist()]
    lists["split_offsets"] = [tuple(offsets) for offsets in lists["split_offsets"]]
    lists["deletes"] = [None if text is None else _deletes_of(text) for text in lists["deletes"]]
    lists["spans"] = [tuple(Span(*span) for span in _value(text)) for text in lists["spans"]]
    rows = zip(*(lists[name] for name in _SCHEMA.names), strict=True)
    notes = tuple(json.loads((batch.schema.metadata or {})[_NOTES]))
    return [Entry(*row) for row in rows], notes


def _deletes_text(deletes: DeletesInfo) -> str:
    return _text((deletes.key_ids, deletes.target, deletes.blob, deletes.paths))


def _deletes_of(text: str) -> DeletesInfo:
    return DeletesInfo(*_value(text))


def _text(value: Any) -> str:
    return json.dumps(_tagged(value))


def _value(text: str) -> Any:
    return _untagged(json.loads(text))


def _tagged(value: Any) -> Any:
    r"""Return a value as JSON, tagged with its type if JSON lacks it: tuples become lists, which are not values.

    >>> _untagged(_tagged((1, None, b"\0", dt.date(2020, 1, 1), Decimal("1.50"))))
    (1, None, b'\x00', datetime.date(2020, 1, 1), Decimal('1.50'))
    """
    if isinstance(value, tuple):
        return [_tagged(each) for each in value]
    if isinstance(value, _PLAIN):
        return value
    for tag, (kind, say, _) in _TAGS.items():
        if isinstance(value, kind):
            return {tag: say(value)}
    raise TypeError(f"a partition value of the type {type(value).__name__} cannot be kept")


def _untagged(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_untagged(each) for each in value)
    if isinstance(value, dict):
        [(tag, text)] = value.items()
        return _TAGS[tag][2](text)
    return value
