"""The README's training script goes on where it was stopped, at any step, as if it had not been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.effort import daily
from tests.rooms.test_docs import blocks_of
from torch_table_loader.cli.main import main

README = Path(__file__).parents[2] / "README.md"
STEPS = 33
"""Of an epoch; the script trains two."""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("readme") / "clicks"
    assert main(["sample", str(path)]) == 0
    return path


def run(table: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, stopped_in: int | None = None) -> dict[str, Any]:
    """Run the script in a folder; return what it saved. It may be stopped in a step, before the model changes."""
    [text] = [block.text for block in blocks_of(README) if "checkpoint.pt" in block.text]
    if not (folder / "clicks").exists():
        (folder / "clicks").symlink_to(table)
    taken, step = 0, torch.optim.SGD.step

    def counted(self: Any, *args: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken == stopped_in:
            raise KeyboardInterrupt
        return step(self, *args)

    with monkeypatch.context() as patched:
        patched.chdir(folder)
        patched.setattr(torch.optim.SGD, "step", counted)
        torch.manual_seed(0)
        exec(compile(text, "README.md", "exec"), {"__name__": "__main__"})  # noqa: S102
    saved: dict[str, Any] = torch.load(folder / "checkpoint.pt")
    return saved


@pytest.mark.parametrize("stopped_in", [1, 10, 11, STEPS, STEPS + 1, STEPS + 12, 2 * STEPS])
@daily(3)
def test_the_script_ends_with_the_same_model_wherever_it_was_stopped(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_in: int
) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "stopped").mkdir()
    whole = run(table, tmp_path / "whole", monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run(table, tmp_path / "stopped", monkeypatch, stopped_in)
    then = run(table, tmp_path / "stopped", monkeypatch)
    for name, values in whole["model"].items():
        assert torch.equal(values, then["model"][name])
    assert then["loader"] == whole["loader"]
