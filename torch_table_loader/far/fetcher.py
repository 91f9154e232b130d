"""The bytes of an epoch, fetched in the order of delivery, ahead of all lanes that decode them.

Input is a plan of reads, in the order in which their rows are delivered. Threads request from the store what the next
reads need, as far as the budget of bytes reaches. A lane takes its reads one by one, each as a storage whose file is
served from the fetched bytes; a byte that was not planned is requested when it is needed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from typing_extensions import override

from torch_table_loader.arrow.buffers import ReusedBlocks
from torch_table_loader.arrow.ranged_file import open_ranges
from torch_table_loader.cancellation import cancellable, start, unattended, wait_for
from torch_table_loader.contracts import ReleasingStorage
from torch_table_loader.errors import StorageError, WorkerError
from torch_table_loader.far.disk_cache import RangeKey
from torch_table_loader.far.fetch_queue import FetchQueue, Request, Requests, Stage, Task, joined
from torch_table_loader.far.limit import MOST_REQUESTS, Flight, HedgePolicy, InFlightLimit
from torch_table_loader.far.requests import Piece
from torch_table_loader.forks import this_process
from torch_table_loader.ranges import FetchStats, PlannedRead

if TYPE_CHECKING:
    from torch_table_loader.contracts import RangeStorage
    from torch_table_loader.ranges import FetchSettings
    from torch_table_loader.records import DataFile, FileNeeds, FileVersion


_log = logging.getLogger(__name__)


class Fetcher:
    """Fetches what planned reads need, in order, within a budget of bytes; lanes share it."""

    def __init__(
        self,
        storage: RangeStorage,
        plan: Iterator[PlannedRead],
        settings: FetchSettings,
    ) -> None:
        self.stats = FetchStats()
        self._home = this_process()
        self._storage = storage
        self._place = storage.place
        self._queue = FetchQueue(plan, settings.ahead_bytes, settings.kept)
        self._limit = _LEARNED[self._place].heir() if self._place in _LEARNED else InFlightLimit()
        self._hedging = HedgePolicy()
        self._cache = settings.cache
        self._blocks = ReusedBlocks()
        """Memory for what lanes read from the disk cache."""
        self._stores: list[tuple[RangeStorage, int]] = [(storage, storage.traffic().retries)]
        """Each storage in use, and its earlier number of retries."""
        self._threads = self._idle = 0
        self._closed = False
        self._writing: set[int] = set()
        """Threads that write bytes to the disk cache."""
        lock = threading.RLock()  # the garbage collector may close this wherever it runs
        self._wanted = threading.Condition(lock)
        """Notified when there may be something to do."""
        self._arrived = threading.Condition(lock)
        with lock:
            self._grow()

    def next_read(self, lane: int) -> ReadStorage:
        """Return the storage for a lane's next read; release what the read before it held."""
        with self._wanted:
            self._check_open()
            task = self._queue.take(lane)
            self._wanted.notify()
        return ReadStorage(self, self._storage_of(task), task)

    def end(self, lane: int) -> None:
        """Release what a lane's newest read holds."""
        if self._is_copy:
            return
        with self._wanted:
            self._queue.end(lane)
            self._wanted.notify()

    def add(self, requests: Requests, rows_before: int) -> Task:
        """Start a read in addition to the planned ones, in the turn that its `rows_before` gives; `remove` ends it."""
        task = Task(PlannedRead(rows_before, 0, 0, lambda: None))
        with self._wanted:
            self._check_open()
            self._know(requests.storage)
            self._queue.add(task, requests)
            self._wanted.notify()
            self._grow()
        return task

    def remove(self, task: Task) -> None:
        """Release what an added read holds, and wake the threads that wait for it."""
        if self._is_copy:
            return
        with self._wanted:
            self._queue.remove(task)
            self._wanted.notify()
            self._arrived.notify_all()

    def close(self) -> None:
        """Drop fetched bytes, cancel queued requests, and end the threads; one that waits for the store ends later.

        Bytes that arrived are in the disk cache by then: the next epoch finds them there.
        """
        if self._is_copy:
            return
        with self._wanted:
            self._closed = True
            _LEARNED[self._place] = self._limit
            self._queue.close()
            self._blocks.close()
            self._wanted.notify_all()
            self._arrived.notify_all()
            self._arrived.wait_for(lambda: not self._writing - {threading.get_ident()}, _WRITING_S)

    def release(self, task: Task, group: int) -> None:
        """Release what only the row groups before one need, which are decoded."""
        with self._wanted:
            if task.requests is not None and (gone := task.requests.before_group(group)):
                self._queue.drop(gone)
                self._wanted.notify()

    def took(self, num_bytes: int) -> None:
        """Count bytes of a file that was here."""
        with self._wanted:
            self._check_open()
            self.stats.cached_bytes += num_bytes

    def requests_of(self, task: Task) -> Requests | None:
        """Wait until it is known what a read needs; None if nothing is fetched for it."""
        with self._wanted:
            if not task.found:
                self._queue.want(task)
                self._wait(lambda: task.found)
            return task.requests

    def read(self, requests: Requests, start: int, stop: int) -> Any:
        """Wait for bytes of a read's file, and return them.

        Raises:
            TableError: the file is missing or changed.
            StorageError: the store failed, or the epoch was abandoned meanwhile.
        """
        while (request := self._begun_here(requests, start, stop)) is not None:
            self._read_here(request, requests.after(request))
        with self._wanted:
            self._check_open(requests)
            covering = requests.covering(start, stop)
            if covering is not None:
                for request in covering:
                    self._wait_for(request)
                self._check_open(requests)
                if all(request.stage is Stage.DONE for request in covering):  # none was left behind meanwhile
                    return joined(covering, start, stop)
            self.stats.unplanned += 1
            self.stats.requests += 1
            self.stats.num_bytes += stop - start
        return requests.storage.read_range(requests.file.path, start, stop, requests.file.version)

    def _begun_here(self, requests: Requests, start: int, stop: int) -> Request | None:
        """Release the parts before these bytes; return a request for them that this thread should do itself."""
        with self._wanted:
            self._check_open(requests)
            covering = requests.covering(start, stop)
            if covering is None:
                return None
            if gone := requests.before_part(covering[0]):
                self._queue.drop(gone)
                self._wanted.notify()
            request = self._queue.read_here(covering)
            if request is not None:
                request.began = time.monotonic()
            return request

    def _read_here(self, request: Request, following: Request | None) -> None:
        """Read from the disk cache in the decoding thread: handing it over costs more than the read."""
        data, error = None, None
        try:
            if self._cache is not None:
                if following is not None and following.is_here:
                    self._cache.expect(self._key(following))
                data = self._cache.get(self._key(request), self._blocks.new)
        except BaseException as caught:  # noqa: BLE001 raised where the bytes are waited for
            error = caught
        with self._wanted:
            if data is None and error is None:
                self._queue.lost(request)
            else:
                self._count(request, cached=data is not None, served=error is None)
                self._queue.arrived(request, data, error)
            self._arrived.notify_all()
            if request.stage is not Stage.DONE:  # otherwise no fetching thread could do anything now
                self._wanted.notify()

    def _key(self, request: Request) -> RangeKey:
        return RangeKey(request.storage.place, request.file.path, request.file.version, request.start, request.stop)

    def _wait_for(self, request: Request) -> None:
        if request.stage is Stage.QUEUED:
            self._queue.want(request)
        while request.waits:
            left = self._seconds_until_late(request)
            if left is not None and left <= 0 and self._hedging.take():
                request.is_late = True
                self._queue.want(request)
                left = None
            self._wait(lambda: not request.waits, left if left is None or left > 0 else _LOOK_AGAIN_S)
        if request.error is not None:
            raise request.error

    def _seconds_until_late(self, request: Request) -> float | None:
        """Return in how many seconds to check whether a request is late; None if that is already known."""
        if request.is_late:
            return None
        after = self._hedging.late_after(request.num_bytes)
        if request.stage is Stage.QUEUED or after is None:  # other requests that end meanwhile define what is late
            return _LOOK_AGAIN_S
        return request.began + after - time.monotonic()

    def _wait(self, over: Callable[[], bool], timeout: float | None = None) -> None:
        began = time.monotonic()
        self._wanted.notify()
        self._grow()
        wait_for(self._arrived, lambda: over() or self._closed, timeout)
        self.stats.seconds_waiting += time.monotonic() - began
        self._check_open()

    @property
    def _is_copy(self) -> bool:
        """Whether a fork left this to a process that has none of its threads, and may only drop it."""
        return self._home != this_process()

    def _check_open(self, requests: Requests | None = None) -> None:
        if self._closed or (requests is not None and requests.is_over):
            raise StorageError("the epoch was abandoned while its bytes were being fetched; iterate the loader again")

    def _grow(self) -> None:
        """Start a thread if all are busy."""
        if not self._idle and self._threads < MOST_REQUESTS and not self._closed:
            self._threads += 1
            try:
                start(threading.Thread(target=self._run, name="table-loader-fetch", daemon=True))
            except WorkerError:
                self._threads -= 1
                if not self._threads:  # else those that there are do the work
                    raise

    def _run(self) -> None:
        with unattended(), cancellable(lambda: self._closed):
            while (job := self._next_job()) is not None:
                job()
                del job  # what it holds must not live until the next one comes

    def _next_job(self) -> Callable[[], None] | None:
        """Wait for something to do; None when the epoch is over."""
        with self._wanted:
            while not self._closed:
                job = self._begun_job()
                if job is not None:  # there may be more: each thread wakes or starts the next
                    self._wanted.notify()
                    self._grow()
                    return job
                self._idle += 1
                self._wanted.wait()
                self._idle -= 1
            self._threads -= 1
            return None

    def _begun_job(self) -> Callable[[], None] | None:
        now, flights = time.monotonic(), []

        def may_send(request: Request) -> bool:
            flight = self._limit.begin(request.num_bytes, now)
            if flight is not None:
                flights.append(flight)
            return flight is not None

        job = self._queue.next_job(may_send)
        if not isinstance(job, Request):
            if job is None:
                return None
            return partial(self._find, job)
        if job.attempts == 1:
            job.began = now
        else:
            self.stats.hedges += 1
        return partial(self._fetch, job, flights[0] if flights else None)

    def _find(self, task: Task) -> None:
        requests = None
        try:
            if (needs := task.read.find()) is not None:
                storage = self._storage_of(task)
                requests = Requests(needs, storage, held=self._held(needs.file, storage))
        except Exception as error:  # noqa: BLE001 the lane does the same when it reads, and raises it
            _log.debug("could not find out which bytes a read needs: %s", type(error).__name__)
        with self._wanted:
            if requests is not None:
                self._know(requests.storage)
            self._queue.found(task, requests)
            self._arrived.notify_all()
            self._wanted.notify()

    def _storage_of(self, task: Task) -> RangeStorage:
        return task.read.storage or self._storage

    def _know(self, storage: RangeStorage) -> None:
        """Record a storage that is in use; the lock is held."""
        if all(storage is not known for known, _ in self._stores):
            self._stores.append((storage, storage.traffic().retries))

    def _held(self, file: DataFile, storage: RangeStorage) -> list[tuple[int, int]]:
        """Return the ranges of a file that the disk cache has."""
        if self._cache is None:  # the name of a place takes a hash of its options
            return []
        held: list[tuple[int, int]] = self._cache.ranges(RangeKey(storage.place, file.path, file.version, 0, 0))
        return held

    def _fetch(self, request: Request, flight: Flight | None) -> None:
        file, data, error, cached = request.file, None, None, False
        key = None if self._cache is None else self._key(request)  # costs a tenth of a small request
        try:
            data = None if self._cache is None or key is None else self._cache.get(key)
            cached = data is not None
            if not cached:
                data = request.storage.read_range(file.path, request.start, request.stop, file.version)
        except BaseException as caught:  # noqa: BLE001 the lane that wants them raises it
            error = caught
        with self._wanted:
            self._count(request, cached=cached, served=error is None)
            self._learn(request, flight, cached=cached, served=error is None)
            self._queue.arrived(request, data, error)
            keeps = key is not None and not cached and error is None
            if keeps:
                self._writing.add(threading.get_ident())
            self._arrived.notify_all()
            self._wanted.notify()
        _log.debug("%s: requested bytes %d to %d", file.name, request.start, request.stop)
        if keeps and key is not None:
            self._keep(key, data)

    def _keep(self, key: RangeKey, data: Any) -> None:
        try:
            if self._cache is not None:
                self._cache.put(key, data)
        finally:
            with self._wanted:
                self._writing.discard(threading.get_ident())
                self._arrived.notify_all()

    def _count(self, request: Request, *, cached: bool, served: bool) -> None:
        stats = self.stats
        stats.retries = sum(storage.traffic().retries - before for storage, before in self._stores)
        if cached:
            stats.cached_bytes += request.num_bytes
        elif served:
            stats.requests += 1
            stats.num_bytes += request.num_bytes

    def _learn(self, request: Request, flight: Flight | None, *, cached: bool, served: bool) -> None:
        """Report the outcome of a request to the limit and to hedging."""
        now = time.monotonic()
        if flight is not None:
            if cached:
                self._limit.cancelled(flight)
            elif served:
                self._limit.ended(flight, now)
            else:
                self._limit.failed(flight, now)
        if served and not cached and request.waits:
            self._hedging.ended(now - request.began, request.num_bytes)


