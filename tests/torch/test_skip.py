"""Batches that are left out after a spike: what comes behind them is what would have come behind them anyway."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.effort import daily
from tests.text.packed_modes import EVERY_PACK, FLAT_MODES
from tests.torch.all_modes import MODES
from tests.torch.modes import MIXTURE, PROCESSES, ROWS, SOME, SPLITS, Mode
from torch_table_loader import ConfigError, Pack, TableLoader
from torch_table_loader.cli.main import main

pytestmark = pytest.mark.usefixtures("small_gathers")

EVERY = pytest.mark.parametrize("mode", [*MODES, *FLAT_MODES], ids=str)


def world(mode: Mode, tables: Path, ranks: int, state: Any = None, **options: Any) -> list[TableLoader]:
    """Make the loaders of a job, which go on from a state."""
    options = {"num_ranks": ranks, "even_ranks": "pad", "batch_size": 3} | options
    loaders = [mode.make(tables, rank=rank, **options) for rank in range(ranks)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    return loaders


@EVERY
@pytest.mark.parametrize("skipped", [0, 1, 4])
@daily(6)
def test_what_comes_behind_is_what_would_have_come(mode: Mode, tables: Path, skipped: int) -> None:
    """A job of two ranks is saved after its spike, and a job of any ranks leaves batches out."""
    saved = world(mode, tables, 2)
    for loader in saved:
        list(islice(loader, 2))
    state = saved[0].state_dict()
    for ranks in (1, 2, 3):
        plain, leaving = (world(mode, tables, ranks, state) for _ in range(2))
        for taken, left in zip(plain, leaving, strict=True):
            batches = iter(taken)
            mode.read(islice(batches, skipped))
            left.skip(min(skipped, left.remaining))
            assert left.state_dict() == taken.state_dict()
            assert left.remaining == taken.remaining
            again = world(mode, tables, ranks, left.state_dict())[left.dataset.job.rank]  # type: ignore[attr-defined]
            wanted = mode.read(batches)
            assert mode.read(left) == wanted
            assert mode.read(again) == wanted
            assert left.state_dict() == taken.state_dict()


@EVERY
@pytest.mark.parametrize("options", [{}, PROCESSES, {"num_workers": 0}], ids=str)
@daily(6)
def test_a_running_iterator_goes_on_behind_them(mode: Mode, tables: Path, options: dict[str, Any]) -> None:
    plain, leaving = (mode.make(tables, batch_size=3, **options) for _ in range(2))
    wanted = mode.read(plain)
    found = []
    for number, batch in enumerate(leaving):
        found.append(mode.rows(batch))
        if number == 1:
            leaving.skip(3)
    assert found == wanted[:2] + wanted[5:]
    assert leaving.state_dict() == plain.state_dict()
    assert leaving.metrics().batches == len(found)


def test_skips_reach_into_the_next_epoch_of_an_iteration(tables: Path) -> None:
    for epochs in (3, "forever"):
        plain, leaving = (ROWS.make(tables, batch_size=30, epochs=epochs) for _ in range(2))
        steps = 9 if epochs == 3 else 12
        wanted = ROWS.read(islice(plain, steps))
        batches = iter(leaving)
        found = ROWS.read(islice(batches, 2))
        leaving.skip(5)
        assert leaving.state_dict()["epoch"] == 2
        assert found + ROWS.read(islice(batches, steps - 7)) == wanted[:2] + wanted[7:]
        assert leaving.state_dict() == plain.state_dict()


@pytest.mark.parametrize("mode", [SPLITS, ROWS, MIXTURE], ids=str)
def test_more_than_are_left_cannot_be_left_out(mode: Mode, tables: Path) -> None:
    loader = mode.make(tables)
    list(islice(loader, 2))
    left, state = loader.remaining, loader.state_dict()
    with pytest.raises(ConfigError, match=rf"skip\({left + 3}\) leaves out 3 batches more than .* which has {left};"):
        loader.skip(left + 3)
    with pytest.raises(ConfigError, match="batches must be at least 0, got -1"):
        loader.skip(-1)
    assert loader.state_dict() == state
    loader.skip(left)
    assert loader.remaining == 0
    assert mode.read(loader) == []


UNEVEN: list[tuple[Mode, dict[str, Any]]] = [
    (SPLITS, {"split_size": 30}),
    (ROWS, {"batch_size": 12}),
    (MIXTURE, {"batch_size": 12}),
]


@pytest.mark.parametrize(("mode", "options"), UNEVEN, ids=str)
def test_ranks_that_end_before_others_have_ended(mode: Mode, tables: Path, options: dict[str, Any]) -> None:
    plain, leaving = (world(mode, tables, 2, even_ranks=None, num_workers=1, **options) for _ in range(2))
    steps = max(len(loader) for loader in plain)
    for skipped in (steps - 1, steps):
        for taken, left in zip(plain, leaving, strict=True):
            taken.set_epoch(0)
            mode.read(islice(taken, skipped))
            left.seek(step=0)
            left.skip(skipped)
            assert left.state_dict() == taken.state_dict()
    leaving[0].seek(step=0)
    with pytest.raises(ConfigError, match=f"which has {steps};"):
        leaving[0].skip(steps + 1)


def test_rows_that_are_not_counted_are_left_out_too(tables: Path) -> None:
    options: dict[str, Any] = {"filters": SOME, "count_filtered": False}
    plain, leaving = (SPLITS.make(tables, **options) for _ in range(2))
    wanted = SPLITS.read(plain)
    leaving.skip(3)
    state = leaving.state_dict()
    assert SPLITS.read(leaving) == wanted[3:]
    leaving.load_state_dict(state)
    assert SPLITS.read(leaving) == wanted[3:]


def test_a_batch_is_as_large_as_a_step_of_the_optimizer(tables: Path) -> None:
    job: dict[str, Any] = {"global_batch_size": 12, "batch_size": 2, "even_ranks": None}
    plain, leaving = (world(ROWS, tables, 2, **job) for _ in range(2))
    for taken, left in zip(plain, leaving, strict=True):
        wanted = ROWS.read(taken)
        left.skip(2)
        assert ROWS.read(left) == wanted[6:]


CHANGING: list[tuple[str, dict[str, Any]]] = [
    ("rows", {"global_batch_size": {0: 4, 3: 8, 5: 12}}),
    ("mixture", {"weights": {0: {"a": 1, "b": 1}, 3: {"a": 3, "b": 1}}}),
    ("streams", {"weights": {0: {"a": 1, "b": 1}, 3: {"a": 3, "b": 1}}}),
]
PACKS = [f"{kind} by concat" for kind in ("packs", "packed items")]


@pytest.mark.parametrize("skipped", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("name", "options"), [*CHANGING, *((name, {"pack": Pack(seq_len={0: 5, 3: 9}, output=None)}) for name in PACKS)]
)
@daily(7)
def test_they_reach_over_what_changes_by_step(tables: Path, name: str, options: dict[str, Any], skipped: int) -> None:
    [mode] = {str(mode): mode for mode in [*MODES, *EVERY_PACK] if str(mode) == name}.values()

    def read(batches: Any) -> list[Any]:
        return [batch["input_ids" if "input_ids" in batch else "x"].tolist() for batch in batches]

    plain, leaving = (mode.make(tables, num_workers=1, **options) for _ in range(2))
    wanted = read(plain)
    batches = iter(leaving)
    found = read(islice(batches, 1))
    leaving.skip(skipped)
    assert found + read(batches) == wanted[:1] + wanted[1 + skipped :]


@EVERY
@daily(6)
def test_the_command_line_leaves_steps_out_of_a_state(
    mode: Mode, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anchors aside, which only say where a walk begins to look."""
    saved = world(mode, tables, 2)
    for loader in saved:
        list(islice(loader, 2))
    (tmp_path / "state.json").write_text(json.dumps(saved[0].state_dict()))
    rows = [] if saved[0].state_dict()["kind"] == "splits" else ["--rows-per-step", "6"]
    typed = ["skip", *(str(tmp_path / name) for name in ("state.json", "later.json")), "--steps", "2", *rows]
    assert main(typed) == 0, capsys.readouterr().err
    assert "goes on 2 steps after" in capsys.readouterr().out
    later = json.loads((tmp_path / "later.json").read_text())
    for ranks in (1, 2, 3):
        for loader, wanted in zip(world(mode, tables, ranks, later), world(mode, tables, ranks), strict=True):
            wanted.load_state_dict(behind(saved[0], 2))
            assert mode.read(loader) == mode.read(wanted)
    if rows:
        assert main(typed[:-2]) == 2
        assert "counts rows, or sequences: pass how many a step" in capsys.readouterr().err
        return
    assert main([*typed, "--rows-per-step", "6"]) == 2
    assert "counts steps: leave out the rows" in capsys.readouterr().err


def behind(loader: TableLoader, batches: int) -> dict[str, Any]:
    """Give the state of a loader that leaves batches out."""
    state = loader.state_dict()
    loader.skip(batches)
    after = loader.state_dict()
    loader.load_state_dict(state)
    return after


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), ("{", "as JSON"), ("[]", "expected what state_dict"), ("{}", "without a version")],
)
def test_what_is_no_state_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, said: str
) -> None:
    if content is not None:
        (tmp_path / "state.json").write_text(content)
    assert main(["skip", str(tmp_path / "state.json"), str(tmp_path / "out.json"), "--steps", "1"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()
