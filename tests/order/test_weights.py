"""Rows drawn by weight, through the real loader: one order for every job, and what is refused; see the laws beside."""

from __future__ import annotations

import json
import os
import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.order.weighted import ROWS, SIZES, ids, make, write, write_weighted
from tests.states import table_of
from torch_table_loader import (
    ConfigError,
    ResumeError,
    StorageError,
    TableError,
    Weights,
)
from torch_table_loader.errors import ConfigTypeError
from torch_table_loader.order import row_weights
from torch_table_loader.sizes import small_sizes


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows whose weight `w` is 0 to 3, of which one in ten has the class "rare"."""
    return write_weighted(tmp_path_factory.mktemp("table"))


# ---- laws ------------------------------------------------------------------------------------------------

worlds = st.fixed_dictionaries(
    {
        "num_ranks": st.integers(1, 4),
        "num_workers": st.integers(0, 2),
        "batch_size": st.integers(1, 9),
        "even_ranks": st.sampled_from([None, "pad"]),
    }
)


def run(path: str, world: dict[str, Any], state: Any, steps: int | None, **options: Any) -> tuple[Counter[int], Any]:
    """Let each rank of a job go on for some steps; give the rows that come, and the state of rank 0."""
    found, told = Counter[int](), []
    for rank in range(world["num_ranks"]):
        loader = make(path, rank=rank, **world, **options)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        found.update(ids(loader, steps))
        told.append(loader.state_dict())
    return found, told[0]


@settings(max_examples=examples(6), deadline=None)
@given(worlds, worlds, st.integers(0, 6), st.sampled_from([None, 30, 150]), st.booleans(), st.integers(0, 2))
def test_every_job_has_the_rows_of_one_order_and_goes_on_in_it(
    table: str, first: dict[str, Any], then: dict[str, Any], steps: int, samples: int | None, filtered: bool, seed: int
) -> None:
    options = {
        "weights": Weights(column="w", samples=samples),
        "filters": pc.field("x") >= 20 if filtered else None,
        "shuffle_seed": seed,
    }
    order = ids(make(table, **options))
    assert len(order) == (samples or (ROWS - 20 if filtered else ROWS))
    took = min(steps, -(-len(order) // (first["num_ranks"] * first["batch_size"])) - 1)
    begun, state = run(table, first, None, took, **options)
    at = took * first["num_ranks"] * first["batch_size"]
    assert begun == Counter(order[:at])
    rest, _ = run(table, then, state, None, **options)
    assert rest == Counter(order[at:])


@settings(max_examples=examples(15), deadline=None)
@given(
    weights=st.lists(st.integers(0, 5), min_size=ROWS, max_size=ROWS).filter(any),
    samples=st.integers(1, 300),
    gone=st.sets(st.integers(0, ROWS - 1), max_size=40),
    epoch=st.integers(0, 3),
)
def test_a_row_comes_as_often_as_its_share_but_for_less_than_two(
    tmp_path_factory: pytest.TempPathFactory, weights: list[int], samples: int, gone: set[int], epoch: int
) -> None:
    path = write(tmp_path_factory.mktemp("table"), w=weights)
    loader = make(path, weights=Weights(column="w", samples=samples))
    loader.dataset.exclude(sorted(gone))
    left = [0 if row in gone else weight for row, weight in enumerate(weights)]
    loader.set_epoch(epoch)
    if not any(left):
        with pytest.raises(ConfigError, match="weight above 0"):
            iter(loader)
        return
    assert len(loader) == -(-samples // 7)
    counts = Counter(ids(loader))
    assert counts.total() == samples
    for row, weight in enumerate(left):
        assert abs(counts[row] - samples * weight / sum(left)) < 2
        assert weight or not counts[row]


def test_classes_are_balanced_and_epochs_differ(table: str) -> None:
    loader = make(table, weights=Weights(balance="kind", samples=400))
    orders = []
    for epoch in range(3):
        loader.set_epoch(epoch)
        orders.append(ids(loader))
        rare = [row for row in orders[-1] if row % 10 == 3]
        assert abs(len(rare) - 200) < 2 * 10, "each row is less than two off, and so is each of ten"
        assert set(Counter(rare)) == set(range(3, 100, 10))
    assert orders[0] != orders[1] != orders[2]
    loader.set_epoch(0)
    assert ids(loader) == orders[0]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([row % 10 == 3 for row in range(ROWS)]),
        pa.array([b"a" if row % 10 == 3 else b"b" for row in range(ROWS)]),
        pa.array(["a" if row % 10 == 3 else "b" for row in range(ROWS)]).dictionary_encode(),
        pa.array([float(row % 10 == 3) for row in range(ROWS)]),
    ],
    ids=lambda values: str(values.type),
)
def test_classes_are_values_of_any_type(table: str, tmp_path: Path, values: pa.Array) -> None:
    balance = Weights(balance="kind", samples=50)
    assert ids(make(write(tmp_path, kind=values), weights=balance)) == ids(make(table, weights=balance))


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.decimal128(5, 2)], ids=str)
def test_weights_are_numbers_of_any_type(table: str, tmp_path: Path, kind: pa.DataType) -> None:
    w = pa.array((np.arange(ROWS) % 4).astype("f2" if kind == pa.float16() else "f4")).cast(kind)
    assert ids(make(write(tmp_path, w=w), columns=["x"])) == ids(make(table))


def test_a_partition_column_is_one_of_classes(tmp_path: Path) -> None:
    for day, rows in (("1", 90), ("2", 10)):
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(pa.table({"x": np.arange(rows)}), tmp_path / f"day={day}" / "a.parquet")
    weights = Weights(balance="day", samples=400)
    days = Counter(row >= 90 for row in ids(make(str(tmp_path), weights=weights)))
    assert abs(days[True] - 200) <= 2, "rows of a day lie together, so that only the shares at its ends vary"


# ---- what else row mode has ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"row_store": "memory"},
        {"worker_type": "process"},
        {"batch_size": 100, "num_workers": 0},
        {"global_batch_size": 28, "batch_size": 14},
    ],
    ids=str,
)
def test_the_order_is_the_same_however_it_is_served(
    table: str, tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_TABLE_LOADER_CACHE", str(tmp_path))
    assert ids(make(table, **options)) == ids(make(table))


def test_length_explanation_rows_of_and_the_map(table: str) -> None:
    loader = make(table, weights=Weights(column="w", samples=250), columns=["x"], drop_last=True)
    assert (len(loader), len(list(loader))) == (35, 35)
    told = loader.dataset.explain()
    assert told.strategy == "rows by weight"
    assert told.live_rows == ROWS
    assert any("250 rows an epoch are drawn by weight, column='w', from 100 of 100" in note for note in told.notes)
    loader.dataset.exclude(range(30))
    loader.set_epoch(1)
    assert any("from 70 of 100 live rows" in note for note in loader.dataset.explain().notes)
    drawn, all_rows = (
        make(table, weights=Weights(column=column, samples=ROWS), columns=["x"]).dataset.explain()
        for column in ("w", None)
    )
    assert drawn.memory_bound - all_rows.memory_bound == 8 * (ROWS + 1), "the sums are in memory"
    first = next(iter(make(table, columns=["x"])))
    starts = {f"{number}.parquet": sum(SIZES[:number]) for number in range(4)}
    spans = make(table).rows_of(0)
    assert [starts[span.file] + span.row_start for span in spans] == first["row_id"].tolist()
    assert loader.dataset.as_map()[:]["x"].tolist() == list(range(ROWS))


def test_without_samples_an_epoch_has_as_many_rows_as_are_left(table: str) -> None:
    loader = make(table)
    assert len(ids(loader)) == ROWS
    loader.set_epoch(1)
    loader.dataset.exclude(range(30))
    assert len(loader) == -(-70 // 7)
    assert len(ids(loader)) == 70


def test_repeats_say_how_often_each_row_comes(table: str, tmp_path: Path) -> None:
    loader = make(table, weights=Weights(repeats="w"))
    for epoch in range(2):
        loader.set_epoch(epoch)
        came = Counter(ids(loader))
        assert came == Counter({row: row % 4 for row in range(ROWS) if row % 4})
    loader.dataset.exclude([3, 5])
    loader.set_epoch(2)
    assert Counter(ids(loader)) == Counter({row: row % 4 for row in range(ROWS) if row % 4 and row not in (3, 5)})
    assert len(make(table, weights=Weights(repeats="w"))) == -(-sum(row % 4 for row in range(ROWS)) // 7)
    halves = make(write(tmp_path / "halves", w=np.full(ROWS, 0.5)), weights=Weights(repeats="w"))
    came = Counter(ids(halves))
    assert came.total() == (ROWS + 1) // 2
    assert max(came.values()) <= 2
    mixed = make(write(tmp_path / "mixed", w=np.tile([0.5, 2.0, 1.0, 3.0], ROWS // 4)), weights=Weights(repeats="w"))
    came = Counter(ids(mixed))
    assert all(abs(came[row] - weight) <= 1 for row, weight in enumerate([0.5, 2, 1, 3] * (ROWS // 4)) if row % 4)
    for number, wrong in enumerate((np.full(ROWS, 0.001), np.zeros(ROWS), np.full(ROWS, 2.0**40))):
        with pytest.raises(TableError, match=rf"repeats of {ROWS} live rows in column 'w' sum to .*1 to 2\^40 rows"):
            make(write(tmp_path / f"{number}", w=wrong), weights=Weights(repeats="w"))


def test_rows_of_one_weight_come_in_the_order_without_weights(tmp_path: Path) -> None:
    assert ids(make(write(tmp_path, w=[0.1] * ROWS))) == ids(make(str(tmp_path), weights=None))


def test_samples_alone_are_the_first_rows_of_the_order_and_others_each_epoch(table: str, reads: list[None]) -> None:
    loader, whole = make(table, weights=Weights(samples=30)), make(table, weights=None)
    orders = []
    for epoch in range(3):
        loader.set_epoch(epoch)
        whole.set_epoch(epoch)
        orders.append(ids(loader))
        assert orders[-1] == ids(whole)[:30]
    assert len(loader) == 5
    assert len({frozenset(order) for order in orders}) == 3
    ranks = [make(table, weights=Weights(samples=30), num_ranks=2, rank=rank) for rank in range(2)]
    assert sum((Counter(ids(each)) for each in ranks), Counter()) == Counter(orders[0])
    assert any("30 rows an epoch are drawn from 100 of 100" in note for note in loader.dataset.explain().notes)
    begun = make(table, weights=Weights(samples=30))
    taken = ids(begun, 2)
    loader.load_state_dict(begun.state_dict())
    assert taken + ids(loader) == orders[0]
    with pytest.raises(ResumeError, match=r"weights was 'Weights.samples=30.' and is None"):
        whole.load_state_dict(begun.state_dict())
    loader.set_epoch(5)
    loader.dataset.exclude(range(90))
    assert sorted(ids(loader)) == list(range(90, 100))
    with pytest.raises(ConfigError, match="samples=101 of a table of 100 live rows, which are drawn once each"):
        make(table, weights=Weights(samples=101))
    assert not reads


# ---- states ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"weights": None},
        {"weights": Weights(column="w", samples=99)},
        {"weights": Weights(balance="w")},
        {"weights": "x"},
    ],
    ids=str,
)
def test_a_state_of_other_weights_is_refused_by_name(table: str, options: dict[str, Any]) -> None:
    state = make(table).state_dict()
    with pytest.raises(ResumeError, match=r"weights was \"Weights\(column='w', samples=None\), which are .* and is"):
        make(table, **options).load_state_dict(state)
    with pytest.raises(ResumeError, match=r"weights was .* and is \"Weights\(column='w', samples=None\)"):
        make(table).load_state_dict(make(table, **options).state_dict())


def test_a_state_of_other_values_of_the_same_column_is_refused(tmp_path: Path) -> None:
    """Files of the same names, sizes and rows have the same fingerprint; what they weigh has not."""
    path = write(tmp_path, w=np.arange(ROWS))
    state = make(path).state_dict()
    write(tmp_path, w=np.arange(ROWS)[::-1])
    again = make(path)
    assert table_of(again.state_dict()) == table_of(state)
    with pytest.raises(ResumeError, match="weights was"):
        again.load_state_dict(state)


# ---- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"shuffle": False}, ConfigError, 'does not work with shuffle=False; leave it out, or pass shuffle="rows"'),
        ({"shuffle": "splits"}, ConfigError, "does not work with shuffle='splits'"),
        ({"weights": 3}, ConfigTypeError, "name of a column of numbers.*got int 3"),
        ({"weights": ""}, ConfigTypeError, "name of a column of numbers"),
        ({"weights": {"a": 1.0}}, ConfigTypeError, r"shares of several tables are MixedDataset\(sources, weights\)"),
        ({"weights": "W"}, ConfigError, "column='W' of weights: the table has no such column; did you mean .*w"),
        ({"weights": "kind"}, ConfigError, r"column of numbers, got one of string; Weights\(balance='kind'\)"),
        ({"on_growth": "continue"}, ConfigError, "on_growth and weights do not go together"),
        ({"filters": pc.field("w") == 0}, TableError, "all 25 live rows have the weight 0 in column 'w'"),
        (
            {"filters": pc.field("x") < 0, "weights": Weights(column="w", samples=5)},
            ConfigError,
            "the table has no live row, of which samples=5 could be drawn",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_drawn_is_refused(
    table: str, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        make(table, **options)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "Weights needs a column="),
        ({"column": "w", "balance": "kind"}, "takes one of column=, balance= and repeats=, .*column='w' and balance="),
        ({"column": 3}, "column of Weights must be the name of a column, got 3"),
        ({"balance": ""}, "balance of Weights must be the name of a column"),
        ({"repeats": "w", "samples": 9}, "repeats= says how many rows an epoch has, got samples=9 too"),
        ({"column": "w", "samples": 0}, "samples must be .*1.*got 0"),
        ({"column": "w", "samples": 1.5}, "samples must be an int"),
    ],
    ids=str,
)
def test_a_value_that_says_nothing_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Weights(**given)


def broken(at: int, value: Any, fill: Any) -> pa.Array:
    return pa.array([value if row == at else fill for row in range(ROWS)])


@pytest.mark.parametrize(
    ("columns", "weights", "said"),
    [
        (
            {"w": broken(40, None, 1.0)},
            "w",
            "row 0 of '1.parquet' has None in column 'w'; a weight must be a finite number",
        ),
        (
            {"w": broken(99, -0.5, 1.0)},
            "w",
            "row 58 of '3.parquet' has -0.5 in column 'w'; a weight must be a finite number of at least 0: leave such",
        ),
        ({"w": broken(7, float("nan"), 1.0)}, "w", "row 7 of '0.parquet' has nan in column 'w'"),
        ({"w": broken(7, float("inf"), 1.0)}, "w", "row 7 of '0.parquet' has inf in column 'w'"),
        (
            {"k": broken(7, None, "a")},
            Weights(balance="k"),
            "row 7 of '0.parquet' has None in column 'k'; a class must not",
        ),
        ({"k": broken(7, float("nan"), 1.0)}, Weights(balance="k"), "row 7 of '0.parquet' has nan in column 'k'"),
    ],
    ids=["null", "negative", "nan", "inf", "class of null", "class of nan"],
)
@pytest.mark.parametrize("filters", [None, pc.field("x") != 6], ids=["all", "some"])
def test_a_row_without_a_weight_is_named(
    tmp_path: Path, columns: dict[str, Any], weights: Any, said: str, filters: Any
) -> None:
    with pytest.raises(TableError, match=said):
        make(write(tmp_path, **columns), columns=["x"], weights=weights, filters=filters)


def test_a_filter_leaves_rows_without_a_weight_out(tmp_path: Path) -> None:
    path = write(tmp_path, w=broken(40, None, 1))
    assert sorted(ids(make(path, filters=pc.field("w").is_valid(), nulls={"w": 0}))) == [*range(40), *range(41, ROWS)]


def test_columns_that_are_no_classes_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, k=pa.array([[1]] * ROWS), many=np.arange(ROWS))
    with pytest.raises(ConfigError, match="must be a column of classes, got one of list"):
        make(path, columns=["x"], weights=Weights(balance="k"))
    said = "'many' has more than 99 values; pass a column of weights"
    with small_sizes(balanced_classes=99), pytest.raises(ConfigError, match=said):
        make(path, columns=["x"], weights=Weights(balance="many"))


# ---- the file of sums ------------------------------------------------------------------------------------


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Count how often a column of weights is read."""
    counted: list[None] = []
    fill = row_weights._Column.fill

    def counting(column: Any, sums: Any) -> None:
        counted.append(None)
        fill(column, sums)

    monkeypatch.setattr(row_weights._Column, "fill", counting)
    return counted


