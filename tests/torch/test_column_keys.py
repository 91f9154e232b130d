"""`columns={...}`: a batch under keys of the caller's, columns of numbers as one float32 tensor, in every mode."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.effort import daily
from tests.tables.plain import meant_warnings
from torch_table_loader import ConfigError, ConfigTypeError, MixedDataset, Pack, StructuredDataset

ROWS = 300
KEYS: dict[str, Any] = {"x": ["age", "income", "member", "price"], "y": "churn", "name": "name"}
READ: dict[str, Any] = {"nulls": {"age": -1}, "unsupported": "float64"}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("people")
    for file in range(2):
        rows = range(file * ROWS // 2, (file + 1) * ROWS // 2)
        columns = {
            "age": pa.array([None if row % 9 == 0 else row for row in rows], pa.int32()),
            "income": pa.array([None if row % 7 == 0 else row / 3 for row in rows], pa.float64()),
            "member": [row % 2 == 0 for row in rows],
            "price": pa.array([Decimal(row) / 4 for row in rows], pa.decimal128(9, 2)),
            "churn": pa.array(rows, pa.int64()),
            "name": [f"n{row}" for row in rows],
            "pair": pa.array([[row, row] for row in rows], pa.list_(pa.float32(), 2)),
        }
        pq.write_table(pa.table(columns), root / f"{file}.parquet", row_group_size=37)
    return str(root)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Numbers of every type; `n` alone has nulls."""
    root = tmp_path_factory.mktemp("numbers")
    rng = np.random.default_rng(7)
    types = ("i1", "u1", "i2", "u2", "f2", "i4", "u4", "f4", "i8", "u8", "f8")
    for file in range(2):
        rows = ROWS // 2
        columns: dict[str, Any] = {kind: rng.integers(0, 100, rows).astype(kind) for kind in types}
        columns |= {f"f{place}": rng.standard_normal(rows).astype(np.float32) for place in range(20)}
        columns |= {f"d{place}": rng.standard_normal(rows) for place in range(9)}
        columns |= {"big": rng.integers(2**53, 2**62, rows), "flag": rng.random(rows) < 0.5}
        columns |= {"time": pa.array(rng.integers(0, 2**40, rows), pa.timestamp("us"))}
        columns |= {"n": pa.array(rng.standard_normal(rows), mask=rng.random(rows) < 0.2)}
        columns |= {"vector": pa.array(rng.random((rows, 3)).tolist(), pa.list_(pa.float32(), 3))}
        columns |= {"row": np.arange(file * rows, (file + 1) * rows), "name": [f"n{row}" for row in range(rows)]}
        pq.write_table(pa.table(columns), root / f"{file}.parquet", row_group_size=41)
    return str(root)


