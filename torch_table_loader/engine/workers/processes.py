"""Lanes on the worker processes of a torch DataLoader."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from torch_table_loader.batching.rows import Batches, counts_of
from torch_table_loader.cancellation import cancellable
from torch_table_loader.engine.work.lane_work import LaneBatches, LaneClock
from torch_table_loader.engine.workers.executor import LaneExecutor
from torch_table_loader.engine.workers.pickling import pickled_batch, pickled_error
from torch_table_loader.engine.workers.shared_memory import (
    SharedBlock,
    SharedMemoryReceiver,
    SharedMemorySender,
    new_slots,
    shared_zeros,
)
from torch_table_loader.engine.workers.watched_workers import WatchedWorkers
from torch_table_loader.errors import WorkerError
from torch_table_loader.fetch.fetch_stats import FetchStats

if TYPE_CHECKING:
    from torch_table_loader.batching.rows import Rows, SizedBatches
    from torch_table_loader.engine.work.lane_work import LaneWork
    from torch_table_loader.fetch.fetcher import Fetcher
    from torch_table_loader.planning.pack_counts import PackCounts


@dataclass(slots=True)
class _Message:
    """A message from a worker: rows of a lane, a collated batch, an error, or the end of a lane."""

    lane: int
    clock: LaneClock
    batch: list[Any] | None = None
    error: Any = None
    block: SharedBlock | None = None
    done: bool = False
    worker: int = 0
    fetched: FetchStats | None = None
    """What its worker has fetched so far, if files are remote."""
    counts: Sequence[PackCounts] = ()
    """Statistics of packing for the batches, if rows are packed."""


class _WorkerLanes(IterableDataset[_Message | None]):
    """The lanes of one worker process, one message from each lane in a round, so that no lane runs far ahead."""

    def __init__(self, work: LaneWork, begun: Sequence[int], marks: torch.Tensor, left: torch.Tensor) -> None:
        self._work = work
        self._begun = begun
        self._marks = marks
        self._left = left
        self._sender: SharedMemorySender | None = None

    def __iter__(self) -> Iterator[_Message | None]:
        info = get_worker_info()
        assert info is not None  # noqa: S101 a DataLoader with workers calls this in a worker
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
                began = time.perf_counter()
                try:
                    message = None if source is None else next(source, None)
                except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 the consumer raises it
                    yield _Message(lanes[slot], LaneClock(), error=pickled_error(error))
                    return
                working[slot] += time.perf_counter() - began
                if message is None:
                    sources[slot] = None
                else:
                    message.clock = replace(message.clock, working=working[slot])
                yield message

    def _messages(self, lane: int, ahead: Fetcher | None) -> Iterator[_Message]:
        """Yield a lane's messages: with the caller's functions one result each, else several batches in a shared block.

        All blocks have one size, so that no lane runs ahead.
        """
        work = self._work
        if work.calls_functions:
            batches = LaneBatches(work, lane, self._begun[lane], ahead)
            while (block := batches.next_block()) is not None:
                yield _Message(lane, batches.clock, batch=list(map(pickled_batch, block)), counts=counts_of(block))
        else:
            batches = LaneBatches(work, lane, self._begun[lane], ahead, unit=work.block_batches)
            while (run := batches.next_run(work.block_batches)) is not None:
                yield _Message(lane, batches.clock, block=self._pack(*run))
        rest = None if batches.rest is None else self._pack(batches.rest)
        yield _Message(lane, batches.clock, block=rest, done=True)

    def _pack(self, *parts: Rows) -> SharedBlock:
        if self._sender is None:
            info = get_worker_info()
            self._sender = SharedMemorySender(0 if info is None else info.id, self._marks)
        return self._sender.pack(self._work.codec, *parts)


def _take_environment(environment: dict[str, str], _worker: int) -> None:
    """Take over the environment of the training process: that of a fork server is as old as the server."""
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)


def _as_is(message: Any) -> Any:
    return message


class ProcessExecutor(LaneExecutor):
    """An executor whose worker processes read the lanes; the consumer cuts their blocks into batches."""

    def __init__(self, work: LaneWork, start: int, processes: int, context: Any) -> None:
        """Start the processes.

        Args:
            work: the rank's work; it is sent to each worker.
            context: the name of a start method, a multiprocessing context, or None for the platform's default.
        """
        self._work = work
        begun = work.begun(start)
        self._ready: list[deque[Rows | list[Any] | BaseException]] = [deque() for _ in begun]
        self._rest: list[Rows | None] = [None for _ in begun]
        self._done = [False for _ in begun]
        self._clocks = [LaneClock() for _ in begun]
        self._fetched = FetchStats()
        self._fetched_by_worker: dict[int, FetchStats] = {}
        waiting = work.blocks_ahead * -(-work.lanes // processes)
        marks, self._left = new_slots(processes, waiting), shared_zeros(1)
        self._receiver = SharedMemoryReceiver(marks)
        loader: DataLoader[Any] = DataLoader(
            _WorkerLanes(work, begun, marks, self._left),
            batch_size=None,
            num_workers=processes,
            collate_fn=_as_is,
            prefetch_factor=waiting,
            multiprocessing_context=context,
            worker_init_fn=partial(_take_environment, dict(os.environ)),
        )
        self._messages: WatchedWorkers | None = WatchedWorkers(loader)

    @property
    def clocks(self) -> list[LaneClock]:
        """Statistics of each lane when its newest message was sent."""
        return self._clocks

    @property
    def fetched(self) -> FetchStats:
        """Statistics of the workers' fetching when their newest messages were sent."""
        return self._fetched

    def take(self, lane: int) -> SizedBatches | None:
        """Receive messages until one is for the lane."""
        ready = self._ready[lane]
        while not ready:
            messages = self._messages
            if self._done[lane] or messages is None:
                return None
            try:
                message = next(messages)
            except StopIteration:
                return None
            except (OSError, EOFError, RuntimeError, UnpicklingError, AssertionError) as error:
                if self._messages is None:  # another thread closed it meanwhile
                    return None
                if isinstance(error, WorkerError | AssertionError):
                    raise
                lost = WorkerError(f"a message of a worker process could not be read: {error!r}")
                raise messages.death() or lost from error
            if message is not None:
                self._sort_in(message)
        came = ready.popleft()
        if isinstance(came, BaseException):
            raise came
        return came if isinstance(came, list) else self._work.codec.batches_of([[came]], self._work.plan.batch_size)

    def rest(self, lane: int) -> Rows | None:
        """Return the rows left over by a finished lane."""
        return self._rest[lane]

    def close(self, *, is_over: bool = False) -> None:  # noqa: ARG002 they hold the epoch that they began with
        """End all worker processes."""
        self._left.fill_(1)  # a worker may be waiting for a store
        messages, self._messages = self._messages, None
        if messages is not None:
            messages._shutdown_workers()
        for ready in self._ready:
            ready.clear()

    def _sort_in(self, message: _Message) -> None:
        lane = message.lane
        if message.error is not None:
            self._ready[lane].append(message.error)
            return
        self._clocks[lane] = message.clock
        if message.fetched is not None:
            self._fetched_by_worker[message.worker] = message.fetched
            self._fetched.become_sum(self._fetched_by_worker.values())
        rows = None if message.block is None else self._receiver.unpack(self._work.codec, message.block)
        if message.done:
            self._done[lane] = True
            self._rest[lane] = rows
        elif rows is not None:
            self._ready[lane].append(rows)
        elif message.batch is not None:
            self._ready[lane].append(Batches(message.batch, message.counts))
