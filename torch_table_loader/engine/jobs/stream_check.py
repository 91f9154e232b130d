"""Whether the state of a stream is one from which a rank can continue."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch_table_loader.engine.jobs.bound import refuse_unknown
from torch_table_loader.engine.jobs.resolve import refuse_shape
from torch_table_loader.errors import ResumeError

if TYPE_CHECKING:
    from torch_table_loader.engine.jobs.planner import Planner
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.stages import StreamPosition


@dataclass(frozen=True, slots=True)
class StreamCheck:
    """The check of positions against the plan of a job, for one rank of it."""

    planner: Planner
    options: LoaderOptions
    rank: int

    def check(self, position: StreamPosition) -> None:
        """Refuse a position that no job over the table can have had, or that this rank cannot continue from."""
        planner, topology = self.planner, self.planner.topology
        if position.rank is None and not planner.counted:
            raise ResumeError(
                "the state counts rows that pass the filter, but count_filtered=False does not; leave it True"
            )
        if extents := position.extents:
            refuse_unknown(extents, planner.files_of)
        for number, stage in enumerate(stages := position.stages):
            if stage.topology != topology:
                refuse_shape(stage.topology, self.options, planner)
            if stage.steps and planner.counted:
                self._refuse_steps_beyond(number, replace(position, stage=stage, past=stages[:number]))
        if position.rank is not None:
            self._refuse_own_rows(position)
        if position.ended and (longest := planner.longest(position)) > position.stage.steps:
            raise ResumeError(
                f"the state was taken on a rank that had ended after {position.stage.steps} steps, while others "
                f"take up to {longest}; load the state of a rank that was still running, or the start of the next "
                "epoch"
            )

    def _refuse_steps_beyond(self, number: int, position: StreamPosition) -> None:
        """Refuse more steps of a stage than any rank has.

        Of a job of this shape, other ranks are not counted if this one has as many; any other is subtracted as a whole.
        """
        planner, topology, taken = self.planner, position.stage.topology, position.stage.steps
        if topology == planner.topology and taken <= planner.plan(position, self.rank).plan.steps:
            return
        if taken > (longest := planner.longest(position)):
            raise ResumeError(
                f"the state has taken {taken} steps in stage {number} of its epoch, which has {longest} under "
                f"{topology}; pass the value of state_dict() unchanged"
            )

    def _refuse_own_rows(self, position: StreamPosition) -> None:
        """Refuse a position of a rank that counted its own rows alone, if the table grew or the job is another."""
        if position.extents:
            raise ResumeError(
                "the state was saved with count_filtered=False, so it is unknown which rows were taken before the "
                "table grew; leave on_growth out, or count_filtered=True"
            )
        if (position.rank, position.stage.topology) != (self.rank, self.planner.topology):
            raise ResumeError(
                "the state was saved with count_filtered=False, so that only rank "
                f"{position.rank} of the same job can continue from it; pass count_filtered=True for states that any "
                "rank can load"
            )
