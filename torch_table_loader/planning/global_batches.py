"""Which places of the epoch's order each step of each rank takes, when single rows are shuffled.

The global batch comes first: step s of a job of R ranks with B rows each is the places [s·G, (s + 1)·G) of the order,
with G = R·B, counted from where the stage began. Rank r takes every R-th of them. So neither ranks nor workers nor
batch size decide the order of rows, and one integer, the samples that the job has taken, gives the position. A step of
an optimizer that accumulates gradients over k micro-batches is k of these steps, k·R·B rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from torch_table_loader.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.ranks import Topology


ENDLESS = 1 << 62
"""Rows of an endless order."""


class StepPlaces(NamedTuple):
    """What one rank takes in one step.

    Args:
        places: int64[b] places in the epoch's order.
        real: how many of them are the rank's own; the others, at the end, are padding.
    """

    places: NDArray[np.int64]
    real: int


@dataclass(frozen=True, slots=True)
class GlobalBatches:
    """The steps of one rank in a stage of an epoch.

    Args:
        total: rows of the epoch's order; `ENDLESS` if it has no end.
        start: samples that the job had taken when the stage began.
        topology: the job's topology; `even_ranks` is not "drop", and lanes only decide who builds a batch.
        first: the place from which padding repeats rows.
        aligned: a place at which a step of the optimizer begins.

    >>> from torch_table_loader.planning.ranks import Topology
    >>> rank_1 = GlobalBatches(total=13, start=0, topology=Topology(2, 1, 3), rank=1)
    >>> [rank_1.step(number).places.tolist() for number in range(rank_1.steps)]
    [[1, 3, 5], [7, 9, 11]]
    """

    total: int
    start: int
    topology: Topology
    rank: int
    first: int = 0
    aligned: int = 0
    counted: ClassVar[bool] = True
    same_size: ClassVar[bool] = True
    """Whether all full batches of a rank have as many rows."""
    batch_size: int = field(init=False, repr=False, compare=False)
    """Rows of a full batch on a rank."""
    global_batch_size: int = field(init=False, repr=False, compare=False)
    """Rows of a full step over all ranks: one batch from each."""
    full_steps: int = field(init=False, repr=False, compare=False)
    """Steps in which every rank has a full batch."""
    remainder: int = field(init=False, repr=False, compare=False)
    """Real rows of the tail step over all ranks; 0 if there is none or it is dropped."""
    steps: int = field(init=False, repr=False, compare=False)
    """Batches of this rank."""
    longest: int = field(init=False, repr=False, compare=False)
    """Batches of the rank that has the most."""
    pads: bool = field(init=False, repr=False, compare=False)
    """Whether rows are repeated in the tail step: to make batches equal, or where a rank would have none."""
    real_at_end: int = field(init=False, repr=False, compare=False)
    """Real rows of the tail step over all ranks, if its padding comes after them; −1 if it does not."""

    def __post_init__(self) -> None:
        """Refuse values outside the epoch, and count the steps.

        Rows that are dropped fill no optimizer step. Such steps begin at the epoch's start, or where their size
        changed; after a stage with other batches, as near to it as this stage's batches allow. A job that continues in
        the middle of a step ends where it would have ended anyway.
        """
        if not 0 <= self.start <= self.total:
            raise ConfigError(f"start must be in [0, {self.total}], got {self.start}")
        if not 0 <= self.first <= self.start:
            raise ConfigError(f"first must be in [0, {self.start}], got {self.first}")
        if not 0 <= self.rank < self.topology.num_ranks:
            raise ConfigError(f"rank must be in [0, {self.topology.num_ranks}), got {self.rank}")
        if self.topology.even_ranks == "drop":
            raise ConfigError(
                f"even_ranks={self.topology.even_ranks!r} is for splits: in row mode ranks differ only in the last "
                "step; leave it out, or pass drop_last=True"
            )
        ranks, size, stop = self.topology.num_ranks, self.topology.num_ranks * self.topology.batch_size, self.total
        if self.topology.drop_last:
            first = self.aligned + (self.start - self.aligned) % size
            unit = self.topology.micro_batches * size
            stop = max(self.start, first + (self.total - first) // unit * unit)
        full, rest = divmod(stop - self.start, size)
        if self.topology.drop_last:
            rest = 0
        even = self.topology.even_ranks
        pads = rest % ranks > 0 and (even == "pad" or (even == "balance" and rest < ranks))
        counts = {
            "batch_size": size // ranks,
            "global_batch_size": size,
            "full_steps": full,
            "remainder": rest,
            "steps": full + (pads or rest > self.rank),
            "longest": full + bool(rest),
            "pads": pads,
            "real_at_end": rest if pads or even == "pad" else -1,
        }
        for name, count in counts.items():
            object.__setattr__(self, name, count)

    @property
    def endless(self) -> bool:
        """Whether the order has no end, so that the number of steps is unknown."""
        return self.total == ENDLESS

    @property
    def tail(self) -> StepPlaces:
        """What this rank takes in the tail step: every R-th place.

        Where some are padded it is one of R equal blocks: the real rows of all ranks then come first when they are
        gathered in the order of ranks, as Accelerate's ``gather_for_metrics`` takes them.
        """
        first = self.total - self.remainder
        ranks = self.topology.num_ranks
        if not self.pads:
            places = np.arange(first + self.rank, first + self.remainder, ranks, dtype=np.int64)
            return StepPlaces(places, len(places))
        share = -(-self.remainder // ranks)
        places = first + self.rank * share + np.arange(share, dtype=np.int64)
        real = min(max(self.total - first - self.rank * share, 0), share)
        places[real:] = self.first + (places[real:] - self.total) % max(1, self.total - self.first)
        return StepPlaces(places, real)

    @property
    def num_rows(self) -> int:
        """Rows that this rank delivers, padding included."""
        return self.full_steps * self.batch_size + len(self.tail.places)

    def rows_before(self, step: int) -> int:
        """Count the rows that the rank has delivered after `step` steps, padding included."""
        return min(step * self.batch_size, self.num_rows)

    def step(self, number: int) -> StepPlaces:
        """Return what a step takes; steps are counted from the stage's start.

        Raises:
            ConfigError: there is no such step.
        """
        if not 0 <= number < self.steps:
            raise ConfigError(f"step must be in [0, {self.steps}), got {number}")
        if number == self.full_steps:
            return self.tail
        return self.full_step(number)

    def full_step(self, number: int) -> StepPlaces:
        """Return what a step below `full_steps` takes."""
        first = self.start + number * self.global_batch_size + self.rank
        ranks = self.topology.num_ranks
        return StepPlaces(first + ranks * np.arange(self.batch_size, dtype=np.int64), self.batch_size)

    def global_batch(self, number: int) -> NDArray[np.int64]:
        """Return the places that all ranks together take in a step below `full_steps`."""
        first = self.start + number * self.global_batch_size
        return np.arange(first, first + self.global_batch_size, dtype=np.int64)

    def places_of(self, steps: list[int]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Join what several steps take, at least one, in rising order; see `concat_places`."""
        if steps[-1] >= self.full_steps:
            return concat_places([self.step(number) for number in steps])
        ranks, size = self.topology.num_ranks, self.batch_size
        firsts = self.start + self.rank + self.global_batch_size * np.array(steps, dtype=np.int64)
        places = np.empty(len(steps) * size, dtype=np.int64)
        np.add.outer(firsts, np.arange(0, ranks * size, ranks, dtype=np.int64), out=places.reshape(-1, size))
        return places, np.zeros(len(places), dtype=np.bool_)

    def consumed(self, steps: int) -> int:
        """Count the samples that the job has taken (or dropped at the end) after so many steps of its ranks."""
        if 0 < self.longest <= steps:
            return self.total
        return self.start + steps * self.global_batch_size

    def up_to(self, steps: int) -> GlobalBatches:
        """Return a plan of at most so many steps; if it is cut short, all of them are full."""
        if self.longest <= steps:
            return self
        total = self.start + steps * self.global_batch_size
        return replace(self, total=total, topology=replace(self.topology, drop_last=False))

    def schedule(self, start: int = 0) -> Iterator[int]:
        """Yield the lane that the batch of each step comes from."""
        lanes = self.topology.lanes
        return islice(cycle(range(lanes)), start % lanes, start % lanes + max(0, self.steps - start))

    def batches_before(self, step: int) -> list[int]:
        """Count the batches that each lane has delivered after `step` steps of the rank."""
        lanes = self.topology.lanes
        return [len(range(lane, min(step, self.steps), lanes)) for lane in range(lanes)]

    def steps_of(self, lane: int, start: int, block: int) -> Iterator[list[int]]:
        """Yield the steps of a lane, at most `block` at a time, after the `start` batches that it delivered before."""
        steps = range(lane, self.steps, self.topology.lanes)[start:]
        for first in range(0, len(steps), block):
            yield list(steps[first : first + block])

    def rows_of(self, lane: int) -> int:
        """Count the rows of a lane."""
        steps = range(lane, self.steps, self.topology.lanes)
        return max(0, len(steps) - 1) * self.batch_size + sum(len(self.step(step).places) for step in steps[-1:])


