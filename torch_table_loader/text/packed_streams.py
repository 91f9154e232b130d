"""What is known of the sequences of a stream: what packing makes of its documents, and which lie under a sequence."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.engine.jobs.job import with_padding
from torch_table_loader.planning.rows_of import lane_of
from torch_table_loader.records import ROW_ID
from torch_table_loader.text.pack_counts import PackCounts
from torch_table_loader.text.packed import codec_of
from torch_table_loader.text.sequence_stages import stage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from numpy.typing import NDArray

    from torch_table_loader.engine.jobs.planner import PlannedStream
    from torch_table_loader.engine.jobs.stream_job import StreamJob
    from torch_table_loader.planning.keys import EpochKey
    from torch_table_loader.planning.stages import StreamPosition
    from torch_table_loader.read.tasks import TaskReader
    from torch_table_loader.text.pack import Pack
    from torch_table_loader.text.packed import PackedCodec, PackedRows

    Ints: TypeAlias = NDArray[np.int64]
    ReadRows: TypeAlias = Callable[[TaskReader, PackedCodec], Iterable[PackedRows]]


def documents_of_step(job: StreamJob, position: StreamPosition, step: int, seq_len: int) -> Ints:
    """Return the row id of each document in each sequence of a step of a packed stream; this reads the documents."""
    work, reader = job.work(position), _reader(job, job.stage_key(position.epoch))
    codec = codec_of(with_padding(reader.schema, job.topology), TypePolicy.of(job.options))
    lane, before = lane_of(work.plan, step)
    rows = replace(work, reader=reader, codec=codec, readers=0).rows(lane, before)
    found, wanted = [], work.plan.batch_size
    with closing(cast("Generator[PackedRows]", rows)) as source:
        while wanted and (some := next(source, None)) is not None:
            found.append(some.slice(0, min(wanted, some.num_rows)))
            wanted -= found[-1].num_rows
    return _ids_of(found, codec, seq_len)


def documents_under(job: StreamJob, rows: ReadRows, key: EpochKey, seq_len: int) -> Ints:
    """Return the row id of each document in each sequence of some rows; this reads the documents.

    Args:
        rows: reads the tokens or sequences, from the begin of a sequence on, given what reads and decodes them.
        key: decides in which order blocks are packed.
        seq_len: tokens of a sequence, if documents are cut anywhere.
    """
    reader = _reader(job, key)
    codec = codec_of(reader.schema, TypePolicy.of(job.options))
    return _ids_of(list(rows(reader, codec)), codec, seq_len)


def _reader(job: StreamJob, key: EpochKey) -> TaskReader:
    """Return what reads the job's documents in an epoch, with their row ids."""
    pack, options = cast("Pack", job.options.pack), job.options
    stage = stage_of(pack, job.table.schema, (ROW_ID,)).in_blocks(job.block)
    reader = job.table.reader(pack.reads(None), row_ids=True, max_rows=job.read_rows, stage=stage)
    return reader.of_epoch(key, shuffle=bool(options.shuffle))


def _ids_of(runs: Sequence[PackedRows], codec: PackedCodec, seq_len: int) -> Ints:
    """Return the row id of each document under each sequence of rows that follow one another."""
    none = np.empty(0, dtype=np.int64)
    width = seq_len if codec.runs is not None else codec.width
    before = np.cumsum([0, *(rows.num_rows * codec.width for rows in runs)]).tolist()
    at = np.concatenate([none, *(rows.parts.at + start for rows, start in zip(runs, before, strict=False))])
    last = at + np.concatenate([none, *(rows.parts.length for rows in runs)]) - 1
    columns = (rows.parts.columns for rows in runs)
    ids = np.concatenate([none, *(each.field(ROW_ID).to_numpy() for each in columns if each is not None)])
    return np.repeat(ids, last // width - at // width + 1)


def counts_of(job: StreamJob, start: StreamPosition, planned: PlannedStream) -> PackCounts:
    """Return what packing makes of the table in an epoch; sequences of "concat" end where a rank's tokens do."""
    pack, planner, nobody_knows = cast("Pack", job.options.pack), job.planner, (None, None, None, None, None, None)
    if pack.joins_documents:
        if not planner.counted or (tokens := planner.rows_of_ranks(start)) is None:
            return PackCounts(pack.width, *nobody_knows)
        sequences = sum(-(-own // pack.width) for own in tokens)
        return PackCounts(pack.width, sequences, sum(tokens), None, None)
    if job.num_rows(start.epoch) is None:
        return PackCounts(pack.width, *nobody_knows)
    found = cast("PackCounts | None", planner.made_of(planned.segments, start.epoch))
    return found or PackCounts(pack.width, int(planned.segments.live_rows.sum()), *nobody_knows[1:])
