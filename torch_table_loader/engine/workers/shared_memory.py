"""How rows cross from a worker process: through shared memory that is used again, since fresh pages are dear.

The worker writes into a slot that is free; the consumer copies the slot out, into memory that is the trainer's
alone, and frees it. On a virtual machine a fresh shared page costs several times what copying it does.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torch_table_loader.arrow.buffers import new_array
from torch_table_loader.batching.rows import Block, piece_starts
from torch_table_loader.engine.sizes import SPARE_SLOTS
from torch_table_loader.errors import OutOfMemoryError, TableLoaderError

if TYPE_CHECKING:
    from torch_table_loader.batching.rows import Rows, RowsCodec


@dataclass(slots=True)
class SharedBlock:
    """A block on its way.

    Args:
        worker: the process that sent it.
        slot: where it lies among the worker's; −1 for memory of its own.
        memory: flat uint8, where the consumer does not have the slot's memory yet; else None.
        num_rows: its rows.
        sizes: see `Block`.
    """

    worker: int
    slot: int
    memory: torch.Tensor | None
    num_rows: int
    sizes: tuple[int, ...]


def new_slots(workers: int, waiting: int) -> torch.Tensor:
    """Make the marks of which slots are in use.

    Args:
        workers: processes.
        waiting: blocks of a process that may wait to be taken.

    Returns:
        uint8[workers, slots] in shared memory, 0 where a slot is free.
    """
    marks = torch.zeros((workers, waiting + SPARE_SLOTS), dtype=torch.uint8)
    with shared_memory_named():
        return marks.share_memory_()  # type: ignore[no-untyped-call, no-any-return]


class SharedMemorySender:
    """A worker's side."""

    def __init__(self, worker: int, marks: torch.Tensor) -> None:
        """Use the slots of one worker.

        Args:
            worker: its number.
            marks: as `new_slots` made them.
        """
        self._worker = worker
        self._marks = marks[worker].numpy()
        self._memory: list[torch.Tensor | None] = [None] * len(self._marks)

    def pack(self, codec: RowsCodec[Any], *parts: Rows) -> SharedBlock:
        """Write runs of rows, as one, into a free slot; where there is none, into memory of their own."""
        slot = next((number for number, used in enumerate(self._marks.tolist()) if not used), -1)
        known = self._memory[slot] if slot >= 0 else None
        fresh: list[torch.Tensor] = []

        def allocate(num_bytes: int) -> torch.Tensor:
            if known is not None and known.numel() >= num_bytes:
                return known[:num_bytes]
            fresh.append(shared_bytes(num_bytes + (num_bytes // 4 if slot >= 0 else 0)))
            return fresh[0][:num_bytes]

        block = codec.pack(*parts, out=allocate)
        if slot >= 0:
            self._marks[slot] = 1
            self._memory[slot] = fresh[0] if fresh else known
        return SharedBlock(self._worker, slot, fresh[0] if fresh else None, block.num_rows, block.sizes)


class SharedMemoryReceiver:
    """The consumer's side."""

    def __init__(self, marks: torch.Tensor) -> None:
        """Begin without the memory of any slot.

        Args:
            marks: as `new_slots` made them.
        """
        self._marks = marks.numpy()
        self._memory: dict[tuple[int, int], torch.Tensor] = {}

    def unpack(self, codec: RowsCodec[Any], block: SharedBlock) -> Any:
        """Copy a block out, free its slot, and view the copy as rows."""
        place = block.worker, block.slot
        if block.memory is not None:
            self._memory[place] = block.memory
        _, num_bytes = piece_starts(block.sizes)
        data = new_array((num_bytes,), np.uint8)
        data[:] = self._memory[place].numpy()[:num_bytes]  # torch would wake threads, and they spin
        if block.slot >= 0:
            self._marks[place] = 0
        else:
            del self._memory[place]
        return codec.unpack(Block(torch.from_numpy(data), block.num_rows, block.sizes))


def shared_bytes(num_bytes: int) -> torch.Tensor:
    """Allocate flat shared memory, which crosses to another process without a copy."""
    with shared_memory_named():
        memory = torch.UntypedStorage._new_shared(num_bytes)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8).set_(memory)


@contextmanager
def shared_memory_named() -> Iterator[None]:
    """Turn what the system says of shared memory that is not there into an error of ours.

    torch has room set aside for what it shares, so that too little of it raises here and is no SIGBUS later.
    """
    try:
        yield
    except (RuntimeError, OSError) as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.ENOMEM)
        if isinstance(error, TableLoaderError) or not (full or "shared memory" in str(error)):
            raise
        raise OutOfMemoryError(
            f"there is too little shared memory (/dev/shm) for what crosses from a worker process ({error}); give it "
            "more (docker run --shm-size), use fewer workers, a smaller batch_size or prefetch_batches, or "
            'worker_type="thread"'
        ) from error
