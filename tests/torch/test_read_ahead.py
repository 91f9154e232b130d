"""Tables far away: batches are those of a local table, whatever is fetched ahead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.far_storage import FarFolder
from torch_table_loader import StructuredDataset


def test_smoke(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for i in range(5):
        t = pa.table(
            {"a": rng.integers(0, 1 << 60, 30000), "b": rng.random(30000), "c": [str(x) for x in range(30000)]}
        )
        pq.write_table(t, tmp_path / f"{i}.parquet", row_group_size=7000)
    names = [f"{i}.parquet" for i in range(5)]
    far = FarFolder(str(tmp_path), 0.005)
    ld, ds = StructuredDataset.create_dataloader(
        path=names, storage=far, batch_size=1000, columns=["a", "b"], shuffle=True
    )
    print(far.log.counts)
    far.log.counts.clear()
    print(ds.explain())
    got = [b for b in ld]
    print(ds.metrics())
    print(far.log.counts, far.log.most_in_flight)
    ld2, _ = StructuredDataset.create_dataloader(path=str(tmp_path), batch_size=1000, columns=["a", "b"], shuffle=True)
    for x, y in zip(got, ld2, strict=True):
        assert (x["a"] == y["a"]).all() and (x["b"] == y["b"]).all()
