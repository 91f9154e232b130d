"""Batches that hold a budget of tokens, read of real tables: each row once, at equal steps, and exactly on."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from tests.effort import daily
from tests.states import newest, with_newest
from tests.tables.plain import meant_warnings
from torch_table_loader import (
    Budget,
    ConfigError,
    MixedDataset,
    Pack,
    Pad,
    ResumeError,
    StructuredDataset,
    TableError,
    TableLoader,
    Weights,
)

ROWS, TOKENS = 700, 300


def drawn_lengths() -> NDArray[np.int64]:
    """Return lengths of which two are 0, and one is more than a batch holds."""
    lengths = np.random.default_rng(7).lognormal(2.0, 0.8, ROWS).astype(np.int64)
    lengths[[5, 90]] = 0
    lengths[400] = 2 * TOKENS
    return lengths


LENGTHS = drawn_lengths()
BUDGET = Budget(tokens=TOKENS, length="ids")


def write(root: Path, first: int, stop: int) -> None:
    ids = pa.array([[row] * LENGTHS[row] for row in range(first, stop)], pa.list_(pa.int32()))
    rows = np.arange(first, stop)
    columns = {"ids": ids, "x": rows, "length": LENGTHS[first:stop], "s": [f"row {row}" for row in rows]}
    pq.write_table(pa.table(columns), root / f"{first:05}.parquet", row_group_size=64)


def write_files(root: Path) -> str:
    """Write the rows into three files, of which one has a single row."""
    for first, stop in ((0, 300), (300, 301), (301, 700)):
        write(root, first, stop)
    return str(root)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("table"))


def make(path: str, **options: Any) -> TableLoader:
    defaults: dict[str, Any] = {"batch_size": BUDGET, "shuffle": "rows", "check_plan": False, "num_workers": 2}
    with meant_warnings():
        return StructuredDataset.create_dataloader(path, "parquet", **(defaults | options))[0]


def rows(batch: Any) -> list[int]:
    """Return the rows of a batch, padding left out, and hold their values against the table's."""
    found: list[int] = batch["x"].tolist()
    assert batch["s"] == [f"row {row}" for row in found]
    assert lengths_of(batch["ids"]) == LENGTHS[found].tolist()
    pads = batch["padding"].tolist() if "padding" in batch else [False] * len(found)
    return [row for row, padding in zip(found, pads, strict=True) if not padding]


def lengths_of(lists: Any) -> list[int]:
    if isinstance(lists, torch.Tensor):
        return [len(each) for each in lists.unbind()]
    return [int(length) for length in (lists.lengths if hasattr(lists, "lengths") else np.diff(lists.offsets))]


def take(loader: TableLoader, batches: int | None = None) -> Iterator[list[int]]:
    for number, batch in enumerate(loader, 1):
        yield rows(batch)
        if number == batches:
            return


def is_within(found: list[int], budget: Budget = BUDGET) -> bool:
    lengths = LENGTHS[found]
    held = lengths.max() * len(found) if budget.counts == "padded" else lengths.sum()
    return len(found) <= 1 or (held <= budget.tokens and len(found) <= budget.at_most)


FORMS: list[dict[str, Any]] = [
    {},
    {"ragged": "pad"},
    {"ragged": "offsets", "num_workers": 0},
    {"output_format": "numpy"},
    {"worker_type": "process"},
    {"worker_type": "process", "ragged": "pad", "prefetch_batches": 3},
    {"batch_size": Budget(tokens=TOKENS, length="length", at_most=9), "num_workers": 3},
    {"batch_size": Budget(tokens=TOKENS, length="ids", counts="padded", similar=100), "ragged": "pad"},
    {"batch_size": Budget(tokens=TOKENS, length="ids", similar=150), "row_store": "memory"},
]


@pytest.mark.parametrize("options", FORMS, ids=str)
@daily(3)
def test_every_row_comes_once_within_the_budget_and_in_the_promised_steps(table: str, options: dict[str, Any]) -> None:
    loader = make(table, **options)
    budget = options.get("batch_size", BUDGET)
    orders = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        promised = len(loader)
        found = list(take(loader))
        assert len(found) == promised
        assert all(is_within(each, budget) for each in found)
        orders.append([row for each in found for row in each])
        assert sorted(orders[-1]) == list(range(ROWS))
        assert loader.metrics().rows == ROWS
        assert sum(worker.rows for worker in loader.metrics().workers) == ROWS
    assert orders[0] != orders[1]


