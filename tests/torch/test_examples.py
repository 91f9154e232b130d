"""The examples, each run on two ranks as its first lines say."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.torch.other_launchers import ROOT, run_job

EXAMPLES = ("ddp", "accelerate", "lightning")
FILES, ROWS = 7, 1200


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a table with the columns that the examples read."""
    folder = tmp_path_factory.mktemp("examples") / "clicks"
    folder.mkdir()
    rng = np.random.default_rng(1)
    for number in range(FILES):
        columns = {"label": rng.integers(0, 2, ROWS, dtype=np.int32), "price": rng.random(ROWS, dtype=np.float32)}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", row_group_size=400)
    return folder


def run_example(example: str, *arguments: Path) -> str:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return run_job([*launcher, "-m", f"examples.{example}", *map(str, arguments)])


def rows_of_epochs(printed: str) -> list[tuple[int, int]]:
    return [(int(epoch), int(rows)) for epoch, rows in re.findall(r"^epoch (\d+): (\d+) rows$", printed, re.MULTILINE)]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_trains_on_every_row(table: Path, tmp_path: Path, example: str) -> None:
    printed = run_example(example, table, tmp_path / "checkpoint")
    assert rows_of_epochs(printed) == [(0, FILES * ROWS), (1, FILES * ROWS)]


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_that_is_run_again_goes_on_at_its_last_checkpoint(table: Path, tmp_path: Path, example: str) -> None:
    run_example(example, table, tmp_path / "checkpoint")
    ((epoch, rows),) = rows_of_epochs(run_example(example, table, tmp_path / "checkpoint"))
    assert epoch == 1
    assert 0 < rows < FILES * ROWS


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_short_and_says_how_it_is_run(example: str) -> None:
    text = (ROOT / "examples" / f"{example}.py").read_text()
    assert len(text.splitlines()) < 60
    assert f" -m examples.{example} " in text
