"""Rows in memory: what comes is what the same rows in Parquet files give."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import tempfile
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.tables.plain import meant_warnings
from torch_table_loader import (
    ConfigError,
    ConfigTypeError,
    MixedDataset,
    ResumeError,
    StructuredDataset,
    TableLoader,
    Vocabulary,
)
from torch_table_loader.errors import StorageError
from torch_table_loader.opening import arrow_source
from torch_table_loader.source.arrow_source import content_hash
from torch_table_loader.testing import check_source, small_sizes

ROWS = 1000
TABLE = pa.table(
    {
        "x": pa.array(range(ROWS), pa.int64()),
        "f": pa.array([None if row % 7 == 0 else row / 4 for row in range(ROWS)], pa.float32()),
        "b": pa.array([row % 3 == 0 for row in range(ROWS)]),
        "s": pa.array([None if row % 5 == 0 else f"row {row}" for row in range(ROWS)]),
        "l": pa.array([list(range(row % 4)) for row in range(ROWS)], pa.list_(pa.int32())),
    }
)
CUT = pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1, 0), TABLE.slice(1, 499), TABLE.slice(500)])

MODES: dict[str, dict[str, Any]] = {
    "order": {},
    "splits": {"shuffle": "splits"},
    "window": {"shuffle": "splits", "shuffle_buffer_size": 64},
    "rows": {"shuffle": "rows", "split_size": None},
    "filter": {"filters": pc.field("b") | (pc.field("x") > 700)},
    "pad": {"shuffle": "splits", "even_ranks": "balance"},
}
COMMON: dict[str, Any] = {"batch_size": 17, "output_format": "dict", "split_size": 60, "row_id": True}


@pytest.fixture(autouse=True)
def small_pieces() -> Iterator[None]:
    with small_sizes(held_group_bytes=1 << 11):
        yield


def _loader(source: Any, **options: Any) -> Any:
    with warnings.catch_warnings(), meant_warnings():
        if isinstance(source, Path):
            return StructuredDataset.create_dataloader(source, **{**COMMON, **options}, check_plan=False)[0]
        return StructuredDataset.create_dataloader(source=source, **{**COMMON, **options}, check_plan=False)[0]


def _world(source: Any, ranks: int, lanes: int, **options: Any) -> list[Any]:
    return [
        _loader(source, **{"num_ranks": ranks, "rank": rank, "num_workers": lanes, "even_ranks": False, **options})
        for rank in range(ranks)
    ]


def _rows(batch: dict[str, list[Any]]) -> list[tuple[Any, ...]]:
    return list(zip(*(map(str, values) for values in batch.values()), strict=True))


def _all(loaders: list[Any]) -> list[tuple[Any, ...]]:
    return [row for loader in loaders for batch in loader for row in _rows(batch)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("ranks", "lanes"), [(1, 0), (1, 3), (3, 2)])
@daily(6)
def test_rows_are_those_of_the_same_table_in_parquet(tmp_path: Path, mode: str, ranks: int, lanes: int) -> None:
    pq.write_table(TABLE, tmp_path / "x.parquet", row_group_size=64)
    stored = _all(_world(tmp_path, ranks, lanes, **MODES[mode]))
    held = _all(_world(CUT, ranks, lanes, **MODES[mode]))
    assert sorted(held) == sorted(stored)
    assert len(set(held)) == len(held) > 300
    if MODES[mode].get("shuffle") == "rows":
        assert held == stored


@pytest.mark.parametrize("mode", ["splits", "window", "rows", "filter"])
@daily(2)
def test_a_state_goes_on_in_another_world(mode: str) -> None:
    options = MODES[mode]
    whole = sorted(_all(_world(TABLE, 1, 1, **options)))
    before = _world(TABLE, 2, 2, **options)
    seen: list[tuple[Any, ...]] = []
    for loader in before:
        batches = iter(loader)
        seen += [row for _ in range(7) for row in _rows(next(batches))]
        del batches
    after = _world(CUT, 3, 1, **options)  # the same rows in other chunks are the same table
    for loader in after:
        loader.load_state_dict(before[0].state_dict())
    assert sorted(seen + _all(after)) == whole


def test_a_state_of_other_rows_is_refused() -> None:
    loader = _loader(TABLE)
    next(iter(loader))
    state = loader.state_dict()
    changed = TABLE.set_column(0, "x", pc.add(TABLE["x"], pa.array([0] * (ROWS - 1) + [1])))
    for other in (changed, TABLE.slice(1), TABLE.rename_columns(["y", *TABLE.column_names[1:]])):
        with pytest.raises(ResumeError):
            _loader(other).load_state_dict(state)
    _loader(CUT).load_state_dict(state)


CELLS = st.one_of(st.none(), st.integers(-3, 3))
KINDS: dict[str, tuple[st.SearchStrategy[Any], pa.DataType]] = {
    "int": (CELLS, pa.int16()),
    "bool": (st.one_of(st.none(), st.booleans()), pa.bool_()),
    "text": (st.one_of(st.none(), st.text("aé", max_size=3)), pa.string()),
    "view": (st.one_of(st.none(), st.text("aé", max_size=20)), pa.string_view()),
    "fixed": (st.one_of(st.none(), st.binary(min_size=2, max_size=2)), pa.binary(2)),
    "lists": (st.one_of(st.none(), st.lists(CELLS, max_size=3)), pa.list_(pa.int32())),
    "pairs": (st.one_of(st.none(), st.tuples(CELLS, CELLS).map(list)), pa.list_(pa.int32(), 2)),
    "struct": (st.one_of(st.none(), st.fixed_dictionaries({"a": CELLS})), pa.struct([("a", pa.int8())])),
    "empty": (st.one_of(st.none(), st.just({})), pa.struct([])),
    "list view": (st.one_of(st.none(), st.lists(CELLS, max_size=3)), pa.list_view(pa.int32())),
    "map": (st.one_of(st.none(), st.dictionaries(st.text("ab", max_size=1), CELLS).map(lambda d: list(d.items()))),
            pa.map_(pa.string(), pa.int32())),
    "dictionary": (st.one_of(st.none(), st.sampled_from(["u", "v"])), pa.dictionary(pa.int8(), pa.string())),
    "null": (st.none(), pa.null()),
}  # fmt: skip


@settings(max_examples=examples(150), deadline=None)
@given(st.data(), st.sampled_from(sorted(KINDS)), st.integers(0, 8), st.integers(0, 8))
def test_the_hash_tells_rows_apart_and_chunks_not(data: st.DataObject, kind: str, one: int, other: int) -> None:
    values, form = KINDS[kind]
    rows = data.draw(st.lists(values, max_size=8))
    array = pa.array(rows, form)
    batch = pa.record_batch({"c": array})

    def hashed(*cuts: int) -> str:
        edges = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
        parts = [batch.slice(a, b - a) for a, b in pairwise(edges)]
        return content_hash(batch.schema, parts)

    whole = hashed()
    assert hashed(one, other) == whole
    padded = pa.concat_arrays([array.slice(len(array)), array])
    assert content_hash(batch.schema, [pa.record_batch({"c": padded})] if rows else []) == whole
    others = data.draw(st.lists(values, max_size=8))
    second = pa.record_batch({"c": pa.array(others, form)})
    same = second.column(0).to_pylist() == array.to_pylist()
    assert (content_hash(batch.schema, [second] if others else []) == whole) == same
    assert content_hash(pa.schema([("d", form)]), [batch]) != whole


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(-3, 3), st.text("ab", max_size=2)), min_size=1, max_size=8), st.data())
@pytest.mark.parametrize("dense", [False, True])
def test_the_hash_tells_unions_apart(dense: bool, values: list[int | str | None], data: st.DataObject) -> None:
    def union(values: list[Any]) -> pa.RecordBatch:
        kinds = pa.array([isinstance(value, str) for value in values]).cast(pa.int8())
        numbers = [value for value in values if not isinstance(value, str)]
        texts = [value for value in values if isinstance(value, str)]
        if dense:
            places = [sum(isinstance(each, str) == isinstance(value, str) for each in values[:place])
                      for place, value in enumerate(values)]  # fmt: skip
            children = [pa.array(numbers, pa.int64()), pa.array(texts, pa.string())]
            array = pa.UnionArray.from_dense(kinds, pa.array(places, pa.int32()), children)
        else:
            children = [pa.array([None if isinstance(value, str) else value for value in values], pa.int64()),
                        pa.array([value if isinstance(value, str) else "unseen" for value in values])]  # fmt: skip
            array = pa.UnionArray.from_sparse(kinds, children)
        return pa.record_batch({"c": array})

    batch = union(values)
    whole = content_hash(batch.schema, [batch])
    cut = data.draw(st.integers(1, len(values)))
    parts = [part for part in (batch.slice(0, cut), batch.slice(cut)) if part.num_rows]
    assert content_hash(batch.schema, parts) == whole
    others = data.draw(st.permutations(values))
    assert (content_hash(batch.schema, [union(others)]) == whole) == (others == values)


def _relation() -> Any:
    return duckdb.from_arrow(TABLE).order("x")


FORMS: dict[str, Callable[[], Any]] = {
    "table": lambda: TABLE,
    "batch": lambda: TABLE.combine_chunks().to_batches()[0],
    "reader, which gives its rows once": CUT.to_reader,
    "dataset of pyarrow": lambda: pds.dataset(TABLE),
    "polars": lambda: pl.from_arrow(TABLE),
    "duckdb": _relation,
    "datasets": lambda: datasets.Dataset(TABLE),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_library_gives_its_rows(form: str) -> None:
    dataset = StructuredDataset.from_arrow(FORMS[form](), output_format="dict", batch_size=128)
    got = [row for batch in dataset for row in zip(*batch.values(), strict=True)]
    assert got == list(zip(*TABLE.to_pydict().values(), strict=True))
    assert dataset.schema.names == TABLE.column_names


def test_a_saved_dataset_of_hugging_face_and_its_selections(tmp_path: Path) -> None:
    datasets.Dataset(TABLE).save_to_disk(str(tmp_path / "saved"), num_shards=3)
    saved = datasets.load_from_disk(str(tmp_path / "saved"))
    for chosen in (saved, saved.select([5, 3, 3, 999]), saved.shuffle(seed=1), saved.filter(lambda row: row["b"])):
        batches = list(StructuredDataset.from_arrow(chosen, columns=["x"], batch_size=99, output_format="dict"))
        assert [x for batch in batches for x in batch["x"]] == list(chosen["x"])
    folder = StructuredDataset(str(tmp_path / "saved/data-*.arrow"), columns=["x"], output_format="dict")
    assert sorted(x for batch in folder for x in batch["x"]) == list(range(ROWS))
    with pytest.raises(ConfigError, match=r"got \.arrow \(.*\.arrow\) and \.json \(dataset_info\.json\)"):
        StructuredDataset(tmp_path / "saved")


def test_frames_of_pandas_with_their_index_and_nulls() -> None:
    frame = pd.DataFrame(
        {
            "whole": pd.array([1, None, 3], dtype="Int64"),
            "kind": pd.Categorical(["u", "v", None]),
            "text": pd.array(["a", None, "c"], dtype="string"),
        }
    )

    def taken(given: Any) -> dict[str, list[Any]]:
        return next(iter(StructuredDataset.from_arrow(given, output_format="dict")))

    expected = {"whole": [1, None, 3], "kind": ["u", "v", None], "text": ["a", None, "c"]}
    assert taken(frame) == expected
    assert taken(frame.set_index(pd.Index([7, 8, 9]))) == expected  # an index without a name is no column
    assert taken(frame[frame["whole"].notna()]) == {"whole": [1, 3], "kind": ["u", None], "text": ["a", "c"]}
    assert taken(frame.set_index(pd.Index([7, 8, 9], name="id"))) == {"id": [7, 8, 9], **expected}
    levels = pd.MultiIndex.from_tuples([(1, "p"), (2, "q"), (3, "r")], names=["a", None])
    assert taken(frame.set_index(levels)) == {"a": [1, 2, 3], **expected}
    codes = StructuredDataset.from_arrow(frame, columns=["whole"], nulls={"whole": -1})
    assert next(iter(codes))["whole"].tolist() == [1, -1, 3]


def test_frames_of_polars_with_views_and_categories() -> None:
    frame = pl.DataFrame(
        {
            "s": ["a string of more than twelve bytes", None, "c"],
            "c": pl.Series(["x", "y", "x"], dtype=pl.Categorical),
            "e": pl.Series(["p", "q", "p"], dtype=pl.Enum(["q", "p"])),
            "l": [["u"], [], None],
        }
    )
    for given_form in (frame, pa.table(frame)):  # pyarrow gets string_view from it
        batch = next(iter(StructuredDataset.from_arrow(given_form, output_format="dict")))
        assert batch == frame.to_dict(as_series=False)
    coded = StructuredDataset.from_arrow(frame, columns=["c"], strings={"c": Vocabulary(["y", "x"])})
    assert next(iter(coded))["c"].tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: pl.DataFrame({"a": [1]}).lazy(), r"polars\.LazyFrame; call collect\(\) first"),
        (
            lambda: datasets.DatasetDict({"dev": datasets.Dataset(TABLE)}),
            r"name one of its splits, such as data\['dev'",
        ),
        (lambda: datasets.Dataset(TABLE).to_iterable_dataset(), "without streaming=True"),
        (lambda: "some/path", r"got str; a path is read by StructuredDataset\(path\)"),
        (lambda: {"a": [1]}, r"got dict; pass pa\.table"),
        (lambda: 7, "from_arrow takes a pyarrow Table, .* got int"),
    ],
)
def test_what_holds_no_rows_is_refused_by_name(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigTypeError, match=said):
        StructuredDataset.from_arrow(make())


def test_columns_that_arrow_cannot_hold_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"pandas\.DataFrame does not give them.*column odd"):
        StructuredDataset.from_arrow(pd.DataFrame({"odd": [1, "x", object()]}))
    with pytest.raises(ConfigError, match="different names, got 'a' 2 times"):
        StructuredDataset.from_arrow(pa.table([[1], [2]], names=["a", "a"]))
    with pytest.raises(ConfigError, match="path= cannot be passed with source="):
        StructuredDataset("p", source=TABLE)


VIEWS = [make(pa.list_(pa.int16())) for make in (pa.list_view, pa.large_list_view)]
LISTS: list[Any] = [[[1, 2], [3]], None, [[], None], [], [[4, 5, 6]], [[7]]]


@pytest.mark.parametrize(
    "kind",
    [
        *VIEWS,
        pa.list_view(pa.large_list(pa.int16())),
        pa.large_list_view(pa.list_view(pa.int16())),
        pa.list_view(pa.large_list_view(pa.int16())),
        pa.list_(pa.list_view(pa.int16())),
        pa.large_list(pa.large_list_view(pa.int16())),
    ],
    ids=str,
)
def test_list_views_of_lists_come_as_they_are(kind: pa.DataType) -> None:
    check_values(pa.array(LISTS, kind))


@pytest.mark.parametrize("kind", VIEWS, ids=str)
def test_list_views_inside_of_other_types_come_as_they_are(kind: pa.DataType) -> None:
    lists = pa.array(LISTS, kind)
    nulls = pa.array([False, False, True, False, False, False])
    check_values(pa.StructArray.from_arrays([lists, pa.array(range(6))], names=["l", "n"], mask=nulls))
    check_values(pa.array([None if each is None else [("k", each)] for each in LISTS], pa.map_(pa.string(), kind)))
    check_values(pa.array([None if each is None else [each, None] for each in LISTS], pa.list_(kind, 2)))


def check_values(array: pa.Array) -> None:
    """Check what comes of an array, whole, in slices and in an order of its own."""
    turned = pa.chunked_array([array.slice(3), array.slice(1, 2)])
    for column in (pa.chunked_array([array]), turned):
        dataset = StructuredDataset.from_arrow(
            pa.table({"a": column}), output_format="arrow", batch_size=2, check_plan=False
        )
        batches = list(TableLoader(dataset))
        assert [value for batch in batches for value in batch.column("a").to_pylist()] == column.to_pylist()
        for batch in batches:
            batch.validate(full=True)


def test_what_comes_may_be_written_to() -> None:
    values = np.arange(64, dtype=np.int64)
    table = pa.table({"x": values, "l": pa.FixedSizeListArray.from_arrays(pa.array(values.repeat(2)), 2)})
    for form in ("torch", "numpy"):
        dataset = StructuredDataset.from_arrow(table, batch_size=16, output_format=form)
        for batch in dataset:
            for column in batch.values():
                column[:] = -1
    assert values.tolist() == table["x"].to_pylist() == list(range(64))


def test_the_source_keeps_the_contract() -> None:
    check_source(arrow_source(TABLE))
    check_source(arrow_source(TABLE.slice(0, 0)))
    assert len(StructuredDataset.from_arrow(TABLE.slice(0, 0))) == 0


@pytest.mark.slow
def test_processes_share_one_file_that_goes_with_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    loader = _loader(TABLE, num_workers=2, worker_type="spawn")
    assert sorted(_all([loader])) == sorted(_all([_loader(TABLE)]))
    assert len(list(tmp_path.iterdir())) == 1
    assert next(tmp_path.iterdir()).stat().st_mode & 0o077 == 0
    source = arrow_source(TABLE)
    data = pickle.dumps(source), pickle.dumps(source)
    assert len(list(tmp_path.iterdir())) == 2
    again = pickle.loads(data[1])  # noqa: S301
    assert pickle.loads(pickle.dumps(again)).storage.table.num_rows == ROWS  # noqa: S301
    assert len(list(tmp_path.iterdir())) == 2
    assert again.fingerprint == source.fingerprint
    del source
    loader = None
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert again.storage.table.rows(3, 5, ["x"]).to_pydict() == {"x": [3, 4]}  # it is mapped
    with pytest.raises(ConfigError, match="call from_arrow in this process"):
        pickle.loads(data[0])  # noqa: S301
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(StorageError, match='worker_type="thread", or let TMPDIR'):
        pickle.dumps(arrow_source(TABLE))


@pytest.mark.parametrize("size", [0, 8, 100, -1])
def test_a_file_between_processes_that_was_cut_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = arrow_source(TABLE)
    data = pickle.dumps(source)
    [path] = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o400  # nobody writes to it by accident
    path.chmod(0o600)
    os.truncate(path, size if size >= 0 else path.stat().st_size + size)
    with pytest.raises(StorageError, match=rf"{path.name}.*cut it.*TMPDIR"):
        pickle.loads(data)  # noqa: S301


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_forked_workers_need_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    loader = _loader(TABLE, num_workers=2, worker_type="fork")
    assert sorted(_all([loader])) == sorted(_all([_loader(TABLE)]))
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".arrow"]


def test_tables_in_memory_mix_with_others(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "x.parquet")
    options: dict[str, Any] = {"columns": ["x"], "shuffle": "rows"}
    sources = {
        "memory": StructuredDataset.from_arrow(TABLE, **options),
        "files": StructuredDataset(tmp_path, **options),
    }
    loader, _ = MixedDataset.create_dataloader(
        sources, {"memory": 1, "files": 1}, batch_size=50, stop="first_exhausted"
    )
    assert sum(len(batch["x"]) for batch in loader) > ROWS
