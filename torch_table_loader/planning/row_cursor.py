"""Where a job stands in row mode: an epoch, and the samples that the job has taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from torch_table_loader.errors import ResumeError
from torch_table_loader.planning.cursor import Stage
from torch_table_loader.planning.exclusion import ExclusionVersions
from torch_table_loader.planning.global_batches import GlobalBatches
from torch_table_loader.planning.ranks import Topology

_ENDED = "ended"


@dataclass(frozen=True, slots=True)
class EpochPlace:
    """Where a job stands in an order of single rows, as a number of samples.

    Args:
        epoch: which.
        total: rows of the epoch's order.
        start: samples that the job had taken when the stage began.
        stage: the topology since, and the steps taken under it.
        ended: True on a rank that has taken all its batches while others may take one more.
    """

    epoch: int
    total: int
    start: int
    stage: Stage
    ended: bool = field(default=False, kw_only=True)

    @property
    def consumed(self) -> int:
        """Samples that the job has taken."""
        return self.batches(0).consumed(self.stage.steps)

    def batches(self, rank: int) -> GlobalBatches:
        """Plan the stage for a rank."""
        return GlobalBatches(self.total, self.start, self.stage.topology, rank)

    def on(self, topology: Topology) -> Self:
        """Go on under a topology, in a stage of its own."""
        return replace(self, start=self.consumed, stage=Stage(topology), ended=False)

    def after(self, steps: int, *, ended: bool = False) -> Self:
        """Stand where the stage has taken so many steps."""
        return replace(self, stage=Stage(self.stage.topology, steps), ended=ended)


@dataclass(frozen=True, slots=True)
class RowCursor(EpochPlace):
    """What a job has done of an epoch: the same on every rank, but for `ended`.

    Args:
        epoch: which.
        total: rows of the epoch, those that are excluded left out.
        start: samples that the job had taken when the stage began.
        stage: the topology since, and the steps taken under it.
        exclusions: what is taken out of this epoch, and of the next.
        ended: see `EpochPlace`.
    """

    exclusions: ExclusionVersions = field(default_factory=ExclusionVersions)

    def to_state(self) -> dict[str, Any]:
        """Write as ints, strings and lists, always under the same keys: a checkpoint may be put together key by key.

        >>> RowCursor(2, 100, 0, Stage(Topology(2, 4, 8), 3)).to_state()
        {'epoch': 2, 'consumed': 48, 'exclusions': []}
        """
        consumed = [self.consumed, _ENDED] if self.ended else self.consumed
        excluded = self.exclusions.to_state() if self.exclusions != ExclusionVersions() else []
        return {"epoch": self.epoch, "consumed": consumed, "exclusions": excluded}


@dataclass(frozen=True, slots=True)
class RowPosition:
    """What a state says, before it is known how many rows the epoch has.

    Args:
        epoch: which.
        consumed: samples that the job had taken.
        exclusions: of that epoch, and of the next.
        ended: see `RowCursor`.
    """

    epoch: int
    consumed: int
    exclusions: ExclusionVersions
    ended: bool

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> RowPosition:
        """Read what `RowCursor.to_state` wrote.

        Raises:
            ResumeError: it is something else.
        """
        epoch, consumed, ended = state.get("epoch"), state.get("consumed"), False
        if isinstance(consumed, list) and consumed[1:] == [_ENDED]:
            consumed, ended = consumed[0], True
        for name, value in (("epoch", epoch), ("consumed", consumed)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ResumeError(
                    f"the state must hold epoch and consumed as state_dict() writes them, got {name}={value!r}; "
                    "pass the value of state_dict() unchanged"
                )
        assert isinstance(epoch, int)  # noqa: S101 checked above
        assert isinstance(consumed, int)  # noqa: S101
        return cls(epoch, consumed, ExclusionVersions.from_state(state), ended)

    def cursor(self, total: int, topology: Topology) -> RowCursor:
        """Stand there under a topology.

        Args:
            total: rows of the epoch.
            topology: the job's.

        Raises:
            ResumeError: the epoch has fewer rows, or others may still take a step that this rank does not know of.
        """
        if self.consumed > total:
            raise ResumeError(
                f"the state has taken {self.consumed} samples of an epoch that has {total}; load it with the table and "
                "filter of the run that was saved"
            )
        if self.ended and self.consumed < total:
            raise ResumeError(
                f"the state was taken on a rank that had ended after {self.consumed} samples, while others take "
                f"{total - self.consumed} more; load the state of a rank that was still running, or the start of the "
                "next epoch"
            )
        return RowCursor(self.epoch, total, self.consumed, Stage(topology), self.exclusions)
