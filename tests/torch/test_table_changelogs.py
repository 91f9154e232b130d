"""Changelogs of tables that keep their history: which rows came and went between two commits."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.tables.kinds import Changed, KeptTable, TableKind, some, values
from torch_table_loader import ConfigError, ConfigTypeError, ResumeError, TableLoader

DOES = ["append", "append", "delete", "delete", "restore", "remove", "rewrite", "compact"]
histories = st.lists(
    st.fixed_dictionaries(
        {"does": st.lists(st.sampled_from(DOES), min_size=1, max_size=3), "seed": st.integers(0, 99)}
    ),
    min_size=1,
    max_size=6,
)
WHOLE: dict[str, Any] = {"split_size": None, "footers": "eager"}
jobs = st.fixed_dictionaries(
    {
        "num_workers": st.integers(0, 3),
        "batch_size": st.integers(1, 7),
        "shuffle": st.sampled_from([False, True, "rows"]),
        "split_size": st.sampled_from([None, 5]),
        "footers": st.sampled_from(["eager", "lazy"]),
    }
).map(lambda job: job | WHOLE if job["shuffle"] == "rows" else job)


def change(table: KeptTable, does: str, seed: int, first: int) -> None:
    """Do one thing to a table, if it can be done."""
    if does == "append":
        table.append(some(first, first + seed % 12), form=seed)
        return
    if not table.untouched:
        return
    path = table.untouched[seed % len(table.untouched)]
    if does == "delete" and table.num_rows(path):
        others = {each: [0] for each in table.untouched[:1] if table.num_rows(each)}
        table.delete(others | {path: [at for at in range(table.num_rows(path)) if (at + seed) % 3 == 0]}, seed)
    elif does == "restore" and table.restores and table.gone(path):
        table.mask(path, sorted(table.gone(path))[1:])
    elif does == "compact":
        table.compact([path])
    elif does in ("remove", "rewrite"):
        rows = table.live(path)
        table.remove(path)
        if does == "rewrite":
            table.append(rows[seed % 2 :], group=3)


def written(table: KeptTable, history: Sequence[dict[str, Any]]) -> list[Counter[int]]:
    """Make the commits of a history; return the rows after each."""
    found, first = [], 0
    for number, commit in enumerate(history):
        for does in commit["does"]:
            change(table, does, commit["seed"] + number, first)
            first += 20
        table.commit()
        found.append(values(table))
    return found


@pytest.mark.parametrize("num_ranks", [1, 3])
@settings(max_examples=examples(20))
@given(history=histories, job=jobs, newest=st.booleans(), data=st.data())
@daily(2)
def test_a_changelog_makes_one_table_of_the_other(
    kind: TableKind,
    num_ranks: int,
    history: list[dict[str, Any]],
    job: dict[str, Any],
    newest: bool,
    data: st.DataObject,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = kind.new(Path(folder), newest=newest)
        after = written(table, history)
        first = data.draw(st.integers(0, len(after) - 1), label="first")
        last = data.draw(st.integers(first, len(after) - 1), label="last")
        ranks = [
            kind.changelog(table.where, **kind.after(first, last), num_ranks=num_ranks, rank=rank, **job)
            for rank in range(num_ranks)
        ]
        batches = [list(loader) for loader in ranks]
        assert [len(each) for each in batches] == [len(loader) for loader in ranks]
        log = kind.changes(batch for each in batches for batch in each)
        ids = range(kind.at(first + 1), kind.at(last + 1))
        assert kind.applied(after[first], log, ids) == after[first + 1 : last + 1]
        counted = [commit for commit in ids if commit not in table.replacing]
        assert {commit for *_, commit in log} <= set(counted)
        found = kind.ordinals(batch for each in batches for batch in each if "padding" not in batch)
        assert found <= {(commit, ordinal) for ordinal, commit in enumerate(counted)}
        if num_ranks == 1 and job["num_workers"] < 2 and not job["shuffle"]:
            happened = [(commit, what) for _, what, commit in log]
            assert happened == sorted(happened), "what went comes first, commit by commit"


@settings(max_examples=examples(15))
@given(
    history=histories,
    job=jobs,
    newest=st.booleans(),
    chain=st.lists(st.tuples(st.integers(0, 6), st.sampled_from([1, 3])), min_size=1, max_size=3),
)
@daily(1)
def test_a_changelog_goes_on_exactly(
    kind: TableKind, history: list[dict[str, Any]], job: dict[str, Any], newest: bool, chain: list[tuple[int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = kind.new(Path(folder), newest=newest)
        after = written(table, history)

        def ranks(number: int) -> list[TableLoader]:
            even = None if job["shuffle"] == "rows" else "balance"
            options: dict[str, Any] = {**kind.after(0), "even_ranks": even, **job}
            return [kind.changelog(table.where, num_ranks=number, rank=rank, **options) for rank in range(number)]

        loaders, log = ranks(1), list[Changed]()
        for most, number in chain:
            steps = min(most, *map(len, loaders))
            log += [each for loader in loaders for each in kind.changes(islice(loader, steps))]
            state = json.loads(json.dumps(loaders[0].state_dict()))
            loaders = ranks(number)
            for loader in loaders:
                loader.load_state_dict(state)
        log += [each for loader in loaders for each in kind.changes(loader)]
        assert kind.applied(after[0], log, map(kind.at, range(1, len(after)))) == after[1:]


def two_commits(kind: TableKind, root: Path) -> KeptTable:
    table = kind.new(root)
    path = table.append(some(0, 20), group=5)
    table.commit()
    table.delete({path: range(0, 20, 5)})
    table.append(some(20, 24))
    table.commit()
    return table


def test_what_went_comes_before_what_came(kind: TableKind, tmp_path: Path) -> None:
    loader = kind.changelog(two_commits(kind, tmp_path).where, **kind.after(0), num_workers=0)
    assert kind.changes(loader) == [
        *((x, kind.went, kind.at(1)) for x in (0, 5, 10, 15)),
        *((x, kind.came, kind.at(1)) for x in (20, 21, 22, 23)),
    ]


@pytest.mark.parametrize("worker_type", ["thread", "process"])
@daily(2)
def test_a_state_goes_on_in_its_own_changelog(kind: TableKind, tmp_path: Path, worker_type: str) -> None:
    table = two_commits(kind, tmp_path)
    options: dict[str, Any] = {**kind.after(0), "worker_type": worker_type, "batch_size": 3}
    loader = kind.changelog(table.where, **options)
    batches = iter(loader)
    seen = kind.changes([next(batches)])
    state = json.loads(json.dumps(loader.state_dict()))
    table.remove(table.untouched[0])
    table.commit()
    newer = kind.changelog(table.where, **options)
    assert len(newer) > len(loader)
    newer.load_state_dict(state)
    assert sorted(x for x, *_ in seen + kind.changes(newer)) == [0, 5, 10, 15, 20, 21, 22, 23]


@pytest.mark.parametrize("footers", ["eager", "lazy"])
def test_filters_hold_for_what_went_and_for_what_happened(kind: TableKind, tmp_path: Path, footers: str) -> None:
    table = two_commits(kind, tmp_path)
    options: dict[str, Any] = {**kind.after(0), "footers": footers}
    found = kind.changelog(table.where, filters=(pc.field("x") > 6) & (pc.field("x") < 20), **options)
    assert sorted(kind.changes(found)) == [(10, kind.went, kind.at(1)), (15, kind.went, kind.at(1))]
    assert any("the filter prunes 1 of 2 changed files" in note for note in kind.notes(found))
    went = kind.changelog(table.where, filters=pc.field("_change_type") == kind.went, **options)
    assert sorted(x for x, *_ in kind.changes(went)) == [0, 5, 10, 15]


def test_other_columns_do_not_bring_deleted_rows_back(kind: TableKind, tmp_path: Path) -> None:
    loader = kind.changelog(two_commits(kind, tmp_path).where, **kind.after(0), columns=["s", "x"], batch_size=100)
    [batch] = list(loader)
    assert sorted(zip(batch["x"].tolist(), batch["s"], strict=True)) == [
        (x, f"s{x % 3}") for x in (0, 5, 10, 15, 20, 21, 22, 23)
    ]


def test_commits_that_replace_files_change_nothing(kind: TableKind, tmp_path: Path) -> None:
    table = two_commits(kind, tmp_path)
    rows = values(table)
    whole = table.compact(table.untouched)
    table.commit()
    table.remove(whole)
    table.commit()
    log = kind.changes(kind.changelog(table.where, **kind.after(1)))
    assert sorted(log) == [(x, kind.went, kind.at(3)) for x in sorted(rows)]


def test_deletes_of_fewer_rows_bring_rows_back(kind: TableKind, tmp_path: Path) -> None:
    table = kind.new(tmp_path, newest=True)
    path = table.append(some(0, 10))
    for positions in ([], [1, 2, 3], [3, 4]):
        if positions:
            table.mask(path, positions)
        table.commit()
    back = [*((x, kind.came, kind.at(2)) for x in (1, 2)), (4, kind.went, kind.at(2))]
    for first, log in ((0, [*((x, kind.went, kind.at(1)) for x in (1, 2, 3)), *back]), (1, back)):
        assert sorted(kind.changes(kind.changelog(table.where, **kind.after(first)))) == sorted(log)


def test_a_state_is_of_a_changelog(kind: TableKind, tmp_path: Path) -> None:
    table = kind.new(tmp_path)
    for first in (0, 10):
        table.append(some(first, first + 10))
        table.commit()
    options: dict[str, Any] = {**kind.after(0), "columns": ["x"]}
    state = kind.changelog(table.where, **options).state_dict()
    first = kind.at(0)
    with pytest.raises(
        ResumeError, match=f"the changelog after snapshot {first}, and this is the rows after snapshot {first}"
    ):
        kind.changelog(table.where, **options, changelog=False).load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"changelog": "yes"}, ConfigTypeError, "changelog must be a bool, got str"),
        ({"on_growth": "continue"}, ConfigError, "leave on_growth= out"),
    ],
)
def test_wrong_choices_are_refused(
    kind: TableKind, tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    table = two_commits(kind, tmp_path)
    with pytest.raises(error, match=message):
        kind.changelog(table.where, **kind.after(0), **options)
    with pytest.raises(ConfigError, match=f"after a {kind.noun}; say which by {kind.start}="):
        kind.changelog(table.where)


def test_a_column_of_the_same_name_is_refused(kind: TableKind, tmp_path: Path) -> None:
    table = kind.new(tmp_path, columns={"x": "long", "_change_type": "string"})
    table.append([{"x": 1, "_change_type": "a"}])
    table.commit()
    with pytest.raises(ConfigError, match="a changelog adds a column '_change_type', and the table has one"):
        kind.changelog(table.where, **kind.after(0))
