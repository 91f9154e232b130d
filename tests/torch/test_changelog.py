"""Changelogs of Iceberg: which rows came and went between two snapshots."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog

from tests.iceberg import IcebergWriter, column, some
from tests.laws.effort import examples
from tests.torch.tables import meant_warnings
from torch_table_loader import ConfigError, ConfigTypeError, IcebergDataset, ResumeError, TableLoader

CHANGES = ["_change_type", "_change_ordinal", "_commit_snapshot_id"]
Changed = tuple[int, str, int, int]
"""The value of a row, and what the changelog says of it."""

commits = st.lists(
    st.fixed_dictionaries(
        {
            "does": st.lists(
                st.sampled_from(["append", "append", "position", "vector", "remove", "rewrite"]), min_size=1, max_size=3
            ),
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
        "split_rows": st.sampled_from([None, 5]),
    }
).map(lambda job: job | {"split_rows": None} if job["shuffle"] == "rows" else job)


@dataclass
class SharingWriter(IcebergWriter):
    """Writes no manifest twice, as other writers do: a commit of deletes alone has the data manifest before it."""

    made: dict[str, dict[str, Any]] = field(default_factory=dict)

    def _manifest(self, entries: list[dict[str, Any]], *, deletes: bool) -> dict[str, Any]:
        listed = json.dumps([deletes, entries], default=repr)
        if listed not in self.made:
            self.made[listed] = super()._manifest(entries, deletes=deletes)
        return self.made[listed]


def make(location: str, **options: Any) -> TableLoader:
    with meant_warnings():
        chosen: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "columns": ["x", *CHANGES], "check_plan": False}
        return IcebergDataset.create_dataloader(metadata_location=location, **{"changelog": True, **chosen, **options})[
            0
        ]


def changes(batches: Iterable[Any]) -> list[Changed]:
    found: list[Changed] = []
    for batch in batches:
        names = [list(batch["_change_type"]), batch["_change_ordinal"].tolist(), batch["_commit_snapshot_id"].tolist()]
        rows = zip(batch["x"].tolist(), *names, strict=True)
        marks = batch["padding"].tolist() if "padding" in batch else repeat(False)
        found += [row for row, is_padding in zip(rows, marks, strict=False) if not is_padding]
    return found


def apply(rows: Counter[int], log: Sequence[Changed]) -> list[Counter[int]]:
    """Return the table after each commit of a changelog."""
    found: list[Counter[int]] = []
    for ordinal in range(max((each[2] for each in log), default=-1) + 1):
        rows = rows.copy()
        of = [(x, kind) for x, kind, at, _ in log if at == ordinal]
        rows.subtract(x for x, kind in of if kind == "DELETE")
        assert min(rows.values(), default=0) >= 0, "a row went that was not there"
        rows.update(x for x, kind in of if kind == "INSERT")
        found.append(+rows)
    return found


def live(table: IcebergWriter) -> Counter[int]:
    return Counter(row["x"] for row in table.live())


def change(table: IcebergWriter, does: str, seed: int, first: int) -> None:
    """Do one thing to a table, if it can be done."""
    if does == "append":
        table.append(some(first, first + seed % 12), ["parquet", "orc", "avro"][seed % 3], group=4)
        return
    if not table.data:
        return
    file = table.data[seed % len(table.data)]
    if does in ("remove", "rewrite"):
        rows = [row for row in table.live() if row["x"] in {each[1] for each in file.rows}]
        table.data.remove(file)
        table.deletes = [each for each in table.deletes if each.path != file.path]
        if does == "rewrite":
            table.append(rows[seed % 2 :], group=3)
    elif table.version == 3 and does == "vector":
        before = next((d.positions for d in table.deletes if d.path == file.path), frozenset())
        table.delete_vector(file.path, before | {at for at in range(len(file.rows)) if (at + seed) % 3 == 0})
    elif table.version == 2 and does == "position":
        first_rows = {each.path: [0] for each in table.data[:1] if each.rows}
        table.delete_rows(first_rows | {file.path: [at for at in range(len(file.rows)) if (at + seed) % 4 == 0]})


def written(table: IcebergWriter, history: Sequence[dict[str, Any]]) -> list[Counter[int]]:
    """Make the commits of a history; return the rows after each."""
    found, first = [], 0
    for number, commit in enumerate(history):
        for does in commit["does"]:
            change(table, does, commit["seed"] + number, first)
            first += 20
        table.commit(operation="overwrite")
        found.append(live(table))
    return found


@pytest.mark.parametrize("num_ranks", [1, 3])
@settings(max_examples=examples(20))
@given(history=commits, job=jobs, version=st.sampled_from([2, 3]), data=st.data())
def test_a_changelog_makes_one_snapshot_of_the_other(
    num_ranks: int, history: list[dict[str, Any]], job: dict[str, Any], version: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = SharingWriter(Path(folder), version=version)
        after = written(table, history)
        first = data.draw(st.integers(0, len(after) - 1), label="first")
        last = data.draw(st.integers(first, len(after) - 1), label="last")
        bounds = {"start_snapshot_id": 1001 + first, "end_snapshot_id": 1001 + last}
        ranks = [make(table.metadata, **bounds, num_ranks=num_ranks, rank=rank, **job) for rank in range(num_ranks)]
        batches = [list(loader) for loader in ranks]
        assert [len(each) for each in batches] == [len(loader) for loader in ranks]
        log = changes(batch for each in batches for batch in each)
        states = apply(after[first], log)
        assert (states or [after[first]])[-1] == after[last]
        for ordinal, state in enumerate(states):
            assert state == after[first + 1 + ordinal]
        assert all(snapshot == 1002 + first + ordinal for _, _, ordinal, snapshot in log)
        if num_ranks == 1 and job["num_workers"] < 2 and not job["shuffle"]:
            happened = [(ordinal, kind) for _, kind, ordinal, _ in log]
            assert happened == sorted(happened), "what went comes first, commit by commit"


@settings(max_examples=examples(15))
@given(
    history=commits,
    job=jobs,
    version=st.sampled_from([2, 3]),
    chain=st.lists(st.tuples(st.integers(0, 6), st.sampled_from([1, 3])), min_size=1, max_size=3),
)
def test_a_changelog_goes_on_exactly(
    history: list[dict[str, Any]], job: dict[str, Any], version: int, chain: list[tuple[int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = SharingWriter(Path(folder), version=version)
        after = written(table, history)

        def ranks(number: int) -> list[TableLoader]:
            even = None if job["shuffle"] == "rows" else "balance"
            options: dict[str, Any] = {"start_snapshot_id": 1001, "even_ranks": even, **job}
            return [make(table.metadata, num_ranks=number, rank=rank, **options) for rank in range(number)]

        loaders, log = ranks(1), list[Changed]()
        for most, number in chain:
            steps = min(most, *map(len, loaders))
            log += [each for loader in loaders for each in changes(islice(loader, steps))]
            state = json.loads(json.dumps(loaders[0].state_dict()))
            loaders = ranks(number)
            for loader in loaders:
                loader.load_state_dict(state)
        log += [each for loader in loaders for each in changes(loader)]
        assert (apply(after[0], log) or [after[0]])[-1] == after[-1]


def two_commits(root: Path) -> IcebergWriter:
    table = SharingWriter(root)
    file = table.append(some(0, 20), group=5)
    table.commit()
    table.delete_rows({file: range(0, 20, 5)})
    table.append(some(20, 24))
    table.commit(operation="overwrite")
    return table


def test_what_went_comes_before_what_came(tmp_path: Path) -> None:
    loader = make(two_commits(tmp_path).metadata, start_snapshot_id=1001, num_workers=0)
    assert changes(loader) == [
        *((x, "DELETE", 0, 1002) for x in (0, 5, 10, 15)),
        *((x, "INSERT", 0, 1002) for x in (20, 21, 22, 23)),
    ]


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_state_goes_on_in_its_own_changelog(tmp_path: Path, worker_type: str) -> None:
    table = two_commits(tmp_path)
    options: dict[str, Any] = {"start_snapshot_id": 1001, "worker_type": worker_type, "batch_size": 3}
    loader = make(table.metadata, **options)
    batches = iter(loader)
    seen = changes([next(batches)])
    state = json.loads(json.dumps(loader.state_dict()))
    table.data.clear()
    table.commit(operation="delete")
    newer = make(table.metadata, **options)
    assert len(newer) > len(loader)
    newer.load_state_dict(state)
    assert sorted(x for x, *_ in seen + changes(newer)) == [0, 5, 10, 15, 20, 21, 22, 23]


@pytest.mark.parametrize("footers", ["eager", "lazy"])
def test_filters_hold_for_what_went_and_for_what_happened(tmp_path: Path, footers: str) -> None:
    location = two_commits(tmp_path).metadata
    options: dict[str, Any] = {"start_snapshot_id": 1001, "footers": footers}
    assert sorted(changes(make(location, filters=pc.field("x") > 6, **options)))[:2] == [
        (10, "DELETE", 0, 1002),
        (15, "DELETE", 0, 1002),
    ]
    went = make(location, filters=pc.field("_change_type") == "DELETE", **options)
    assert sorted(x for x, *_ in changes(went)) == [0, 5, 10, 15]


def test_other_columns_do_not_bring_deleted_rows_back(tmp_path: Path) -> None:
    loader = make(two_commits(tmp_path).metadata, start_snapshot_id=1001, columns=["s", "x"], batch_size=100)
    [batch] = list(loader)
    assert sorted(zip(batch["x"].tolist(), batch["s"], strict=True)) == [
        (x, f"s{x % 3}") for x in (0, 5, 10, 15, 20, 21, 22, 23)
    ]


def test_commits_that_replace_files_change_nothing(tmp_path: Path) -> None:
    table = two_commits(tmp_path)
    rows = table.live()
    table.data.clear()
    table.deletes.clear()
    table.append(rows)
    table.commit(operation="replace")
    table.data.clear()
    table.commit(operation="delete")
    log = changes(make(table.metadata, start_snapshot_id=1002))
    assert sorted(log) == [(x, "DELETE", 0, 1004) for x in sorted(row["x"] for row in rows)]


def test_deletes_reach_files_of_older_manifests(tmp_path: Path) -> None:
    table = SharingWriter(tmp_path)
    file = table.append(some(0, 10))
    table.commit()
    table.delete_rows({file: [4]})
    table.commit(operation="delete")
    assert len(table.made) == 2, "one of data and one of deletes"
    assert changes(make(table.metadata, start_snapshot_id=1001)) == [(4, "DELETE", 0, 1002)]


def test_a_vector_of_fewer_rows_brings_rows_back(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path, version=3)
    file = table.append(some(0, 10), group=4)
    table.delete_vector(file, [1, 2, 3])
    table.commit()
    table.delete_vector(file, [3, 4])
    table.commit(operation="overwrite")
    log = changes(make(table.metadata, start_snapshot_id=1001))
    assert sorted(log) == [(1, "INSERT", 0, 1002), (2, "INSERT", 0, 1002), (4, "DELETE", 0, 1002)]


def test_equality_deletes_are_refused_where_they_are_made_alone(tmp_path: Path) -> None:
    """Those that were there before say, with the rest, which rows lived."""
    table = IcebergWriter(tmp_path)
    table.append(some(0, 10))
    table.commit()
    table.delete_keys([2], [{"k": 1}])
    table.commit(operation="delete")
    file = table.append(some(10, 20))
    table.commit()
    table.delete_rows({table.data[0].path: [0, 1, 2], file: [0]})
    table.commit(operation="delete")
    table.data.pop(0)
    table.commit(operation="delete")
    with pytest.raises(
        ConfigError, match=r"snapshot 1002 deletes rows of .* by equality deletes.*end_snapshot_id=1001"
    ):
        make(table.metadata, start_snapshot_id=1001)
    log = changes(make(table.metadata, start_snapshot_id=1002))
    assert sorted(log) == sorted(
        [
            *((x, "INSERT", 0, 1003) for x in range(10, 20)),
            *((x, "DELETE", 1, 1004) for x in (0, 2, 10)),
            *((x, "DELETE", 2, 1005) for x in (3, 4, 5, 7, 8, 9)),
        ]
    )


def test_a_state_is_of_a_changelog(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path)
    for first in (0, 10):
        table.append(some(first, first + 10))
        table.commit()
    state = make(table.metadata, start_snapshot_id=1001, columns=["x"]).state_dict()
    with pytest.raises(
        ResumeError, match="the changelog after snapshot 1001, and this is the rows after snapshot 1001"
    ):
        make(table.metadata, start_snapshot_id=1001, columns=["x"], changelog=False).load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ConfigError, "say which by start_snapshot_id="),
        ({"start_snapshot_id": 1001, "changelog": "yes"}, ConfigTypeError, "changelog must be a bool, got str"),
        ({"start_snapshot_id": 1001, "on_growth": "continue"}, ConfigError, "leave on_growth= out"),
    ],
)
def test_wrong_choices_are_refused(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(two_commits(tmp_path).metadata, **options)


def test_a_column_of_the_same_name_is_refused(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path, columns=(column(1, "x", "long"), column(2, "_change_type", "string")))
    table.append([{"x": 1, "_change_type": "a"}])
    table.commit()
    with pytest.raises(ConfigError, match="a changelog adds a column '_change_type', and the table has one"):
        make(table.metadata, start_snapshot_id=1001)


def test_what_pyiceberg_writes_copies_rows(tmp_path: Path) -> None:
    """It deletes and overwrites by writing the rest of a file anew, which goes and comes."""
    catalog = load_catalog("here", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", pa.schema([("x", pa.int64())]))
    ids, after = list[int](), list[Counter[int]]()

    def committed() -> None:
        current = table.current_snapshot()
        assert current is not None
        ids.append(current.snapshot_id)
        after.append(Counter(table.scan().to_arrow()["x"].to_pylist()))

    table.append(pa.table({"x": range(10)}))
    committed()
    table.append(pa.table({"x": range(10, 15)}))
    committed()
    table.delete("x = 3 or x = 12")
    committed()
    table.overwrite(pa.table({"x": [100, 101]}), overwrite_filter="x < 5")
    committed()
    for first in range(len(ids)):
        log = changes(make(table.metadata_location, start_snapshot_id=ids[first]))
        assert (apply(after[first], log) or [after[first]])[-1] == after[-1]
