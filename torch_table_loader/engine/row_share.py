"""What a rank's share of single rows has in common, whether one store stands behind it or several."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch_table_loader.batching.codec import make_codec
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.engine.fitting import with_padding
from torch_table_loader.engine.row_work import RowWork
from torch_table_loader.engine.sizes import blocks_of_a_process
from torch_table_loader.planning.cursor import Stage

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_table_loader.engine.row_work import Feed
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.global_batches import GlobalBatches
    from torch_table_loader.planning.ranks import Topology
    from torch_table_loader.planning.row_cursor import EpochPlace


class PlannedRows(NamedTuple):
    """What one rank delivers in a stage of an epoch.

    Args:
        plan: its steps.
        longest: steps of the rank that takes most.
    """

    plan: GlobalBatches
    longest: int


class RowShare(Protocol):
    """One rank's share of an order of single rows."""

    @property
    def options(self) -> LoaderOptions:
        """The caller's, with `batch_size` resolved."""
        ...

    @property
    def columns(self) -> pa.Schema:
        """The schema of what comes out, padding left out."""
        ...

    @property
    def topology(self) -> Topology:
        """The job's shape."""
        ...

    @property
    def rank(self) -> int:
        """This rank."""
        ...

    @property
    def row_bytes(self) -> int:
        """Decoded bytes of a row."""
        ...

    @property
    def gather_batches(self) -> int:
        """Batches that are gathered together."""
        ...


def schema_of(share: RowShare) -> pa.Schema:
    """The Arrow schema of what comes out, the same at every position."""
    return with_padding(share.columns, marks=share.topology.even_ranks == "pad")


def planned_rows(share: RowShare, cursor: EpochPlace) -> PlannedRows:
    """Plan a stage of an epoch for this rank, on the lanes of this job."""
    stage = Stage(replace(cursor.stage.topology, lanes=share.topology.lanes), cursor.stage.steps)
    plan = replace(cursor, stage=stage).batches(share.rank)
    return PlannedRows(plan, plan.longest)


def blocks_of(share: RowShare) -> tuple[int, int]:
    """Size what crosses a process: batches of a block, and how many of a lane wait there."""
    options = share.options
    return blocks_of_a_process(
        share.row_bytes, options.batch_size, options.prefetch_batches, collated=options.collate_fn is not None
    )


def work_of(share: RowShare, cursor: EpochPlace, feed: Feed) -> RowWork:
    """Make a value that threads and processes can work on.

    Args:
        share: this rank's.
        cursor: where it stands.
        feed: gives the rows of the epoch by their place in its order.
    """
    options, schema = share.options, schema_of(share)
    block_batches, blocks_ahead = blocks_of(share)
    return RowWork(
        plan=planned_rows(share, cursor).plan,
        feed=feed,
        schema=schema,
        codec=make_codec(schema, TypePolicy.of(options)),
        epoch=cursor.epoch,
        marks_padding=share.topology.even_ranks == "pad",
        collate_fn=options.collate_fn,
        drop_last=options.drop_last,
        gather_batches=share.gather_batches,
        block_batches=block_batches,
        blocks_ahead=blocks_ahead,
    )
