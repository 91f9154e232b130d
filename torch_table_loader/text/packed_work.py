"""Sequences of tokens by their place in an order: parts of documents of a row store are put together."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.arrow.arrays import encoded, plain
from torch_table_loader.cached import cached_property
from torch_table_loader.engine.items import TurnStream
from torch_table_loader.engine.work.indexed_work import PERMUTING
from torch_table_loader.errors import ResumeError
from torch_table_loader.planning.global_batches import GlobalBatches, StepPlaces, concat_places
from torch_table_loader.planning.keys import derive_key
from torch_table_loader.planning.lists import Slices
from torch_table_loader.planning.permutation import Permutation
from torch_table_loader.records import ROW_ID
from torch_table_loader.text.pack_counts import PackCounts
from torch_table_loader.text.sequence_orders import Anchor, Drawn, SequenceOrder, attention_costs, balanced
from torch_table_loader.text.slices import in_order
from torch_table_loader.text.token_rows import Parts, columns_of_parts, rows_of_sequences

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.engine.row_store import RowStoreHandle
    from torch_table_loader.planning.orders import Selects
    from torch_table_loader.ranges import Fetcher
    from torch_table_loader.store.gather import StoredRows
    from torch_table_loader.text.slices import Windows
    from torch_table_loader.text.stored_tokens import StoredTokens, TakenParts

    Ints: TypeAlias = NDArray[np.int64]

T = TypeVar("T")

_COUNTED_SEQUENCES = 1 << 16

_KEPT_ORDERS = 2
"""Orders of a source that are kept, where it goes round more than once: a gather may cross from one into the next."""


class PackedStream(TurnStream):
    """The sequences of a source by how many of them came before in the epoch.

    Args:
        schema: of what comes out, from `schema_of_sequences`; a column `row_id` is the documents' row ids.
        rows: the documents that are left, or are drawn of them.
        most: so many of them come at most.
        source: the name of a source of a mixture, which goes round and round; None for a table alone.
        origin: tokens that come before the first sequence of a round, since they came as sequences of another length;
            only of "concat". Of a source it may be negative, and sequences that begin before token 0 do not come.
        since: that round.
    """

    def __init__(
        self,
        tokens: StoredTokens,
        schema: pa.Schema,
        rows: Selects,
        most: int | None = None,
        *,
        seed: int,
        epoch: int,
        source: str | None = None,
        constants: dict[str, int] | None = None,
        origin: int = 0,
        since: int = 0,
    ) -> None:
        """Order nothing yet."""
        self.tokens = tokens
        self._schema = schema
        self._rows, self._count = rows, rows.num_rows if most is None else min(most, rows.num_rows)
        self._seed, self._epoch, self._source = seed, epoch, source
        self._constants = constants or {}
        self._origin, self._since = origin, since
        self._anchors: dict[int, Anchor] = {}
        self._ends: dict[int, Ints] = {}
        """Of rounds of best fit, which are counted once."""
        self._rounds: list[tuple[int, int]] = [(0, 0)]
        """The first sequence and the number of rounds that are known, rising."""
        self._orders: dict[int, SequenceOrder] = {}

    @property
    def stores(self) -> Sequence[RowStoreHandle]:
        """The one store."""
        return [self.tokens.store]

    @property
    def documents(self) -> int:
        """Documents of a round."""
        return self._count

    @property
    def count(self) -> int:
        """Sequences of a round."""
        with PERMUTING.own:
            return self._order(0).count

    def tokens_before(self, turn: int) -> int:
        """Return the tokens of the epoch before a sequence; only of "concat"."""
        return self._windows(0).before(turn)

    def came_before(self, turn: int) -> tuple[int, int]:
        """Return the round of a sequence, and the tokens of that round before it; only of "concat"."""
        number, place = divmod(turn, max(1, self.count))
        return number, self._windows(number).before(place)

    def turn_behind(self, number: int, width: int) -> tuple[int, int]:
        """Return the sequence that begins after so many tokens of a round, and the `origin` by which it does so.

        It is counted from the end of the round, so that all rounds have as many; only of "concat".
        """
        count, seq_len = self.count, self.tokens.pack.width
        left = -(-(self.width_of_a_round - width) // seq_len)
        return (number + 1) * count - left, width - (count - left) * seq_len

    @property
    def width_of_a_round(self) -> int:
        """All tokens of a round; only of "concat"."""
        return self.tokens_before(self.count)

    def has_at(self, turn: int) -> bool:
        """Return whether a sequence can be the next after `origin`."""
        number, tokens = self.came_before(turn)
        as_many = self._windows(self._since).count == self._windows(self._since + 1).count
        return as_many and number >= self._since and tokens >= 0 and abs(self._origin) < self.tokens.pack.width

    def _windows(self, number: int) -> Windows:
        with PERMUTING.own:
            return self._order(number).windows

    def anchor(self, turn: int) -> list[int]:
        """Return the round of a sequence, the place in it from which a walk finds the sequence, and their seal.

        What comes before the place is known only to who has walked there; the seal says that it was found so.
        """
        with PERMUTING.own:
            if self._walks_rounds:
                first, number = self._round_of(turn)
                return self._sealed(number, first, self._order(number).count)
            number, place = (0, turn) if self._source is None else divmod(turn, max(1, self._order(0).count))
            found = self._order(number).anchor(place)
        if found is None:
            return []
        return self._sealed(number, *found)

    def _sealed(self, number: int, place: int, before: int) -> list[int]:
        """Return an anchor with the hash of it and of the order that it is of."""
        sealed = f"anchor {number} {place} {before} without {self._gone} of {self._source!r}"
        return [number, place, before, derive_key(self._seed, self._epoch, sealed).hashing[0] >> 2]

    @cached_property
    def _gone(self) -> str:
        """A hash of the documents that are left out."""
        return blake2b(self._rows.gone.tobytes(), digest_size=16).hexdigest()

    def begin_at(self, anchor: list[int]) -> None:
        """Take what `anchor` returned as known.

        Raises:
            ResumeError: it is of another order, or was changed.
        """
        number, place, before, _ = anchor
        if anchor != self._sealed(number, place, before):
            raise ResumeError(
                f"the state's anchor {anchor!r} is not one of this epoch's order of documents; pass the value of "
                "state_dict() unchanged"
            )
        with PERMUTING.own:
            if self._walks_rounds:
                self._begin_round(number, place, before)
                return
            self._order(number).begin_at(Anchor(place, before))
        self._anchors[number] = Anchor(place, before)

    def columns(
        self,
        blocks: Iterator[tuple[Ints, T]],
        fetcher: Fetcher | None,
        most_blocks: int | None = None,
    ) -> Iterator[tuple[list[pa.Array], T]]:
        """Yield the sequences of blocks that come after each other, each as one array a column."""

        def wanted() -> Iterator[tuple[Ints, tuple[TakenParts, T]]]:
            for turns, note in blocks:
                parts = self.tokens.parts(self.slices(turns))
                yield parts.slices.document, (parts, note)

        found = self.tokens.store.windows(wanted(), most_blocks, fetcher, lambda noted: noted[0].spans)
        for rows, documents, (parts, note) in found:
            yield self._sequences(parts, rows, documents), note

    def counts(self) -> PackCounts:
        """Return what packing makes of the documents of an epoch; its order is walked to the end."""
        pack, lengths, dropped = self.tokens.pack, self.tokens.lengths, self.tokens.packer.dropped
        too_long = sum(dropped(lengths.take(some)) for some in self._drawn(0).blocks())
        made = PackCounts(pack.width, dropped=too_long)
        for first in range(0, self.count, _COUNTED_SEQUENCES):
            slices = self.slices(np.arange(first, min(first + _COUNTED_SEQUENCES, self.count), dtype=np.int64))
            made += PackCounts.of(pack, slices, lengths.take(slices.document))
        return made

    def found(self, turns: Ints) -> tuple[Ints, Ints]:
        """Return the row ids of the documents under some sequences, and how many each sequence has."""
        slices = self.slices(turns)
        return self.tokens.store.rows().ids(slices.document), np.diff(slices.offsets)

    def name_of(self, place: int) -> str:
        """Return what a message calls the sequence at a place."""
        ids, _ = self.found(np.array([place]))
        return f"the sequence of the rows whose row_id is {', '.join(map(str, ids.tolist()))}"

    def slices(self, turns: Ints) -> Slices:
        """Return the parts of documents under some sequences."""
        with PERMUTING.own:
            if self._source is None or not len(turns):
                return self._order(0).slices(turns)
            numbers, places = self._places(turns)
            parts, whose = [], []
            for number in np.unique(numbers).tolist():
                mine = np.flatnonzero(numbers == number)
                parts.append(self._order(number).slices(places[mine]))
                whose.append(mine)
        if len(parts) == 1:
            return parts[0]
        return in_order(parts, whose, len(turns))

    def gather(self, slices: Slices) -> list[pa.Array]:
        """Return sequences, one array a column of the schema."""
        parts = self.tokens.parts(slices)
        return self._sequences(parts, *self.tokens.store.rows().fetch(slices.document, parts.spans))

    def _sequences(self, parts: TakenParts, rows: StoredRows, documents: Ints) -> list[pa.Array]:
        """Return sequences, as one array for each column of the schema.

        Args:
            rows: has at least those parts.
            documents: the row there of each part's document.
        """
        slices, cut = parts.slices, self.tokens.cut(parts, rows, documents, self._cut)
        first, others = np.cumsum(slices.length) - slices.length, self._documents(rows, documents)
        made = Parts(first, slices.length, slices.start, cut.behind, others)
        ends = np.concatenate(([0], np.cumsum(slices.length)))
        batch = rows_of_sequences(cut.columns, ends[slices.offsets], made, slices.offsets, self._schema)
        columns: list[pa.Array] = batch.columns
        return columns

    @property
    def _walks_rounds(self) -> bool:
        """Whether rounds differ in how many sequences they have."""
        return self._source is not None and self.tokens.packer.block_docs is not None

    def _places(self, turns: Ints) -> tuple[Ints, Ints]:
        """Return the rounds of some sequences and their places there; the caller has the lock."""
        if not self._walks_rounds:
            return np.divmod(turns, self._order(0).count)
        numbers, places, order = np.empty_like(turns), np.empty_like(turns), np.argsort(turns, kind="stable")
        at, rising = 0, turns[order]
        while at < len(order):
            first, number = self._round_of(int(rising[at]))
            stop = int(np.searchsorted(rising, first + self._order(number).count))
            numbers[order[at:stop]], places[order[at:stop]] = number, rising[at:stop] - first
            at = stop
        return numbers, places

    def _round_of(self, turn: int) -> tuple[int, int]:
        """Return the first sequence of a sequence's round, and the round's number; the caller has the lock."""
        at = bisect_right(self._rounds, turn, key=lambda known: known[0]) - 1
        first, number = self._rounds[at]
        while turn >= first + (count := self._order(number).count):
            first, number, at = first + count, number + 1, at + 1
            self._rounds.insert(at, (first, number))
        return first, number

    def _begin_round(self, number: int, first: int, count: int) -> None:
        """Take a round from a saved state as known; the caller has the lock."""
        if self._order(number).count != count or first < number:
            raise ResumeError(
                f"the state says that round {number} of the epoch's sequences begins after {first} and has {count}, "
                f"and it has {self._order(number).count} here; pass state_dict() unchanged"
            )
        if number:
            self._rounds = [(0, 0), (first, number)]

    @property
    def _cut(self) -> list[pa.Field]:
        return list(self._schema)[: len(self.tokens.pack.cut_columns)]

    def _order(self, number: int) -> SequenceOrder:
        """Return the order of a round; the caller has the lock."""
        if (known := self._orders.get(number)) is not None:
            return known
        origin = self._origin if number == self._since else 0
        made = self.tokens.order(self._drawn(number), self._ends.get(number), origin)
        if made.ends is not None:
            self._ends[number] = made.ends
        if number in self._anchors:
            made.begin_at(self._anchors[number])
        if len(self._orders) > _KEPT_ORDERS:
            del self._orders[min(other for other in self._orders if other)]
        self._orders[number] = made
        return made

    def _drawn(self, number: int) -> Drawn:
        """Return the documents of a round."""
        purpose = "rows" if self._source is None else f"mixture source {number} {self._source}"
        permutation = Permutation(self._rows.num_rows, derive_key(self._seed, self._epoch, purpose))
        return Drawn(self._rows, permutation, self._count, number)

    def _documents(self, rows: StoredRows, documents: Ints) -> pa.StructArray | None:
        """Return the other columns of documents, by their rows."""
        fields = columns_of_parts(self._schema)
        if not fields:
            return None
        cut = len(self.tokens.pack.cut_columns)
        known = {}
        names = rows.layout.schema.names[cut:]
        if names:
            known = dict(zip(names, map(plain, rows.gather(documents)), strict=True))
        for name, value in self._constants.items():
            known[name] = pa.array(np.full(len(documents), value, dtype=np.int64))
        if ROW_ID in {field.name for field in fields} - set(known):
            known[ROW_ID] = pa.array(rows.ids(documents))
        return pa.StructArray.from_arrays([encoded(known[field.name], field.type) for field in fields], fields=fields)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the orders, which each process makes for itself."""
        return {**vars(self), "_orders": {}}


@dataclass(frozen=True, slots=True)
class BalancedBatches(GlobalBatches):
    """Global batches of sequences of which each rank takes as much work of attention, but for the tail step."""

    items: PackedStream = field(kw_only=True, compare=False)

    @override
    def places_of(self, steps: list[int]) -> tuple[Ints, NDArray[np.bool_]]:
        return concat_places([self._dealt(number) for number in steps])

    def _dealt(self, step: int) -> StepPlaces:
        if step >= self.full_steps:
            return self.step(step)
        places = self.global_batch(step)
        slices = self.items.slices(places)
        own = balanced(attention_costs(slices.length, slices.offsets), self.topology.num_ranks)[self.rank]
        return StepPlaces(places[own], len(own))
