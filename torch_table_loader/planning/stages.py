"""The position of a job as a value: how much of an epoch it has done.

A stream counts the steps of each topology that it had. A job of items that are gathered by index counts samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple, Self

from torch_table_loader.errors import ResumeError
from torch_table_loader.planning.exclusion import ExclusionVersions
from torch_table_loader.planning.global_batches import GlobalBatches
from torch_table_loader.planning.ranks import Topology
from torch_table_loader.schedules import Done


@dataclass(frozen=True, slots=True)
class Extent:
    """Identifies a table as it was before it grew.

    Args:
        snapshot_id: the snapshot that was read; None for a table without snapshots.
        files: number of data files that it had.
    """

    snapshot_id: int | None
    files: int
    fingerprint: str

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Extent:
        """Return the table that a state describes."""
        return cls(table.get("snapshot_id"), table["files"], table["fingerprint"])

    def to_state(self) -> dict[str, Any]:
        """Write as plain values by name.

        >>> Extent(7, 2, "ab").to_state()
        {'snapshot_id': 7, 'files': 2, 'fingerprint': 'ab'}
        """
        return {"snapshot_id": self.snapshot_id, "files": self.files, "fingerprint": self.fingerprint}


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of an epoch, of some steps of the job, in which neither the topology nor the table changed.

    Args:
        extent: what the table was, if it has grown since; None for the current table.
        aligned: the sample at which steps of the optimizer came to have their size.
    """

    topology: Topology
    steps: int = 0
    extent: Extent | None = None
    aligned: int = 0


_NO_STEP = Stage(Topology(1, 1, 1))
"""The stage of a position in a state that has no shape of a job, since samples are counted."""


class AskedFrom(NamedTuple):
    """What the caller asks of epochs that run, from a sample on.

    Args:
        value: as plain data.
        does: what a rank does by such a value, in words.
        remedy: what to do where ranks differ in it.
    """

    sample: int
    value: Any
    does: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Position(ABC):
    """How much of an epoch a job has done: the same on every rank, except for `ended`.

    Args:
        ended: True on a rank that has taken all its batches while others may continue.
    """

    epoch: int
    stage: Stage
    ended: bool = field(default=False, kw_only=True)

    @abstractmethod
    def history(self) -> list[dict[str, Any]]:
        """Write the stages of the epoch, oldest first, each as plain values by name.

        Each has its steps, and whether it has `ended`. Everything that may differ between ranks is in this one list,
        because ``torch.distributed.checkpoint`` may keep one rank's value of one key and another rank's value of the
        next.
        """

    @property
    def exclusion_digests(self) -> Mapping[str, str]:
        """Hashes of all exclusions and inclusions before the epoch, by source; empty for a stream."""
        return {}

    @property
    def asked(self) -> AskedFrom | None:
        """What the caller asked for that holds from here on, and ranks compare; None where it asks for nothing."""
        return None

    @property
    def extents(self) -> tuple[Extent, ...]:
        """What the table was in earlier parts of the epoch, oldest first; empty if it cannot grow."""
        return ()

    @property
    @abstractmethod
    def steps_before(self) -> int:
        """Steps of the epoch that were taken before the newest stage."""

    @property
    def steps_taken(self) -> int:
        """Steps of the epoch that were taken, under any topology."""
        return self.steps_before + self.stage.steps

    def after(self, steps: int, *, ended: bool = False) -> Self:
        """Return the position after so many steps of the newest stage."""
        return replace(self, stage=replace(self.stage, steps=steps), ended=ended)

    def step_of(self, sample: int, samples: int) -> int:
        """Return the step of the stage that takes a sample, both counted from its start.

        Args:
            samples: that a step takes, as a rule.
        """
        return sample // samples


@dataclass(frozen=True, slots=True)
class StagedPosition(Position):
    """How much of an epoch of splits a job has done: some steps of each of its stages, oldest first."""

    past: tuple[Stage, ...] = ()

    @property
    def stages(self) -> tuple[Any, ...]:
        """All stages of the epoch, oldest first."""
        return (*self.past, self.stage)

    @property
    def steps_before(self) -> int:
        """Steps of the stages before the newest."""
        return sum(stage.steps for stage in self.past)

    def history(self) -> list[dict[str, Any]]:
        """Write the stages, each with its steps, `ended` and its topology.

        >>> StreamPosition(2, Stage(Topology(4, 2, 1024), 17)).history()[0]["steps"]
        17
        """
        history = [{"steps": stage.steps, "ended": False, **stage.topology.to_state()} for stage in self.stages]
        history[-1]["ended"] = self.ended
        return history


