"""Jobs whose items have a place in one order, of which a step of all ranks takes the next: what these have in common.

They are functions of a job and a position, which says the order and where its stage begins.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch_table_loader.engine.jobs.planner import PlannedStage
from torch_table_loader.engine.jobs.resolve import warn_of_uneven_batches

if TYPE_CHECKING:
    from torch_table_loader.engine.jobs.walk import Walked
    from torch_table_loader.planning.global_batches import GlobalBatches


def batches_at(job: Walked, position: Any) -> GlobalBatches:
    """Return the batches of a stage for this rank, on the lanes of the job, until something changes."""
    stage = replace(position.stage, topology=replace(position.stage.topology, lanes=job.topology.lanes))
    batches: GlobalBatches = replace(position, stage=stage).batches(job.rank)
    until = job.until(position)
    if until is None:
        return batches
    return batches.up_to(until)


def planned_at(job: Walked, position: Any) -> PlannedStage:
    """Plan a stage of an epoch for this rank."""
    plan = batches_at(job, position)
    return PlannedStage(plan, plan.longest)


def warn_of_uneven_stages(job: Walked) -> None:
    """Warn if ranks take different numbers of steps, which they do at the end of an epoch alone."""
    last: Any
    *_, last = job.walk.stages(job.start(0))
    warn_of_uneven_batches(last.batches(job.rank))
