"""Credentials that end in the midst of an epoch: the store is asked once more with those that are there now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.servers.gate import EXPIRED, FORBIDDEN, Gate, gate_before
from tests.servers.remote_files import in_storage_options
from tests.services.conftest import ACCESS_KEY, SECRET_KEY
from torch_table_loader import StorageError, StructuredDataset, TableLoader
from torch_table_loader.local_files import write_whole

NUM_ROWS, FILES = 4000, 4
ROTATED = "AKIAROTATEDROTATED00"


@pytest.fixture
def gate(moto_url: str) -> Iterator[Gate]:
    with gate_before(moto_url) as gate:
        yield gate


@pytest.fixture
def table(bucket: str, s3_client: Any, tmp_path: Path) -> str:
    for number in range(FILES):
        path = tmp_path / "part.parquet"
        pq.write_table(pa.table({"x": range(number * 1000, (number + 1) * 1000)}), path, row_group_size=100)
        s3_client.upload_file(str(path), bucket, f"t/{number}.parquet")
    return f"s3://{bucket}/t"


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of credentials, as a program that renews them writes it."""
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    write_key(path, ACCESS_KEY)
    return path


def write_key(path: Path, key: str) -> None:
    text = f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {SECRET_KEY}\n"
    write_whole(path, text.encode())  # several requests may be refused at once


def make(table: str, gate: Gate, **options: Any) -> TableLoader:
    given = {"endpoint_url": gate.url, "region": "us-east-1", **options.pop("login", {})}
    # With their names, columns are asked for in the epoch; files so small come while planning otherwise.
    chosen = in_storage_options({"storage_options": given, "batch_size": 100, "columns": ["x"], **options})
    return StructuredDataset.create_dataloader(table, **chosen)[0]


@pytest.mark.parametrize(
    ("worker_type", "refusal"),
    [("thread", FORBIDDEN), ("thread", EXPIRED), pytest.param("process", EXPIRED, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(("ahead", "left"), [("64MB", 0), ("64MB", 3), ("64MB", 6), (0, 20)])
@daily(2)
def test_reading_goes_on_with_the_key_that_is_there_by_then(
    table: str, gate: Gate, keys: Path, refusal: Any, worker_type: str, ahead: Any, left: int
) -> None:
    gate.refusal, gate.ending, gate.when_refused = refusal, (ACCESS_KEY, left), lambda: write_key(keys, ROTATED)
    loader = make(table, gate, num_workers=2, worker_type=worker_type, read_ahead_bytes=ahead)
    assert sorted(x for batch in loader for x in batch["x"].tolist()) == list(range(NUM_ROWS))
    assert gate.refused > 0
    assert ROTATED in gate.keys


def test_a_key_that_stays_refused_is_an_error_after_one_more_request(table: str, gate: Gate, keys: Path) -> None:
    gate.ended.add(ACCESS_KEY)
    with pytest.raises(StorageError, match=f"{table}: the store refuses access") as refused:
        make(table, gate)
    assert ACCESS_KEY not in str(refused.value)
    again = gate.refused
    gate.refused = 0
    with pytest.raises(StorageError, match="the store refuses access"):
        make(table, gate, login={"key": ACCESS_KEY, "secret": SECRET_KEY})
    # Keys that were written out are the same the next time. The first error ends requests that wait side by side.
    assert gate.refused < again <= 2 * gate.refused
