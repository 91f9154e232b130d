"""Memory is reused, but never while anything refers to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from torch_table_loader.arrow import buffers
from torch_table_loader.arrow.buffers import LargeArrays, ReusedBlocks, new_array

SIZE = 200_000


def place(block: Any) -> int:
    return int(np.frombuffer(block, np.uint8).ctypes.data)


@pytest.mark.parametrize(
    "refer",
    [
        lambda block: block[10:20],
        lambda block: block.toreadonly()[SIZE - 1 :],
        lambda block: np.frombuffer(block, np.uint8)[3:5],
        lambda block: np.frombuffer(pa.py_buffer(block.toreadonly()[8:16]), np.int64)[:1],
        lambda block: pa.array(np.frombuffer(block, np.int32)).slice(5, 1),
    ],
    ids=["part", "read-only part", "view of an array", "view of a buffer", "Arrow array"],
)
def test_a_block_is_reused_once_nothing_refers_to_any_part_of_it(refer: Callable[[memoryview], Any]) -> None:
    blocks = ReusedBlocks()
    block = blocks.new(SIZE)
    assert block.nbytes == SIZE
    first, part = place(block), refer(block)
    del block
    other = blocks.new(SIZE)
    assert place(other) != first
    del part
    assert place(blocks.new(SIZE - 7)) == first


def test_few_unused_blocks_are_kept_and_none_after_close() -> None:
    blocks, nothing = ReusedBlocks(), pa.total_allocated_bytes()
    held = [blocks.new(SIZE) for _ in range(buffers._KEPT_BLOCKS + 3)]
    before = pa.total_allocated_bytes()
    capacity = (before - nothing) // len(held)
    assert SIZE <= capacity <= SIZE + SIZE // 4
    last = held.pop()
    held.clear()
    assert before - pa.total_allocated_bytes() == 2 * capacity
    blocks.close()
    assert before - pa.total_allocated_bytes() == (2 + buffers._KEPT_BLOCKS) * capacity
    del last
    assert before - pa.total_allocated_bytes() == (3 + buffers._KEPT_BLOCKS) * capacity


def test_a_block_has_little_more_than_was_asked_for_and_serves_what_fits_into_it() -> None:
    blocks, size = ReusedBlocks(), SIZE + 5_000
    before = pa.total_allocated_bytes()
    block = blocks.new(size)
    assert size <= pa.total_allocated_bytes() - before <= size + size // buffers.ROUNDED_PARTS
    first = place(block)
    del block
    assert place(blocks.new(size + 1_000_000)) != first
    assert place(blocks.new(SIZE + 1)) == first


def test_large_arrays_are_reused_while_an_epoch_runs() -> None:
    large = (buffers._KEPT_BYTES // 8 + 1,)
    before = pa.total_allocated_bytes()
    one, other = LargeArrays(), LargeArrays()
    first = new_array(large, np.int64)
    where, part = place(first), first[5:7]
    second = new_array(large, np.float64)
    assert place(second) != where
    del first
    part[:] = 7
    del second
    second = new_array(large, np.float64)
    assert place(second) != where, "a part of it is still used"
    assert part.tolist() == [7, 7]
    del part
    assert place(new_array((large[0], 1), np.uint64)) == where
    one.close()
    one.close()
    assert place(new_array(large, np.int64)) == where, "another epoch runs"
    del other
    assert pa.total_allocated_bytes() - before < 2 * buffers._KEPT_BYTES + 100, "the second is in use"
    del second
    assert pa.total_allocated_bytes() == before, "nothing is kept after the last epoch"


def test_small_arrays_are_not_in_reused_blocks() -> None:
    with_blocks = LargeArrays()
    held = new_array((buffers._KEPT_BYTES - 8,), np.uint8)
    before = pa.total_allocated_bytes()
    del held
    assert pa.total_allocated_bytes() < before
    with_blocks.close()


def test_the_garbage_collector_may_end_an_epoch_while_the_same_thread_begins_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = LargeArrays()

    class Collecting(ReusedBlocks):
        """Blocks during whose allocation the collector ends the first epoch."""

        def __init__(self) -> None:
            first.close()
            super().__init__()

    monkeypatch.setattr(buffers, "ReusedBlocks", Collecting)
    monkeypatch.setattr(LargeArrays, "blocks", None)  # so that the next epoch allocates them
    second = LargeArrays()
    assert LargeArrays.blocks is not None
    second.close()
    assert LargeArrays.blocks is None
