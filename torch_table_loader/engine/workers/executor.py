"""Executors of lanes: the base class, and the executor that uses only the caller's own thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_table_loader.engine.work.lane_work import LaneBatches
from torch_table_loader.errors import WorkerError
from torch_table_loader.forks import this_process
from torch_table_loader.ranges import FetchStats

if TYPE_CHECKING:
    from torch_table_loader.batching.rows import Rows, SizedBatches
    from torch_table_loader.engine.work.lane_work import LaneMetrics, LaneWork
    from torch_table_loader.ranges import Fetcher


NOTHING_FETCHED = FetchStats()


class LaneExecutor(ABC):
    """Makes the blocks of lanes: in threads, in processes, or in the caller's own thread."""

    @property
    @abstractmethod
    def metrics(self) -> Sequence[LaneMetrics]:
        """Statistics of each lane so far."""

    @property
    def fetched(self) -> FetchStats:
        """Statistics of fetching for the lanes so far; the object continues to count."""
        return NOTHING_FETCHED

    @abstractmethod
    def take(self, lane: int) -> SizedBatches | None:
        """Return a lane's next block of batches; None when the lane is done. Raises the lane's error, if any."""

    @abstractmethod
    def rest(self, lane: int) -> list[Rows]:
        """Return the rows left over by a finished lane, in parts; only if rows are not counted."""

    @abstractmethod
    def close(self, *, is_over: bool = False) -> None:
        """End every thread and process and close every file. May be called more than once.

        Args:
            is_over: whether nothing is left to take, so that threads may wait for the next epoch.
        """


class CallerExecutor(LaneExecutor):
    """Reads a lane when its batch is requested, in the requesting thread."""

    def __init__(self, work: LaneWork, start: int, prefetch: int | None) -> None:
        """Prepare the lanes.

        Args:
            prefetch: the most batches that are finished together; None for those of a decoded run of rows.
        """
        self._work = work
        self._joins = work.joins_tails(start)
        self._lanes, self._ahead = begin_lanes(work, start)
        self._prefetch = prefetch

    @property
    def metrics(self) -> list[LaneMetrics]:
        """Statistics of each lane so far."""
        return [lane.metrics for lane in self._lanes]

    @property
    def fetched(self) -> FetchStats:
        """Statistics of fetching for the lanes so far."""
        if self._ahead is None:
            return super().fetched
        return self._ahead.stats

    def take(self, lane: int) -> SizedBatches | None:
        """Read the lane on to its next block; when all lanes are done, build the last batches from their tails."""
        block = self._lanes[lane].next_block(self._prefetch)
        if block is not None or not self._joins:
            return block
        self._joins = False
        join_tails(self._work, self._lanes, self._ahead)
        return self._lanes[lane].next_block(self._prefetch)

    def rest(self, lane: int) -> list[Rows]:
        """Return the rows left over by a finished lane."""
        return self._lanes[lane].rest

    def close(self, *, is_over: bool = False) -> None:  # noqa: ARG002 there is no thread to keep
        """Close every file."""
        for lane in self._lanes:
            lane.close()
        if self._ahead is not None:
            self._ahead.close()


def check_home(process: int) -> None:
    """Raise WorkerError in a process that was forked from the one that began an epoch, which alone has its threads."""
    if process != this_process():
        raise WorkerError(
            "expected the process that began this iteration, which has its threads or worker processes, and this one "
            "was forked from it; iterate the loader again here: for batch in loader"
        )


def begin_lanes(work: LaneWork, start: int) -> tuple[list[LaneBatches], Fetcher | None]:
    """Start every lane at the plan's position after `start` steps; if rows are not counted, at the lanes' start.

    Returns:
        The lanes, and the fetcher of their bytes, which must be closed after them; None if no file is remote.
    """
    joins = work.joins_tails(start)
    begun = dict(enumerate(work.begun(start)))
    ahead = work.fetch_ahead(begun, joins=joins)
    return [LaneBatches(work, lane, batches, ahead, joins=joins) for lane, batches in begun.items()], ahead


def join_tails(work: LaneWork, lanes: Sequence[LaneBatches], ahead: Fetcher | None) -> None:
    """Build the rank's last batches from the rows left over by all lanes, each of which was read to its end.

    Each lane continues with its own of these batches.
    """
    for lane in lanes:
        while lane.next_block() is not None:
            msg = "a lane made a full batch after the plan's last"
            raise AssertionError(msg)
    tails = work.tails([part for lane in lanes for part in lane.rest], ahead)
    for number, lane in enumerate(lanes):
        lane.rest = []
        lane.add_tails(tails[number :: len(lanes)])
