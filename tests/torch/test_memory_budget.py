"""The memory of a rank as an option: windows, reads and what is fetched ahead share it; what cannot fit is refused."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.shapes import as_a_store, held, own_pool
from tests.effort import daily
from torch_table_loader import Budget, ConfigError, Explanation, StructuredDataset, TableError
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
@daily(4)
def test_a_rank_holds_at_most_the_memory_it_is_given(table: Path, job: str, memory: str) -> None:
    found = held(table, batch_size=128, shuffle_buffer_size=memory, **_JOBS[job])
    assert found.used <= found.bound <= int(memory.removesuffix("MiB")) << 20


@pytest.mark.parametrize("job", _JOBS)
def test_what_cannot_fit_is_refused_when_the_loader_is_made_with_the_numbers(table: Path, job: str) -> None:
    with pytest.raises(
        ConfigError, match=r"may come to \d.* MiB with \d workers, rows of 64 bytes in batches of 50,000"
    ):
        told(table, shuffle_buffer_size="2MiB", batch_size=50_000, **_JOBS[job])


def test_batches_by_budget_that_cannot_fit_are_refused_with_their_rows(tmp_path: Path) -> None:
    tokens = pa.array([[1] * 400] * 4_000, pa.list_(pa.int32()))
    pq.write_table(pa.table({"tokens": tokens}), tmp_path / "a.parquet", row_group_size=500)
    budget = Budget(tokens=40_000, length="tokens", at_most=1_024)
    with pytest.raises(ConfigError, match=r"may come to \d.* MiB with 2 workers, rows of \d.* in batches of 1,024"):
        told(tmp_path, shuffle=True, shuffle_buffer_size="2MiB", batch_size=budget, ragged="pad", num_workers=2)


@pytest.mark.parametrize("change", [{"batch_size": 16}, {"columns": ["x0"]}, {"num_workers": 1}], ids=str)
@daily(1)
def test_what_the_refusal_advises_helps(table: Path, change: dict[str, Any]) -> None:
    options: dict[str, Any] = {"shuffle_buffer_size": "48MiB", "batch_size": 16_384, "shuffle": "splits"}
    advice = r"with 4 workers.*pass a smaller batch_size, fewer num_workers, fewer columns=, or more memory"
    with pytest.raises(ConfigError, match=advice):
        told(table, **options)
    assert told(table, **(options | change)).memory_bound <= 48 << 20


def _window(path: Path, memory: str | None, **options: Any) -> int:
    _, dataset = StructuredDataset.create_dataloader(str(path), batch_size=4096, shuffle_buffer_size=memory, **options)
    assert isinstance(dataset.job, StreamJob)
    return dataset.job.planner.plan(dataset.job.planner.start(0), 0).plan.most_of_window


@pytest.mark.parametrize("shuffle", [True, "splits"])
def test_windows_grow_with_the_memory(table: Path, shuffle: Any) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "num_workers": 1}
    few, more = _window(table, "32MiB", **options), _window(table, "64MiB", **options)
    assert 1.8 * few <= more <= 2.2 * few


def test_memory_alone_shuffles_nothing(table: Path) -> None:
    found = ids(table, shuffle=False, num_workers=1, shuffle_buffer_size="64MiB")
    assert [row for batch in found for row in batch] == list(range(FILES * ROWS))


def test_without_a_limit_memory_is_divided_as_of_one_gibibyte(table: Path) -> None:
    assert ids(table, shuffle=True) == ids(table, shuffle=True, shuffle_buffer_size="1GiB")


def test_the_order_depends_on_the_memory_alone_and_not_on_the_machine(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"shuffle": True, "shuffle_buffer_size": "25MiB"}
    found = ids(table, **options)
    assert sorted(row for batch in found for row in batch) == list(range(FILES * ROWS))
    assert found != ids(table, shuffle=True)
    assert found == ids(table, worker_type="process", **options)
    monkeypatch.setattr("torch_table_loader.engine.machine.usable_cpus", lambda: 1)
    monkeypatch.setattr("torch_table_loader.engine.machine.ranks_on_this_node", lambda: 3)
    assert found == ids(table, **options)


@pytest.mark.parametrize("shuffle", [True, "splits"])
@daily(1)
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


_HUGE: dict[str, dict[str, Any]] = {
    "a text": {"use_dictionary": False},
    "a text in a dictionary": {"dictionary_pagesize_limit": 1 << 30},
    "pages of version 2": {"data_page_version": "2.0", "use_dictionary": False, "compression": "zstd"},
    "long statistics": {"use_dictionary": False, "write_statistics": True, "max_rows_per_page": 7},
}


@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
@pytest.mark.parametrize("how", _HUGE)
@daily(3)
def test_a_value_that_alone_exceeds_the_memory_is_refused_before_it_is_paid(
    tmp_path: Path, how: str, *, far: bool
) -> None:
    """The error names the file, the row group, the column and the size, and what it advises helps."""
    texts = [f"{row:05}" for row in range(40_000)]
    texts[30_000] = "x" * (70 << 20)
    data = pa.table({"id": range(40_000), "note": texts, "n": range(40_000)})
    pq.write_table(data, tmp_path / "a.parquet", row_group_size=20_000, **_HUGE[how])
    options: dict[str, Any] = {"batch_size": 200, "num_workers": 0, "output_format": "arrow"}
    said = (
        r"a\.parquet.*column 'note' in row group 1 comes to 70.* MiB, and a rank may hold 64 MiB.*leave the column out"
    )
    with as_a_store() if far else nullcontext():
        loader, _ = StructuredDataset.create_dataloader(str(tmp_path), shuffle_buffer_size="64MiB", **options)
        with own_pool() as pool, pytest.raises(TableError, match=said):
            for _ in loader:
                pass
        assert (pool.max_memory() or 0) < 32 << 20
        more, _ = StructuredDataset.create_dataloader(str(tmp_path), shuffle_buffer_size="1GiB", **options)
        assert sum(batch.num_rows for batch in more) == 40_000
        fewer, _ = StructuredDataset.create_dataloader(
            str(tmp_path), shuffle_buffer_size="64MiB", columns=["id", "n"], **options
        )
        assert sum(batch.num_rows for batch in fewer) == 40_000


def test_many_values_that_exceed_the_memory_together_are_read(tmp_path: Path) -> None:
    texts = [f"{row:05}".ljust(20_000, "x") for row in range(6_000)]
    pq.write_table(pa.table({"note": texts}), tmp_path / "a.parquet", use_dictionary=False)
    found = held(tmp_path, batch_size=16, num_workers=0, output_format="arrow", shuffle_buffer_size="64MiB")
    assert found.used <= found.bound <= 64 << 20


def test_damaged_headers_of_pages_are_told_of_as_damage(tmp_path: Path) -> None:
    """The sizes of pages are looked at before anything says whether they are sound."""
    path = tmp_path / "a.parquet"
    texts = [f"{row:05}".ljust(20_000, "x") for row in range(6_000)]
    pq.write_table(pa.table({"note": texts}), path, use_dictionary=False, compression="none")
    data = bytearray(path.read_bytes())
    data[4:12] = b"\xff" * 8
    path.write_bytes(bytes(data))
    loader, _ = StructuredDataset.create_dataloader(
        str(path), batch_size=16, num_workers=0, output_format="arrow", shuffle_buffer_size="64MiB"
    )
    with pytest.raises(TableError, match=r"damaged|a\.parquet"):
        next(iter(loader))