def test_how_batches_are_made_does_not_change_them(table: str) -> None:
    expected = list(take(make(table)))
    for options in FORMS[1:6]:
        assert list(take(make(table, **options))) == expected
    assert [batch.column("x").to_pylist() for batch in make(table, output_format="arrow")] == expected
    assert [batch["x"] for batch in make(table, output_format="dict")] == expected
    assert list(make(table, collate_fn=lambda batch: batch["x"].tolist())) == expected


@daily(5)
@pytest.mark.parametrize("similar", [None, 100])
@pytest.mark.parametrize("ranks", range(1, 9))
def test_the_job_goes_on_exactly_on_other_ranks(table: str, ranks: int, similar: int | None) -> None:
    budget = Budget(tokens=TOKENS, length="ids", similar=similar)
    whole = [row for batch in take(make(table, batch_size=budget)) for row in batch]
    world, state, seen = ranks, None, []
    for taken, following in ((1, 9 - ranks), (2, ranks), (1, 2), (None, 0)):
        loaders = [make(table, batch_size=budget, num_ranks=world, rank=rank) for rank in range(world)]
        states, steps = [], []
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            left = loader.remaining
            found = list(take(loader, taken))
            assert taken is not None or len(found) == left
            assert all(is_within(batch, budget) for batch in found)
            steps.append(len(found))
            seen += [row for batch in found for row in batch]
            states.append(loader.state_dict())
        assert len(set(steps)) == 1
        assert all(each == states[0] for each in states)
        state, world = states[0], following
        if taken is not None:
            assert sorted(seen) == sorted(whole[: len(seen)])
    assert sorted(seen) == list(range(ROWS))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("even_ranks", [None, "pad", False])
@daily(2)
def test_ranks_take_equally_many_steps(table: str, even_ranks: Any, drop_last: bool) -> None:
    loaders = [
        make(table, num_ranks=7, rank=rank, even_ranks=even_ranks, drop_last=drop_last, columns=["x"])
        for rank in range(7)
    ]
    found = [[batch["x"].tolist() for batch in loader] for loader in loaders]
    assert [len(each) for each in found] == [len(loader) for loader in loaders]
    if even_ranks is not False or drop_last:
        assert len({len(each) for each in found}) == 1
    seen = [row for each in found for batch in each for row in batch]
    assert len(seen) == len(set(seen))  # the last step is halved until each rank has a batch
    assert drop_last or len(seen) == ROWS


def test_a_rank_without_a_row_repeats_one_that_is_marked(tmp_path: Path) -> None:
    write(tmp_path, 0, 3)
    found = [list(make(str(tmp_path), num_ranks=8, rank=rank)) for rank in range(8)]
    assert all(len(batches) == 1 for batches in found)
    marked = [batches[0]["padding"].tolist() for batches in found]
    assert marked == [[False]] * 3 + [[True]] * 5


def test_filters_and_exclusions_are_left_out(table: str) -> None:
    loader, dataset = StructuredDataset.create_dataloader(
        table, batch_size=BUDGET, shuffle="rows", filters="x >= 500", row_id=True, num_ranks=1, rank=0
    )
    dataset.exclude(range(600, 620))
    expected = [*range(500, 600), *range(620, 700)]
    assert sorted(row for batch in take(loader) for row in batch) == expected
    promised = len(loader)
    dataset.exclude([500])
    loader.set_epoch(1)
    found = list(take(loader))
    assert sorted(row for batch in found for row in batch) == expected[1:]
    assert len(found) == len(loader) <= promised + 1


def test_rows_that_are_drawn_fill_batches_too(table: str) -> None:
    loader = make(table, weights=Weights(column="length", samples=500))
    found = list(take(loader))
    assert sum(map(len, found)) == 500
    assert len(found) == len(loader)
    assert all(is_within(batch) for batch in found)


def test_lists_that_are_null_have_no_tokens(tmp_path: Path) -> None:
    lists = pa.array([[1, 2], None, [3], None, []], pa.large_list(pa.int8()))
    pq.write_table(pa.table({"l": lists, "x": range(5)}), tmp_path / "0.parquet")
    budget = Budget(tokens=2, length="l")
    loader = make(str(tmp_path), batch_size=budget, output_format="dict")
    assert sorted(sum(len(each or ()) for each in batch["l"]) for batch in loader) in ([0, 1, 2], [1, 2])


