"""Sequences of the tokens of one table, shuffled over all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.arrow.datatypes import opened_type, width_of
from torch_table_loader.batching.codec import make_codec
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.cached import cached_property
from torch_table_loader.engine.exclusion_record import written_exclusions
from torch_table_loader.engine.items import ItemFacts, TableItems, TurnsOf
from torch_table_loader.engine.jobs.batching import Batching
from torch_table_loader.engine.jobs.gathering import Gathering
from torch_table_loader.engine.jobs.items_job import ItemsJob
from torch_table_loader.engine.jobs.job import with_padding
from torch_table_loader.engine.jobs.live_rows import LiveRows
from torch_table_loader.engine.jobs.resolve import (
    codec_of,
    columns_of,
    surveyed,
    topology_of,
)
from torch_table_loader.engine.jobs.table_rows import bound_to_rows, live_rows_of, stored_rows
from torch_table_loader.engine.newest import Newest
from torch_table_loader.engine.saved_state import Bound
from torch_table_loader.engine.sizing import (
    LANE_COPIES,
    batches_in_flight,
    batches_of_a_gather,
    batches_of_sequences,
)
from torch_table_loader.errors import ConfigError, ResumeError, TableError
from torch_table_loader.planning.exclusion import Exclusions
from torch_table_loader.planning.stages import SamplePosition
from torch_table_loader.records import SOURCE_COLUMN
from torch_table_loader.text.changed_tokens import ChangedTokens, ChangingDocuments, as_stored
from torch_table_loader.text.kept_documents import KeptDocuments, MeasuredDocuments, kept_type
from torch_table_loader.text.packed_work import BalancedBatches, PackedStream
from torch_table_loader.text.packing_record import saved_anchors, written_packing
from torch_table_loader.text.parameters import takes_epoch
from torch_table_loader.text.sequence_orders import SequenceOrder
from torch_table_loader.text.stored_tokens import StoredTokens
from torch_table_loader.text.token_rows import DOCUMENTS, schema_of_sequences
from torch_table_loader.text.token_stages import bytes_of_token
from torch_table_loader.text.tokens_in_place import TokensInPlace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.contracts import Source
    from torch_table_loader.engine.counting import Parts
    from torch_table_loader.engine.jobs.by_step import ByStep
    from torch_table_loader.engine.rank_info import RankInfo
    from torch_table_loader.engine.saved_state import SavedState
    from torch_table_loader.engine.state_records import Written
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.global_batches import GlobalBatches
    from torch_table_loader.planning.ranks import Topology
    from torch_table_loader.source.plan_cache import Plans
    from torch_table_loader.text.pack import Pack

    Ints: TypeAlias = NDArray[np.int64]

_OF_WINDOWS = (
    'removes documents, but strategy="windows" cuts tokens without regard to documents; use strategy="concat", or '
    "filters="
)

_KEPT_STREAMS = 4
"""Orders that were asked for last; what was walked of them is known to them."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PackedItems(TableItems):
    """Sequences of the tokens of one table; `documents` are the columns that the store keeps."""

    rows: LiveRows
    columns: pa.Schema
    row_bytes: int
    documents: pa.Schema
    tokens: StoredTokens
    _streams: Newest[tuple[Any, ...], PackedStream] = field(
        default_factory=partial(Newest, _KEPT_STREAMS), init=False, repr=False
    )

    @override
    def refuse_nulls(self) -> None:
        """Refuse nulls in columns of the documents."""
        options = _of_documents(self.rows.options, self.pack)
        table = self.rows.table
        codec_of(table, self.documents, columns_of(table, options), options)

    @property
    def pack(self) -> Pack:
        """What the caller asked for."""
        return self.tokens.pack

    @cached_property
    @override
    def bound(self) -> Bound:
        pack, own = self.pack, bound_to_rows(self.rows, _as_delivered(self.documents, self.columns, self.pack))
        packed = {"stage": f"{pack.strategy}-{self.tokens.made}", **pack.shape}
        return Bound(own.table, {**own.options, **packed})

    @override
    def start(self, epoch: int, by_step: ByStep) -> SamplePosition:
        versions, width = self.rows.exclusions.of(epoch), by_step.length_at(epoch)
        total = self._stream(epoch, versions.running, width).count
        start = SamplePosition(epoch, by_step.stage_at(epoch), total=total, exclusions={"": versions}, width=width)
        return self._dealt(start)

    @override
    def next_stage(self, position: SamplePosition, by_step: ByStep) -> SamplePosition:
        """Return the position with a stage of sequences of the next length, from the next token on."""
        after: SamplePosition = super().next_stage(position, by_step)
        if not by_step.changes_length:
            return after
        return self._cut_anew(after, by_step)

    def _cut_anew(self, position: SamplePosition, by_step: ByStep) -> SamplePosition:
        """Return the start of a stage in sequences of the length of its first step, from the next token on."""
        origin = self.stream(position).tokens_before(position.start)
        width = by_step.length_at(position.epoch, position.steps_before)
        after = replace(position, origin=origin, start=0, width=width)
        return self._dealt(replace(after, total=self.stream(after).count))

    def _dealt(self, position: SamplePosition) -> SamplePosition:
        """Return a position whose batches are dealt to ranks as the pack says."""
        if self.pack.balance is None:
            return position
        return BalancedPosition.made_of(position, items=self.stream(position))

    @override
    def enter(self, before: SamplePosition, position: SamplePosition) -> None:
        if anchor := self.stream(before).anchor(before.consumed):
            self.stream(position).begin_at(anchor)

    @override
    def records(self, position: SamplePosition) -> dict[str, Written]:
        """Return what a state says of exclusions and sequences.

        An anchor is where a walk can begin; see `PackedStream.anchor`. It holds for the epoch, whatever was consumed.
        """
        consumed, anchors = position.consumed, {}
        if (consumed or position.origin) and (anchor := self.stream(position).anchor(consumed)):
            anchors[""] = anchor
        excluded = written_exclusions({"": self.rows.versions(position.exclusions[""].running)})
        return excluded | written_packing(position, anchors)

    @override
    def resume(self, saved: SavedState, by_step: ByStep) -> tuple[Self, SamplePosition]:
        taken, anchors = cast("SamplePosition", saved.taken), saved_anchors(saved)
        excluded = self.rows.exclusions_in(saved)
        items = self.having(self.rows.excluding(excluded, taken.epoch))
        position = replace(taken, exclusions={"": excluded}, ended=False)
        stream = items.stream(position)
        if taken.origin and (not self.pack.joins_documents or stream.tokens_before(0) != taken.origin):
            raise ResumeError(
                f"the state has taken {taken.origin} tokens as sequences of another length, and the epoch has fewer, "
                "or sequences of one length; pass the value of state_dict() unchanged"
            )
        taken.check(stream.count)
        if by_step.changes_length or taken.width != by_step.width:
            position = items._cut_anew(position, by_step)  # a stage ends at a step, and begins with a token
        else:
            position = items._dealt(replace(position, total=stream.count))
        if anchors:
            items.stream(position).begin_at(anchors[""])
        return items, replace(position, stage=by_step.stage_at(taken.epoch, position.done(by_step.width)))

    @override
    def stream(self, position: SamplePosition) -> PackedStream:
        return self._stream(position.epoch, position.exclusions[""].running, position.width, position.origin)

    @override
    def count(self, turns: TurnsOf) -> int:
        """Return how many sequences the first round has: of most packs that is the same in each epoch."""
        self.rows.draws.refuse_rounds_that_differ()
        if not self.rows.remaining(turns.exclusions).num_rows:
            return 0
        if self.tokens.packer.block_docs is not None or takes_epoch(self.pack.documents):
            return self.by_turn(turns).count
        return self._stream(0, turns.exclusions, turns.width).count

    @override
    def by_turn(self, turns: TurnsOf) -> PackedStream:
        since, origin = turns.origin
        own: dict[str, Any] = {"seed": turns.seed, "epoch": turns.epoch, "source": turns.name}
        own |= {"origin": origin, "since": since}
        tokens = self.tokens.of_epoch(turns.seed, turns.epoch).of_length(turns.width)
        key, constants = (
            (turns.exclusions.digest, turns.number, turns.width, *own.values()),
            {SOURCE_COLUMN: turns.number},
        )
        made = partial(_checked_stream, self, tokens, turns.columns)
        rows = self.rows
        selected = partial(rows.of_source, turns.name, turns.exclusions, turns.seed, turns.epoch)
        return self._streams.of(key, lambda: made(selected(), constants=constants, **own))

    @property
    @override
    def num_places(self) -> int:
        return _windows_of(self.tokens).count

    @override
    def gathering(self, topology: Topology) -> Gathering:
        options, row_bytes = self.rows.options, self.row_bytes
        most, at_once = options.most_rows, batches_of_sequences(row_bytes, options.most_rows)
        batching, gathered = Batching.of(options, topology, row_bytes, at_once), batches_of_a_gather(row_bytes, most)
        tokens = gathered * most * (self.pack.longest + 2 * self.tokens.longest)
        stored = sum(width_of(entry.type.value_type) for entry in self.columns if entry.name != DOCUMENTS)
        batches = batches_in_flight(options, min(gathered, at_once or gathered), batching.blocks)
        lane_bytes = LANE_COPIES * tokens * stored + batches * most * row_bytes
        return Gathering(batching=batching, batches=gathered, lane_bytes=lane_bytes)

    @override
    def columns_at(self, places: Ints) -> list[pa.Array]:
        return self._stream(0, Exclusions(), self.pack.width).gather(_windows_of(self.tokens).slices(places))

    @override
    def ids_at(self, places: Ints) -> Ints:
        """Return the row ids of the documents under the windows at some places of the table, window by window."""
        return self.rows.store.rows().ids(_windows_of(self.tokens).slices(places).document)

    @override
    def facts(self, stages: Sequence[SamplePosition], end: int, by_step: ByStep) -> ItemFacts:
        rows, pack, start = self.rows, self.pack, stages[0]
        tokens, stream = self.tokens.of_epoch(rows.options.shuffle_seed, start.epoch), self.stream(start)
        orders = {
            "windows": f"windows of the table's tokens, {pack.stride or pack.width:,} apart, are shuffled one by one",
            "concat": "documents are shuffled one by one, put after one another, and cut",
            "pad": "documents are shuffled one by one, each a sequence",
            "best_fit": f"documents are shuffled one by one, and packed, {pack.block_docs:,} together",
        }
        sequences, counts = "", None
        if not by_step.changes_length:
            # The order is walked for what packing makes of the documents, where sequences have one length.
            sequences, counts = f"{start.total:,} sequences of ", stream.counts()
        notes = [
            f"{orders[pack.strategy]}, {pack.lengths_in_words} a sequence, from {rows.where}",
            f"{sequences}{tokens.lengths.total:,} tokens in {rows.count:,} documents",
            rows.note(stream.documents, start.exclusions[""].running),
            *filter(None, [rows.store.note]),
        ]
        return ItemFacts(
            strategy=f"packed {pack.strategy}",
            notes=notes,
            held_bytes=rows.held_bytes + self.tokens.memory_bytes,
            built_bytes=rows.built_bytes,
            counts=counts,
        )

    def _stream(self, epoch: int, exclusions: Exclusions, width: int, origin: int = 0) -> PackedStream:
        """Return the order of an epoch, from a token on, as sequences of a width."""
        rows, seed = self.rows, self.rows.options.shuffle_seed
        tokens = self.tokens.of_epoch(seed, epoch).of_length(width)
        own: dict[str, Any] = {"seed": seed, "epoch": epoch, "origin": origin}
        key = epoch, exclusions.digest, origin, width
        made = partial(_checked_stream, self, tokens, self.columns)
        return self._streams.of(key, lambda: made(rows.of_epoch(exclusions, epoch), rows.draws.most, **own))


