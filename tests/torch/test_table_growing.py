"""A job goes on with a table that grew: what was left of the epoch and what was committed since, each row once."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.states import stages_of, table_of
from tests.tables.kinds import KeptTable, TableKind, rows_of, some, values
from torch_table_loader import ResumeError, TableLoader

parts = st.lists(
    st.fixed_dictionaries(
        {
            "files": st.lists(st.integers(0, 9), max_size=3),
            "num_ranks": st.sampled_from([1, 3]),
            "num_workers": st.integers(0, 3),
            "batch_size": st.integers(1, 7),
            "steps": st.integers(0, 5),
        }
    ),
    min_size=2,
    max_size=4,
)


def loaders(kind: TableKind, table: KeptTable, **options: Any) -> list[TableLoader]:
    return kind.loaders(table.where, **{"columns": ["x"], "batch_size": 3, "on_growth": "continue", **options})


def make(kind: TableKind, table: KeptTable, **options: Any) -> TableLoader:
    [loader] = loaders(kind, table, **{"shuffle": "splits", **options})
    return loader


def add(table: KeptTable, start: int, stop: int) -> int:
    """Append a file of rows, and commit."""
    table.append(some(start, stop))
    return table.commit()


def ten_rows(kind: TableKind, root: Path) -> KeptTable:
    table = kind.new(root)
    add(table, 0, 10)
    return table


@settings(max_examples=examples(4))
@given(
    life=parts,
    footers=st.sampled_from(["eager", "lazy"]),
    shuffle=st.sampled_from([False, True, "rows"]),
    filters=st.sampled_from([None, None, pc.field("k") < 5]),
    newest=st.booleans(),
)
def test_every_row_of_a_table_that_grows_comes_once(
    kind: TableKind, life: list[dict[str, Any]], footers: str, shuffle: Any, filters: Any, newest: bool
) -> None:
    by_rows = shuffle == "rows"
    shared: dict[str, Any] = {"shuffle": shuffle, "filters": filters, "even_ranks": "pad" if by_rows else "balance"}
    shared |= {} if by_rows else {"footers": footers}
    state: Any = None
    seen: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        table, total = kind.new(Path(folder), newest=newest), 7
        path = table.append(some(0, 7), group=3)
        table.delete({path: [2]})  # it holds in all that follow
        for part in life:
            for size in part["files"]:
                table.append(some(total, total + size))
                total += size
            commit = table.commit()
            sizes = {name: part[name] for name in ("num_ranks", "num_workers", "batch_size")}
            ranks = loaders(kind, table, **sizes, **shared)
            for loader in ranks:
                if state is not None:
                    loader.load_state_dict(state)
                assert kind.read(loader) == commit
                seen += rows_of(loader, None if part is life[-1] else part["steps"])
            states = [loader.state_dict() for loader in ranks]
            assert all(each == states[0] for each in states)  # ranks take equally many steps
            state = json.loads(json.dumps(states[0]))
        rows = table.live()
    expected = [row["x"] for row in rows if filters is None or (row["k"] is not None and row["k"] < 5)]
    assert sorted(seen) == sorted(expected)


@pytest.mark.parametrize("footers", ["eager", "lazy"])
@pytest.mark.parametrize("split_deletes", [False, True])
@daily(2)
def test_an_epoch_goes_on_over_newer_commits_and_other_worlds(
    kind: TableKind, tmp_path: Path, split_deletes: bool, footers: str
) -> None:
    table = ten_rows(kind, tmp_path)
    path = table.append(some(10, 20))
    table.commit()
    table.delete({path: [3]})
    first = table.commit()
    options: dict[str, Any] = {"split_deletes": split_deletes, "footers": footers, "shuffle": "splits"}
    options |= {"even_ranks": "balance", "shuffle_buffer_size": 4}
    seen: list[int] = []
    state: Any = None
    newest = first
    for stage, num_ranks in enumerate((2, 3, 1, 2)):
        ranks = loaders(kind, table, num_ranks=num_ranks, **options)
        for loader in ranks:
            loader.set_epoch(1)
            if state is not None:
                loader.load_state_dict(state)
            assert kind.read(loader) == newest
            seen += rows_of(loader, None if stage == 3 else 1 + stage % 2)
        states = [loader.state_dict() for loader in ranks]
        assert all(each == states[0] for each in states)
        state = json.loads(json.dumps(states[0]))
        if stage < 3:
            newest = add(table, 20 + 10 * stage, 30 + 10 * stage)
    assert sorted(seen) == [x for x in range(50) if x != 13]
    known = [dict(stage["extent"])["snapshot_id"] for stage in stages_of(state)[:-1]]
    assert known[0] == first
    assert table_of(state)["snapshot_id"] not in known
    later = make(kind, table, **options)
    later.load_state_dict(state)
    assert rows_of(later) == []
    later.set_epoch(2)
    assert sorted(rows_of(later)) == [x for x in range(50) if x != 13]


def test_a_state_of_two_commits_loads_without_the_option_too(kind: TableKind, tmp_path: Path) -> None:
    table = ten_rows(kind, tmp_path)
    loader = make(kind, table)
    seen = rows_of(loader, 2)
    second = add(table, 10, 20)
    newer = make(kind, table)
    newer.load_state_dict(loader.state_dict())
    seen += rows_of(newer, 2)
    state = newer.state_dict()
    add(table, 20, 30)
    plain = make(kind, table, on_growth=None, num_workers=1)
    plain.load_state_dict(state)
    assert kind.read(plain) == second
    assert sorted(seen + rows_of(plain)) == list(range(20))
    pinned = make(kind, table, on_growth=None, **kind.only(1))
    pinned.load_state_dict(state)
    assert sorted(seen + rows_of(pinned)) == list(range(20))


def test_a_finished_epoch_goes_on_with_what_came_since(kind: TableKind, tmp_path: Path) -> None:
    table = ten_rows(kind, tmp_path)
    loader = make(kind, table)
    assert len(rows_of(loader)) == 10
    add(table, 10, 17)
    newer = make(kind, table)
    newer.load_state_dict(loader.state_dict())
    assert (len(newer), newer.remaining) == (7, 3)
    assert sorted(rows_of(newer)) == list(range(10, 17))


def test_without_the_option_a_state_goes_on_in_the_table_of_its_own_commit(kind: TableKind, tmp_path: Path) -> None:
    table = ten_rows(kind, tmp_path)
    loader = make(kind, table, on_growth=None)
    seen = rows_of(loader, 2)
    add(table, 10, 20)
    newer = make(kind, table, on_growth=None)
    newer.load_state_dict(loader.state_dict())
    assert kind.read(newer) == kind.at(0)
    assert sorted(seen + rows_of(newer)) == list(range(10))


def test_reads_of_what_was_appended_go_on_too(kind: TableKind, tmp_path: Path) -> None:
    table = ten_rows(kind, tmp_path)
    add(table, 10, 20)
    loader = make(kind, table, **kind.after(0))
    seen = rows_of(loader, 2)
    add(table, 20, 30)
    newer = make(kind, table, **kind.after(0))
    newer.load_state_dict(loader.state_dict())
    assert sorted(seen + rows_of(newer)) == list(range(10, 30))


def test_files_that_were_rewritten_since_are_refused_by_the_commit_that_did_it(kind: TableKind, tmp_path: Path) -> None:
    table = ten_rows(kind, tmp_path)
    add(table, 10, 20)
    loader = make(kind, table)
    rows_of(loader, 1)
    table.compact(table.files)
    rewritten = table.commit()
    said = {"iceberg": "replace", "delta": "unknown"}[kind.name]
    with pytest.raises(ResumeError, match=rf"{kind.noun} {rewritten}: {said}.*2 of its files are gone") as found:
        make(kind, table).load_state_dict(loader.state_dict())
    assert f"pass {kind.option}={kind.at(1)} and no on_growth" in str(found.value)


@pytest.mark.parametrize("newest", [False, True])
def test_a_file_of_which_more_rows_were_deleted_since_is_refused(kind: TableKind, tmp_path: Path, newest: bool) -> None:
    table = kind.new(tmp_path, newest=newest)
    path = table.append(some(0, 10))
    table.delete({path: [1]})
    table.commit()
    loader = make(kind, table)
    rows_of(loader, 1)
    add(table, 10, 20)
    table.delete({path: [5]})
    deleted = table.commit()
    said = {"iceberg": "overwrite", "delta": "unknown"}[kind.name]
    with pytest.raises(
        ResumeError, match=rf"{kind.noun} {deleted}: {said}.*rows of 1 of its files were deleted since"
    ) as found:
        make(kind, table).load_state_dict(loader.state_dict())
    assert f"pass {kind.option}={kind.at(0)} and no on_growth" in str(found.value)


@pytest.mark.parametrize("shuffle", [True, "rows"])
@pytest.mark.parametrize("worker_type", ["thread", "process"])
@daily(2)
def test_deletes_of_the_older_commit_hold_in_the_newer_one(
    kind: TableKind, tmp_path: Path, shuffle: Any, worker_type: str
) -> None:
    table = kind.new(tmp_path)
    path = table.append(some(0, 20), group=6)
    table.append(some(20, 30))
    table.commit()
    table.delete({path: [0, 7, 19]})
    table.delete_equal(["k"], [{"k": 4}], partition_of=path)
    table.commit()
    options: dict[str, Any] = {"shuffle": shuffle, "batch_size": 4, "num_workers": 2, "worker_type": worker_type}
    options |= {"split_deletes": True, "row_id": True}
    loader = make(kind, table, **options)
    seen, state = rows_of(loader, 3), loader.state_dict()
    add(table, 30, 45)
    for part in loaders(kind, table, num_ranks=2, **options):
        part.load_state_dict(json.loads(json.dumps(state)))
        seen += rows_of(part)
    assert sorted(seen) == sorted(values(table).elements())


def test_a_commit_that_cannot_be_read_any_more_is_refused(kind: TableKind, tmp_path: Path) -> None:
    table = ten_rows(kind, tmp_path)
    loader = make(kind, table)
    rows_of(loader, 1)
    add(table, 10, 20)
    table.forget()
    first = kind.at(0)
    said = {"iceberg": f"the table has no snapshot {first}", "delta": ".*its log was cleaned up"}[kind.name]
    with pytest.raises(ResumeError, match=f"state is of snapshot {first}, which cannot be read: {said}"):
        make(kind, table).load_state_dict(loader.state_dict())
