"""Promise 6 through the real loader: a job goes on with any ranks and workers, and every row still comes once."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.generators import HalvesV1, HalvesV2
from tests.launchers.jobs import make, of_a_running_rank, own_rows, run_stage, topologies
from tests.states import State, is_ended, stages_of
from tests.tables.plain import SUFFIX, Groups, key, write_table
from torch_table_loader import ResumeError, RoundRobinStrategy
from torch_table_loader.contracts import Storage
from torch_table_loader.engine.jobs import planner
from torch_table_loader.planning.epoch import CutEpoch, epoch_order
from torch_table_loader.planning.splits import SegmentTable
from torch_table_loader.planning.strategies import Strategy
from torch_table_loader.read.row_stage import Counted
from torch_table_loader.read.tasks import TaskReader
from torch_table_loader.records import ReadTask

pytestmark = pytest.mark.filterwarnings("ignore:drop_last=True leaves rank . no step")

GROUPS: Groups = [[9, 4, 11], [1], [], [0, 17, 5], [13, 13]]
TOTAL = sum(map(sum, GROUPS))
FILTER = pc.field("k") < 4

CUTTERS: list[dict[str, Any]] = [
    {"shuffle": "splits"},
    {"split_size": 6, "shuffle": "splits"},
    {"split_size": 6},
    {"split_strategy": "row_balanced", "split_size": 7, "shuffle": "splits"},
]
GENERATORS: list[dict[str, Any]] = [
    {"split_strategy": HalvesV2()},
    {"split_strategy": RoundRobinStrategy(shuffle=True)},
]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("table")
    assert write_table(root, GROUPS) == TOTAL
    return root


def passing(options: dict[str, Any]) -> list[int]:
    return [row for row in range(TOTAL) if "filters" not in options or key(row) < 4]


@st.composite
def chains(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Draw what the stages of an epoch share, and their topologies."""
    generated = draw(st.booleans())
    shared = dict(draw(st.sampled_from(GENERATORS if generated else CUTTERS)))
    if draw(st.booleans()):
        shared["filters"] = FILTER
    return shared, draw(st.lists(topologies(generated=generated), min_size=2, max_size=6))


def loses_rows(topology: dict[str, Any]) -> bool:
    return bool(topology["drop_last"]) or topology["even_ranks"] == "drop"


