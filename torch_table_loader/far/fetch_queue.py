"""Planned reads, their requests, and which to send next: the order of delivery, within a budget of bytes.

This module uses neither threads nor I/O.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_table_loader.far.requests import Piece, fitted_to_held, holds, merged, plan_file

if TYPE_CHECKING:
    from torch_table_loader.contracts import RangeStorage
    from torch_table_loader.ranges import PlannedRead, Range
    from torch_table_loader.records import DataFile, FileNeeds, FileVersion


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
        if place < len(self._by_start):
            return self._by_start[place]
        return None

    @property
    def whole(self) -> Request | None:
        """The request that brings the whole file, if there is one."""
        first = self._by_start[0]
        if (first.start, first.stop) == (0, self.file.version.num_bytes):
            return first
        return None

    def before_part(self, request: Request) -> list[Request]:
        """Return the requests of the parts before the one that is read now; each is returned once.

        Row groups are not such parts: their columns are decoded one after the other, over several row groups.
        """
        if self._numbers is not None:
            return []
        return self._left_behind(self._groups[request.piece].start)

    def before_group(self, group: int) -> list[Request]:
        """Return the requests that no row group from `group` on needs; each is returned once."""
        if self._numbers is None:
            return []
        return self._left_behind(bisect_left(self._numbers, group))

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


class Kept(NamedTuple):
    """A file that is here whole."""

    path: str
    data: Any


class Task:
    """A planned read that has begun."""

    __slots__ = ("found", "is_sought", "kept", "over", "read", "requests")

    def __init__(self, read: PlannedRead) -> None:
        self.read = read
        self.kept: Kept | None = None
        """Its file, if that is here."""
        self.is_sought = False
        """Whether some thread is finding out what it needs."""
        self.found = False
        """Whether its needs are known."""
        self.requests: Requests | None = None
        """None before its needs are known, and if nothing is fetched."""
        self.over = False
        """Whether the lane has left it behind."""


_Turn = tuple[int, ...]
"""Ascends in the order of delivery."""


class _Piece(NamedTuple):
    """Requests not sent yet, sorted by the row that needs them first."""

    rows_before: int
    lane: int
    number: int
    queued: deque[Request]


class FetchQueue:
    """Chooses the next job: find out what a read needs, or send a request. Not thread-safe.

    Requests whose bytes are in the disk cache take their turn and their part of the budget like others. But then they
    are set aside: the lane reads them itself when it comes to them, into reused memory.

    Args:
        plan: the reads of all lanes, in the order in which their rows are delivered.
        budget: bytes in flight, or fetched and not left behind yet; requests that a lane waits for come on top.
        kept: files of the plan's own storage that are here whole, by path and version: no job comes of reads of them.
    """

    def __init__(
        self, plan: Iterator[PlannedRead], budget: int, kept: Mapping[tuple[str, FileVersion], Any] | None = None
    ) -> None:
        self.held = 0
        """Bytes that are set aside, in flight, or fetched and not left behind yet."""
        self._budget = budget
        self._kept = kept or {}
        self._aside: list[tuple[_Turn, Request]] = []
        """Requests that lanes will read from the disk cache, in a heap."""
        self._trusts_cache = True
        self._plan = plan
        self._upcoming = next(self._plan, None)
        self._pieces: list[_Piece] = []
        self._numbers = itertools.count()
        self._urgent: deque[Task | Request] = deque()
        self._ahead: defaultdict[int, deque[Task]] = defaultdict(deque)
        """By lane: tasks that the lane has not reached yet."""
        self._current: dict[int, Task] = {}
        self._added: set[Task] = set()

    def take(self, lane: int) -> Task:
        """Return a lane's next read; release what the read before it held."""
        self.end(lane)
        while not self._ahead[lane] and self._upcoming is not None:
            self._urgent.append(self._begin_upcoming())
        if not self._ahead[lane]:
            msg = "a lane reads more than was planned"
            raise AssertionError(msg)
        self._current[lane] = self._ahead[lane].popleft()
        return self._current[lane]

    def end(self, lane: int) -> None:
        """Release what a lane's newest read holds."""
        if (before := self._current.pop(lane, None)) is not None:
            self._end(before)

    def add(self, task: Task, requests: Requests) -> None:
        """Queue a read in addition to the planned ones, with known requests; it belongs to no lane."""
        task.is_sought = True
        self._added.add(task)
        self._queue(task, requests)

    def remove(self, task: Task) -> None:
        """Release what an added read holds."""
        if task in self._added:
            self._added.remove(task)
            self._end(task)

    def want(self, wanted: Task | Request) -> None:
        """Give priority to what a lane waits for."""
        self._urgent.append(wanted)

    def next_job(self, may_send: Callable[[Request], bool]) -> Task | Request | None:
        """Return the next job, which counts as begun: a task whose needs to find, or a request to send.

        `may_send` is asked right before a request is sent that nobody waits for yet.
        """
        while self._urgent:
            wanted = self._urgent.popleft()
            if isinstance(wanted, Task):
                if not wanted.is_sought:
                    wanted.is_sought = True
                    return wanted
            elif wanted.stage is Stage.QUEUED or (wanted.waits and wanted.is_late and wanted.attempts == 1):
                return self._sent(wanted)
        return self._next_in_order(may_send)

    def found(self, task: Task, requests: Requests | None) -> None:
        """Queue what a read needs; with None, nothing is fetched for it."""
        task.found = True
        if requests is not None and not task.over:
            self._queue(task, requests)

    def _queue(self, task: Task, requests: Requests) -> None:
        task.found, task.requests = True, requests
        sizes = [sum(request.num_bytes for request in piece) for piece in requests.by_piece]
        before, total = 0, max(1, sum(sizes))
        for size, piece in zip(sizes, requests.by_piece, strict=True):
            # The rows of a piece are not known here; bytes are a good enough guide to the order.
            rows_before = task.read.rows_before + task.read.rows * before // total
            heapq.heappush(self._pieces, _Piece(rows_before, task.read.lane, next(self._numbers), deque(piece)))
            before += size

    def arrived(self, request: Request, data: Any, error: BaseException | None) -> None:
        """Record how a request ended; if it was sent twice, the first answer counts, and the last failure."""
        request.running -= 1
        if request.stage is Stage.DROPPED:
            self._give_back(request)
        elif request.stage is Stage.IN_FLIGHT and error is None:
            request.stage, request.data = Stage.DONE, data
        elif request.stage is Stage.IN_FLIGHT and not request.running:
            request.stage, request.error = Stage.FAILED, error
            self._give_back(request)

    def read_here(self, requests: Iterable[Request]) -> Request | None:
        """Return the first of some requests that the caller reads from the disk cache; it counts as begun.

        `arrived` or `lost` must then be called with it. None: all the others will arrive by themselves.
        """
        for request in requests:
            if request.is_here and request.stage is Stage.QUEUED:
                return self._sent(request)
        return None

    def lost(self, request: Request) -> None:
        """Record that the disk cache has lost a range: it is sent like others, as are those lost later."""
        self._trusts_cache = request.is_here = False
        request.running -= 1
        if request.stage is Stage.DROPPED:
            self._give_back(request)
        elif request.stage is Stage.IN_FLIGHT and not request.running:
            request.stage, request.attempts = Stage.QUEUED, 0

    def drop(self, requests: Iterable[Request]) -> None:
        """Release the bytes of requests that nobody wants any more; those in flight are released when they end."""
        for request in requests:
            in_flight = request.stage is Stage.IN_FLIGHT
            request.stage, request.data = Stage.DROPPED, None
            if not in_flight:
                self._give_back(request)

    def close(self) -> None:
        """Drop everything."""
        for task in [*self._current.values(), *self._added, *itertools.chain.from_iterable(self._ahead.values())]:
            self._end(task)
        self._added.clear()
        self._pieces.clear()
        self._urgent.clear()
        self._aside.clear()
        self._kept = {}
        self._upcoming = None

    def _next_in_order(self, may_send: Callable[[Request], bool]) -> Task | Request | None:
        while True:
            while self._aside and self._aside[0][1].stage is not Stage.QUEUED:
                heapq.heappop(self._aside)
            if self._aside and not self._trusts_cache and may_send(self._aside[0][1]):
                return self._sent(heapq.heappop(self._aside)[1])
            job = self._next_of_plan()
            if not isinstance(job, Request):
                return job
            if not (job.is_here and self._trusts_cache):
                if may_send(job):
                    return self._sent(job)
                return None
            self._hold(job)
            heapq.heappush(self._aside, ((*self._pieces[0][:2], next(self._numbers)), job))

    def _next_of_plan(self) -> Task | Request | None:
        """Return the next job in the order of delivery; a request only if the budget has room for it."""
        while self._pieces and not _has_queued(self._pieces[0]):
            heapq.heappop(self._pieces)
        piece = self._pieces[0] if self._pieces else None
        while (read := self._upcoming) is not None and (piece is None or (read.rows_before, read.lane) <= piece[:2]):
            task = self._begin_upcoming()
            if not task.found:
                task.is_sought = True
                return task
        if piece is None or (self.held and self.held + piece.queued[0].num_bytes > self._budget):
            return None
        return piece.queued[0]

    def _sent(self, request: Request) -> Request:
        if request.stage is Stage.QUEUED:
            request.stage = Stage.IN_FLIGHT
            self._hold(request)
        request.attempts += 1
        request.running += 1
        return request

    def _begin_upcoming(self) -> Task:
        read = self._upcoming
        assert read is not None  # noqa: S101 the caller looked
        task = Task(read)
        if self._kept and read.file is not None and read.storage is None:
            file = read.file()
            data = self._kept.get((file.path, file.version))
            if data is not None:
                task.kept, task.found, task.is_sought = Kept(file.path, data), True, True
        self._ahead[read.lane].append(task)
        self._upcoming = next(self._plan, None)
        return task

    def _end(self, task: Task) -> None:
        task.over, task.kept = True, None
        if task.requests is not None:
            self.drop(task.requests.rest())

    def _hold(self, request: Request) -> None:
        if not request.is_held:
            request.is_held = True
            self.held += request.num_bytes

    def _give_back(self, request: Request) -> None:
        if request.is_held:
            request.is_held = False
            self.held -= request.num_bytes


def _has_queued(piece: _Piece) -> bool:
    while piece.queued and (piece.queued[0].stage is not Stage.QUEUED or piece.queued[0].is_held):
        piece.queued.popleft()
    return bool(piece.queued)
