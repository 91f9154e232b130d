"""Memory is reused, but never while anything refers to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from torch_table_loader.arrow import buffers
from torch_table_loader.arrow.buffers import ReusedBlocks

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
    blocks = ReusedBlocks()
    held = [blocks.new(SIZE) for _ in range(buffers._KEPT_BLOCKS + 3)]
    before = pa.total_allocated_bytes()
    last = held.pop()
    held.clear()
    capacity = 1 << (SIZE - 1).bit_length()
    assert before - pa.total_allocated_bytes() == 2 * capacity
    blocks.close()
    assert before - pa.total_allocated_bytes() == (2 + buffers._KEPT_BLOCKS) * capacity
    del last
    assert before - pa.total_allocated_bytes() == (3 + buffers._KEPT_BLOCKS) * capacity
