"""Lent memory comes back when nothing refers to it, and never before."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pyarrow as pa
import torch

from torch_table_loader.store.buffers import BufferPool

SIZE = 1 << 17


def address(array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_comes_back_when_the_last_view_goes() -> None:
    pool = BufferPool()
    first = pool.take(SIZE)
    where = address(first)
    tensor = torch.from_numpy(first[100:200].view(np.int32))
    arrow = pa.py_buffer(first[500:600])
    del first
    assert address(pool.take(SIZE)) != where
    del tensor
    assert address(pool.take(SIZE)) != where
    del arrow
    gc.collect()
    assert address(pool.take(SIZE)) == where


def test_no_two_lent_buffers_overlap() -> None:
    pool, rng, held = BufferPool(), np.random.default_rng(0), []
    for number in range(300):
        memory = pool.take(SIZE + int(rng.integers(0, 2)) * 64)
        memory[:] = number % 251
        held.append((number % 251, memory))
        if len(held) > 5:
            held.pop(int(rng.integers(0, len(held))))
        assert all((entry == value).all() for value, entry in held)


def test_a_pool_holds_little_and_pickles_as_empty() -> None:
    pool = BufferPool()
    lent = [pool.take(SIZE) for _ in range(50)]
    del lent
    assert len(pool._free) <= 8
    assert len(pickle.loads(pickle.dumps(pool))._free) == 0  # noqa: S301 our own bytes
    pool.take(2 * SIZE)
    assert all(memory.nbytes == 2 * SIZE for memory in pool._free)