@settings(max_examples=examples(5), deadline=None)
@given(
    topology=topologies(),
    shared=st.sampled_from(CUTTERS),
    filtered=st.booleans(),
    worker_type=st.sampled_from(["thread", "thread", "thread", "process"]),
    prefetch_batches=st.sampled_from([None, 1, 7]),
)
def test_saved_after_every_batch_a_fresh_loader_goes_on_with_the_rest(
    table: Path,
    topology: dict[str, Any],
    shared: dict[str, Any],
    filtered: bool,
    worker_type: str,
    prefetch_batches: int | None,
) -> None:
    options = shared | topology | {"worker_type": worker_type, "prefetch_batches": prefetch_batches}
    options |= {"filters": FILTER} if filtered else {}
    loader = make(table, rank=topology["num_ranks"] // 2, **options)
    loader.set_epoch(2)
    before = [loader.state_dict()]
    whole = []
    for batch in loader:
        whole.append(own_rows([batch]))
        before.append(loader.state_dict())
    assert len(whole) == len(loader)
    step = 1 if worker_type == "thread" else 4
    for taken in {*range(0, len(whole) + 1, step), len(whole)}:
        if is_ended(before[taken]):
            continue
        fresh = make(table, rank=topology["num_ranks"] // 2, **options)
        fresh.load_state_dict(before[taken])
        assert [own_rows([batch]) for batch in fresh] == whole[taken:]


@pytest.mark.slow
@settings(max_examples=examples(25), deadline=None)
@given(chain=chains(), steps=st.lists(st.integers(0, 5), min_size=5, max_size=5), epoch=st.integers(0, 2))
def test_every_row_comes_once_over_a_chain_of_topologies(
    table: Path, chain: tuple[dict[str, Any], list[dict[str, Any]]], steps: list[int], epoch: int
) -> None:
    shared, stages = chain
    state: State | None = None
    seen: list[int] = []
    ended_early = False
    for number, topology in enumerate(stages):
        last = number == len(stages) - 1
        delivered, states = run_stage(table, state, None if last else steps[number], epoch=epoch, **shared, **topology)
        seen += sum(delivered, [])
        state = of_a_running_rank(states)
        ended_early |= not last and loses_rows(topology) and set(seen) != set(passing(shared))
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(passing(shared))
    if not ended_early and not loses_rows(stages[-1]):
        assert sorted(seen) == passing(shared)


@pytest.mark.filterwarnings("ignore:HalvesV1.generate.* does not take ranks:UserWarning")
@settings(max_examples=examples(5), deadline=None)
@given(
    stages=st.lists(topologies(generated=True), min_size=2, max_size=4),
    steps=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    filtered=st.booleans(),
)
def test_every_rank_reads_all_under_a_generator_that_takes_no_ranks(
    table: Path, stages: list[dict[str, Any]], steps: list[int], filtered: bool
) -> None:
    shared = {"split_strategy": HalvesV1()} | ({"filters": FILTER} if filtered else {})
    state: State | None = None
    seen: list[int] = []
    for number, topology in enumerate(stages):
        last = number == len(stages) - 1
        delivered, states = run_stage(
            table, state, None if last else steps[number], **shared, **(topology | {"drop_last": False})
        )
        assert all(rows == delivered[0] for rows in delivered), "the ranks read the same"
        assert all(each == states[0] for each in states)
        seen, state = seen + delivered[0], states[0]
    assert sorted(seen) == passing(shared)


@pytest.mark.parametrize("form", list(SUFFIX))
@pytest.mark.parametrize("filtered", [False, True])
@daily(4)
def test_every_format_goes_on_at_the_next_row(tmp_path: Path, form: str, filtered: bool) -> None:
    write_table(tmp_path, [sizes for sizes in GROUPS if sum(sizes)], form)
    options: dict[str, Any] = {"form": form, "shuffle": "splits", "batch_size": 3}
    options |= {"filters": FILTER} if filtered else {}
    state: State | None = None
    seen: list[int] = []
    for ranks, workers, window, steps in [(2, 1, 10, 3), (1, 2, None, 2), (3, 2, 4, 1), (1, 1, 5, None)]:
        topology: dict[str, Any] = {"num_ranks": ranks, "num_workers": workers, "shuffle_buffer_size": window}
        delivered, states = run_stage(tmp_path, state, steps, **options, **topology)
        seen, state = seen + sum(delivered, []), of_a_running_rank(states)
    assert sorted(seen) == passing(options)


@pytest.mark.parametrize(
    "wanted", [pc.field("day") >= 2, (pc.field("day") >= 2) & (pc.field("k") < 5), pc.field("k") < 5], ids=str
)
@daily(1)
def test_hive_tables_go_on_under_filters(tmp_path: Path, wanted: pc.Expression) -> None:
    for day, sizes in enumerate([[7, 9], [12], [5, 5, 5], [20]]):
        write_table(tmp_path / f"day={day}", [sizes])
    shared: dict[str, Any] = {"filters": wanted, "shuffle": "splits"}
    [expected], _ = run_stage(tmp_path, None, None, num_ranks=1, **shared)
    state: State | None = None
    seen: list[int] = []
    for ranks, steps, even_ranks in [(3, 2, "balance"), (2, 2, None), (1, None, None)]:
        delivered, states = run_stage(
            tmp_path, state, steps, batch_size=2, num_ranks=ranks, even_ranks=even_ranks, num_workers=2, **shared
        )
        seen, state = seen + sum(delivered, []), of_a_running_rank(states)
    assert sorted(seen) == sorted(expected)
    assert len(expected) > 10


def test_one_rank_and_more_ranks_than_splits(table: Path) -> None:
    seen: list[int] = []
    state: State | None = None
    for ranks, steps in [(3, 2), (1, 4), (50, 0), (50, 1), (1, None)]:
        delivered, states = run_stage(
            table,
            state,
            steps,
            num_ranks=ranks,
            batch_size=2,
            num_workers=1,
            shuffle="splits",
            shuffle_buffer_size=7,
            even_ranks=False,
        )
        if ranks == 50 and steps:
            assert [] in delivered, "some ranks have no row"
        seen, state = seen + sum(delivered, []), of_a_running_rank(states)
    assert sorted(seen) == list(range(TOTAL))


def test_a_table_of_one_split_goes_on_on_other_ranks(tmp_path: Path) -> None:
    total = write_table(tmp_path, [[40]])
    taken, states = run_stage(tmp_path, None, 3, num_ranks=1, batch_size=4, num_workers=1)
    rest, _ = run_stage(tmp_path, states[0], None, num_ranks=2, batch_size=4, num_workers=2)
    assert sorted(sum(taken + rest, [])) == list(range(total))


def test_worker_types_change_nothing(table: Path) -> None:
    options: dict[str, Any] = {"shuffle": "splits", "batch_size": 5, "num_workers": 2, "shuffle_buffer_size": 11}
    first, states = run_stage(table, None, 3, num_ranks=2, worker_type="process", **options)
    by_threads, _ = run_stage(table, states[0], None, num_ranks=3, **options)
    by_processes, _ = run_stage(table, states[0], None, num_ranks=3, worker_type="process", **options)
    assert by_threads == by_processes
    assert sorted(sum(first + by_threads, [])) == list(range(TOTAL))


def test_what_padding_repeats_is_left_out_of_what_was_consumed(table: Path) -> None:
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 1, "shuffle": "splits"}
    padded, states = run_stage(table, None, 5, num_ranks=3, even_ranks="pad", **options)
    rest, _ = run_stage(table, of_a_running_rank(states), None, num_ranks=2, **options)
    assert sorted(sum(padded + rest, [])) == list(range(TOTAL))


@pytest.mark.parametrize("worker_type", ["thread", "process"])
@daily(1)
def test_padding_is_marked_where_it_repeats_rows_of_a_window_that_was_open(table: Path, worker_type: str) -> None:
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 1, "shuffle_buffer_size": 30}
    taken, states = run_stage(table, None, 2, num_ranks=1, **options)
    for ranks in (4, 5, 7):
        world: dict[str, Any] = {"num_ranks": ranks, "even_ranks": "pad", "worker_type": worker_type}
        rest, _ = run_stage(table, states[0], None, **options | world)
        assert sorted(sum(taken + rest, [])) == list(range(TOTAL))


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("drop_last", [False, True])
@daily(2)
def test_uncounted_rows_go_on_after_every_batch_on_their_own_rank(
    table: Path, window: int | None, drop_last: bool
) -> None:
    options: dict[str, Any] = {"filters": FILTER, "count_filtered": False, "batch_size": 3, "num_ranks": 2, "rank": 1}
    options |= {"num_workers": 2, "shuffle": "splits", "shuffle_buffer_size": window, "drop_last": drop_last}
    loader = make(table, **options)
    whole = [own_rows([batch]) for batch in loader]
    for taken in range(len(whole) + 1):
        loader.set_epoch(0)
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        fresh = make(table, **options)
        fresh.load_state_dict(loader.state_dict())
        assert [own_rows([batch]) for batch in fresh] == whole[taken:]
    with pytest.raises(ResumeError, match="count_filtered=False does not"):
        make(table, **options).load_state_dict(make(table, **(options | {"count_filtered": True})).state_dict())


