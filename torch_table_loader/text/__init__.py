"""Sequences of tokens: packs, documents, token files and tokenizers; the core comes in by the functions here alone.

They are `Samples.parts` of `PackedSamples`: how sequences are made of rows, read, decoded and counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.batching.policy import TypePolicy
    from torch_table_loader.batching.rows import RowsCodec
    from torch_table_loader.contracts import Source
    from torch_table_loader.engine.counting import Parts
    from torch_table_loader.engine.jobs.items_job import ItemsJob
    from torch_table_loader.engine.jobs.planner import PlannedStream
    from torch_table_loader.engine.jobs.stream_job import StreamJob
    from torch_table_loader.engine.rank_info import RankInfo
    from torch_table_loader.engine.saved_state import SavedState
    from torch_table_loader.engine.state_records import Written
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.keys import EpochKey
    from torch_table_loader.planning.stages import SamplePosition, StreamPosition
    from torch_table_loader.records import ReadTask
    from torch_table_loader.source.plan_cache import Plans
    from torch_table_loader.text.pack import PackedSamples
    from torch_table_loader.text.pack_counts import PackCounts
    from torch_table_loader.text.packed import PackedCodec
    from torch_table_loader.text.sequence_form import SequenceForm
    from torch_table_loader.text.token_stages import TokenStage


def stage_of(samples: PackedSamples, table: pa.Schema, asked: Sequence[str]) -> TokenStage:
    """Return the stage that the rows of a table pass in a stream; see `sequence_stages.stage_of`."""
    from torch_table_loader.text import sequence_stages

    return sequence_stages.stage_of(samples.pack, table, asked)


def items_of(
    source: Source, options: LoaderOptions, ranks: RankInfo, cache: Plans | None, parts: Parts | None
) -> ItemsJob:
    """Open this rank's share of the sequences of a table, gathered by index; see `open_job`."""
    from torch_table_loader.text.packed_items import open_sequences

    return open_sequences(source, options, ranks, cache, parts)


def codec_of(schema: pa.Schema, policy: TypePolicy) -> PackedCodec:
    """Choose how record batches of tokens or sequences become outputs; see `make_codec`."""
    from torch_table_loader.text import packed

    return packed.codec_of(schema, policy)


def one_of(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the one sequence of a batch, as `as_map()` shows it."""
    from torch_table_loader.text.packed_outputs import one_sequence

    return one_sequence(batch)


def rows_under(job: StreamJob, tasks: Iterable[ReadTask], key: EpochKey, width: int) -> NDArray[np.int64]:
    """Return the row id of each document under each sequence of a stream; this reads the documents.

    Args:
        tasks: name the rows of the stream, beginning with a whole sequence.
        key: what decides by chance how sequences are made.
        width: tokens of a sequence.
    """
    from torch_table_loader.text.packed_streams import documents_under

    return documents_under(job, tasks, key, width)


def rows_of_step(job: StreamJob, position: StreamPosition, step: int, width: int) -> NDArray[np.int64]:
    """Return the row id of each document under each sequence of a step of a stream; this reads the documents."""
    from torch_table_loader.text.packed_streams import documents_of_step

    return documents_of_step(job, position, step, width)


def counts_of_stream(job: StreamJob, start: StreamPosition, planned: PlannedStream) -> PackCounts:
    """Return what packing makes of a table in an epoch of a stream, from the epoch's start."""
    from torch_table_loader.text.packed_streams import counts_of

    return counts_of(job, start, planned)


def record_of(position: SamplePosition, anchors: Mapping[str, Sequence[int]]) -> dict[str, Written]:
    """Return what a state says of the sequences of items; see `PackingRecord`."""
    from torch_table_loader.text.packing_record import written_packing

    return written_packing(position, anchors)


def anchors_in(saved: SavedState) -> Mapping[str, list[int]]:
    """Return from where walks over the documents of each source begin, as a state says."""
    from torch_table_loader.text.packing_record import saved_anchors

    return saved_anchors(saved)


def flat_columns(schema: pa.Schema) -> pa.Schema:
    """Return the columns that are cut, of the type of one token's value, and the other columns of the documents."""
    from torch_table_loader.text import sequence_form

    return sequence_form.flat_columns(schema)


def columns_of_mixture(samples: PackedSamples, flat: Sequence[pa.Field], source: pa.Field) -> pa.Schema:
    """Return the columns of a mixture of sequences with some flat columns, whose documents have a column `source`."""
    from torch_table_loader.text import sequence_form

    return sequence_form.columns_of_mixture(samples.pack, flat, source)


def form_of_source(
    number: int, codec: RowsCodec[Any], mixed: pa.Schema, own: pa.Schema, policy: TypePolicy
) -> SequenceForm:
    """Return what makes sequences of a mixture of streams from what is read of one source."""
    from torch_table_loader.text.sequence_form import sequence_form

    return sequence_form(number, codec, mixed, own, policy)
