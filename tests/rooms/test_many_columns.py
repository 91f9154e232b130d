"""Tables of thousands of columns: a loader takes time in proportion to them, and a batch has a stated limit."""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.tables.reading import all_batches, inspect, write_parquet
from torch_table_loader import ConfigError, StructuredDataset, TableError
from torch_table_loader.batching import codec, types
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.batching.types import Chosen
from torch_table_loader.formats.csv_json.json_keys import KeyedText
from torch_table_loader.read.parquet_footer import parse
from torch_table_loader.read.wide_parquet import WideParquet
from torch_table_loader.sizes import sizes
from torch_table_loader.testing import small_sizes

FEW, TIMES = 300, 8
"""So many columns, and so many times as many. Work in the square of their number takes 64 times as long."""


def wide_table(columns: int) -> pa.Table:
    """A table of whole numbers, half of the columns with a null."""
    return pa.table({f"c{n}": pa.array([1, 2, None if n % 2 else 3], pa.int64()) for n in range(columns)})


def of_parquet(table: pa.Table, root: Path) -> dict[str, Any]:
    pq.write_table(table, root / "a.parquet")
    pq.write_table(table.select(table.column_names[::-1]), root / "b.parquet")  # in another order
    return {"path": root}


def of_arrow(table: pa.Table, root: Path) -> dict[str, Any]:
    with pa.ipc.new_file(root / "a.arrow", table.schema) as file:
        file.write_table(table)
    return {"path": root, "format": "arrow"}


def of_csv(table: pa.Table, root: Path) -> dict[str, Any]:
    pa.csv.write_csv(table, root / "a.csv")
    return {"path": root, "format": "csv"}


def of_orc(table: pa.Table, root: Path) -> dict[str, Any]:
    pa.orc.write_table(table, root / "a.orc")
    return {"path": root, "format": "orc"}


def of_memory(table: pa.Table, root: Path) -> dict[str, Any]:
    return {"source": table}


def seconds_of(columns: int, write: Callable[[pa.Table, Path], dict[str, Any]], options: Any, root: Path) -> float:
    """CPU seconds until the first batch, the less of two."""
    root.mkdir()
    table = wide_table(columns)
    keywords = {"nulls": dict.fromkeys(table.column_names[1::2], 0), **write(table, root), **options(table)}
    found = []
    for _ in range(2):
        gc.collect()
        start = time.process_time()
        loader, _ = StructuredDataset.create_dataloader(num_workers=0, batch_size=2, **keywords)
        next(iter(loader))
        found.append(time.process_time() - start)
    return min(found)


SOURCES = {write.__name__: write for write in (of_parquet, of_arrow, of_csv, of_orc, of_memory)}
OPTIONS: dict[str, Callable[[pa.Table], dict[str, Any]]] = {
    "stream": lambda _: {},
    "rows": lambda _: {"shuffle": "rows"},
    "masks": lambda _: {"nulls": "mask"},
    "named": lambda table: {"columns": table.column_names[::-1]},
    "one tensor": lambda table: {"columns": {"x": table.column_names[::2]}, "nulls": None},
}


@daily(1)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_loader_takes_time_in_proportion_to_the_columns(source: str, options: str, tmp_path: Path) -> None:
    few = seconds_of(FEW, SOURCES[source], OPTIONS[options], tmp_path / "few")
    many = seconds_of(FEW * TIMES, SOURCES[source], OPTIONS[options], tmp_path / "many")
    assert many / few < 2.5 * TIMES


