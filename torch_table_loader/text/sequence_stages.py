"""Documents of tokens become sequences, each a row: one document a sequence, or several that are packed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.errors import ConfigError
from torch_table_loader.read.lru_cache import LRUCache
from torch_table_loader.read.row_stage import Counted, Made
from torch_table_loader.text.pack import Pack
from torch_table_loader.text.pack_counts import PackCounts
from torch_table_loader.text.token_rows import rows_of_sequences, schema_of_sequences, sequences_of
from torch_table_loader.text.token_stages import Documents, TokensAsRows, TokenStage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.lists import Slices
    from torch_table_loader.text.packing import Alone

    Ints = NDArray[np.int64]


_PACKS = LRUCache(16 * 1024 * 1024)
"""The sequences of recent blocks, by the lengths of their documents."""


class SequencesAsRows(TokenStage):
    """Each sequence is a row: a document, a piece of one that is too long, or several that are packed.

    Documents are packed block by block of the rows of a split's row group.
    """

    makes = "sequences"

    @property
    @override
    def block_rows(self) -> int | None:
        return self.packer.block_docs

    @property
    @override
    def row_bytes(self) -> int:
        return self.pack.width * super().row_bytes

    @property
    @override
    def held_bytes(self) -> int:
        return self.pack.width * super().held_bytes

    @property
    @override
    def key(self) -> str:
        pack = self.pack
        blocks = "" if self.block_rows is None else f"-{self.block_rows}-{pack.max_docs_per_row}"
        return f"{super().key}-{pack.width}-{pack.long_docs}{blocks}"

    @property
    @override
    def nothing(self) -> PackCounts:
        return PackCounts(self.pack.width)

    @override
    def schema(self, given: pa.Schema) -> pa.Schema:
        return schema_of_sequences(self._cut, self._columns(given))

    def _packed(self, lengths: Ints) -> Slices:
        """Return the sequences of documents."""
        packer, pack = cast("Alone", self.packer), self.pack
        if packer.block_docs is None:
            return packer.row(lengths)

        # Cached, since a block is counted before it is read, and read in each epoch.
        def make() -> tuple[Slices, int]:
            found = packer.row(lengths)
            return found, lengths.nbytes + sum(values.nbytes for values in found)

        key = (lengths.tobytes(), pack.width, pack.long_docs, pack.max_docs_per_row)
        found: Slices = _PACKS.get(key, make)
        return found

    @override
    def _made_of(self, whole: Ints) -> Counted:
        whole = whole[whole > 0]
        slices = self._packed(whole)
        return slices.total, PackCounts.of(self.pack, slices, whole[slices.document], self.packer.dropped(whole))

    @override
    def rows(self, batch: pa.RecordBatch) -> Made:
        found = self.documents(batch)
        lengths = np.diff(found.offsets)
        slices = self._packed(lengths)
        if self._order_key is not None:
            slices = cast("Alone", self.packer).another(lengths, self._order_key, slices.total)
        return slices.total, partial(self._sequences, batch, found, slices)

    def _sequences(
        self, batch: pa.RecordBatch, found: Documents, packed: Slices, start: int, stop: int
    ) -> pa.RecordBatch:
        """Return some sequences of the documents in a batch, and the parts of documents under them."""
        places, width = np.arange(start, stop), self.pack.width
        slices = packed.cut(places, places + 1)
        at = found.offsets[slices.document] + slices.start
        values = [sequences_of(column, at, slices.length, slices.offsets, width) for column in found.values]
        offsets, parts = np.arange(len(slices.offsets)) * width, self.parts(batch, found, slices)
        return rows_of_sequences(values, offsets, parts, slices.offsets, self.schema(batch.schema))


def stage_of(pack: Pack, table: pa.Schema, asked: Sequence[str] = ()) -> TokenStage:
    """Return the stage that the rows of a table pass in a stream.

    Raises:
        ConfigError: the columns do not fit, or the strategy is one of ``shuffle="rows"``.
    """
    if not pack.permutes_documents:
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
    if pack.joins_documents:
        return TokensAsRows(pack, table, asked)
    return SequencesAsRows(pack, table, asked)
