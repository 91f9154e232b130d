"""Rows that are drawn by weight, and rows added to a table during an epoch.

The core calls only the functions here; what they return fits the contracts of `planning/orders.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

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


def draws_of(table: Table, options: LoaderOptions, segments: SegmentTable, stores: Path | None) -> Draws:
    """Return how often each live row of a table comes, as `weights=` asks; see `row_weights.draws_of`."""
    from torch_table_loader.order import row_weights
    from torch_table_loader.planning.orders import EachOnce

    if options.weights is None:  # asked for since the table may grow
        return EachOnce()
    return row_weights.draws_of(table, options, segments, stores)


def order_of_arrivals(live_starts: Ints, tables: Sequence[Ints], gone: Ints, seed: int, epoch: int) -> EpochOrder:
    """Return the order of an epoch during which rows were added to a table; see `GrownOrder.of`."""
    from torch_table_loader.order.growth import GrownOrder

    return GrownOrder.of(live_starts, tables, gone, seed, epoch)


def exclusions_now(layout: TableLayout, files: Ints, then: ExclusionVersions) -> ExclusionVersions:
    """Return what was excluded of a table that was some files, by the row ids of what it is now."""
    from torch_table_loader.order.growth import ids_now

    return type(then)(ids_now(layout, files, then.running), ids_now(layout, files, then.newest))
