"""Parts of a table by a hash of its values: each row in one, the same in every mode, exact, kept in the state."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.torch.modes import LAKE, MIXTURE, PROCESSES, ROWS, SPLITS, STREAMS, TABLE_MODES, Mode
from torch_table_loader import ConfigError, ResumeError, StructuredDataset, part_of

pytestmark = pytest.mark.usefixtures("small_gathers")
MIXED = (MIXTURE, STREAMS)
"""An epoch of these ends with their first source."""

SHARES = {"train": 0.7, "val": 0.2, "test": 0.1}


def of(part: str, column: Any = "x", **options: Any) -> Any:
    return part_of(column, SHARES, part, **options)


SPAWNED: dict[str, Any] = PROCESSES | {"worker_type": "spawn"}


@pytest.mark.parametrize(("mode", "options"), [*((mode, {}) for mode in TABLE_MODES), (SPLITS, SPAWNED)], ids=str)
@daily(lambda options: not options)
def test_the_parts_are_the_table(mode: Mode, tables: Path, options: dict[str, Any]) -> None:
    seen: dict[str, list[int]] = {}
    for part in SHARES:
        own = {"stop": "first_exhausted"} if mode in MIXED else {}
        loader = mode.make(tables, filters=of(part), **own, **options)
        seen[part] = [row for batch in mode.read(loader) for row in batch]
        if mode not in MIXED:
            assert len(loader) == -(-len(seen[part]) // 5)
    if mode not in MIXED:
        assert sorted(sum(seen.values(), [])) == sorted(mode.live(tables))
    assert len(set(sum(seen.values(), []))) == len(sum(seen.values(), []))


def test_modes_ranks_and_orders_agree(tables: Path) -> None:
    found = [
        {row for batch in mode.read(mode.make(tables, filters=of("val"), **options)) for row in batch}
        for mode in (SPLITS, ROWS)
        for options in ({}, {"shuffle_seed": 3}, {"num_workers": 1})
    ]
    both = [
        {row for batch in SPLITS.read(SPLITS.make(tables, filters=of("val"), num_ranks=2, rank=rank)) for row in batch}
        for rank in range(2)
    ]
    assert found == [found[0]] * len(found)
    assert both[0] | both[1] == found[0]


def test_rows_of_equal_values_stay_together(tables: Path) -> None:
    kinds = {
        part: {kind for batch in SPLITS.make(tables, filters=of(part, "k")) for kind in batch["k"].tolist()}
        for part in SHARES
    }
    assert not kinds["train"] & kinds["val"]
    assert kinds["train"] | kinds["val"] | kinds["test"] == {
        kind for batch in SPLITS.make(tables) for kind in batch["k"].tolist()
    }


@pytest.mark.parametrize("mode", [SPLITS, ROWS, LAKE], ids=str, scope="session")
@daily(1)
def test_a_state_is_bound_to_its_part(mode: Mode, tables: Path) -> None:
    loader = mode.make(tables, filters=of("train"))
    before = mode.read(islice(loader, 3))
    state = loader.state_dict()
    resumed = mode.make(tables, filters=of("train"))
    resumed.load_state_dict(state)
    assert before + mode.read(resumed) == mode.read(mode.make(tables, filters=of("train")))
    for other in (of("val"), of("train", seed=1), of("train", "k")):
        with pytest.raises(ResumeError, match="filters was"):
            mode.make(tables, filters=other).load_state_dict(state)


ROW = pa.table({"x": range(4000), "s": [None if x % 7 == 0 else f"u{x % 100}" for x in range(4000)]})


def test_the_order_is_frozen() -> None:
    """Another release must deal the same rows to the same parts."""
    kept = ROW.slice(0, 60).filter(of("val"))["x"].to_pylist()
    assert kept == [4, 5, 6, 10, 15, 20, 26, 32, 43, 58]
    pairs = ROW.slice(0, 60).filter(of("val", ["x", "s"]))["x"].to_pylist()
    assert pairs == [2, 5, 10, 17, 18, 21, 22, 28, 34, 38, 39, 40, 47, 52]


def test_shares_are_met_and_folds_are_parts() -> None:
    for part, share in SHARES.items():
        assert abs(ROW.filter(of(part)).num_rows / 4000 - share) < 0.02
    folds = [ROW.filter(part_of("x", dict.fromkeys(range(5), 1), fold))["x"].to_pylist() for fold in range(5)]
    others = [ROW.filter(~part_of("x", dict.fromkeys(range(5), 1), fold))["x"].to_pylist() for fold in range(5)]
    assert sorted(sum(folds, [])) == list(range(4000))
    assert [sorted(own + other) for own, other in zip(folds, others, strict=True)] == [list(range(4000))] * 5
    assert ROW.filter(part_of("x", {"all": 1, "none": 0}, "none")).num_rows == 0


@pytest.mark.parametrize("kind", [pa.int16(), pa.uint64(), pa.string(), pa.large_string()], ids=str)
def test_the_width_of_a_type_does_not_matter(kind: pa.DataType) -> None:
    cast = ROW.set_column(0, "x", pc.cast(ROW["x"], kind))
    keep = cast.filter(of("val"))["x"].cast(pa.int64())
    assert keep.to_pylist() == ROW.filter(of("val"))["x"].to_pylist()


def test_a_dictionary_and_a_scalar_have_the_hash_of_their_values() -> None:
    encoded = ROW.set_column(1, "s", ROW["s"].combine_chunks().dictionary_encode())
    assert encoded.filter(of("val", "s"))["x"].equals(ROW.filter(of("val", "s"))["x"])
    chosen = pickle.loads(pickle.dumps(of("val", "s")))  # noqa: S301 ours
    assert ROW.filter(chosen)["x"].equals(ROW.filter(of("val", "s"))["x"])


def floats_of(kind: np.dtype[Any]) -> pa.Array:
    """Make 0.0 and −0.0, and four NaN of different bits, two of them negative."""
    found = np.array([0.0, -0.0, np.nan, np.nan, -np.nan, -np.nan], dtype=kind)
    bits = found.view(f"u{kind.itemsize}")
    bits[[3, 5]] |= 3
    return pa.array(found, from_pandas=False)


@pytest.mark.parametrize(("kind", "encoded"), [("f2", False), ("f4", False), ("f4", True), ("f8", False), ("f8", True)])
@pytest.mark.parametrize("columns", ["f", ["f", "s"], ["s", "f"], ["s", "f", "f"]], ids=str)
@daily(7)
def test_equal_floats_are_in_one_part(kind: str, encoded: bool, columns: Any) -> None:
    column = floats_of(np.dtype(kind))
    table = pa.table({"f": column.dictionary_encode() if encoded else column, "s": ["-0"] * 6, "x": range(6)})
    for seed in range(20):
        kept = table.filter(part_of(columns, {"a": 1, "b": 1}, "a", seed=seed))["x"].to_pylist()
        assert (0 in kept) == (1 in kept)
        assert len({2, 3, 4, 5} & set(kept)) in (0, 4)


def test_files_of_other_types_have_equal_values_in_one_part(tmp_path: Path) -> None:
    def column(kind: pa.DataType, values: Any) -> pa.Array:
        return pa.array(values).cast(kind)

    numbers = [None, 0.0, *(float(np.float32(number / 10)) for number in range(1, 300))]
    for name, real, whole, text in [
        ("a", pa.float32(), pa.int8(), pa.string()),
        ("b", pa.float64(), pa.int64(), pa.large_string()),
        ("c", pa.float32(), pa.uint16(), pa.dictionary(pa.int16(), pa.string())),
    ]:
        signed = [-0.0 if number == 0 and name == "b" else number for number in numbers]
        wholes = [row % 100 for row in range(len(numbers))]
        texts = pa.array([f"u{row % 50}" for row in range(len(numbers))])
        columns = {"f": column(real, signed), "i": column(whole, wholes), "s": texts.cast(text)}
        pq.write_table(pa.table({"row": range(len(numbers)), **columns}), tmp_path / f"{name}.parquet")
    for by in ("f", "i", "s", ["f", "i", "s"]):
        parts = StructuredDataset(tmp_path, columns=["row"]).split({"a": 0.5, "b": 0.5}, by=by)
        for part in parts.values():
            rows = [row for batch in part.loader() for row in batch["row"].tolist()]
            assert all(count == 3 for count in Counter(rows).values()), by
            assert 100 < len(set(rows)) < 200


def test_partition_values_are_hashed_as_those_in_files(tmp_path: Path) -> None:
    for text in ("0.0", "-0.0", "nan", "-nan", "1.5"):
        (tmp_path / f"f={text}").mkdir()
        pq.write_table(pa.table({"x": [text]}), tmp_path / f"f={text}" / "a.parquet")
    schema = pa.schema([("x", pa.string()), ("f", pa.float64())])
    for seed in range(9):
        chosen = part_of("f", {"a": 1, "b": 1}, "a", seed=seed)
        loader, _ = StructuredDataset.create_dataloader(tmp_path, schema=schema, filters=chosen, check_plan=False)
        found = {x for batch in loader for x in batch["x"]}
        assert len(found & {"0.0", "-0.0"}) != 1
        assert len(found & {"nan", "-nan"}) != 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("x", SHARES, "trian"), "no part 'trian'; did you mean train"),
        (("x", {}, "a"), "shares must be"),
        (("x", {"a": 0}, "a"), "a share must be above 0"),
        (("x", {"a": -1}, "a"), "at least 0, got -1"),
        (("x", {"a": float("nan")}, "a"), "at least 0, got nan"),
        (([], SHARES, "val"), "columns must be"),
    ],
)
def test_wrong_parts_are_refused(arguments: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        part_of(*arguments)


def test_partition_columns_decide_without_reading(tmp_path: Path) -> None:
    for day in range(12):
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(pa.table({"x": [day] * 3}), tmp_path / f"day={day}" / "a.parquet")
    found = {}
    for part in SHARES:
        loader, dataset = StructuredDataset.create_dataloader(str(tmp_path), filters=of(part, "day"), check_plan=False)
        found[part] = {x for batch in loader for x in batch["x"].tolist()}
        assert dataset.explain().pruned_files == 12 - len(found[part])
    assert sorted(sum(map(list, found.values()), [])) == list(range(12))


_ELSEWHERE = """
import pickle, sys
from torch_table_loader import StructuredDataset
part = pickle.loads(bytes.fromhex(sys.argv[2]))
loader, _ = StructuredDataset.create_dataloader(sys.argv[1], "parquet", batch_size=8, filters=part, rank=0, num_ranks=1)
with loader:
    print(sum(len(batch["user"]) for batch in loader))
"""


@pytest.mark.slow
def test_a_part_can_cross_to_a_process_that_never_made_one(tmp_path: Path) -> None:
    pq.write_table(pa.table({"user": range(1000)}), tmp_path / "a.parquet")
    part = pickle.dumps(part_of("user", {"train": 0.9, "val": 0.1}, "val"))
    command = [sys.executable, "-c", _ELSEWHERE, str(tmp_path), part.hex()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("101\n", 0), done.stderr
