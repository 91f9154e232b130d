"""Batches that hold a budget of tokens: which rows each has, and which batches a rank takes.

The order of an epoch is cut into batches before anybody takes one: a row joins the batch that is being filled if it
fits, else it waits, and is the first of the next. While few wait, rows after them may fill the room that is left. So
the batches depend on neither ranks nor workers: a step takes the next R of them, one for each rank, and the rows that
the job has taken give the position.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappush, heapreplace
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np
from typing_extensions import override

from torch_table_loader.errors import ResumeError
from torch_table_loader.planning.global_batches import GlobalBatches, StepPlaces, concat_places
from torch_table_loader.planning.permutation import permuted_range
from torch_table_loader.planning.stages import SamplePosition

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.option_values import Pad
    from torch_table_loader.planning.keys import Key
    from torch_table_loader.planning.orders import EpochOrder
    from torch_table_loader.planning.ranks import Topology

    Ints: TypeAlias = NDArray[np.int64]

WAITING = 16
"""The most rows that wait for a later batch; part of the order."""

_FULL = 64
"""A batch that lacks less than this part of its budget is full as soon as a row does not fit; part of the order."""

_AT_ONCE = 1 << 18
"""Rows whose lengths are looked up together."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a batch may hold.

    Args:
        tokens: the budget.
        at_most: the most rows.
        padded: whether each row counts as the longest of its batch.
    """

    tokens: int
    at_most: int
    padded: bool = False


def widths_of(lengths: Ints, pad: Pad | None) -> Ints:
    """Return what rows of some tokens count as, given how their lists are padded; None if padding does not count."""
    if pad is None:
        return lengths
    if pad.length is not None:
        return np.full_like(lengths, pad.length)
    unit = pad.multiple_of or 1
    return -(-lengths // unit) * unit


class _Rows:
    """What rows count as, in consecutive parts, and the row that comes next."""

    def __init__(self, lengths: Iterable[Ints]) -> None:
        self._parts = iter(lengths)
        self._before = 0
        self.lengths: list[int] = []
        """Those of the part that is taken."""
        self.sums: list[int] = [0]
        """The sum of them before each, and of all."""
        self.at = 0
        """The row that comes next, in this part."""

    @property
    def are_left(self) -> bool:
        """Whether a row comes."""
        while self.at == len(self.lengths):
            part = next(self._parts, None)
            if part is None:
                return False
            self._before += self.at
            self.lengths, self.sums, self.at = part.tolist(), [0, *np.cumsum(part).tolist()], 0
        return True

    def take(self, count: int) -> range:
        """Return the numbers of the next rows of the part."""
        first = self._before + self.at
        self.at += count
        return range(first, first + count)


class _Room:
    """What is left of a batch's budget. A batch without a row takes any; if it is longer than the budget, no other."""

    def __init__(self, limits: Limits) -> None:
        self._tokens = limits.tokens
        self._little = limits.tokens // _FULL
        self.left = limits.tokens

    def empty(self) -> None:
        """Begin a batch."""
        self.left = self._tokens

    def takes(self, length: int, count: int) -> bool:
        """Take a row if it fits beside `count` others; return whether it did."""
        if length > self.left and count:
            return False
        self.left -= length
        return True

    def run(self, rows: _Rows, most: int, count: int) -> int:
        """Take rows as long as the next one fits beside the `count` others before; return how many."""
        sums, at = rows.sums, rows.at
        stop = min(at + most, len(rows.lengths))
        end = bisect_right(sums, sums[at] + self.left, at + 1, stop + 1) - 1
        if end == at and not count:
            end = at + 1
        self.left -= sums[end] - sums[at]
        return end - at

    @property
    def is_full(self) -> bool:
        """Whether it is not worth looking for a row that fits."""
        return self.left <= self._little


class _PaddedRoom(_Room):
    """What is left of a batch whose rows all count as its longest."""

    _longest = 0

    @override
    def empty(self) -> None:
        super().empty()
        self._longest = 0

    @override
    def takes(self, length: int, count: int) -> bool:
        longest = max(length, self._longest)
        left = self._tokens - longest * (count + 1)
        if left < 0 and count:
            return False
        self._longest, self.left = longest, left
        return True

    @override
    def run(self, rows: _Rows, most: int, count: int) -> int:
        taken = 0
        for length in rows.lengths[rows.at : rows.at + most]:
            if not self.takes(length, count + taken):
                break
            taken += 1
        return taken


