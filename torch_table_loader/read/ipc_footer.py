"""Where the blocks of an Arrow IPC file lie, which pyarrow does not give.

The file ends in: footer, its length in 4 bytes, ``ARROW1``. The footer is a flatbuffer
(https://arrow.apache.org/docs/format/Columnar.html, "IPC File Format"; ``File.fbs`` in Arrow's repository).
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import NamedTuple

_DICTIONARIES, _RECORD_BATCHES = 2, 3
_BLOCK = struct.Struct("<qi4xq")
_MOST_PADDING = 128
"""Bytes between blocks that some writer may leave, and the end-of-stream marker; the header of a batch needs more."""


class Block(NamedTuple):
    """The bytes of one dictionary or record batch."""

    start: int
    stop: int


def read_blocks(footer: bytes) -> tuple[list[Block], int]:
    """Read the footer's lists of blocks.

    Args:
        footer: without its length.

    Returns:
        Dictionaries and record batches, in the order of the footer; and how many of them are record batches.

    Raises:
        ValueError: the footer does not parse.
    """
    try:
        (root,) = struct.unpack_from("<I", footer)
        dictionaries, batches = (_vector(footer, root, field) for field in (_DICTIONARIES, _RECORD_BATCHES))
    except struct.error as error:
        raise ValueError(f"the footer ends before its blocks ({error})") from error
    return [*dictionaries, *batches], len(batches)


def _vector(footer: bytes, table: int, field: int) -> list[Block]:
    (to_vtable,) = struct.unpack_from("<i", footer, table)
    vtable = table - to_vtable
    if vtable < 0:
        raise ValueError("the footer's table begins before the footer")
    (vtable_bytes,) = struct.unpack_from("<H", footer, vtable)
    slot = 4 + 2 * field
    place = struct.unpack_from("<H", footer, vtable + slot)[0] if slot + 2 <= vtable_bytes else 0
    if not place:
        return []
    vector = table + place + struct.unpack_from("<I", footer, table + place)[0]
    (count,) = struct.unpack_from("<I", footer, vector)
    if vector + 4 + count * _BLOCK.size > len(footer):
        raise ValueError(f"the footer has no room for the {count} blocks that it says")
    blocks = []
    for offset, metadata, body in _BLOCK.iter_unpack(footer[vector + 4 : vector + 4 + count * _BLOCK.size]):
        if offset < 0 or metadata <= 0 or body < 0:
            raise ValueError(f"a block has the offset {offset} and the lengths {metadata} and {body}")
        blocks.append(Block(offset, offset + metadata + body))
    return blocks


def check_blocks(blocks: list[Block], start: int, stop: int) -> None:
    """Check that blocks fill a file, so that none is missing, given twice, or elsewhere.

    Args:
        blocks: in any order.
        start: where the schema ends.
        stop: where the footer begins.

    Raises:
        ValueError: says where they do not.

    >>> check_blocks([Block(120, 200), Block(100, 120)], 100, 208)
    """
    edges = [Block(start, start), *sorted(blocks), Block(stop, stop)]
    for before, after in pairwise(edges):
        if not 0 <= after.start - before.stop <= _MOST_PADDING:
            raise ValueError(
                f"its blocks must fill it, and between byte {before.stop} and byte {after.start} they do not"
            )
