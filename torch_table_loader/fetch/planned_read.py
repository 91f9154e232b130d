"""One planned read: the requests that bring its bytes, and the stage of each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_table_loader.planning.requests import Piece, fitted_to_held, holds, merged, plan_file

if TYPE_CHECKING:
    from torch_table_loader.contracts import RangeStorage
    from torch_table_loader.planning.requests import Range
    from torch_table_loader.records import DataFile, FileNeeds


class PlannedRead(NamedTuple):
    """A read that a lane will do.

    Args:
        rows_before: rows that the lane delivers before it.
        find: returns which bytes it needs, None if it needs none; may read footers and delete files.
        storage: the storage of the file; None for the storage of most reads.
    """

    rows_before: int
    lane: int
    rows: int
    find: Callable[[], FileNeeds | None]
    storage: RangeStorage | None = None


class Stage(Enum):
    """The stage of a request."""

    QUEUED = 0
    IN_FLIGHT = 1
    DONE = 2
    FAILED = 3
    DROPPED = 4


class Request:
    """Bytes that are requested together, of one piece of a read."""

    __slots__ = (
        *("attempts", "began", "data", "error", "file", "is_held", "is_here", "is_late"),
        *("piece", "running", "stage", "start", "stop", "storage"),
    )

    def __init__(self, file: DataFile, storage: RangeStorage, start: int, stop: int, piece: int) -> None:
        self.file = file
        self.storage = storage
        self.start = start
        self.stop = stop
        self.piece = piece
        self.stage = Stage.QUEUED
        self.attempts = 0
        """How often it was sent."""
        self.running = 0
        """How many of those are still in flight."""
        self.began = 0.0
        self.is_late = False
        """Whether it should be sent once more."""
        self.is_held = False
        """Whether its bytes count as held."""
        self.is_here = False
        """Whether the disk cache had its bytes when it was planned."""
        self.data: Any = None
        self.error: BaseException | None = None

    @property
    def num_bytes(self) -> int:
        """Number of bytes that it asks for."""
        return self.stop - self.start

    @property
    def waits(self) -> bool:
        """Whether its bytes are still to come."""
        return self.stage in (Stage.QUEUED, Stage.IN_FLIGHT)


class Requests:
    """The requests of one read, indexed by the bytes that they bring.

    Args:
        pieces: the requests; None to plan them.
        held: ranges of the file that need no request to the store.
    """

    def __init__(
        self,
        needs: FileNeeds,
        storage: RangeStorage,
        pieces: Sequence[Piece] | None = None,
        held: Collection[Range] = (),
    ) -> None:
        self.file = needs.file
        self.storage = storage
        self.is_over = False
        """Whether reading is over."""
        self._numbers = needs.numbers
        pieces = plan_file(needs.groups, needs.file.version.num_bytes) if pieces is None else pieces
        if held:
            pieces = list(fitted_to_held(pieces, needs.groups, held))
        self.by_piece = [
            [Request(needs.file, storage, start, stop, number) for start, stop in piece.requests]
            for number, piece in enumerate(pieces)
        ]
        self._groups = [piece.groups for piece in pieces]
        self._by_start = sorted((each for piece in self.by_piece for each in piece), key=lambda each: each.start)
        self._starts = [each.start for each in self._by_start]
        here = merged(held)
        for each in self._by_start:
            each.is_here = holds(here, (each.start, each.stop))
        self._kept = deque(sorted(range(len(pieces)), key=lambda number: self._groups[number].stop))
        """Pieces, in the order in which they are left behind."""

    def covering(self, start: int, stop: int) -> list[Request] | None:
        """Return the requests that bring some bytes, in file order; None if a byte is not planned, or was dropped."""
        found = []
        place = max(0, bisect_right(self._starts, start) - 1)
        while start < stop:
            request = self._by_start[place] if place < len(self._by_start) else None
            if request is None or not request.start <= start < request.stop or request.stage is Stage.DROPPED:
                return None
            found.append(request)
            start, place = request.stop, place + 1
        return found

    def after(self, request: Request) -> Request | None:
        """Return the next request in the file, which is the order of decoding; None after the last."""
        place = bisect_right(self._starts, request.start)
        return self._by_start[place] if place < len(self._by_start) else None

    @property
    def whole(self) -> Request | None:
        """The request that brings the whole file, if there is one."""
        first = self._by_start[0]
        return first if (first.start, first.stop) == (0, self.file.version.num_bytes) else None

    def before_part(self, request: Request) -> list[Request]:
        """Return the requests of the parts before the one that is read now; each is returned once.

        Row groups are not such parts: their columns are decoded one after the other, over several row groups.
        """
        return [] if self._numbers is not None else self._left_behind(self._groups[request.piece].start)

    def before_group(self, group: int) -> list[Request]:
        """Return the requests that no row group from `group` on needs; each is returned once."""
        return [] if self._numbers is None else self._left_behind(bisect_left(self._numbers, group))

    def _left_behind(self, place: int) -> list[Request]:
        gone: list[Request] = []
        while self._kept and self._groups[self._kept[0]].stop <= place:
            gone += self.by_piece[self._kept.popleft()]
        return gone

    def rest(self) -> list[Request]:
        """Return the requests of all pieces that were not left behind; reading is over."""
        self.is_over = True
        gone = [request for piece in self._kept for request in self.by_piece[piece]]
        self._kept.clear()
        return gone


def joined(requests: Sequence[Request], start: int, stop: int) -> memoryview:
    """Join the bytes of completed, consecutive requests; bytes of a single request are not copied.

    The result must not be written to: a decoder may return what it reads unchanged.
    """
    if len(requests) == 1:
        (only,) = requests
        return memoryview(only.data).toreadonly()[start - only.start : stop - only.start]
    parts = [
        memoryview(each.data)[max(start, each.start) - each.start : min(stop, each.stop) - each.start]
        for each in requests
    ]
    return memoryview(b"".join(parts))