TOGETHER: dict[str, Any] = {
    "every type": {"x": ["i1", "f8", "u1", "i2", "u2", "f2", "i4", "u4", "f4", "i8", "u8", "big", "time"]},
    "one type, in the order of the table": {"x": [f"f{place}" for place in range(20)]},
    "one type, in another order": {"x": [f"f{place}" for place in range(20)][::-1], "z": [f"d{n}" for n in range(9)]},
    "a part of it": {"x": ["d1", "d2", "f3", "f4", "f5", "d0"], "alone": "f6", "vector": "vector", "name": "name"},
    "with nulls": {"x": ["d1", "n", "f1"], "z": ["f2", "f3"]},
    "with bools": {"x": ["flag", "f1"], "z": ["d1", "d2"]},
    "with an integer that becomes a double": {"x": ["big", "f1"], "z": ["i8"]},
}


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 32},
        {"batch_size": 32, "shuffle": "splits", "shuffle_buffer_size": 50},
        {"batch_size": 32, "shuffle": "rows"},
        {"batch_size": 1, "shuffle": "rows", "num_workers": 0},
        {"batch_size": 500, "shuffle": "rows", "row_id": True, "filters": [("i1", "<", 60)]},
        {"batch_size": 9, "shuffle": "rows", "worker_type": "process", "even_ranks": "pad", "num_ranks": 7, "rank": 6},
        {"batch_size": 32, "shuffle": "rows", "output_format": "numpy"},
    ],
    ids=str,
)
@pytest.mark.parametrize("columns", TOGETHER.values(), ids=TOGETHER.keys())
@daily(12)
def test_a_tensor_is_its_columns_side_by_side(
    numbers: str, columns: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    nulls: Any = {"big": "nan"} if columns["x"] == ["big", "f1"] else None
    names = [name for own in columns.values() for name in ([own] if isinstance(own, str) else own)]
    asked = (
        {"num_workers": 2, "row_store": str(tmp_path) if options["shuffle"] == "rows" else None}
        if ("shuffle" in options)
        else {}
    )
    given: dict[str, Any] = {"check_plan": False, "nulls": nulls, **asked, **options}
    with meant_warnings():
        together, alone = (
            StructuredDataset.create_dataloader(numbers, columns=each, **given)[0]
            for each in ({**columns, "row": "row"}, [*names, "row"])
        )
    every = list(zip(together, alone, strict=True))
    assert sum(len(batch["row"]) for batch, _ in every) > 30
    for batch, single in every:
        assert {key for key in batch if key not in columns} == {key for key in single if key not in names}
        for key, own in columns.items():
            if isinstance(own, str):
                np.testing.assert_equal(np.asarray(batch[key]), np.asarray(single[own]))
                continue
            values = np.asarray(batch[key])
            stacked = np.stack([np.asarray(single[name]).astype(np.float32) for name in own], axis=1)
            assert values.dtype == np.float32
            assert values.tobytes() == stacked.tobytes()
            assert values.flags.c_contiguous
            assert values.flags.writeable


@pytest.mark.parametrize("shuffle", [True, "rows"])
def test_tensors_are_the_same_after_a_resume_and_share_no_memory(numbers: str, shuffle: Any) -> None:
    def loader() -> Any:
        options: dict[str, Any] = {"batch_size": 16, "num_workers": 2, "shuffle": shuffle}
        with meant_warnings():
            return StructuredDataset.create_dataloader(
                numbers, columns=TOGETHER["every type"], check_plan=False, **options
            )[0]

    whole = loader()
    wanted = [batch["x"].clone() for batch in whole]
    first, kept = loader(), []
    for batch in first:
        kept.append(batch["x"])
        if len(kept) == 5:
            state = first.state_dict()
        batch["x"] += 1  # what is done to one batch is not seen in another
    second = loader()
    second.load_state_dict(state)
    assert [batch["x"].tolist() for batch in second] == [each.tolist() for each in wanted[5:]]
    assert [each.tolist() for each in kept] == [(each + 1).tolist() for each in wanted]


def make(table: str, columns: Any = KEYS, **options: Any) -> Any:
    asked: dict[str, Any] = {**READ, "batch_size": 32, "num_workers": 2, "check_plan": False, **options}
    with meant_warnings():
        return StructuredDataset.create_dataloader(table, columns=columns, **asked)[0]


def check(batch: Any) -> list[int]:
    """Check every value by the label, which is the row."""
    x, row = np.asarray(batch["x"]), np.asarray(batch["y"])
    income = np.where(row % 7 == 0, np.nan, row / 3)
    expected = np.stack([np.where(row % 9 == 0, -1, row), income, row % 2 == 0, row / 4], axis=1).astype(np.float32)
    np.testing.assert_array_equal(x, expected)
    assert x.dtype == np.float32
    assert row.dtype == np.int64
    assert x.flags.c_contiguous
    assert batch["name"] == [f"n{number}" for number in row.tolist()]
    found: list[int] = row.tolist()
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": "splits", "shuffle_buffer_size": 50},
        {"shuffle": "rows"},
        {"num_workers": 0, "batch_size": 7},
        {"worker_type": "process"},
        {"worker_type": "forkserver", "shuffle": "rows"},
        {"output_format": "numpy"},
        {"batch_size": 500},
    ],
    ids=str,
)
@daily(3)
def test_every_mode_gives_it(table: str, options: dict[str, Any]) -> None:
    batches = list(make(table, **options))
    assert list(batches[0]) == list(KEYS)
    assert sorted(row for batch in batches for row in check(batch)) == list(range(ROWS))


