"""`torch-table-loader inspect`: what it prints is what the loader does."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_table_loader import StructuredDataset
from torch_table_loader.cli.main import main

DAYS, ROWS, GROUP = 5, 70, 30


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Five days of 70 rows in three row groups each."""
    root = tmp_path / "clicks"
    for day in range(1, DAYS + 1):
        folder = root / f"day=2026-01-0{day}"
        folder.mkdir(parents=True)
        columns = {"label": np.arange(ROWS, dtype=np.int32), "price": np.ones(ROWS, np.float32)}
        pq.write_table(pa.table(columns), folder / "part-0.parquet", row_group_size=GROUP)
    return root


def numbers_below(output: str, title: str) -> list[list[int]]:
    """Return the numbers in each line of the printed table below a title; of sizes, the integer part."""
    output = re.sub(r"([\d.,]+) (bytes|KiB|MiB)", lambda found: found[1].partition(".")[0], output)
    lines = output.split(f"\n{title}", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[int(n.replace(",", "")) for n in re.findall(r"[\d,]+", line)] for line in lines]


def test_it_shows_schema_files_and_totals(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(table), "--lines", "2"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("5 files, 15 row groups, 350 rows, ")
    assert re.search(r"label +int32 +int32\n +price +float +float32\n +day +date32\[day\] +int64", output)
    assert "day=2026-01-02/part-0.parquet" in output
    assert "day=2026-01-03/part-0.parquet" not in output
    assert re.search(r"all +350 +[\d.,]+ \w+ +15 +15\n +… and 3 more", output)


@pytest.mark.parametrize("shuffle", [[], ["--shuffle", "splits", "--epoch", "3"]])
@pytest.mark.parametrize("even", ["no", "balance", "pad"])
def test_the_load_equals_what_the_ranks_loaders_deliver(
    table: Path, capsys: pytest.CaptureFixture[str], shuffle: list[str], even: str
) -> None:
    ranks, workers, batch = 3, 2, 16
    shape = ["--num-ranks", "3", "--num-workers", "2", "--batch-size", "16", "--split-size", "30"]
    assert main(["inspect", str(table), *shape, *shuffle, "--even-ranks", even]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    printed = numbers_below(captured.out, "steps")[:ranks]
    load = numbers_below(captured.out, "load of")
    even_ranks: Any = even if even != "no" else False
    for rank in range(ranks):
        with pytest.warns() if even == "no" else nullcontext():
            loader, dataset = StructuredDataset.create_dataloader(
                str(table),
                batch_size=batch,
                num_workers=workers,
                num_ranks=ranks,
                rank=rank,
                split_size=30,
                shuffle="splits" if shuffle else False,
                even_ranks=even_ranks,
                files=[f"day=2026-01-0{day}/part-0.parquet" for day in range(1, DAYS + 1)],
            )
        loader.set_epoch(3 if shuffle else 0)
        batches = list(loader)
        told = dataset.explain()
        assert printed[rank][0] == rank
        assert printed[rank][-1] == len(batches) == len(loader)
        own = sum(int((~b["padding"]).sum()) if "padding" in b else len(b["label"]) for b in batches)
        assert printed[rank][2] == own
        for worker in told.workers:
            assert load[rank * workers + worker.worker][:4] == [rank, worker.worker, worker.splits, worker.rows]
            assert load[rank * workers + worker.worker][-1] == worker.steps
    assert sum(row[2] for row in printed) == DAYS * ROWS


def test_unequal_steps_are_reported_with_the_remedy(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["inspect", str(table), "--num-ranks", "2", "--batch-size", "32"]
    assert main([*arguments, "--even-ranks", "no"]) == 0
    assert "ranks take 5 to 7 steps" in capsys.readouterr().out
    assert main(arguments) == 0
    assert "ranks take 5" not in capsys.readouterr().out


def test_a_filter_prunes_and_counts(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = ["--filter", "day >= 2026-01-03", "--filter", "label < 10"]
    assert main(["inspect", str(table), *both]) == 0
    output = capsys.readouterr().out
    assert re.search(r"day=2026-01-01/part-0.parquet +70 +[\d.,]+ \w+ +3 +0\n", output)
    assert re.search(r"day=2026-01-05/part-0.parquet +70 +[\d.,]+ \w+ +3 +1\n", output)
    assert numbers_below(output, "steps")[0][2:] == [30, numbers_below(output, "steps")[0][3], 1]
    assert "prunes 12 of 15 row groups" in output


def test_without_counting_nothing_is_claimed(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(table), "--filter", "label < 10", "--no-count-filtered"]) == 0
    output = capsys.readouterr().out
    assert "these are upper bounds" in output
    assert re.search(r"0 +5 +150 +[\d.,]+ \w+ +unknown", output.split("\nsteps", 1)[1])


def test_a_column_without_a_tensor_form_is_shown_with_its_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {
        "pairs": pa.array([[(1, 2)]], pa.map_(pa.int8(), pa.int8())),
        "tokens": pa.array([[1, 2]], pa.list_(pa.int32())),
        "grid": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)),
        "text": pa.array(["a"]),
        "inner": pa.array([{"a": 1}]),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert main(["inspect", str(tmp_path / "a.parquet")]) == 0
    output = capsys.readouterr().out
    assert re.search(
        r"pairs .* refused: take it as Python values with --unsupported list, leave it out with --columns", output
    )
    assert re.search(r"tokens .* jagged int32, an error where a null comes\n", output)
    assert re.search(r"grid .* float32\[2\], an error where a null comes\n", output)
    assert re.search(r"text .* list\n", output)
    assert re.search(r"inner .* dict, an error where a null comes\n", output)
    assert main(["inspect", str(tmp_path / "a.parquet"), "--unsupported", "list"]) == 0
    assert re.search(r"pairs .* list\n", capsys.readouterr().out)


def test_a_generator_strategy_is_shown_over_all_its_ranks(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(table), "--split-strategy", "round_robin", "--num-ranks", "2"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"splits by RoundRobinStrategy decoded(.|\n)*splits +5 +70 +70 +70", output)
    assert [row[2] for row in numbers_below(output, "steps")[:2]] == [210, 140]


def test_several_paths_are_one_table(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", *sorted(map(str, table.glob("day=*")))]) == 0
    assert capsys.readouterr().out.startswith("5 files, 15 row groups, 350 rows, ")
