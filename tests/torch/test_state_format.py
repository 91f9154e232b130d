"""What a state is: small, plain, without secrets, the same on every rank, and whole in any checkpoint format."""

from __future__ import annotations

import json
import sys
import tracemalloc
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.multiprocessing.spawn import spawn

from bench.resume import files_left
from bench.simulated import GROUP_ROWS, GROUPS, SimulatedTable
from tests.launchers.jobs import make, of_a_running_rank, own_rows, run_stage, spans_of
from tests.states import State, is_ended, options_of, stages_of, steps_of, table_of, with_newest, with_stages
from tests.tables.plain import meant_warnings, write_table
from torch_table_loader import ResumeError, StructuredDataset

SMALL = [[9, 4, 11], [1], [], [17, 5], [13, 13]]
TOTAL = sum(map(sum, SMALL))
OPTIONS: dict[str, Any] = {"batch_size": 5, "num_workers": 2, "shuffle": "splits", "split_size": 10}
MOST_BYTES = 4096


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("table")
    write_table(root, SMALL)
    return root


@pytest.fixture(scope="module")
def many_files(tmp_path_factory: pytest.TempPathFactory) -> SimulatedTable:
    return SimulatedTable.write(tmp_path_factory.mktemp("many"), 10_000)


def test_a_state_has_the_same_keys_at_any_moment(table: Path) -> None:
    def keys(state: State) -> tuple[set[str], ...]:
        return set(state), set(table_of(state)), set(options_of(state))

    plain_loader = make(table, **OPTIONS)
    seen = [keys(plain_loader.state_dict())]
    list(plain_loader)
    seen.append(keys(plain_loader.state_dict()))
    for options in ({"filters": pc.field("k") < 7, "count_filtered": False}, {"num_ranks": 9, "rank": 8}):
        loader = make(table, **(OPTIONS | options))
        list(loader)
        seen.append(keys(loader.state_dict()))
    assert all(each == seen[0] for each in seen)


@pytest.mark.slow
def test_the_state_stays_small_over_twenty_changes_of_topology_and_ten_thousand_files(
    many_files: SimulatedTable,
) -> None:
    past = [
        {
            "steps": 1_000 + number,
            "ended": False,
            "num_ranks": 1 + number,
            "lanes": 1 + number % 3,
            "batch_size": 512,
            "shuffle_buffer_size": 10_000 + number,
            "even_ranks": "balance",
            "drop_last": True,
        }
        for number in range(20)
    ]
    loader, _ = many_files.open(num_workers=3, even_ranks="balance")
    loader.load_state_dict(with_stages(loader.state_dict(), past))
    assert loader.rows_of(0)
    state = loader.state_dict()
    begun = {"num_ranks": 1, "lanes": 3, "shuffle_buffer_size": None, "drop_last": False}
    assert stages_of(state) == [*past, {**past[-1], "steps": 0, **begun}]
    assert len(json.dumps(state)) < MOST_BYTES // 2
    loader.set_epoch(1)
    assert len(stages_of(loader.state_dict())) == 1


@pytest.mark.parametrize(("name", "columns"), [("x" * 40, 1_000), ("日本語の列" * 4, 1_000), ("日本語の列" * 2, 50)])
def test_the_state_stays_small_over_many_columns_of_any_name(tmp_path: Path, name: str, columns: int) -> None:
    pq.write_table(pa.table({f"{name}{number}": [1] for number in range(columns)}), tmp_path / "wide.parquet")
    assert len(json.dumps(make(tmp_path).state_dict())) < MOST_BYTES // 2


def test_taking_the_state_takes_the_same_few_steps_at_any_size(many_files: SimulatedTable, tmp_path: Path) -> None:
    few, many = work_of_a_state(SimulatedTable.write(tmp_path, 2)), work_of_a_state(many_files)
    assert many[0] == few[0] < 100, "calls"
    assert many[1] < few[1] + 512 < 8_192, "bytes"


