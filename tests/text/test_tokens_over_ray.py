"""A token table is written by the tasks of a Ray cluster: the same files as one process writes."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.launchers.frameworks import run_job
from torch_table_loader import StructuredDataset, tokenize_table

pytestmark = [pytest.mark.kills, pytest.mark.timeout(300)]


def test_tasks_of_a_ray_cluster_write_what_one_process_writes(tmp_path: Path) -> None:
    texts = [f"a text with the number {row}" for row in range(200)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "texts.parquet", row_group_size=20)
    table = str(tmp_path / "texts.parquet")
    dataset = StructuredDataset(table, columns=["text"], split_size=20, output_format="arrow")
    alone = tokenize_table(dataset, tmp_path / "alone", "bytes")
    assert alone.num_parts == 10
    command = [sys.executable, "-m", "torch_table_loader.cli.main", "tokenize", table, str(tmp_path / "spread")]
    printed = run_job([*command, "--tokenizer", "bytes", "--split-size", "20", "--engine", "ray"], seconds=250)
    assert "10 of 10 files written: 200 rows" in printed
    assert "is whole" in printed
    for file in sorted((tmp_path / "alone").iterdir()):
        assert file.read_bytes() == (tmp_path / "spread" / file.name).read_bytes()