def test_a_counted_state_counts_the_whole_table_only_for_another_topology(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"filters": FILTER, "batch_size": 2, "num_workers": 1, "shuffle": "splits"}
    options["even_ranks"] = False
    _, states = run_stage(table, None, 2, num_ranks=3, **options)
    counted: list[int] = []
    count = TaskReader.counted

    def watched(reader: TaskReader, task: ReadTask, storage: Storage | None = None) -> list[list[Counted]]:
        counted.append(task.file_index)
        return count(reader, task, storage)

    monkeypatch.setattr(TaskReader, "counted", watched)
    loader = make(table, num_ranks=3, rank=0, **options)
    own = set(counted)
    loader.load_state_dict(states[0])
    next(iter(loader))
    assert set(counted) == own
    counted.clear()
    make(table, **options)
    every = set(counted)
    assert own < every
    counted.clear()
    make(table, num_ranks=2, rank=0, **options).load_state_dict(states[0])
    assert set(counted) == every


def test_the_history_grows_by_one_entry_a_change_and_ends_with_the_epoch(table: Path) -> None:
    state: State | None = None
    for number, ranks in enumerate([1, 2, 2, 3, 1], start=1):
        _, states = run_stage(table, state, 1, num_ranks=ranks, batch_size=2, num_workers=2, shuffle="splits")
        state = of_a_running_rank(states)
        assert len(stages_of(state)) == number - (number > 2)
    loader = make(table, num_ranks=1, batch_size=2, num_workers=2, shuffle="splits")
    loader.load_state_dict(json.loads(json.dumps(state)))
    loader.set_epoch(1)
    assert len(stages_of(loader.state_dict())) == 1
    assert sorted(own_rows(loader)) == list(range(TOTAL))
    assert [stage["steps"] for stage in stages_of(loader.state_dict())] == [len(loader)]


