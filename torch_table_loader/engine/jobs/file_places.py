"""Where files come in an epoch of a stream whose batches end with files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_table_loader.errors import ConfigError
from torch_table_loader.messages import did_you_mean, warn_caller
from torch_table_loader.planning.rows_of import file_of_batch, first_step_of
from torch_table_loader.planning.stages import StreamPosition

if TYPE_CHECKING:
    from torch_table_loader.engine.jobs.planner import Planner
    from torch_table_loader.engine.jobs.walk import Walked
    from torch_table_loader.planning.ranks import Topology
    from torch_table_loader.planning.stages import Position


@dataclass(frozen=True, slots=True)
class FilePlaces:
    """The files of a table by the steps of a job that take their rows.

    Args:
        topology: the job's shape.
    """

    job: Walked
    planner: Planner
    topology: Topology

    def newest(self, position: Any) -> str | None:
        """Return the name of the file that the newest batch is of; see `TableLoader.current_file`."""
        planned: Any = self.job.planned(position)
        taken = min(position.stage.steps, planned.plan.steps)
        if taken:
            return file_of_batch(planned.plan, planned.segments, planned.windows, taken - 1)
        return None

    def step_of(self, epoch: int, file: str) -> int:
        """Return the step in which the first rank comes to a file; see `TableLoader.seek`.

        Raises:
            ConfigError: the epoch has no row of this file.
        """
        names = [each.name for each in self.planner.layout.files]
        if file not in names:
            raise ConfigError(f"the table has no file {file!r}{did_you_mean(file, names)}")
        start, number = self.planner.start(epoch), names.index(file)
        planned = [self.planner.plan(start, rank) for rank in range(self.topology.num_ranks)]
        steps = [first_step_of(each.plan, each.segments, number) for each in planned]
        first = min((step for step in steps if step is not None), default=None)
        if first is None:
            raise ConfigError(f"epoch {epoch} delivers no row of {file!r}; name a file that has rows to deliver")
        if over := [rank for rank, each in enumerate(planned) if each.plan.steps <= first]:
            warn_caller(
                f"ranks {over} have no batch left where {file!r} begins, which is step {first}; seek(file=k) begins "
                "each rank with its own k-th file"
            )
        return first

    def at(self, epoch: int, number: int) -> Position:
        """Return the position after the first files of every rank, as if a job of one rank had read them alone.

        The files that are left are dealt anew, in the same order, so that each rank begins with its own.

        Raises:
            ConfigError: no rank has so many files.
        """
        planner, job = self.planner, self.job
        if not (planner.strategy.cuts and planner.counted):
            raise ConfigError(
                f"seek(file={number}) counts files in the epoch's order, which needs a split_strategy that cuts and "
                "count_filtered=True; name the file instead"
            )
        alone = replace(self.topology, num_ranks=1, lanes=1, even_ranks=None, drop_last=False)
        begun = StreamPosition.at(epoch, alone)
        planned = planner.plan(begun, 0)
        [runs] = planned.plan.lanes
        file = planned.segments.splits.file[runs.split]
        firsts = np.flatnonzero(np.diff(file, prepend=-1))
        skipped = number * self.topology.num_ranks
        if skipped >= len(firsts):
            raise ConfigError(
                f"epoch {epoch} has {len(firsts)} files with rows for {self.topology.num_ranks} ranks, got "
                f"file={number}; pass a number below {-(-len(firsts) // self.topology.num_ranks)}"
            )
        steps = planned.plan.first_batch_of(0, int(firsts[skipped]))
        if not steps:
            return job.start(epoch)
        left: Position = job.next_stage(begun.after(steps))
        return left
