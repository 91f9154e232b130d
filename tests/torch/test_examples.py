"""The examples, each run on two ranks as its first lines say."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import boto3
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from demo.moto import serving_moto
from tests.launchers.frameworks import ROOT, clean_environment, run_job
from tests.launchers.killed_jobs import wait_until
from tests.states import stages_of
from tests.tables.catalogs import load_catalog
from torch_table_loader import StructuredDataset
from torch_table_loader.cli.main import main

LINES = {
    "messy_files": 65,
    "moved_from_dataloader": 65,
    "pretrain_mixture": 85,
    "tabular_iceberg": 60,
    "train_accelerate": 60,
    "train_ddp": 60,
    "train_horovod": 60,
    "train_lightning": 50,
    "train_ray": 60,
    "train_trainer": 20,
}
"""How long each example may be; Horovod and Ray Train have tests of their own."""

PAGES = ("README.md", "docs/quickstart.md")
"""Those whose training script runs alone or under torchrun."""

FILES, ROWS = 7, 1200
CUSTOMERS, BATCH = 4000, 256
LOGIN = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLEEXAMPLE", "AWS_SECRET_ACCESS_KEY": "a-secret"}
"""The simulated S3 takes any."""

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a table with the columns that the examples read."""
    folder = tmp_path_factory.mktemp("examples") / "clicks"
    folder.mkdir()
    rng = np.random.default_rng(1)
    for number in range(FILES):
        columns = {
            "label": rng.integers(0, 2, ROWS, dtype=np.int32),
            "price": rng.random(ROWS, dtype=np.float32),
            "ad": rng.integers(0, 500, ROWS),
        }
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", row_group_size=400)
    return folder


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an Iceberg table of customers, of whom the young ones leave, with some noise."""
    folder = tmp_path_factory.mktemp("shop")
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=str(folder))
    catalog.create_namespace("shop")
    rng = np.random.default_rng(1)
    age, income = rng.integers(18, 90, CUSTOMERS), rng.lognormal(10, 0.5, CUSTOMERS)
    churn = ((age < 40) ^ (rng.random(CUSTOMERS) < 0.05)).astype(np.float32)
    rows = pa.table({"id": range(CUSTOMERS), "age": age, "income": income, "churn": churn})
    catalog.create_table("shop.customers", schema=rows.schema).append(rows)
    return folder


def run_example(example: str, *arguments: object, ranks: int = 2, **environment: str) -> str:
    command = [*TORCHRUN, str(ranks), str(ROOT / "examples" / f"{example}.py"), *map(str, arguments)]
    return run_job(command, 110, **environment)


def kill_example(example: str, *arguments: object, once: Callable[[], bool], **environment: str) -> None:
    """Start an example on two ranks, and end it as a scheduler does, once something has happened."""
    command = [*TORCHRUN, "2", str(ROOT / "examples" / f"{example}.py"), *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, env=clean_environment(**environment), stderr=subprocess.DEVNULL) as job:
        wait_until(once, f"{example} saves its state")
        job.terminate()
        assert job.wait() != 0, "it ended before it was killed"


def rows_of_epochs(printed: str) -> list[tuple[int, int]]:
    return [(int(epoch), int(rows)) for epoch, rows in re.findall(r"^epoch (\d+): (\d+) rows\b", printed, re.MULTILINE)]


@pytest.mark.slow
def test_accelerate_trains_on_every_row_and_goes_on_at_its_last_checkpoint(table: Path, tmp_path: Path) -> None:
    printed = run_example("train_accelerate", table, tmp_path / "checkpoint")
    assert rows_of_epochs(printed) == [(0, FILES * ROWS), (1, FILES * ROWS)]
    ((epoch, rows),) = rows_of_epochs(run_example("train_accelerate", table, tmp_path / "checkpoint"))
    assert epoch == 1
    assert 0 < rows < FILES * ROWS


@pytest.mark.rare
def test_clicks_on_s3_are_trained_and_validated_and_a_killed_job_resumes_on_one_rank(
    table: Path, tmp_path: Path
) -> None:
    parts = StructuredDataset(table).split({"train": 0.9, "val": 0.1}, by="ad")
    every = parts["train"].explain().live_rows
    checkpoint = tmp_path / "checkpoint.pt"
    with serving_moto(tmp_path / "server.log") as url:
        client = boto3.client("s3", endpoint_url=url, **{name.lower(): value for name, value in LOGIN.items()})
        client.create_bucket(Bucket="lake")
        for file in table.iterdir():
            client.upload_file(str(file), "lake", f"clicks/{file.name}")
        store = {"AWS_ENDPOINT_URL": url, **LOGIN}
        kill_example("train_ddp", "s3://lake/clicks", checkpoint, once=checkpoint.exists, **store)
        taken = stages_of(torch.load(checkpoint)["loader"])[0]["steps"] * 2 * BATCH
        printed = run_example("train_ddp", "s3://lake/clicks", checkpoint, ranks=1, **store)
    resumed = rows_of_epochs(printed)
    assert resumed[-1] == (1, every)
    assert resumed[0] in ((0, every - taken), (1, every))
    assert printed.count("validation loss 0.") == len(resumed)


@pytest.mark.slow
def test_a_lightning_job_that_was_killed_resumes_on_one_rank_and_stops_early(shop: Path, tmp_path: Path) -> None:
    last = tmp_path / "last.ckpt"
    kill_example("train_lightning", shop, tmp_path, once=last.exists)
    printed = run_example("train_lightning", shop, tmp_path, ranks=1)
    assert f"Restored all states from the checkpoint at {last}" in printed
    assert "`max_epochs=50` reached" not in printed
    callbacks = torch.load(last, weights_only=False)["callbacks"]
    (stopping,) = (state for name, state in callbacks.items() if "EarlyStopping" in name)
    assert stopping["best_score"] < 0.5


@pytest.mark.rare
def test_a_table_of_tokens_is_trained_under_accelerate_and_resumes_on_one_rank(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    tokens = [rng.integers(1, 256, rng.integers(1, 60)).tolist() for _ in range(300)]
    pq.write_table(pa.table({"input_ids": tokens}), tmp_path / "tokens.parquet", row_group_size=50)
    script, out = str(ROOT / "examples" / "train_trainer.py"), tmp_path / "out"
    launch = (sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes")
    for ranks in ("2", "1"):
        run_job([*launch, ranks, script, str(tmp_path / "tokens.parquet"), str(out)])
        newest = max(out.glob("checkpoint-*"), key=lambda folder: int(folder.name.partition("-")[2]))
        assert json.loads((newest / "trainer_state.json").read_text())["epoch"] == 2
        for folder in out.glob("checkpoint-*"):
            if folder.name != "checkpoint-10":
                shutil.rmtree(folder)  # as if the job had been killed after step 10


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_script_of_a_page_resumes_on_another_number_of_ranks(page: str, tmp_path: Path) -> None:
    text = (ROOT / page).read_text("utf-8")
    (script,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "torchelastic" in block]
    checkpoint = tmp_path / "checkpoint.pt"
    assert main(["sample", str(tmp_path / "clicks")]) == 0
    (tmp_path / "train.py").write_text(f"import os\nos.chdir({str(tmp_path)!r})\n{script}")
    run_job([*TORCHRUN, "2", str(tmp_path / "train.py")])
    on_two = torch.load(checkpoint)["loader"]
    run_job([*TORCHRUN, "1", str(tmp_path / "train.py")])
    on_one = torch.load(checkpoint)["loader"]
    assert on_two["epoch"] == on_one["epoch"] == 1
    assert [stage["num_ranks"] for stage in stages_of(on_two)] == [2]
    assert stages_of(on_one)[0] == stages_of(on_two)[0]


@pytest.mark.slow
def test_the_tabular_example_stops_early_and_evaluates_its_best_model(shop: Path) -> None:
    printed = run_job([sys.executable, str(ROOT / "examples" / "tabular_iceberg.py"), str(shop)])
    share, of = right_of(printed)
    assert share > 0.85
    assert 200 < of < 600


@pytest.mark.slow
def test_messy_exports_are_trained_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for number, rows in enumerate((1500, 200, 900)):
        age, income = rng.integers(18, 90, rows), rng.lognormal(10, 0.5, rows).round()
        city = rng.choice(["Köln", "Zürich", "Lyon"], rows)
        left = (age < 40) ^ (city == "Lyon")
        lines = ["customer;age;income;city;left"]
        for row in range(rows):
            gaps = "-" if row % 40 == 0 else age[row], "n/a" if row % 33 == 0 else city[row]
            lines.append(f"{number}{row:05};{gaps[0]};{income[row]:.0f};{gaps[1]};{int(left[row])}")
        data = ("\n".join(lines) + "\n").encode("latin-1")
        if number == 1:
            (tmp_path / "1.csv.gz").write_bytes(gzip.compress(data))
        else:
            (tmp_path / f"{number}.csv").write_bytes(data)
    printed = run_job([sys.executable, str(ROOT / "examples" / "messy_files.py"), str(tmp_path)])
    share, of = right_of(printed)
    assert share > 0.9
    assert 400 < of < 700


def right_of(printed: str) -> tuple[float, int]:
    """Return which share of how many rows an example says it got right."""
    found = re.search(r"^test: ([\d.]+) of (\d+) rows right$", printed, re.MULTILINE)
    assert found is not None, printed
    return float(found[1]), int(found[2])


@pytest.mark.slow
def test_what_was_a_dataloader_trains_and_resumes_on_one_rank(tmp_path: Path) -> None:
    rng, folder = np.random.default_rng(1), tmp_path / "clicks"
    folder.mkdir()
    for number in range(FILES):
        price = rng.random(ROWS, dtype=np.float32)
        columns = {"label": (price < 0.5).astype(np.int32), "price": price, "ad": rng.integers(0, 500, ROWS)}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", row_group_size=400)
    held_out = StructuredDataset(folder).split({"train": 0.9, "val": 0.1}, by="ad")["val"].explain().live_rows
    printed = run_example("moved_from_dataloader", folder, tmp_path / "checkpoint.pt")
    shares = re.findall(r"^epoch (\d): ([\d.]+) of (\d+) rows right$", printed, re.MULTILINE)
    assert [(epoch, int(rows)) for epoch, _, rows in shares] == [(str(epoch), held_out) for epoch in range(3)]
    assert float(shares[-1][1]) > 0.8
    assert run_example("moved_from_dataloader", folder, tmp_path / "checkpoint.pt", ranks=1) in printed


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


@pytest.mark.parametrize("example", LINES)
def test_an_example_is_short_and_says_how_it_is_run(example: str) -> None:
    text = (ROOT / "examples" / f"{example}.py").read_text()
    assert len(text.splitlines()) <= LINES[example]
    assert f" examples/{example}.py" in text


def test_every_example_is_tested() -> None:
    assert sorted(LINES) == sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "__init__")
