"""Looking at a table: its first rows, and what the loader gives as an Arrow stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.torch.modes import LAKE, MIXTURE, ROWS, SPLITS, TABLE_MODES, Mode
from torch_table_loader import ConfigError, ConfigTypeError, StructuredDataset, TableError

pytestmark = pytest.mark.usefixtures("small_gathers")
of_one_table = pytest.mark.parametrize("mode", [SPLITS, ROWS, LAKE], ids=str, scope="session")


@of_one_table
@pytest.mark.parametrize("filtered", [False, True])
@daily(2)
def test_the_first_rows_are_those_that_live(mode: Mode, tables: Path, filtered: bool) -> None:
    options: dict[str, Any] = {"filters": "k < 7", "columns": ["k", "x"]} if filtered else {}
    dataset = mode.open(tables, **options)
    live = sorted(mode.live(tables, filtered=filtered))
    for count in (0, 1, 5, 33, len(live) + 10):
        found = dataset.head(count)
        assert found["x"].to_pylist() == live[:count]
        assert found.column_names == (["k", "x"] if filtered else ["x", "k", "f", "s"])
    assert dataset.head().num_rows == 5


def test_a_wrong_count_is_refused(tables: Path) -> None:
    with pytest.raises(ConfigError, match="count must be"):
        SPLITS.open(tables).head(-1)


@pytest.mark.parametrize("mode", TABLE_MODES, ids=str, scope="session")
@daily(2)
def test_a_job_of_ranks_is_warned_where_each_would_read_all_rows(
    mode: Mode, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    dataset = mode.open(tables, check_plan=False)  # a warning would be an error
    assert "x" in dataset.schema.names
    assert dataset.explain().num_ranks == 1
    if mode in (SPLITS, ROWS, LAKE):
        assert dataset.head().num_rows == 5
        assert dataset.statistics(["x"])["x"].count == len(mode.live(tables))
        assert dataset.fit_vocabulary("s", max_size=1)
    with pytest.warns(UserWarning, match=r"reads the whole table \(num_ranks=1\) in a job of 2 ranks") as caught:
        next(iter(dataset))
    next(iter(dataset))  # it is said once
    assert [entry.filename for entry in caught] == [__file__]
    with pytest.warns(UserWarning, match="reads the whole table") as caught:
        mode.make_loudly(tables, check_plan=False)
    assert len(caught) == 1
    next(iter(mode.make_loudly(tables, check_plan=False, num_ranks=1)))
    next(iter(mode.open(tables, check_plan=False, num_ranks=1)))


@pytest.mark.parametrize("shuffle", [False, True, "rows"])
def test_a_table_with_nulls_is_looked_at_without_a_choice_for_them(tmp_path: Path, shuffle: Any) -> None:
    columns = {"age": pa.array([30, None, 50], pa.int32()), "s": ["a", None, "a"]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    options: dict[str, Any] = {"shuffle": shuffle, "num_workers": 0}
    if shuffle == "rows":
        options["row_store"] = "memory"
    dataset = StructuredDataset(str(tmp_path), **options)
    found = dataset.statistics(["age"])["age"]
    assert (found.count, found.nulls, found.mean, found.min, found.max) == (2, 1, 40.0, 30, 50)
    assert dataset.statistics(["age"], bounds_only=True)["age"].nulls == 1
    assert dataset.fit_vocabulary("s") == ["a"]
    assert dataset.head().column("age").to_pylist() == [30, None, 50]
    assert dataset.schema.field("age").type == pa.int32()
    for begin in (lambda: next(iter(dataset)), lambda: StructuredDataset.create_dataloader(str(tmp_path), **options)):
        with pytest.raises(TableError, match=r"column 'age' has nulls in 't\.parquet' .*nulls=\{'age': fill\}"):
            begin()
    if shuffle == "rows":
        with pytest.raises(TableError, match="column 'age' has nulls"):
            dataset.as_map()


@pytest.mark.parametrize("mode", TABLE_MODES, ids=str, scope="session")
@daily(2)
def test_others_read_what_training_reads(mode: Mode, tables: Path) -> None:
    wanted = [row for batch in mode.make(tables) for row in mode.ids(batch)]
    loader = mode.make(tables, output_format="arrow")
    frame = pl.DataFrame(loader)
    loader.set_epoch(0)
    read = pa.table(loader)
    loader.set_epoch(0)
    stream = duckdb.from_arrow(pa.RecordBatchReader.from_stream(loader))
    counted = stream.aggregate("count(*), sum(x)").fetchone()
    assert len(frame) == read.num_rows == len(wanted)
    assert counted == (len(wanted), sum(read["x"].to_pylist()))
    for columns in (frame.to_dict(as_series=False), read.to_pydict()):
        sources = [1000 * source for source in columns.get("source", [0] * len(wanted))]
        assert [row + base for row, base in zip(columns["row_id"], sources, strict=True)] == wanted


@pytest.mark.parametrize("options", [{}, {"output_format": "arrow", "collate_fn": len}], ids=str)
def test_tensors_are_no_arrow_stream(tables: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match='pass output_format="arrow" and no collate_fn'):
        pa.table(MIXTURE.make(tables, **options))


@pytest.mark.parametrize("mode", TABLE_MODES, ids=str, scope="session")
def test_in_asks_for_a_column_and_reads_nothing(mode: Mode, tables: Path) -> None:
    loader = mode.make(tables)
    asked: Any
    for asked in (loader, loader.dataset):
        assert "x" in asked
        assert "nothing" not in asked
        with pytest.raises(ConfigTypeError, match="asks for the name of a column, got int"):
            _ = 3 in asked
    before = loader.metrics()
    assert (before.rows, before.batches, before.num_bytes) == (0, 0, 0)
    assert not set(before.as_dict().values()) - {0, before.servers}
    assert before._repr_html_()
