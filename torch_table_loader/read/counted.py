"""What comes out of the rows of a task, counted segment by segment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from torch_table_loader.planning.pack_counts import PackCounts, sum_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.read.row_stage import RowStage

Counted: TypeAlias = tuple[int, PackCounts | None]
"""Rows that live, or that a stage makes of them; and what packing makes of them, where it is known."""


def measured(stage: RowStage, lengths: NDArray[Any]) -> Counted:
    """Return what a stage makes of consecutive rows, by how long their lists are."""
    size = stage.block_rows or max(1, len(lengths))
    blocks = (lengths[first : first + size].astype(np.int64) for first in range(0, len(lengths), size))
    return summed(((0, stage.count_of(block)) for block in blocks), 1)[0]


def summed(made: Iterable[tuple[int, Counted]], segments: int) -> list[Counted]:
    """Add up what was counted, segment by segment."""
    live = [0] * segments
    counts: list[list[PackCounts | None]] = [[] for _ in range(segments)]
    for segment, (more, found) in made:
        live[segment] += more
        counts[segment].append(found)
    return [(number, sum_of(found)) for number, found in zip(live, counts, strict=True)]
