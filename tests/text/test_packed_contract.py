"""Sequences that are gathered by index hold the contract of items."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typing_extensions import override

from tests.effort import daily
from torch_table_loader import ConfigError, Pack, RowStore, StructuredDataset
from torch_table_loader.engine.items import TurnsOf
from torch_table_loader.planning.exclusion import Exclusions
from torch_table_loader.testing import check_items, check_map, check_turn_stream

LENGTHS = [5, 1, 17, 0, 3, 30, 2, 12, 9, 4, 6, 33, 8, 1, 7]
ROWS = len(LENGTHS)


@dataclass(frozen=True, slots=True, eq=False)
class Round(TurnsOf):
    """The turns of a source; sequences order their documents themselves."""

    @override
    def order_of(self, rows: Any) -> Any:
        raise AssertionError


def job_of(folder: Path, strategy: Any) -> Any:
    tokens = [np.arange(100 * row + 1, 100 * row + 1 + length, dtype=np.int32) for row, length in enumerate(LENGTHS)]
    pack = Pack(seq_len=8, tokens="tokens", strategy=strategy, eos_id=9, labels=None)
    options: dict[str, Any] = {"shuffle": "rows", "row_store": RowStore(str(folder)), "check_plan": False}
    job: Any = StructuredDataset.from_arrow(pa.table({"tokens": tokens}), pack=pack, batch_size=2, **options).job
    job.live_rows[""].store.open()
    return job


@pytest.mark.parametrize("strategy", ["windows", "concat", "pad", "best_fit"])
@daily(2)
def test_sequences_hold_the_contract_of_items(tmp_path: Path, strategy: Any) -> None:
    job = job_of(tmp_path, strategy)
    names, start = job.columns.names, job.start(0)
    check_turn_stream(job.items.stream(start), names, start.total, ROWS)
    check_items(job.items, job.by_step)
    if strategy == "windows":
        check_map(job.items, ROWS)
        return
    with pytest.raises(ConfigError, match="sequences in table order"):
        check_map(job.items, ROWS)


@pytest.mark.parametrize("strategy", ["concat", "pad", "best_fit"])
def test_sequences_in_turns_hold_the_contract_of_items(tmp_path: Path, strategy: Any) -> None:
    job = job_of(tmp_path, strategy)
    turns = Round("a", 0, job.columns, Exclusions().exclude([2], ROWS), 3, 1, width=8)
    count = job.items.count(turns)
    check_turn_stream(job.items.by_turn(turns), job.columns.names, 2 * count, ROWS)
