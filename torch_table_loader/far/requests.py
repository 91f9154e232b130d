"""Which requests fetch the bytes of a file: near ranges are merged, long ones cut."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from torch_table_loader.ranges import FIRST_BYTES, Range
from torch_table_loader.sizes import sizes

SPARE_BYTES = 32 * 1024
"""Unneeded bytes that may be read in any case: a request costs as much."""

_LEAST_USE = 8
"""Of many needed bytes, one more in this many may be read without need."""


class Piece(NamedTuple):
    """Bytes that are fetched and needed together: those of one row group, or of several small ones.

    Args:
        requests: first byte of each, and the byte after its last; ascending, without overlap within a file.
        groups: from the first to the last row group that needs any of them, by place. A request may end in bytes of the
            next row group, so these may overlap between pieces. This piece may be dropped once these are decoded.
    """

    requests: tuple[Range, ...]
    groups: range

    @property
    def num_bytes(self) -> int:
        """Bytes of all requests."""
        return sum(stop - start for start, stop in self.requests)


def plan_pieces(
    groups: Sequence[Sequence[Range]],
    *,
    gap: int | None = None,
    most: int | None = None,
    first: int = FIRST_BYTES,
    spare: int = SPARE_BYTES,
) -> list[Piece]:
    """Plan the requests for what is read of a file.

    Ranges are merged over gaps of at most `gap` bytes, the smallest first, as long as all these gaps together have at
    most an eighth of the needed bytes, or `spare`. A request has at most `most` bytes, and is cut between two ranges if
    possible. The first piece is one row group, or as many as fit in `first` bytes; later row groups share a piece if
    they share a request. No byte is requested twice: a piece has what its row groups need and no earlier piece holds.

    Args:
        groups: for each row group, in the order of decoding, the ranges that it needs; they may overlap.
        gap: unneeded bytes that may be read between two ranges; None for the size in force.
        most: bytes of a request; None for the size in force.
        first: bytes of the first piece, if that is more than one row group.
        spare: unneeded bytes that may be read in total, however few are needed; twice, since the first piece is apart.

    >>> plan_pieces([[(4, 100), (110, 200)], [(5000, 9000)]], gap=16, most=4096, first=0)
    [Piece(requests=((4, 200),), groups=range(0, 1)), Piece(requests=((5000, 9000),), groups=range(1, 2))]
    """
    if gap is None:
        gap = sizes().far_gap_bytes
    if most is None:
        most = sizes().far_request_bytes
    count = _count_of_first(groups, first)
    head = _requests(_joined(each for group in groups[:count] for each in group), [], gap, most, spare)
    rest = _without(_joined(each for group in groups[count:] for each in group), head)
    requests = sorted([*head, *_requests(rest, head, gap, most, spare)])
    uses = _uses(requests, groups)
    pieces: dict[int, list[int]] = {}
    for place, use in sorted(enumerate(uses), key=lambda each: (each[1].start, each[0])):
        pieces.setdefault(0 if use.start < count else use.start, []).append(place)
    return [
        Piece(
            tuple(requests[place] for place in places),
            range(min(uses[place].start for place in places), max(uses[place].stop for place in places)),
        )
        for places in (sorted(places) for places in pieces.values())
    ]


def plan_file(groups: Sequence[Sequence[Range]], size: int) -> list[Piece]:
    """Plan the requests for what is read of a file; a small file that is mostly needed comes whole, in one request.

    >>> plan_file([[(4, 100)], [(200, 300)]], 390)
    [Piece(requests=((0, 390),), groups=range(0, 2))]
    """
    if size <= FIRST_BYTES and 2 * sum(stop - start for group in groups for start, stop in group) > size:
        return [Piece(((0, size),), range(len(groups)))]
    return plan_pieces(groups)


def fitted_to_held(
    pieces: Sequence[Piece], groups: Sequence[Sequence[Range]], held: Iterable[Range]
) -> Iterator[Piece]:
    """Remove gaps from the requests of some row groups where all needed bytes are held already but the gaps are not.

    A file may be divided differently than when its bytes arrived, and then has other gaps. What is held may
    overlap.

    A file may be divided differently than when its bytes arrived, and then has other gaps.

    >>> groups = [[(4, 100), (110, 200)], [(500, 900)]]
    >>> pieces = [Piece(((4, 200),), range(0, 1)), Piece(((500, 900),), range(1, 2))]
    >>> [piece.requests for piece in fitted_to_held(pieces, groups, [(0, 105), (110, 300)])]
    [((4, 100), (110, 200)), ((500, 900),)]
    """
    here, wanted = merged(held), merged(each for group in groups for each in group)
    for piece in pieces:
        requests: list[Range] = []
        for request in piece.requests:
            parts = _within(wanted, request)
            gapless = not holds(here, request) and all(holds(here, part) for part in parts)
            requests += parts if gapless else [request]
        yield piece._replace(requests=tuple(requests))


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Join ranges that overlap or touch.

    >>> merged([(4, 6), (0, 3), (2, 4), (9, 9), (8, 9)])
    [(0, 6), (8, 9)]
    """
    found: list[Range] = []
    for start, stop in _joined(ranges):
        if found and start == found[-1][1]:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found


