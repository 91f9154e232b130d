"""Many small reads of a file become few requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class BufferedRanges:
    """Reads ranges of a file, of small ones more than was asked for, and keeps what came last."""

    def __init__(self, read: Callable[[int, int], Any], size: int, least: int) -> None:
        """Read nothing yet.

        Args:
            read: takes the first byte and the byte after the last, and returns a buffer of exactly those.
            size: bytes of the file.
            least: bytes that are read at once, where there are so many; 0 for those that are asked for.
        """
        self._read = read
        self._size = size
        self._least = least
        self._start = 0
        self._kept = memoryview(b"")

    def read(self, start: int, stop: int) -> Any:
        r"""Return bytes of the file.

        Args:
            start: the first.
            stop: the byte after the last.

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
