"""Documents as the caller's function changes them: `Pack(documents=...)`, called and held to what it promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow.arrays import plain
from torch_table_loader.errors import ConfigError
from torch_table_loader.planning.keys import EpochKey, hashes_of
from torch_table_loader.records import ROW_ID
from torch_table_loader.text.parameters import EPOCH, takes_epoch
from torch_table_loader.text.tokenizers import name_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.text.pack import Pack

    Ints: TypeAlias = NDArray[np.int64]

SEED = "seed"
"""The column of a seed for each document."""

_CALLED_TWICE = 8
"""Documents of a batch, at most, for which a function is called again while they are counted."""


class DocumentChange:
    """The caller's function over documents, with the types that it must return. A value; it pickles.

    Args:
        kinds: the types that the values of the columns come out in.
    """

    def __init__(self, pack: Pack, kinds: Sequence[pa.DataType]) -> None:
        """Look at the function's parameters."""
        assert pack.documents is not None  # noqa: S101 made only then
        self.function = pack.documents
        self.by_epoch = takes_epoch(pack.documents)
        self._pack, self._kinds = pack, kinds

    @property
    def name(self) -> str:
        """What messages, states and caches call it."""
        return name_of(self.function)

    @property
    def must(self) -> str:
        """What a message says that it must do, where it returns other lengths than were counted."""
        if self.by_epoch:
            return "what it returns for a document must depend on the document, its seed and the epoch alone"
        return (
            "it may change documents by their seeds, but not their lengths, which must be the same in every epoch and "
            "process, unless it takes epoch="
        )

    def columns(
        self, batch: pa.RecordBatch, lists: Sequence[pa.Array], key: EpochKey, *, twice: bool = False
    ) -> list[pa.Array]:
        """Return the columns that are cut as the function returns them.

        Args:
            batch: has the documents' row ids, of which their seeds are made; without them, where documents are only
                counted, all seeds are 0.
            lists: the columns that are cut.
            twice: whether a function that takes the epoch is called again for some documents, without those before.

        Raises:
            ConfigError: the function failed, or did not return what it must.
        """
        if not batch.num_rows:
            return [pa.nulls(0, pa.large_list(kind)) for kind in self._kinds]
        given = self._given(batch, lists, key)
        found = self._returned(given, key.epoch)
        if twice and self.by_epoch:
            self._check_again(batch, given, found, key.epoch)
        return found

    def _check_again(self, batch: pa.RecordBatch, given: pa.RecordBatch, found: list[pa.Array], epoch: int) -> None:
        first = batch.num_rows - min(_CALLED_TWICE, -(-batch.num_rows // 2))
        for one, other in zip(found, self._returned(given.slice(first), epoch), strict=True):
            if not (some := one.slice(first)).equals(other):
                row = next(row for row in range(len(other)) if some[row] != other[row])
                self._refuse_another(batch, first + row, some[row], other[row], epoch)

    def _refuse_another(self, batch: pa.RecordBatch, row: int, one: Any, other: Any, epoch: int) -> None:
        raise self.wrong(
            f"return the same for a document whenever it has the same seed and epoch, whatever documents come with it: "
            f"for the one whose row_id is {batch.column(ROW_ID)[row]}, in epoch {epoch}, it returned {_shown(one)}",
            f"{_shown(other)} when it was called again",
        )

    def _given(self, batch: pa.RecordBatch, lists: Sequence[pa.Array], key: EpochKey) -> pa.RecordBatch:
        """Return what the function is given: the columns that are cut, and seeds."""
        seeds = np.zeros(batch.num_rows, dtype=np.int64)
        if ROW_ID in batch.schema.names:
            ids = batch.column(ROW_ID).to_numpy(zero_copy_only=False).astype(np.uint64)
            seeds = (hashes_of(ids, key) >> np.uint64(1)).astype(np.int64)
        return pa.RecordBatch.from_arrays([*lists, pa.array(seeds)], names=[*self._pack.cut_columns, SEED])

    def _returned(self, given: pa.RecordBatch, epoch: int) -> list[pa.Array]:
        names, beside = self._pack.cut_columns, {EPOCH: epoch} if self.by_epoch else {}
        try:
            returned: Any = self.function(given, **beside)
        except Exception as error:
            raise ConfigError(f"Pack: documents={self.name} failed: {type(error).__name__}: {error}") from error
        if isinstance(returned, pa.Table):
            returned = returned.combine_chunks()
        if not isinstance(returned, pa.RecordBatch | pa.Table) or sorted({*returned.schema.names} - {SEED}) != sorted(
            names
        ):
            is_table = isinstance(returned, pa.RecordBatch | pa.Table)
            shown = returned.schema.names if is_table else type(returned).__name__
            raise self.wrong(f"return a RecordBatch of the columns {', '.join(names)}", shown)
        if returned.num_rows != given.num_rows:
            raise self.wrong(f"return {given.num_rows} rows, as it was given", returned.num_rows)
        found = [self._list_of(returned, name, kind) for name, kind in zip(names, self._kinds, strict=True)]
        if self._pack.same_lengths and not np.array_equal(lengths_of(found[0]), lengths_of(given.column(names[0]))):
            raise self.wrong("keep the number of tokens of each document with same_lengths=True", "another")
        return found

    def _list_of(self, returned: pa.RecordBatch | pa.Table, name: str, kind: pa.DataType) -> pa.Array:
        column = returned.column(name)
        column = plain(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
        try:
            return column.cast(pa.large_list(kind))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise self.wrong(f"return lists of {kind} as {name!r}", f"{column.type} ({error})") from error

    def wrong(self, expected: str, found: Any) -> ConfigError:
        """Return the error of a function that did something else than expected."""
        return ConfigError(f"Pack: documents={self.name} must {expected}, got {found}")


def _shown(values: Any) -> str:
    """Return how many tokens a document has, and the first."""
    found = values.as_py() or []
    return f"{len(found)} tokens from {found[:8]} on"


def lengths_of(lists: pa.Array) -> Ints:
    """Return how long each list is; a null has no length."""
    lengths = lists.value_lengths()
    if lengths.null_count:
        lengths = lengths.fill_null(0)
    found: Ints = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return found
