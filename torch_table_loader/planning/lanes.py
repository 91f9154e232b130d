"""What each lane of a rank reads, and when its batches come."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

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
        name: says where in the job it is; the key of its shuffle windows.
        runs: all its rows.
        padded_from: the first row that is padding; the number of rows if none is.
        skip: rows at its start that were delivered before.
    """

    name: str
    runs: Runs
    padded_from: int
    skip: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class RankPlan:
    """Everything that one rank delivers, batch by batch.

    Full batches come first, from the lanes in turn. Then the tails of the lanes, in lane order, and the padding are
    joined and cut into batches; tail batch t is read by lane t mod lanes.

    Args:
        lanes: the rows of each lane, in reading order.
        padding: rows repeated at the end.
        batch_size: B.
        steps: batches that the rank takes; the rest is dropped.
        name: says which rank of which stage of the epoch this is; part of the keys of shuffle windows.
        counted: False where live rows are not known before reading. Each lane then cuts batches as it reads, the
            consumer joins the last rows of all lanes, and `steps` means nothing.
    """

    lanes: tuple[Runs, ...]
    padding: Runs
    batch_size: int
    steps: int
    name: str = ""
    counted: bool = True
    endless: ClassVar[bool] = False

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

    def schedule(self, start: int = 0) -> Iterator[int]:
        """Yield the lane that each step's batch comes from.

        Args:
            start: the first step.
        """
        left = self.steps - start
        body = self.body_batches
        taken = self.batches_before(start)
        turn = min((done for done, batches in zip(taken, body, strict=True) if done < batches), default=max(body))
        for rank_turn in range(turn, max(body)):
            for lane, batches in enumerate(body):
                if taken[lane] <= rank_turn < batches:
                    if left <= 0:
                        return
                    left -= 1
                    yield lane
        first_tail = max(0, start - sum(body))
        for tail in range(first_tail, first_tail + left):
            yield tail % len(self.lanes)

    def batches_before(self, step: int) -> list[int]:
        """Count the batches that each lane has delivered when the rank has taken `step`.

        Args:
            step: steps taken, at most `steps`.
        """
        body = self.body_batches
        remaining = min(step, self.steps)
        turns = 0
        for batches in sorted(set(body)):
            running = sum(count >= batches for count in body)
            rounds = min(batches - turns, remaining // running)
            turns += rounds
            remaining -= rounds * running
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
        """Return what a lane reads.

        Args:
            lane: which.
            start: batches of the lane that were delivered before.

        Returns:
            Sections, of which all but the very last have a multiple of `batch_size` rows. Where rows are not
            counted there is one, and `start` must be 0.
        """
        size = self.batch_size
        if not self.counted:
            return [self.whole(lane, 0)]
        stop = self.batches_before(self.steps)[lane]
        own = min(stop, self.body_batches[lane])
        result = []
        if start < own:
            result.append(self._body(lane, own, start))
        tails, stream = self._tail_stream()
        for number in range(max(0, start - own), stop - own):
            tail = lane + number * len(self.lanes)
            rows = stream.slice(tail * size, (tail + 1) * size)
            padded_from = min(max(tails.num_rows - tail * size, 0), rows.num_rows)
            result.append(Section(self.tail_name(tail), rows, padded_from))
        return result

    def delivered(self, lane: int, batches: int) -> tuple[Section | None, Runs]:
        """Return what a lane has delivered.

        Args:
            lane: which.
            batches: how many.

        Returns:
            The section of its full batches, `skip` being the rows delivered (None if it has none), and the rows
            of its tail batches, padding left out.
        """
        own = min(batches, self.body_batches[lane])
        last = min(self.batches_before(self.steps)[lane], self.body_batches[lane])
        body = self._body(lane, last, own) if own else None
        size = self.batch_size
        tails = self.tails()
        numbers = range(lane, lane + (batches - own) * len(self.lanes), len(self.lanes))
        return body, Runs.concat([tails.slice(tail * size, (tail + 1) * size) for tail in numbers])

    def whole(self, lane: int, start: int) -> Section:
        """Return all rows of a lane, those of its tail too, `start` batches of which were delivered before."""
        rows = self.lanes[lane]
        return Section(self.lane_name(lane), rows, rows.num_rows, start * self.batch_size)

    def lane_name(self, lane: int) -> str:
        """Name the section of a lane's full batches."""
        return f"lane {lane} of {self.name}"

    def tail_name(self, tail: int) -> str:
        """Name the section of a tail batch."""
        return f"tail {tail} of {self.name}"

    def tails(self) -> Runs:
        """The last ``rows mod batch_size`` rows of each lane, in lane order."""
        size = self.batch_size
        return Runs.concat([lane.slice(lane.num_rows // size * size, lane.num_rows) for lane in self.lanes])

    def _body(self, lane: int, batches: int, start: int) -> Section:
        rows = self.lanes[lane].slice(0, batches * self.batch_size)
        return Section(self.lane_name(lane), rows, rows.num_rows, start * self.batch_size)

    def _tail_stream(self) -> tuple[Runs, Runs]:
        tails = self.tails()
        return tails, Runs.concat([tails, self.padding])
