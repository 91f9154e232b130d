"""`loader.rows_of` through the real loader: what the batches delivered, said without opening a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.generators import HalvesV2
from tests.launchers.jobs import make, of_a_running_rank, own_rows, run_stage, spans_of, topologies
from tests.states import State, steps_of
from tests.tables.plain import Groups, key, write_table
from torch_table_loader import ConfigError, RoundRobinStrategy
from torch_table_loader.extend import FileStorage, LiveSpan, RowSpan

GROUPS: Groups = [[9, 4, 11], [1], [], [0, 17, 5], [13, 13]]
STARTS = [0, *accumulate(sum(sizes) for sizes in GROUPS)]
BELOW_FOUR = {row for row in range(STARTS[-1]) if key(row) < 4}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("table")
    write_table(root, GROUPS)
    return root


def named(spans: Sequence[RowSpan | LiveSpan], passing: set[int]) -> list[int]:
    """Give the ordinals, over the whole table, of the rows that spans name."""
    return [row for span in spans for row in _rows(span, passing)]


def _rows(span: RowSpan | LiveSpan, passing: set[int]) -> Iterator[int]:
    file = int(span.file.split(".")[0])
    if isinstance(span, RowSpan):
        yield from range(STARTS[file] + span.row_start, STARTS[file] + span.row_stop)
        return
    first = STARTS[file] + sum(GROUPS[file][: span.row_group])
    live = [row for row in range(first, first + GROUPS[file][span.row_group]) if row in passing]
    yield from live[span.first : span.last + 1]


@st.composite
def jobs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw the options of each stage of an epoch."""
    generated = draw(st.booleans())
    cutters: list[dict[str, Any]] = [{}, {"split_size": 6}, {"split_strategy": "row_balanced", "split_size": 7}]
    generators = [HalvesV2(), RoundRobinStrategy(shuffle=True)]
    shared = {"split_strategy": draw(st.sampled_from(generators))} if generated else draw(st.sampled_from(cutters))
    shared = {"shuffle": not generated and draw(st.booleans())} | shared
    if draw(st.booleans()):
        shared["filters"] = pc.field("k") < 4
    return [shared | each for each in draw(st.lists(topologies(generated=generated), min_size=1, max_size=3))]


@pytest.mark.filterwarnings("ignore:drop_last=True leaves rank . no step")
@settings(max_examples=examples(5), deadline=None)
@given(stages=jobs(), epoch=st.integers(0, 2), taken=st.integers(0, 4))
def test_rows_of_names_what_each_batch_delivered(
    table: Path, stages: list[dict[str, Any]], epoch: int, taken: int
) -> None:
    passing = BELOW_FOUR if "filters" in stages[0] else set(range(STARTS[-1]))
    state: State | None = None
    for options in stages:
        for rank in range(options["num_ranks"]):
            loader = make(table, rank=rank, **options)
            loader.set_epoch(epoch)
            if state is not None:
                loader.load_state_dict(state)
            for step, batch in enumerate(loader, start=steps_of(loader.state_dict())):
                assert named(spans_of(loader, step), passing) == own_rows([batch])
        _, states = run_stage(table, state, taken, epoch=epoch, **options)
        state = of_a_running_rank(states)


def test_no_data_file_is_opened(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = make(table, batch_size=5, shuffle="splits", shuffle_buffer_size=8, filters=pc.field("k") < 4)
    opened: list[str] = []
    monkeypatch.setattr(FileStorage, "open", lambda _, path: opened.append(path))
    told = [loader.rows_of(step) for step in range(len(loader))]
    loader.set_epoch(3)
    assert told != [loader.rows_of(step) for step in range(len(loader))]
    assert opened == []


def test_spans_are_runs_single_rows_and_live_rows(table: Path) -> None:
    assert make(table, batch_size=12, num_workers=1).rows_of(0) == [
        RowSpan("000.parquet", 0, 9),
        RowSpan("000.parquet", 9, 12),
    ]
    shuffled = make(table, batch_size=4, num_workers=1, shuffle_buffer_size=4).rows_of(1)
    assert {span.row_start for span in shuffled if isinstance(span, RowSpan)} == {4, 5, 6, 7}
    assert all(isinstance(span, RowSpan) and span.row_stop - span.row_start == 1 for span in shuffled)
    filtered = make(table, batch_size=4, num_workers=1, filters=pc.field("k") < 4)
    in_first = len([row for row in BELOW_FOUR if row < 9])
    assert filtered.rows_of(0)[0] == LiveSpan("000.parquet", 0, 0, min(4, in_first) - 1)


def test_rows_of_speaks_of_the_stage_that_the_state_speaks_of(table: Path) -> None:
    loader = make(table, batch_size=5, shuffle="splits")
    loader.set_epoch(2)
    batches = iter(loader)
    first = next(batches)["row_id"].tolist()
    everything = set(range(STARTS[-1]))
    assert named(spans_of(loader, 0), everything) == first
    state = loader.state_dict()
    smaller = make(table, batch_size=3, shuffle="splits")
    smaller.load_state_dict(state)
    assert named(spans_of(smaller, 0), everything) == next(iter(smaller))["row_id"].tolist()


@pytest.mark.parametrize(("shuffle", "first"), [("splits", 2), ("rows", 0)])
def test_a_state_of_a_job_of_the_same_shape_goes_on_with_its_steps_where_it_knows_them(
    table: Path, shuffle: Any, first: int
) -> None:
    loader = make(table, batch_size=5, shuffle=shuffle)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    resumed = make(table, batch_size=5, shuffle=shuffle)
    resumed.load_state_dict(loader.state_dict())
    for step, batch in enumerate(resumed, start=first):
        assert named(spans_of(resumed, step), set(range(STARTS[-1]))) == batch["row_id"].tolist()


def test_a_step_that_is_not_there_and_rows_that_nobody_counted_are_refused(table: Path) -> None:
    loader = make(table, batch_size=5)
    for step in (-1, len(loader)):
        with pytest.raises(ConfigError, match=rf"step must be in \[0, {len(loader)}\), got {step}"):
            loader.rows_of(step)
    uncounted = make(table, batch_size=5, filters=pc.field("k") < 4, count_filtered=False)
    with pytest.raises(ConfigError, match="count_filtered=False gave it up"):
        uncounted.rows_of(0)


def test_spans_name_files_inside_the_table(tmp_path: Path) -> None:
    write_table(tmp_path / "day=1", [[3]])
    assert make(tmp_path, batch_size=3).rows_of(0) == [RowSpan("day=1/000.parquet", 0, 3)]
