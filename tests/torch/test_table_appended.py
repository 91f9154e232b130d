"""Reads of what was appended to a table between two of its commits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from tests.effort import daily
from tests.states import table_of
from tests.tables.kinds import KeptTable, TableKind, rows_of, some
from torch_table_loader import ConfigError, ResumeError, TableLoader


def written(kind: TableKind, root: Path, num_commits: int = 5) -> KeptTable:
    """Make a table of commits of ten rows each, the second of which deletes too."""
    table = kind.new(root)
    for number in range(num_commits):
        path = table.append(some(10 * number, 10 * number + 10))
        if number == 1:
            table.delete_equal(["k"], [{"k": 4}], partition_of=path)
        table.commit()
    return table


def make(kind: TableKind, table: KeptTable, **options: Any) -> TableLoader:
    return kind.loader(table.where, **{"batch_size": 4, "num_workers": 2, "columns": ["x"], **options})


@pytest.mark.parametrize(
    ("shuffle", "footers"), [(False, "eager"), (True, "eager"), ("rows", "eager"), (False, "lazy"), (True, "lazy")]
)
@pytest.mark.parametrize(("start", "end", "rows"), [(1, 4, (20, 50)), (2, 3, (30, 40)), (3, 3, (0, 0))])
@daily(10)
def test_the_rows_after_one_commit_up_to_another(
    kind: TableKind, tmp_path: Path, shuffle: Any, footers: str, start: int, end: int, rows: tuple[int, int]
) -> None:
    table = written(kind, tmp_path, 6)
    options: dict[str, Any] = {**kind.after(start, end), "shuffle": shuffle, "footers": footers}
    loaders = [make(kind, table, num_ranks=2, rank=rank, **options) for rank in range(2)]
    assert sorted(x for loader in loaders for x in rows_of(loader)) == list(range(*rows))
    assert kind.read(loaders[0]) == kind.at(end)


def test_the_end_is_the_newest_commit_or_what_is_chosen(kind: TableKind, tmp_path: Path) -> None:
    table = written(kind, tmp_path)
    assert sorted(rows_of(make(kind, table, **kind.after(2)))) == list(range(30, 50))
    assert sorted(rows_of(make(kind, table, **kind.after(2), **kind.only(3)))) == list(range(30, 40))
    assert sorted(rows_of(make(kind, table, **kind.after(2), shuffle="rows"))) == list(range(30, 50))


def test_filters_rule_appended_files_out_and_hold_for_rows(kind: TableKind, tmp_path: Path) -> None:
    options: dict[str, Any] = {**kind.after(1), "filters": pc.field("x") < 33, "plan_cache": str(tmp_path / "plans")}
    table, other = written(kind, tmp_path / "a"), written(kind, tmp_path / "b")
    for loader in (make(kind, table, **options), make(kind, table, **options), make(kind, other, **options)):
        assert sorted(rows_of(loader)) == list(range(20, 33))
        assert any(re.search("prunes 1 of 3 (appended )?files", note) for note in kind.notes(loader))


def test_files_that_were_compacted_come_as_they_were_appended(kind: TableKind, tmp_path: Path) -> None:
    """A compaction merges files of before and after the start, and moves none of their rows."""
    table = written(kind, tmp_path, 3)
    table.compact(table.files[1:])
    compacted = table.commit()
    table.append(some(30, 40))
    table.commit()
    loader = make(kind, table, **kind.after(1))
    assert sorted(rows_of(loader)) == list(range(20, 40))
    assert any(f"{compacted}, which replace files" in note for note in kind.notes(loader))


@pytest.mark.parametrize("newest", [False, True])
def test_deletes_in_between_are_refused_by_their_commit(kind: TableKind, tmp_path: Path, newest: bool) -> None:
    table = kind.new(tmp_path, newest=newest)
    path = table.append(some(0, 10))
    table.commit()
    table.delete({path: [3]})
    table.commit()
    table.append(some(10, 20))
    table.commit()
    first, second, third = map(kind.at, range(3))
    said = rf"{kind.noun} {second} of .*, between {first} and {third}, removes or changes rows \("
    with pytest.raises(ConfigError, match=said) as found:
        make(kind, table, **kind.after(0))
    assert f"{kind.end}={first}" in str(found.value)
    assert f"{kind.start}={second}" in str(found.value)
    assert sorted(rows_of(make(kind, table, **kind.after(1)))) == list(range(10, 20))


def test_wrong_choices_are_refused(kind: TableKind, tmp_path: Path) -> None:
    table = written(kind, tmp_path)
    start, end = kind.at(2), kind.at(3)
    for options, message in (
        (
            {kind.end: end},
            f"{kind.end}={end} is the end of an interval that {kind.start} begins, got it with no {kind.start}",
        ),
        ({**kind.after(2, 3), **kind.only(3)}, f"got it with {kind.option}, which names the same"),
        ({kind.start: str(start)}, f"{kind.start} must be an int"),
    ):
        with pytest.raises(ConfigError, match=message):
            make(kind, table, **options)


@pytest.mark.parametrize("shuffle", [False, True, "rows"])
def test_a_state_is_pinned_to_both_ends(kind: TableKind, tmp_path: Path, shuffle: Any) -> None:
    table = written(kind, tmp_path)
    loader = make(kind, table, **kind.after(1), shuffle=shuffle)
    seen = rows_of(loader, 3)
    state = json.loads(json.dumps(loader.state_dict()))
    assert (table_of(state)["start_snapshot_id"], table_of(state)["snapshot_id"]) == (kind.at(1), kind.at(4))
    table.append(some(50, 60))
    table.commit()
    newer = make(kind, table, **kind.after(1), shuffle=shuffle)
    assert kind.read(newer) == kind.at(5)
    newer.load_state_dict(state)
    assert kind.read(newer) == kind.at(4)
    assert sorted(seen + rows_of(newer)) == list(range(20, 50))
    grown = make(kind, table, **kind.after(1), shuffle=shuffle, on_growth="continue")
    grown.load_state_dict(state)
    assert sorted(seen + rows_of(grown)) == list(range(20, 60))
    message = f"the state is of the rows after snapshot {kind.at(1)}, and this is"
    with pytest.raises(ResumeError, match=f"{message} the rows after"):
        make(kind, table, **kind.after(2, 4), shuffle=shuffle).load_state_dict(state)
    with pytest.raises(ResumeError, match=f"{message} a whole snapshot"):
        make(kind, table, **kind.only(4), shuffle=shuffle).load_state_dict(state)
