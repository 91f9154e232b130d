"""Small sound files of every format, and what their rows are."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq

from tests.tables.token_files import datatrove_bytes, fms_bytes, megatron_bytes, some_documents

ROWS = 60

FLAT = pa.table(
    {
        "i": pa.array(range(ROWS), pa.int64()),
        "n": pa.array([None if i % 7 == 0 else i for i in range(ROWS)], pa.int32()),
        "f": pa.array([i / 4 for i in range(ROWS)], pa.float64()),
        "s": pa.array([f"value {i} é" for i in range(ROWS)], pa.string()),
        "b": pa.array([i % 3 == 0 for i in range(ROWS)], pa.bool_()),
    }
)
NESTED = pa.table(
    {
        "l": pa.array([[i, i + 1][: i % 3] for i in range(ROWS)], pa.list_(pa.int64())),
        "st": pa.array(
            [None if i % 5 == 0 else {"x": i, "y": str(i)} for i in range(ROWS)],
            pa.struct([("x", pa.int32()), ("y", pa.string())]),
        ),
        "ls": pa.array([[str(i), None][: i % 3] for i in range(ROWS)], pa.list_(pa.string())),
        "i": pa.array(range(ROWS), pa.int64()),
    }
)
IPC = pa.table(
    {
        **{name: FLAT[name] for name in FLAT.column_names},
        "l": NESTED["l"],
        "st": NESTED["st"],
        "d": pa.array([f"key {i % 5}" for i in range(ROWS)]).dictionary_encode(),
        "v": pa.array([b"x" * (i % 4) for i in range(ROWS)], pa.binary()),
        "w": pa.array([f"a long view of row {i}" for i in range(ROWS)], pa.string_view()),
        "fl": pa.array([[i, i] for i in range(ROWS)], pa.list_(pa.int16(), 2)),
        "ll": pa.array([str(i) for i in range(ROWS)], pa.large_string()),
    }
)
AVRO_SCHEMA = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "i", "type": "long"},
        {"name": "n", "type": ["null", "int"]},
        {"name": "s", "type": "string"},
        {"name": "l", "type": {"type": "array", "items": ["null", "int"]}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True}},
        {"name": "m", "type": {"type": "map", "values": "double"}},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ],
}


@dataclass(frozen=True, slots=True)
class Sample:
    """A sound file.

    Args:
        format: what the caller passes as ``format=``.
        data: its bytes.
        checked: so many of its first bytes are protected by checksums, and only they are damaged.
        counted: it says how many rows it has; text does not.
        suffix: how its name ends.
        beside: sound files that stand beside it, by how their names end.
        read: how the name of the file ends that is read, where that is another one.
    """

    format: str
    data: bytes
    checked: int = 0
    counted: bool = True
    suffix: str = ""
    beside: Mapping[str, bytes] = field(default_factory=dict)
    read: str | None = None


def _parquet(table: pa.Table, **options: Any) -> bytes:
    target = io.BytesIO()
    pq.write_table(table, target, row_group_size=25, **options)
    return target.getvalue()


def _ipc(make: Callable[..., Any], compression: str | None = None) -> bytes:
    target = io.BytesIO()
    with make(target, IPC.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(IPC, max_chunksize=25)
    return target.getvalue()


def _orc(table: pa.Table | None = None, **options: Any) -> bytes:
    target = io.BytesIO()
    if table is None:
        table = pa.table({**{name: FLAT[name] for name in FLAT.column_names}, "l": NESTED["l"], "st": NESTED["st"]})
    pa.orc.write_table(table, target, **options)
    return target.getvalue()


def _orc_types() -> pa.Table:
    """Every encoding of ORC's: the values take the forms of run lengths that there are."""
    runs = [7] * 20 + list(range(20)) + [i * i * 1001 for i in range(20)]
    some = [None if i % 9 == 4 else value for i, value in enumerate(runs)]
    return pa.table(
        {
            "dictionary": pa.array([None if i % 11 == 5 else f"word {i % 4}" for i in range(ROWS)]),
            "short": pa.array([value % 100 for value in runs], pa.int16()),
            "long": pa.array(some, pa.int64()),
            "outliers": pa.array([1 << 50 if i % 25 == 3 else i % 3 for i in range(ROWS)], pa.int64()),
            "tiny": pa.array([value % 100 - 50 for value in runs], pa.int8()),
            "day": pa.array([value % 20_000 for value in runs], pa.int32()).cast(pa.date32()),
            "at": pa.array(some, pa.int64()).cast(pa.timestamp("ns")),
            "decimal": pa.array(runs, pa.int64()).cast(pa.decimal128(30, 2)),
            "float": pa.array(range(ROWS), pa.float32()),
            "binary": pa.array([b"x" * (i % 5) for i in range(ROWS)], pa.binary()),
            "map": pa.array([[(str(i % 3), i)][: i % 2] for i in range(ROWS)], pa.map_(pa.string(), pa.int64())),
            "lists": pa.array([[[i], []][: i % 3] for i in range(ROWS)], pa.list_(pa.list_(pa.int32()))),
        }
    )


def _csv() -> bytes:
    target = io.BytesIO()
    pa.csv.write_csv(FLAT, target)
    return target.getvalue()


