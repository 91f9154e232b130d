"""Making a loader of files on an object store asks for each file once, and for little beside."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.endpoint import endpoint
from torch_table_loader import StructuredDataset

FILES = 30


def test_each_file_is_asked_for_once_and_the_folder_five_times(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    for number in range(FILES):
        pq.write_table(pa.table({"x": [number]}), tmp_path / "t" / f"{number}.parquet")
    with endpoint(tmp_path) as store:
        keys = {"endpoint_url": store.url, "key": "k", "secret": "s", "region": "us-east-1"}
        loader, _ = StructuredDataset.create_dataloader("s3://any/t", storage_options=keys, num_workers=0)
        assert store.ask("stats")["requests"] == {"GET": FILES, "HEAD": 1, "LIST": 4}
        assert sorted(int(x) for batch in loader for x in batch["x"]) == list(range(FILES))
