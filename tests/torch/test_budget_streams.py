"""Batches that hold a budget of tokens, in streams: against rows in plain Python, on any world, and exactly on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.tables.plain import meant_warnings
from tests.torch.test_budget_batches import BUDGET, LENGTHS, ROWS, TOKENS, is_within, rows, write_files
from tests.torch.test_budget_batches import make as make_rows
from torch_table_loader import Budget, ConfigError, MixedDataset, Pad, ResumeError, StructuredDataset, TableError

GROUP = 64


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("table"))


def make(path: str, **options: Any) -> Any:
    return make_rows(path, **({"shuffle": "splits"} | options))


def take(loader: Any, steps: int | None = None) -> Iterator[list[int]]:
    yield from (rows(batch) for batch in islice(loader, steps))


ORDERS: list[dict[str, Any]] = [
    {"shuffle": False},
    {"shuffle": "splits", "split_size": 90},
    {"shuffle": True, "split_size": 64},
    {"shuffle": True, "shuffle_buffer_size": 12},
    {"shuffle": "mixed", "split_size": 20},
]
FORMS: list[dict[str, Any]] = [
    {},
    {"ragged": "pad"},
    {"ragged": "offsets", "num_workers": 0},
    {"output_format": "numpy"},
    {"worker_type": "process"},
    {"batch_size": Budget(tokens=TOKENS, length="length", at_most=9), "num_workers": 3},
    {"batch_size": Budget(tokens=TOKENS, length="ids", counts="padded", similar=50), "ragged": "pad"},
    {"batch_size": Budget(tokens=TOKENS, length="ids", counts="padded"), "ragged": Pad(multiple_of=8)},
]


@daily(9)
@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("options", FORMS, ids=str)
def test_every_row_comes_once_within_the_budget_in_the_promised_steps(table: str, options: Any, order: Any) -> None:
    loader = make(table, **options, **order)
    budget, orders = options.get("batch_size", BUDGET), []
    for epoch in range(2):
        loader.set_epoch(epoch)
        promised = len(loader)
        found = list(take(loader))
        assert len(found) == promised
        assert all(is_within(each, budget) for each in found)
        assert sorted(row for each in found for row in each) == list(range(ROWS))
        assert loader.metrics().rows == ROWS
        orders.append(found)
    assert (orders[0] == orders[1]) == (order["shuffle"] is False)
    assert loader.dataset.num_rows == ROWS


def first_fit(lengths: list[int], tokens: int, at_most: int) -> list[list[int]]:
    """Cut rows into batches: those that do not fit wait, at most 16, and come first in the next batch."""
    batches: list[list[int]] = []
    waiting: list[int] = []
    left = list(range(len(lengths)))
    while waiting or left:
        batch: list[int] = []
        still: list[int] = []
        for row in waiting:
            fits = not batch or sum(lengths[each] for each in [*batch, row]) <= tokens
            (batch if fits and len(batch) < at_most else still).append(row)
        waiting = still
        while left and len(batch) < at_most and len(waiting) < 16:
            row, held = left[0], sum(lengths[each] for each in batch)
            left = left[1:]
            if not batch or held + lengths[row] <= tokens:
                batch.append(row)
                continue
            waiting.append(row)
            if tokens - held <= tokens // 64:
                break
        batches.append(batch)
    return batches


def test_batches_are_those_of_the_rows_of_a_row_group_in_their_order(table: str) -> None:
    found = list(take(make(table, shuffle=False, num_workers=0)))
    wanted = []
    for first, stop in ((0, 300), (300, 301), (301, 700)):
        for begin in range(first, stop, GROUP):
            some = range(begin, min(begin + GROUP, stop))
            cut = first_fit(LENGTHS[some].tolist(), TOKENS, BUDGET.at_most)
            wanted += [[begin + row for row in batch] for batch in cut]
    assert found == wanted


@daily(5)
@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_the_job_goes_on_exactly_on_other_ranks(table: str, ranks: int, order: Any) -> None:
    whole = sorted(tuple(batch) for batch in take(make(table, **order)))
    world, state, seen = ranks, None, list[tuple[int, ...]]()
    for taken, following in ((1, 9 - ranks), (2, ranks), (1, 2), (None, 0)):
        loaders = [make(table, num_ranks=world, rank=rank, **order) for rank in range(world)]
        states, steps = [], []
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            left = loader.remaining
            found = list(take(loader, taken))
            assert taken is not None or len(found) == left
            steps.append(len(found))
            seen += [tuple(batch) for batch in found if batch]
            states.append(loader.state_dict())
        assert len(set(steps)) == 1
        state, world = states[0], following
    assert sorted(seen) == whole


@pytest.mark.parametrize("even_ranks", [None, "pad", "drop", "balance"])
@daily(2)
def test_ranks_take_equally_many_steps(table: str, even_ranks: Any) -> None:
    loaders = [make(table, num_ranks=7, rank=rank, even_ranks=even_ranks) for rank in range(7)]
    found = [list(take(loader)) for loader in loaders]
    assert [len(each) for each in found] == [len(loader) for loader in loaders]
    assert len({len(each) for each in found}) == 1
    seen = [row for each in found for batch in each for row in batch]
    assert len(seen) == len(set(seen))
    assert even_ranks == "drop" or len(seen) == ROWS


def test_filters_columns_and_row_ids(table: str) -> None:
    for order in ORDERS:
        loader = make(table, filters="x >= 500", row_id=True, columns=["x", "s"], **order)
        found = list(loader)
        assert len(found) == len(loader)
        assert all(set(batch) == {"x", "s", "row_id"} for batch in found)
        assert all(batch["x"].tolist() == batch["row_id"].tolist() for batch in found)
        assert sorted(row for batch in found for row in batch["x"].tolist()) == list(range(500, 700))
        assert loader.dataset.num_rows == 200
        assert all(is_within(batch["x"].tolist()) for batch in found)


@pytest.mark.parametrize("order", ORDERS, ids=str)
@daily(2)
def test_rows_of_names_the_rows_of_a_step(table: str, order: Any) -> None:
    loader = make(table, **order)
    firsts = {"00000.parquet": 0, "00300.parquet": 300, "00301.parquet": 301}
    told = [
        sorted(firsts[span.file] + row for span in loader.rows_of(step) for row in range(span.row_start, span.row_stop))
        for step in (0, 3, len(loader) - 1)
    ]
    found = list(take(loader))
    assert told == [sorted(found[step]) for step in (0, 3, -1)]


def test_explain_says_how_full_batches_are(table: str) -> None:
    loader = make(table, shuffle=False)
    found = list(take(loader))
    counts = loader.dataset.explain().counts
    assert (counts.batches, counts.rows, counts.longer) == (len(found), ROWS, 1)
    assert counts.tokens == np.minimum(LENGTHS, TOKENS).sum()
    assert counts.fill == counts.tokens / (len(found) * TOKENS)
    assert loader.dataset.explain().memory_bound > 0


def test_large_row_groups_are_filled(tmp_path: Path) -> None:
    lengths = np.random.default_rng(1).lognormal(5, 0.7, 20_000).astype(np.int64)
    pq.write_table(pa.table({"n": lengths}), tmp_path / "0.parquet", row_group_size=20_000)
    loader = make(str(tmp_path), batch_size=Budget(tokens=8192, length="n"), shuffle=True)
    counts = loader.dataset.explain().counts
    assert counts.fill >= 0.97
    found = [batch["n"].tolist() for batch in loader]
    assert sorted(length for batch in found for length in batch) == sorted(lengths.tolist())
    assert all(sum(batch) <= 8192 for batch in found)


def test_states_of_another_budget_are_refused(table: str) -> None:
    loader = make(table)
    next(iter(loader))
    state = loader.state_dict()
    for other in (Budget(tokens=TOKENS + 1, length="ids"), 8):
        with pytest.raises(ResumeError, match="stage"):
            make(table, batch_size=other).load_state_dict(state)


def test_what_cannot_be_meant_is_refused(table: str) -> None:
    with pytest.raises(TableError, match=r"a row has 600 tokens of 'ids', more than tokens=300 of Budget"):
        make(table, batch_size=Budget(tokens=TOKENS, length="ids", longer="error"))
    with pytest.raises(ConfigError, match=r"length='idz' of Budget: the table has no such column"):
        make(table, batch_size=Budget(tokens=TOKENS, length="idz"))
    with pytest.raises(ConfigError, match="batch_by"):
        make(table, batch_by="file")
    with pytest.raises(ConfigError, match="count_filtered=True"):
        make(table, filters="x > 3", count_filtered=False)
    with meant_warnings(), pytest.raises(ConfigError, match="Budget"):
        MixedDataset.create_dataloader({"a": StructuredDataset(table)}, {"a": 1}, batch_size=BUDGET)


def test_a_warning_tells_of_longer_rows(table: str) -> None:
    with pytest.warns(UserWarning, match=r"1 of 700 rows are longer than tokens=300 of Budget"):
        StructuredDataset.create_dataloader(table, "parquet", batch_size=BUDGET, check_plan=False)
