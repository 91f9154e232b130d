"""Sources of a mixture that are small files far away: what came with their footers is let go."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.servers.buckets import Bucket, serve
from torch_table_loader import MixedDataset, StructuredDataset

FILES, ROWS = 6, 20


def test_sources_of_a_mixture_keep_nothing_beside_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    objects, asked = {}, Counter[str]()
    for number in range(FILES):
        out = io.BytesIO()
        pq.write_table(pa.table({"x": range(number * ROWS, (number + 1) * ROWS)}), out)
        objects[f"t/{number}.parquet"] = out.getvalue()
    serve(Bucket(objects, lambda what: asked.update([what.split()[0]])), monkeypatch)
    sources: dict[str, Any] = {name: StructuredDataset("s3://b/t", batch_size=8, num_workers=2) for name in ("a", "b")}
    kept = [source.job.table.brought_bytes for source in sources.values()]
    assert kept == 2 * [sum(map(len, objects.values()))]
    mixed = MixedDataset(sources, weights={"a": 1, "b": 1}, batch_size=8, num_workers=2)
    assert [source.job.table.brought_bytes for source in sources.values()] == [0, 0]
    asked.clear()
    rows = [row for batch in mixed.loader() for row in batch["x"].tolist()]
    assert sorted(rows) == sorted(2 * [*range(FILES * ROWS)])
    assert asked == {"GET": 2 * FILES}
