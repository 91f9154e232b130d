"""How large the batches of a job are, and how many of them are made, or cross a process, together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from torch_table_loader.arrow.datatypes import is_variable
from torch_table_loader.engine.sizing import batches_of_a_gather, blocks_of_a_process, rows_in_flight

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.ranks import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How large batches are, and how many are made together.

    Args:
        rows: that a batch has, as a rule.
        unit_bytes: bytes of what batches count.
        blocks: batches that cross a process together, and how many such blocks of a lane wait there.
        at_once: the most batches that a thread finishes together; None: all that a read completes.
        collated: batches of a lane with which the caller's functions are called side by side.
    """

    rows: int
    unit_bytes: int
    blocks: tuple[int, int]
    at_once: int | None = None
    collated: int = 1

    @classmethod
    def of(
        cls,
        options: LoaderOptions,
        topology: Topology,
        unit_bytes: int,
        at_once: int | None = None,
        collated: int = 1,
    ) -> Self:
        """Size batches of as many rows, or sequences, as the options say."""
        asked = unit_bytes, options.batch_rows, options.prefetch_batches
        blocks = blocks_of_a_process(*asked, collated=options.calls_functions, memory=options.memory)
        return cls(rows=topology.batch_size, unit_bytes=unit_bytes, blocks=blocks, at_once=at_once, collated=collated)


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
    def of(
        cls, options: LoaderOptions, topology: Topology, row_bytes: int, columns: pa.Schema, *, copies: int = 1
    ) -> Self:
        """Size what is gathered of items that are as large as each other.

        Args:
            copies: how often an item that is gathered lies in memory.
        """
        batching, batches = Batching.of(options, topology, row_bytes), batches_of_a_gather(row_bytes, options.most_rows)
        gathered, copied = batches * options.most_rows, 0
        if any(map(is_variable, columns.types)):
            copied = gathered  # values of variable width are taken chunk by chunk, then joined
        held = copies * rows_in_flight(options, gathered, batching.blocks) + copied
        return cls(batching=batching, batches=batches, lane_bytes=held * row_bytes)
