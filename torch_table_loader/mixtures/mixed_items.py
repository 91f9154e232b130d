"""The rows of a mixture by their place in its order: each source gathers its own, and the results are joined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import tee
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.arrays import plain
from torch_table_loader.engine.items import ItemStream, TurnStream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.engine.row_store import RowStoreHandle
    from torch_table_loader.mixtures.mixture import Mixture, Place
    from torch_table_loader.ranges import Fetcher

    Ints: TypeAlias = NDArray[np.int64]

T = TypeVar("T")

_BLOCKS_AHEAD = 8
"""Blocks for which a store that is not in memory reads ahead: it must not run far ahead for a source that is rare."""


@dataclass(frozen=True, slots=True)
class SourceStream:
    """One source of a mixture.

    Args:
        columns: for each column of the mixture, its place among the source's.
    """

    number: int
    items: TurnStream
    columns: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class MixedStream(ItemStream):
    """The rows of a mixture by their place in its order.

    Args:
        sources: in the order of the mixture's names.
        marks_source: whether the last column says which source each row comes from.
    """

    mixture: Mixture
    sources: tuple[SourceStream, ...]
    marks_source: bool = True

    @property
    def stores(self) -> Sequence[RowStoreHandle]:
        """Those of the sources that have a weight."""
        return [store for number in self._wanted for store in self.sources[number].items.stores]

    @property
    def _wanted(self) -> list[int]:
        return [number for number, weight in enumerate(self.mixture.shares.weights) if weight]

    def columns(self, blocks: Iterator[tuple[Ints, T]], fetcher: Fetcher | None) -> Iterator[tuple[list[pa.Array], T]]:
        """Yield the items of blocks that come after each other, each as one array a column.

        A source without weight is never opened.
        """
        wanted = self._wanted
        own, *others = tee(((self.mixture.take(places), note) for places, note in blocks), 1 + len(wanted))
        streams = {number: self._of(number, found, fetcher) for number, found in zip(wanted, others, strict=True)}
        numbers = np.array([entry.number for entry in self.sources], dtype=np.int64)
        for (source, _), note in own:
            each = {number: next(stream) for number, stream in streams.items()}
            taken = np.flatnonzero(np.bincount(source)).tolist() or wanted[:1]  # a block without places has types too
            parts = [each[number] for number in taken]
            joined = _joined(parts, source)
            yield [*joined, pa.array(numbers[source])] if self.marks_source else joined, note

    def name_of(self, place: int) -> str:
        """Return what a message calls the row at a place."""
        source, turn = self.mixture.take(np.array([place]))
        own = self.sources[source[0]]
        return f"{own.items.name_of(int(turn[0]))} in source {own.number} of the mixture"

    def _of(self, number: int, found: Iterator[tuple[Place, Any]], fetcher: Fetcher | None) -> Iterator[list[pa.Array]]:
        """Yield the rows that each block takes from one source, which may be none."""
        entry = self.sources[number]
        turns = ((place.turn[place.source == number], None) for place, _ in found)
        for columns, _ in entry.items.columns(turns, fetcher, _BLOCKS_AHEAD):
            yield [plain(columns[column]) for column in entry.columns]  # dictionaries of several sources differ


def _joined(parts: list[list[pa.Array]], source: NDArray[np.int16]) -> list[pa.Array]:
    """Bring the rows of several sources into the order in which they come."""
    if len(parts) == 1:
        return parts[0]
    back = np.empty(len(source), dtype=np.int64)
    back[np.argsort(source, kind="stable")] = np.arange(len(source))
    indices = pa.array(back)
    return [pc.take(pa.concat_arrays(column), indices, boundscheck=False) for column in zip(*parts, strict=True)]
