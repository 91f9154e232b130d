"""What to fetch next: the order of delivery, within a budget of bytes. This module uses neither threads nor I/O."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from torch_table_loader.fetch.planned_read import PlannedRead, Request, Requests, Stage


class Task:
    """A planned read that has begun."""

    __slots__ = ("found", "is_sought", "over", "read", "requests")

    def __init__(self, read: PlannedRead) -> None:
        self.read = read
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


def in_order(plans: Iterable[Iterator[PlannedRead]]) -> Iterator[PlannedRead]:
    """Merge the reads of lanes in the order in which their rows are delivered, since lanes take turns."""
    return heapq.merge(*plans, key=lambda read: (read.rows_before, read.lane))


class FetchQueue:
    """Chooses the next job: find out what a read needs, or send a request. Not thread-safe.

    Requests whose bytes are in the disk cache take their turn and their part of the budget like others. But then they
    are set aside: the lane reads them itself when it comes to them, into reused memory.

    Args:
        plan: the reads of all lanes, in the order in which their rows are delivered.
        budget: bytes in flight, or fetched and not left behind yet; requests that a lane waits for come on top.
    """

    def __init__(self, plan: Iterator[PlannedRead], budget: int) -> None:
        self.held = 0
        """Bytes that are set aside, in flight, or fetched and not left behind yet."""
        self._budget = budget
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
                return self._sent(job) if may_send(job) else None
            self._hold(job)
            heapq.heappush(self._aside, ((*self._pieces[0][:2], next(self._numbers)), job))

    def _next_of_plan(self) -> Task | Request | None:
        """Return the next job in the order of delivery; a request only if the budget has room for it."""
        while self._pieces and not _has_queued(self._pieces[0]):
            heapq.heappop(self._pieces)
        piece, read = (self._pieces[0] if self._pieces else None), self._upcoming
        if read is not None and (piece is None or (read.rows_before, read.lane) <= piece[:2]):
            task = self._begin_upcoming()
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
        self._ahead[read.lane].append(task)
        self._upcoming = next(self._plan, None)
        return task

    def _end(self, task: Task) -> None:
        task.over = True
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