@dataclass(frozen=True, slots=True)
class StreamPosition(StagedPosition):
    """How much of an epoch of splits of one table a job has done.

    Args:
        rank: only set if rows are not counted: the one rank that can continue from here.
    """

    rank: int | None = None

    @classmethod
    def at(cls, epoch: int, topology: Topology) -> StreamPosition:
        """Return the start of an epoch."""
        return cls(epoch, Stage(topology))

    @property
    def extents(self) -> tuple[Extent, ...]:
        """What the table was in earlier stages, oldest first, each once where it stays the same."""
        found = [*(each.extent for each in self.past), self.stage.extent]
        return tuple(each for each, before in zip(found, [None, *found], strict=False) if each not in (None, before))

    def on(self, topology: Topology, *, anew: bool = False) -> StreamPosition:
        """Return the position under a topology, in the current table.

        The stage is the same if nothing changed, unless `anew` asks for another.
        """
        if not anew and topology == self.stage.topology and self.stage.extent is None:
            return self
        past = (*self.past, self.stage) if self.stage.steps else self.past
        return replace(self, past=past, stage=Stage(topology), ended=False)

    def before_growth(self, extent: Extent) -> StreamPosition:
        """Return the position in a table that has grown since."""
        past = tuple(replace(each, extent=each.extent or extent) for each in self.past)
        return replace(self, past=past, stage=replace(self.stage, extent=self.stage.extent or extent))

    def history(self) -> list[dict[str, Any]]:
        """Write what the table was in a stage too, if it has grown since, and `rank` of the newest stage, if it is set.

        >>> StreamPosition(2, Stage(Topology(4, 2, 1024)), rank=3).history()[0]["rank"]
        3
        """
        history = StagedPosition.history(self)
        for written, stage in zip(history, self.stages, strict=True):
            if stage.extent is not None:
                written["extent"] = stage.extent.to_state()
        if self.rank is not None:
            history[-1]["rank"] = self.rank
        return history

    @classmethod
    def of_history(cls, epoch: int, history: Sequence[Mapping[str, Any]]) -> StreamPosition:
        """Read what `history` wrote, in a checked state."""
        stages = [
            Stage(Topology.of_state(fields), fields["steps"], Extent.of(extent) if extent else None)
            for fields in history
            for extent in [fields.get("extent")]
        ]
        newest = history[-1]
        return cls(epoch, stages[-1], tuple(stages[:-1]), newest.get("rank"), ended=newest["ended"])


