"""How a lane gathers the batches of a job of items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from torch_table_loader.arrow.datatypes import is_variable
from torch_table_loader.engine.jobs.batching import Batching
from torch_table_loader.engine.sizing import batches_of_a_gather, rows_in_flight

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.ranks import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering:
    """How a lane gathers the batches of a job of items.

    Args:
        batches: that are gathered together.
        lane_bytes: what a lane may hold of its items.
    """

    batching: Batching
    batches: int
    lane_bytes: int

    @classmethod
    def of(cls, options: LoaderOptions, topology: Topology, row_bytes: int, columns: pa.Schema) -> Self:
        """Size what is gathered of items that are as large as each other."""
        batching, batches = Batching.of(options, topology, row_bytes), batches_of_a_gather(row_bytes, options.most_rows)
        gathered, copied = batches * options.most_rows, 0
        if any(map(is_variable, columns.types)):
            copied = gathered  # values of variable width are taken chunk by chunk, then joined
        held = rows_in_flight(options, gathered, batching.blocks) + copied
        return cls(batching=batching, batches=batches, lane_bytes=held * row_bytes)