@dataclass(frozen=True, slots=True)
class BalancedPosition(SamplePosition):
    """How much of an epoch a job has done whose ranks take as much work of attention each."""

    items: PackedStream = field(kw_only=True, compare=False, repr=False)

    @override
    def batches(self, rank: int) -> GlobalBatches:
        plan = SamplePosition.batches(self, rank)
        if plan.topology.num_ranks == 1:
            return plan
        return BalancedBatches(plan.total, plan.start, plan.topology, rank, plan.first, plan.aligned, items=self.items)


def open_sequences(
    source: Source, options: LoaderOptions, ranks: RankInfo, cache: Plans | None, parts: Parts | None = None
) -> ItemsJob:
    """Survey a table, check the options against it, and count its documents; see `open_job`."""
    table, options = surveyed(source, options, cache)
    pack = cast("Pack", options.pack)
    bounds = table.list_bounds(pack.ids) if pack.tokenizer is None else None
    by_epoch = takes_epoch(pack.documents)
    kept = as_stored(pack) if by_epoch else pack
    stage = KeptDocuments(kept, table.schema, options.column_names or (), bounds)
    in_place = TokensInPlace.of(table, options, stage)
    if in_place is not None and (columns := in_place.to_measure):
        measure = MeasuredDocuments(kept, in_place.table.schema)
        own = replace(_of_documents(options, pack), columns=columns, row_id=False)
        measured = stored_rows(in_place.table, own, cache, measure, parts=parts)
        in_place = replace(in_place, measured=measured.store.rows)
    rows = stored_rows(table, _of_documents(options, pack), cache, stage, in_place, parts)
    tokens, cut_fields = StoredTokens(rows.store, pack), stage.token_fields
    if by_epoch:
        changing = ChangingDocuments(pack, stage, table.schema)
        tokens = ChangedTokens(rows.store, pack, changing, options.shuffle_seed)
        cut_fields = changing.token_fields
    others = list(rows.columns)[len(cut_fields) :]
    delivered = schema_of_sequences(cut_fields, [entry.with_type(opened_type(entry.type)) for entry in others])
    topology = topology_of(options, ranks.num_ranks)
    make_codec(with_padding(delivered, topology), TypePolicy.of(options))
    refusal = ""
    if not pack.permutes_documents:
        refusal = _OF_WINDOWS
    items = PackedItems(
        rows=live_rows_of(rows, options, word="documents", refusal=refusal),
        columns=delivered,
        row_bytes=pack.longest * bytes_of_token(cut_fields),
        documents=rows.columns,
        tokens=tokens,
    )
    return ItemsJob.of(items, options, ranks.rank, topology, fork_safe=rows.fork_safe)


