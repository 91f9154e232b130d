"""What each lane of a rank reads, and in which turn its batches come."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torch_table_loader.planning.runs import Runs

if TYPE_CHECKING:
    from numpy.typing import NDArray


def longest_first(weights: NDArray[np.int64], lanes: int) -> NDArray[np.int64]:
    """Assign pieces to lanes by longest processing time first (Graham 1969).

    Args:
        weights: int64[N], in the epoch's order.
        lanes: how many.

    Returns:
        int64[N]: the lane of each piece; the heaviest goes first, to the lane with the least load, ties to the
        earlier piece and the lower lane.

    >>> longest_first(np.array([5, 1, 4, 3]), 2).tolist()
    [0, 0, 1, 1]
    """
    lane_of = np.zeros(len(weights), dtype=np.int64)
    if lanes == 1:
        return lane_of
    loads = [(0, lane) for lane in range(lanes)]
    heaviest = np.argsort(-weights, kind="stable")
    for piece, weight in zip(heaviest.tolist(), weights[heaviest].tolist(), strict=True):
        load, lane = loads[0]
        lane_of[piece] = lane
        heapq.heapreplace(loads, (load + weight, lane))
    return lane_of


@dataclass(frozen=True, slots=True)
class Section:
    """Consecutive rows of a lane inside which shuffle windows begin anew.

    Args:
        name: "lane 3" for its full batches, "tail 5" for the rank's tail batch 5.
        runs: all its rows.
        padded_from: the first of them that is padding (their number if none is).
        skip: rows at its start that were delivered before.
    """

    name: str
    runs: Runs
    padded_from: int
    skip: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class RankPlan:
    """Everything that one rank delivers in an epoch, batch by batch.

    Full batches come from the lanes in turn; then come the tails of the lanes, in lane order, and the padding,
    joined and cut into batches, tail batch t being read by lane t mod lanes.

    Args:
        lanes: the rows of each lane, in reading order.
        padding: rows repeated at the end.
        batch_size: B.
        steps: batches that the rank takes; the rest is dropped.
        counted: False where live rows are not known before reading. Lanes are then cut as they come, the last
            rows of each being joined by the consumer, and `steps` is meaningless.
    """

    lanes: tuple[Runs, ...]
    padding: Runs
    batch_size: int
    steps: int
    counted: bool = True

    @property
    def body_batches(self) -> list[int]:
        """Full batches of each lane on its own."""
        return [lane.num_rows // self.batch_size for lane in self.lanes]

    @property
    def own_rows(self) -> int:
        """Rows of the lanes, whether or not they are delivered; no padding."""
        return sum(lane.num_rows for lane in self.lanes)

    @property
    def num_rows(self) -> int:
        """Rows delivered, padding included."""
        total = self.own_rows + self.padding.num_rows
        return min(total, self.steps * self.batch_size)

    def schedule(self) -> Iterator[int]:
        """Yield the lane that each step's batch comes from."""
        left = self.steps
        body = self.body_batches
        for turn in range(max(body, default=0)):
            for lane, batches in enumerate(body):
                if turn < batches:
                    if not left:
                        return
                    left -= 1
                    yield lane
        for tail in range(left):
            yield tail % len(self.lanes)

    def batches_before(self, step: int) -> list[int]:
        """Count the batches that each lane has delivered when the rank has taken `step`.

        Args:
            step: steps taken, at most `steps`.
        """
        body = self.body_batches
        step = min(step, self.steps)
        taken = [0] * len(body)
        turns, remaining = 0, step
        for batches in sorted(set(body)):
            running = [lane for lane, count in enumerate(body) if count >= batches]
            rounds = min(batches - turns, remaining // len(running))
            turns += rounds
            remaining -= rounds * len(running)
            if turns < batches:
                break
        taken = [min(count, turns) for count in body]
        for lane, count in enumerate(body):
            if remaining and count > turns:
                taken[lane] += 1
                remaining -= 1
        for lane in range(len(body)):
            taken[lane] += len(range(lane, remaining, len(body)))
        return taken

    def sections(self, lane: int, start: int = 0) -> list[Section]:
        """Say what a lane reads.

        Args:
            lane: which.
            start: batches of the lane that were delivered before.

        Returns:
            Sections of which all but the very last have a multiple of `batch_size` rows. Where rows are not
            counted there is one, and `start` must be 0 or the rows are read and left out.
        """
        size = self.batch_size
        if not self.counted:
            return [Section(f"lane {lane}", self.lanes[lane], self.lanes[lane].num_rows, start * size)]
        stop = self.batches_before(self.steps)[lane]
        own = min(stop, self.body_batches[lane])
        result = []
        if start < own:
            body = self.lanes[lane].slice(0, own * size)
            result.append(Section(f"lane {lane}", body, body.num_rows, start * size))
        tails = self.tails()
        stream = Runs.concat([tails, self.padding])
        for number in range(max(0, start - own), stop - own):
            tail = lane + number * len(self.lanes)
            rows = stream.slice(tail * size, (tail + 1) * size)
            padded_from = min(max(tails.num_rows - tail * size, 0), rows.num_rows)
            result.append(Section(f"tail {tail}", rows, padded_from))
        return result

    def tails(self) -> Runs:
        """The last ``rows mod batch_size`` rows of each lane, in lane order."""
        size = self.batch_size
        return Runs.concat([lane.slice(lane.num_rows // size * size, lane.num_rows) for lane in self.lanes])


__all__ = ["RankPlan", "Section", "longest_first"]
