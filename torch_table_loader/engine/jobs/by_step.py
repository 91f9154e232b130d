"""What changes on all ranks at a step of an epoch: the width of samples, and how many a batch has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch_table_loader.cached import cached_property
from torch_table_loader.planning.stages import Stage
from torch_table_loader.samples import LENGTH
from torch_table_loader.schedules import Done, Schedule

if TYPE_CHECKING:
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.ranks import Topology


@dataclass(frozen=True, eq=False)
class ByStep:
    """The schedules of a job, and the shape that it has by them.

    Args:
        topology: the shape without them.
        rows_of_sample: rows that a batch counts for each sample: in streams, those that it is cut of.
    """

    schedules: Mapping[str, Schedule]
    topology: Topology
    options: LoaderOptions
    rows_of_sample: int = 1

    @property
    def changes_length(self) -> bool:
        """Whether samples have other lengths from some step on."""
        return LENGTH in self.schedules

    @cached_property
    def width(self) -> int:
        """The width of the first samples."""
        return self.options.samples.width

    @property
    def compared(self) -> dict[str, Any]:
        """What ranks compare that no state is bound to: options, and what changes in an epoch, as plain data.

        The length of samples is compared also where it does not change.
        """
        options = self.options
        by_step = {f"{name} by step": each.as_list for name, each in self.schedules.items()}
        return {**options.compared, **options.samples.compared, **by_step}

    def did(self, steps: int, samples: int) -> Done:
        """Return what a job has done that took some samples of the first width."""
        return Done(steps, samples, samples * self.width)

    def step(self, topology: Topology) -> Done:
        """Return what a step is of a job of some shape."""
        return self.did(1, topology.num_ranks * topology.batch_size // self.rows_of_sample)

    def until(self, epoch: int, topology: Topology, done: Done, width: int) -> int | None:
        """Return the steps of a shape and a width until something changes; None: nothing does until the epoch's end.

        Args:
            done: what the job has done of the epoch before them.
        """
        step = self.step(topology)
        step = step._replace(tokens=step.samples * width)
        lefts = [each.steps_left(epoch, done, step) for each in self.schedules.values()]
        return min((left for left in lefts if left is not None), default=None)

    def topology_of(self, epoch: int, done: Done) -> Topology:
        """Return the job's shape at a place of an epoch."""
        sizes = self.schedules.get("global_batch_size")
        if sizes is None:
            return self.topology
        rows, ranks = sizes.at(epoch, done), self.topology.num_ranks
        batch = min(self.options.most_rows, rows // ranks)
        return replace(self.topology, batch_size=batch, micro_batches=rows // (ranks * batch))

    def stage_at(self, epoch: int, done: Done | None = None) -> Stage:
        """Return the stage that begins at a place of an epoch of items; None: at its start."""
        if (sizes := self.schedules.get("global_batch_size")) is None:
            return Stage(self.topology)
        if done is None:
            done = Done()
        aligned = 0
        if sizes.unit != "steps" and not epoch:
            aligned = sizes.begin(done)
        return Stage(self.topology_of(epoch, done), aligned=aligned)

    def length_at(self, epoch: int, step: int = 0) -> int:
        """Return the width of the samples of a step."""
        lengths = self.schedules.get(LENGTH)
        length: int = self.width if lengths is None else lengths.at(epoch, Done(step))
        return length