@pytest.mark.parametrize(
    "options", [{"split_size": 6, "shuffle": "splits"}, {"split_strategy": HalvesV2()}], ids=["cut", "dealt"]
)
@pytest.mark.parametrize("filters", [None, FILTER], ids=["all rows", "filtered"])
@pytest.mark.parametrize("history", [[(4, 2)], [(4, 2), (2, 3), (1, 1)]], ids=["one stage", "three stages"])
@daily(3)
def test_each_stage_is_laid_out_once_for_all_that_is_asked(
    table: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    filters: pc.Expression | None,
    history: list[tuple[int, int]],
) -> None:
    shared: dict[str, Any] = options | {"filters": filters, "batch_size": 2}
    state: State | None = None
    for number, (ranks, lanes) in enumerate(history):
        loader = make(table, num_ranks=ranks, rank=0, num_workers=lanes, **shared)
        loader.set_epoch(1)
        if state is not None:
            loader.load_state_dict(state)
        batches = iter(loader)
        [next(batches) for _ in range(1 + number % 2)]
        state = loader.state_dict()
    loader = make(table, num_ranks=3, rank=1, num_workers=3, **shared)
    permuted, laid_out = count_layouts(monkeypatch)
    assert state is not None
    loader.load_state_dict(state)
    assert len(loader) > 0
    next(iter(loader))
    own = (3, 3)  # which `len` asks from the epoch's start too, since that is how many steps the next epochs have
    stages = Counter([*enumerate(history), (len(history), own), (0, own)])
    if "split_strategy" in options:
        dealt = Counter((shape, rank) for _, shape in stages.elements() for rank in range(shape[0]))
        assert (permuted, laid_out) == ([], dealt)
    else:
        assert (permuted, laid_out) == ([1], stages)


@pytest.mark.parametrize("filters", [None, FILTER], ids=["all rows", "filtered"])
@pytest.mark.parametrize("mixed", [True, "splits"], ids=["mixed", "splits"])
@daily(2)
def test_rows_are_placed_once_for_all_stages_and_all_ranks_of_each_are_planned_at_once(
    table: Path, monkeypatch: pytest.MonkeyPatch, mixed: Any, filters: pc.Expression | None
) -> None:
    options: dict[str, Any] = {"split_size": 6, "shuffle": mixed, "filters": filters, "batch_size": 2}
    state: State | None = None
    history = [(4, 2), (2, 3), (3, 1)]
    for ranks, lanes in history:
        loader = make(table, num_ranks=ranks, rank=0, num_workers=lanes, **options)
        if state is not None:
            loader.load_state_dict(state)
        next(iter(loader))
        state = loader.state_dict()
    placed, planned = list[SegmentTable](), Counter[Any]()
    bases, lanes_of = vars(SegmentTable)["bases"].func, CutEpoch._lanes

    def noted_bases(segments: SegmentTable) -> Any:
        placed.append(segments)
        return bases(segments)

    def counted_lanes(job: CutEpoch, ranks: Any) -> Any:
        planned[job.stage, job.topology, tuple(ranks.tolist())] += 1
        return lanes_of(job, ranks)

    lazily = cached_property(noted_bases)
    lazily.__set_name__(SegmentTable, "bases")
    monkeypatch.setattr(SegmentTable, "bases", lazily)
    monkeypatch.setattr(CutEpoch, "_lanes", counted_lanes)
    loader = make(table, num_ranks=5, rank=1, num_workers=2, **options)
    assert state is not None
    loader.load_state_dict(state)
    next(iter(loader))
    assert len(placed) == 1
    assert {stage for stage, _, _ in planned} == {0, 1, 2, 3}
    assert set(planned.values()) == {1}
    assert len(planned) == 2 + len(history)  # two are this rank's own; what all old ranks took is one call a stage
    sent = pickle.loads(pickle.dumps(placed[0]))  # noqa: S301 what was pickled here
    assert "bases" in vars(placed[0])
    assert "bases" not in vars(sent)


def count_layouts(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], Counter[Any]]:
    """Note from now on which epochs are permuted; and count which stages are laid out, or dealt to each rank."""
    permuted, laid_out = list[int](), Counter[Any]()
    order, deal, runs = epoch_order, Strategy.deal, vars(CutEpoch)["runs"].func

    def noted_order(segments: Any, *, epoch: int, **options: Any) -> Any:
        permuted.append(epoch)
        return order(segments, epoch=epoch, **options)

    def counted_deal(strategy: Any, layout: Any, lanes: int, epoch: int, ranks: int, rank: int, *files: Any) -> Any:
        laid_out[(ranks, lanes), rank] += 1
        return deal(strategy, layout, lanes, epoch, ranks, rank, *files)

    def counted_runs(job: CutEpoch) -> Any:
        laid_out[job.stage, (job.topology.num_ranks, job.topology.lanes)] += 1
        return runs(job)

    lazily = cached_property(counted_runs)
    lazily.__set_name__(CutEpoch, "runs")
    monkeypatch.setattr(planner, "epoch_order", noted_order)
    monkeypatch.setattr(Strategy, "deal", counted_deal)
    monkeypatch.setattr(CutEpoch, "runs", lazily)
    return permuted, laid_out
