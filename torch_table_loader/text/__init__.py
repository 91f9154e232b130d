"""Sequences of tokens: packs, documents, token files and tokenizers; the core comes in by the functions here alone.

They are `Samples.parts` of `PackedSamples`: how sequences are made of rows, read, decoded and counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.batching.policy import TypePolicy
    from torch_table_loader.batching.rows import RowsCodec
    from torch_table_loader.contracts import Source
    from torch_table_loader.engine.counting import Parts
    from torch_table_loader.engine.jobs.planner import PlannedStream
    from torch_table_loader.engine.jobs.stream_job import StreamJob
    from torch_table_loader.engine.rank_info import RankInfo
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.keys import Key
    from torch_table_loader.planning.stages import StreamPosition
    from torch_table_loader.records import ReadTask
    from torch_table_loader.source.plan_cache import Plans
    from torch_table_loader.text.pack import PackedSamples
    from torch_table_loader.text.pack_counts import PackCounts
    from torch_table_loader.text.packed import PackedCodec
    from torch_table_loader.text.packed_items import PackedItems
    from torch_table_loader.text.sequence_form import SequenceForm
    from torch_table_loader.text.token_stages import TokenStage


def stage_of(samples: PackedSamples, table: pa.Schema, asked: Sequence[str], window: int | None) -> TokenStage:
    """Return the stage that the rows of a table pass in a stream; see `sequence_stages.stage_of`."""
    from torch_table_loader.text import sequence_stages

    return sequence_stages.stage_of(samples.pack, table, asked, window)


def items_of(
    source: Source, options: LoaderOptions, ranks: RankInfo, cache: Plans | None, parts: Parts | None
) -> PackedItems:
    """Open this rank's share of the sequences of a table, gathered by index; see `open_job`."""
    from torch_table_loader.text.packed_items import PackedItems

    return PackedItems.of(source, options, ranks, cache, parts)


def codec_of(schema: pa.Schema, policy: TypePolicy) -> PackedCodec:
    """Choose how record batches of tokens or sequences become outputs; see `make_codec`."""
    from torch_table_loader.text import packed

    return packed.codec_of(schema, policy)


def one_of(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the one sequence of a batch, as `as_map()` shows it."""
    from torch_table_loader.text.packed_outputs import one_sequence

    return one_sequence(batch)


def rows_under(job: StreamJob, tasks: Iterable[ReadTask], key: Key, width: int) -> NDArray[np.int64]:
    """Return the row id of each document under each sequence of a stream; see `StreamJob.rows_under`."""
    from torch_table_loader.text.packed_streams import documents_under

    return documents_under(job, tasks, key, width)


def counts_of_stream(job: StreamJob, start: StreamPosition, planned: PlannedStream) -> PackCounts:
    """Return what packing makes of a table in an epoch of a stream, from the epoch's start."""
    from torch_table_loader.text.packed_streams import counts_of

    return counts_of(job, start, planned)


def flat_columns(schema: pa.Schema) -> pa.Schema:
    """Return the columns that are cut, of the type of one token's value, and the other columns of the documents."""
    from torch_table_loader.text import sequence_form

    return sequence_form.flat_columns(schema)


def columns_of_mixture(samples: PackedSamples, flat: Sequence[pa.Field], source: pa.Field) -> pa.Schema:
    """Return the columns of a mixture of sequences with some flat columns, whose documents have a column `source`."""
    from torch_table_loader.text import sequence_form

    return sequence_form.columns_of_mixture(samples.pack, flat, source)


def item_bytes(samples: PackedSamples, schema: pa.Schema) -> int:
    """Return the decoded bytes of a sequence of a stream with some columns."""
    from torch_table_loader.text import sequence_form

    return sequence_form.item_bytes(samples.pack, schema)


def form_of_source(
    number: int, codec: RowsCodec[Any], mixed: pa.Schema, own: pa.Schema, policy: TypePolicy
) -> SequenceForm:
    """Return what makes sequences of a mixture of streams from what is read of one source."""
    from torch_table_loader.text.sequence_form import sequence_form

    return sequence_form(number, codec, mixed, own, policy)
