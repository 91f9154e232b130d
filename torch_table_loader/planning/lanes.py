"""What each lane of a rank reads, and when its batches are delivered."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, cycle, islice, pairwise, repeat
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from torch_table_loader.planning.file_batches import batch_ends, first_row, num_batches
from torch_table_loader.planning.runs import NO_RUNS, Hands, Runs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.window_sizes import WindowSizes


def longest_first(weights: NDArray[np.int64], lanes: int) -> NDArray[np.int64]:
    """Assign pieces to lanes by longest processing time first (Graham 1969); return int64[N], the lane of each.

    The heaviest piece goes first, to the lane with the least load; ties go to the earlier piece and the
    lower lane.

    Args:
        weights: int64[N], in the epoch's order.

    >>> longest_first(np.array([5, 1, 4, 3]), 2).tolist()
    [0, 0, 1, 1]
    """
    lane_of = np.zeros(len(weights), dtype=np.int64)
    if lanes == 1 or not len(weights):
        return lane_of
    heaviest = np.argsort(-weights, kind="stable")
    most = int(weights[heaviest[0]])
    alike = int(np.count_nonzero(weights == most)) if most else 0  # most pieces, where splits are cut to a target
    lane_of[heaviest[:alike]] = np.arange(alike, dtype=np.int64) % lanes
    # load · lanes + lane: one number compares faster than a pair
    loads = [len(range(lane, alike, lanes)) * most * lanes + lane for lane in range(lanes)]
    heapq.heapify(loads)
    rest = heaviest[alike:]
    taken = [heapq.heapreplace(loads, loads[0] + weight * lanes) for weight in weights[rest].tolist()]
    lane_of[rest] = [load % lanes for load in taken]
    return lane_of


def longest_first_of_hands(weights: NDArray[np.int64], borders: NDArray[np.int64], lanes: int) -> NDArray[np.int64]:
    """Do the same for each of some hands: return int64[N], the lane of each piece; for `borders` see `Hands`."""
    return np.concatenate([weights[:0], *(longest_first(each, lanes) for each in np.split(weights, borders[1:-1]))])


def in_turn(batches: Sequence[int], steps: int) -> list[int]:
    """Return how many batches each lane has delivered after some steps, tails included.

    Lanes take turns while they have batches of their own; then each delivers tails.

    Args:
        batches: each lane's own.

    >>> in_turn([3, 1], 3), in_turn([3, 1], 5)
    ([2, 1], [4, 1])
    """
    turns, remaining = 0, steps
    for most in sorted(set(batches)):
        running = sum(count >= most for count in batches)
        rounds = min(most - turns, remaining // running)
        turns += rounds
        remaining -= rounds * running
        if turns < most:
            break
    taken = [min(count, turns) for count in batches]
    for lane, count in enumerate(batches):
        if remaining and count > turns:
            taken[lane] += 1
            remaining -= 1
    for lane in range(len(batches)):
        taken[lane] += len(range(lane, remaining, len(batches)))
    return taken


def lane_name(lane: int, rank: str) -> str:
    """Name the section of a lane's full batches."""
    return f"lane {lane} of {rank}"