def _checked_stream(items: PackedItems, tokens: StoredTokens, *order: Any, **own: Any) -> PackedStream:
    """Return an order of items, and refuse a document that is longer than a sequence if the caller does.

    Raises:
        TableError: names the longest.
    """
    made, pack = PackedStream(tokens, *order, **own), items.pack
    if pack.long_docs != "error":
        return made
    most, longest = tokens.lengths.longest
    if most <= pack.width:
        return made
    [span] = items.rows.spans_of(items.rows.store.rows().ids(np.array([longest])))
    raise TableError(
        f"row {span.row_start} of {span.file!r} has {most} tokens, more than seq_len={pack.width}; "
        'pass long_docs="split", "truncate" or "drop", or a larger seq_len'
    )


def _windows_of(tokens: StoredTokens) -> SequenceOrder:
    """Return the windows of tokens in the order of their table."""
    pack = tokens.pack
    if pack.permutes_documents:
        raise ConfigError(
            f'as_map() needs sequences in table order, as strategy="windows" makes them, got '
            f"{pack.strategy!r}; leave pack out for documents"
        )
    if takes_epoch(pack.documents):
        raise ConfigError("as_map() has no epochs, and documents= takes one; leave documents or its epoch out")
    return SequenceOrder.of_windows(tokens.packer, tokens.lengths)


def _as_delivered(documents: pa.Schema, columns: pa.Schema, pack: Pack) -> pa.Schema:
    """Return the documents with tokens of their own type, whatever the store keeps them in."""
    fields = list(documents)
    for place, own in enumerate(list(columns)[: len(pack.cut_columns)]):
        fields[place] = fields[place].with_type(pa.large_list(kept_type(own.type.value_type)))
    return pa.schema(fields)


def _of_documents(options: LoaderOptions, pack: Pack) -> LoaderOptions:
    """Return the options of the documents alone, which are rows that nobody sees."""
    return replace(
        options,
        pack=None,
        columns=pack.reads(options.column_names),
        output_format="arrow",
        nulls=None,
        ragged=None,
        strings="list",
        unsupported=None,
        transforms=None,
        decode=None,
        collate_fn=None,
        device=None,
    )
