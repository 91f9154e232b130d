"""Delta Lake's requests keep the contract of table formats, which is all that they import of the package."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from torch_table_loader.delta.delta_options import find_table
from torch_table_loader.delta.delta_source import DeltaRequest
from torch_table_loader.testing import check_table_request


@pytest.mark.parametrize("partition", [None, ["s"]], ids=["plain", "in partitions"])
def test_requests_keep_the_contract(tmp_path: Path, partition: list[str] | None) -> None:
    uri = str(tmp_path / "t")
    for start in (0, 10):
        rows = {"x": list(range(start, start + 10)), "s": ["a", "b"] * 5, "l": [[1]] * 10}
        write_deltalake(uri, pa.table(rows), mode="append", partition_by=partition)
    DeltaTable(uri).delete("x = 3")
    request = DeltaRequest(find_table(uri, None))
    check_table_request(request)
    check_table_request(request, {"version": 1})
