"""The stages and steps of an epoch: which comes next, how many there are, and which takes a sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from torch_table_loader.cached import cached_property
from torch_table_loader.engine.jobs.by_step import ByStep
from torch_table_loader.planning.steps import num_steps
from torch_table_loader.samples import LENGTH

if TYPE_CHECKING:
    from torch_table_loader.engine.jobs.planner import PlannedStage
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.ranks import Topology
    from torch_table_loader.planning.stages import Position
    from torch_table_loader.schedules import Done, Schedule


@dataclass(frozen=True, eq=False, kw_only=True)
class Walked(ABC):
    """What a walk asks of a job: its shape, where an epoch starts, and where its stages end.

    Args:
        schedules: what changes on all ranks at a step, by the option that says so; each change begins a stage.
    """

    options: LoaderOptions
    rank: int
    topology: Topology
    schedules: Mapping[str, Schedule]

    @cached_property
    def by_step(self) -> ByStep:
        """What changes at a step, and the job's shape by that."""
        return ByStep(self.schedules, self.topology, self.options)

    @property
    def walk(self) -> Walk:
        """The way through an epoch, stage after stage."""
        return Walk(self)

    @abstractmethod
    def start(self, epoch: int) -> Position:
        """Return the start of an epoch.

        Raises:
            ConfigError: the epoch has no row, since all are excluded or a source of a mixture is empty.
        """

    @abstractmethod
    def next_stage(self, position: Any) -> Any:
        """Return the position with a new stage for the steps that come."""

    def enter(self, before: Any, position: Any) -> None:  # noqa: B027 a stream finds any place at once
        """Note that the job comes from one stage of an epoch to the next."""

    @abstractmethod
    def kept_shape(self, position: Any) -> bool:
        """Return whether all steps of the epoch before a position were those of this topology."""

    @abstractmethod
    def planned(self, position: Any) -> PlannedStage:
        """Plan a stage of an epoch for this rank, on the lanes of this job."""

    @abstractmethod
    def done(self, position: Any) -> Done:
        """Return what the job has done of a position's epoch."""

    def width_of(self, position: Any) -> int:
        """Return the width of the samples of a stage."""
        if LENGTH not in self.schedules:
            return self.options.samples.width
        return self.by_step.length_at(position.epoch, position.steps_before)

    def until(self, position: Any) -> int | None:
        """Return the steps that a stage may have before something changes; None: to the epoch's end."""
        if not self.schedules:
            return None
        done, width = self.done(position.after(0)), self.width_of(position)
        return self.by_step.until(position.epoch, position.stage.topology, done, width)


@dataclass(frozen=True, slots=True)
class Walk:
    """The way of a job through an epoch, stage after stage."""

    job: Walked

    def following(self, position: Any) -> Any:
        """Return where the job continues in the epoch when the newest stage has ended; None: with nothing.

        Sequences of another length or other weights make another stage, of which `planned` gives the steps until then.
        """
        job, until = self.job, self.job.until(position)
        if until is None or (job.planned(position).longest or 0) < until:
            return None
        after = job.next_stage(position.after(until))
        if after.steps_before > position.steps_before and job.planned(after).longest:
            return after
        return None

    def stages(self, position: Any) -> Iterator[Any]:
        """Yield a position, and the begins of the stages of the epoch that follow its own."""
        while position is not None:
            yield position
            position = self.following(position)

    def steps_of_epoch(self, position: Any) -> int:
        """Count the steps of this rank in a position's epoch: those that were taken, and those to come.

        If some were taken under another topology, the epoch has the steps that it would have had without that:
        frameworks keep this number for the epochs that follow.

        Raises:
            TypeError: the number is not known, or has no end.
        """
        if self.job.kept_shape(position):
            return int(position.steps_before) + self._steps_from(position)
        return max(self._steps_from(self.job.start(position.epoch)), self.steps_left(position))

    def epochs_of(self, epoch: int) -> range:
        """Return the epochs of the iteration that an epoch is of, where they are counted."""
        epochs = self.job.options.epochs
        number = epochs if isinstance(epochs, int) else 1
        return range(first := epoch // number * number, first + number)

    def starts_behind(self, epoch: int) -> Iterator[Any]:
        """Yield the starts of the epochs with which an iteration continues after one; see the option `epochs`."""
        epochs = self.job.options.epochs
        if epochs is None:
            return
        following = count(epoch + 1) if epochs == "forever" else range(epoch + 1, (epoch // epochs + 1) * epochs)
        for number in following:
            yield self.job.start(number)

    def steps_left(self, position: Any) -> int:
        """Count the batches of this rank that come after a position in its epoch."""
        taken: int = position.stage.steps
        return max(0, self._steps_from(position) - taken)

    def _steps_from(self, position: Any) -> int:
        """Count the steps from the begin of a position's stage to the end of the epoch."""
        return sum(num_steps(self.job.planned(stage).plan) for stage in self.stages(position))

    def at(self, epoch: int, steps: int) -> Any:
        """Return the position so many steps into an epoch."""
        position = self.job.start(epoch)
        while (until := self.job.until(position)) is not None and steps >= until:
            if (after := self.following(position)) is None:
                break
            position, steps = after, steps - until
        return position.after(steps)

    def behind(self, position: Any, batches: int) -> tuple[Any, int]:
        """Return where the job is once it has taken more global batches of an epoch, and how many the epoch lacks."""
        job = self.job
        while True:
            micro, planned = position.stage.topology.micro_batches, job.planned(position)
            until, steps = job.until(position), position.stage.steps + batches * micro
            if until is None or steps <= until or (after := self.following(position)) is None:
                break
            batches -= -(-(until - position.stage.steps) // micro)
            job.enter(position.after(until), after)
            position = after
        plan, longest = planned.plan, planned.longest
        if not plan.counted or plan.endless:
            return position.after(steps), 0
        taken = min(steps, plan.steps)
        missing = max(0, steps - (taken if longest is None else longest)) // micro
        return position.after(taken, ended=taken == plan.steps and longest != taken), missing

    def step_of_sample(self, epoch: int, sample: int) -> int:
        """Return the step of an epoch that takes a sample of all ranks."""
        for stage in self.stages(self.job.start(epoch)):
            size, until = self.job.by_step.step(stage.stage.topology).samples, self.job.until(stage)
            if until is None or sample < until * size:
                break
            sample -= until * size
        return int(stage.steps_before + stage.step_of(sample, size))
