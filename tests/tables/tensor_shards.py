"""Tensor shards for the tests, written without the package: files of samples, and what their tensors are."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import TensorProto

WIDTHS = {
    "FLOAT": ("float32", 4),
    "UINT8": ("uint8", 1),
    "INT8": ("int8", 1),
    "UINT16": ("uint16", 2),
    "INT16": ("int16", 2),
    "INT32": ("int32", 4),
    "INT64": ("int64", 8),
    "BOOL": ("bool", 1),
    "FLOAT16": ("float16", 2),
    "DOUBLE": ("float64", 8),
    "UINT32": ("uint32", 4),
    "UINT64": ("uint64", 8),
    "COMPLEX64": ("complex64", 8),
    "COMPLEX128": ("complex128", 16),
    "BFLOAT16": ("bfloat16", 2),
    "FLOAT8E4M3FN": ("float8_e4m3fn", 1),
    "FLOAT8E4M3FNUZ": ("float8_e4m3fnuz", 1),
    "FLOAT8E5M2": ("float8_e5m2", 1),
    "FLOAT8E5M2FNUZ": ("float8_e5m2fnuz", 1),
    "FLOAT8E8M0": ("float8_e8m0fnu", 1),
}
"""By ONNX's name of an element type: torch's, and the bytes of a value."""


@dataclass(frozen=True)
class Tensor:
    """A feature of a sample: its values are bytes, little-endian."""

    name: str
    kind: str
    dims: tuple[int, ...]
    data: bytes
    raw: bool = True

    def message(self) -> bytes:
        """Write it as a TensorProto, the values as `raw_data` or in the field of their type."""
        proto = TensorProto(name=self.name, data_type=TensorProto.DataType.Value(self.kind), dims=self.dims)
        if self.raw:
            proto.raw_data = self.data
        elif self.kind in ("FLOAT", "COMPLEX64"):
            proto.float_data.extend(np.frombuffer(self.data, "<f4").tolist())
        elif self.kind in ("DOUBLE", "COMPLEX128"):
            proto.double_data.extend(np.frombuffer(self.data, "<f8").tolist())
        elif self.kind == "INT64":
            proto.int64_data.extend(np.frombuffer(self.data, "<i8").tolist())
        elif self.kind in ("UINT32", "UINT64"):
            proto.uint64_data.extend(np.frombuffer(self.data, f"<u{WIDTHS[self.kind][1]}").tolist())
        else:
            signed = "i" if self.kind.startswith("INT") else "u"
            proto.int32_data.extend(np.frombuffer(self.data, f"<{signed}{WIDTHS[self.kind][1]}").tolist())
        return bytes(proto.SerializeToString())

    @property
    def torch(self) -> torch.Tensor:
        """What is to be delivered."""
        dtype = getattr(torch, WIDTHS[self.kind][0])
        if not self.data:
            return torch.empty(self.dims, dtype=dtype)
        return torch.frombuffer(bytearray(self.data), dtype=dtype).reshape(self.dims)


def tensor(name: str, values: Any, kind: str | None = None) -> Tensor:
    """Make a feature of numpy values."""
    array = np.asarray(values)
    own = {np.dtype(kind): name for name, (kind, _) in WIDTHS.items() if kind in np.sctypeDict}
    return Tensor(name, kind or own[array.dtype], array.shape, array.tobytes())


def sample(tensors: Iterable[Tensor]) -> bytes:
    """Write a sample."""
    features = b"".join(struct.pack("<I", len(message)) + message for message in (each.message() for each in tensors))
    return struct.pack("<I", len(features)) + features


def write_shard(path: Path, samples: Iterable[Sequence[Tensor]]) -> Path:
    """Write a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(sample, samples)))
    return path


def bits(values: torch.Tensor) -> tuple[Any, ...]:
    """Say dtype, shape and bytes, by which NaN are compared too."""
    data = values.contiguous().reshape(-1)
    return values.dtype, tuple(values.shape), data.view(torch.uint8).numpy().tobytes() if data.numel() else b""


def rows_of(batch: dict[str, Any]) -> list[dict[str, torch.Tensor]]:
    """Take a batch apart into samples, whatever form its columns have."""
    columns: dict[str, list[torch.Tensor]] = {}
    for name, column in batch.items():
        if isinstance(column, dict):
            shapes = column["shape"]
            each = zip(column["values"].unbind(), shapes.unbind(), strict=True)
            columns[name] = [values.reshape(shape.tolist()) for values, shape in each]
        else:
            columns[name] = list(column.unbind())
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def values_of(kind: str, dims: tuple[int, ...], seed: int, *, raw: bool) -> bytes:
    """Make values: of `raw` ones any bits, else numbers that every field of a TensorProto keeps."""
    rng = np.random.default_rng(seed)
    count, width = prod(dims), WIDTHS[kind][1]
    if kind == "BOOL":
        return rng.integers(0, 2, count, dtype=np.uint8).tobytes()
    if raw:
        return bytes(rng.bytes(count * width))
    if kind in ("FLOAT", "COMPLEX64"):
        return rng.integers(-9, 9, count * width // 4).astype("<f4").tobytes()
    if kind in ("DOUBLE", "COMPLEX128"):
        return rng.integers(-9, 9, count * width // 8).astype("<f8").tobytes()
    if kind.startswith(("BFLOAT", "FLOAT")):  # bits of numbers that are no NaN, which could come back as another one
        return rng.integers(0, 0x3C, count).astype(f"<u{width}").tobytes()
    return bytes(rng.bytes(count * width))
