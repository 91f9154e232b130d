"""Pages of HTML about sequences: of the guests "report" and "text"."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.rooms.test_report import parsed, tables_below
from tests.tables.small_groups import make
from torch_table_loader import Pack
from torch_table_loader.text.pack_counts import PackCounts


def test_packing_is_shown_on_the_page(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
    told = make(tmp_path)[1].explain()
    counts = PackCounts(8, sequences=2, tokens=12, parts=3, split=None)
    [packed] = tables_below(parsed(replace(told, counts=counts).to_html()), "Packing")
    assert [line[1] for line in packed] == ["8", "2", "12", "75.00 %", "3", "unknown", "0", "0"]


def test_dots_of_packed_rows_are_left_out(tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": [[1, 2, 3], [4, 5]]}), tmp_path / "a.parquet")
    told = make(tmp_path, pack=Pack(seq_len=8))[1].explain()
    assert "Not shown: batches are sequences of tokens" in told.to_html()
