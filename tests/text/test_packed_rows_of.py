"""`rows_of` of packed streams where documents might be taken for rows, and where lengths change."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.tables.plain import meant_warnings
from tests.text.packing_reference import GROUPS, PackStrategy, write_documents
from torch_table_loader import Pack, StructuredDataset, TableLoader
from torch_table_loader.extend import RowSpan


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("documents")
    write_documents(root, GROUPS)
    return root


def make(root: Path, pack: Pack, **options: Any) -> TableLoader:
    with meant_warnings():
        asked: dict[str, Any] = {"check_plan": False, "row_id": True, "columns": ["id"], "pack": pack}
        return StructuredDataset.create_dataloader(str(root), "parquet", **(asked | options))[0]


def check(root: Path, loader: TableLoader, batches: list[Any]) -> None:
    """Compare what `rows_of` says of the first steps with what came."""
    files = sorted(root.glob("*.parquet"))
    sizes = [pq.read_metadata(file).num_rows for file in files]
    starts = dict(zip((file.name for file in files), np.cumsum([0, *sizes]).tolist(), strict=False))
    for step, batch in enumerate(batches):
        spans: Any = loader.rows_of(step)
        assert all(isinstance(span, RowSpan) and span.row_stop == span.row_start + 1 for span in spans)
        ids = [starts[span.file] + span.row_start for span in spans]
        assert ids == np.asarray(batch["documents"]["row_id"]).tolist()


@pytest.mark.parametrize("strategy", ["concat", "pad", "best_fit"])
def test_as_many_tokens_or_sequences_as_rows_are_not_taken_for_rows(tmp_path: Path, strategy: PackStrategy) -> None:
    write_documents(tmp_path, [[0, 2, 1]], files=1)
    for seq_len in (1, 2):
        with make(tmp_path, Pack(seq_len=seq_len, strategy=strategy), batch_size=1) as loader:
            check(tmp_path, loader, list(loader))


def test_a_schedule_of_lengths_counts_steps_from_each_length(table: Path) -> None:
    with make(table, Pack(seq_len={0: 3, 2: 7}), batch_size=2) as loader:
        check(table, loader, list(islice(loader, 2)))