def holds(here: Sequence[Range], wanted: Range) -> bool:
    """Return whether one of some disjoint ranges contains all of another range.

    >>> holds([(0, 6), (8, 9)], (2, 6)), holds([(0, 6), (8, 9)], (5, 9))
    (True, False)
    """
    place = bisect_right(here, wanted[0], key=lambda each: each[0]) - 1
    return place >= 0 and here[place][1] >= wanted[1]


def _within(ranges: Sequence[Range], request: Range) -> list[Range]:
    """Return the parts of some disjoint ranges that lie in a request.

    >>> _within([(0, 3), (5, 9), (12, 14)], (2, 13))
    [(2, 3), (5, 9), (12, 13)]
    """
    start, stop = request
    found, place = [], max(0, bisect_right(ranges, start, key=lambda each: each[0]) - 1)
    while place < len(ranges) and ranges[place][0] < stop:
        found.append((max(start, ranges[place][0]), min(stop, ranges[place][1])))
        place += 1
    return [each for each in found if each[0] < each[1]]


def _count_of_first(groups: Sequence[Sequence[Range]], first: int) -> int:
    """Count the row groups of the first piece: those that need nothing, then one, and more while they are small."""
    total = 0
    for count, group in enumerate(groups):
        num_bytes = sum(stop - start for start, stop in group)
        if total and total + num_bytes > first:
            return count
        total += num_bytes
    return len(groups)


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """Join ranges that overlap; those that only touch stay apart.

    >>> _joined([(4, 6), (0, 3), (2, 4), (9, 9)])
    [(0, 4), (4, 6)]
    """
    joined: list[Range] = []
    for start, stop in sorted(ranges):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        elif start < stop:
            joined.append((start, stop))
    return joined


def _without(ranges: Sequence[Range], held: Sequence[Range]) -> list[Range]:
    """Leave out bytes that are held.

    >>> _without([(0, 10), (10, 12)], [(2, 4), (9, 11)])
    [(0, 2), (4, 9), (11, 12)]
    """
    found: list[Range] = []
    stops = [stop for _, stop in held]
    for start, stop in ranges:
        place, at = bisect_right(stops, start), start
        while place < len(held) and held[place][0] < stop:
            found.append((at, held[place][0]))
            at, place = held[place][1], place + 1
        found.append((at, stop))
    return [(start, stop) for start, stop in found if start < stop]


def _requests(ranges: Sequence[Range], held: Sequence[Range], gap: int, most: int, spare: int) -> list[Range]:
    """Merge and cut ranges that overlap neither one another nor what is held; no gap with held bytes is bridged."""
    budget = max(spare, sum(stop - start for start, stop in ranges) // _LEAST_USE)
    bridged = _bridged(ranges, held, gap, budget)
    found: list[Range] = []
    for place, (start, stop) in enumerate(ranges):
        begin = start
        if place in bridged and stop - found[-1][0] <= most:
            begin, _ = found.pop()
        while stop - begin > most:
            found.append((begin, begin + most))
            begin += most
        found.append((begin, stop))
    return found


def _bridged(ranges: Sequence[Range], held: Sequence[Range], gap: int, budget: int) -> set[int]:
    """Return the places of the ranges that may join the range before them."""
    gaps: list[tuple[int, int]] = []
    stops = [stop for _, stop in held]
    for place, ((_, stop), (start, _)) in enumerate(pairwise(ranges), start=1):
        after = bisect_right(stops, stop)
        if start - stop <= gap and (after == len(held) or held[after][0] >= start):
            gaps.append((start - stop, place))
    bridged: set[int] = set()
    for size, place in sorted(gaps):
        budget -= size
        if budget < 0:
            break
        bridged.add(place)
    return bridged


def _uses(requests: Sequence[Range], groups: Sequence[Sequence[Range]]) -> list[range]:
    """Return for each request the first to the last row group that needs any of its bytes."""
    stops = [stop for _, stop in requests]
    uses: list[range | None] = [None] * len(requests)
    for number, group in enumerate(groups):
        for start, stop in group:
            place = bisect_right(stops, start)
            while start < stop and place < len(requests) and requests[place][0] < stop:
                known = uses[place]
                uses[place] = range(number if known is None else known.start, number + 1)
                place += 1
    return [range(0) if use is None else use for use in uses]
