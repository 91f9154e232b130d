"""Storages that a check puts between a reader and a file: one that damages it, one that watches the reads."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import FileVersion


@dataclass(frozen=True, slots=True)
class Damaged:
    """Serves files that were cut in the middle, or overwritten with noise.

    Args:
        inner: where the sound files are.
        harm: "cut" keeps the first half; "noise" keeps the length alone.
    """

    inner: Storage
    harm: Literal["cut", "noise"]

    @property
    def is_local(self) -> bool:
        """As the inner one says."""
        return self.inner.is_local

    def open(self, path: str) -> pa.NativeFile:
        """Open the damaged file."""
        with self.inner.open(path) as handle:
            content = bytes(handle.read())
        return pa.BufferReader(content[: len(content) // 2] if self.harm == "cut" else _noise(len(content)))

    def version(self, path: str) -> FileVersion:
        """As the inner one says: the harm is in the bytes alone."""
        return self.inner.version(path)

    def close(self) -> None:
        """Close the inner one."""
        self.inner.close()


@dataclass(frozen=True, slots=True)
class Watched:
    """Serves files as they are and notes what is read.

    Args:
        inner: where the files are.
    """

    inner: Storage
    reads: list[tuple[int, int]] = field(default_factory=list, init=False)
    """``(start, stop)`` of each read."""

    @property
    def is_local(self) -> bool:
        """As the inner one says."""
        return self.inner.is_local

    def open(self, path: str) -> pa.NativeFile:
        """Open a file whose reads are noted."""
        with self.inner.open(path) as handle:
            return pa.PythonFile(_Noting(bytes(handle.read()), self.reads), mode="r")

    def version(self, path: str) -> FileVersion:
        """As the inner one says."""
        return self.inner.version(path)

    def close(self) -> None:
        """Close the inner one."""
        self.inner.close()


class _Noting(io.BytesIO):
    def __init__(self, content: bytes, reads: list[tuple[int, int]]) -> None:
        super().__init__(content)
        self._reads = reads

    def read(self, size: int | None = -1, /) -> bytes:
        start = self.tell()
        data = super().read(size)
        self._reads.append((start, start + len(data)))
        return data

    def readinto(self, buffer: Any, /) -> int:
        start = self.tell()
        count = super().readinto(buffer)
        self._reads.append((start, start + count))
        return count


def _noise(length: int) -> bytes:
    """Bytes of a fixed generator (Lehmer's, modulo 2**31 − 1), the same in each run."""
    state, noise = 1, bytearray()
    for _ in range(length):
        state = state * 48271 % 0x7FFFFFFF
        noise.append(state & 0xFF)
    return bytes(noise)
