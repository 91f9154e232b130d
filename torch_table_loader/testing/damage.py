"""Storages that serve damaged files, with the same damage each time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile, FileVersion

_SPOT = 16
"""Bytes in the middle that "spot" overwrites."""


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A storage that opens the files of another one differently."""

    inner: Storage

    @property
    def is_local(self) -> bool:
        """As the inner storage says."""
        return self.inner.is_local

    def version(self, path: str) -> FileVersion:
        """As the inner storage says."""
        return self.inner.version(path)

    def close(self) -> None:
        """Close the inner storage."""
        self.inner.close()


@dataclass(frozen=True, slots=True)
class Damaged(Wrapped):
    """Serves the files of another storage with some harm done to their bytes.

    "cut" keeps the first half; "noise" keeps only the length; "spot" keeps all but some bytes in the middle.
    """

    harm: Literal["cut", "noise", "spot"]

    def open(self, path: str) -> pa.NativeFile:
        """Open the damaged file."""
        with self.inner.open(path) as handle:
            content = bytes(handle.read())
        middle, noise = len(content) // 2, _noise(len(content))
        harmed = {
            "cut": content[:middle],
            "noise": noise,
            "spot": content[:middle] + noise[middle : middle + _SPOT] + content[middle + _SPOT :],
        }
        return pa.BufferReader(harmed[self.harm])

    def listed(self, file: DataFile) -> DataFile:
        """Return a file as a listing shows it after the damage: a cut file is shorter."""
        num_bytes = file.version.num_bytes // 2 if self.harm == "cut" else file.version.num_bytes
        return replace(file, version=replace(file.version, num_bytes=num_bytes))


def _noise(length: int) -> bytes:
    """Return bytes of a fixed generator (Lehmer's, modulo 2**31 − 1), the same in each run."""
    state, noise = 1, bytearray()
    for _ in range(length):
        state = state * 48271 % 0x7FFFFFFF
        noise.append(state & 0xFF)
    return bytes(noise)
