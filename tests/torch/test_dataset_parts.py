"""Datasets made of a dataset: other options and parts of one table, which is opened once."""

from __future__ import annotations

import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.tables.plain import meant_warnings
from tests.torch.modes import LAKE, ROWS, SPLITS, Mode
from torch_table_loader import ConfigError, ConfigTypeError, DeltaDataset, StructuredDataset, part_of
from torch_table_loader.source.listing import PathSource
from torch_table_loader.source.storage import FileStorage

pytestmark = pytest.mark.usefixtures("small_gathers")
KINDS = pytest.mark.parametrize("mode", [SPLITS, LAKE], ids=str, scope="session")
SHARES = [{"all": 1}, {"train": 0.8, "val": 0.2}, {0: 0.5, 1: 0.3, 2: 0.2}, {"a": 0.7, "b": 0.1, "c": 0.1, "d": 0.1}]
SOME = pc.field("k") < 7


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note each file that is opened, and each listing of files."""
    seen: list[str] = []
    real_open, real_list = FileStorage.open, PathSource.open

    def noting_open(self: FileStorage, path: str) -> pa.NativeFile:
        seen.append(path)
        return real_open(self, path)

    def noting_list(*arguments: Any, **options: Any) -> PathSource:
        seen.append("listing")
        return real_list(*arguments, **options)

    monkeypatch.setattr(FileStorage, "open", noting_open)
    monkeypatch.setattr(PathSource, "open", noting_list)
    return seen


def rows_of(mode: Mode, dataset: Any) -> list[int]:
    with meant_warnings():
        return [row for batch in mode.read(dataset.loader()) for row in batch]


@pytest.mark.parametrize("filters", [None, SOME], ids=["whole", "filtered"])
@pytest.mark.parametrize("shares", SHARES, ids=len)
@pytest.mark.parametrize("mode", [SPLITS, ROWS, LAKE], ids=str, scope="session")
@daily(3)
def test_parts_are_disjoint_and_complete_and_know_their_length(
    mode: Mode, tables: Path, shares: dict[Any, float], filters: Any
) -> None:
    dataset = mode.open(tables, filters=filters)
    parts = dataset.split(shares, by="x")
    assert list(parts) == list(shares)
    found = {name: rows_of(mode, part) for name, part in parts.items()}
    assert sorted(sum(found.values(), [])) == sorted(mode.live(tables, filtered=filters is not None))
    for name, part in parts.items():
        assert len(part.loader()) == -(-len(found[name]) // 5)
        assert sorted(rows_of(mode, part)) == sorted(found[name])  # the next epoch has the same rows
        chosen = part_of("x", shares, name)
        alone = mode.open(tables, filters=chosen if filters is None else filters & chosen)
        assert rows_of(mode, alone) == found[name]
        part.loader().set_epoch(0)
        batches = iter(part.loader())
        taken = mode.read(islice(batches, 1))
        resumed = dataset.split(shares, by="x")[name]
        resumed.loader().load_state_dict(part.loader().state_dict())
        assert sum(taken, []) + rows_of(mode, resumed) == found[name]


@KINDS
@pytest.mark.slow
def test_other_processes_read_the_same_parts(mode: Mode, tables: Path) -> None:
    parts = mode.open(tables).split({"train": 0.8, "val": 0.2}, by="x")
    for part in parts.values():
        spawned = part.with_options(num_workers=1, worker_type="spawn")
        assert sorted(rows_of(mode, spawned)) == sorted(rows_of(mode, part))


@KINDS
def test_the_table_is_opened_once(mode: Mode, tables: Path, opened: list[str]) -> None:
    dataset = mode.open(tables)
    assert opened
    opened.clear()
    other = dataset.with_options(batch_size=3, shuffle=False)
    data = {Path(file.path).name for file in dataset.table.files}
    assert not [path for path in opened if path == "listing" or Path(path).name in data]
    assert other.options.batch_size == 3
    assert dataset.options.batch_size == 5
    assert other.snapshot_id == dataset.snapshot_id
    assert sorted(rows_of(mode, other)) == sorted(rows_of(mode, dataset))


@KINDS
def test_footers_and_listings_are_not_read_for_parts(mode: Mode, tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("the table is read again")

    dataset = mode.open(tables)
    monkeypatch.setattr("torch_table_loader.engine.survey.inspect_file", refused)
    monkeypatch.setattr("torch_table_loader.dataset.list_files", refused)
    monkeypatch.setattr("torch_table_loader.iceberg.source.IcebergRequest.open", refused)
    parts = dataset.split({"train": 0.5, "val": 0.5}, by="x")
    filtered = dataset.with_options(filters="k < 7")
    assert sum(len(rows_of(mode, part)) for part in parts.values()) == len(mode.live(tables))
    assert len(rows_of(mode, filtered)) == len(mode.live(tables, filtered=True))


def test_counts_are_shared(tables: Path, opened: list[str]) -> None:
    part = SPLITS.open(tables).split({"train": 0.8, "val": 0.2}, by="x")["val"]
    opened.clear()
    ordered = part.with_options(shuffle=False, batch_size=4)
    assert opened == []
    assert len(ordered.loader()) == -(-len(rows_of(SPLITS, part)) // 4)


def test_a_filter_replaces_that_of_the_dataset(tables: Path) -> None:
    for mode in (SPLITS, LAKE):
        dataset = mode.open(tables, filters=pc.field("x") > 40)
        assert set(rows_of(mode, dataset.with_options(filters=SOME))) == mode.live(tables, filtered=True)
        assert set(rows_of(mode, dataset.with_options(filters=None))) == mode.live(tables)
        with meant_warnings():
            seen = [x for batch in dataset.loader() for x in batch["x"].tolist()]
        assert set(seen) == {row for row in mode.live(tables) if row > 40}
        assert dataset.with_options(columns=["s"]).schema.names == ["s", "row_id"]


def test_parts_of_parts_and_of_several_columns(tables: Path) -> None:
    part = SPLITS.open(tables).split({"train": 0.5, "test": 0.5}, by=["x", "s"])["train"]
    inner = part.split({"train": 0.5, "val": 0.5}, by="x", seed=1)
    found = {name: rows_of(SPLITS, each) for name, each in inner.items()}
    assert all(found.values())
    assert sorted(found["train"] + found["val"]) == sorted(rows_of(SPLITS, part))


def test_the_dataset_that_it_was_made_of_goes_on(tables: Path) -> None:
    dataset = SPLITS.open(tables)
    whole = SPLITS.read(SPLITS.open(tables).loader())
    batches = iter(dataset.loader())
    taken = SPLITS.read(islice(batches, 3))
    assert rows_of(SPLITS, dataset.with_options(filters=SOME))
    assert dataset.loader() is dataset.loader()
    assert taken + SPLITS.read(batches) == whole


def test_delta_tables_have_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for start in (0, 50):
        deltalake.write_deltalake(str(tmp_path / "t"), pa.table({"x": range(start, start + 50)}), mode="append")
    choices: list[dict[str, Any]] = [{}, {"filters": "x >= 50"}]
    for options in choices:
        dataset = DeltaDataset(str(tmp_path / "t"), batch_size=10, **options)
        least = 50 if options else 0
        with monkeypatch.context() as patched:
            patched.setattr("torch_table_loader.delta.delta_source.DeltaRequest.open", None)
            parts = dataset.split({"train": 0.8, "val": 0.2}, by="x")
            found = [x for part in parts.values() for batch in part.loader() for x in batch["x"].tolist()]
        assert sorted(found) == list(range(least, 100))
        whole = dataset.with_options(filters=None)
        assert sorted(x for batch in whole.loader() for x in batch["x"].tolist()) == list(range(100))


def test_rows_in_memory_and_text_files_have_parts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n2,3\n")
    (tmp_path / "b.csv").write_text("x,y\n3,0.5\n4,1\n")
    for dataset in (StructuredDataset(source=pa.table({"x": [1, 2, 3, 4]})), StructuredDataset(str(tmp_path))):
        parts = dataset.split({"a": 0.5, "b": 0.5}, by="x")
        found = [x for part in parts.values() for batch in part.loader() for x in batch["x"].tolist()]
        assert sorted(found) == [1, 2, 3, 4]
        assert [part.schema for part in parts.values()] == [dataset.schema] * 2


def test_what_does_not_fit_is_refused(tables: Path, tmp_path: Path) -> None:
    dataset = SPLITS.open(tables)
    for parts, by, problem in (
        ({"train": 0.8, "val": 0.1}, "x", "must sum to 1, got .*, which sum to 0.9"),
        ({"train": 8, "val": 2}, "x", "must sum to 1"),
        ({"train": 1.5, "val": -0.5}, "x", "at least 0, got -0.5"),
        ({"train": 0.8, "val": 0.2}, "xx", "no column 'xx'"),
        ({"train": 0.8, "val": 0.2}, ["x", "kk"], "no column 'kk'"),
        ({"train": 0.8, "val": 0.2}, [], "columns must be"),
        ({}, "x", "split takes the share of each part"),
        (["train", "val"], "x", "split takes up to three weights of at least 0"),
    ):
        with pytest.raises(ConfigError, match=problem):
            dataset.split(parts, by=by)
    for options, problem in (
        ({"files": ["000.parquet"]}, "cannot change files="),
        ({"storage_options": {}}, "cannot change storage_options="),
        ({"path": str(tmp_path)}, "cannot change path="),
        ({"columns": ["no"]}, "no column 'no'"),
        ({"filters": pc.field("no") > 3}, "name the column 'no'"),
        ({"batch_size": 0}, "batch_size must be"),
    ):
        with pytest.raises(ConfigError, match=problem):
            dataset.with_options(**options)
    with pytest.raises(ConfigTypeError, match="batchsize"):
        dataset.with_options(batchsize=3)
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    away = pickle.loads(pickle.dumps(StructuredDataset(str(tmp_path))))  # noqa: S301 ours
    with pytest.raises(ConfigError, match="came from another process"):
        away.with_options(batch_size=3)


@pytest.mark.parametrize("filters", [None, SOME], ids=["whole", "filtered"])
def test_deletes_are_read_once_for_all_parts(tables: Path, opened: list[str], filters: Any) -> None:
    dataset = LAKE.open(tables, filters=filters)
    deletes = {Path(delete.file.path).name for file in dataset.table.files for delete in file.deletes}
    assert deletes & {Path(path).name for path in opened}
    opened.clear()
    parts = dataset.split({"train": 0.8, "val": 0.2}, by="x")
    found = [rows_of(LAKE, part) for part in (*parts.values(), dataset.with_options(batch_size=3))]
    assert sorted(found[0] + found[1]) == sorted(found[2]) == sorted(LAKE.live(tables, filtered=filters is not None))
    assert deletes.isdisjoint(Path(path).name for path in opened)
