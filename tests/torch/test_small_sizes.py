"""No batch depends on how much is done at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.tables.plain import meant_warnings
from tests.text.packing_reference import full_pack
from tests.torch.all_modes import MODES
from tests.torch.modes import Mode
from torch_table_loader import StructuredDataset
from torch_table_loader.sizes import Sizes
from torch_table_loader.testing import small_sizes

FREE = list(takewhile(lambda name: name != "columns", (field.name for field in fields(Sizes))))
"""The sizes that are neither limits nor waits, and at which no row group ends."""


@pytest.mark.parametrize("is_far", [False, True], ids=["near", "far"])
@pytest.mark.parametrize("mode", MODES, ids=str, scope="session")
@daily(2)
def test_small_steps_give_the_same_batches(mode: Mode, tables: Path, far: Callable[[], Any], is_far: bool) -> None:
    wanted = mode.read(mode.make(tables))
    with small_sizes(**dict.fromkeys(FREE, 3)), far() if is_far else nullcontext():
        assert mode.read(mode.make(tables)) == wanted


def test_small_steps_give_the_same_sequences(tmp_path: Path, url: str) -> None:
    table = pa.table({"ids": [[number] * (number % 7) for number in range(90)], "word": ["a", "b"] * 45})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=20)
    wanted, small = [], []
    for shuffle in (True, "rows"):
        wanted.append(sequences(tmp_path, shuffle=shuffle))
        with small_sizes(**dict.fromkeys(FREE, 3)):
            small.append(sequences(tmp_path, shuffle=shuffle, row_store=url if shuffle == "rows" else None))
    assert small == wanted
    assert all(wanted)


def sequences(path: Path, **options: Any) -> list[Any]:
    with meant_warnings():
        loader, _ = StructuredDataset.create_dataloader(
            str(path), batch_size=2, pack=full_pack(tokens="ids", seq_len=8), check_plan=False, **options
        )
    return [{name: batch[name].tolist() for name in ("input_ids", "position_ids")} for batch in loader]