def rank_batch_size(batch_size: int | None, global_batch_size: int, num_ranks: int) -> int:
    """Return the rows of a batch of each rank, one or several of which make up a global batch.

    Args:
        batch_size: the caller's; None: one batch of each rank is the whole.

    Raises:
        ConfigError: the sizes do not divide evenly; the message names the nearest size that does.

    >>> rank_batch_size(None, 1024, 4), rank_batch_size(32, 1024, 4)
    (256, 32)
    """
    unit = num_ranks * (batch_size or 1)
    whole, rest = divmod(global_batch_size, unit)
    if rest:
        low, high = whole * unit, (whole + 1) * unit
        near = high if not low or high - global_batch_size < global_batch_size - low else low
        times = ""
        if batch_size is not None:
            times = f" times batch_size={batch_size}"
        raise ConfigError(
            f"global_batch_size must be a multiple of num_ranks={num_ranks}{times}, got {global_batch_size}; "
            f"the nearest is {near}"
        )
    if batch_size is None:
        return whole
    return batch_size


def concat_places(parts: list[StepPlaces]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Join at least one step: int64[n] places, and bool[n] which of them are padding."""
    places = np.concatenate([part.places for part in parts])
    padding = np.concatenate([np.arange(len(part.places)) >= part.real for part in parts])
    return places, padding


def steps_of_ranks(batches: GlobalBatches) -> list[int]:
    """Count the steps of every rank.

    >>> from torch_table_loader.planning.ranks import Topology
    >>> steps_of_ranks(GlobalBatches(total=13, start=0, topology=Topology(2, 1, 3), rank=0))
    [3, 2]
    """
    ranks, rest = batches.topology.num_ranks, batches.remainder
    with_tail = ranks if batches.pads else min(ranks, rest)
    return [batches.full_steps + 1] * with_tail + [batches.full_steps] * (ranks - with_tail)
