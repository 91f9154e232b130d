"""The order of single rows in an epoch during which the table grew: first the old rows, then those added since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from torch_table_loader.planning.distinct import distinct
from torch_table_loader.planning.exclusion import Exclusions, Remaining
from torch_table_loader.planning.keys import Key, derive_key
from torch_table_loader.planning.permutation import Permutation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.layout import TableLayout

    Ints: TypeAlias = NDArray[np.int64]


def ids_now(layout: TableLayout, files: Ints, exclusions: Exclusions) -> Exclusions:
    """Translate exclusions from the row ids of an earlier table to those of the current table.

    Args:
        files: the files that the earlier table had, in their order then.
    """
    if not len(exclusions.ids):
        return exclusions
    starts = layout.part(files).file_starts
    number = np.searchsorted(starts, exclusions.ids, side="right") - 1
    return replace(exclusions, ids=np.sort(layout.file_starts[files[number]] + exclusions.ids - starts[number]))


@dataclass(frozen=True, slots=True, eq=False)
class FileRows:
    """The live rows of some files of a table, counted from 0 over these files.

    Args:
        live_starts: int64[F+1] the place of each file's first live row among those of the table.
        files: int64[P] the files, in their order.
    """

    live_starts: Ints
    files: Ints

    @property
    def starts(self) -> Ints:
        """int64[P+1] the first row of each file."""
        return np.concatenate(([0], np.cumsum(np.diff(self.live_starts)[self.files]))).astype(np.int64)

    def places(self, rows: Ints) -> Ints:
        """Return the places in the table of some rows of the files."""
        starts = self.starts
        number = np.searchsorted(starts, rows, side="right") - 1
        return self.live_starts[self.files[number]] + rows - starts[number]

    def rows(self, places: Ints) -> Ints:
        """Return the rows of the files among some rows of the table, sorted."""
        file = np.searchsorted(self.live_starts, places, side="right") - 1
        number = np.full(len(self.live_starts), -1, dtype=np.int64)
        number[self.files] = np.arange(len(self.files))
        own = number[file] >= 0
        return np.sort(self.starts[number[file[own]]] + places[own] - self.live_starts[file[own]])


@dataclass(frozen=True, slots=True, eq=False)
class GrownPart:
    """The rows that a table had at first, or that were added at once, without the excluded ones, permuted."""

    rows: FileRows
    remaining: Remaining
    permutation: Permutation

    @classmethod
    def of(cls, rows: FileRows, gone: Ints, key: Key) -> GrownPart:
        """Permute the rows of some files, without `gone`, the excluded rows of the table."""
        remaining = Remaining(int(rows.starts[-1]), rows.rows(gone))
        return cls(rows, remaining, Permutation(remaining.num_rows, key))


@dataclass(frozen=True, slots=True, eq=False)
class GrownOrder:
    """An epoch's order over a table that grew during the epoch.

    The first part has the rows from when the epoch began, and each later part those added since, in order
    of arrival.
    """

    parts: tuple[GrownPart, ...]

    @classmethod
    def of(cls, live_starts: Ints, tables: Sequence[Ints], gone: Ints, seed: int, epoch: int) -> GrownOrder:
        """Order the rows of a table without `gone`, the excluded ones.

        Args:
            tables: the files that the table had at each time, in its order then; the last entry has all files.
        """
        parts, before = [], np.empty(0, dtype=np.int64)
        for number, files in enumerate(tables):
            new = files[~np.isin(files, before)]
            purpose = "rows" if not number else f"rows that came {number}."
            parts.append(GrownPart.of(FileRows(live_starts, new), gone, derive_key(seed, epoch, purpose)))
            before = files
        return cls(tuple(parts))

    @property
    def ends(self) -> Ints:
        """int64[P] the place after the last of each part."""
        return np.cumsum([part.remaining.num_rows for part in self.parts], dtype=np.int64)

    @property
    def num_rows(self) -> int:
        """Rows of the epoch."""
        return int(self.ends[-1])

    def take(self, places: Ints) -> Ints:
        """Return the row of the table at each place of the order."""
        ends = self.ends
        of_part = np.searchsorted(ends, places, side="right")
        result = np.empty_like(places)
        for number in distinct(of_part).tolist():
            part, at = self.parts[number], of_part == number
            local = places[at] - (ends[number] - part.remaining.num_rows)
            result[at] = part.rows.places(part.remaining.select(part.permutation.take(local)))
        return result
