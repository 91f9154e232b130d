"""Columns of strings with few distinct values: a code for each row, and each distinct string once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow.arrays import plain
from torch_table_loader.arrow.buffers import new_array
from torch_table_loader.arrow.datatypes import is_text
from torch_table_loader.sizes import sizes
from torch_table_loader.store.record_layout import heap_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.store.record_layout import Origin

    Ints: TypeAlias = NDArray[np.int64]

_REPEATED = 2
"""How often each string must occur, on average, in a chunk and in the whole store, for codes to pay."""

_NULL = -1
_NO_CODES = np.array([_NULL], np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class CodedStrings:
    """All rows of some columns of strings.

    Args:
        columns: for each column, whether it contains a null.
        codes: int32 [rows, columns], indices into the dictionaries; −1 if a row is null.
        dictionaries: the distinct strings of each column, in its plain type.
        origin: the store whose files have the codes; None if they were made in memory.
    """

    columns: Mapping[int, bool]
    codes: NDArray[np.int32]
    dictionaries: tuple[pa.Array, ...]
    origin: Origin | None = None

    def gather(self, places: Ints) -> list[pa.DictionaryArray]:
        """Return the rows at some places, one array for each column, in new memory."""
        width = 4 * len(self.columns)
        records = self.codes.reshape(-1).view(f"V{width}").take(places, mode="clip")
        by_column = new_array((len(self.columns), len(places)), np.int32)
        by_column[:] = records.view(np.int32).reshape(len(places), len(self.columns)).T
        if self.origin is not None:
            self._check(by_column, self.origin)
        return [
            pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes == _NULL if nulls else None), words, safe=False)
            for codes, words, nulls in zip(by_column, self.dictionaries, self.columns.values(), strict=True)
        ]

    def _check(self, by_column: NDArray[np.int32], origin: Origin) -> None:
        for codes, words, nulls in zip(by_column, self.dictionaries, self.columns.values(), strict=True):
            low, high = int(codes.min(initial=0)), int(codes.max(initial=_NULL))
            if low < (_NULL if nulls else 0) or high >= len(words):
                wrong = high if high >= len(words) else low
                raise origin.damaged("codes.bin", f"has the code {wrong} in a column of {len(words)} distinct strings")


Chunk: TypeAlias = Sequence[pa.RecordBatch]
"""The rows of a chunk. Columns with codes are dictionary arrays, and all batches share the dictionary."""


class ChunkStrings:
    """Encodes the strings of a chunk while its rows arrive, so that memory holds each distinct one once, about."""

    def __init__(self, differing: set[str]) -> None:
        """Start without rows.

        The chunks of a store share and update `differing`: the columns of strings that do not repeat.
        """
        self._differing = differing
        self._found: dict[str, _Repeated] = {}

    def add(self, batch: pa.RecordBatch) -> dict[str, list[pa.DictionaryArray]]:
        """Encode the strings of the next rows.

        Returns:
            The columns that are encoded no longer, with their rows before these.
        """
        given_up = {}
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            if not is_text(array.type):
                continue
            part = None if name in self._differing else array.dictionary_encode()
            found = self._found.get(name) or _Repeated()
            if part is not None and found.fits(part):
                found.add(part, array.nbytes)
                self._found[name] = found
                continue
            self._differing.add(name)
            if self._found.pop(name, None) is not None:
                given_up[name] = found.parts()
        return given_up

    @property
    def columns(self) -> Collection[str]:
        """The columns whose strings are encoded so far."""
        return self._found.keys()

    def finish(self) -> tuple[dict[str, list[pa.DictionaryArray]], dict[str, list[pa.DictionaryArray]]]:
        """Return the columns whose strings repeat, batch by batch, with one dictionary each; and those given up."""
        found: dict[str, list[pa.DictionaryArray]] = {}
        given_up: dict[str, list[pa.DictionaryArray]] = {}
        for name, strings in self._found.items():
            if not strings.pay():
                self._differing.add(name)
            into = found
            if name in self._differing:
                into = given_up
            into[name] = strings.parts()
        self._found.clear()
        return found, given_up


class _Repeated:
    """The strings of a column of a chunk."""

    def __init__(self) -> None:
        self._merged: list[pa.DictionaryArray] = []
        """All rows but the newest, with one dictionary."""
        self._newest: list[pa.DictionaryArray] = []
        self._newest_bytes = self._plain_bytes = 0
        self._rows: list[int] = []

    def fits(self, part: pa.DictionaryArray) -> bool:
        """Return whether there is room for the strings of a part."""
        most = sizes().chunk_word_bytes
        if self._word_bytes + self._newest_bytes + part.dictionary.nbytes > most:
            self._merge()
        return bool(self._word_bytes + part.dictionary.nbytes <= most)

    def add(self, part: pa.DictionaryArray, plain_bytes: int) -> None:
        """Add the next rows, and the bytes that they have as they are."""
        self._newest.append(part)
        self._rows.append(len(part))
        self._newest_bytes += part.dictionary.nbytes
        self._plain_bytes += plain_bytes
        if self._newest_bytes > max(self._word_bytes, sizes().dictionary_bytes // 4):
            self._merge()

    def pay(self) -> bool:
        """Return whether codes take less than the strings, or half the memory."""
        self._merge()
        return _REPEATED * len(self._merged[0].dictionary) <= sum(self._rows) or (
            _REPEATED * (self._word_bytes + 4 * sum(self._rows)) <= self._plain_bytes
        )

    def parts(self) -> list[pa.DictionaryArray]:
        """Return the rows, part by part."""
        self._merge()
        ends = accumulate(self._rows)
        return [self._merged[0].slice(end - rows, rows) for rows, end in zip(self._rows, ends, strict=True)]

    @property
    def _word_bytes(self) -> int:
        return sum(part.dictionary.nbytes for part in self._merged)

    def _merge(self) -> None:
        """Unify the dictionaries."""
        if not self._newest:
            return
        unified: Any = pa.chunked_array([*self._merged, *self._newest]).unify_dictionaries()
        indices = pa.concat_arrays([chunk.indices for chunk in unified.chunks])
        self._merged = [pa.DictionaryArray.from_arrays(indices, unified.chunk(0).dictionary, safe=False)]
        self._newest.clear()
        self._newest_bytes = 0


def codes_of(
    chunks: Sequence[Chunk],
) -> tuple[dict[int, bool], tuple[pa.Array, ...], Iterator[NDArray[np.int32]]]:
    """Unify the dictionaries of all chunks of a store, in row order.

    Returns:
        The columns that are dictionary arrays in every chunk, each with whether it contains a null; the distinct
        strings of each; and the codes of all rows in row order, as blocks of int32[rows of a batch, columns].
    """
    some = [chunk[0] for chunk in chunks if chunk]
    columns: dict[int, bool] = {}
    dictionaries: list[pa.Array] = []
    places: list[list[NDArray[np.int32]]] = []
    for name in some[0].schema.names if some else []:
        if not all(name in batch.schema.names and isinstance(batch.column(name), pa.DictionaryArray) for batch in some):
            continue
        of_chunks = [batch.column(name).dictionary for batch in some]
        if sum(words.nbytes for words in of_chunks) > sizes().store_word_bytes:
            continue
        words, maps = _unified(of_chunks)
        each = iter(maps)
        columns[int(name[1:])] = any(batch.column(name).null_count for chunk in chunks for batch in chunk)
        dictionaries.append(words)
        places.append([next(each) if chunk else _NO_CODES for chunk in chunks])
    return columns, tuple(dictionaries), _blocks(chunks, list(columns), places)


def _blocks(
    chunks: Sequence[Chunk], columns: Sequence[int], places: Sequence[Sequence[NDArray[np.int32]]]
) -> Iterator[NDArray[np.int32]]:
    """Yield the codes of all rows; `places` has, for each column and chunk, what `_unified` returns."""
    for number, chunk in enumerate(chunks):
        for batch in chunk:
            codes = np.empty((batch.num_rows, len(columns)), np.int32)
            for at, (column, maps) in enumerate(zip(columns, places, strict=True)):
                indices = batch.column(heap_name(column)).indices.fill_null(_NULL).to_numpy()
                maps[number].take(indices, out=codes[:, at], mode="wrap")
            yield codes


def _unified(dictionaries: Sequence[pa.Array]) -> tuple[pa.Array, list[NDArray[np.int32]]]:
    """Return the distinct strings of some dictionaries, and for each its strings' places and the code of null."""
    whole = [pa.DictionaryArray.from_arrays(np.arange(len(words), dtype=np.int32), words) for words in dictionaries]
    unified: Any = pa.chunked_array(whole).unify_dictionaries()
    maps = [np.append(chunk.indices.to_numpy(), np.int32(_NULL)) for chunk in unified.chunks]
    return unified.chunk(0).dictionary, maps


