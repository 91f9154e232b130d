"""Where a job stands, as a value, and as the plain data of a state."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from torch_table_loader.errors import ConfigError, ResumeError
from torch_table_loader.planning.ranks import Topology

STATE_VERSION = 1

_topology_values = operator.attrgetter(*(entry.name for entry in fields(Topology)))

_WIDTH = len(fields(Topology)) + 1
"""Values of a stage in a state."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of an epoch in which the topology did not change.

    Args:
        topology: the job's shape.
        steps: that the job took under it.
    """

    topology: Topology
    steps: int = 0

    def __post_init__(self) -> None:
        """Refuse a negative number."""
        if self.steps < 0:
            raise ConfigError(f"steps must be at least 0, got {self.steps}")


@dataclass(frozen=True, slots=True)
class Cursor:
    """What a job has done of an epoch: the same on every rank, but for `ended`.

    Args:
        epoch: which.
        past: the stages before the newest, oldest first.
        stage: the newest.
        ended: True on a rank that has taken all its batches while others may go on.
        rank: only where rows are not counted: the one rank that can go on from here.
    """

    epoch: int
    past: tuple[Stage, ...]
    stage: Stage
    ended: bool = False
    rank: int | None = None

    @classmethod
    def at(cls, epoch: int, topology: Topology) -> Cursor:
        """Stand at the start of an epoch."""
        return cls(epoch, (), Stage(topology))

    def on(self, topology: Topology) -> Cursor:
        """Go on under a topology: the same stage if nothing changes, else a new one."""
        if topology == self.stage.topology:
            return self
        past = (*self.past, self.stage) if self.stage.steps else self.past
        return replace(self, past=past, stage=Stage(topology))

    def after(self, steps: int, *, ended: bool = False) -> Cursor:
        """Stand where the newest stage has taken so many steps."""
        return Cursor(self.epoch, self.past, Stage(self.stage.topology, steps), ended, self.rank)

    def to_state(self) -> dict[str, Any]:
        """Write as ints, strings and lists, under the same keys always.

        A stage is the fields of its `Topology` in order, then its steps; the newest goes on with `ended` and `rank`
        where they say something. All that may differ between ranks is in that one list, because
        ``torch.distributed.checkpoint`` may keep one rank's value of one key and another rank's of the next.

        >>> Cursor(2, (), Stage(Topology(4, 2, 1024), 17)).to_state()
        {'epoch': 2, 'history': [[4, 2, 1024, None, None, False, 17]]}
        >>> Cursor(2, (), Stage(Topology(4, 2, 1024), 17), ended=True).to_state()["history"][-1]
        [4, 2, 1024, None, None, False, 17, True]
        """
        history: list[list[Any]] = [
            [*_topology_values(stage.topology), stage.steps] for stage in (*self.past, self.stage)
        ]
        if self.rank is not None:
            history[-1] += [self.ended, self.rank]
        elif self.ended:
            history[-1] += [True]
        return {"epoch": self.epoch, "history": history}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Cursor:
        """Read what `to_state` wrote.

        Raises:
            ResumeError: it is something else.
        """
        try:
            *_, newest = entries = [list(entry) for entry in state["history"]]
            said: list[Any] = [*newest[_WIDTH:], *(False, None)[len(newest) - _WIDTH :]]
            ended, rank = said
            del newest[_WIDTH:]
            stages = [Stage(Topology(*entry[:-1]), operator.index(entry[-1])) for entry in entries]
            return cls(operator.index(state["epoch"]), tuple(stages[:-1]), stages[-1], ended, rank)
        except (KeyError, TypeError, ValueError) as error:
            raise ResumeError(
                f"the state must hold epoch and history as state_dict() writes them, got {error!r}; "
                "pass the value of state_dict() unchanged"
            ) from error
