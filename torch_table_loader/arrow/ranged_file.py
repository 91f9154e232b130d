"""A file whose bytes come from a function, for readers that need a file."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa


class RangedFile:
    """What pyarrow needs of a read-only file; `io.RawIOBase` would do, and takes longer."""

    def __init__(self, read: Callable[[int, int], Any], size: int) -> None:
        self._read = read
        self._size = size
        self._place = 0
        self.closed = False

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the place of the next read, and return it."""
        place = offset + (0, self._place, self._size)[whence]
        if place < 0:
            raise ValueError(f"negative seek position {place}")
        self._place = place
        return place

    def tell(self) -> int:
        """Return the place of the next read."""
        return self._place

    def read(self, length: int = -1) -> Any:
        """Read on; fewer bytes than requested are returned only at the end."""
        start = min(self._place, self._size)
        stop = self._size if length is None or length < 0 else min(start + length, self._size)
        self._place = stop
        if start == stop:
            return b""
        return self._read(start, stop)

    def close(self) -> None:
        """Do nothing but say so."""
        self.closed = True


def open_ranges(read: Callable[[int, int], Any], size: int) -> pa.NativeFile:
    """Open a file over a function that returns bytes of it, without copying them.

    Args:
        read: takes the first byte and the byte after the last, and returns a buffer of exactly those bytes.
        size: bytes of the file.

    >>> with open_ranges(lambda start, stop: b"hello"[start:stop], 5) as file:
    ...     file.seek(1), file.read(3)
    (1, b'ell')
    """
    return pa.PythonFile(RangedFile(read, size), mode="r")


class BufferedRanges:
    """Reads ranges of a file, rounding small ones up, and keeps the last one."""

    def __init__(self, read: Callable[[int, int], Any], size: int, least: int) -> None:
        """Start without reading; a read takes at least `least` bytes, if the file has so many."""
        self._read = read
        self._size = size
        self._least = least
        self._start = 0
        self._kept = memoryview(b"")

    def read(self, start: int, stop: int) -> Any:
        r"""Return bytes of the file.

        >>> ranges = BufferedRanges(lambda start, stop: print(start, stop) or bytes(range(start, stop)), 100, 8)
        >>> [bytes(ranges.read(*part)) for part in ((1, 3), (4, 6), (98, 100))]
        1 9
        98 100
        [b'\x01\x02', b'\x04\x05', b'bc']
        """
        if stop - start >= self._least:
            return self._read(start, stop)
        if not self._start <= start <= stop <= self._start + len(self._kept):
            self._kept = memoryview(self._read(start, min(start + self._least, self._size)))
            self._start = start
        return self._kept[start - self._start : stop - self._start]