def test_what_the_loader_adds_comes_behind(table: str) -> None:
    batches = list(make(table, row_id=True, num_ranks=7, rank=6, even_ranks="pad", batch_size=10))
    assert list(batches[0]) == [*KEYS, "row_id", "padding"]
    assert all(batch["row_id"].tolist() == check(batch) for batch in batches)


@pytest.mark.parametrize("shuffle", [True, "rows"])
def test_a_mixture_gives_it(table: str, shuffle: Any) -> None:
    own: dict[str, Any] = {"columns": KEYS, "shuffle": shuffle, **READ}
    with meant_warnings():
        sources = {name: StructuredDataset(table, **own) for name in ("a", "b")}
        loader, _ = MixedDataset.create_dataloader(sources, "rows", batch_size=32, check_plan=False)
    batches = list(loader)
    assert list(batches[0]) == [*KEYS, "source"]
    assert sorted(row for batch in batches for row in check(batch)) == sorted([*range(ROWS)] * 2)
    with meant_warnings():
        other = StructuredDataset(table, **own | {"columns": ["age", "income", "member", "price", "churn", "name"]})
    with pytest.raises(ConfigError, match="must come in one form, but columns is"):
        MixedDataset({"a": sources["a"], "b": other}, "rows", check_plan=False)


@pytest.mark.parametrize("shuffle", [True, "rows"])
def test_states_and_maps_know_columns_alone(table: str, shuffle: Any) -> None:
    loader, plain = (
        make(table, shuffle=shuffle),
        make(table, ["age", "income", "member", "price", "churn", "name"], shuffle=shuffle),
    )
    batches = iter(loader)
    taken = [check(next(batches)) for _ in range(3)]
    plain.load_state_dict(loader.state_dict())
    rest = [batch["churn"].tolist() for batch in plain]
    assert sorted(row for rows in [*taken, *rest] for row in rows) == list(range(ROWS))
    if shuffle == "rows":
        with meant_warnings():
            dataset = StructuredDataset(table, columns=KEYS, shuffle="rows", **READ)
        assert dataset.as_map()[5]["x"].tolist() == [5.0, np.float32(5 / 3), 0.0, 1.25]


def test_functions_are_called_by_key(table: str) -> None:
    for batch in make(table, transforms={"x": lambda x: x.double() * 2}, decode={"name": len}):
        assert batch["x"].dtype == torch.float64
        assert batch["name"].tolist() == [len(f"n{row}") for row in batch["y"].tolist()]


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ({"x": ["age", "name"]}, {}, "column 'name' of the type string is none; give it a key of its own"),
        ({"x": ["age", "pair"]}, {}, "column 'pair' of the type .* is none"),
        ({"x": ["age"]}, {"nulls": "mask"}, 'is none, since nulls="mask" gives it a mask'),
        ({"x": ["age"], "y": "age"}, {}, "names 'age' twice"),
        ({"x": []}, {}, "names no column"),
        ({"x": ["ages"]}, {}, "no column 'ages'"),
        ({"row_id": "age"}, {"row_id": True}, "a column 'row_id', and another column would have the same name"),
        ({"x": ["age"]}, {"output_format": "arrow", "nulls": None, "unsupported": None}, "shapes tensors and arrays"),
        ({"x": ["age"]}, {"pack": Pack(seq_len=4)}, "pass a list of the columns of documents"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(table: str, columns: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(table, columns, **options)


@pytest.mark.parametrize("columns", [{"x": 3}, {3: "age"}, {"x": [3]}], ids=str)
def test_wrong_types_are_refused(table: str, columns: Any) -> None:
    with pytest.raises(ConfigTypeError, match="columns"):
        make(table, columns)
