"""What is known of the sequences of a stream: what packing makes of its documents, and which lie under a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

from torch_table_loader.records import ROW_ID
from torch_table_loader.text.pack_counts import PackCounts
from torch_table_loader.text.sequence_stages import stage_of
from torch_table_loader.text.token_rows import ids_under

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from torch_table_loader.engine.jobs.planner import PlannedStream
    from torch_table_loader.engine.jobs.stream_job import StreamJob
    from torch_table_loader.planning.keys import EpochKey
    from torch_table_loader.planning.stages import StreamPosition
    from torch_table_loader.records import ReadTask
    from torch_table_loader.text.pack import Pack

    Ints: TypeAlias = NDArray[np.int64]


def documents_under(job: StreamJob, tasks: Iterable[ReadTask], key: EpochKey, seq_len: int) -> Ints:
    """Return the row id of each document in each sequence of a packed stream; this reads the documents.

    Args:
        tasks: name the tokens or sequences, beginning with a whole sequence.
        key: decides in which order blocks are packed.
        seq_len: tokens of a sequence, if documents are cut anywhere.
    """
    pack, options = cast("Pack", job.options.pack), job.options
    stage = stage_of(pack, job.table.schema, (ROW_ID,), options.window)
    reader = job.table.reader(pack.reads(None), options.filters, row_ids=True, max_rows=job.read_rows, stage=stage)
    reader = reader.of_epoch(key, shuffle=bool(options.shuffle))
    batches = (batch for task in tasks for batch in reader.read(task))
    return ids_under(batches, seq_len if pack.joins_documents else None)


def counts_of(job: StreamJob, start: StreamPosition, planned: PlannedStream) -> PackCounts:
    """Return what packing makes of the table in an epoch; sequences of "concat" end where a rank's tokens do."""
    pack, planner, nobody_knows = cast("Pack", job.options.pack), job.planner, (None, None, None, None, None, None)
    if pack.joins_documents:
        tokens = planner.rows_of_ranks(start) if planner.counted else None
        if tokens is None:
            return PackCounts(pack.width, *nobody_knows)
        sequences = sum(-(-own // pack.width) for own in tokens)
        return PackCounts(pack.width, sequences, sum(tokens), None, None)
    if job.num_rows(start.epoch) is None:
        return PackCounts(pack.width, *nobody_knows)
    found = cast("PackCounts | None", planner.made_of(planned.segments, start.epoch))
    return found or PackCounts(pack.width, int(planned.segments.live_rows.sum()), *nobody_knows[1:])
