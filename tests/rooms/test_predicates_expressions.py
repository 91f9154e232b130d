"""Which rows a mask says to pass: the same as pyarrow says."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from torch_table_loader.predicates.expressions import known_true


@pytest.mark.parametrize("offset", [0, 1, 7, 8, 13])
@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 1000])
@pytest.mark.parametrize("nulls", [0.0, 0.3, 1.0])
def test_rows_pass_that_are_true_and_known(length: int, offset: int, nulls: float) -> None:
    rng = np.random.default_rng(length)
    said, null = rng.random(length + offset + 3) < 0.4, rng.random(length + offset + 3) < nulls
    mask = pa.array(said, mask=null).slice(offset, length)
    passing = known_true(mask)
    assert passing.dtype == np.bool_
    assert passing.flags.writeable
    assert passing.tolist() == [value is True for value in mask.to_pylist()]
