"""The bench's measures of how well an order mixes, on orders of which they are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.bars import mix_bar
from bench.mixing import BATCH_SIZES, DEFAULT, READERS, SPLITS, measured, measures
from bench.report import line
from bench.results import MixRow
from bench.tables import TABLES, BenchTable
from tests.effort import daily

ROWS, BATCH = 1 << 17, 256


def test_a_uniform_order_is_measured_as_one() -> None:
    order = np.random.default_rng(0).permutation(ROWS)
    found = measures(order.reshape(-1, BATCH), ROWS, BATCH)
    assert found.spread == pytest.approx(1, abs=0.01)
    assert found.drift == pytest.approx(1, abs=0.1)
    assert found.near == pytest.approx(1 - np.exp(-100 * BATCH / ROWS), abs=0.01)


def test_consecutive_rows_are_measured_as_the_worst() -> None:
    found = measures(np.arange(ROWS).reshape(-1, BATCH), ROWS, BATCH)
    assert found.spread == pytest.approx(0, abs=0.01)
    assert found.drift == pytest.approx(np.sqrt(BATCH), rel=0.01)
    assert found.near == 1


def test_short_batches_do_not_count() -> None:
    batches = list(np.random.default_rng(0).permutation(ROWS).reshape(-1, BATCH))
    assert measures([*batches, np.arange(7)], ROWS, BATCH) == measures(batches, ROWS, BATCH)


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("who", [who for who in READERS if who.startswith("ours")])
@daily(5)
def test_an_epoch_of_all_ranks_is_measured(tmp_path: Path, who: str, ranks: int) -> None:
    for place in range(4):
        rows = pa.table({"t": np.arange(2000) + place * 2000, "x": np.zeros(2000)})
        target = tmp_path / "table" / f"day={place}" / "part.parquet"
        target.parent.mkdir(parents=True)
        pq.write_table(rows, target, row_group_size=500)
    found = measured(who, BenchTable("t", tmp_path / "table", 8000), 40, ranks)
    assert found["rows"] == 8000
    assert found["nanos"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["table"]
    assert found["held"] > 0
    if not who.startswith(SPLITS):
        assert found["spread"] > 0.9


def test_an_order_stands_in_the_report_with_its_bars() -> None:
    figures = {"spread": 0.99, "drift": 1.2, "near": 0.3, "rows": 1000, "nanos": 71.0, "held": 3 << 19}
    told = [MixRow("sorted", 4, DEFAULT, figures, mix_bar("sorted", windows=windows)) for windows in (False, True)]
    assert [row.entry()["met"] for row in told] == [False, True]
    numbers = "**0.99** | **1.20** | **0.30** | 71 | 1.50 | 1,000 | ≥ 0.98, ≤ 1.5, ≤ 0.1 | **no** |"
    assert line(told[0]) == f"| sorted | 4 | ours, shuffle=True | {numbers}"
    assert "| No module" in line(MixRow("sorted", 1, "datasets", {"remark": "No module"}, None))


def test_each_table_that_is_measured_can_be_written() -> None:
    assert set(BATCH_SIZES) | {"turning"} <= TABLES.keys()