@dataclass(frozen=True, slots=True)
class Section:
    """Consecutive rows of a lane inside which shuffle windows start over.

    Args:
        name: identifies its position in the job; the key of its shuffle windows.
        padded_from: the first row that is padding; the number of rows if there is none.
        skip: rows at its start that were already delivered.
        apart: whether windows also start over at each piece.
        windows: what shuffle windows have; None if rows come as they are read.
        dealt: rows of the batches to which windows deal their rows; see `Window`.
        stop: where rows are no longer delivered, though they belong to the windows; None: all are delivered.
    """

    name: str
    runs: Runs
    padded_from: int
    skip: int = 0
    apart: bool = False
    windows: WindowSizes | None = None
    dealt: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RankPlan:
    """Everything that one rank delivers, batch by batch.

    Full batches come first, from the lanes in turn. Then the tails of the lanes, in lane order, and the padding are
    joined and cut into batches; lane t mod lanes reads tail batch t. If batches end with pieces, lanes have no tails,
    and each tail batch consists of padding.

    Args:
        steps: batches that the rank takes; the rest are dropped.
        name: identifies the rank and the stage of the epoch; part of the keys of shuffle windows.
        counted: False if live rows are not known before reading. Each lane then cuts batches as it reads, the consumer
            joins the last rows of all lanes, and `steps` has no meaning.
        by_file: whether a batch ends where a piece ends, so that no batch has rows of two files.
        windows: what shuffle windows have; None if rows come as they are read.
        deals: whether windows deal their rows to batches; see `Window`.
        planned_steps: the steps of the plan, of which a stage that ends early takes fewer; None: `steps`.
    """

    lanes: tuple[Runs, ...]
    padding: Runs
    batch_size: int
    steps: int
    name: str = ""
    counted: bool = True
    by_file: bool = False
    windows: WindowSizes | None = None
    deals: bool = False
    planned_steps: int | None = None
    body_batches: list[int] = field(init=False)
    """Each lane's own batches: the full ones, or all if batches end with pieces."""
    endless: ClassVar[bool] = False
    real_at_end: ClassVar[int] = -1

    def __post_init__(self) -> None:
        """Count the batches of each lane."""
        size = self.batch_size
        batches = [num_batches(lane, size) if self.by_file else lane.num_rows // size for lane in self.lanes]
        object.__setattr__(self, "body_batches", batches)

    @property
    def most_of_window(self) -> int:
        """The most rows of a shuffle window; 0 if there is none."""
        if self.windows is None:
            return 0
        return self.windows.most

    @property
    def own_rows(self) -> int:
        """Rows of the lanes, delivered or not; no padding."""
        return sum(lane.num_rows for lane in self.lanes)

    @property
    def num_rows(self) -> int:
        """Rows delivered, padding included."""
        return self.rows_before(self.steps)

    def rows_before(self, step: int) -> int:
        """Count the rows that the rank has delivered after `step` of its steps, padding included."""
        step = min(step, self.steps)
        if not self.by_file:
            return min(self.own_rows + self.padding.num_rows, step * self.batch_size)
        own = [min(pair) for pair in zip(self.batches_before(step), self.body_batches, strict=True)]
        padding = first_row(self.padding, self.batch_size, step - sum(own))
        return padding + sum(self._first_row(lane, batches) for lane, batches in enumerate(own))

    def first_batch_of(self, lane: int, piece: int) -> int:
        """Count the batches of a lane before the one that a piece begins, if batches end with pieces."""
        if piece:
            return int(batch_ends(self.lanes[lane], self.batch_size)[piece - 1])
        return 0

    def piece_rows(self, lane: int, start: int) -> Iterator[int]:
        """Yield the rows of each non-empty piece that a lane reads after `start` batches of it.

        If batches end with pieces, one ends after each.
        """
        for section in self.sections(lane, start):
            stop = section.runs.num_rows if section.stop is None else section.stop
            rows = section.runs.slice(section.skip, stop)
            length = rows.stop - rows.start
            yield from length[length > 0].tolist()

    def up_to(self, steps: int) -> RankPlan:
        """Return a plan of at most so many steps, which are the first ones of this plan.

        Windows are those of this plan, so that whoever plans what is left of an open one need not know of its end.
        """
        return replace(self, steps=min(self.steps, steps), planned_steps=self.planned_steps or self.steps)

    def schedule(self, start: int = 0) -> Iterator[int]:
        """Yield the lane that each step's batch comes from, with no step in Python for most."""
        body, taken = self.body_batches, self.batches_before(start)
        turns = []
        for turn, following in pairwise(sorted({*taken, *body})):
            if lanes := [lane for lane, done in enumerate(taken) if done <= turn < body[lane]]:
                turns.append(repeat(lanes, following - turn))
        rank_turns = chain.from_iterable(chain.from_iterable(turns))
        first_tail = max(0, start - sum(body)) % len(self.lanes)
        tails = islice(cycle(range(len(self.lanes))), first_tail, None)
        return islice(chain(rank_turns, tails), max(0, self.steps - start))

    def batches_before(self, step: int) -> list[int]:
        """Count the batches that each lane has delivered after `step` steps of the rank."""
        return in_turn(self.body_batches, min(step, self.steps))

    def sections(self, lane: int, start: int = 0) -> list[Section]:
        """Return the sections that a lane reads after `start` batches of it, each of whole batches.

        Only the very last batch is short or, if batches end with pieces, the last batch of each piece. If rows
        are not counted, there is one section, and `start` must be 0.
        """
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
            first, last = self._tail_row(stream, tail), self._tail_row(stream, tail + 1)
            rows = stream.slice(first, last)
            padded_from = min(max(tails.num_rows - first, 0), rows.num_rows)
            result.append(self._section(self.tail_name(tail), rows, 0, padded_from))
        return result

    def delivered(self, step: int) -> list[tuple[Section | None, Runs]]:
        """Return what each lane has delivered after `step` steps of the rank.

        Returns:
            The section of its full batches, with the delivered rows as `skip` (None if it delivered none of them), and
            the rows of its tail batches, without padding.
        """
        done, whole = self.batches_before(step), self.batches_before(self.steps)
        found: list[tuple[Section | None, Runs]] = []
        nothing = NO_RUNS
        for lane, (batches, most, own) in enumerate(zip(done, whole, self.body_batches, strict=True)):
            body, tails, full = None, nothing, min(batches, own)
            if full:
                body = self._body(lane, min(most, own), full)
            if batches > full:
                tails = self._tails_of(lane, batches - full)
            found.append((body, tails))
        return found

    def _tails_of(self, lane: int, batches: int) -> Runs:
        """Return the rows of a lane's first tail batches, without padding."""
        size, tails, lanes = self.batch_size, self.tails(), len(self.lanes)
        numbers = range(lane, lane + batches * lanes, lanes)
        return Runs.concat([tails.slice(tail * size, (tail + 1) * size) for tail in numbers])

    def whole(self, lane: int, start: int) -> Section:
        """Return all rows of a lane, including its tail; `start` of its batches were already delivered."""
        rows = self.lanes[lane]
        return self._section(self.lane_name(lane), rows, self._first_row(lane, start), rows.num_rows)

    def lane_name(self, lane: int) -> str:
        """Name the section of the full batches of a lane."""
        return lane_name(lane, self.name)

    def tail_name(self, tail: int) -> str:
        """Name the section of a tail batch."""
        return f"tail {tail} of {self.name}"

    def tails(self) -> Runs:
        """The last ``rows mod batch_size`` rows of each lane, in lane order."""
        each = enumerate(self.lanes)
        return Runs.concat(
            [rows.slice(self._first_row(lane, self.body_batches[lane]), rows.num_rows) for lane, rows in each]
        )

    def _body(self, lane: int, batches: int, start: int) -> Section:
        stop = self._first_row(lane, batches)
        planned = batches
        if self.planned_steps is not None and self.windows is not None:
            planned = min(in_turn(self.body_batches, self.planned_steps)[lane], self.body_batches[lane])
        end, skip, name = self._first_row(lane, planned), self._first_row(lane, start), self.lane_name(lane)
        rows = self.lanes[lane].slice(0, end)
        section = self._section(name, rows, skip, rows.num_rows)
        if planned == batches:
            return section
        return replace(section, stop=stop)

    def _section(self, name: str, rows: Runs, skip: int, padded_from: int) -> Section:
        dealt = 0
        if self.deals:
            dealt = self.batch_size
        return Section(name, rows, padded_from, skip, self.by_file, self.windows, dealt)

    def _first_row(self, lane: int, batch: int) -> int:
        """Count the rows of a lane before one of its own batches."""
        if self.by_file:
            return first_row(self.lanes[lane], self.batch_size, batch)
        return batch * self.batch_size

    def _tail_row(self, stream: Runs, tail: int) -> int:
        """Count the rows before a tail batch."""
        if self.by_file:
            return first_row(stream, self.batch_size, tail)
        return tail * self.batch_size

    def _tail_stream(self) -> tuple[Runs, Runs]:
        tails = self.tails()
        return tails, Runs.concat([tails, self.padding])


@dataclass(frozen=True, slots=True, eq=False)
class TakenLanes:
    """What the lanes of several ranks have delivered after some steps: of each lane, its first rows.

    Args:
        lanes: of each rank, one rank after the other.
        taken: int64[H] the rows that were delivered, by whichever lane.
        bodies: int64[H] the rows of full batches that are delivered in all; shuffle windows end with them.
    """

    lanes: Hands
    taken: NDArray[np.int64]
    bodies: NDArray[np.int64]

    @classmethod
    def after(cls, lanes: Hands, steps: NDArray[np.int64], taken: int, batch_size: int, *, by_file: bool) -> TakenLanes:
        """Return what ranks took in the first steps, if each has so many (int64[R]); for `by_file` see `RankPlan`."""
        rows = lanes.rows.reshape(len(steps), -1)
        own = rows // batch_size
        if by_file:
            own = np.array([num_batches(lane, batch_size) for lane in lanes], dtype=np.int64).reshape(rows.shape)
        early = np.minimum(steps, taken)
        done, most = (
            np.array([in_turn(*each) for each in zip(own.tolist(), some.tolist(), strict=True)], dtype=np.int64)
            for some in (early, steps)
        )
        done, most = np.minimum(done, own).reshape(-1), np.minimum(most, own).reshape(-1)
        if by_file:
            own_rows = (
                np.array([first_row(lane, batch_size, batches) for lane, batches in zip(lanes, some, strict=True)])
                for some in (done.tolist(), most.tolist())
            )
            return cls(lanes, *own_rows)
        tails = rows - own * batch_size  # these follow in the order of the lanes
        of_tails = np.maximum(early - own.sum(axis=1), 0)[:, None] * batch_size - np.cumsum(tails, axis=1) + tails
        return cls(lanes, done * batch_size + np.clip(of_tails, 0, tails).reshape(-1), most * batch_size)

    @classmethod
    def of_plan(cls, plan: RankPlan, taken: int) -> TakenLanes:
        """Return the same of the lanes of one plan."""
        lanes, steps = Hands.of(plan.lanes), np.array([plan.steps])
        return cls.after(lanes, steps, taken, plan.batch_size, by_file=plan.by_file)

    @property
    def runs(self) -> Runs:
        """The rows that were delivered, where they come as the lanes have them."""
        every = np.arange(len(self.lanes))
        return self.lanes.parts(every, np.zeros_like(every), self.taken).runs
