"""Columns of strings with few distinct values, in memory: a code for each row, and each distinct string once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow.arrays import plain
from torch_table_loader.arrow.buffers import new_array
from torch_table_loader.arrow.datatypes import is_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

_REPEATED = 2
"""How often each string of a chunk must occur, on average, for codes to pay."""

_NULL = -1


@dataclass(frozen=True, slots=True, eq=False)
class CodedStrings:
    """All rows of some columns of strings.

    Args:
        columns: the numbers of the columns.
        codes: int32 [rows, columns], indices into the dictionaries; −1 if a row is null.
        dictionaries: the distinct strings of each column, in its plain type.
        nullable: which of the columns contain a null.
    """

    columns: tuple[int, ...]
    codes: NDArray[np.int32]
    dictionaries: tuple[pa.Array, ...]
    nullable: tuple[bool, ...]

    def gather(self, places: Ints) -> list[pa.DictionaryArray]:
        """Return the rows at some places, one array for each column, in new memory."""
        width = 4 * len(self.columns)
        records = self.codes.reshape(-1).view(f"V{width}").take(places, mode="clip")
        by_column = new_array((len(self.columns), len(places)), np.int32)
        by_column[:] = records.view(np.int32).reshape(len(places), len(self.columns)).T
        return [
            pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes == _NULL if nulls else None), words, safe=False)
            for codes, words, nulls in zip(by_column, self.dictionaries, self.nullable, strict=True)
        ]


class StringEncoder:
    """Encodes the strings of a store while it is built; threads may share it."""

    def __init__(self) -> None:
        """Assume that strings repeat in every column of strings, until a chunk shows otherwise."""
        self._differing: set[str] = set()

    def encode(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return the record batches of a chunk, with repeated strings as dictionaries."""
        if not batches:
            return []
        names = batches[0].schema.names
        columns = [self._encoded(name, [batch.column(name) for batch in batches]) for name in names]
        return [pa.RecordBatch.from_arrays(list(arrays), names) for arrays in zip(*columns, strict=True)]

    def _encoded(self, name: str, arrays: Sequence[pa.Array]) -> Sequence[pa.Array]:
        if name in self._differing or not is_text(arrays[0].type):
            return arrays
        found: list[pa.DictionaryArray] = pa.chunked_array(arrays).dictionary_encode().chunks
        if _REPEATED * len(found[0].dictionary) <= sum(map(len, arrays)):
            return found
        self._differing.add(name)
        return arrays

    def finish(
        self, columns: Sequence[int], batches: Sequence[pa.RecordBatch]
    ) -> tuple[CodedStrings | None, list[pa.RecordBatch]]:
        """Separate the columns of codes from everything that was encoded.

        Args:
            columns: the numbers of the columns that the record batches have.
            batches: in row order, as returned by `encode`.

        Returns:
            The columns of codes, None if there are none; and the other columns, plain again.
        """
        if not batches:
            return None, []
        names = batches[0].schema.names
        coded = [
            place
            for place, name in enumerate(names)
            if name not in self._differing and isinstance(batches[0].column(place), pa.DictionaryArray)
        ]
        others = [place for place in range(len(names)) if place not in coded]
        left = [
            pa.RecordBatch.from_arrays([plain(batch.column(place)) for place in others], [names[at] for at in others])
            for batch in batches
        ]
        if not coded:
            return None, left
        codes = np.empty((sum(batch.num_rows for batch in batches), len(coded)), np.int32)
        found = [_joined([batch.column(place) for batch in batches], codes[:, at]) for at, place in enumerate(coded)]
        words, nullable = zip(*found, strict=True)
        return CodedStrings(tuple(columns[place] for place in coded), codes, words, nullable), left


def _joined(parts: Sequence[pa.DictionaryArray], codes: NDArray[np.int32]) -> tuple[pa.Array, bool]:
    """Write the codes of all rows; return the strings that they refer to, and whether a row is null."""
    unified: Any = pa.chunked_array(parts).unify_dictionaries()
    row = 0
    for part in unified.chunks:
        codes[row : row + len(part)] = part.indices.fill_null(_NULL).to_numpy()
        row += len(part)
    return unified.chunk(0).dictionary, bool(unified.null_count)
