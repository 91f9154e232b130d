"""`torch-table-loader inspect` and the loader give one verdict on every column."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from torch_table_loader import StructuredDataset, TableLoaderError
from torch_table_loader.cli.inspect import REFUSED, UNLESS_NULL
from torch_table_loader.cli.main import main

SOME = [1, None, 3, None]
ALL = [1, 2, 3, 4]

COLUMNS: dict[str, pa.Array] = {
    "int": pa.array(ALL),
    "int_null": pa.array(SOME),
    "int_required": pa.array(ALL),
    "bool_null": pa.array([True, None, False, None]),
    "float_null": pa.array([1.5, None, 2.5, None]),
    "day_null": pa.array(SOME, pa.int32()).cast(pa.date32()),
    "decimal": pa.array([Decimal("1.25")] * 4, pa.decimal128(9, 2)),
    "decimal_null": pa.array([Decimal("1.25"), None] * 2, pa.decimal128(9, 2)),
    "text_null": pa.array(["a", None, "b", None]),
    "codes_null": pa.array(["a", None, "b", None]).dictionary_encode(),
    "list": pa.array([[1], [], [2, 3], [4]]),
    "list_null": pa.array([[1], None, [2, 3], None]),
    "list_null_inside": pa.array([[1], [None], [2, 3], []]),
    "grid": pa.array([[1, 2]] * 4, pa.list_(pa.int32(), 2)),
    "grid_null": pa.array([[1, 2], None, [3, 4], None], pa.list_(pa.int32(), 2)),
    "texts": pa.array([["a"], None, ["b", None], []]),
    "inner": pa.array([{"a": 1}] * 4),
    "inner_null": pa.array([{"a": 1}, {"a": None}] * 2),
    "map": pa.array([[("a", 1)]] * 4, pa.map_(pa.string(), pa.int64())),
    "lists": pa.array([[[1], [2]]] * 4),
    "nothing": pa.nulls(4),
    "two_valid": pa.array(ALL),
}
if int(pa.__version__.partition(".")[0]) < 26:  # it does not read such a column: tests/rooms/test_read_unread.py
    del COLUMNS["grid_null"]


def schema() -> pa.Schema:
    fields = [pa.field(name, column.type, nullable=name != "int_required") for name, column in COLUMNS.items()]
    return pa.schema(fields)


def write(root: Path, *, statistics: bool) -> str:
    path = root / f"statistics-{statistics}.parquet"
    table = pa.table(list(COLUMNS.values()), schema=schema())
    pq.write_table(table, path, write_statistics=statistics, row_group_size=3)
    return str(path)


@pytest.fixture(scope="module", params=[True, False], ids=["statistics", "no-statistics"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("verdicts"), statistics=request.param)


CHOICES: list[tuple[list[str], dict[str, Any]]] = [
    ([], {}),
    (["--nulls", "mask"], {"nulls": "mask"}),
    (["--unsupported", "float64"], {"unsupported": "float64"}),
    (["--nulls", "int_null=-1", "--nulls", "list_null=[]"], {"nulls": {"int_null": -1, "list_null": []}}),
    (["--nulls", "text_null=none", "--nulls", "inner_null.a=0"], {"nulls": {"text_null": "none", "inner_null.a": 0}}),
    (["--nulls", "int_null=1.5"], {"nulls": {"int_null": 1.5}}),
    (["--strings", "codes"], {"strings": "codes"}),
    (["--ragged", "pad"], {"ragged": "pad"}),
    (["--output-format", "numpy", "--ragged", "offsets"], {"output_format": "numpy", "ragged": "offsets"}),
    (["--output-format", "arrow"], {"output_format": "arrow"}),
    (["--filter", "int > 0"], {"filters": "int > 0"}),
]


def verdicts(output: str) -> dict[str, str]:
    """Read the printed verdict of each column."""
    lines = output.split("\nschema\n", 1)[1].split("\n\n", 1)[0].splitlines()[1:]
    found = [re.split(r" {2,}", line.strip()) for line in lines]
    assert [name for name, *_ in found] == list(COLUMNS)
    return {name: told for name, _, told in found}


def what_the_loader_does(path: str, name: str, options: dict[str, Any]) -> str:
    """Return whether the loader refuses a column, fails at a batch of it, or delivers it."""
    options = dict(options)
    if isinstance(options.get("nulls"), dict):
        options["nulls"] = {key: fill for key, fill in options["nulls"].items() if key.split(".")[0] == name}
    if "filters" in options:
        options["filters"] = pa.compute.field("int") > 0
    try:
        loader, _ = StructuredDataset.create_dataloader(path, columns=[name], num_workers=0, **options)
    except TableLoaderError:
        return "refused"
    try:
        list(loader)
    except TableLoaderError:
        return "failed"
    return "delivered"


@pytest.mark.parametrize(("flags", "options"), CHOICES, ids=lambda value: str(value)[:50])
@daily(3)
def test_the_verdict_of_inspect_on_a_column_is_what_the_loader_does(
    table: str, flags: list[str], options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", table, *flags]) == 0
    told = verdicts(capsys.readouterr().out)
    for name, verdict in told.items():
        done = what_the_loader_does(table, name, options)
        assert verdict.startswith(REFUSED) == (done == "refused"), (name, verdict, done)
        if done == "failed":
            assert verdict.endswith(UNLESS_NULL), (name, verdict)
    if "statistics-True" in table:
        assert not told["int"].endswith(UNLESS_NULL)
    assert not told["int_required"].endswith(UNLESS_NULL)
    assert not told["text_null"].endswith(UNLESS_NULL)


def test_errors_about_several_columns_together_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = pa.table({"two": pa.array(SOME), "two_valid": pa.array(ALL)})
    pq.write_table(columns, tmp_path / "a.parquet")
    assert main(["inspect", str(tmp_path / "a.parquet"), "--nulls", "mask"]) == 0
    assert re.search(r"note: the loader refuses this: .*'two_valid'", capsys.readouterr().out)
    assert main(["inspect", str(tmp_path / "a.parquet"), "--nulls", "too=1"]) == 0
    assert re.search(
        r"note: the loader refuses this: nulls names 'too', which is not a column", capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--output-format", "numpy", "--ragged", "nested"], "is a torch layout"),
        (["--output-format", "arrow", "--unsupported", "float64"], "shapes tensors and arrays"),
        (["--nulls", "mask", "--nulls", "x=1"], "exclude each other"),
        (["--nulls", "zero"], "expected mask or COLUMN=VALUE, got 'zero'"),
    ],
)
def test_options_that_the_loader_refuses_are_refused(
    tmp_path: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: Any = main(["inspect", write(tmp_path, statistics=True), *flags])
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert said in capsys.readouterr().err


def test_null_partitions_are_refused_until_a_fill_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for day in ("1", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(pa.table({"x": [1]}), tmp_path / f"day={day}" / "0.parquet")
    hive = [str(tmp_path)]
    assert main(["inspect", *hive]) == 0
    assert re.search(r"day +int\d+ +refused for its nulls: pass --nulls day=fill", capsys.readouterr().out)
    with pytest.raises(TableLoaderError, match="column 'day' has nulls in 'day=__HIVE_DEFAULT"):
        StructuredDataset.create_dataloader(str(tmp_path))
    assert main(["inspect", *hive, "--nulls", "day=0"]) == 0
    assert re.search(r"day +int\d+ +int64\n", capsys.readouterr().out)
