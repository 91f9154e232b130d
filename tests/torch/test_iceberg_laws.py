"""The promises on Iceberg tables with deletes: exactly once, known length, exact resume, any size of job."""

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
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.iceberg import IcebergWriter
from tests.laws.effort import daily, examples
from torch_table_loader import IcebergDataset, ResumeError, TableLoader

commits = st.lists(
    st.fixed_dictionaries(
        {
            "files": st.lists(
                st.tuples(
                    st.integers(0, 14), st.sampled_from(["parquet", "parquet", "orc", "avro"]), st.integers(1, 6)
                ),
                max_size=3,
            ),
            "delete": st.sampled_from([None, "position", "position", "equality", "equality", "vector"]),
            "form": st.sampled_from(["parquet", "orc", "avro"]),
            "seed": st.integers(0, 99),
        }
    ),
    min_size=1,
    max_size=4,
)
jobs = st.fixed_dictionaries(
    {
        "num_ranks": st.integers(1, 4),
        "num_workers": st.integers(0, 4),
        "batch_size": st.integers(1, 7),
        "shuffle": st.booleans(),
        "even_ranks": st.sampled_from([None, "balance", "drop"]),
        "shuffle_buffer_size": st.sampled_from([None, 5]),
        "split_rows": st.sampled_from([None, 1, 5]),
        "split_deletes": st.booleans(),
        "filters": st.sampled_from([None, None, pc.field("k") < 5]),
    }
)
whenever_footers_are_read = pytest.mark.parametrize("footers", ["eager", "lazy"])


def grow(table: IcebergWriter, history: list[dict[str, Any]]) -> None:
    """Write a table by commits; `x` counts its rows, `k` is null now and then."""
    x = 0
    for commit in history:
        for size, form, group in commit["files"]:
            rows = [{"x": i, "k": None if i % 11 == 3 else i * 7 % 10, "s": f"s{i % 3}"} for i in range(x, x + size)]
            partition = None if table.partition_by is None else x % 2
            if table.partition_by is not None:
                rows = [{**row, "k": partition} for row in rows]
            table.append(rows, form, partition=partition, group=group)
            x += size
        delete(table, commit)
        table.commit()


def delete(table: IcebergWriter, commit: dict[str, Any]) -> None:
    kind, seed = commit["delete"], commit["seed"]
    if kind is None or not table.data:
        return
    chosen = table.data[seed % len(table.data)]
    positions = [at for at in range(len(chosen.rows)) if (at + seed) % 3 == 0]
    if kind == "equality":
        by = [1] if seed % 2 else [2, 3]
        rows = [row for file in table.data for row in file.rows][seed % 4 :: 4]
        keys = [{"x": row[1], "k": row[2], "s": row[3]} for row in rows] or [{"x": -1, "k": None, "s": None}]
        table.delete_keys(by, keys, commit["form"], partition=chosen.partition)
    elif kind == "position" and table.version == 2:
        others = {f.path: [0] for f in table.data[:1] if f.rows and f.partition == chosen.partition}
        table.delete_rows(others | {chosen.path: positions}, commit["form"], partition=chosen.partition)
    elif positions and kind == "vector" and table.version == 3:
        table.delete_vector(chosen.path, positions, partition=chosen.partition)


def loaders(table: str, num_ranks: int, **options: Any) -> list[TableLoader]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return [
            IcebergDataset.create_dataloader(
                metadata_location=table, num_ranks=num_ranks, rank=rank, nulls={"k": -1}, **options
            )[0]
            for rank in range(num_ranks)
        ]


def rows_of(loader: TableLoader, stop: int | None = None) -> list[int]:
    found: list[int] = []
    for batch in islice(loader, stop):
        marks = batch.get("padding")
        found += [int(x) for at, x in enumerate(batch["x"]) if marks is None or not marks[at]]
    return found


def live_of(table: IcebergWriter, filters: Any) -> Counter[int]:
    """Give the rows that deletes and the only filter of ours leave."""
    return Counter(row["x"] for row in table.live() if filters is None or (row["k"] is not None and row["k"] < 5))


