"""A stream takes few steps in Python: threads take them one at a time, since each holds Python's lock."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import FrameType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_table_loader import StructuredDataset

GROUP_ROWS = 40_000
"""Such row groups are read whole."""


def steps_of_epoch(folder: Path, columns: int, groups: int, batch_size: int, files: int = 1) -> int:
    """Count the functions of Python that an epoch calls; another one came before it."""
    rows = groups * GROUP_ROWS
    values = pa.array(np.arange(rows, dtype=np.float32))
    folder /= f"{columns}-{groups}-{files}"
    folder.mkdir(exist_ok=True)
    table = pa.table({f"x{column}": values for column in range(columns)})
    for file in range(files):
        part = table.slice(file * rows // files, rows // files)
        pq.write_table(part, folder / f"{file}.parquet", row_group_size=GROUP_ROWS)
    loader, _ = StructuredDataset.create_dataloader(
        str(folder), batch_size=batch_size, shuffle="splits", num_workers=0, epochs=1
    )
    found = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal found
        found += event == "call"

    for _ in loader:
        pass
    loader.set_epoch(1)
    gc.disable()  # a collection calls what others have registered
    sys.setprofile(count)
    try:
        batches = sum(1 for _ in loader)
    finally:
        sys.setprofile(None)
        gc.enable()
    assert batches == rows // batch_size
    return found


@pytest.mark.parametrize("columns", [1, 40])
def test_a_batch_takes_few_steps_however_many_columns_it_has(tmp_path: Path, columns: int) -> None:
    few, many = (steps_of_epoch(tmp_path, columns, 1, batch_size) for batch_size in (4000, 100))
    assert many - few <= 4 * 390


def test_a_row_group_takes_few_steps(tmp_path: Path) -> None:
    one, three = (steps_of_epoch(tmp_path, 1, groups, 4000) for groups in (1, 3))
    assert three - one <= 2 * 100


def test_a_column_of_a_row_group_takes_few_steps(tmp_path: Path) -> None:
    narrow, wide = (
        steps_of_epoch(tmp_path, columns, 3, 4000) - steps_of_epoch(tmp_path, columns, 1, 4000) for columns in (4, 44)
    )
    assert wide - narrow <= 80 * 1


def test_a_small_file_takes_few_steps_and_a_column_of_it_fewer(tmp_path: Path) -> None:
    """Files of 400 rows, of which a batch has many: each is opened, read whole and closed."""
    of_a_file = [
        (steps_of_epoch(tmp_path, columns, 1, 4000, files=100) - steps_of_epoch(tmp_path, columns, 1, 4000, files=50))
        / 50
        for columns in (1, 41)
    ]
    assert of_a_file[0] <= 235
    assert of_a_file[1] - of_a_file[0] <= 40 * 1