def _json() -> bytes:
    rows = pa.table(
        {**{name: FLAT[name] for name in FLAT.column_names}, "l": NESTED["l"], "st": NESTED["st"]}
    ).to_pylist()
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _avro(codec: str) -> bytes:
    import datetime as dt
    import decimal

    rows = [
        {
            "i": i,
            "n": None if i % 7 == 0 else i,
            "s": f"value {i} é",
            "l": [None, i][: i % 3],
            "day": dt.date(2020, 1, 1) + dt.timedelta(i),
            "at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=i),
            "m": {"k": i / 2},
            "d": decimal.Decimal(i) / 4,
        }
        for i in range(ROWS)
    ]
    target = io.BytesIO()
    fastavro.writer(target, fastavro.parse_schema(AVRO_SCHEMA), rows, codec=codec, sync_interval=500)
    return target.getvalue()


def _with_checksums(table: pa.Table) -> Sample:
    data = _parquet(table, write_page_checksum=True)
    return Sample("parquet", data, checked=len(data) - 8 - int.from_bytes(data[-8:-4], "little"))


def _saved(documents: list[list[int]]) -> bytes:
    """Save documents as one array, in which their second token, 1, is the last."""
    target = io.BytesIO()
    np.save(target, np.concatenate([[*document[2:], 1] for document in documents]).astype(np.uint16))
    return target.getvalue()


def _token_samples() -> dict[str, Callable[[], Sample]]:
    """Token files, of which each file is damaged in turn."""
    documents = [[0, 1, *document] for document in some_documents(3, ROWS, 8)]
    tokens = sum(map(len, documents))
    pairs = [[document[:2], document[2:]] for document in documents]
    data, index = megatron_bytes(pairs)
    multimodal = megatron_bytes(pairs, modes=[place % 3 for place in range(2 * ROWS)])[1]
    ds, ends = datatrove_bytes(documents)
    loss, note = bytes(place % 2 for place in range(tokens)), f"t|2\n{tokens}\n".encode()
    trove = {".ds": ds, ".ds.index": ends, ".ds.loss": loss, ".ds.metadata": note}

    def of(form: str, files: Mapping[str, bytes], suffix: str, *, counted: bool = True) -> Callable[[], Sample]:
        beside = {name: each for name, each in files.items() if name != suffix}
        return lambda: Sample(form, files[suffix], 0, counted, suffix, beside, next(iter(files)))

    return {
        "megatron": of("megatron", {".bin": data, ".idx": index}, ".bin"),
        "megatron, index": of("megatron", {".bin": data, ".idx": index}, ".idx"),
        "megatron, multimodal index": of("megatron", {".bin": data, ".idx": multimodal}, ".idx"),
        # Nothing but the ends themselves says how many there are.
        **{f"datatrove, {name}": of("datatrove", trove, name, counted=name != ".ds.index") for name in trove},
        "flat, saved": of("flat:eos_id=1", {".npy": _saved(documents)}, ".npy", counted=False),
        "flat, raw": of("flat:dtype=uint16,eos_id=1", {".npy": _saved(documents)[128:]}, ".npy", counted=False),
        "fms-fsdp": of("fms-fsdp", {".arrow": fms_bytes(documents)}, ".arrow"),
        "fms-fsdp, zstd": of("fms-fsdp", {".arrow": fms_bytes(documents, compression="zstd")}, ".arrow"),
    }


SAMPLES: dict[str, Callable[[], Sample]] = {
    "parquet": lambda: Sample("parquet", _parquet(FLAT)),
    "parquet, plain": lambda: Sample("parquet", _parquet(FLAT, use_dictionary=False, compression="none")),
    "parquet, nested": lambda: Sample("parquet", _parquet(NESTED)),
    "parquet, checksums": lambda: _with_checksums(FLAT),
    "parquet, nested, checksums": lambda: _with_checksums(NESTED),
    "arrow file": lambda: Sample("arrow", _ipc(pa.ipc.new_file)),
    "arrow file, zstd": lambda: Sample("arrow", _ipc(pa.ipc.new_file, "zstd")),
    "arrow file, lz4": lambda: Sample("arrow", _ipc(pa.ipc.new_file, "lz4")),
    "arrow stream": lambda: Sample("arrow", _ipc(pa.ipc.new_stream)),
    "arrow stream, zstd": lambda: Sample("arrow", _ipc(pa.ipc.new_stream, "zstd")),
    "orc": lambda: Sample("orc", _orc()),
    "orc, zlib": lambda: Sample("orc", _orc(compression="zlib")),
    "orc, all types": lambda: Sample("orc", _orc(_orc_types(), dictionary_key_size_threshold=1.0)),
    "orc, all types, zstd": lambda: Sample(
        "orc", _orc(_orc_types(), dictionary_key_size_threshold=1.0, compression="zstd")
    ),
    "csv": lambda: Sample("csv", _csv(), counted=False),
    "json": lambda: Sample("json", _json(), counted=False),
    "avro": lambda: Sample("avro", _avro("null")),
    "avro, deflate": lambda: Sample("avro", _avro("deflate")),
    **_token_samples(),
}
