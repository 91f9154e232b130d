"""Small files that stand for far more than they hold: each makes bytes, and the rows that they truly have, if any."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

_MANY = 1 << 23
"""Rows, or bytes, that few bytes stand for."""

_CLAIM = (1 << 62) - 1


class Bomb(NamedTuple):
    """A file.

    Args:
        suffix: of its name.
        rows: that it has; None if it must be refused, -1 if either will do.
    """

    form: str
    suffix: str
    data: bytes
    rows: int | None


def _json(text: bytes, rows: int | None, suffix: str = ".jsonl") -> Bomb:
    return Bomb("json", suffix, text, rows)


def _deep(opened: bytes, closed: bytes, levels: int = 100_000) -> bytes:
    return b'{"a": ' + opened * levels + b"1" + closed * levels + b"}\n"


def _compressed(codec: str, text: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(text)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _parquet(table: pa.Table, rows: int | None, **options: object) -> Bomb:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return Bomb("parquet", ".parquet", sink.getvalue(), rows)


def _repeated_word() -> Bomb:
    column = pa.DictionaryArray.from_arrays(np.zeros(2000, np.int32), pa.array(["x" * (1 << 17)]))
    return _parquet(pa.table({"a": column}), 2000)


def _number(value: int) -> bytes:
    value, out = value << 1 if value >= 0 else (-value << 1) - 1, bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _avro(schema: object, records: bytes, count: int, rows: int | None, codec: bytes = b"null", size: int = -1) -> Bomb:
    parts = b"avro.schema", json.dumps(schema).encode(), b"avro.codec", codec
    header = b"".join(_number(len(part)) + part for part in parts)
    length = _number(len(records) if size < 0 else size)
    data = b"Obj\1" + _number(2) + header + b"\0" + b"S" * 16 + _number(count) + length + records + b"S" * 16
    return Bomb("avro", ".avro", data, rows)


def _record(*types: object) -> dict[str, object]:
    return {
        "type": "record",
        "name": "r",
        "fields": [{"name": f"f{at}", "type": each} for at, each in enumerate(types)],
    }


def _nested_array(levels: int) -> object:
    kind: object = "int"
    for _ in range(levels):
        kind = {"type": "array", "items": kind}
    return kind


def _arrow(claim: int) -> Bomb:
    sink = io.BytesIO()
    table = pa.table({"a": np.zeros(123_457, np.int64)})
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    said = struct.pack("<q", 8 * len(table))
    assert said in sink.getvalue()
    return Bomb("arrow", ".arrow", sink.getvalue().replace(said, struct.pack("<q", claim)), None)


def _nested_type(levels: int) -> pa.DataType:
    kind = pa.int8()
    for _ in range(levels):
        kind = pa.list_(kind)
    return kind


def _orc(table: pa.Table, rows: int | None) -> Bomb:
    sink = io.BytesIO()
    orc.write_table(table, sink, compression="zstd")
    return Bomb("orc", ".orc", sink.getvalue(), rows)


def _zstd_frame(content: int) -> bytes:
    """A frame that says how much it holds, and holds a line."""
    line = b'{"a": 1}\n'
    return struct.pack("<IBQ", 0xFD2FB528, 0xE0, content) + struct.pack("<I", len(line) << 3 | 1)[:3] + line


BOMBS: dict[str, Callable[[], Bomb]] = {
    "objects in JSON": lambda: _json(_deep(b'{"b":', b"}"), None),
    "arrays in JSON": lambda: _json(_deep(b"[", b"]"), None),
    "both in gzip": lambda: _json(gzip.compress(_deep(b'[{"b":', b"}]", 1 << 20)), None, ".jsonl.gz"),
    "both in zstd": lambda: _json(_compressed("zstd", _deep(b'[{"b":', b"}]", 1 << 20)), None, ".jsonl.zst"),
    "both in brotli": lambda: _json(_compressed("brotli", _deep(b'[{"b":', b"}]", 1 << 18)), None, ".jsonl.br"),
    "both in lz4": lambda: _json(_compressed("lz4", _deep(b'[{"b":', b"}]", 1 << 18)), None, ".jsonl.lz4"),
    "types of JSON": lambda: _json(_deep(b"[", b"]", 150), None),
    "arrays without end": lambda: _json(b'{"a": ' + b"[" * (1 << 22), None),
    "a number of digits": lambda: _json(b'{"a": ' + b"9" * (1 << 20) + b"}\n", -1),
    "members of gzip": lambda: _json(gzip.compress(b'{"a": 1}\n') * 5000, 5000, ".jsonl.gz"),
    "blank lines in gzip": lambda: _json(gzip.compress(b'{"a": 1}\n' + b"\n" * (1 << 25), 1), 1, ".jsonl.gz"),
    "a frame of zstd": lambda: _json(_zstd_frame(_CLAIM), -1, ".jsonl.zst"),
    "a row of CSV in gzip": lambda: Bomb("csv", ".csv.gz", gzip.compress(b"a\n" + b"x" * (1 << 26), 1), None),
    "a quote of CSV in gzip": lambda: Bomb("csv", ".csv.gz", gzip.compress(b'a\n"' + b"\n" * (1 << 26), 1), None),
    "columns of CSV": lambda: Bomb(
        "csv", ".csv", b",".join(b"c%d" % at for at in range(5000)) + b"\n" + b"," * 4999, -1
    ),
    "a word of a dictionary": _repeated_word,
    "runs of a dictionary": lambda: _parquet(pa.table({"a": np.full(_MANY, 7)}), _MANY),
    "runs of nulls": lambda: _parquet(pa.table({"a": pa.nulls(_MANY, pa.int64())}), _MANY),
    "columns of Parquet": lambda: _parquet(pa.table({f"c{at}": [1] for at in range(2000)}), 1),
    "types of Parquet": lambda: _parquet(pa.table({"a": pa.nulls(3, _nested_type(40))}), 3),
    "deep types of Parquet": lambda: _parquet(pa.table({"a": pa.nulls(3, _nested_type(90))}), None),
    "sizes in Arrow": lambda: _arrow(_CLAIM),
    "large sizes in Arrow": lambda: _arrow(1 << 40),
    "signs in Arrow": lambda: _arrow(-(1 << 40)),
    "runs in ORC": lambda: _orc(pa.table({"a": np.full(_MANY, 7)}), _MANY),
    "types of ORC": lambda: _orc(pa.schema([("a", _nested_type(400))]).empty_table(), None),
    "records of Avro": lambda: _avro(_record("int"), b"\2", 1 << 60, None),
    "a block of Avro": lambda: _avro(_record("bytes"), b"\2", 1, None, size=1 << 60),
    "a text of Avro": lambda: _avro(_record("bytes"), _number(1 << 60) + b"x", 1, None),
    "an array of Avro": lambda: _avro(_record(_nested_array(1)), _number(1 << 60) + b"\2", 1, None),
    "deflate in Avro": lambda: _avro(
        _record("bytes"), zlib.compress(_number(1 << 28) + bytes(1 << 28), 1)[2:-4], 1, -1, b"deflate"
    ),
    "types of Avro": lambda: _avro(_record(_nested_array(190)), b"\0", 1, None),
    "deep types of Avro": lambda: _avro(_record(_nested_array(400)), b"\0", 1, None),
    "a record of itself": lambda: _avro(_record(["null", "r"]), b"\2" * 100_000 + b"\0", 1, None),
}