class EncodedBatches:
    """The record batches of a chunk in memory, with strings that repeat as dictionaries."""

    def __init__(self, differing: set[str]) -> None:
        """Start without rows; for `differing` see `ChunkStrings`."""
        self._strings = ChunkStrings(differing)
        self._columns: dict[str, list[pa.Array]] = {}
        self._count = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the next rows."""
        for name, parts in self._strings.add(batch).items():
            self._columns[name] = _plain_parts(parts)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            arrays = self._columns.setdefault(name, [])
            if name not in self._strings.columns:
                arrays.append(column)
        self._count += 1

    def finish(self) -> list[pa.RecordBatch]:
        """Return the batches."""
        found, given_up = self._strings.finish()
        self._columns |= found
        while given_up:
            name, parts = given_up.popitem()
            self._columns[name] = _plain_parts(parts)
        names = list(self._columns)
        return [
            pa.RecordBatch.from_arrays([self._columns[name][number] for name in names], names)
            for number in range(self._count)
        ]


def _plain_parts(parts: list[pa.DictionaryArray]) -> list[pa.Array]:
    """Decode parts."""
    return [plain(part) for part in parts]


def separated(chunks: Sequence[Chunk]) -> tuple[CodedStrings | None, list[pa.RecordBatch]]:
    """Separate the columns of codes from all others, in chunks that `EncodedBatches` returned, in row order.

    Returns:
        The columns of codes, None if there are none; and the other columns, plain again.
    """
    batches = [batch for chunk in chunks for batch in chunk]
    columns, dictionaries, blocks = codes_of(chunks)
    coded = set(map(heap_name, columns))
    others = [name for name in batches[0].schema.names if name not in coded] if batches else []
    left = [pa.RecordBatch.from_arrays([plain(batch.column(name)) for name in others], others) for batch in batches]
    if not coded:
        return None, left
    codes, row = np.empty((sum(batch.num_rows for batch in batches), len(coded)), np.int32), 0
    for block in blocks:
        codes[row : row + len(block)] = block
        row += len(block)
    return CodedStrings(columns, codes, dictionaries), left
