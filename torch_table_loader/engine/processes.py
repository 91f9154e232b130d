"""Lanes on the worker processes of a torch DataLoader."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from torch_table_loader.batching.rebatching import ExactBatches
from torch_table_loader.engine.carrying import carry_batch, carry_error
from torch_table_loader.engine.crossing import Inbox, Outbox, Parcel, new_slots
from torch_table_loader.engine.watch import WatchedWorkers
from torch_table_loader.engine.work import LaneBatches, LaneClock
from torch_table_loader.errors import WorkerError

if TYPE_CHECKING:
    from torch_table_loader.batching.rows import Rows
    from torch_table_loader.engine.roles import LaneWork


@dataclass(slots=True)
class _Message:
    """What crosses from a worker: rows of a lane, a batch that was collated, an error, or the lane's end."""

    lane: int
    clock: LaneClock
    batch: list[Any] | None = None
    error: Any = None
    block: Parcel | None = None
    done: bool = False


class _WorkerLanes(IterableDataset[_Message | None]):
    """The lanes of one worker process, one message a lane in each round, so that no lane runs far ahead."""

    def __init__(self, work: LaneWork, begun: Sequence[int], marks: torch.Tensor) -> None:
        self._work = work
        self._begun = begun
        self._marks = marks
        self._outbox: Outbox | None = None

    def __iter__(self) -> Iterator[_Message | None]:
        info = get_worker_info()
        assert info is not None  # noqa: S101 a DataLoader with workers calls this in a worker
        slots = -(-self._work.lanes // info.num_workers)
        lanes = range(info.id, self._work.lanes, info.num_workers)
        sources: list[Iterator[_Message] | None] = [self._messages(lane) for lane in lanes]
        sources += [None] * (slots - len(sources))
        working = [0.0] * slots
        while any(source is not None for source in sources):
            for slot, source in enumerate(sources):
                began = time.perf_counter()
                try:
                    message = None if source is None else next(source, None)
                except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 the consumer raises it
                    yield _Message(lanes[slot], LaneClock(), error=carry_error(error))
                    return
                working[slot] += time.perf_counter() - began
                if message is None:
                    sources[slot] = None
                else:
                    message.clock = replace(message.clock, working=working[slot])
                yield message

    def _messages(self, lane: int) -> Iterator[_Message]:
        if self._work.collate_fn is not None:
            return self._collated(lane)
        return self._blocks(lane)

    def _collated(self, lane: int) -> Iterator[_Message]:
        """With a `collate_fn`, each result crosses alone."""
        batches = LaneBatches(self._work, lane, self._begun[lane])
        while (block := batches.next_block()) is not None:
            yield _Message(lane, batches.clock, batch=list(map(carry_batch, block)))
        rest = None if batches.rest is None else self._pack(batches.rest)
        yield _Message(lane, batches.clock, block=rest, done=True)

    def _blocks(self, lane: int) -> Iterator[_Message]:
        """Without one, several batches cross as one shared block, as many in each, so that no lane runs ahead."""
        clock = LaneClock()
        size = self._work.plan.batch_size
        block_rows = size * self._work.block_batches
        cutter: ExactBatches[Any] = ExactBatches(self._work.codec, block_rows)
        for rows in self._work.rows(lane, self._begun[lane]):
            clock.rows += rows.num_rows
            clock.num_bytes += rows.num_bytes
            for parts in cutter.push_parts(rows):
                for block in _blocks_of(parts, block_rows):
                    clock.batches += self._work.block_batches
                    yield _Message(lane, clock, block=self._pack(*block))
        rest = cutter.rest()
        if rest is not None and self._work.plan.counted:
            clock.batches += -(-rest.num_rows // size)
            yield _Message(lane, clock, block=self._pack(rest))
            rest = None
        yield from self._uncounted_rest(lane, clock, rest)

    def _uncounted_rest(self, lane: int, clock: LaneClock, rest: Rows | None) -> Iterator[_Message]:
        size = self._work.plan.batch_size
        if rest is not None:
            whole = rest.num_rows // size * size
            if whole:
                clock.batches += whole // size
                yield _Message(lane, clock, block=self._pack(rest.slice(0, whole)))
            rest = rest.slice(whole, rest.num_rows) if whole < rest.num_rows else None
        yield _Message(lane, clock, block=None if rest is None else self._pack(rest), done=True)

    def _pack(self, *parts: Rows) -> Parcel:
        if self._outbox is None:
            info = get_worker_info()
            self._outbox = Outbox(0 if info is None else info.id, self._marks)
        return self._outbox.pack(self._work.codec, *parts)


def _blocks_of(parts: Sequence[Rows], block_rows: int) -> Iterator[Sequence[Rows]]:
    """Cut what `ExactBatches.push_parts` gave: one block in several runs, or one run of several blocks."""
    if len(parts) > 1:
        yield parts
        return
    for start in range(0, parts[0].num_rows, block_rows):
        yield [parts[0].slice(start, start + block_rows)]


def _as_is(message: Any) -> Any:
    return message


class ProcessServer:
    """Worker processes that read the lanes; the consumer cuts their blocks."""

    def __init__(self, work: LaneWork, start: int, processes: int, context: Any) -> None:
        """Start the processes.

        Args:
            work: the rank's; it crosses to each worker.
            start: steps taken before.
            processes: how many serve the lanes.
            context: the name of a start method, a multiprocessing context, or None for the platform's default.
        """
        self._work = work
        begun = work.plan.batches_before(start) if work.plan.counted else [0] * work.lanes
        self._ready: list[deque[Rows | list[Any] | BaseException]] = [deque() for _ in begun]
        self._rest: list[Rows | None] = [None for _ in begun]
        self._done = [False for _ in begun]
        self._clocks = [LaneClock() for _ in begun]
        waiting = work.blocks_ahead * -(-work.lanes // processes)
        marks = new_slots(processes, waiting)
        self._inbox = Inbox(marks)
        loader: DataLoader[Any] = DataLoader(
            _WorkerLanes(work, begun, marks),
            batch_size=None,
            num_workers=processes,
            collate_fn=_as_is,
            prefetch_factor=waiting,
            multiprocessing_context=context,
        )
        self._messages: WatchedWorkers | None = WatchedWorkers(loader)

    @property
    def clocks(self) -> list[LaneClock]:
        """What each lane had done when its newest message left."""
        return self._clocks

    def take(self, lane: int) -> list[Any] | None:
        """Take messages until one is for the lane."""
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
                if self._messages is None:  # closed meanwhile, by another thread
                    return None
                if isinstance(error, WorkerError | AssertionError):
                    raise
                lost = WorkerError(f"a message of a worker process could not be taken: {error!r}")
                raise messages.death() or lost from error
            if message is not None:
                self._sort_in(message)
        came = ready.popleft()
        if isinstance(came, BaseException):
            raise came
        return came if isinstance(came, list) else came.batches(self._work.plan.batch_size)

    def rest(self, lane: int) -> Rows | None:
        """Return the rows that a lane which is done left over."""
        return self._rest[lane]

    def close(self, *, is_over: bool = False) -> None:  # noqa: ARG002 they hold the epoch that they began with
        """End every process."""
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
        rows = None if message.block is None else self._inbox.unpack(self._work.codec, message.block)
        if message.done:
            self._done[lane] = True
            self._rest[lane] = rows
        elif rows is not None:
            self._ready[lane].append(rows)
        elif message.batch is not None:
            self._ready[lane].append(message.batch)