@dataclass(frozen=True, slots=True)
class SamplePosition(Position):
    """How much of an epoch of items gathered by index a job has done, as a number of samples.

    Args:
        total: items of the epoch's order; `ENDLESS` if it has no end.
        start: samples that the job had taken when the stage began.
        exclusions: what is excluded from each source, for this epoch and the next. A single table has the name "".
        extents: what the table was in earlier parts of the epoch, oldest first, if it has grown since.
        width: that of the samples that the stage counts; 0 where they are rows.
        origin: tokens of the epoch that were taken as sequences of another length; `start` and `total` count the
            sequences after them.
        steps_before: steps of the epoch that the job took before the stage.
    """

    total: int = 0
    start: int = 0
    width: int = field(default=0, kw_only=True)
    origin: int = field(default=0, kw_only=True)
    steps_before: int = field(default=0, kw_only=True)
    exclusions: Mapping[str, ExclusionVersions] = field(default_factory=dict)
    extents: tuple[Extent, ...] = ()
    of_sources: ClassVar[bool] = False
    """Whether items come of several sources, of which each counts its own."""

    @property
    def exclusion_digests(self) -> Mapping[str, str]:
        """Hashes of all exclusions and inclusions before the epoch, by source."""
        return {name: versions.running.digest for name, versions in self.exclusions.items()}

    @property
    def consumed(self) -> int:
        """Samples that the job has taken."""
        if self.stage.steps:
            return self.batches(0).consumed(self.stage.steps)
        return self.start

    @property
    def tokens(self) -> int:
        """Tokens that the job has taken, if every sequence has as many as its length says."""
        return self.origin + (self.consumed - self.begins) * self.width

    @property
    def origins(self) -> Mapping[str, tuple[int, int]]:
        """What `origin` says, of each source on its own."""
        return {}

    @property
    def begins(self) -> int:
        """The sample from which `origin` counts; padding repeats samples from there."""
        return 0

    @property
    def samples_before(self) -> int:
        """Samples that the steps before the stage took, as the position counts them."""
        return self.start + self.origin

    @classmethod
    def made_of(cls, position: SamplePosition, **own: Any) -> Self:
        """Return the same position with what positions of this class have beside it."""
        same = {entry.name: getattr(position, entry.name) for entry in fields(SamplePosition)}
        return cls(**{**same, **own})

    def done(self, width: int) -> Done:
        """Return what the job has done of the epoch; samples of other widths count by their tokens.

        Args:
            width: that of the first samples of the epoch.
        """
        samples = self.consumed
        if self.origin:
            samples += self.origin // width
        return Done(self.steps_taken, samples, self.tokens)

    @property
    def cut_at(self) -> Any:
        """From which token on samples of the width of the stage are cut."""
        return self.origin

    def history(self) -> list[dict[str, Any]]:
        """Write one stage, with all steps of the epoch, the samples they took, and tables before this one.

        >>> SamplePosition(2, Stage(Topology(2, 1, 8), 3), total=90).history()
        [{'steps': 3, 'ended': False, 'consumed': 48}]
        """
        taken = {"steps": self.steps_taken, "ended": self.ended, "consumed": self.consumed}
        return [{**taken, "extents": [each.to_state() for each in self.extents]} if self.extents else taken]

    @classmethod
    def of_history(cls, epoch: int, history: Sequence[Mapping[str, Any]]) -> SamplePosition:
        """Read what `history` wrote, in a checked state: the start of a stage, of a shape that is for the job to say.

        So is what a state does not have: the rows of a single table, those of each source, and the exclusions.
        """
        [fields] = history
        extents = tuple(Extent.of(entry) for entry in fields.get("extents") or ())
        taken = {"start": fields["consumed"], "steps_before": fields["steps"]}
        return cls(epoch, _NO_STEP, ended=fields["ended"], extents=extents, **taken)

    def check_steps(self) -> None:
        """Refuse a position of a state whose steps cannot have taken so many samples.

        Raises:
            ResumeError: a step takes one at least.
        """
        steps, samples = self.steps_before, self.samples_before
        if steps > samples or bool(steps) != bool(samples):
            raise ResumeError(
                f"the state has taken {samples} samples in {steps} steps, and a step takes one at least; pass the "
                "value of state_dict() unchanged"
            )

    def check(self, total: int) -> None:
        """Refuse what a state has counted, if it does not fit an epoch of so many items.

        Raises:
            ResumeError: the epoch has fewer rows, or other ranks may still take a step that this rank does not know of.
        """
        if self.start > total:
            raise ResumeError(
                f"the state has taken {self.start} samples of an epoch that has {total}; load it with the table and "
                "filter of the run that was saved"
            )
        refuse_ended(self.start, total, ended=self.ended)

    def batches(self, rank: int) -> GlobalBatches:
        """Plan the stage for a rank."""
        return GlobalBatches(self.total, self.start, self.stage.topology, rank, self.begins, self.stage.aligned)

    def whole(self, topology: Topology, rank: int) -> GlobalBatches:
        """Plan the epoch from its start, as if the job always had one shape."""
        return GlobalBatches(self.total, 0, topology, rank)

    def on(self, topology: Topology) -> Self:
        """Return the position under a topology, in a new stage."""
        before = self.steps_taken
        return replace(self, start=self.consumed, steps_before=before, stage=Stage(topology), ended=False)


def refuse_ended(consumed: int, total: int, *, ended: bool) -> None:
    """Refuse to continue from the state of a rank that had ended while others continued.

    Raises:
        ResumeError: the message says what the others may still take.
    """
    if ended and consumed < total:
        raise ResumeError(
            f"the state was taken on a rank that had ended after {consumed} samples, while others take "
            f"{total - consumed} more; load the state of a rank that was still running, or the start of the "
            "next epoch"
        )
