"""Rows of columns of lists equal those taken by pyarrow, bit for bit in values and nulls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from torch_table_loader.arrow.arrays import copies_lists, take, take_rows
from torch_table_loader.store.gather import take_lists
from torch_table_loader.testing import small_sizes

ITEMS = (pa.int8(), pa.int16(), pa.int32(), pa.float64(), pa.timestamp("us"), pa.decimal128(9, 2), pa.date32())


@settings(max_examples=examples(80), deadline=None)
@given(
    item=st.sampled_from(ITEMS),
    wide=st.booleans(),
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    most=st.sampled_from([0, 1, 5, 200]),
    nulls=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 99),
    block=st.sampled_from([1, 7, 1 << 20]),
)
def test_rows_of_lists_equal_those_taken_by_pyarrow(
    item: pa.DataType, wide: bool, sizes: list[int], most: int, nulls: float, seed: int, block: int
) -> None:
    rng = np.random.default_rng(seed)
    kind = (pa.large_list if wide else pa.list_)(pa.field("token", item, nullable=False))
    arrays = [lists(rng, kind, size, most, nulls) for size in sizes]
    starts = np.cumsum([0, *sizes])
    places = rng.permutation(np.arange(starts[-1]).repeat(rng.integers(0, 3, starts[-1])))
    parts = []
    for number, array in enumerate(arrays):
        rows = np.flatnonzero((places >= starts[number]) & (places < starts[number + 1]))
        parts.append((array, places[rows] - starts[number], rows))
    with small_sizes(list_indices=block):
        found = take_lists(kind, parts, len(places))
    found.validate(full=True)
    assert found.type == kind
    assert found.equals(pa.concat_arrays(arrays).take(pa.array(places)))
    for array, own, _ in parts:
        again = take(array, pa.array(own))
        again.validate(full=True)
        assert again.equals(array.take(pa.array(own)))


def test_rows_of_a_batch_are_as_many_as_asked_for_with_and_without_columns() -> None:
    batch = pa.record_batch({"a": [1, 2, 3]})
    for columns in (["a"], []):
        assert take_rows(batch.select(columns), pa.array([2, 0])).num_rows == 2


def lists(rng: np.random.Generator, kind: Any, size: int, most: int, nulls: float) -> pa.Array:
    """Build lists that begin anywhere in their buffers; those under a null are not always empty."""
    before = int(rng.integers(0, 3))
    lengths = rng.integers(0, most + 1, size + before)
    offsets = pa.array(np.cumsum([2, *lengths]), pa.int64() if pa.types.is_large_list(kind) else pa.int32())
    numbers = pa.array(rng.integers(0, 99, int(lengths.sum()) + 5))
    between = {pa.date32(): pa.int32(), pa.decimal128(9, 2): pa.decimal128(19, 0)}
    values = numbers.cast(between.get(kind.value_type, pa.int64())).cast(kind.value_type)
    mask = pa.array(rng.random(size + before) < nulls)
    form = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return form.from_arrays(offsets, values.slice(1), type=kind, mask=mask).slice(before)


def test_lists_that_do_not_fit_one_array_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = pa.array([[0] * 1000], pa.list_(pa.int8()))
    rows = np.arange(3_000_000)
    with pytest.raises(
        pa.ArrowInvalid, match=r"3,000,000,000 values do not fit into one array of type list<item: int8>"
    ):
        take_lists(huge.type, [(huge, np.zeros(len(rows), np.int64), rows)], len(rows))


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.bool_()), pa.list_(pa.string()), pa.list_(pa.list_(pa.int8())), pa.string()]
)
def test_other_types_are_left_to_pyarrow(kind: pa.DataType) -> None:
    assert not copies_lists(kind)
