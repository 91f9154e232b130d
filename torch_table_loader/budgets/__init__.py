"""Batches of a budget in streams: each batch is cut while planning, and is a row of the stream.

The core comes in by the functions here alone; they are `Samples.parts` of `FilledSamples`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.batching.policy import TypePolicy
    from torch_table_loader.budgets.batches_as_rows import BatchesAsRows
    from torch_table_loader.budgets.counts import BudgetCounts
    from torch_table_loader.budgets.filled_codec import FilledCodec
    from torch_table_loader.engine.jobs.planner import PlannedStream
    from torch_table_loader.engine.jobs.stream_job import StreamJob
    from torch_table_loader.planning.stages import StreamPosition
    from torch_table_loader.samples import FilledSamples


def stage_of(samples: FilledSamples, table: pa.Schema, asked: Sequence[str]) -> BatchesAsRows:
    """Return the stage that makes batches of the rows of a table."""
    from torch_table_loader.budgets.batches_as_rows import BatchesAsRows

    del asked
    return BatchesAsRows(samples, table)


def codec_of(schema: pa.Schema, policy: TypePolicy) -> FilledCodec:
    """Choose how batches that are rows become outputs; see `make_codec`."""
    from torch_table_loader.budgets.filled_codec import FilledCodec

    return FilledCodec(schema, policy)


def rows_of_step(job: StreamJob, position: StreamPosition, step: int, width: int) -> NDArray[np.int64]:
    """Return the row id of each row of the batch of a step; this reads their lengths."""
    from torch_table_loader.budgets.batches_as_rows import ids_of_step

    del width
    return ids_of_step(job, position, step)


def counts_of_stream(job: StreamJob, start: StreamPosition, planned: PlannedStream) -> BudgetCounts:
    """Return how full the batches of a table are."""
    from torch_table_loader.budgets.batches_as_rows import counts_of

    del start
    return counts_of(job, planned)