def test_padding_is_counted_as_ragged_pads(table: str) -> None:
    budget = Budget(tokens=TOKENS, length="ids", counts="padded")
    loader = make(table, batch_size=budget, ragged={"ids": Pad(multiple_of=16)})
    shapes = [batch["ids"].values.shape for batch in loader]
    assert all(height * width <= TOKENS or height == 1 for height, width in shapes)
    assert any(height * width > 0.9 * TOKENS for height, width in shapes)
    short = make(table, batch_size=budget, ragged=Pad(length=20, truncate="right"))
    assert {batch["ids"].values.shape for batch in short} <= {(15, 20), (ROWS % 15, 20)}


def test_it_says_how_full_batches_are(table: str) -> None:
    with pytest.warns(UserWarning, match=r"1 of 700 rows are longer than tokens=300 of Budget, the longest 600"):
        dataset = StructuredDataset(table, batch_size=BUDGET, shuffle="rows", num_ranks=1, rank=0)
    plan = dataset.explain()
    sums = [min(TOKENS, int(LENGTHS[rows(batch)].sum())) for batch in dataset]
    assert plan.steps == len(sums)
    note = f"{len(sums)} batches hold up to 300 tokens of 'ids' in up to 1,024 rows: {np.mean(sums) / TOKENS:.1%}"
    assert any(note in each for each in plan.notes)
    assert plan.batch_size == -(-ROWS // len(sums))


def test_a_row_that_is_longer_than_the_budget_can_be_refused(table: str) -> None:
    budget = Budget(tokens=TOKENS, length="ids", longer="error")
    with pytest.raises(TableError, match=r"row 99 of '00301.parquet' has 600 tokens, more than tokens=300 of Budget"):
        make(table, batch_size=budget)
    assert len(make(table, batch_size=budget, filters="length <= 300"))


def test_places_of_an_epoch_are_found(table: str) -> None:
    expected = list(take(make(table)))
    for options, first in (({"step": 7}, 7), ({"fraction": 0.5}, len(expected) // 2)):
        loader = make(table)
        loader.seek(**options)
        assert list(take(loader)) == expected[first:]
    sample = sum(map(len, expected[:5])) + 1
    loader = make(table)
    loader.seek(sample=sample)
    assert list(take(loader)) == expected[5:]
    loader = make(table)
    loader.skip(3)
    assert list(take(loader)) == expected[3:]
    loader = make(table)
    assert [len(loader.rows_of(step)) for step in range(9)] == [len(batch) for batch in expected[:9]]


def test_a_dataloader_of_the_callers_reads_the_same_rows(table: str, tmp_path: Path) -> None:
    with meant_warnings():
        dataset = StructuredDataset(
            table, batch_size=BUDGET, shuffle="rows", row_store=str(tmp_path), num_ranks=1, rank=0
        )
    dataset = pickle.loads(pickle.dumps(dataset))  # noqa: S301 our own
    found = [rows(batch) for batch in DataLoader(dataset, batch_size=None, num_workers=2)]
    assert sorted(row for each in found for row in each) == list(range(ROWS))
    assert all(map(is_within, found))


def test_a_state_of_another_budget_is_refused(table: str) -> None:
    loader = make(table)
    assert len(list(take(loader, 3))) == 3
    state = loader.state_dict()
    for other in (Budget(tokens=TOKENS + 1, length="ids"), 64):
        with pytest.raises(ResumeError, match="batch_size"):
            make(table, batch_size=other).load_state_dict(state)
    with pytest.raises(ResumeError, match="batch_size"):
        loader.load_state_dict(make(table, batch_size=64).state_dict())


def test_a_state_that_was_tampered_with_is_refused(table: str) -> None:
    loader = make(table)
    list(take(loader, 3))
    state = loader.state_dict()
    consumed = newest(state)["consumed"]
    with pytest.raises(ResumeError, match="no batch of the epoch begins there"):
        make(table).load_state_dict(with_newest(state, consumed=consumed - 1))


@pytest.mark.parametrize("similar", [None, 100])
@pytest.mark.parametrize("taken", [4, None])
@daily(2)
def test_an_epoch_goes_on_with_the_rows_of_a_table_that_grew(
    tmp_path: Path, similar: int | None, taken: int | None
) -> None:
    budget = Budget(tokens=TOKENS, length="ids", similar=similar)
    write(tmp_path, 0, 300)
    loader = make(str(tmp_path), batch_size=budget, on_growth="continue")
    before = [row for batch in take(loader, taken) for row in batch]
    state = loader.state_dict()
    write(tmp_path, 300, 700)
    found = [list(before)]
    for rank in range(2):
        grown = make(str(tmp_path), batch_size=budget, on_growth="continue", num_ranks=2, rank=rank)
        grown.load_state_dict(state)
        left = grown.remaining
        batches = list(take(grown))
        assert len(batches) == left
        found += batches
    assert sorted(row for batch in found for row in batch) == list(range(ROWS))


def test_lengths_are_read_once(table: str, tmp_path: Path) -> None:
    make(table, row_store=str(tmp_path))
    [kept] = tmp_path.glob("lengths/*.sums")
    changed = kept.stat().st_mtime_ns
    expected = list(take(make(table)))
    assert list(take(make(table, row_store=str(tmp_path)))) == expected
    assert kept.stat().st_mtime_ns == changed
    assert list(take(make(table, row_store=str(tmp_path), worker_type="spawn", num_workers=1))) == expected


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"batch_by": "file", "shuffle": False},
        "batch_by ends batches with files.*leave batch_by out, or pass a number",
    ),
    ({"pack": Pack(seq_len=8)}, "a number of them is a budget already; leave pack out, or pass a number of rows"),
    (
        {"global_batch_size": 64},
        r"rows of all ranks.*pass Budget\(tokens=\).* leave global_batch_size out",
    ),
    ({"batch_size": Budget(tokens=9, length="idz")}, "length='idz' of Budget: the table has no such column; did you"),
    ({"batch_size": Budget(tokens=9, length="s")}, "length='s' of Budget must be a column of lists.*got one of"),
]


