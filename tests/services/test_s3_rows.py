"""A row store on S3: built and put there, then read by ranges, from threads and from processes, with either client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.torch.tables import deliver, write_table
from torch_table_loader.store import remote_window

GROUPS = [[90, 70], [], [300], [0, 40]]
OPTIONS: dict[str, Any] = {"shuffle": "rows", "batch_size": 16, "num_workers": 2}
MORE: list[Any] = [
    {},
    {"row_store_memory": "4KiB"},
    pytest.param({"row_store_memory": "4KiB", "worker_type": "process"}, marks=pytest.mark.slow, id="processes"),
]


@pytest.mark.parametrize("client", ["obstore", "s3fs"])
@pytest.mark.parametrize("more", MORE, ids=str)
def test_a_store_in_a_bucket_delivers_the_same(
    tmp_path: Path,
    s3_options: dict[str, Any],
    bucket: str,
    client: str,
    more: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_window, "GAP_BYTES", 64)
    table = tmp_path / "table"
    write_table(table, GROUPS)
    options: dict[str, Any] = OPTIONS | more
    expected = deliver(table, epoch=3, **OPTIONS)
    forced = s3_options | ({"max_concurrency": 4} if client == "s3fs" else {})
    for machine in ("first", "second"):
        monkeypatch.setenv("TORCH_TABLE_LOADER_CACHE", str(tmp_path / machine))
        found = deliver(
            table,
            epoch=3,
            row_store=f"s3://{bucket}/stores",
            storage_options=forced,
            **options,
        )
        assert found == expected
    assert not (tmp_path / "second").exists()
