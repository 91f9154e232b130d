"""How strings become integers: as places in a vocabulary, or as buckets of a hash."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from typing_extensions import override
from xxhash import xxh3_64_intdigest

from torch_table_loader.arrow import compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Coder(ABC):
    """Turns strings into integers."""

    __slots__ = ()

    @abstractmethod
    def codes(self, array: pa.Array) -> NDArray[np.int64]:
        """Return one integer for each value of an array of wide strings or bytes, nulls included; the result is new."""


@dataclass(frozen=True, slots=True)
class VocabularyCoder(Coder):
    """The place of each string in a vocabulary (an Arrow array of the wide type); unknown and null are −1."""

    values: pa.Array

    @override
    def codes(self, array: pa.Array) -> NDArray[np.int64]:
        if len(self.values) <= len(array):
            found = pc.index_in(array, value_set=self.values, skip_nulls=True)
            every: NDArray[np.int64] = found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            return every
        # Hashing the vocabulary would cost more than hashing the column: look up the column's own values in it.
        wanted = array.unique()
        known = pc.index_in(self.values, value_set=wanted, skip_nulls=True)
        places = np.flatnonzero(known.is_valid().to_numpy(zero_copy_only=False))
        codes_of = np.full(len(wanted) + 1, -1, np.int64)
        codes_of[known.drop_null().to_numpy(zero_copy_only=False)] = places
        indices = pc.index_in(array, value_set=wanted, skip_nulls=True).fill_null(len(wanted))
        codes: NDArray[np.int64] = codes_of[indices.to_numpy(zero_copy_only=False)]
        return codes


@dataclass(frozen=True, slots=True)
class HashCoder(Coder):
    """The bucket of each string; see `column_options.Hash`. Each distinct string of an array is hashed once.

    Null is in bucket 0, and no string is.
    """

    buckets: int

    @override
    def codes(self, array: pa.Array) -> NDArray[np.int64]:
        encoded = array.dictionary_encode()
        values = encoded.dictionary.cast(pa.large_binary()).to_pylist()
        hashes = np.fromiter(map(xxh3_64_intdigest, values), dtype=np.uint64, count=len(values))
        codes_of = np.zeros(len(values) + 1, np.int64)
        codes_of[:-1] = 1 + (hashes % np.uint64(self.buckets - 1)).astype(np.int64)
        indices = encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
        found: NDArray[np.int64] = codes_of[indices]
        return found
