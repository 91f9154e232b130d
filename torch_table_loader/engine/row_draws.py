"""What the core asks of the guest that draws rows by weight, and orders the rows added during an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from torch_table_loader.installed import load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from torch_table_loader.engine.table import Table
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.exclusion import ExclusionVersions
    from torch_table_loader.planning.layout import TableLayout
    from torch_table_loader.planning.orders import Draws, EpochOrder
    from torch_table_loader.planning.splits import SegmentTable

    Ints: TypeAlias = NDArray[np.int64]


class RowDraws(Protocol):
    """The door of that guest."""

    def draws_of(self, table: Table, options: LoaderOptions, segments: SegmentTable, stores: Path | None) -> Draws:
        """Return how often each live row of a table comes, as `weights=` asks; once each without it.

        Args:
            segments: whole files; every live row is known.
            stores: the folder of row stores, in which more may be kept; None keeps it in memory.

        Raises:
            ConfigError: what decides it does not fit the table.
            TableError: the table has not what it is read from.
        """
        ...

    def order_of_arrivals(
        self, live_starts: Ints, tables: Sequence[Ints], gone: Ints, seed: int, epoch: int
    ) -> EpochOrder:
        """Return the order of an epoch during which rows were added to a table: a part for each time.

        Args:
            live_starts: int64[F+1] the row of the store that is the first of each file.
            tables: the files that the table had at each time, in its order then; the last entry has all files.
            gone: the rows that are excluded.
        """
        ...

    def exclusions_now(self, layout: TableLayout, files: Ints, then: ExclusionVersions) -> ExclusionVersions:
        """Return what was excluded of a table that was some files, by the row ids of what it is now."""
        ...


def row_draws() -> RowDraws:
    """Return the guest.

    Raises:
        MissingExtraError: this build does not have it.
    """
    return cast("RowDraws", load("order"))