def filled(lengths: Iterable[Ints], limits: Limits) -> Iterator[list[int]]:
    """Yield the rows of each batch, as numbers in the order of their lengths, which come in consecutive parts.

    >>> list(filled([np.array([3, 4, 5, 1, 9])], Limits(8, 99)))
    [[0, 1, 3], [2], [4]]
    """
    room, most = (_PaddedRoom if limits.padded else _Room)(limits), limits.at_most
    rows, waiting = _Rows(lengths), list[tuple[int, int]]()
    while waiting or rows.are_left:
        batch: list[int] = []
        still: list[tuple[int, int]] = []
        room.empty()
        for each in waiting:
            if len(batch) < most and room.takes(each[1], len(batch)):
                batch.append(each[0])
            else:
                still.append(each)
        waiting = still
        while len(batch) < most and len(waiting) < WAITING and rows.are_left:
            batch += rows.take(room.run(rows, most - len(batch), len(batch)))
            if len(batch) == most or rows.at == len(rows.lengths):
                continue
            length = rows.lengths[rows.at]
            waiting.append((*rows.take(1), length))
            if room.is_full:
                break
        yield batch


class Measure:
    """Says what rows count as, and counts them.

    Args:
        lengths: returns the tokens of some rows.
        widths: returns what rows of some tokens count as.
    """

    def __init__(self, limits: Limits, lengths: Callable[[Ints], Ints], widths: Callable[[Ints], Ints]) -> None:
        self.limits = limits
        self.tokens = 0
        """The tokens of all rows, none counted beyond the budget."""
        self.longer = 0
        """Rows that count as more than the budget."""
        self.longest = (0, 0)
        """What the row counts as that counts most, and that row."""
        self._lengths = lengths
        self._widths = widths

    def of(self, rows: Ints) -> Ints:
        """Return what some rows count as."""
        return self._widths(self._lengths(rows))

    def counted(self, rows: NDArray[np.unsignedinteger]) -> Iterator[Ints]:
        """Yield what rows count as, in consecutive parts, and count them."""
        for first in range(0, len(rows), _AT_ONCE):
            some = rows[first : first + _AT_ONCE].astype(np.int64)
            lengths = self._lengths(some)
            widths = self._widths(lengths)
            self.tokens += int(np.minimum(lengths, self.limits.tokens).sum())
            self.longer += int(np.count_nonzero(widths > self.limits.tokens))
            at = int(widths.argmax())
            self.longest = max(self.longest, (int(widths[at]), int(some[at])))
            yield widths

    def fills(self, rows: Ints) -> bool:
        """Return whether a batch of some rows is full."""
        widths, limits = self.of(rows), self.limits
        held = int(widths.max()) * len(widths) if limits.padded else int(widths.sum())
        return len(widths) == limits.at_most or limits.tokens - held <= limits.tokens // _FULL


