"""The memory of a rank as an option: windows, reads and what is fetched ahead share it; what cannot fit is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.shapes import held
from torch_table_loader import ConfigError, Explanation, Pack, StructuredDataset
from torch_table_loader.engine.jobs.stream_job import StreamJob

FILES, ROWS, COLUMNS = 8, 60_000, 8
ROW_BYTES = 8 * COLUMNS


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """29 MiB of numbers, in row groups that are read in parts where memory is small."""
    root = tmp_path_factory.mktemp("wide")
    rng = np.random.default_rng(0)
    for number in range(FILES):
        columns: dict[str, Any] = {f"x{place}": rng.random(ROWS) for place in range(COLUMNS)}
        pq.write_table(pa.table(columns), root / f"{number}.parquet", row_group_size=20_000)
    return root


def told(path: Path, **options: Any) -> Explanation:
    options = {"batch_size": 128, "check_plan": False} | options
    return StructuredDataset.create_dataloader(str(path), **options)[1].explain()


def ids(path: Path, **options: Any) -> list[list[int]]:
    options = {"batch_size": 500, "row_id": True} | options
    return [batch["row_id"].tolist() for batch in StructuredDataset.create_dataloader(str(path), **options)[0]]


_JOBS: dict[str, dict[str, Any]] = {
    "mixed": {"shuffle": True, "num_workers": 2},
    "mixed in this thread": {"shuffle": "mixed", "num_workers": 0},
    "splits": {"shuffle": "splits", "num_workers": 2},
    "table order": {"shuffle": False, "num_workers": 1},
}


@pytest.mark.parametrize("job", _JOBS)
@pytest.mark.parametrize("memory", ["48MiB", "64MiB", "256MiB"])
def test_a_rank_holds_at_most_the_memory_it_is_given(table: Path, job: str, memory: str) -> None:
    found = held(table, batch_size=128, shuffle_buffer_size=memory, **_JOBS[job])
    assert found.used <= found.bound <= int(memory.removesuffix("MiB")) << 20


@pytest.mark.parametrize("job", _JOBS)
def test_what_cannot_fit_is_refused_when_the_loader_is_made_with_the_numbers(table: Path, job: str) -> None:
    with pytest.raises(
        ConfigError, match=r"may come to \d.* MiB with \d workers, rows of 64 bytes in batches of 50,000"
    ):
        told(table, shuffle_buffer_size="2MiB", batch_size=50_000, **_JOBS[job])


@pytest.mark.parametrize("change", [{"batch_size": 16}, {"columns": ["x0"]}, {"num_workers": 1}], ids=str)
def test_what_the_refusal_advises_helps(table: Path, change: dict[str, Any]) -> None:
    options: dict[str, Any] = {"shuffle_buffer_size": "48MiB", "batch_size": 16_384, "shuffle": "splits"}
    advice = r"with 4 workers.*pass a smaller batch_size, fewer num_workers, fewer columns=, or more memory"
    with pytest.raises(ConfigError, match=advice):
        told(table, **options)
    assert told(table, **(options | change)).memory_bound <= 48 << 20


def _window(path: Path, memory: str | None, **options: Any) -> int:
    _, dataset = StructuredDataset.create_dataloader(str(path), batch_size=4096, shuffle_buffer_size=memory, **options)
    assert isinstance(dataset.job, StreamJob)
    window = dataset.job.planner.plan(dataset.job.planner.start(0), 0).plan.window
    assert window is not None
    return window


@pytest.mark.parametrize("shuffle", [True, "splits"])
def test_windows_grow_with_the_memory(table: Path, shuffle: Any) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "num_workers": 1}
    few, more = _window(table, "32MiB", **options), _window(table, "64MiB", **options)
    assert 1.8 * few <= more <= 2.2 * few


def test_without_a_limit_memory_is_divided_as_of_one_gibibyte(table: Path) -> None:
    assert ids(table, shuffle=True) == ids(table, shuffle=True, shuffle_buffer_size="1GiB")


def test_the_order_depends_on_the_memory_alone_and_not_on_the_machine(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"shuffle": True, "shuffle_buffer_size": "24MiB"}
    found = ids(table, **options)
    assert sorted(row for batch in found for row in batch) == list(range(FILES * ROWS))
    assert found != ids(table, shuffle=True)
    assert found == ids(table, worker_type="process", **options)
    monkeypatch.setattr("torch_table_loader.engine.jobs.stream_job.usable_cpus", lambda: 1)
    monkeypatch.setattr("torch_table_loader.engine.jobs.stream_job.ranks_on_this_node", lambda: 3)
    assert found == ids(table, **options)


@pytest.mark.parametrize("shuffle", [True, "splits"])
def test_a_state_goes_on_in_its_windows_and_then_in_those_of_the_new_memory(table: Path, shuffle: Any) -> None:
    """The state holds the windows of its epoch, so that nothing is read twice or lost under another memory."""
    options: dict[str, Any] = {"batch_size": 500, "row_id": True, "shuffle": shuffle, "num_workers": 1}
    loader, _ = StructuredDataset.create_dataloader(str(table), shuffle_buffer_size="24MiB", **options)
    batches = iter(loader)
    taken = [row for _ in range(300) for row in next(batches)["row_id"].tolist()]
    for memory in ("24MiB", "32MiB", None):
        other, _ = StructuredDataset.create_dataloader(str(table), shuffle_buffer_size=memory, **options)
        other.load_state_dict(loader.state_dict())
        rest = [row for batch in other for row in batch["row_id"].tolist()]
        assert sorted(taken + rest) == list(range(FILES * ROWS)), memory


def test_a_node_holds_what_all_of_its_ranks_hold(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = told(table, shuffle=True)
    assert (alone.ranks_on_node, alone.node_bound) == (1, alone.memory_bound)
    assert "this node" not in str(alone)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    one = told(table, shuffle=True, num_ranks=8, rank=3)
    assert (one.ranks_on_node, one.node_bound) == (8, 8 * one.memory_bound)
    assert "memory of the 8 ranks of this node at most" in str(one)


def test_memory_says_nothing_of_documents_that_are_cut_anywhere() -> None:
    with pytest.raises(ConfigError, match=r"counts documents; pass an int"):
        StructuredDataset("docs", pack=Pack(seq_len=8, strategy="concat"), shuffle_buffer_size="1GiB")


def test_less_is_fetched_ahead_where_memory_is_small(table: Path) -> None:
    """Unless the caller says how many bytes."""
    options: dict[str, Any] = {"shuffle_buffer_size": "64MiB", "shuffle": True, "num_workers": 1}
    _, dataset = StructuredDataset.create_dataloader(str(table), batch_size=128, **options)
    assert dataset.options.ahead_bytes == 8 << 20
    asked = StructuredDataset(str(table), storage_options={"read_ahead_bytes": "3MiB"}, **options)
    assert asked.options.ahead_bytes == 3 << 20


@pytest.mark.parametrize(("given", "said"), [("much", "must look like"), ("0", "must be positive"), (2.5, "an int")])
def test_what_is_no_memory_is_refused(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"shuffle_buffer_size .*{said}"):
        StructuredDataset("t", shuffle_buffer_size=given)
