"""Horovod: ranks, `hvd.join` and resuming on two real processes with Gloo. ``make horovod`` builds it."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.launchers.frameworks import ROOT, run_job
from tests.tables.plain import write_clicks, write_table

pytestmark = [
    pytest.mark.kills,
    pytest.mark.skipif(find_spec("horovod") is None, reason="Horovod is not built; make horovod does"),
]
GROUPS = [[20, 5], [31], [13, 13, 13], [40], [1], [0, 6], [150]]
TOTAL = sum(map(sum, GROUPS))
HOROVODRUN = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", "--gloo", sys.executable]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Give what each of two ranks saw."""
    table, out = tmp_path_factory.mktemp("table"), tmp_path_factory.mktemp("out")
    write_table(table, GROUPS)
    run_job([*HOROVODRUN, str(ROOT / "tests/launchers/scripts/horovod_ranks.py"), str(table), str(out)])
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]


def rows_of(seen: list[dict[str, Any]], scene: str) -> list[int]:
    return sorted(row for rank in seen for batch in rank[scene]["rows"] for row in batch)


def test_the_rank_comes_from_horovod_itself(seen: list[dict[str, Any]]) -> None:
    assert [rank["found"] for rank in seen] == [[0, 2, "Horovod"], [1, 2, "Horovod"]]
    assert all("HOROVOD_RANK" in rank["environment"] and "RANK" not in rank["environment"] for rank in seen)


@pytest.mark.parametrize("scene", ["uneven", "even", "resumed"])
def test_every_row_comes_once(seen: list[dict[str, Any]], scene: str) -> None:
    assert rows_of(seen, scene) == list(range(TOTAL))


def test_ranks_with_unequal_steps_join(seen: list[dict[str, Any]]) -> None:
    steps = [len(rank["uneven"]["rows"]) for rank in seen]
    assert steps == [rank["uneven"]["told"] for rank in seen]
    assert steps[0] != steps[1]
    assert [rank["uneven"]["last_to_join"] for rank in seen] == [steps.index(max(steps))] * 2


def test_balance_takes_equal_steps(seen: list[dict[str, Any]]) -> None:
    assert [len(rank["even"]["rows"]) for rank in seen] == [-(-TOTAL // (2 * 7))] * 2


def test_every_rank_holds_one_state(seen: list[dict[str, Any]]) -> None:
    assert all(rank["resumed"]["one_state"] for rank in seen)


def test_the_example_trains_on_every_row(tmp_path: Path) -> None:
    rows = write_clicks(tmp_path / "clicks")
    printed = run_job([*HOROVODRUN, str(ROOT / "examples" / "train_horovod.py"), str(tmp_path / "clicks")])
    for epoch in range(2):
        assert f"epoch {epoch}: {rows} rows\n" in printed
