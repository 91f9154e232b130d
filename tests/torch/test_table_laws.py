"""The promises on tables with deletes, of every format that has them: exactly once, known length, exact resume."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.effort import daily, examples
from tests.states import table_of
from tests.tables.kinds import KeptTable, TableKind, rows_of, some, values
from torch_table_loader import ResumeError, TableLoader

files = st.tuples(st.integers(0, 14), st.sampled_from([0, 0, 1, 2]), st.integers(1, 6))
"""The rows of a file, its form and the rows of its row groups."""
histories = st.lists(
    st.fixed_dictionaries(
        {
            "files": st.lists(files, max_size=3),
            "delete": st.sampled_from([None, "rows", "rows", "keys", "keys"]),
            "form": st.integers(0, 2),
            "seed": st.integers(0, 99),
        }
    ),
    min_size=1,
    max_size=4,
)
sizes = {"num_ranks": st.integers(1, 4), "num_workers": st.integers(0, 4), "batch_size": st.integers(1, 7)}
filters = st.sampled_from([None, None, pc.field("k") < 5])
jobs = st.fixed_dictionaries(
    {
        **sizes,
        "shuffle": st.booleans(),
        "even_ranks": st.sampled_from([None, False, "balance", "drop"]),
        "shuffle_buffer_size": st.sampled_from([None, 5]),
        "split_size": st.sampled_from([None, 1, 5]),
        "split_deletes": st.booleans(),
        "filters": filters,
    }
)
jobs_by_rows = st.fixed_dictionaries(
    {**sizes, "even_ranks": st.sampled_from([None, False, "balance", "pad"]), "filters": filters}
)
PLAIN: dict[str, Any] = {"num_ranks": 1, "num_workers": 0, "batch_size": 1, "shuffle": False, "even_ranks": None}
ROWS: dict[str, Any] = {"shuffle": "rows", "batch_size": 8}
whenever_footers_are_read = pytest.mark.parametrize("footers", ["eager", "lazy"])


def grow(table: KeptTable, history: list[dict[str, Any]], *, partitioned: bool = False) -> None:
    """Write a table by commits; `x` counts its rows, `k` is null now and then."""
    x, everything = 0, list[dict[str, Any]]()
    for commit in history:
        for size, form, group in commit["files"]:
            partition = x % 2 if partitioned else None
            rows = [row if partition is None else {**row, "k": partition} for row in some(x, x + size)]
            table.append(rows, group=group, form=form, partition=partition)
            everything += rows
            x += size
        if commit["delete"] is not None and table.files:
            delete(table, everything, **{name: commit[name] for name in ("delete", "form", "seed")})
        table.commit()


def delete(table: KeptTable, rows: list[dict[str, Any]], delete: str, form: int, seed: int) -> None:
    chosen = table.files[seed % len(table.files)]
    if delete == "rows":
        others = {path: [0] for path in table.files[:1] if table.num_rows(path)}
        positions = [at for at in range(table.num_rows(chosen)) if (at + seed) % 3 == 0]
        table.delete(others | {chosen: positions}, form)
    else:
        keys = rows[seed % 4 :: 4] or [{"x": -1, "k": None, "s": None}]
        table.delete_equal(["x"] if seed % 2 else ["k", "s"], keys, chosen, form)


def loaders(kind: TableKind, table: KeptTable, **options: Any) -> list[TableLoader]:
    return kind.loaders(table.where, **{"nulls": {"k": -1}, **options})


def live(table: KeptTable, filters: Any) -> Counter[int]:
    """Give the rows that deletes and the only filter of ours leave."""
    return Counter(row["x"] for row in table.live() if filters is None or (row["k"] is not None and row["k"] < 5))


def exactly_once(ranks: list[TableLoader], wanted: Counter[int], even_ranks: Any) -> None:
    """Check what ranks deliver, and how long they say that they are."""
    got = Counter(x for loader in ranks for x in rows_of(loader))
    steps = [sum(1 for _ in loader) for loader in ranks]
    assert steps == [len(loader) for loader in ranks]
    assert len(set(steps)) == 1 or even_ranks is False
    assert got <= wanted if even_ranks == "drop" else got == wanted


@whenever_footers_are_read
@pytest.mark.filterwarnings("ignore:epoch 0 is iterated again")
@settings(max_examples=examples(16))
@given(history=histories, job=jobs, newest=st.booleans(), partitioned=st.booleans())
@example(
    history=[
        {"files": [(1, 0, 1)], "delete": "rows", "form": 1, "seed": 1},
        {"files": [], "delete": "rows", "form": 1, "seed": 1},
    ],
    job={**PLAIN, "split_size": None, "split_deletes": False, "filters": None},
    newest=True,
    partitioned=False,
)
@daily(2)
def test_every_live_row_comes_once(
    kind: TableKind, footers: str, history: list[dict[str, Any]], job: dict[str, Any], newest: bool, partitioned: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = kind.new(Path(folder), newest=newest, partitioned=partitioned)
        grow(table, history, partitioned=partitioned)
        exactly_once(loaders(kind, table, footers=footers, **job), live(table, job["filters"]), job["even_ranks"])


@pytest.mark.filterwarnings("ignore:epoch . is iterated again")
@settings(max_examples=examples(15))
@given(history=histories, job=jobs_by_rows, newest=st.booleans(), partitioned=st.booleans(), on_disk=st.booleans())
@daily(1)
def test_every_live_row_comes_once_where_rows_are_shuffled_one_by_one(
    kind: TableKind, history: list[dict[str, Any]], job: dict[str, Any], newest: bool, partitioned: bool, on_disk: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as stores:
        table = kind.new(Path(folder), newest=newest, partitioned=partitioned)
        grow(table, history, partitioned=partitioned)
        job = {**job, "shuffle": "rows"} | ({"row_store": stores} if on_disk else {})
        exactly_once(loaders(kind, table, **job), live(table, job["filters"]), job["even_ranks"])


@whenever_footers_are_read
@settings(max_examples=examples(8))
@given(
    history=histories,
    job=jobs,
    chain=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=3),
    newest=st.booleans(),
)
@daily(2)
def test_a_job_of_another_size_goes_on(
    kind: TableKind,
    footers: str,
    history: list[dict[str, Any]],
    job: dict[str, Any],
    chain: list[tuple[int, int, int]],
    newest: bool,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = kind.new(Path(folder), newest=newest)
        grow(table, history)
        job = {**job, "even_ranks": "balance", "footers": footers}
        ranks, taken = loaders(kind, table, **job), Counter[int]()
        for most, num_ranks, lanes in chain:
            steps = min(most, len(ranks[0]))
            taken.update(x for loader in ranks for x in rows_of(loader, steps))
            state = json.loads(json.dumps(ranks[0].state_dict()))
            assert all(loader.state_dict() == state for loader in ranks)
            ranks = loaders(kind, table, **{**job, "num_ranks": num_ranks, "num_workers": lanes})
            for loader in ranks:
                loader.load_state_dict(state)
        taken.update(x for loader in ranks for x in rows_of(loader))
        assert taken == live(table, job["filters"])


@settings(max_examples=examples(8))
@given(
    history=histories,
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(1, 9), st.integers(0, 4)), max_size=4),
)
@daily(1)
def test_a_job_of_another_size_goes_on_where_rows_are_shuffled_one_by_one(
    kind: TableKind, history: list[dict[str, Any]], sizes: list[tuple[int, int, int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = kind.new(Path(folder))
        grow(table, history)
        state: dict[str, Any] | None = None
        seen: list[int] = []
        for num_ranks, lanes, batch_size, steps in [*sizes, (1, 1, 50, 10**6)]:
            job: dict[str, Any] = {"num_ranks": num_ranks, "num_workers": lanes, "batch_size": batch_size}
            ranks = loaders(kind, table, **job, shuffle="rows", even_ranks="pad")
            for loader in ranks:
                if state is not None:
                    loader.load_state_dict(state)
                seen += rows_of(loader, steps)
            states = [json.loads(json.dumps(loader.state_dict())) for loader in ranks]
            assert all(each == states[0] for each in states)
            state = states[0]
        assert Counter(seen) == values(table)


def sample(kind: TableKind, root: Path) -> KeptTable:
    table = kind.new(root)
    grow(
        table,
        [
            {"files": [(40, 0, 7), (30, 1, 9)], "delete": "rows", "form": 1, "seed": 1},
            {"files": [(25, 2, 9)], "delete": "keys", "form": 2, "seed": 3},
            {"files": [(20, 0, 5)], "delete": "keys", "form": 0, "seed": 2},
        ],
    )
    return table


@whenever_footers_are_read
@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("worker_type", ["thread", "process"])
@daily(4)
def test_threads_and_processes_deliver_the_same(
    kind: TableKind, tmp_path: Path, worker_type: str, num_ranks: int, footers: str
) -> None:
    table = sample(kind, tmp_path)
    options: dict[str, Any] = {"num_ranks": num_ranks, "batch_size": 8, "num_workers": 2, "shuffle": "splits"}
    plain = [rows_of(loader) for loader in loaders(kind, table, footers=footers, **options)]
    there = loaders(kind, table, worker_type=worker_type, footers=footers, **options)
    assert [rows_of(loader) for loader in there] == plain
    assert Counter(x for rank in plain for x in rank) == values(table)


@pytest.mark.parametrize(
    "options", [{"footers": "eager"}, {"footers": "lazy"}, {"shuffle": "rows"}], ids=["eager", "lazy", "rows"]
)
@daily(2)
def test_a_state_goes_on_in_the_table_of_its_own_commit(
    kind: TableKind, tmp_path: Path, options: dict[str, Any]
) -> None:
    table = sample(kind, tmp_path)
    options = {"batch_size": 8, **options}
    [old] = loaders(kind, table, **options)
    taken = rows_of(old, 2)
    state = old.state_dict()
    expected = values(table)
    table.delete({table.files[-1]: range(20)})
    table.append(some(1000, 1001))
    table.commit()
    [new] = loaders(kind, table, **options)
    new.load_state_dict(state)
    assert Counter(taken + rows_of(new)) == expected
    then, now = kind.at(2), kind.at(3)
    assert table_of(new.state_dict())["snapshot_id"] == then
    [pinned] = loaders(kind, table, **options, **kind.only(3))
    with pytest.raises(ResumeError, match=rf"snapshot {then}, and this is snapshot {now}; pass .*{kind.option}={then}"):
        pinned.load_state_dict(state)
    [otherwise] = loaders(kind, table, **{**options, "shuffle": "splits"})
    with pytest.raises(ResumeError, match=r"shuffle was .* and is True"):
        otherwise.load_state_dict(state)
    table.forget()
    [later] = loaders(kind, table, **options)
    said = {"iceberg": "it has expired", "delta": "its log was cleaned up"}[kind.name]
    with pytest.raises(ResumeError, match=rf"snapshot {then}, which cannot be read: .*{said}"):
        later.load_state_dict(state)


@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("filters", [None, pc.field("k") < 5])
@daily(3)
def test_rows_that_are_shuffled_one_by_one_go_on_beside_newer_ones(
    kind: TableKind, tmp_path: Path, num_ranks: int, filters: Any
) -> None:
    table = sample(kind, tmp_path)
    options = {"shuffle": "rows", "batch_size": 4, "row_store": str(tmp_path / "store"), "filters": filters}
    ranks, expected = loaders(kind, table, num_ranks=num_ranks, **options), live(table, filters)
    taken = Counter(x for loader in ranks for x in rows_of(loader, 2))
    state = ranks[0].state_dict()
    table.append(some(200, 210))
    table.commit()
    [alone] = loaders(kind, table, **options)
    alone.load_state_dict(state)
    taken.update(rows_of(alone))
    assert taken == expected


def test_a_state_of_another_table_is_refused(kind: TableKind, tmp_path: Path) -> None:
    one, other = sample(kind, tmp_path / "one"), sample(kind, tmp_path / "other")
    [loader], [elsewhere] = loaders(kind, one, batch_size=8), loaders(kind, other, batch_size=8)
    with pytest.raises(ResumeError, match="another table"):
        elsewhere.load_state_dict(loader.state_dict())


@whenever_footers_are_read
def test_a_data_loader_of_the_callers_own(kind: TableKind, tmp_path: Path, footers: str) -> None:
    table = sample(kind, tmp_path)
    dataset = kind.open(table.where, batch_size=8, nulls={"k": -1}, footers=footers)
    for workers in (0, 2):
        batches = DataLoader(dataset, batch_size=None, num_workers=workers)
        found = Counter(int(x) for batch in batches for x in batch["x"])
        assert found == values(table)


def test_excluded_rows_leave_and_the_map_shows_them(kind: TableKind, tmp_path: Path) -> None:
    table = sample(kind, tmp_path)
    [loader], [fresh] = (loaders(kind, table, row_id=True, **ROWS) for _ in range(2))
    dataset, other = kind.dataset_of(loader), kind.dataset_of(fresh)
    order = rows_of(loader)
    view = dataset.as_map()
    assert [view[at]["x"] for at in range(len(view))] == [row["x"] for row in table.live()]
    ids = view.row_ids()
    assert ids.tolist() == sorted(set(ids.tolist()))
    assert len(ids) == len(order) < dataset.explain().rows
    gone = [int(view[at]["x"]) for at in (0, 5)]
    dataset.exclude(ids[[0, 5]])
    loader.set_epoch(1)
    assert sorted(rows_of(loader)) == sorted(set(order) - set(gone))
    fresh.load_state_dict(loader.state_dict())
    other.include(ids[:1])
    fresh.set_epoch(2)
    assert sorted(rows_of(fresh)) == sorted(set(order) - set(gone[1:]))


def test_a_row_store_belongs_to_a_commit_its_columns_and_filter(kind: TableKind, tmp_path: Path) -> None:
    table = sample(kind, tmp_path / "table")
    stores = tmp_path / "stores"

    def places(**options: Any) -> set[str]:
        [loader] = loaders(kind, table, **{**ROWS, "row_store": str(stores), **options})
        assert rows_of(loader)
        return {path.name for path in stores.iterdir()}

    first = places()
    assert len(first) == 1
    [manifest] = stores.glob("*/manifest.json")
    written = manifest.stat().st_mtime_ns
    assert places(batch_size=3, num_workers=1, shuffle_seed=5) == first
    assert manifest.stat().st_mtime_ns == written, "it was opened, not built again"
    assert len(places(columns=["x", "k"])) == 2
    assert len(places(filters=pc.field("x") > 20)) == 3
    table.append(some(1000, 1001))
    table.commit()
    assert len(places()) == 4
    assert places(**kind.only(2)) == places()


def test_a_table_without_rows_is_an_empty_epoch(kind: TableKind, tmp_path: Path) -> None:
    table = kind.new(tmp_path)
    table.commit()
    [loader] = loaders(kind, table, **ROWS)
    assert list(loader) == []
    path = table.append(some(0, 1))
    table.commit()
    table.delete({path: [0]})
    table.commit()
    [loader] = loaders(kind, table, **ROWS)
    assert (list(loader), len(loader)) == ([], 0)
