"""Sequences of the tokens of one table, shuffled over all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.arrow.datatypes import opened_type, width_of
from torch_table_loader.batching.codec import make_codec
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.engine.items import TurnsOf
from torch_table_loader.engine.jobs.batching import Batching
from torch_table_loader.engine.jobs.exclusion_state import ExclusionState
from torch_table_loader.engine.jobs.resolve import (
    codec_of,
    columns_of,
    surveyed,
    topology_of,
    with_padding,
)
from torch_table_loader.engine.jobs.table_rows import TableItems, draws_of, stored_rows
from torch_table_loader.engine.newest import Newest
from torch_table_loader.engine.saved_state import Bound
from torch_table_loader.engine.sizing import LANE_COPIES, batches_in_flight, batches_of_sequences
from torch_table_loader.errors import ConfigError, ResumeError, TableError
from torch_table_loader.planning.exclusion import Exclusions
from torch_table_loader.planning.stages import SamplePosition
from torch_table_loader.records import DOCUMENTS, SOURCE_COLUMN
from torch_table_loader.text.changed_tokens import ChangedTokens, ChangingDocuments, as_stored
from torch_table_loader.text.kept_documents import KeptDocuments, MeasuredDocuments, kept_type
from torch_table_loader.text.packed_work import BalancedBatches, PackedStream
from torch_table_loader.text.packing_record import saved_anchors, written_packing
from torch_table_loader.text.parameters import takes_epoch
from torch_table_loader.text.sequence_orders import SequenceOrder
from torch_table_loader.text.stored_tokens import StoredTokens
from torch_table_loader.text.token_rows import schema_of_sequences
from torch_table_loader.text.token_stages import bytes_of_token
from torch_table_loader.text.tokens_in_place import TokensInPlace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.contracts import Source
    from torch_table_loader.engine.counting import Parts
    from torch_table_loader.engine.rank_info import RankInfo
    from torch_table_loader.engine.saved_state import SavedState
    from torch_table_loader.engine.state_records import Written
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.global_batches import GlobalBatches
    from torch_table_loader.planning.rows_of import RowSpan
    from torch_table_loader.schedules import Done
    from torch_table_loader.source.plan_cache import Plans
    from torch_table_loader.text.pack import Pack
    from torch_table_loader.text.pack_counts import PackCounts

    Ints: TypeAlias = NDArray[np.int64]

_KEPT_STREAMS = 4
"""Orders that were asked for last; what was walked of them is known to them."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PackedItems(TableItems):
    """One rank's share of sequences of the tokens of one table; `documents` are the columns that the store keeps."""

    documents: pa.Schema
    tokens: StoredTokens
    word_of_rows: ClassVar[str] = "documents"
    _streams: Newest[tuple[Any, ...], PackedStream] = field(
        default_factory=partial(Newest, _KEPT_STREAMS), init=False, repr=False
    )

    @classmethod
    def of(
        cls, source: Source, options: LoaderOptions, ranks: RankInfo, cache: Plans | None, parts: Parts | None = None
    ) -> PackedItems:
        """Survey a table, check the options against it, and count its documents; see `stored_rows`."""
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
        columns = schema_of_sequences(cut_fields, [entry.with_type(opened_type(entry.type)) for entry in others])
        topology = topology_of(options, ranks.num_ranks)
        make_codec(with_padding(columns, topology), TypePolicy.of(options))
        return cls(
            options=options,
            rank=ranks.rank,
            topology=topology,
            schedules=options.schedules,
            row_bytes=pack.longest * bytes_of_token(cut_fields),
            fork_safe=rows.fork_safe,
            columns=columns,
            live_rows=int(rows.segments.live.sum()),
            table=rows.table,
            store=rows.store,
            documents=rows.columns,
            tokens=tokens,
            draws=draws_of(rows, options),
        )

    @override
    def refuse_nulls(self) -> None:
        """Refuse nulls in columns of the documents; see `Job.refuse_nulls`."""
        options = _of_documents(self.options, self.pack)
        codec_of(self.table, self.documents, columns_of(self.table, options), options)

    @property
    def pack(self) -> Pack:
        """What the caller asked for."""
        return self.tokens.pack

    @cached_property
    @override
    def bound(self) -> Bound:
        pack, own = self.pack, self._bound_to(_as_delivered(self.documents, self.columns, self.pack))
        packed = {"stage": f"{pack.strategy}-{self.tokens.made}", **pack.shape}
        return Bound(own.table, {**own.options, **packed})

    @property
    @override
    def compared(self) -> Mapping[str, Any]:
        """All that decides the order, and who takes what of a global batch, by name: what ranks compare."""
        return {**super().compared, "balance": self.pack.balance}

    @property
    @override
    def length(self) -> int:
        return self._stream(0, Exclusions()).count

    @override
    def start(self, epoch: int) -> SamplePosition:
        versions = self.exclusions.of(epoch)
        total, length = self._stream(epoch, versions.running).count, self.by_step.length_at(epoch)
        return SamplePosition(epoch, self._stage(epoch), total=total, exclusions={"": versions}, width=length)

    @override
    def next_stage(self, position: SamplePosition) -> SamplePosition:
        """Return the position with a stage of sequences of the next length, from the next token on."""
        if not self.by_step.changes_length:
            return super().next_stage(position)
        stage, taken = self._stage(position.epoch, position), position.steps_taken
        return self._cut_anew(replace(position, start=position.consumed, steps_before=taken, stage=stage))

    def _cut_anew(self, position: SamplePosition) -> SamplePosition:
        """Return the start of a stage in sequences of the length of its first step, from the next token on."""
        origin = self.stream(position).tokens_before(position.start)
        length = self.by_step.length_at(position.epoch, position.steps_before)
        after = replace(position, origin=origin, start=0, width=length)
        return replace(after, total=self.stream(after).count)

    @override
    def done(self, position: SamplePosition) -> Done:
        """Return what the job has done; sequences of other lengths count by their tokens."""
        done = super().done(position)
        return done._replace(samples=done.samples + position.origin // self.pack.width)

    @override
    def enter(self, before: SamplePosition, position: SamplePosition) -> None:
        """Note that an epoch comes from one stage to the next, which continues where the walk of the first has come."""
        if anchor := self.stream(before).anchor(before.consumed):
            self.stream(position).begin_at(anchor)

    @override
    def records(self, position: SamplePosition) -> dict[str, Written]:
        """Return what a state says of exclusions and sequences.

        An anchor is where a walk can begin; see `PackedStream.anchor`. It holds for the epoch, whatever was consumed.
        """
        consumed = position.consumed
        anchor = self.stream(position).anchor(consumed) if consumed or position.origin else []
        return super().records(position) | written_packing(position, {"": anchor} if anchor else {})

    @override
    def resume(self, saved: SavedState) -> tuple[PackedItems, SamplePosition]:
        """Return the job with the state's exclusions, and where it continues."""
        taken, anchors = cast("SamplePosition", saved.taken), saved_anchors(saved)
        excluded = self.exclusions_in(saved)
        items = replace(self, exclusions=ExclusionState(excluded, taken.epoch))
        position = replace(taken, exclusions={"": excluded}, ended=False)
        stream = items.stream(position)
        if taken.origin and (not self.pack.joins_documents or stream.tokens_before(0) != taken.origin):
            raise ResumeError(
                f"the state has taken {taken.origin} tokens as sequences of another length, and the epoch has fewer, "
                "or sequences of one length; pass the value of state_dict() unchanged"
            )
        taken.check(stream.count)
        if self.by_step.changes_length or taken.width != self.by_step.width:
            position = items._cut_anew(position)  # a stage ends at a step, and begins with a token
        else:
            position = replace(position, total=stream.count)
        if anchors:
            items.stream(position).begin_at(anchors[""])
        return items, replace(position, stage=self._stage(taken.epoch, position))

    @override
    def exclude(self, row_ids: Any) -> Exclusions:
        """Return the exclusions with some documents more.

        Raises:
            ConfigError: an id that no row has, or sequences that do not follow documents.
        """
        _refuse_windows(self.pack, "exclude")
        return super().exclude(row_ids)

    @override
    def include(self, row_ids: Any) -> Exclusions:
        _refuse_windows(self.pack, "include")
        return super().include(row_ids)

    @override
    def stream(self, position: SamplePosition) -> PackedStream:
        return self._stream(position.epoch, position.exclusions[""].running, position.origin, position.width)

    @override
    def _batches(self, position: SamplePosition) -> GlobalBatches:
        plan = super()._batches(position)
        if self.pack.balance is None or plan.topology.num_ranks == 1:
            return plan
        first, aligned, items = plan.first, plan.aligned, self.stream(position)
        return BalancedBatches(plan.total, plan.start, plan.topology, plan.rank, first, aligned, items=items)

    @override
    def locate(self, position: SamplePosition, places: Ints) -> list[RowSpan]:
        """Return the file and the row of each document under the sequences at some places."""
        return self.spans_of(self.stream(position).found(places)[0])

    @override
    def count(self, turns: TurnsOf) -> int:
        """Return how many sequences the first round has: of most packs that is the same in each epoch."""
        self.draws.refuse_rounds_that_differ()
        if not self.remaining(turns.exclusions).num_rows:
            return 0
        if self.tokens.packer.block_docs is not None or takes_epoch(self.pack.documents):
            return self.by_turn(turns).count
        return self._stream(0, turns.exclusions, seq_len=turns.width).count

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
        return self._streams.of(key, lambda: made(self._of_source(turns), constants=constants, **own))

    @property
    @override
    def held_bytes(self) -> int:
        return super().held_bytes + self.tokens.memory_bytes

    @property
    @override
    def num_places(self) -> int:
        return _windows_of(self.tokens).count

    @property
    @override
    def batching(self) -> Batching:
        at_once = batches_of_sequences(self.row_bytes, self.options.most_rows)
        return Batching.of(self.options, self.topology, self.row_bytes, at_once)

    @property
    @override
    def lane_bytes(self) -> int:
        sequences = self.gather_batches * self.options.most_rows
        tokens = sequences * (self.pack.longest + 2 * self.tokens.longest)
        stored = sum(width_of(entry.type.value_type) for entry in self.columns if entry.name != DOCUMENTS)
        batching = self.batching
        together = min(self.gather_batches, batching.at_once or self.gather_batches)
        batches = batches_in_flight(self.options, together, batching.blocks)
        return LANE_COPIES * tokens * stored + batches * self.options.most_rows * self.row_bytes

    @override
    def columns_at(self, places: Ints) -> list[pa.Array]:
        return self._stream(0, Exclusions()).gather(_windows_of(self.tokens).slices(places))

    @override
    def ids_at(self, places: Ints) -> Ints:
        """Return the row ids of the documents under the windows at some places of the table, window by window."""
        return self.store.rows().ids(_windows_of(self.tokens).slices(places).document)

    @property
    @override
    def strategy(self) -> str:
        return f"packed {self.pack.strategy}"

    @override
    def notes(self, position: SamplePosition) -> list[str]:
        pack, tokens = self.pack, self._tokens_in(position.epoch).lengths.total
        orders = {
            "windows": f"windows of the table's tokens, {pack.stride or pack.width:,} apart, are shuffled one by one",
            "concat": "documents are shuffled one by one, put behind one another, and cut",
            "pad": "documents are shuffled one by one, each a sequence",
            "best_fit": f"documents are shuffled one by one, and packed, {pack.block_docs:,} together",
        }
        sequences = "" if self.by_step.changes_length else f"{position.total:,} sequences of "
        return [
            f"{orders[pack.strategy]}, {pack.lengths_in_words} a sequence, from {self.where}",
            f"{sequences}{tokens:,} tokens in {self.live_rows:,} documents",
            self._note_of_rows(self.stream(position).documents, position),
            *([self.store.note] if self.store.note else []),
        ]

    @override
    def counts_of(self, position: SamplePosition) -> PackCounts | None:
        """Return what packing makes of the documents of an epoch; its order is walked for that.

        None where sequences have several lengths.
        """
        if self.by_step.changes_length:
            return None
        return self.stream(position).counts()

    def _tokens_in(self, epoch: int) -> StoredTokens:
        return self.tokens.of_epoch(self.options.shuffle_seed, epoch)

    def _stream(self, epoch: int, exclusions: Exclusions, origin: int = 0, seq_len: int | None = None) -> PackedStream:
        """Return the order of an epoch, from a token on, as sequences of a length; None: that with which it begins."""
        seed, length = self.options.shuffle_seed, self.by_step.length_at(epoch) if seq_len is None else seq_len
        tokens = self._tokens_in(epoch).of_length(length)
        own: dict[str, Any] = {"seed": seed, "epoch": epoch, "origin": origin}
        key = epoch, exclusions.digest, origin, length
        made = partial(_checked_stream, self, tokens, self.columns)
        return self._streams.of(key, lambda: made(self._of_epoch(exclusions, epoch), self.draws.most, **own))


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
    [span] = items.spans_of(items.store.rows().ids(np.array([longest])))
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


def _refuse_windows(pack: Pack, what: str) -> None:
    if not pack.permutes_documents:
        raise ConfigError(
            f'{what} removes documents, but strategy="windows" cuts tokens without regard to documents; use '
            'strategy="concat", or filters='
        )


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
