"""Splits that are mixed, of a table that is far away: what is decoded makes room, and the line is never idle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.line import Line, Simulation, plan_of, scaled
from tests.waiting import until
from torch_table_loader import StructuredDataset
from torch_table_loader.engine.jobs.stream_job import StreamJob
from torch_table_loader.far.fetch_queue import FetchQueue

MIB = 1 << 20
ROWS = 1024


def written(folder: Path, files: int, groups: int) -> Path:
    for number in range(files):
        rows = ROWS * groups - number
        table = pa.table({"x": pa.array(range(rows), pa.int64()), "y": pa.array([0.5] * rows)})
        pq.write_table(
            table, folder / f"{number}.parquet", row_group_size=ROWS, compression="none", use_dictionary=False
        )
    return folder


@pytest.mark.parametrize("groups", [1, 3])
def test_what_is_decoded_makes_room_though_its_rows_wait(
    tmp_path: Path, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last row group of a file, too: in a table of files of one, each is the last."""
    queues: list[FetchQueue] = []
    made = FetchQueue.__init__

    def init(self: FetchQueue, *given: Any) -> None:
        made(self, *given)
        queues.append(self)

    monkeypatch.setattr(FetchQueue, "__init__", init)
    loader, _ = StructuredDataset.create_dataloader(
        written(tmp_path, 8, groups),
        batch_size=64,
        num_workers=2,
        shuffle=True,
        storage_options={"read_ahead_bytes": 64 * MIB},
    )
    with loader:
        batches = iter(loader)
        next(batches)  # a window draws on all splits that are open
        (queue,) = queues
        if groups == 1:
            until(lambda: queue.held == 0)
        while next(batches, None) is not None:
            pass
        assert queue.held == 0


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_the_line_is_busy_until_the_last_byte(tmp_path: Path, seconds: float) -> None:
    """Of row groups of 16 MiB, where a consumer takes seconds for all rows; by default 128 MiB are fetched ahead."""
    loader, dataset = StructuredDataset.create_dataloader(
        written(tmp_path, 8, 4), batch_size=64, num_workers=2, shuffle=True
    )
    with loader:
        assert isinstance(dataset.job, StreamJob)
        plan, line = scaled(plan_of(dataset.job), 1024), Line()
    assert len({read.lane for read in plan}) >= 8, "splits are read side by side"
    rows = max(read.rows_before + read.rows for read in plan)
    ran = Simulation(plan, line, seconds / rows).run()
    assert ran.num_bytes >= 16 * 1024 * rows
    assert ran.num_bytes / line.together / ran.last_byte >= 0.95
    assert ran.seconds - ran.last_byte <= seconds / 2, "all rows but those of the last splits are taken by then"
