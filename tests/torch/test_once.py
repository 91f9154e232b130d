"""What a loader decides, it decides once: counted in calls, while it is made, resumed, and gives its first batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.calls import made_by
from tests.effort import daily
from torch_table_loader import StructuredDataset, option_checks, options, units
from torch_table_loader.batching import codec
from torch_table_loader.engine import machine, plan_check
from torch_table_loader.engine.jobs import bound, planner
from torch_table_loader.planning import epoch
from torch_table_loader.planning import ranks as ranks_of_plans

RANKS = 4
FILES = 4
SHAPE: dict[str, Any] = {"batch_size": 50, "even_ranks": "balance", "check_plan": False}
MODES: dict[str, dict[str, Any]] = {
    "splits": {"shuffle": "splits"},
    "mixed": {"shuffle": True},
    "windows": {"shuffle": "splits", "shuffle_buffer_size": 100},
    "rows": {"shuffle": "rows", "row_store": "memory"},
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a table of some files, of two row groups each."""
    folder = tmp_path_factory.mktemp("table")
    for number in range(FILES):
        values = np.arange(1000) + 1000 * number
        pq.write_table(pa.table({"x": values, "y": values / 2}), folder / f"{number}.parquet", row_group_size=500)
    return folder


def made(table: Path, mode: str, rank: int = 0, ranks: int = RANKS, **job: Any) -> Any:
    given = {**SHAPE, **MODES[mode], "num_ranks": ranks, "rank": rank, "num_workers": 2, **job}
    return StructuredDataset.create_dataloader(str(table), **given)[0]


def calls_of(deed: Callable[[], Any], *modules: Any) -> Counter[str]:
    """Count the calls of the functions of some modules."""
    files = {module.__file__ for module in modules}
    return Counter(call.code.co_qualname for call in made_by(deed) if call.file in files)


def checked_by(deed: Callable[[], Any]) -> Counter[str]:
    """Count the checks of single options, by what was checked."""
    checking = options.LoaderOptions.__post_init__.__code__
    checks = [call for call in made_by(deed) if call.file in (option_checks.__file__, units.__file__)]
    return Counter(call.code.co_qualname for call in checks if call.caller is checking)


@pytest.mark.parametrize("mode", MODES)
@daily(2)
def test_only_options_that_the_caller_gives_are_checked_and_each_once(table: Path, mode: str) -> None:
    given = {**SHAPE, **MODES[mode], "num_ranks": RANKS, "rank": 0, "num_workers": 2}
    assert checked_by(lambda: made(table, mode)).total() == len(given)


def test_sizes_of_global_batches_are_divided_without_another_check(table: Path) -> None:
    given: dict[str, Any] = {"global_batch_size": 100, "num_ranks": 2, "rank": 1}
    checks = checked_by(lambda: StructuredDataset(str(table), check_plan=False, **given))
    assert checks.total() == len(given) + 1


@pytest.mark.parametrize("mode", MODES)
def test_one_codec_serves_from_the_check_of_its_columns_to_the_last_batch(table: Path, mode: str) -> None:
    def read() -> None:
        loader = made(table, mode)
        list(loader)
        loader.set_epoch(1)
        next(iter(loader))

    assert calls_of(read, codec)["TensorCodec.__init__"] == 1


@pytest.mark.parametrize("mode", ["splits", "mixed", "windows"])
def test_a_resume_on_another_world_plans_all_old_ranks_at_once_and_itself_once(table: Path, mode: str) -> None:
    before = made(table, mode)
    batches = iter(before)
    for _ in range(3):
        next(batches)
    state, after = before.state_dict(), made(table, mode, 1, 3, num_workers=3)

    def resume() -> None:
        after.load_state_dict(state)
        next(iter(after))

    stages = 2
    called = calls_of(resume, epoch, planner, ranks_of_plans)
    assert called["CutEpoch.plan"] == 1
    assert called["CutEpoch._lanes"] == stages  # what all old ranks took is one call
    assert called["Planner._lay_out_cut"] == called["quotas"] == called["sliced_rows"] == stages
    assert called["_balanced"] == stages
    laid_out = calls_of(lambda: after.load_state_dict(state), planner)
    assert laid_out["Planner._lay_out_cut"] == 0  # what it planned, it kept
    before.close()
    after.close()


@pytest.mark.parametrize("mode", ["splits", "windows", "rows"])
def test_an_iterator_counts_the_threads_of_its_lanes_once(table: Path, mode: str) -> None:
    loader = made(table, mode)
    assert calls_of(lambda: iter(loader), machine)["threads_of_lanes"] == 1


def test_a_rank_that_compares_with_none_makes_nothing_to_compare(table: Path) -> None:
    """A plan is compared of a process group alone: a state, its hashes and the bounds of the table."""
    loader = made(table, "splits")
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    again = made(table, "splits")
    again.load_state_dict(state)
    assert not calls_of(lambda: next(iter(again)), plan_check)["digest_of"]
    assert not calls_of(lambda: made(table, "splits"), bound)