class Name(str):
    """A name whose comparisons are calls, so that a search through a list of names is as many."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@contextmanager
def counted() -> Iterator[list[str]]:
    """Collect an entry for each call that Python makes, in all threads."""
    calls: list[str] = []

    def count(frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            calls.append(event)

    before = sys.getprofile()
    threading.setprofile(count)
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def calls_of(columns: int, write: Callable[[pa.Table, Path], dict[str, Any]], options: Any, root: Path) -> int:
    """Calls of Python functions, and of those of C, until the loader is made."""
    root.mkdir()
    table = wide_table(columns)
    keywords = {"nulls": dict.fromkeys(map(Name, table.column_names[1::2]), 0), **write(table, root), **options(table)}

    with counted() as calls:
        StructuredDataset.create_dataloader(num_workers=0, batch_size=2, **keywords)
    return len(calls)


@daily(2)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_loader_makes_calls_in_proportion_to_the_columns(source: str, options: str, tmp_path: Path) -> None:
    """Unlike seconds, calls are the same on any machine, however busy it is."""
    calls_of(10, SOURCES[source], OPTIONS[options], tmp_path / "first")  # which imports
    few = calls_of(FEW, SOURCES[source], OPTIONS[options], tmp_path / "few")
    many = calls_of(FEW * TIMES, SOURCES[source], OPTIONS[options], tmp_path / "many")
    assert many < 1.05 * TIMES * few, (few, many)


def test_a_loader_of_few_of_many_columns_makes_few_calls(tmp_path: Path) -> None:
    options = {"columns": ["c3", "c7"], "nulls": {"c3": 0, "c7": 0}}
    calls_of(10, of_parquet, lambda _: options, tmp_path / "first")
    few = calls_of(FEW, of_parquet, lambda _: options, tmp_path / "few")
    many = calls_of(FEW * TIMES, of_parquet, lambda _: options, tmp_path / "many")
    assert many < 1.05 * TIMES * few, (few, many)
    assert many < calls_of(FEW * TIMES, of_parquet, lambda _: {}, tmp_path / "all") / 2


def calls_of_files(files: int, root: Path) -> int:
    """Calls until an epoch of a few of 2,400 columns is over."""
    root.mkdir()
    for n in range(files):
        table = wide_table(FEW * TIMES).slice(0, 2).append_column("number", pa.array([n, n]))
        pq.write_table(table, root / f"{n}.parquet")
    with counted() as calls:
        loader, _ = StructuredDataset.create_dataloader(root, num_workers=0, columns=["c4", "number"])
        assert sum(len(batch["c4"]) for batch in loader) == 2 * files
    return len(calls)


def test_a_file_of_many_columns_is_few_calls_a_column(tmp_path: Path) -> None:
    """Whatever pyarrow would prepare for each column of each file, the collector of Python would look at."""
    calls_of_files(1, tmp_path / "first")
    few, many = calls_of_files(2, tmp_path / "few"), calls_of_files(6, tmp_path / "many")
    assert many - few < 27 * 4 * FEW * TIMES, (few, many)


@pytest.mark.parametrize("asked", [None, ["a"], ["s"], ["s.x"], ["s.y.list.element.z", "a"], ["c.d", "b"], ["x"], []])
def test_columns_of_a_file_are_found_by_their_names(asked: list[str] | None, tmp_path: Path) -> None:
    """As pyarrow finds them, also fields inside of columns, where it makes a list for each."""
    inner = pa.array([{"x": 1, "y": [{"z": 2}]}])
    flat = pa.table({"a": [1], "b": [2], "c.d": [3]})
    for number, table in enumerate((flat, pa.table({"a": [1], "s": inner, "s.x": [4], "t": inner}))):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table, path)
        assert WideParquet(path).read(columns=asked).equals(pq.ParquetFile(path).read(columns=asked))


@pytest.mark.parametrize("shuffle", [False, True, "rows"])
def test_the_footer_of_each_file_is_parsed_once(shuffle: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = 12
    for n in range(files):
        pq.write_table(wide_table(4).append_column("n", pa.array([n] * 3)), tmp_path / f"{n}.parquet")
    parse.cache_clear()
    parsed, begin = list[object](), pq.ParquetFile.__init__

    def counted(self: Any, source: Any, *, metadata: Any = None, **options: Any) -> None:
        if metadata is None:
            parsed.append(source)
        begin(self, source, metadata=metadata, **options)

    monkeypatch.setattr(pq.ParquetFile, "__init__", counted)
    loader, _ = StructuredDataset.create_dataloader(
        tmp_path, columns=["c0", "n"], shuffle=shuffle, num_workers=0, epochs=2
    )
    assert sum(len(batch["n"]) for batch in loader) == 2 * 3 * files
    assert len(parsed) == files


def calls_to_read(groups: int, root: Path) -> int:
    """Calls to read row groups of 40 columns, of which pyarrow decodes four at a time."""
    root.mkdir()
    table = pa.table({f"c{n}": pa.array(np.arange(100 * groups), pa.int64()) for n in range(40)})
    file = write_parquet(root / "a.parquet", table, 100)
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    meta = inspect(file)
    before = sys.getprofile()
    with small_sizes(parquet_values=400):
        sys.setprofile(count)
        try:
            read = all_batches(file, meta, table.column_names, max_rows=100)
        finally:
            sys.setprofile(before)
    assert pa.Table.from_batches(read).equals(table)
    return calls


def test_a_row_group_takes_few_calls_a_column(tmp_path: Path) -> None:
    """What is known of the columns of a file is not looked up again: calls hold Python's lock, decoding does not."""
    calls_to_read(1, tmp_path / "first")
    few, many = calls_to_read(10, tmp_path / "few"), calls_to_read(50, tmp_path / "many")
    assert many - few < 3.2 * 40 * 40, (few, many)