class ReadStorage(ReleasingStorage):
    """The storage of one read: its file is served from the fetched bytes, and any other from the underlying storage.

    Closing it releases what the read holds; the underlying storage stays open for others.
    """

    is_local = False

    def __init__(self, ahead: Fetcher, storage: RangeStorage, task: Task) -> None:
        self._ahead = ahead
        self._storage = storage
        self._task = task

    @override
    def open(self, path: str) -> pa.NativeFile:
        kept = self._task.kept
        if kept is not None and kept.path == path:
            self._ahead.took(len(kept.data))
            return pa.BufferReader(kept.data)
        requests = self._ahead.requests_of(self._task)
        if requests is None or requests.file.path != path:
            return self._storage.open(path)
        if requests.whole is not None:
            return pa.BufferReader(self._ahead.read(requests, 0, requests.file.version.num_bytes))
        return open_ranges(partial(self._ahead.read, requests), requests.file.version.num_bytes)

    @override
    def version(self, path: str) -> FileVersion:
        return self._storage.version(path)

    @override
    def release(self, group: int) -> None:
        self._ahead.release(self._task, group)

    @override
    def close(self) -> None:
        self._ahead.end(self._task.read.lane)


class FileParts:
    """Parts of one file, taken in order; taking a part releases those before it."""

    def __init__(self, fetcher: Fetcher, requests: Requests, rows_before: int) -> None:
        self._fetcher = fetcher
        self._requests = requests
        self._task = fetcher.add(requests, rows_before)

    def read(self, start: int, stop: int) -> Any:
        """Wait for bytes of the parts, and return them."""
        return self._fetcher.read(self._requests, start, stop)

    def close(self) -> None:
        """Release what they hold, and cancel queued requests; threads that wait for them get a StorageError."""
        self._fetcher.remove(self._task)


class PartsAhead:
    """Requests parts of a store's files (implements `ranges.PartsReader`); threads share it.

    The epoch's fetcher sends the requests; it may also fetch files of other stores.
    """

    def __init__(self, fetcher: Fetcher, storage: RangeStorage) -> None:
        self._fetcher = fetcher
        self._storage = storage

    def expect(self, needs: FileNeeds, rows_before: int) -> FileParts:
        """Request parts of a file, with one request each: of each group of `needs` its one range, in this order."""
        pieces = [Piece(tuple(group), range(number, number + 1)) for number, group in enumerate(needs.groups)]
        return FileParts(self._fetcher, Requests(needs, self._storage, pieces), rows_before)


@contextmanager
def reading_parts(storage: RangeStorage, settings: FetchSettings) -> Iterator[PartsAhead]:
    """Yield a reader of parts of a store's files, and close it at the end of the block."""
    with closing(Fetcher(storage, iter(()), settings)) as fetcher:
        yield PartsAhead(fetcher, storage)


_LOOK_AGAIN_S = 0.05

_WRITING_S = 5.0
"""How long the end of an epoch waits for a local disk."""

_LEARNED: dict[str, InFlightLimit] = {}
"""By store: what its requests have taught this process."""
