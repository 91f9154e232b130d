"""Credentials that the store refuses in the midst of an epoch: asked for anew, once, wherever the reading stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from demo.row_deletes import commit_deletes, position_deletes
from tests.effort import daily
from tests.servers.gate import EXPIRED, FORBIDDEN, gate_before
from tests.servers.rest_catalog import RestCatalog, serving
from tests.services.conftest import ACCESS_KEY
from tests.services.test_iceberg_services import rows, s3_properties
from tests.tables.catalogs import load_catalog
from torch_table_loader import StorageError

NUM_ROWS = 4000
ROTATED = "AKIAROTATEDROTATED00"


@pytest.fixture
def location(tmp_path: Path, moto_url: str, bucket: str) -> RestCatalog:
    """Four files of many row groups, two with position deletes, in a catalog that vends keys."""
    keys = s3_properties(moto_url)
    lake = load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"s3://{bucket}/lake", **keys)
    lake.create_namespace("db")
    schema = pa.schema([("x", pa.int64())])
    table = lake.create_table("db.clicks", schema, properties={"write.parquet.row-group-limit": "100"})
    for start in range(0, NUM_ROWS, 1000):
        table.append(pa.table({"x": range(start, start + 1000)}, schema=schema))
    files = [task.file for task in table.scan().plan_files()][:2]
    table.manage_snapshots().create_branch(table.metadata.current_snapshot_id or 0, "clean").commit()
    commit_deletes(table, [position_deletes(table, file, [0, 150, 999]) for file in files], "clean")
    return RestCatalog(lake)


@pytest.mark.parametrize("refusal", [FORBIDDEN, EXPIRED], ids=lambda refusal: refusal[1])
@pytest.mark.parametrize(
    ("left", "worker_type"),
    [
        *((left, "thread") for left in (0, 4, 8)),
        *(pytest.param(left, "thread", marks=pytest.mark.slow) for left in range(1, 10)),
        *(pytest.param(left, "process", marks=pytest.mark.slow) for left in (0, 4, 8)),
    ],
)
@daily(2)
def test_a_key_that_ends_at_any_request(
    location: RestCatalog, moto_url: str, left: int, worker_type: str, refusal: Any
) -> None:
    with gate_before(moto_url) as gate, serving(location) as uri:
        gate.refusal, gate.ending = refusal, (ACCESS_KEY, left)
        location.vend = lambda: {
            **s3_properties(gate.url),
            "s3.access-key-id": ROTATED if ACCESS_KEY in gate.ended else ACCESS_KEY,
        }
        config = {"type": "rest", "uri": uri}
        found = rows("db.clicks", config, worker_type=worker_type, batch_size=100, branch="clean")
    gone = {file + place for file in range(0, NUM_ROWS, 1000) for place in (0, 150, 999)}
    assert len(found) == NUM_ROWS - 6
    missing = set(range(NUM_ROWS)) - set(found)
    assert len(missing) == 6
    assert missing <= gone
    assert gate.refused >= 1


def test_a_key_that_is_never_good(location: RestCatalog, moto_url: str) -> None:
    with gate_before(moto_url) as gate, serving(location) as uri:
        gate.ended.add(ACCESS_KEY)
        location.vend = lambda: s3_properties(gate.url)
        with pytest.raises(StorageError) as refused:
            rows("db.clicks", {"type": "rest", "uri": uri})
    assert ACCESS_KEY not in str(refused.value)
