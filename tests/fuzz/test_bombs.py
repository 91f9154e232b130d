"""The law of damaged files for bombs: their rows, or an error that names the file, in little memory and time.

The sandbox bounds what a case may allocate, and how long it may compute.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.effort import daily
from tests.fuzz.bombs import BOMBS
from tests.fuzz.cases import count_rows
from tests.launchers.sandbox import Sandbox


@pytest.mark.parametrize("name", BOMBS)
@daily(8)
def test_a_bomb_gives_its_rows_or_an_error_that_names_it(sandbox: Sandbox, tmp_path: Path, name: str) -> None:
    bomb = BOMBS[name]()
    path = tmp_path / f"bomb{bomb.suffix}"
    path.write_bytes(bomb.data)
    (outcome,) = sandbox.run_all(count_rows, [(str(path), bomb.form)])
    if outcome.kind == "value":
        assert bomb.rows in (outcome.value, -1), outcome
    else:
        assert outcome.kind == "ours", outcome
        assert path.name in outcome.text
        assert bomb.rows in (None, -1), outcome