def sums_in(folder: Path) -> list[Path]:
    return list((folder / "weights").glob("*.sums"))


def test_weights_are_read_once_for_all_who_share_a_folder(table: str, tmp_path: Path, reads: list[None]) -> None:
    with ThreadPoolExecutor(4) as pool:
        loaders = list(pool.map(lambda rank: make(table, row_store=str(tmp_path), num_ranks=4, rank=rank), range(4)))
    assert len(reads) == 1
    assert sum((Counter(ids(loader)) for loader in loaders), Counter()) == Counter(ids(make(table)))
    make(table, row_store=str(tmp_path), weights=Weights(column="w", samples=9), columns=["x"])
    assert (len(reads), len(sums_in(tmp_path))) == (2, 1), "other samples of the same weights; one was in memory"
    make(table, row_store=str(tmp_path), weights=Weights(balance="kind"))
    make(table, row_store=str(tmp_path), filters=pc.field("x") > 3)
    assert len(sums_in(tmp_path)) == 3
    assert [path.name for path in (tmp_path / "weights").iterdir() if path.suffix != ".sums"] == ["leases"]
    assert not list((tmp_path / "weights" / "leases").iterdir())


def crossed(weights: Any) -> Any:
    return pickle.loads(pickle.dumps(weights))  # noqa: S301 our own bytes