def objects_of(columns: int, root: Path) -> int:
    """Objects that Python's collector looks at: of a loader that has given a batch, whose tensors are some of them."""
    root.mkdir()
    pq.write_table(wide_table(columns).select(few_of(columns)), root / "a.parquet")
    StructuredDataset.create_dataloader(root, num_workers=0)  # what is known of the file stays known
    gc.collect()
    before = len(gc.get_objects())
    loader, _ = StructuredDataset.create_dataloader(root, num_workers=0)
    batches = iter(loader)
    batch = next(batches)
    gc.collect()
    found = len(gc.get_objects()) - before
    assert len(batch) == len(few_of(columns))
    return found


def few_of(columns: int) -> list[str]:
    """Columns without nulls."""
    return [f"c{n}" for n in range(0, columns, 2)]


def test_a_column_is_few_objects(tmp_path: Path) -> None:
    """Python looks at all objects of a process whenever there are a quarter more, which takes longer than the columns.

    Of a column there are what decodes it, what its values are, what cuts it into batches, its place in the file, and
    its tensor.
    """
    objects_of(10, tmp_path / "first")  # which imports
    few, many = objects_of(FEW, tmp_path / "few"), objects_of(FEW * TIMES, tmp_path / "many")
    assert many - few < 5.1 * len(few_of(FEW * (TIMES - 1))), (few, many)


def test_columns_are_decided_once_for_a_loader_and_its_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[pa.Schema]()

    def choose(schema: pa.Schema, policy: TypePolicy) -> Chosen:
        made.append(schema)
        return types.choose(schema, policy)

    monkeypatch.setattr(codec, "choose", choose)
    of_parquet(wide_table(3), tmp_path)
    loader, _ = StructuredDataset.create_dataloader(tmp_path, nulls="mask", num_workers=0, epochs=2)
    assert sum(len(batch["c0"]) for batch in loader) == 12
    assert len(made) == 1


def test_a_batch_has_a_limit_of_columns(tmp_path: Path) -> None:
    of_parquet(wide_table(11), tmp_path)
    with small_sizes(columns=10):
        with pytest.raises(ConfigError, match="at most 10 columns, got 11; name those that are needed in columns="):
            StructuredDataset.create_dataloader(tmp_path)
        loader, _ = StructuredDataset.create_dataloader(tmp_path, columns=["c0", "c2"], num_workers=0)
        assert set(next(iter(loader))) == {"c0", "c2"}
    page = Path(__file__).parents[2] / "docs" / "types.md"
    assert f"A batch has at most {sizes().columns:,} columns" in page.read_text("utf-8")


def sparse_lines(keys: int, root: Path) -> Path:
    """Lines of JSON, each with a key that no other one has."""
    path = root / "a.jsonl"
    path.write_text("".join(json.dumps({f"key {n}": n, "same": n}) + "\n" for n in range(keys)))
    return path


def test_lines_of_json_with_too_many_keys_are_refused_before_they_are_parsed(tmp_path: Path) -> None:
    """A few hundred KB of text would become gigabytes of nulls."""
    path = sparse_lines(20_000, tmp_path)
    with pytest.raises(TableError, match=r"a.jsonl has about 20,00\d different keys in its first 20,000 lines"):
        StructuredDataset.create_dataloader(path)
    names = ["same", "key 7"]
    schema = pa.schema([(name, pa.int64()) for name in names])
    loader, _ = StructuredDataset.create_dataloader(path, schema=schema, nulls={"key 7": -1}, num_workers=0)
    assert sum(int((batch["key 7"] == 7).sum()) for batch in loader) == 1


def test_many_columns_of_json_are_parsed_a_few_lines_at_a_time(tmp_path: Path) -> None:
    path = sparse_lines(100, tmp_path)
    schema = pa.schema([(f"key {n}", pa.int64()) for n in range(100)])
    with small_sizes(sparse_values=700):
        loader, _ = StructuredDataset.create_dataloader(path, schema=schema, output_format="arrow")
        rows = pa.Table.from_batches(list(loader))
    assert rows.num_rows == 100
    assert [rows[f"key {n}"][n].as_py() for n in range(100)] == list(range(100))


@pytest.mark.parametrize("keys", [["a"], ["a", "b" * 7, "c" * 8, "d" * 9], ["x" * 40 + "1", "x" * 40 + "2"]])
def test_keys_of_json_are_told_apart(keys: list[str]) -> None:
    """Not by what stands before them, and also where they begin or end alike."""
    lines = "".join(json.dumps(dict.fromkeys(keys, n * 7919)) + "\n" for n in range(100))
    with small_sizes(sparse_values=100 * len(keys) - len(lines) - 1):
        text = KeyedText(BytesIO(lines.encode()), "a.jsonl")
        with pytest.raises(TableError, match=f"about {len(keys)} different keys"):
            text.read()
    with small_sizes(sparse_values=100 * len(keys) - len(lines)):
        assert KeyedText(BytesIO(lines.encode()), "a.jsonl").read() == lines.encode()