def work_of_a_state(table: SimulatedTable) -> tuple[int, int]:
    """Count the calls that a state takes inside an epoch, and the bytes that it holds meanwhile."""
    loader, _ = table.open(split_size=1, num_workers=0)
    batches, calls = iter(loader), 0
    next(batches)
    loader.state_dict()

    def called(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(called)
    loader.state_dict()
    sys.setprofile(None)
    tracemalloc.start()
    try:
        loader.state_dict()
        return calls, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        batches.close()


@pytest.mark.slow
def test_resuming_in_a_million_row_groups_opens_no_consumed_file(many_files: SimulatedTable) -> None:
    loader, _ = many_files.open()
    state = with_newest(loader.state_dict(), steps=900_000)
    fresh, job = many_files.open()
    assert len(job.table.layout.group_rows) == 10_000 * GROUPS
    many_files.storage.opened.clear()
    fresh.load_state_dict(state)
    told = {span.file for step in (900_000, 900_001) for span in spans_of(fresh, step)}
    left = files_left(job, state)
    assert len(left) < 1_100
    assert many_files.storage.opened == []
    batches = iter(fresh)
    for _ in range(2):
        assert len(next(batches)["id"]) == GROUP_ROWS
    batches.close()
    assert told <= set(many_files.storage.opened) <= left


def test_no_secret_no_option_and_no_path_is_in_the_state(tmp_path: Path) -> None:
    write_table(tmp_path / "table-with-a-telling-name", SMALL)
    secrets = {
        "key": "AKIAVERYSECRET",
        "secret": "hunter2",
        "client_kwargs": {"endpoint_url": "http://inner.host:9000"},
    }
    with meant_warnings():
        loader, _ = StructuredDataset.create_dataloader(
            str(tmp_path / "table-with-a-telling-name"),
            storage_options=secrets,
            filters=(pc.field("k") < 765_432) & (pc.field("x") != 123_454_321),
            plan_cache=str(tmp_path / "secret-cache"),
            **OPTIONS,
        )
    list(islice(loader, 3))
    text = json.dumps(loader.state_dict())
    for word in (
        "AKIA",
        "hunter",
        "inner",
        "9000",
        "765432",
        "123454321",
        "telling",
        "cache",
        str(tmp_path),
        "parquet",
    ):
        assert word not in text


def test_the_state_of_every_running_rank_is_one_and_loads_on_every_rank(table: Path) -> None:
    whole, _ = run_stage(table, None, None, num_ranks=3, epoch=2, **OPTIONS)
    for steps in range(7):
        rows, states = run_stage(table, None, steps, num_ranks=3, epoch=2, **OPTIONS)
        state = of_a_running_rank(states)
        assert all(each in (state, ended(each)) for each in states)
        rest, _ = run_stage(table, state, None, num_ranks=3, epoch=2, **OPTIONS)
        assert [first + then for first, then in zip(rows, rest, strict=True)] == whole


def ended(state: State) -> State | None:
    return state if is_ended(state) else None


def test_rank_0s_state_handed_to_all_resumes_exactly(table: Path) -> None:
    options = OPTIONS | {"even_ranks": "balance", "num_ranks": 4, "shuffle_buffer_size": 6}
    whole, _ = run_stage(table, None, None, **options)
    rows, states = run_stage(table, None, 2, **options)
    assert all(state == states[0] for state in states)
    rest, _ = run_stage(table, states[0], None, **options)
    assert [first + then for first, then in zip(rows, rest, strict=True)] == whole
    assert sorted(set(sum(whole, []))) == list(range(TOTAL))


@pytest.mark.slow
def test_a_distributed_checkpoint_of_two_ranks_resumes_exactly(table: Path, tmp_path: Path) -> None:
    spawn(_save_and_load, args=(str(table), str(tmp_path)), nprocs=2)  # type: ignore[no-untyped-call]
    rows = [json.loads((tmp_path / f"rows-{rank}.json").read_text()) for rank in range(2)]
    assert sorted(sum(rows, [])) == list(range(TOTAL))


def _save_and_load(rank: int, table: str, folder: str) -> None:
    """Save after a change of topology and two steps, load into a new loader, and write down all rows of a rank."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    options = OPTIONS | {"even_ranks": "balance", "shuffle_buffer_size": 6}
    first, states = run_stage(Path(table), None, 1, num_ranks=3, **options)
    loader = make(Path(table), num_ranks=2, rank=rank, **options)
    loader.load_state_dict(states[0])
    rows = sum(first, []) if rank == 0 else []
    for batch in islice(loader, 2):
        rows += own_rows([batch])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        save({"loader": loader.state_dict()}, checkpoint_id=f"{folder}/checkpoint")
        fresh = make(Path(table), num_ranks=2, rank=rank, **options)
        loaded = {"loader": fresh.state_dict()}
        load(loaded, checkpoint_id=f"{folder}/checkpoint")
    fresh.load_state_dict(loaded["loader"])
    rows += own_rows(fresh)
    Path(folder, f"rows-{rank}.json").write_text(json.dumps(rows))
    dist.destroy_process_group()


def test_what_differs_between_ranks_is_in_one_value_of_the_state(table: Path) -> None:
    """A checkpoint may keep one rank's value of one key and another's of the next; each then speaks for itself."""
    steps = min(len(make(table, num_ranks=2, rank=rank, even_ranks=False, **OPTIONS)) for rank in range(2)) + 1
    _, states = run_stage(table, None, steps, num_ranks=2, even_ranks=False, **OPTIONS)
    short, long = sorted(states, key=steps_of)
    assert is_ended(short)
    assert not is_ended(long)
    assert [key for key in long if long[key] != short[key]] == ["history"]
    with pytest.raises(ResumeError, match="had ended after"):
        make(table, num_ranks=2, rank=0, even_ranks=False, **OPTIONS).load_state_dict(
            long | {"history": short["history"]}
        )
