"""The examples, each run on two ranks as its first lines say."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyiceberg.catalog import load_catalog

from tests.launchers.frameworks import ROOT, run_job
from torch_table_loader.cli.sample import write_sample

EXAMPLES = ("train_ddp", "train_accelerate", "train_lightning")
"""Those that torchrun runs; Horovod and Ray Train have tests of their own."""

PAGES = ("README.md", "docs/quickstart.md")
"""Those whose training script runs alone or under torchrun."""

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


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def run_example(example: str, *arguments: Path) -> str:
    return run_job([*TORCHRUN, "2", str(ROOT / "examples" / f"{example}.py"), *map(str, arguments)])


def rows_of_epochs(printed: str) -> list[tuple[int, int]]:
    return [(int(epoch), int(rows)) for epoch, rows in re.findall(r"^epoch (\d+): (\d+) rows$", printed, re.MULTILINE)]


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_script_of_a_page_resumes_on_another_number_of_ranks(page: str, tmp_path: Path) -> None:
    text = (ROOT / page).read_text("utf-8")
    (script,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "torchelastic" in block]
    checkpoint = tmp_path / "checkpoint.pt"
    write_sample(tmp_path / "clicks")
    (tmp_path / "train.py").write_text(f"import os\nos.chdir({str(tmp_path)!r})\n{script}")
    run_job([*TORCHRUN, "2", str(tmp_path / "train.py")])
    on_two = torch.load(checkpoint)["loader"]
    run_job([*TORCHRUN, "1", str(tmp_path / "train.py")])
    on_one = torch.load(checkpoint)["loader"]
    assert on_two["epoch"] == on_one["epoch"] == 1
    assert [ranks for _, _, ranks, *_ in on_two["history"]] == [2]
    assert on_one["history"][0] == on_two["history"][0]


@pytest.mark.slow
def test_the_tabular_example_stops_early_and_evaluates_its_best_model(tmp_path: Path) -> None:
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path))
    catalog.create_namespace("shop")
    rng = np.random.default_rng(1)
    age, income = rng.integers(18, 90, 4000), rng.lognormal(10, 0.5, 4000)
    rows = {"id": range(4000), "age": age, "income": income, "churn": (age < 40).astype(np.float32)}
    catalog.create_table("shop.customers", schema=pa.table(rows).schema).append(pa.table(rows))
    printed = run_job([sys.executable, str(ROOT / "examples" / "tabular_iceberg.py"), str(tmp_path)])
    found = re.search(r"^test: ([\d.]+) of (\d+) rows right$", printed, re.MULTILINE)
    assert found is not None, printed
    assert float(found[1]) > 0.9
    assert 200 < int(found[2]) < 600


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the two tables of tokens that pre-training mixes."""
    folder = tmp_path_factory.mktemp("warehouse")
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=str(folder))
    catalog.create_namespace("lm")
    rng = np.random.default_rng(1)
    for name, documents in (("web", 300), ("code", 100)):
        tokens = [rng.integers(1, 256, rng.integers(1, 60)).tolist() for _ in range(documents)]
        table = pa.table({"input_ids": pa.array(tokens, pa.list_(pa.int32()))})
        catalog.create_table(f"lm.{name}", schema=table.schema).append(table)
    return folder


def losses(warehouse: Path, checkpoint: Path, ranks: int, steps: int) -> dict[int, float]:
    script = ROOT / "examples" / "pretrain_mixture.py"
    printed = run_job([*TORCHRUN, str(ranks), *map(str, (script, warehouse, checkpoint, steps))])
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+): loss (.*)$", printed, re.MULTILINE)}


@pytest.mark.slow
def test_pre_training_that_was_killed_goes_on_with_the_same_losses_on_another_number_of_ranks(
    warehouse: Path, tmp_path: Path
) -> None:
    whole = losses(warehouse, tmp_path / "whole", 2, 12)
    assert list(whole) == list(range(1, 13))
    before = losses(warehouse, tmp_path / "killed", 2, 10)  # the last two steps were not saved
    after = losses(warehouse, tmp_path / "killed", 1, 12)
    assert list(after) == [9, 10, 11, 12]
    assert {**before, **after} == pytest.approx(whole, abs=2e-4)


@pytest.mark.parametrize("example", [*EXAMPLES, "train_horovod", "train_ray", "tabular_iceberg"])
def test_an_example_is_short_and_says_how_it_is_run(example: str) -> None:
    text = (ROOT / "examples" / f"{example}.py").read_text()
    assert len(text.splitlines()) < 70
    assert f" examples/{example}.py" in text