@whenever_footers_are_read
@pytest.mark.filterwarnings("ignore:epoch 0 is iterated again")
@settings(max_examples=examples(40))
@given(history=commits, job=jobs, version=st.sampled_from([2, 3]), partitioned=st.booleans())
def test_every_live_row_comes_once(
    footers: str, history: list[dict[str, Any]], job: dict[str, Any], version: int, partitioned: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = IcebergWriter(Path(folder), version=version, partition_by=2 if partitioned else None)
        grow(table, history)
        ranks = loaders(table.metadata, footers=footers, **job)
        delivered = [rows_of(loader) for loader in ranks]
        assert [sum(1 for _ in loader) for loader in ranks] == [len(loader) for loader in ranks]
        assert len({len(loader) for loader in ranks}) == 1 or job["even_ranks"] is None
        got, want = Counter(x for rank in delivered for x in rank), live_of(table, job["filters"])
        if job["even_ranks"] == "drop":
            assert got <= want
        else:
            assert got == want


@whenever_footers_are_read
@settings(max_examples=examples(20))
@given(
    history=commits,
    job=jobs,
    chain=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=3),
    version=st.sampled_from([2, 3]),
)
def test_a_job_of_another_size_goes_on(
    footers: str, history: list[dict[str, Any]], job: dict[str, Any], chain: list[tuple[int, int, int]], version: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = IcebergWriter(Path(folder), version=version)
        grow(table, history)
        job = {**job, "even_ranks": "balance", "footers": footers}
        ranks, taken = loaders(table.metadata, **job), Counter[int]()
        for most, num_ranks, lanes in chain:
            steps = min(most, len(ranks[0]))
            taken.update(x for loader in ranks for x in rows_of(loader, steps))
            state = json.loads(json.dumps(ranks[0].state_dict()))
            assert all(loader.state_dict() == state for loader in ranks)
            ranks = loaders(table.metadata, **{**job, "num_ranks": num_ranks, "num_workers": lanes})
            for loader in ranks:
                loader.load_state_dict(state)
        rest = [rows_of(loader) for loader in ranks]
        taken.update(x for rank in rest for x in rank)
        assert taken == live_of(table, job["filters"])


def sample(root: Path) -> IcebergWriter:
    table = IcebergWriter(root)
    grow(
        table,
        [
            {"files": [(40, "parquet", 7), (30, "orc", 9)], "delete": "position", "form": "orc", "seed": 1},
            {"files": [(25, "avro", 9)], "delete": "equality", "form": "avro", "seed": 3},
            {"files": [(20, "parquet", 5)], "delete": "equality", "form": "parquet", "seed": 2},
        ],
    )
    return table


@whenever_footers_are_read
@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("worker_type", ["thread", "process"])
@daily(lambda worker_type, num_ranks: worker_type == "thread" or num_ranks == 1)
def test_threads_and_processes_deliver_the_same(tmp_path: Path, worker_type: str, num_ranks: int, footers: str) -> None:
    table = sample(tmp_path)
    options: dict[str, Any] = {
        "num_ranks": num_ranks,
        "batch_size": 8,
        "num_workers": 2,
        "shuffle": True,
        "footers": footers,
    }
    plain = [rows_of(loader) for loader in loaders(table.metadata, **options)]
    there = loaders(table.metadata, worker_type=worker_type, **options)
    assert [rows_of(loader) for loader in there] == plain
    assert Counter(x for rank in plain for x in rank) == Counter(row["x"] for row in table.live())


@whenever_footers_are_read
def test_a_state_goes_on_in_its_own_snapshot(tmp_path: Path, footers: str) -> None:
    table = sample(tmp_path)
    options: dict[str, Any] = {"num_ranks": 1, "batch_size": 8, "footers": footers}
    [old] = loaders(table.metadata, **options)
    taken = rows_of(old, 2)
    state = old.state_dict()
    expected = Counter(row["x"] for row in table.live())
    table.append([{"x": 1000, "k": 1, "s": "new"}])
    table.commit()
    [new] = loaders(table.metadata, **options)
    new.load_state_dict(state)
    assert Counter(taken + rows_of(new)) == expected
    assert new.state_dict()["table"]["snapshot_id"] == 1003
    [pinned] = loaders(table.metadata, **options, snapshot_id=1004)
    with pytest.raises(ResumeError, match=r"snapshot 1003, and this is snapshot 1004; pass snapshot_id=1003"):
        pinned.load_state_dict(state)
    table.snapshots = table.snapshots[-1:]
    [later] = loaders(table.metadata, **options)
    with pytest.raises(ResumeError, match=r"snapshot 1003, which cannot be read: .*it has expired"):
        later.load_state_dict(state)


@whenever_footers_are_read
def test_a_data_loader_of_the_callers_own(tmp_path: Path, footers: Literal["eager", "lazy"]) -> None:
    table = sample(tmp_path)
    dataset = IcebergDataset(metadata_location=table.metadata, batch_size=8, nulls={"k": -1}, footers=footers)
    for workers in (0, 2):
        batches = DataLoader(dataset, batch_size=None, num_workers=workers)
        found = Counter(int(x) for batch in batches for x in batch["x"])
        assert found == Counter(row["x"] for row in table.live())
