"""Changelogs of Delta Lake: which rows came and went between two versions."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.delta import COLUMNS, DeltaWriter, some
from tests.laws.effort import examples
from tests.torch.tables import meant_warnings
from torch_table_loader import ConfigError, ConfigTypeError, DeltaDataset, ResumeError, TableError, TableLoader

Changed = tuple[int, str, int]
"""The value of a row, and what the changelog says of it."""

DOES = ["append", "append", "vector", "restore", "remove", "rewrite", "compact"]
commits = st.lists(
    st.fixed_dictionaries(
        {
            "does": st.lists(st.sampled_from(DOES), min_size=1, max_size=3),
            "seed": st.integers(0, 99),
        }
    ),
    min_size=1,
    max_size=6,
)
jobs = st.fixed_dictionaries(
    {
        "num_workers": st.integers(0, 3),
        "batch_size": st.integers(1, 7),
        "shuffle": st.sampled_from([False, True, "rows"]),
        "footers": st.sampled_from(["eager", "lazy"]),
    }
).map(lambda job: job | {"footers": "eager"} if job["shuffle"] == "rows" else job)


def make(uri: str, **options: Any) -> TableLoader:
    with meant_warnings():
        columns = ["x", "_change_type", "_commit_version"]
        chosen: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "columns": columns, "check_plan": False}
        return DeltaDataset.create_dataloader(uri, **{"changelog": True, **chosen, **options})[0]


def changes(batches: Iterable[Any]) -> list[Changed]:
    found: list[Changed] = []
    for batch in batches:
        rows = zip(batch["x"].tolist(), batch["_change_type"], batch["_commit_version"].tolist(), strict=True)
        marks = batch["padding"].tolist() if "padding" in batch else repeat(False)
        found += [row for row, is_padding in zip(rows, marks, strict=False) if not is_padding]
    return found


def applied(rows: Counter[int], log: Sequence[Changed], versions: Iterable[int]) -> list[Counter[int]]:
    """Return the table at each version, as a changelog says it."""
    found: list[Counter[int]] = []
    for version in versions:
        rows = rows.copy()
        of = [(x, kind) for x, kind, at in log if at == version]
        rows.subtract(x for x, kind in of if kind == "delete")
        assert min(rows.values(), default=0) >= 0, "a row went that was not there"
        rows.update(x for x, kind in of if kind == "insert")
        found.append(+rows)
    return found


def change(table: DeltaWriter, does: str, seed: int, first: int, touched: set[str]) -> None:
    """Do one thing to a table, if it can be done; no file is touched twice in a commit."""
    if does == "append":
        touched.add(table.append(some(first, first + seed % 12), group=4))
        return
    files = [each for each in table.data if each.add["path"] not in touched]
    if not files:
        return
    file = files[seed % len(files)]
    path, rows = file.add["path"], [row for at, row in enumerate(file.rows) if at not in file.deleted]
    touched.add(path)
    if does == "vector" and file.rows:
        table.delete(path, file.deleted | {at for at in range(len(file.rows)) if (at + seed) % 3 == 0}, "ui"[seed % 2])
    elif does == "restore" and file.deleted:
        table.delete(path, sorted(file.deleted)[1:])
    elif does in ("remove", "rewrite", "compact"):
        table.remove(path)
        if does == "remove":
            return
        touched.add(table.append(rows[seed % 2 if does == "rewrite" else 0 :], group=3))
        if does == "compact":
            table.actions[-2:] = [
                {name: {**action, "dataChange": False} for name, action in each.items()} for each in table.actions[-2:]
            ]


def written(table: DeltaWriter, history: Sequence[dict[str, Any]]) -> list[Counter[int]]:
    """Make the commits of a history; return the rows after each."""
    found, first = [], 0
    for number, commit in enumerate(history):
        touched: set[str] = set()
        for does in commit["does"]:
            change(table, does, commit["seed"] + number, first, touched)
            first += 20
        table.commit()
        found.append(Counter(row["x"] for row in table.live()))
    return found


@pytest.mark.parametrize("num_ranks", [1, 3])
@settings(max_examples=examples(20), deadline=None)
@given(history=commits, job=jobs, data=st.data())
def test_a_changelog_makes_one_version_of_the_other(
    num_ranks: int, history: list[dict[str, Any]], job: dict[str, Any], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = DeltaWriter(Path(folder) / "t")
        after = written(table, history)
        first = data.draw(st.integers(0, len(after) - 1), label="first")
        last = data.draw(st.integers(first, len(after) - 1), label="last")
        bounds = {"start_version": first, "end_version": last}
        ranks = [make(table.uri, **bounds, num_ranks=num_ranks, rank=rank, **job) for rank in range(num_ranks)]
        batches = [list(loader) for loader in ranks]
        assert [len(each) for each in batches] == [len(loader) for loader in ranks]
        log = changes(batch for each in batches for batch in each)
        assert applied(after[first], log, range(first + 1, last + 1)) == after[first + 1 : last + 1]
        assert {version for *_, version in log} <= set(range(first + 1, last + 1))
        if num_ranks == 1 and job["num_workers"] < 2 and not job["shuffle"]:
            happened = [(version, kind) for _, kind, version in log]
            assert happened == sorted(happened), "what went comes first, commit by commit"


@settings(max_examples=examples(15), deadline=None)
@given(
    history=commits,
    job=jobs,
    chain=st.lists(st.tuples(st.integers(0, 6), st.sampled_from([1, 3])), min_size=1, max_size=3),
)
def test_a_changelog_continues_exactly(
    history: list[dict[str, Any]], job: dict[str, Any], chain: list[tuple[int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = DeltaWriter(Path(folder) / "t")
        after = written(table, history)

        def ranks(number: int) -> list[TableLoader]:
            even = None if job["shuffle"] == "rows" else "balance"
            options: dict[str, Any] = {"start_version": 0, "even_ranks": even, **job}
            return [make(table.uri, num_ranks=number, rank=rank, **options) for rank in range(number)]

        loaders, log = ranks(1), list[Changed]()
        for most, number in chain:
            steps = min(most, *map(len, loaders))
            log += [each for loader in loaders for each in changes(islice(loader, steps))]
            state = json.loads(json.dumps(loaders[0].state_dict()))
            loaders = ranks(number)
            for loader in loaders:
                loader.load_state_dict(state)
        log += [each for loader in loaders for each in changes(loader)]
        assert applied(after[0], log, range(1, len(after))) == after[1:]


def test_commits_of_delta_rs_of_every_kind(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write_deltalake(uri, pa.table({"x": range(10), "k": [0] * 10}), partition_by=["k"])
    write_deltalake(uri, pa.table({"x": range(10, 14), "k": [1] * 4}), mode="append")
    DeltaTable(uri).delete("x < 3")
    DeltaTable(uri).update({"x": "x + 100"}, predicate="x = 7")
    source = pa.table({"x": [12, 50], "k": [1, 1]})
    merge = DeltaTable(uri).merge(source, "t.x = s.x and t.k = s.k", source_alias="s", target_alias="t")
    merge.when_matched_delete().when_not_matched_insert_all().execute()
    write_deltalake(uri, pa.table({"x": [60, 61], "k": [0, 0]}), mode="append")
    assert DeltaTable(uri).optimize.compact()["numFilesRemoved"] > 1
    write_deltalake(uri, pa.table({"x": [1, 2], "k": [0, 0]}), mode="overwrite")
    DeltaTable(uri).restore(2)
    last = DeltaTable(uri).version()
    at = [Counter(DeltaTable(uri, version=version).to_pyarrow_table()["x"].to_pylist()) for version in range(last + 1)]
    for shuffle in (False, "rows"):
        log = changes(make(uri, start_version=0, shuffle=shuffle))
        assert applied(at[0], log, range(1, last + 1)) == at[1:]


def two_commits(root: Path) -> DeltaWriter:
    table = DeltaWriter(root / "t")
    path = table.append(some(0, 20), group=5)
    table.commit()
    table.delete(path, range(0, 20, 5))
    table.append(some(20, 24))
    table.commit()
    return table


def test_what_went_comes_before_what_came(tmp_path: Path) -> None:
    loader = make(two_commits(tmp_path).uri, start_version=0, num_workers=0)
    assert changes(loader) == [
        *((x, "delete", 1) for x in (0, 5, 10, 15)),
        *((x, "insert", 1) for x in (20, 21, 22, 23)),
    ]


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_state_continues_in_its_own_changelog(tmp_path: Path, worker_type: str) -> None:
    table = two_commits(tmp_path)
    options: dict[str, Any] = {"start_version": 0, "worker_type": worker_type, "batch_size": 3}
    loader = make(table.uri, **options)
    batches = iter(loader)
    seen = changes([next(batches)])
    state = json.loads(json.dumps(loader.state_dict()))
    table.remove(table.data[0].add["path"])
    table.commit()
    newer = make(table.uri, **options)
    assert len(newer) > len(loader)
    newer.load_state_dict(state)
    assert sorted(x for x, *_ in seen + changes(newer)) == [0, 5, 10, 15, 20, 21, 22, 23]


@pytest.mark.parametrize("footers", ["eager", "lazy"])
def test_filters_hold_for_what_went_and_for_what_happened(tmp_path: Path, footers: str) -> None:
    uri = two_commits(tmp_path).uri
    options: dict[str, Any] = {"start_version": 0, "footers": footers}
    found = make(uri, filters=(pc.field("x") > 6) & (pc.field("x") < 20), **options)
    assert sorted(changes(found)) == [(10, "delete", 1), (15, "delete", 1)]
    assert isinstance(found.dataset, DeltaDataset)
    assert "the filter prunes 1 of 2 changed files" in found.dataset.explain().notes
    went = make(uri, filters=pc.field("_change_type") == "delete", **options)
    assert sorted(x for x, *_ in changes(went)) == [0, 5, 10, 15]


def test_a_version_that_went_twice_has_masks_of_its_own(tmp_path: Path) -> None:
    table = DeltaWriter(tmp_path / "t")
    path = table.append(some(0, 10), group=4)
    for positions in ([], [1, 2, 3], [3, 4]):
        if positions:
            table.delete(path, positions)
        table.commit()
    log = changes(make(table.uri, start_version=0))
    assert sorted(log) == sorted(
        [*((x, "delete", 1) for x in (1, 2, 3)), *((x, "insert", 2) for x in (1, 2)), (4, "delete", 2)]
    )


def test_a_table_that_was_replaced_is_refused(tmp_path: Path) -> None:
    table = two_commits(tmp_path)
    for data in list(table.data):
        table.remove(data.add["path"])
    table.partition_by = ["k"]
    table.metadata()
    table.append([{"x": 1, "k": 2, "s": "a"}], {"k": "2"})
    table.commit()
    with pytest.raises(ConfigError, match=r"after version 1 of .* partitioned by other columns.*later start_version"):
        make(table.uri, start_version=1)


def test_a_table_with_a_column_of_that_name_is_refused(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write_deltalake(uri, pa.table({"x": [1], "_change_type": ["a"]}))
    with pytest.raises(ConfigError, match="a changelog adds a column '_change_type'"):
        make(uri, start_version=0)


def test_a_commit_that_was_cleaned_up_is_named(tmp_path: Path) -> None:
    table = two_commits(tmp_path)
    (table.root / "_delta_log" / f"{1:020}.json").rename(tmp_path / "gone.json")
    table.commit()
    with pytest.raises(ConfigError):
        make(table.uri, start_version=0, end_version=1)


def test_a_state_is_of_a_changelog(tmp_path: Path) -> None:
    table = DeltaWriter(tmp_path / "t", COLUMNS)
    for first in (0, 10):
        table.append(some(first, first + 10))
        table.commit()
    state = make(table.uri, start_version=0, columns=["x"]).state_dict()
    with pytest.raises(ResumeError, match="the changelog after snapshot 0, and this is the rows after snapshot 0"):
        make(table.uri, start_version=0, columns=["x"], changelog=False).load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ConfigError, "after a version; say which by start_version="),
        ({"start_version": 0, "changelog": "yes"}, ConfigTypeError, "changelog must be a bool, got str"),
        ({"start_version": 0, "on_growth": "continue"}, ConfigError, "leave on_growth= out"),
    ],
)
def test_wrong_choices_are_refused(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(two_commits(tmp_path).uri, **options)


@pytest.mark.parametrize("torn", [b"", b"{}\n"])
def test_a_commit_that_is_torn_is_named(tmp_path: Path, torn: bytes) -> None:
    table = two_commits(tmp_path)
    table.commit()
    (table.root / "_delta_log" / f"{1:020}.json").write_bytes(torn)
    with pytest.raises(TableError, match=rf"{1:020}\.json must hold the actions of a commit"):
        make(table.uri, start_version=0)
