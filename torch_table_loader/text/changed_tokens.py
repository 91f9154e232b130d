"""Tokens of documents that the caller's function changes after they are gathered, anew in each epoch.

The store keeps documents as the table has them. When an epoch begins, the function is called for all of them, to count
what comes out; sequences are planned on these counts, so that none has padding that a bound would leave. A gather takes
whole documents, and calls the function for them again.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from typing_extensions import override

from torch_table_loader.arrow.arrays import array_of, number_type
from torch_table_loader.arrow.copied_runs import runs_of
from torch_table_loader.cancellation import Threads
from torch_table_loader.engine.machine import usable_cpus
from torch_table_loader.engine.newest import Newest
from torch_table_loader.errors import ConfigError
from torch_table_loader.forks import OfProcess
from torch_table_loader.planning.keys import stage_key
from torch_table_loader.planning.lists import ListLengths
from torch_table_loader.records import ROW_ID
from torch_table_loader.store.gather import Spans
from torch_table_loader.text.kept_documents import KeptDocuments
from torch_table_loader.text.stored_tokens import CutTokens, StoredTokens, TakenParts, taken, values_of
from torch_table_loader.text.token_stages import type_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torch_table_loader.engine.row_store import RowStoreHandle
    from torch_table_loader.planning.keys import EpochKey
    from torch_table_loader.planning.lists import Slices
    from torch_table_loader.store.gather import StoredRows
    from torch_table_loader.text.pack import Pack
    from torch_table_loader.text.placed_documents import PlacedDocuments

    Ints: TypeAlias = NDArray[np.int64]

_log = logging.getLogger(__name__)

_TOKENS_AT_ONCE = 1 << 18
_DOCUMENTS_AT_ONCE = 1 << 12
"""Of the documents that are counted in one call of the function."""

_KEPT_EPOCHS = 2
"""Epochs whose lengths are kept: the one that runs, and the next."""

_LENGTH_BYTES = 4


def as_stored(pack: Pack) -> Pack:
    """Return the pack of the documents that a store keeps for a function that changes them later."""
    ends: dict[str, Any] = {"bos_id": None, "eos_id": None, "sep_id": None, "min_length": 1}
    return replace(pack, documents=None, same_lengths=False, **ends)


class ChangingDocuments(KeptDocuments):
    """Makes of stored documents those that come out.

    Args:
        kept: makes the stored documents of those of the table.
    """

    def __init__(self, pack: Pack, kept: KeptDocuments, table: pa.Schema) -> None:
        self.stored = [
            pa.field(name, _list_of(entry.type, name, table))
            for name, entry in zip(pack.cut_columns, kept.token_fields, strict=True)
        ]
        own = replace(pack, tokens=pack.ids, tokenizer=None, lengths=None)
        super().__init__(own, pa.schema(self.stored))

    @override
    def of_epoch(self, key: EpochKey, *, shuffle: bool) -> ChangingDocuments:
        return cast("ChangingDocuments", super().of_epoch(key, shuffle=shuffle))

    def miscounted(self, document: int, counted: int, found: int) -> ConfigError:
        """Return the error of a function that made another number of tokens than when they were counted."""
        return ConfigError(
            f"{self.made_by} made {counted} tokens of the document whose row_id is {document} when they were counted, "
            f"and {found} now; {self.must}"
        )


def _list_of(kind: pa.DataType, name: str, table: pa.Schema) -> pa.DataType:
    """Return the type of lists that a function is given, which is the table's where it can be."""
    if name in table.names and pt.is_list(type_of(table, name)):
        return pa.list_(kind)
    return pa.large_list(kind)


class _EpochLengths:
    """The tokens of each document in an epoch, counted when they are first asked for. It pickles with what it knows."""

    def __init__(self) -> None:
        self.found: ListLengths | None = None
        self.lock = OfProcess(threading.Lock)

    def __reduce__(self) -> tuple[Any, ...]:
        return _known_lengths, (self.found,)


def _known_lengths(found: ListLengths | None) -> _EpochLengths:
    made = _EpochLengths()
    made.found = found
    return made


