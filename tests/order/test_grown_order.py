"""The order of single rows in an epoch during which a table grows."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from torch_table_loader.extend import Permutation, Remaining, derive_key
from torch_table_loader.order.growth import FileRows, GrownOrder

files = st.tuples(st.integers(0, 4), st.lists(st.integers(0, 20), max_size=4))
"""The version of a table that adds a file, and its row groups."""


@settings(max_examples=examples(100), deadline=None)
@given(added=st.lists(files, min_size=1, max_size=8), seed=st.integers(0, 3), data=st.data())
def test_old_rows_keep_their_order_and_new_rows_follow(
    added: list[tuple[int, list[int]]], seed: int, data: st.DataObject
) -> None:
    counts = np.array([sum(groups) for _, groups in added], dtype=np.int64)
    live_starts = np.concatenate(([0], np.cumsum(counts)))
    total = int(live_starts[-1])
    gone = np.array(sorted(data.draw(st.sets(st.integers(0, total - 1), max_size=5))) if total else [], dtype=np.int64)
    tables = [np.flatnonzero([since <= version for since, _ in added]) for version in range(5)]
    order = GrownOrder.of(live_starts, tables, gone, seed, epoch=1)
    whole = order.take(np.arange(order.num_rows))
    assert sorted(whole.tolist()) == sorted(set(range(total)) - set(gone.tolist()))
    old = tables[0]
    rows = FileRows(live_starts, old)
    before = Remaining(int(counts[old].sum()), rows.rows(gone))
    key = derive_key(seed, 1, "rows")
    first = before.select(Permutation(before.num_rows, key).slice(0, before.num_rows))
    assert whole[: before.num_rows].tolist() == rows.places(first).tolist()
    for version in range(1, 5):
        shorter = GrownOrder.of(live_starts, tables[:version], gone, seed, epoch=1)
        assert whole[: shorter.num_rows].tolist() == shorter.take(np.arange(shorter.num_rows)).tolist()
