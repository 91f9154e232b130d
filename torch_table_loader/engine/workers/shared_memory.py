"""Transfer of rows from a worker process through shared memory that is reused, because new pages are expensive.

The worker writes into a free slot. The consumer lends the slot to the trainer's batches, and frees it once nothing
refers to them. If too many slots are lent, for example because batches are kept, the consumer copies the slot, so that
kept batches use no shared memory. On a virtual machine a new shared page costs several times as much as copying it.
"""

from __future__ import annotations

import errno
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torch_table_loader.arrow.buffers import new_array
from torch_table_loader.batching.rows import Block, piece_starts
from torch_table_loader.engine.sizing import LENT_SLOTS, SPARE_SLOTS
from torch_table_loader.errors import OutOfMemoryError, TableLoaderError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.batching.rows import Rows, RowsCodec


FREE, FILLED, LENT = range(3)
"""States of a slot: the worker may write to it, it waits for the consumer, or the trainer's batches are in it."""


@dataclass(slots=True)
class SharedBlock:
    """A block in transit.

    Args:
        slot: its number among the worker's slots; −1 for separate memory.
        memory: flat uint8, if the consumer does not have the slot's memory yet; else None.
    """

    worker: int
    slot: int
    memory: torch.Tensor | None
    num_rows: int
    sizes: tuple[int, ...]


def new_slots(workers: int, waiting: int) -> torch.Tensor:
    """Create the marks that say which slots are in use: uint8[workers, slots] in shared memory, all `FREE`.

    Up to `waiting` blocks of a process wait to be taken.
    """
    return shared_zeros(workers, waiting + SPARE_SLOTS)


def shared_zeros(*shape: int) -> torch.Tensor:
    """Create uint8 zeros in shared memory, which processes see change."""
    with shared_memory_named():
        return torch.zeros(shape, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call, no-any-return]


class SharedMemorySender:
    """The worker's side."""

    def __init__(self, worker: int, marks: torch.Tensor) -> None:
        self._worker = worker
        self._marks = marks[worker].numpy()
        self._memory: list[torch.Tensor | None] = [None] * len(self._marks)

    def pack(self, codec: RowsCodec[Any], *parts: Rows) -> SharedBlock:
        """Write consecutive runs of rows into a free slot or, if there is none, into separate memory."""
        slot = next((number for number, used in enumerate(self._marks.tolist()) if used == FREE), -1)
        known: torch.Tensor | None = None
        if slot >= 0:
            known = self._memory[slot]
        fresh: list[torch.Tensor] = []

        def allocate(num_bytes: int) -> torch.Tensor:
            if known is not None and known.numel() >= num_bytes:
                return known[:num_bytes]
            room = num_bytes
            if slot >= 0:
                room += num_bytes // 4
            fresh.append(shared_bytes(room))
            return fresh[0][:num_bytes]

        block = codec.pack(*parts, out=allocate)
        made = next(iter(fresh), None)
        if slot >= 0:
            self._marks[slot] = FILLED
            if made is not None:
                self._memory[slot] = made
        return SharedBlock(self._worker, slot, made, block.num_rows, block.sizes)


class SharedMemoryReceiver:
    """The consumer's side."""

    def __init__(self, marks: torch.Tensor) -> None:
        self._marks = marks.numpy()
        self._memory: dict[tuple[int, int], torch.Tensor] = {}

    def unpack(self, codec: RowsCodec[Any], block: SharedBlock) -> Any:
        """Return a view of a block as rows, which belong to the trainer alone."""
        place = block.worker, block.slot
        if block.memory is not None:
            self._memory[place] = block.memory
        _, num_bytes = piece_starts(block.sizes)
        memory = self._memory[place].numpy()[:num_bytes]
        if block.slot < 0:
            data = _copied(memory)
            del self._memory[place]
        elif np.count_nonzero(self._marks[block.worker] == LENT) < LENT_SLOTS:
            data = self._lent(place, memory)
        else:
            data = _copied(memory)
            self._marks[place] = FREE
        return codec.unpack(Block(torch.from_numpy(data), block.num_rows, block.sizes))

    def _lent(self, place: tuple[int, int], memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return a view of a slot; the slot is free again once nothing refers to a part of it."""
        self._marks[place] = LENT
        owner: Any = np.frombuffer(memory, np.uint8)
        weakref.finalize(owner, self._marks.__setitem__, place, FREE).atexit = False
        # Views of arrays refer to what the first one refers to: here to a memoryview, and so to the owner.
        return np.frombuffer(memoryview(owner), np.uint8)


def _copied(memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
    data = new_array((len(memory),), np.uint8)
    data[:] = memory  # torch would wake threads, and they spin
    return data


def shared_bytes(num_bytes: int) -> torch.Tensor:
    """Allocate flat shared memory, which is sent to another process without a copy."""
    with shared_memory_named():
        memory = torch.UntypedStorage._new_shared(num_bytes)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8).set_(memory)


@contextmanager
def shared_memory_named() -> Iterator[None]:
    """Turn the system's errors about missing shared memory into the library's own.

    torch allocates the memory that it shares in advance, so that a shortage raises here and is no SIGBUS later.
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
