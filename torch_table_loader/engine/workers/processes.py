"""Lanes on the worker processes of a torch DataLoader."""

from __future__ import annotations

import io
import os
import select
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from pickle import PicklingError, UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset, _utils, get_worker_info
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from torch_table_loader.batching.rows import Batches
from torch_table_loader.cancellation import SLICE_S, cancellable
from torch_table_loader.engine.work.lane_work import LaneBatches, LaneMetrics
from torch_table_loader.engine.workers.differences import difference, restored
from torch_table_loader.engine.workers.executor import LaneExecutor, check_home
from torch_table_loader.engine.workers.pickling import pickled_batch, pickled_error
from torch_table_loader.engine.workers.shared_memory import (
    SharedBlock,
    SharedMemoryReceiver,
    SharedMemorySender,
    new_slots,
    shared_memory_named,
    shared_zeros,
)
from torch_table_loader.engine.workers.threads import popped
from torch_table_loader.errors import ConfigError, OutOfMemoryError, WorkerError
from torch_table_loader.forks import OfProcess, settle, this_process
from torch_table_loader.ranges import FetchStats
from torch_table_loader.system import end_with_parent

if TYPE_CHECKING:
    from torch_table_loader.batching.rows import Rows, SizedBatches
    from torch_table_loader.engine.work.lane_work import LaneWork
    from torch_table_loader.ranges import Fetcher
    from torch_table_loader.samples import SampleCounts


@dataclass(slots=True)
class _Message:
    """A message from a worker: rows of a lane, a collated batch, an error, or the end of a lane."""

    lane: int
    metrics: LaneMetrics
    batch: list[Any] | None = None
    error: Any = None
    block: SharedBlock | None = None
    done: bool = False
    worker: int = 0
    fetched: FetchStats | None = None
    """What its worker has fetched so far, if files are remote."""
    counts: Sequence[SampleCounts] = ()
    """What was counted of the batches; empty where samples are rows."""


