"""Bad input is refused at construction, with the right type of error, what came, and what to do."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.tables.plain import write_table
from torch_table_loader import (
    ConfigError,
    MissingExtraError,
    StructuredDataset,
    TableError,
    TargetSizeStrategy,
)

Write = Callable[[Path], None]


def good(root: Path) -> None:
    write_table(root, [[5, 5], [5]])


def nothing(root: Path) -> None:
    return


def no_directory_but_a_text(root: Path) -> None:
    good(root)
    (root / "001.parquet").write_text("this is text, and no parquet file at all")


def torn_at_the_end(root: Path) -> None:
    good(root)
    data = (root / "001.parquet").read_bytes()
    (root / "001.parquet").write_bytes(data[: len(data) // 2])


def torn_footer(root: Path) -> None:
    good(root)
    data = (root / "001.parquet").read_bytes()
    (root / "001.parquet").write_bytes(data[:-60] + b"\xff" * 52 + data[-8:])


def few_bytes(root: Path) -> None:
    good(root)
    (root / "001.parquet").write_bytes(b"PAR1")


def of(**columns: Any) -> Write:
    return lambda root: pq.write_table(pa.table(columns), root / "000.parquet")


def two_schemas(root: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), root / "a.parquet")
    pq.write_table(pa.table({"x": ["one"]}), root / "b.parquet")


@pytest.mark.parametrize(
    ("write", "options", "error", "said"),
    [
        (good, {"format": "parq"}, ConfigError, r"format must be one of .*got 'parq'; did you mean parquet"),
        (good, {"output_format": "tf"}, ConfigError, "output_format must be one of .*got 'tf'"),
        (good, {"columns": ["x", "ff"]}, ConfigError, "the table has no column 'ff'; did you mean f"),
        (good, {"columns": ["quite_another"]}, ConfigError, "no column 'quite_another'; did you mean x, k, f"),
        (good, {"columns": []}, ConfigError, "columns is empty.*name at least one"),
        (good, {"filters": {"x": 3}}, TypeError, r"filters must be a pyarrow compute Expression such as .*got dict"),
        (good, {"filters": [("y", ">", 3)]}, ConfigError, "'?y'?"),
        (good, {"filters": "x > 3 and"}, ConfigError, "expected a column, got the end"),
        (good, {"filters": pc.field("y") > 3}, ConfigError, "'?y'?"),
        (good, {"filters": pc.field("x") + 1}, ConfigError, "filters must give true or false"),
        (good, {"filters": pc.field("x") > "abc"}, ConfigError, "filter"),
        (good, {"num_ranks": 4, "rank": 4}, ConfigError, r"rank=4 num_ranks=4; pass the global rank"),
        (good, {"num_ranks": 4, "rank": -1}, ConfigError, "rank must be at least 0, got -1"),
        (good, {"batch_size": -1}, ConfigError, "batch_size must be at least 1, got -1"),
        (good, {"num_workers": -2}, ConfigError, "num_workers must be at least 0, got -2"),
        (good, {"split_size": -2}, ConfigError, "split_size must be at least 1, got -2"),
        (good, {"split_size": "-1MB"}, ConfigError, "split_size must look like '128MiB'.*got '-1MB'"),
        (good, {"schema": {"x": "int64"}}, TypeError, "schema must be a pyarrow Schema such as .*got dict"),
        (good, {"storage_options": "anon"}, TypeError, "storage_options must be a mapping.*got str"),
        (good, {"split_strategy": 7}, TypeError, "split_strategy must be a callable .*got 7"),
        (good, {"split_strategy": TargetSizeStrategy}, TypeError, "must be an instance, got the class .*call it first"),
        (good, {"split_strategy": "by_magic"}, ConfigError, "no split strategy is installed under the name 'by_magic'"),
        (good, {"files": ["009.parquet"]}, TableError, "009.parquet"),
        (good, {"row_id": True, "columns": ["x", "row_id"]}, ConfigError, "row_id"),
        (
            good,
            {"output_format": "arrow", "nulls": "mask"},
            ConfigError,
            "nulls='mask' shapes tensors.*leave nulls out",
        ),
        (good, {"output_format": "numpy", "ragged": "nested"}, ConfigError, 'ragged="nested" is a torch layout'),
        (good, {"nulls": {"nope": 0}}, ConfigError, "nope"),
        (good, {"device": "warp"}, ConfigError, "device"),
        (nothing, {}, ConfigError, "path matches nothing"),
        (good, {"suffix": "nowhere"}, ConfigError, "path matches nothing: .*nowhere.*check the spelling"),
        (good, {"suffix": "*.orc"}, ConfigError, r"path matches nothing: .*\*.orc"),
        (no_directory_but_a_text, {}, TableError, "001.parquet must be a Parquet file"),
        (torn_at_the_end, {}, TableError, "001.parquet must be a Parquet file.*torn"),
        (torn_footer, {}, TableError, "001.parquet"),
        (few_bytes, {}, TableError, "001.parquet must be a Parquet file, that is at least 12 bytes.*got 4 bytes"),
        (good, {"format": "orc"}, TableError, r"000.parquet.*"),
        (good, {"format": "arrow"}, TableError, r"000.parquet.*"),
        (good, {"format": "json"}, TableError, r"000.parquet.*"),
        (two_schemas, {}, TableError, "'x'.*b.parquet|b.parquet.*'x'"),
        (of(m=pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))), {}, ConfigError, "'m'.*map"),
        (of(d=pa.array([1], pa.decimal128(9, 2))), {}, ConfigError, "'d'.*decimal.*unsupported=.float64."),
        (of(i=pa.array([1, None])), {}, TableError, r"column 'i' has nulls in '000.parquet'.*nulls=\{'i': fill\}"),
        (of(b=pa.array([True, None])), {}, TableError, "column 'b' has nulls"),
        (of(padding=[1]), {"even_ranks": "pad"}, ConfigError, "adds a column 'padding', but the table has one"),
        (of(row_id=[1]), {"row_id": True}, ConfigError, "adds a column 'row_id', but the table has one"),
        (
            good,
            {"filters": pc.field("x") > 3, "count_filtered": False, "even_ranks": "pad"},
            ConfigError,
            "count_filtered",
        ),
        (good, {"suffix": [], "path": []}, ConfigError, "path is an empty list"),
        (good, {"path": 3}, TypeError, "path must be a string"),
        (good, {"path": "nosuch://bucket/table"}, ConfigError, "nosuch"),
        (good, {"worker_type": "threads"}, ConfigError, "worker_type must be one of"),
    ],
)
def test_it_is_refused_at_construction(
    tmp_path: Path, write: Write, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    write(tmp_path)
    options = dict(options)
    path = options.pop("path", str(tmp_path / str(options.pop("suffix", ""))))
    options.pop("suffix", None)
    with pytest.raises(error, match=said) as caught:
        StructuredDataset.create_dataloader(path, options.pop("format", "parquet"), check_plan=False, **options)
    if error in (ConfigError, TypeError):
        assert isinstance(caught.value, ConfigError)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good(tmp_path)
    importing = builtins.__import__

    def without_tqdm(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "tqdm":
            raise ImportError(name)
        return importing(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_tqdm)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tqdm"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(
        MissingExtraError, match=r"show_progress=True needs tqdm; pip install 'torch-table-loader\[progress\]'"
    ):
        StructuredDataset(str(tmp_path), "parquet", show_progress=True)
    StructuredDataset(str(tmp_path), "parquet")


def test_nulls_that_the_filter_may_remove_are_checked_on_arrival(tmp_path: Path) -> None:
    of(i=pa.array([1, None, 3]), k=[0, 1, 0])(tmp_path)
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), "parquet", filters=pc.field("k") == 0)
    assert [batch["i"].tolist() for batch in loader] == [[1, 3]]
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), "parquet", filters=pc.field("k") >= 0)
    with pytest.raises(TableError, match=r"000\.parquet.*'i'|'i'.*000\.parquet"):
        list(loader)


def test_a_presigned_login_is_shown_in_no_message(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="format must be one of") as caught:
        StructuredDataset("s3://key:hush@bucket/x", "nope")
    assert "hush" not in str(caught.value)
