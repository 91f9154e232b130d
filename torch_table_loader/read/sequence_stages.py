"""Documents of tokens become sequences, each a row: one document a sequence, or several that are packed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.arrow.token_rows import rows_of_sequences, schema_of_sequences, sequences_of
from torch_table_loader.errors import ConfigError
from torch_table_loader.pack import IGNORED, Pack
from torch_table_loader.planning.pack_counts import PackCounts
from torch_table_loader.planning.packing import Packed, Pieces, another_best_fit, best_fit, split_long
from torch_table_loader.read.lru_cache import LRUCache
from torch_table_loader.read.row_stage import Counted, Made
from torch_table_loader.read.token_stages import Documents, TokensAsRows, TokenStage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


_PACKS = LRUCache(8 * 1024 * 1024)
"""The packs of recent blocks, by the lengths of their documents."""


class SequencesAsRows(TokenStage):
    """Each sequence is a row: a document, or a piece of one that is too long."""

    @property
    @override
    def key(self) -> str:
        pack = self.pack
        blocks = "" if self.block_rows is None else f"-{self.block_rows}-{pack.max_docs_per_row}"
        return f"{super().key}-{pack.seq_len}-{pack.long_docs}{blocks}"

    @override
    def schema(self, given: pa.Schema) -> pa.Schema:
        return schema_of_sequences(self._cut, self._columns(given))

    def _pieces(self, lengths: Ints) -> Pieces:
        """Return the pieces of documents, none longer than a sequence."""
        return split_long(lengths, self.pack.seq_len, self.pack.long_docs)

    def packed(self, lengths: Ints) -> tuple[Ints, Ints]:
        """Return the order of some pieces, and where each sequence begins in it."""
        return np.arange(len(lengths)), np.arange(len(lengths) + 1)

    def ordered(self, lengths: Ints) -> tuple[Ints, Ints]:
        """Return what `packed` does, in the order in which sequences come out."""
        return self.packed(lengths)

    @override
    def _made_of(self, whole: Ints) -> Counted:
        whole = whole[whole > 0]
        pieces = self._pieces(whole)
        sequences = len(self.packed(pieces.length)[1]) - 1
        counts = PackCounts.of_pieces(self.pack.seq_len, self.pack.long_docs, whole, len(pieces.length), sequences)
        return sequences, counts

    @override
    def rows(self, batch: pa.RecordBatch) -> Made:
        found = self.documents(batch)
        pieces = self._pieces(np.diff(found.offsets))
        order, firsts = self.ordered(pieces.length)
        return len(firsts) - 1, partial(self._sequences, batch, found, pieces, (order, firsts))

    def _sequences(
        self, batch: pa.RecordBatch, found: Documents, pieces: Pieces, packed: tuple[Ints, Ints], start: int, stop: int
    ) -> pa.RecordBatch:
        """Return some sequences of the documents in a batch, and the parts of documents under them."""
        order, firsts = packed
        part_offsets = firsts[start : stop + 1] - firsts[start]
        chosen = order[firsts[start] : firsts[stop]]
        document, begun, length = pieces.document[chosen], pieces.start[chosen], pieces.length[chosen]
        at = found.offsets[document] + begun
        behind = np.full(len(at), IGNORED, dtype=np.int64)
        if self.pack.long_docs == "split":
            cut = np.flatnonzero(begun + length < np.diff(found.offsets)[document])
            behind[cut] = self.targets(found.values, at[cut] + length[cut])
        parts = self.parts(batch, found.kept[document], begun - found.added[document], length, behind)
        width = self.pack.seq_len
        values = [sequences_of(column, at, length, part_offsets, width) for column in found.values]
        offsets = np.arange(len(part_offsets)) * width
        return rows_of_sequences(values, offsets, parts, part_offsets, self.schema(batch.schema))


class BestFitAsRows(SequencesAsRows):
    """Whole documents are packed into sequences, block by block of the rows of a split's row group."""

    @property
    @override
    def block_rows(self) -> int:
        return self.pack.block_docs

    @override
    def ordered(self, lengths: Ints) -> tuple[Ints, Ints]:
        if self._order_key is None:
            return self.packed(lengths)
        packs, pack = len(self.packed(lengths)[1]) - 1, self.pack
        packed = another_best_fit(lengths, pack.seq_len, packs, self._order_key, pack.max_docs_per_row)
        return packed.order, packed.offsets

    @override
    def packed(self, lengths: Ints) -> tuple[Ints, Ints]:
        # Cached, since a block is counted before it is read, and read in each epoch.
        def make() -> tuple[Packed, int]:
            packed = best_fit(lengths, self.pack.seq_len, self.pack.max_docs_per_row)
            return packed, len(given) + packed.order.nbytes + packed.offsets.nbytes

        given = lengths.astype(np.int32).tobytes()  # none is longer than a sequence
        packed: Packed = _PACKS.get((given, self.pack.seq_len, self.pack.max_docs_per_row), make)
        return packed.order, packed.offsets


def stage_of(pack: Pack, table: pa.Schema, asked: Sequence[str] = (), window: int | None = None) -> TokenStage:
    """Return the stage that the rows of a table pass in a stream.

    Args:
        window: how many documents are shuffled together before they are cut anywhere; None: none are.

    Raises:
        ConfigError: the columns do not fit, or the strategy is one of ``shuffle="rows"``.
    """
    if pack.strategy == "windows":
        raise ConfigError(f'Pack: strategy={pack.strategy!r} needs shuffle="rows"; pass that, or use strategy="concat"')
    if pack.tokenizer is not None:
        raise ConfigError(
            'Pack: tokenizer needs shuffle="rows", whose store keeps the tokens: a stream that makes them while it is '
            "read would not know how many there are; or write a table of tokens with torch-table-loader tokenize"
        )
    if pack.balance is not None:
        raise ConfigError(
            f'Pack: balance={pack.balance!r} needs shuffle="rows": a rank of a stream reads files of its own, and to '
            "take a sequence of another rank it would have to read that rank's files too; leave balance out"
        )
    if pack.strategy == "concat":
        return TokensAsRows(pack, table, asked, window)
    return (SequencesAsRows if pack.strategy == "pad" else BestFitAsRows)(pack, table, asked)