class _WorkerLanes(IterableDataset[_Message | None]):
    """The lanes of one worker process, one message from each lane in a round, so that no lane runs far ahead.

    Each iteration is an epoch. What a later one changes comes through the worker's pipe.
    """

    def __init__(
        self,
        work: LaneWork,
        begun: Sequence[int],
        marks: torch.Tensor,
        left: torch.Tensor,
        changes: Sequence[Connection],
    ) -> None:
        self._work = work
        self._begun = begun
        self._marks = marks
        self._left = left
        self._changes = changes
        self._is_later = False
        self._sender: SharedMemorySender | None = None

    def __iter__(self) -> Iterator[_Message | None]:
        info = get_worker_info()
        assert info is not None  # noqa: S101 a DataLoader with workers calls this in a worker
        if self._is_later:
            self._work, self._begun, environment = restored(self._changes[info.id].recv_bytes(), self._work)
            _take_over(environment)
        self._is_later = True
        lanes, left = range(info.id, self._work.lanes, info.num_workers), self._left.numpy()
        with cancellable(lambda: bool(left[0])):
            ahead = self._work.fetch_ahead({lane: self._begun[lane] for lane in lanes}, joins=False)
            try:
                for message in self._rounds(lanes, -(-self._work.lanes // info.num_workers), ahead):
                    if message is not None and ahead is not None:
                        message.worker, message.fetched = info.id, ahead.stats
                    yield message
            finally:
                if ahead is not None:
                    ahead.close()

    def _rounds(self, lanes: range, slots: int, ahead: Fetcher | None) -> Iterator[_Message | None]:
        sources: list[Iterator[_Message] | None] = [self._messages(lane, ahead) for lane in lanes]
        sources += [None] * (slots - len(sources))
        working = [0.0] * slots
        while any(source is not None for source in sources):
            for slot, source in enumerate(sources):
                if source is None:
                    yield None
                    continue
                began = time.perf_counter()
                try:
                    message = next(source, None)
                except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 the consumer raises it
                    yield _Message(lanes[slot], LaneMetrics(lanes[slot]), error=pickled_error(error))
                    return
                working[slot] += time.perf_counter() - began
                if message is None:
                    sources[slot] = None
                else:
                    message.metrics = replace(message.metrics, seconds_working=working[slot])
                yield message

    def _messages(self, lane: int, ahead: Fetcher | None) -> Iterator[_Message]:
        """Yield a lane's messages: with the caller's functions one result each, else several batches in a shared block.

        All blocks have one size, so that no lane runs ahead.
        """
        work = self._work
        if work.calls_functions:
            batches = LaneBatches(work, lane, self._begun[lane], ahead)
            while (block := batches.next_block()) is not None:
                yield _Message(lane, batches.metrics, batch=list(map(pickled_batch, block)), counts=block.counts)
        else:
            batches = LaneBatches(work, lane, self._begun[lane], ahead, unit=work.block_batches)
            while (run := batches.next_run(work.block_batches)) is not None:
                yield _Message(lane, batches.metrics, block=self._pack(*run))
        last = _Message(lane, batches.metrics, done=True)
        if batches.rest:
            last.block = self._pack(*batches.rest)
        yield last

    def _pack(self, *parts: Rows) -> SharedBlock:
        if self._sender is None:
            info, number = get_worker_info(), 0
            if info is not None:
                number = info.id
            self._sender = SharedMemorySender(number, self._marks)
        return self._sender.pack(self._work.codec, *parts)


def _begin_worker(environment: dict[str, str], _worker: int) -> None:
    """Follow the training process into its end, and take over its environment: a fork server's is as old as it."""
    end_with_parent()  # torch itself does not see that the parent ended before its worker began
    _take_over(environment)


def _take_over(environment: dict[str, str]) -> None:
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)


def _as_is(message: Any) -> Any:
    return message


_FITS_A_PIPE = 16_000
"""Bytes of what is new in an epoch, at most, so that sending it never waits, not even for a process that has ended."""

_UNREADABLE = (OSError, EOFError, RuntimeError, UnpicklingError, AssertionError)
"""What torch raises where a worker's message does not come whole."""


_BEGINNING = OfProcess(threading.Lock)
"""Of two threads that begin processes, one would fork while torch holds a lock for what the other one shares."""


class _Processes:
    """The worker processes of a rank, with what they share with the consumer. They make one epoch after another."""

    def __init__(self, work: LaneWork, begun: Sequence[int], context: Any) -> None:
        self._work = work
        settle()
        with _BEGINNING.own:
            self._begin(work, begun, context)

    def _begin(self, work: LaneWork, begun: Sequence[int], context: Any) -> None:
        processes = work.servers
        waiting = work.blocks_ahead * -(-work.lanes // processes)
        marks, self._left = new_slots(processes, waiting), shared_zeros(1)
        pipes = [Pipe(duplex=False) for _ in range(processes)]
        self._changes = [sends for _, sends in pipes]
        self._loader: DataLoader[Any] = DataLoader(
            _WorkerLanes(work, begun, marks, self._left, [receives for receives, _ in pipes]),
            batch_size=None,
            num_workers=processes,
            collate_fn=_as_is,
            prefetch_factor=waiting,
            multiprocessing_context=context,
            worker_init_fn=partial(_begin_worker, dict(os.environ)),
            persistent_workers=True,
        )
        self.receiver = SharedMemoryReceiver(marks)
        self.messages = WatchedWorkers(self._loader)
        for receives, _ in pipes:
            receives.close()

    def follow(self, work: LaneWork, begun: Sequence[int]) -> bool:
        """Begin another epoch; return whether the processes can: they live, and what is new is little, and pickles."""
        before = self._work
        fits = (work.servers, work.lanes, work.blocks_ahead) == (before.servers, before.lanes, before.blocks_ahead)
        if not fits or not self.messages.is_of_this_process:
            return False
        change = difference((work, begun, dict(os.environ)), before, _FITS_A_PIPE)
        if change is None:
            return False
        try:
            self.messages._reset(self._loader)
            for pipe in self._changes:
                pipe.send_bytes(change)
        except _UNREADABLE:
            return False
        self._work = work
        return True

    def finish(self) -> bool:
        """Wait until each process has nothing more to send; return False if one failed at its end."""
        try:
            for message in self.messages:
                if message is not None and message.block is not None:
                    self.receiver.unpack(self._work.codec, message.block)
                if message is not None and message.error is not None:
                    return False
        except _UNREADABLE:
            return False
        return True

    def end(self) -> None:
        """End all processes; a forked copy of this leaves them alone."""
        if self.messages.is_of_this_process:
            self._left.fill_(1)  # a worker may be waiting for a store
        self.messages._shutdown_workers()
        for pipe in self._changes:
            pipe.close()


class IdleProcesses:
    """Keeps the worker processes of ended epochs for later ones; they end together with it."""

    def __init__(self) -> None:
        self._idle: list[_Processes] = []
        self._end = weakref.finalize(self, _end_all, self._idle)

    def __reduce__(self) -> tuple[type[IdleProcesses], tuple[()]]:
        """Copy and pickle as one without processes."""
        return IdleProcesses, ()

    def following(self, work: LaneWork, begun: Sequence[int]) -> _Processes | None:
        """Return processes that have begun this work; None if there are none that can."""
        while (processes := popped(self._idle)) is not None:
            if processes.follow(work, begun):
                return processes
            processes.end()
        return None

    def keep(self, processes: _Processes) -> None:
        """Keep processes whose epoch has ended."""
        self._idle.append(processes)

    def shut_down(self) -> None:
        """End the idle processes."""
        _end_all(self._idle)


def _end_all(idle: list[_Processes]) -> None:
    while (processes := popped(idle)) is not None:
        processes.end()


class ProcessExecutor(LaneExecutor):
    """An executor whose worker processes read the lanes; the consumer cuts their blocks into batches."""

    def __init__(self, work: LaneWork, start: int, context: Any, idle: IdleProcesses | None) -> None:
        """Begin with idle processes, or start new ones and send the work to each.

        Args:
            context: the name of a start method, a multiprocessing context, or None for the platform's default.
            idle: where processes wait between epochs; None to start and end them with each.
        """
        self._work = work
        self._idle = idle
        begun = work.begun(start)
        self._ready: list[deque[Rows | list[Any] | BaseException]] = [deque() for _ in begun]
        self._rest: list[list[Rows]] = [[] for _ in begun]
        self._done = [False for _ in begun]
        self._metrics = [LaneMetrics(lane) for lane in range(len(begun))]
        self._fetched = FetchStats()
        self._fetched_by_worker: dict[int, FetchStats] = {}
        processes: _Processes | None = None
        if idle is not None:
            processes = idle.following(work, begun)
        self._processes: _Processes | None = processes or _Processes(work, begun, context)

    @property
    def metrics(self) -> list[LaneMetrics]:
        """Statistics of each lane when its newest message was sent."""
        return self._metrics

    @property
    def fetched(self) -> FetchStats:
        """Statistics of the workers' fetching when their newest messages were sent."""
        return self._fetched

    def take(self, lane: int) -> SizedBatches | None:
        """Receive messages until one is for the lane."""
        ready = self._ready[lane]
        while not ready:
            processes = self._processes
            if self._done[lane] or processes is None:
                return None
            check_home(processes.messages.home)
            try:
                message = next(processes.messages)
            except StopIteration:
                return None
            except _UNREADABLE as error:
                if self._processes is None:  # another thread closed it meanwhile
                    return None
                if isinstance(error, WorkerError | AssertionError):
                    raise
                lost = WorkerError(f"a message of a worker process could not be read: {error!r}")
                raise processes.messages.death() or lost from error
            if message is not None:
                self._sort_in(message, processes.receiver)
        came = ready.popleft()
        if isinstance(came, BaseException):
            raise came
        if isinstance(came, Batches):
            return came
        return self._work.codec.batches_of([[came]], self._work.plan.batch_size)

    def rest(self, lane: int) -> list[Rows]:
        """Return the rows left over by a finished lane."""
        return self._rest[lane]

    def close(self, *, is_over: bool = False) -> None:
        """End all worker processes, unless the next epoch may need them."""
        processes, self._processes = self._processes, None
        for ready in self._ready:
            ready.clear()
        if is_over and processes is not None and self._idle is not None and processes.finish():
            self._idle.keep(processes)
            return
        if processes is not None:
            processes.end()
        if self._idle is not None and not is_over:
            self._idle.shut_down()

    def _sort_in(self, message: _Message, receiver: SharedMemoryReceiver) -> None:
        lane = message.lane
        if message.error is not None:
            self._ready[lane].append(message.error)
            return
        self._metrics[lane] = message.metrics
        if message.fetched is not None:
            self._fetched_by_worker[message.worker] = message.fetched
            self._fetched.become_sum(self._fetched_by_worker.values())
        rows: Rows | None = None
        if message.block is not None:
            rows = receiver.unpack(self._work.codec, message.block)
        if message.done:
            self._done[lane] = True
            self._rest[lane] = [] if rows is None else [rows]
        elif rows is not None:
            self._ready[lane].append(rows)
        elif message.batch is not None:
            self._ready[lane].append(Batches(message.batch, message.counts))


_GRACE_S = 1.0
"""How long workers have to end when they are told to; one that begins, or is in a caller's function, may need more."""

_HINTS: dict[int, str] = {
    signal.SIGKILL: "if the kernel killed it for lack of memory, use fewer workers, a smaller batch_size, "
    'shuffle_buffer_size or prefetch_batches, or worker_type="thread"',
    signal.SIGBUS: "shared memory may be full: make /dev/shm larger (docker run --shm-size=...), use fewer workers or "
    'a smaller prefetch_batches, or worker_type="thread"',
}
_STARTING = (
    "its own message is on stderr; a script that starts workers by spawn or forkserver needs "
    'if __name__ == "__main__": around what it does'
)


class WatchedWorkers(_MultiProcessingDataLoaderIter):
    """The results of a DataLoader's workers, in torch's order."""

    def __init__(self, loader: Any) -> None:
        """Start the workers.

        Raises:
            WorkerError: they cannot be started.
            OutOfMemoryError: there is too little shared memory.
        """
        self.home = this_process()
        try:
            with shared_memory_named():
                super().__init__(loader)
        except OutOfMemoryError:
            self._end_what_began()
            raise
        except (OSError, EOFError, RuntimeError, AssertionError) as error:
            death = self.death()
            self._end_what_began()
            raise death or WorkerError(f"worker processes could not be started: {error!r}") from error
        except (PicklingError, AttributeError, TypeError) as error:
            self._end_what_began()
            raise ConfigError(
                f"what worker processes work on must pickle where they do not start by fork: {error}; "
                'pass worker_type="thread", or functions of a module instead of lambdas'
            ) from error
        except BaseException:
            self._end_what_began()
            raise
        torch._C._remove_worker_pids(id(self))  # torch's handler of SIGCHLD would raise wherever the main thread is
        self._worker_pids_set = False
        self._watch: _Watch | None = None
        if os.name == "posix":
            reader = self._data_queue._reader  # type: ignore[attr-defined]
            self._watch = _Watch(reader.fileno(), self._workers)
            reader._recv = self._watch.read

    @property
    def is_of_this_process(self) -> bool:
        """Whether they are no copy that a fork left to a child."""
        return self.home == this_process()

    def _try_get_data(self, timeout: float = 5.0) -> Any:
        if self._watch is not None:
            self._watch.working = self._workers_status
            self._watch.wait()
        return super()._try_get_data(timeout)  # type: ignore[no-untyped-call]

    def death(self) -> WorkerError | None:
        """Return how a worker ended too early, if one did; its error message may arrive a moment before its end."""
        workers = getattr(self, "_workers", [])
        working = getattr(self, "_workers_status", [True for _ in workers])
        ended = wait([worker.sentinel for worker, works in zip(workers, working, strict=False) if works], timeout=1)
        for worker in workers:
            if worker.sentinel in ended or worker.exitcode:
                return death_of(worker)
        return None

    def _shutdown_workers(self) -> None:
        """End the workers; torch would wait up to 5 seconds for each one that cannot end by itself."""
        if not self.is_of_this_process:
            return
        if not self._shutdown and _utils.python_exit_status is False:
            self._shutdown = True
            self._workers_done_event.set()
            for number, worker in enumerate(self._workers):
                if worker.is_alive():  # it works, or waits for the next epoch
                    self._mark_worker_as_unavailable(number, shutdown=True)
            deadline = time.monotonic() + _GRACE_S
            for worker in self._workers:
                worker.join(max(0.0, deadline - time.monotonic()))
            for worker in self._workers:
                if worker.is_alive():
                    worker.kill()
                    worker.join()
            for queue in self._index_queues:
                queue.cancel_join_thread()
                queue.close()
        super()._shutdown_workers()

    def _end_what_began(self) -> None:
        """End the workers after a failed start; torch itself would fail on attributes that are not set yet."""
        self._shutdown = True
        if getattr(self, "_worker_pids_set", False):
            torch._C._remove_worker_pids(id(self))
            self._worker_pids_set = False
        for worker in getattr(self, "_workers", []):
            worker.kill()
            worker.join()


class _Watch:
    """Waits for data from workers, and notices if one ended too early."""

    def __init__(self, pipe: int, workers: Sequence[Any]) -> None:
        self._pipe = pipe
        self._workers = {worker.sentinel: number for number, worker in enumerate(workers)}
        self._processes = workers
        self.working: Sequence[bool] = [True for _ in workers]
        """Which of them have something left to do in this epoch."""
        self._poll = select.poll()
        for handle in (pipe, *self._workers):
            self._poll.register(handle, select.POLLIN)

    def wait(self) -> None:
        """Return when there is something to read; raise WorkerError if a worker ended early, EOFError if all ended."""
        while True:
            ready = [handle for handle, _ in self._poll.poll(SLICE_S * 1000)]
            if self._pipe in ready:
                return
            for handle in ready:
                number = self._workers.pop(handle)
                if self.working[number]:
                    raise death_of(self._processes[number])
                self._poll.unregister(handle)
            if not self._workers:
                raise EOFError("every worker has ended")

    def read(self, size: int, read: Callable[[int, int], bytes] = os.read) -> io.BytesIO:
        """Read so many bytes, as `multiprocessing.connection.Connection` does."""
        data = io.BytesIO()
        while (left := size - data.tell()) > 0:
            self.wait()
            chunk = read(self._pipe, left)
            if not chunk:
                raise EOFError("the workers' pipe was closed")
            data.write(chunk)
        return data


def death_of(worker: Any) -> WorkerError:
    """Return how a worker ended, whose sentinel says that it did; its exit code is known a moment later."""
    worker.join(1)
    code = worker.exitcode or 0
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        how, hint = f"was killed by {name}", _HINTS.get(-code, "")
    else:
        how, hint = f"ended with code {code}", ""
        if code == 1:
            hint = _STARTING
    message = f"worker process {worker.pid} {how} in the middle of the epoch"
    if hint:
        message += f"; {hint}"
    return WorkerError(message)
