"""How large the batches of a job are, and how many of them are made, or cross a process, together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from torch_table_loader.engine.sizing import blocks_of_a_process

if TYPE_CHECKING:
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