@pytest.mark.parametrize(("options", "said"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_wrong_calls_are_refused(table: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(table, **options)


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"tokens": 0}, r"Budget\(tokens=\) must be at least 1, got 0"),
    ({"tokens": 8.5}, r"Budget\(tokens=\) must be an int, got float 8.5"),
    ({"length": 8}, r"Budget\(length=\) must be the name of a column, got 8"),
    ({"at_most": 0}, r"Budget\(at_most=\) must be at least 1"),
    ({"similar": -1}, r"Budget\(similar=\) must be at least 1"),
    ({"counts": "max"}, r"Budget\(counts=\) must be one of 'rows', 'padded', got 'max'"),
    ({"longer": "drop"}, r"Budget\(longer=\) must be one of 'alone', 'error', got 'drop'"),
]


@pytest.mark.parametrize(("arguments", "said"), ARGUMENTS)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"tokens": 8, "length": "ids", **arguments}
    with pytest.raises(ConfigError, match=said):
        Budget(**given)


def test_a_mixture_takes_a_number_of_rows(table: str) -> None:
    with meant_warnings():
        sources = {name: StructuredDataset(table, shuffle="rows") for name in "ab"}
        with pytest.raises(ConfigError, match=r"got batch_size=Budget\(...\); pass a number of rows.*pack=Pack"):
            MixedDataset(sources, {"a": 1, "b": 1}, batch_size=BUDGET)


def test_a_length_that_is_none_is_refused(tmp_path: Path) -> None:
    for wrong in (None, -1):
        pq.write_table(pa.table({"n": pa.array([3, wrong], pa.int64())}), tmp_path / "0.parquet")
        with pytest.raises(TableError, match=f"row 1 of '0.parquet' has {wrong} in column 'n'; a length must be"):
            make(str(tmp_path), batch_size=Budget(tokens=9, length="n"))


def test_a_table_without_rows_has_no_steps(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), tmp_path / "0.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader, _ = StructuredDataset.create_dataloader(
            str(tmp_path), batch_size=Budget(tokens=9, length="n"), shuffle="rows", num_ranks=1, rank=0
        )
        assert (len(loader), list(loader)) == (0, [])
