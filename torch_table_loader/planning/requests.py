"""Which requests fetch the bytes of a file: near ranges merged, long ones cut, in the order in which they are decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

GAP_BYTES = 256 * 1024
"""Bytes that are read in vain between two ranges rather than asking twice: a few milliseconds of a fast line."""

REQUEST_BYTES = 8 * 1024 * 1024
"""The most that one request asks for."""


class Piece(NamedTuple):
    """Bytes that are fetched together, and needed together: those of a row group, or of some small ones.

    Args:
        requests: first byte of each, and the byte after its last; ascending, none overlaps another of its file.
    """

    requests: tuple[tuple[int, int], ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all requests."""
        return sum(stop - start for start, stop in self.requests)


def plan_pieces(
    groups: Sequence[Sequence[tuple[int, int]]], *, gap: int = GAP_BYTES, most: int = REQUEST_BYTES
) -> list[Piece]:
    """Plan the requests for what is read of a file.

    Ranges are merged over gaps of at most `gap` bytes; a request holds at most `most` bytes, and is cut between two
    ranges where it can be. Small row groups that follow one another share a piece, so that they share requests. No
    byte is asked for twice.

    Args:
        groups: for each row group, in the order of decoding, the ranges that it needs.
        gap: bytes that may be read in vain between two ranges.
        most: bytes of a request.

    >>> plan_pieces([[(4, 100), (110, 200)], [(5000, 9000)]], gap=16, most=4096)
    [Piece(requests=((4, 200),)), Piece(requests=((5000, 9000),))]
    """
    raise NotImplementedError
