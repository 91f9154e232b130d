"""Metrics say how many files, and how many of their stored bytes, the trainer has taken."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.launchers.jobs import make, spans_of, topologies
from tests.tables.plain import meant_warnings, write_table
from torch_table_loader import MixedDataset, StructuredDataset, TableLoader

GROUPS = [[60, 30], [5], [33, 30], [], [41, 7]]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    write_table(folder := tmp_path_factory.mktemp("taken") / "table", GROUPS)
    return folder


def size_of(table: Path) -> int:
    """Add up the sizes of the files that have rows."""
    return sum((table / f"{n:03}.parquet").stat().st_size for n, groups in enumerate(GROUPS) if groups)


def take(loader: TableLoader, steps: int | None = None) -> None:
    with meant_warnings():
        for _ in islice(loader, steps):
            pass


@settings(max_examples=examples(12), deadline=None)
@given(shape=topologies(), shuffle=st.booleans(), split_size=st.integers(5, 50))
def test_ranks_take_all_bytes_of_all_files(table: Path, shape: dict[str, Any], shuffle: bool, split_size: int) -> None:
    """Rows that are repeated count once, and what nobody takes is missing."""
    shape |= {"drop_last": False, "even_ranks": "pad" if shape["even_ranks"] == "drop" else shape["even_ranks"]}
    told, lanes = [], 0
    for rank in range(shape["num_ranks"]):
        loader = make(table, rank=rank, shuffle=shuffle, split_size=split_size, **shape)
        take(loader)
        told.append(loader.metrics())
        lanes += len(told[-1].workers)
    assert sum(each.stored_bytes or 0 for each in told) == pytest.approx(size_of(table), abs=lanes)
    for each in told:
        assert each.files is not None
        assert (
            max(worker.files or 0 for worker in each.workers) <= each.files <= sum(w.files or 0 for w in each.workers)
        )


@pytest.mark.filterwarnings("ignore:drop_last=True leaves rank . no step")
@settings(max_examples=examples(25), deadline=None)
@given(shape=topologies(), shuffle=st.sampled_from([False, "splits"]), steps=st.integers(0, 9))
def test_files_are_those_of_the_rows_that_were_taken(
    table: Path, shape: dict[str, Any], shuffle: Any, steps: int
) -> None:
    loader = make(table, rank=0, shuffle=shuffle, split_size=20, **shape | {"shuffle_buffer_size": None})
    steps = min(steps, len(loader))
    expected = {span.file for step in range(steps) for span in spans_of(loader, step)}
    take(loader, steps)
    assert loader.metrics().files == len(expected)


def test_a_resumed_loader_counts_what_it_takes_itself(table: Path) -> None:
    """The rows of windows that were open, on another number of ranks, count too."""
    shape: dict[str, Any] = {"shuffle": "splits", "shuffle_buffer_size": 12, "batch_size": 5, "num_workers": 2}
    first = [make(table, num_ranks=2, rank=rank, even_ranks="balance", **shape) for rank in range(2)]
    for loader in first:
        take(loader, 4)
    then = [make(table, num_ranks=3, rank=rank, even_ranks="balance", **shape) for rank in range(3)]
    for loader in then:
        loader.load_state_dict(first[0].state_dict())
        take(loader)
    taken = [loader.metrics() for loader in first + then]
    assert sum(each.stored_bytes or 0 for each in taken) == pytest.approx(size_of(table), abs=10)
    assert all(0 < (each.files or 0) <= 4 for each in taken)


def test_pruned_row_groups_are_no_part_of_it(table: Path) -> None:
    loader = make(table, filters="x < 60", batch_size=10)
    take(loader)
    metrics = loader.metrics()
    assert metrics.files == 1
    assert metrics.stored_bytes is not None
    assert 0 < metrics.stored_bytes < (table / "000.parquet").stat().st_size


def test_each_epoch_of_an_iteration_counts_anew(table: Path) -> None:
    loader = make(table, batch_size=10, epochs=2, shuffle="splits")
    take(loader)
    metrics = loader.metrics()
    assert metrics.files == 2 * 4
    assert metrics.stored_bytes == pytest.approx(2 * size_of(table), abs=8)


def test_flat_names_and_the_text_have_them(table: Path) -> None:
    loader = make(table, batch_size=10, num_workers=2)
    take(loader)
    told = loader.metrics().as_dict()
    assert told["files"] == 4
    assert told["stored_bytes"] == told["worker_0/stored_bytes"] + told["worker_1/stored_bytes"]
    assert 1 <= told["worker_0/files"] <= 4
    assert f"taken of 4 files: {told['stored_bytes'] / 1024:.1f} KiB stored" in str(loader.metrics())


@pytest.mark.parametrize(
    "options", [{"shuffle": "rows", "row_store": "memory"}, {"filters": "k < 5", "count_filtered": False}]
)
def test_what_nobody_knows_is_left_out(table: Path, options: dict[str, Any]) -> None:
    loader = make(table, batch_size=10, **options)
    take(loader)
    metrics = loader.metrics()
    assert (metrics.files, metrics.stored_bytes) == (None, None)
    assert not [name for name in metrics.as_dict() if name.endswith(("files", "stored_bytes"))]
    assert "stored" not in str(metrics)


def test_a_mixture_leaves_it_out(table: Path) -> None:
    sources = {name: StructuredDataset(str(table), "parquet", shuffle="splits") for name in ("one", "two")}
    with meant_warnings():
        loader, _ = MixedDataset.create_dataloader(sources, {"one": 2, "two": 1}, batch_size=7)
    take(loader)
    assert loader.metrics().files is None
