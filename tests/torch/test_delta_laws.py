"""The promises on Delta Lake tables with deletion vectors: exactly once, known length, resume, any size of job."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.delta import DeltaWriter, some
from tests.laws.effort import daily, examples
from torch_table_loader import DeltaDataset, ResumeError, TableLoader

commits = st.lists(
    st.fixed_dictionaries(
        {
            "files": st.lists(st.tuples(st.integers(0, 14), st.integers(1, 6)), max_size=3),
            "delete": st.sampled_from([None, "u", "i"]),
            "seed": st.integers(0, 99),
        }
    ),
    min_size=1,
    max_size=4,
)
jobs = st.fixed_dictionaries(
    {
        "num_ranks": st.sampled_from([1, 3]),
        "num_workers": st.integers(0, 3),
        "batch_size": st.integers(1, 7),
        "shuffle": st.booleans(),
        "even_ranks": st.sampled_from([None, "balance", "drop"]),
        "split_rows": st.sampled_from([None, 1, 5]),
        "split_deletes": st.booleans(),
        "filters": st.sampled_from([None, None, pc.field("k") < 5]),
    }
)
PLAIN: dict[str, Any] = {
    "num_ranks": 1,
    "num_workers": 0,
    "batch_size": 1,
    "shuffle": False,
    "even_ranks": None,
    "split_rows": None,
    "split_deletes": False,
    "filters": None,
}
whenever_footers_are_read = pytest.mark.parametrize("footers", ["eager", "lazy"])


def grow(table: DeltaWriter, history: list[dict[str, Any]]) -> None:
    """Write a table by commits; `x` counts its rows, `k` is null now and then."""
    x = 0
    for commit in history:
        for size, group in commit["files"]:
            rows, partition = some(x, x + size), None
            if table.partition_by:
                rows, partition = [{**row, "k": x % 7} for row in rows], {"k": str(x % 7)}
            table.append(rows, partition, group=group)
            x += size
        if commit["delete"] is not None and table.data:
            chosen = table.data[commit["seed"] % len(table.data)]
            gone = [at for at in range(len(chosen.rows)) if (at + commit["seed"]) % 3 == 0]
            table.delete(chosen.add["path"], gone, commit["delete"])
        table.commit()


def loaders(table: str, num_ranks: int, **options: Any) -> list[TableLoader]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return [
            DeltaDataset.create_dataloader(table, num_ranks=num_ranks, rank=rank, nulls={"k": -1}, **options)[0]
            for rank in range(num_ranks)
        ]


def rows_of(loader: TableLoader, stop: int | None = None) -> list[int]:
    found: list[int] = []
    for batch in islice(loader, stop):
        marks = batch.get("padding")
        found += [int(x) for at, x in enumerate(batch["x"]) if marks is None or not marks[at]]
    return found


def live_of(table: DeltaWriter, filters: Any) -> Counter[int]:
    """Give the rows that deletes and the only filter of ours leave."""
    return Counter(row["x"] for row in table.live() if filters is None or (row["k"] is not None and row["k"] < 5))


@whenever_footers_are_read
@pytest.mark.filterwarnings("ignore:epoch 0 is iterated again")
@settings(max_examples=examples(25))
@given(history=commits, job=jobs, partitioned=st.booleans())
@example(
    history=[{"files": [(1, 1)], "delete": "i", "seed": 1}, {"files": [], "delete": "i", "seed": 1}],
    job=PLAIN,
    partitioned=False,
)
def test_every_live_row_comes_once(
    footers: str, history: list[dict[str, Any]], job: dict[str, Any], partitioned: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = DeltaWriter(Path(folder) / "t", partition_by=["k"] if partitioned else [])
        grow(table, history)
        ranks = loaders(table.uri, footers=footers, **job)
        delivered = [rows_of(loader) for loader in ranks]
        assert [sum(1 for _ in loader) for loader in ranks] == [len(loader) for loader in ranks]
        assert len({len(loader) for loader in ranks}) == 1 or job["even_ranks"] is None
        got, want = Counter(x for rank in delivered for x in rank), live_of(table, job["filters"])
        if job["even_ranks"] == "drop":
            assert got <= want
        else:
            assert got == want


@whenever_footers_are_read
@settings(max_examples=examples(12))
@given(
    history=commits,
    job=jobs,
    chain=st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1, 2, 3]), st.integers(1, 4)), min_size=1, max_size=3),
)
def test_a_job_of_another_size_goes_on(
    footers: str, history: list[dict[str, Any]], job: dict[str, Any], chain: list[tuple[int, int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = DeltaWriter(Path(folder) / "t")
        grow(table, history)
        job = {**job, "even_ranks": "balance", "footers": footers}
        ranks, taken = loaders(table.uri, **job), Counter[int]()
        for most, num_ranks, lanes in chain:
            steps = min(most, len(ranks[0]))
            taken.update(x for loader in ranks for x in rows_of(loader, steps))
            state = json.loads(json.dumps(ranks[0].state_dict()))
            assert all(loader.state_dict() == state for loader in ranks)
            ranks = loaders(table.uri, **{**job, "num_ranks": num_ranks, "num_workers": lanes})
            for loader in ranks:
                loader.load_state_dict(state)
        taken.update(x for loader in ranks for x in rows_of(loader))
        assert taken == live_of(table, job["filters"])


def sample(root: Path) -> DeltaWriter:
    table = DeltaWriter(root / "t")
    grow(
        table,
        [
            {"files": [(40, 7), (30, 9)], "delete": "u", "seed": 1},
            {"files": [(25, 9)], "delete": "i", "seed": 3},
            {"files": [(20, 5)], "delete": None, "seed": 2},
        ],
    )
    return table


@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("filters", [None, pc.field("k") < 5])
def test_rows_that_are_shuffled_one_by_one(tmp_path: Path, num_ranks: int, filters: Any) -> None:
    table = sample(tmp_path)
    options = {"shuffle": "rows", "batch_size": 4, "row_store": str(tmp_path / "store"), "filters": filters}
    ranks = loaders(table.uri, num_ranks=num_ranks, **options)
    taken = Counter(x for loader in ranks for x in rows_of(loader, 2))
    state = ranks[0].state_dict()
    table.append(some(200, 210))
    table.commit()
    [alone] = loaders(table.uri, num_ranks=1, **options)
    alone.load_state_dict(state)
    taken.update(rows_of(alone))
    table.data.pop()
    assert taken == live_of(table, filters)


@whenever_footers_are_read
@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("worker_type", ["thread", "process"])
@daily(lambda worker_type, num_ranks: worker_type == "thread" or num_ranks == 1)
def test_threads_and_processes_deliver_the_same(tmp_path: Path, worker_type: str, num_ranks: int, footers: str) -> None:
    table = sample(tmp_path)
    options: dict[str, Any] = {"num_ranks": num_ranks, "batch_size": 8, "num_workers": 2, "shuffle": True}
    plain = [rows_of(loader) for loader in loaders(table.uri, footers=footers, **options)]
    there = loaders(table.uri, worker_type=worker_type, footers=footers, **options)
    assert [rows_of(loader) for loader in there] == plain
    assert Counter(x for rank in plain for x in rank) == Counter(row["x"] for row in table.live())


@whenever_footers_are_read
def test_a_state_goes_on_in_its_own_version(tmp_path: Path, footers: str) -> None:
    table = sample(tmp_path)
    options: dict[str, Any] = {"num_ranks": 1, "batch_size": 8, "footers": footers}
    [old] = loaders(table.uri, **options)
    taken = rows_of(old, 2)
    state = old.state_dict()
    expected = Counter(row["x"] for row in table.live())
    table.delete(table.data[-1].add["path"], range(20))
    table.append(some(1000, 1001))
    table.commit()
    [new] = loaders(table.uri, **options)
    new.load_state_dict(state)
    assert Counter(taken + rows_of(new)) == expected
    assert new.state_dict()["table"]["snapshot_id"] == 2
    [pinned] = loaders(table.uri, **options, version=3)
    with pytest.raises(ResumeError, match=r"snapshot 2, and this is snapshot 3; pass snapshot_id=2 \(version=2"):
        pinned.load_state_dict(state)
    DeltaTable(table.uri).create_checkpoint()
    for version in range(3):
        (Path(table.uri) / "_delta_log" / f"{version:020}.json").unlink()
    [later] = loaders(table.uri, **options)
    with pytest.raises(ResumeError, match=r"snapshot 2, which cannot be read: .*its log was cleaned up"):
        later.load_state_dict(state)


def test_a_state_of_another_table_is_refused(tmp_path: Path) -> None:
    one, other = sample(tmp_path / "one"), sample(tmp_path / "other")
    [loader], [elsewhere] = loaders(one.uri, 1), loaders(other.uri, 1)
    with pytest.raises(ResumeError, match="another table"):
        elsewhere.load_state_dict(loader.state_dict())


@whenever_footers_are_read
def test_a_data_loader_of_the_callers_own(tmp_path: Path, footers: Literal["eager", "lazy"]) -> None:
    table = sample(tmp_path)
    dataset = DeltaDataset(table.uri, batch_size=8, nulls={"k": -1}, footers=footers)
    for workers in (0, 2):
        batches = DataLoader(dataset, batch_size=None, num_workers=workers)
        found = Counter(int(x) for batch in batches for x in batch["x"])
        assert found == Counter(row["x"] for row in table.live())
