"""How deep JSON nests, before a parser that calls itself for each level sees it: deep JSON would end the process."""

from __future__ import annotations

import json
from bisect import bisect
from typing import Any

import numpy as np

from torch_table_loader.errors import TableError
from torch_table_loader.sizes import sizes

_ALL_BUT_STRUCTURE = bytes(set(range(256)) - set(b'{}[]"'))


def load_json(data: bytes | str, name: str) -> Any:
    """Parse a document, in the encodings that `json.loads` takes.

    Args:
        name: of the document, for messages.

    Raises:
        TableError: it nests deeper than `Sizes.json_levels`.
        ValueError: it is not JSON.
    """
    text = data if isinstance(data, str) else data.decode(json.detect_encoding(data), "surrogatepass")
    check_nesting(text, name)
    return json.loads(text)


def check_nesting(data: bytes | str, name: str) -> None:
    """Refuse JSON that nests too deep, in UTF-8 or decoded: one value, or several after one another.

    What is not JSON may pass, as long as a parser meets what is wrong with it before it is too deep.

    Args:
        name: of what was read, for messages.

    Raises:
        TableError: with the place.
    """
    place = too_deep(data)
    if place is not None:
        raise _refusal(name, f" at byte {place}")


def too_deep(data: bytes | str) -> int | None:
    r"""Return the place of the first bracket that nests deeper than `Sizes.json_levels`, in bytes of UTF-8.

    >>> from torch_table_loader.testing import small_sizes
    >>> with small_sizes(json_levels=2):
    ...     too_deep('{"a[[[": ["\\"[", {"b": 1}]}'), too_deep('[[1], [[2]]]'), too_deep('[[],[]][[]]')
    (17, 7, None)
    """
    encoded = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    most = sizes().json_levels
    # Most documents have no more brackets than levels are allowed, and the first look at the others is cheap.
    if encoded.count(b"{") + encoded.count(b"[") <= most or depth(encoded) <= most:
        return None
    return bisect(range(len(encoded)), most, key=lambda end: depth(encoded[:end])) - 1


def depth(data: bytes) -> int:
    """Return how many brackets are open at once at the most, of JSON in UTF-8: those in strings do not count.

    >>> depth(b'{"a": [1, {}], "b": "[[[["}')
    3
    """
    return Levels().take(data)


class Levels:
    """How deep a text nests that comes in pieces, cut anywhere."""

    def __init__(self) -> None:
        self._open = 0
        self._before = b""
        """What the next piece begins inside of: a string, an escape in one."""

    def check(self, piece: bytes, name: str) -> None:
        """Refuse the next piece if it nests too deep, as `check_nesting` does."""
        if self.take(piece) > sizes().json_levels:
            raise _refusal(name, "")

    def take(self, piece: bytes) -> int:
        """Return how many brackets are open at once at the most in the next piece."""
        data = self._before + piece
        escaping = b""
        if b"\\" in data:
            data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
            escaping = b"\\" if data.endswith(b"\\") else b""
        # Two quotes next to each other leave what is inside of strings inside.
        structure = data.translate(None, _ALL_BUT_STRUCTURE).replace(b'""', b"")
        parts = structure.split(b'"')
        self._before = (b"" if len(parts) % 2 else b'"') + escaping
        outside = b"".join(parts[::2])
        if not outside:
            return self._open
        # Two bits tell 0x5b and 0x7b, which open, from 0x5d and 0x7d, which close.
        steps = 3 - (np.frombuffer(outside, np.int8) & 0b110)
        levels = np.cumsum(steps, dtype=np.int64) + self._open
        # A bracket that closes nothing is an error, and takes no level from what follows.
        levels -= np.minimum(np.minimum.accumulate(levels), 0)
        self._open = int(levels[-1])
        return int(levels.max())


def _refusal(name: str, place: str) -> TableError:
    return TableError(
        f"{name} must nest objects and arrays at most {sizes().json_levels} levels deep, got more{place}; "
        "such text could end this process: write it flatter, or leave it out"
    )
