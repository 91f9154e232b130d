"""Who makes the batches of lanes: the base of all executors, and the one that has the caller's own thread alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_table_loader.engine.work.lane_work import LaneBatches
from torch_table_loader.fetch.fetch_stats import FetchStats

if TYPE_CHECKING:
    from torch_table_loader.batching.rows import Rows, SizedBatches
    from torch_table_loader.engine.work.lane_work import LaneClock, LaneWork
    from torch_table_loader.fetch.fetcher import Fetcher


_NOTHING_FETCHED = FetchStats()


class LaneExecutor(ABC):
    """Makes the blocks of lanes: in threads, in processes, or in the caller's own thread."""

    @property
    @abstractmethod
    def clocks(self) -> Sequence[LaneClock]:
        """What each lane has done so far."""

    @property
    def fetched(self) -> FetchStats:
        """What was fetched for the lanes so far; the object continues counting."""
        return _NOTHING_FETCHED

    @abstractmethod
    def take(self, lane: int) -> SizedBatches | None:
        """Return a lane's next block of batches; None when the lane is done. Raises what the lane raised."""

    @abstractmethod
    def rest(self, lane: int) -> Rows | None:
        """Return the rows that a lane which is done left over; only where rows are not counted."""

    @abstractmethod
    def close(self, *, is_over: bool = False) -> None:
        """End every thread and process and close every file. May be called more than once.

        Args:
            is_over: nothing is left to take, so that threads may wait for the next epoch.
        """


class CallerExecutor(LaneExecutor):
    """Reads a lane when its batch is asked for, in the thread that asks."""

    def __init__(self, work: LaneWork, start: int, prefetch: int | None) -> None:
        """Prepare the lanes.

        Args:
            work: the rank's.
            start: steps taken before.
            prefetch: batches that are finished together at most; None for those of a decoded run of rows.
        """
        self._work = work
        self._joins = work.joins_tails(start)
        self._lanes, self._ahead = begin_lanes(work, start)
        self._prefetch = prefetch

    @property
    def clocks(self) -> list[LaneClock]:
        """What each lane has done so far."""
        return [lane.clock for lane in self._lanes]

    @property
    def fetched(self) -> FetchStats:
        """What was fetched for the lanes so far."""
        return super().fetched if self._ahead is None else self._ahead.stats

    def take(self, lane: int) -> SizedBatches | None:
        """Read the lane on to its next block; when all lanes are done, their tails make the last batches."""
        block = self._lanes[lane].next_block(self._prefetch)
        if block is not None or not self._joins:
            return block
        self._joins = False
        join_tails(self._work, self._lanes)
        return self._lanes[lane].next_block(self._prefetch)

    def rest(self, lane: int) -> Rows | None:
        """Return the rows that a lane which is done left over."""
        return self._lanes[lane].rest

    def close(self, *, is_over: bool = False) -> None:  # noqa: ARG002 there is no thread to keep
        """Close every file."""
        for lane in self._lanes:
            lane.close()
        if self._ahead is not None:
            self._ahead.close()


def begin_lanes(work: LaneWork, start: int) -> tuple[list[LaneBatches], Fetcher | None]:
    """Begin every lane where the plan is after `start` steps; where rows are not counted, at the lanes' start.

    Returns:
        The lanes, and what fetches their bytes, which must be closed after them; None where nothing is far away.
    """
    joins = work.joins_tails(start)
    begun = dict(enumerate(work.begun(start)))
    ahead = work.fetch_ahead(begun, joins=joins)
    return [LaneBatches(work, lane, batches, ahead, joins=joins) for lane, batches in begun.items()], ahead


def join_tails(work: LaneWork, lanes: Sequence[LaneBatches]) -> None:
    """Make the rank's last batches of what all lanes left over, and let each lane continue with its own of them."""
    for lane in lanes:
        while lane.next_block() is not None:
            msg = "a lane made a full batch after the plan's last"
            raise AssertionError(msg)
    tails = work.tails([lane.rest for lane in lanes if lane.rest is not None])
    for number, lane in enumerate(lanes):
        lane.add_tails(tails[number :: len(lanes)])
