"""Columns of strings with few distinct values: a code for each row, and each distinct string once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    """Encodes the strings of a chunk while its rows arrive."""

    def __init__(self, differing: set[str]) -> None:
        """Start without rows.

        The chunks of a store share and update `differing`: the columns of strings that do not repeat.
        """
        self._differing = differing
        self._parts: dict[str, list[pa.DictionaryArray]] = {}
        self._word_bytes: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Encode the strings of the next rows."""
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            if name in self._differing or not is_text(array.type):
                continue
            part = array.dictionary_encode()
            self._word_bytes[name] = self._word_bytes.get(name, 0) + part.dictionary.nbytes
            if self._word_bytes[name] > sizes().chunk_word_bytes:
                self._differing.add(name)
                self._parts.pop(name, None)
            else:
                self._parts.setdefault(name, []).append(part)

    def finish(self) -> dict[str, list[pa.DictionaryArray]]:
        """Return the columns whose strings repeat, batch by batch, with one dictionary each."""
        found = {}
        for name, parts in self._parts.items():
            unified: Any = pa.chunked_array(parts).unify_dictionaries()
            if _REPEATED * len(unified.chunk(0).dictionary) > len(unified):
                self._differing.add(name)
            elif name not in self._differing:
                found[name] = unified.chunks
        return found


def codes_of(
    chunks: Sequence[Chunk],
) -> tuple[dict[int, bool], tuple[pa.Array, ...], Iterator[NDArray[np.int32]]]:
    """Unify the dictionaries of all chunks of a store, in row order.

    Returns:
        The columns that are dictionary arrays in every chunk and whose strings repeat in the whole store, each with
        whether it contains a null; the distinct strings of each; and the codes of all rows in row order, as blocks of
        int32[rows of a batch, columns].
    """
    some = [chunk[0] for chunk in chunks if chunk]
    rows = sum(batch.num_rows for chunk in chunks for batch in chunk)
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
        if _REPEATED * len(words) > rows:
            continue
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


def encoded_batches(batches: Chunk, differing: set[str]) -> list[pa.RecordBatch]:
    """Return the record batches of a chunk, with strings that repeat as dictionaries."""
    strings = ChunkStrings(differing)
    for batch in batches:
        strings.add(batch)
    found = strings.finish()
    return [
        pa.RecordBatch.from_arrays(
            [found[name][number] if name in found else batch.column(name) for name in batch.schema.names],
            batch.schema.names,
        )
        for number, batch in enumerate(batches)
    ]


def separated(chunks: Sequence[Chunk]) -> tuple[CodedStrings | None, list[pa.RecordBatch]]:
    """Separate the columns of codes from all others, in chunks that `encoded_batches` returned, in row order.

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
