"""A lane for the caller's own DataLoader; torchdata's StatefulDataLoader can save and restore it."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch

from torch_table_loader.batching.rows import taken
from torch_table_loader.engine.work.lane_work import LaneBatches, LaneMetrics
from torch_table_loader.errors import ConfigError, ResumeError

if TYPE_CHECKING:
    from torch_table_loader.engine.work.lane_work import LaneWork
    from torch_table_loader.planning.stages import Position
    from torch_table_loader.ranges import Fetcher

_MOST_LANES = 1024
"""The most workers that are counted."""


@dataclass(slots=True)
class Taken:
    """The progress of an iterator: batches of its lane that were yielded, including those before it."""

    position: Position
    batches: int


class LaneCounts:
    """What the workers of a caller's own DataLoader have done; each lane's row is written by one process only.

    A forked or spawned worker shares the memory, and any other copy counts by itself.
    """

    def __init__(self) -> None:
        """Start without lanes; their number is not known yet."""
        memory = mmap.mmap(-1, _MOST_LANES * 6 * 8)  # takes no page before it is written to, and no file descriptor
        self._rows = torch.frombuffer(memory, dtype=torch.float64).view(_MOST_LANES, 6)
        """Of each lane: the number of lanes, then the numbers of its `LaneMetrics`."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Pass the memory to a worker that is spawned, and start anew in any other copy."""
        if get_spawning_popen() is None:
            return (LaneCounts, ())
        return super().__reduce_ex__(protocol)

    def note(self, lanes: int, made: LaneMetrics) -> None:
        """Record what one of so many lanes has done since its iterator began."""
        if made.worker < _MOST_LANES:
            numbers = made.rows, made.batches, made.num_bytes, made.seconds_working, made.seconds_collating
            self._rows[made.worker] = torch.tensor((lanes, *numbers), dtype=torch.float64)

    def read(self) -> tuple[LaneMetrics, ...]:
        """Return the statistics of each lane of the newest iterator; nothing if none has begun.

        Raises:
            ConfigError: there are more lanes than can be counted.
        """
        rows = self._rows.tolist()
        lanes = int(rows[0][0])
        if lanes > _MOST_LANES:
            raise ConfigError(
                f"worker_metrics: at most {_MOST_LANES:,} workers of a DataLoader of your own are counted, and there "
                f"are {lanes:,}; make the loader with create_dataloader(...)"
            )
        known = [row[1:] if row[0] == lanes else [0] * 5 for row in rows[:lanes]]  # others are of an older iterator
        return tuple(LaneMetrics(lane, *map(int, numbers[:3]), *numbers[3:]) for lane, numbers in enumerate(known))


class LaneIterator(Iterator[Any]):
    """All batches of a lane; if rows are not counted, its remaining rows are its own last batch."""

    def __init__(self, work: LaneWork, lane: int, taken: Taken, counts: LaneCounts) -> None:
        """Start a lane at `taken`, which counts on.

        The process that made the dataset reads the statistics in `counts`.
        """
        self._work = work
        self._lane = lane
        self._taken = taken
        self._counts = counts
        self._begin(taken.batches)

    def _begin(self, batches: int) -> None:
        start = 0
        if self._work.plan.counted:
            start = batches
        ahead = self._work.fetch_ahead({self._lane: start}, joins=False)
        source = LaneBatches(self._work, self._lane, start, ahead)
        self._source: LaneBatches | None = source
        self._metrics = source.metrics
        self._counts.note(self._work.lanes, self._metrics)
        self._close = weakref.finalize(self, _close, source, ahead)
        self._ready: Iterator[Any] = iter(())
        self._taken.batches = start
        while self._taken.batches < batches:
            next(self)

    def __next__(self) -> Any:
        """Return the next batch."""
        while True:
            for batch in self._ready:
                self._taken.batches += 1
                return batch
            if self._source is None:
                raise StopIteration
            self._refill(self._source)
            self._counts.note(self._work.lanes, self._metrics)

    def _refill(self, source: LaneBatches) -> None:
        """Build the next batches; at the end, those of the remaining rows."""
        if (block := source.next_block()) is not None:
            self._ready = block.taken()
            return
        last = self._last(source)
        self._metrics.batches += len(last)
        self._source, self._ready = None, taken(last)
        self._close()

    def _last(self, source: LaneBatches) -> list[Any]:
        batches, _ = self._work.last_batches(source.rest)
        return [self._work.collated(batch, self._lane, self._taken.batches) for batch in batches]


def _close(source: LaneBatches, ahead: Fetcher | None) -> None:
    source.close()
    if ahead is not None:
        ahead.close()


class WorkersLane(LaneIterator):
    """A lane in a worker process, with its own state; in the caller's process the dataset has the state."""

    def state_dict(self) -> dict[str, int]:
        """Return how many batches of the lane were yielded."""
        return {
            "worker": self._lane,
            "workers": self._work.lanes,
            "epoch": self._work.epoch,
            "batches": self._taken.batches,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state of a lane.

        Raises:
            ResumeError: the state belongs to another lane or epoch.
        """
        own = self.state_dict()
        if different := [name for name in ("worker", "workers", "epoch") if state.get(name) != own[name]]:
            name = different[0]
            raise ResumeError(
                f"the state is of {name} {state.get(name)!r}, and this iterator of {name} {own[name]}; use as many "
                "workers as the saved DataLoader had"
            )
        if state["batches"] != self._taken.batches:
            self._close()
            self._begin(state["batches"])