class ChangedTokens(StoredTokens):
    """Tokens of stored documents as a function changes them in an epoch.

    Args:
        stage: makes of stored documents those that come out; see `ChangingDocuments`.
    """

    def __init__(self, store: RowStoreHandle, pack: Pack, stage: ChangingDocuments, seed: int) -> None:
        super().__init__(store, pack)
        self._epoch = 0
        self._stage = stage.of_epoch(stage_key(seed, 0), shuffle=False)
        self._counted = _EpochLengths()
        self._epochs: Newest[tuple[int, int], ChangedTokens] = Newest(_KEPT_EPOCHS)

    @override
    def of_epoch(self, seed: int, epoch: int) -> ChangedTokens:
        return self._epochs.of((seed, epoch), lambda: self._changed_in(seed, epoch))

    def _changed_in(self, seed: int, epoch: int) -> ChangedTokens:
        made = copy.copy(self)
        made._epoch, made._epochs, made._counted = epoch, Newest(_KEPT_EPOCHS), _EpochLengths()
        made._stage = self._stage.of_epoch(stage_key(seed, epoch), shuffle=False)
        return made

    @property
    @override
    def made(self) -> str:
        return f"{super().made}-then-{self._stage.key}"

    @property
    @override
    def memory_bytes(self) -> int:
        return _KEPT_EPOCHS * _LENGTH_BYTES * sum(self.store.spec.chunk_rows)

    @property
    @override
    def longest(self) -> int:
        return super().lengths.longest[0]

    @property
    @override
    def lengths(self) -> ListLengths:
        """The tokens of each document in the epoch; the function is called for all of them once."""
        counted = self._counted
        with counted.lock.own:
            if counted.found is None:
                counted.found = self._count(super().lengths)
            return counted.found

    def _count(self, stored: ListLengths) -> ListLengths:
        if self._stage.measured_by is not None:
            return ListLengths.of(self._stage.kept_lengths(stored.padded[: stored.count]))
        began, edges = time.perf_counter(), [0, *(stop for stop in _stops(stored)), stored.count]
        blocks = [np.arange(start, stop) for start, stop in pairwise(edges) if start < stop]
        with Threads(usable_cpus(), "table-loader-count", joined=True) as pool:
            found = list(pool.map(self._lengths_of, blocks))
        _log.info(
            "counted the tokens of %d documents in epoch %d in %.2f s",
            *(stored.count, self._epoch, time.perf_counter() - began),
        )
        return ListLengths.of(np.concatenate([np.empty(0, np.uint32), *found]))

    def _lengths_of(self, documents: Ints) -> NDArray[np.uint32]:
        """Return how many tokens come of some documents."""
        rows, places = self.store.rows().fetch(documents, self._spans(documents))
        return self._stage.whole_lengths(self._given(rows, documents, places)).astype(np.uint32)

    def _spans(self, documents: Ints) -> Spans:
        """Return all tokens of some documents, as they are stored."""
        stored = super().lengths
        at = stored.starts(documents)
        return Spans(at, at + stored.take(documents))

    @override
    def parts(self, slices: Slices) -> TakenParts:
        goes_on = self.packer.goes_on(slices, self.lengths.take(slices.document))
        return TakenParts(slices, goes_on, self._spans(np.unique(slices.document)))

    @override
    def cut(self, parts: TakenParts, rows: StoredRows, documents: Ints, fields: Sequence[pa.Field]) -> CutTokens:
        slices, goes_on = parts.slices, parts.goes_on
        whole, first, which = np.unique(slices.document, return_index=True, return_inverse=True)
        found = self._stage.documents(given := self._given(rows, whole, documents[first]))
        lengths = np.zeros(len(whole), np.int64)
        lengths[found.kept] = np.diff(found.offsets)
        if len(wrong := np.flatnonzero(lengths != (counted := self.lengths.take(whole)))):
            first_wrong = int(wrong[0])
            told = given.column(ROW_ID)[first_wrong].as_py()
            raise self._stage.miscounted(told, int(counted[first_wrong]), int(lengths[first_wrong]))
        at = (np.cumsum(lengths) - lengths)[which] + slices.start
        columns = [runs_of([column], at, slices.length) for column in found.values]
        behind = self.packer.behind(goes_on, at + slices.length, lambda column, places: found.values[column][places])
        return CutTokens(columns, behind)

    def _given(self, rows: StoredRows, documents: Ints, places: Ints) -> pa.RecordBatch:
        """Return what the function is given of some documents, which are at `places` of the rows."""
        stored, values = super().lengths, values_of(rows)
        lengths = stored.take(documents)
        some = documents[lengths > 0]
        runs = stored.starts(some), lengths[lengths > 0]
        if (placed := cast("PlacedDocuments | None", values.placed)) is not None:
            runs = placed.runs(placed.locate(some), np.zeros(len(some), np.int64), runs[1])
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))))
        lists = []
        for number, field in enumerate(self._stage.stored):
            flat = taken(values, number, *runs, number_type(field.type.value_type))
            made = pa.LargeListArray.from_arrays(offsets, array_of(flat, field.type.value_type))
            lists.append(made.cast(field.type))
        names = [field.name for field in self._stage.stored]
        return pa.RecordBatch.from_arrays([*lists, pa.array(rows.ids(places))], names=[*names, ROW_ID])

    def __getstate__(self) -> dict[str, Any]:
        """Leave out other epochs."""
        return {**vars(self), "_epochs": {}}


def _stops(stored: ListLengths) -> list[int]:
    """Return where documents are divided, so that few of them, and few tokens, are counted together."""
    stops: list[int] = []
    for first, lengths in stored.batches():
        blocks = np.cumsum(lengths) // _TOKENS_AT_ONCE + np.arange(len(lengths)) // _DOCUMENTS_AT_ONCE
        stops += (first + np.flatnonzero(np.diff(blocks, prepend=-1))).tolist()
    return stops
