"""Delta Lake tables on S3: planned by deltalake, read by this library, with one login for both."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from tests.effort import daily
from tests.services.conftest import ACCESS_KEY, SECRET_KEY
from tests.services.delta_reader import read
from tests.tables.delta import DeltaWriter, some
from torch_table_loader import ConfigError, DeltaDataset, MissingPathError, StorageError, TableError, TableLoaderError

pytestmark = pytest.mark.usefixtures("earlier_loaders_gone")


@pytest.fixture
def table(tmp_path: Path, s3_client: Any, bucket: str) -> tuple[str, DeltaWriter]:
    """Write a table with deletion vectors and escaped names, and put it into the bucket."""
    writer = DeltaWriter(tmp_path / "t", partition_by=["k"])
    for k in range(3):
        rows = [{**row, "k": k} for row in some(20 * k, 20 * k + 20)]
        path = writer.append(rows, {"k": str(k)}, name=f"k={k}/part %20é-{k}.parquet")
    writer.delete(path, [0, 7, 19])
    writer.commit()
    for file in writer.root.rglob("*"):
        if file.is_file():
            s3_client.upload_file(str(file), bucket, f"lake/t/{file.relative_to(writer.root).as_posix()}")
    return f"s3://{bucket}/lake/t", writer


def rows_of(loader: Any, stop: int = 1000) -> Counter[int]:
    found: Counter[int] = Counter()
    for _, batch in zip(range(stop), loader, strict=False):
        found.update(map(int, batch["x"]))
    return found


@pytest.mark.parametrize("footers", ["eager", "lazy"])
@pytest.mark.parametrize("name", ["ours", "deltalake"])
@daily(2)
def test_it_gives_the_rows_of_the_local_table(
    table: tuple[str, DeltaWriter], s3_options: dict[str, Any], moto_url: str, name: str, footers: str
) -> None:
    uri, writer = table
    theirs = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_ENDPOINT_URL": moto_url,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
    }
    options = s3_options if name == "ours" else theirs
    found = read(uri, storage_options=options, footers=footers)
    assert Counter(found["x"].to_pylist()) == Counter(row["x"] for row in writer.live())
    some_of_it = read(uri, storage_options=options, footers=footers, filters=pc.field("k") == 2)
    assert Counter(some_of_it["x"].to_pylist()) == Counter(row["x"] for row in writer.live() if row["k"] == 2)


def test_three_ranks_processes_and_a_state(table: tuple[str, DeltaWriter], s3_options: dict[str, Any]) -> None:
    uri, writer = table
    options: dict[str, Any] = {"storage_options": s3_options, "batch_size": 4, "num_workers": 1, "shuffle": "splits"}
    shape: list[dict[str, Any]] = [
        {"num_ranks": 3, "rank": rank, "even_ranks": "balance", "version": 0} for rank in range(3)
    ]
    ranks = [DeltaDataset.create_dataloader(uri, **options, **each)[0] for each in shape]
    taken = sum((rows_of(loader, 2) for loader in ranks), Counter[int]())
    state = ranks[0].state_dict()
    shown = json.dumps(state)
    assert SECRET_KEY not in shown
    assert ACCESS_KEY not in shown
    alone, _ = DeltaDataset.create_dataloader(uri, worker_type="process", **options)
    alone.load_state_dict(state)
    assert taken + rows_of(alone) == Counter(row["x"] for row in writer.live())


def test_no_secret_is_shown(table: tuple[str, DeltaWriter], s3_options: dict[str, Any], caplog: Any) -> None:
    uri, _ = table
    wrong = {**s3_options, "retry_mode": "x"}
    said: list[str] = []
    for where, options in (
        (f"{uri}/nothing", s3_options),
        (uri, wrong),
        (uri, {**s3_options, "endpoint_url": "http://127.0.0.1:9"}),
    ):
        with pytest.raises(TableLoaderError) as refused:
            DeltaDataset(where, storage_options={**options, "retry_seconds": 0})
        link: BaseException | None = refused.value
        while link is not None:
            said.append(str(link))
            link = link.__cause__ or link.__context__
    dataset = DeltaDataset(uri, storage_options=s3_options)
    said += [repr(dataset.table), str(dataset.explain()), caplog.text]
    assert not any(secret in text for secret in (SECRET_KEY, ACCESS_KEY) for text in said)
    assert pickle.loads(pickle.dumps(dataset.table.files)) == dataset.table.files  # noqa: S301 - ours


def test_errors_say_what_is_wrong(table: tuple[str, DeltaWriter], s3_options: dict[str, Any]) -> None:
    uri, _ = table
    with pytest.raises(MissingPathError, match="but has no log"):
        DeltaDataset(f"{uri}/nothing", storage_options=s3_options)
    with pytest.raises(ConfigError, match="such as deltalake and this library both take"):
        DeltaDataset(uri, storage_options={**s3_options, "version_aware": True})
    with pytest.raises(StorageError, match="check the path, the network"):
        DeltaDataset(uri, storage_options={**s3_options, "endpoint_url": "http://127.0.0.1:9", "retry_seconds": 0})


def test_a_torn_commit_and_a_torn_vector_are_named(
    table: tuple[str, DeltaWriter], s3_options: dict[str, Any], s3_client: Any, bucket: str
) -> None:
    uri, writer = table
    [vector] = writer.root.glob("deletion_vector_*")
    s3_client.put_object(Bucket=bucket, Key=f"lake/t/{vector.name}", Body=vector.read_bytes()[:-9])
    with pytest.raises(TableError, match=rf"{vector.name} must be a blob inside its"):
        read(uri, storage_options=s3_options)
    s3_client.put_object(Bucket=bucket, Key=f"lake/t/_delta_log/{1:020}.json", Body=b"")
    with pytest.raises(TableError, match=rf"s3://{bucket}/lake/t/_delta_log/{1:020}\.json must hold the actions"):
        read(uri, storage_options=s3_options)
