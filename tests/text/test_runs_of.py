"""Runs of values that lie in several arrays become one array, and each value is copied once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from torch_table_loader.arrow import copied_runs
from torch_table_loader.arrow.copied_runs import runs_of

KINDS = ["int32", "uint8", "uint16", "int64", "float16", "bool"]


@settings(max_examples=examples(300), deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(any),
    runs=st.integers(0, 20),
    kind=st.sampled_from(KINDS),
    inner=st.sampled_from([(), (3,)]),
    strided=st.booleans(),
    block=st.sampled_from([24, 100, 1 << 30]),
)
def test_runs_are_what_they_are_in_the_joined_chunks(
    seed: int, sizes: list[int], runs: int, kind: str, inner: tuple[int, ...], strided: bool, block: int
) -> None:
    """Runs may overlap, have no value, or be larger than one place of an Arrow view can say."""
    rng = np.random.default_rng(seed)
    step = 1 + strided
    chunks = [rng.integers(0, 200, (size * step, *inner)).astype(kind)[::step] for size in sizes]
    starts = np.cumsum([0, *sizes[:-1]])
    chunk = rng.choice(np.flatnonzero(sizes), runs)
    inside = rng.integers(0, np.array(sizes)[chunk])
    length = rng.integers(0, np.array(sizes)[chunk] - inside + 1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(copied_runs, "_VIEWED_BYTES", block)
        found = runs_of(chunks, starts[chunk] + inside, length)
    wanted: list[Any] = [chunks[c][i : i + n] for c, i, n in zip(chunk, inside, length, strict=True)]
    assert found.dtype == np.dtype(kind)
    assert np.array_equal(found, np.concatenate([chunks[0][:0], *wanted]))


def test_one_run_of_a_chunk_is_not_copied() -> None:
    chunks = [np.arange(10), np.arange(10, 30)]
    found = runs_of(chunks, np.array([12, 15]), np.array([3, 5]))
    assert found.tolist() == [*range(12, 20)]
    assert np.shares_memory(found, chunks[1])