@dataclass(frozen=True, slots=True, eq=False)
class FilledOrder:
    """The order of an epoch as it is cut into batches.

    Args:
        rows: unsigned[n] the row at each place.
        edges: int64[batches + 1] the place at which each batch begins, and the end.
        is_whole: whether the last batch is full.
    """

    rows: NDArray[np.unsignedinteger]
    edges: Ints
    is_whole: bool
    tokens: int
    longer: int
    longest: tuple[int, int]

    @classmethod
    def of(
        cls,
        order: EpochOrder,
        total: int,
        stored: int,
        measure: Measure,
        similar: tuple[int, Callable[[int], Key]] | None,
    ) -> FilledOrder:
        """Cut the first `total` places of an order.

        Args:
            stored: rows that there are, of which the order has some.
            similar: rows of a window within which those of similar length come together, and the key by which its
                batches are shuffled, given the place where it begins; None leaves rows in their order.
        """
        rows = np.empty(total, np.min_scalar_type(max(1, stored - 1, total - 1)))
        for first in range(0, total, _AT_ONCE):
            stop = min(first + _AT_ONCE, total)
            rows[first:stop] = order.take(np.arange(first, stop, dtype=np.int64))
        counts: list[int] = []
        for first, stop in _parts(order.ends, total, None if similar is None else similar[0]):
            part = rows[first:stop].copy()
            if similar is None:
                batches: Iterable[list[int]] = filled(measure.counted(part), measure.limits)
            else:
                part, batches = _alike(part, measure, similar[1](first))
            chosen = np.fromiter(_flat(batches, counts), rows.dtype, len(part))
            for at in range(0, len(part), _AT_ONCE):
                rows[first + at : min(first + at + _AT_ONCE, stop)] = part[chosen[at : at + _AT_ONCE]]
        edges = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        is_whole = not total or measure.fills(rows[edges[-2] :].astype(np.int64))
        return cls(rows, edges, is_whole, measure.tokens, measure.longer, measure.longest)

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes."""
        return self.rows.nbytes + self.edges.nbytes

    def take(self, places: Ints) -> Ints:
        """Return the row of the store at each place of the order."""
        return self.rows.take(places).astype(np.int64)


def _alike(
    rows: NDArray[np.unsignedinteger], measure: Measure, key: Key
) -> tuple[NDArray[np.unsignedinteger], list[list[int]]]:
    """Return rows of a window by length, and their batches, shuffled."""
    widths = np.concatenate(list(measure.counted(rows)))
    by_length = np.argsort(widths, kind="stable")
    found = list(filled([widths[by_length]], measure.limits))
    mixed = permuted_range(len(found), key)
    return rows[by_length], [found[number] for number in mixed.tolist()]


def _parts(ends: Iterable[int], total: int, window: int | None) -> Iterator[tuple[int, int]]:
    """Yield where stretches of an order begin and end that are cut by themselves."""
    first = 0
    for end in ends:
        stop = min(int(end), total)
        for start in range(first, stop, window or max(1, stop - first)):
            yield start, min(start + (window or stop), stop)
        first = max(first, stop)


def _flat(batches: Iterable[list[int]], counts: list[int]) -> Iterator[int]:
    for batch in batches:
        counts.append(len(batch))
        yield from batch


def halved(edges: Ints, wanted: int) -> Ints:
    """Cut runs of rows in halves, the longest first, until there are as many as wanted, or all have one row.

    >>> halved(np.array([0, 5, 6]), 4).tolist()
    [0, 2, 3, 5, 6]
    """
    runs = [(first - stop, first, stop) for first, stop in pairwise(edges.tolist())]
    heapify(runs)
    while len(runs) < wanted and runs[0][0] < -1:
        _, first, stop = runs[0]
        middle = (first + stop) // 2
        heapreplace(runs, (first - middle, first, middle))
        heappush(runs, (middle - stop, middle, stop))
    return np.array(sorted({*edges.tolist(), *(first for _, first, _ in runs)}), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class BudgetBatches(GlobalBatches):
    """The steps of one rank in a stage of an epoch that is cut into batches by a budget.

    A step is the next R batches, one of each rank. Where fewer are left, they are halved, so that each rank has one,
    unless ranks need not be even; a rank for which there is no row repeats one, marked as padding.

    Raises:
        ResumeError: no batch begins where the stage does.
    """

    order: FilledOrder = field(kw_only=True, compare=False, repr=False)
    same_size: ClassVar[bool] = False
    _before: int = field(init=False, repr=False, compare=False)
    """Batches before the stage."""
    _tail: Ints = field(init=False, repr=False, compare=False)
    """The place at which each batch of the tail step begins, and the end."""

    def __post_init__(self) -> None:
        """Find the batches of the stage, and count the steps."""
        GlobalBatches.__post_init__(self)
        edges, ranks, topology = self.order.edges, self.topology.num_ranks, self.topology
        before = int(np.searchsorted(edges, self.start))
        if edges[before] != self.start:
            raise ResumeError(
                f"the state has taken {self.start} rows, and no batch of the epoch begins there; pass the value of "
                "state_dict() unchanged"
            )
        count = int(np.searchsorted(edges, self.total)) - before
        if topology.drop_last and count and self.total == edges[-1] and not self.order.is_whole:
            count -= 1
        full, rest = divmod(count, ranks)
        rest = 0 if topology.drop_last else rest
        tail = edges[before + full * ranks : before + full * ranks + rest + 1]
        if rest and topology.even_ranks is not None:
            tail = halved(tail, ranks)
        found = len(tail) - 1
        pads = 0 < found < ranks and topology.even_ranks is not None
        counts = {
            "batch_size": 1,
            "global_batch_size": ranks,
            "full_steps": full,
            "remainder": found,
            "steps": full + (pads or found > self.rank),
            "longest": full + bool(found),
            "pads": pads,
            "real_at_end": -1,
            "_before": before,
            "_tail": tail,
        }
        for name, value in counts.items():
            object.__setattr__(self, name, value)

    @property
    @override
    def tail(self) -> StepPlaces:
        if self.rank < self.remainder:
            places = np.arange(self._tail[self.rank], self._tail[self.rank + 1], dtype=np.int64)
            return StepPlaces(places, len(places))
        padding = np.full(int(self.pads), self.first, dtype=np.int64)
        return StepPlaces(padding, 0)

    def sizes_of(self, steps: Sequence[int]) -> Ints:
        """Return the rows of this rank's batches in some of its steps, in rising order, padding included."""
        numbers = np.asarray(steps, dtype=np.int64)
        at = self._before + self.rank + self.topology.num_ranks * numbers[numbers < self.full_steps]
        sizes = self.order.edges[at + 1] - self.order.edges[at]
        if len(sizes) == len(numbers):
            return sizes
        return np.append(sizes, len(self.tail.places))

    @property
    @override
    def num_rows(self) -> int:
        return self.rows_before(self.steps)

    @override
    def rows_before(self, step: int) -> int:
        return int(self.sizes_of(range(min(step, self.steps))).sum())

    @override
    def rows_of(self, lane: int) -> int:
        return int(self.sizes_of(range(lane, self.steps, self.topology.lanes)).sum())

    @override
    def full_step(self, number: int) -> StepPlaces:
        at = self._before + number * self.topology.num_ranks + self.rank
        places = np.arange(self.order.edges[at], self.order.edges[at + 1], dtype=np.int64)
        return StepPlaces(places, len(places))

    @override
    def global_batch(self, number: int) -> Ints:
        at = self._before + number * self.topology.num_ranks
        return np.arange(self.order.edges[at], self.order.edges[at + self.topology.num_ranks], dtype=np.int64)

    @override
    def places_of(self, steps: list[int]) -> tuple[Ints, NDArray[np.bool_]]:
        if steps[-1] >= self.full_steps:
            return concat_places([self.step(number) for number in steps])
        counts = self.sizes_of(steps)
        at = self._before + self.rank + self.topology.num_ranks * np.array(steps, dtype=np.int64)
        ends = np.cumsum(counts)
        places = np.arange(ends[-1]) + np.repeat(self.order.edges[at] - ends + counts, counts)
        return places, np.zeros(len(places), dtype=np.bool_)

    @override
    def consumed(self, steps: int) -> int:
        if self.longest <= steps:
            if self.longest:
                return self.total
            return self.start
        return int(self.order.edges[self._before + steps * self.topology.num_ranks])

    @override
    def up_to(self, steps: int) -> BudgetBatches:
        if self.longest <= steps:
            return self
        return replace(self, total=self.consumed(steps), topology=replace(self.topology, drop_last=False))

    def step_of(self, place: int) -> int:
        """Return the step that takes a place, counted from the stage's start; that after the last if none does."""
        if place >= self.total:
            return self.longest
        number = int(np.searchsorted(self.order.edges, place, side="right")) - 1 - self._before
        return number // self.topology.num_ranks


@dataclass(frozen=True, slots=True)
class BudgetPosition(SamplePosition):
    """How much of an epoch that is cut by a budget a job has done, as a number of rows."""

    order: FilledOrder = field(kw_only=True, compare=False, repr=False)

    @override
    def batches(self, rank: int) -> BudgetBatches:
        return BudgetBatches(
            self.total, self.start, self.stage.topology, rank, aligned=self.stage.aligned, order=self.order
        )

    @override
    def whole(self, topology: Topology, rank: int) -> BudgetBatches:
        return BudgetBatches(self.total, 0, topology, rank, order=self.order)

    @override
    def step_of(self, sample: int, samples: int) -> int:
        return self.batches(0).step_of(sample)