def test_what_crosses_to_a_process_leaves_the_sums_in_their_file(table: str, tmp_path: Path, reads: list[None]) -> None:
    items = make(table, row_store=str(tmp_path)).dataset.job.live_rows[""]
    weights = crossed(items.draws)
    assert len(pickle.dumps(weights)) < 8 * ROWS
    assert np.array_equal(weights.sums.cells, items.draws.sums.cells)
    assert len(reads) == 1
    taken = crossed(items.draws)
    sums_in(tmp_path)[0].unlink()
    with pytest.raises(StorageError, match="were removed or replaced; run again"):
        taken.sums  # noqa: B018 it is mapped when it is asked for
    held = crossed(make(table).dataset.job.live_rows[""].draws)
    assert np.array_equal(held.sums.cells, weights.sums.cells)


def test_a_damaged_file_is_refused(table: str, tmp_path: Path) -> None:
    make(table, row_store=str(tmp_path))
    [path] = sums_in(tmp_path)
    whole = path.read_bytes()
    for damage, said in (
        (whole[:100] + bytes([whole[100] ^ 1]) + whole[101:], "its checksum differs"),
        (whole[:-1], f"it has {len(whole) - 1} bytes instead of {len(whole)}"),
        (b"", f"it has 0 bytes instead of {len(whole)}"),
    ):
        path.write_bytes(damage)
        with pytest.raises(StorageError, match=f"are damaged: {said}; remove the file"):
            make(table, row_store=str(tmp_path))
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="a symbolic link"):
        make(table, row_store=str(tmp_path))


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path, stores = write(tmp_path / "table", w=broken(40, -1, 1)), tmp_path / "stores"
    for _ in range(2):
        with pytest.raises(TableError, match=r"row 0 of '1.parquet'"):
            make(path, row_store=str(stores))
    assert [name for _, _, names in os.walk(stores) for name in names] == []


def test_a_folder_that_cannot_be_written_is_named(table: str, tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("mine")
    with pytest.raises(StorageError, match="must be what this library made there, got a file"):
        make(table, row_store=str(tmp_path))
