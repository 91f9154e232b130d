"""A table on S3 through the whole loader: threads, processes, and the start methods that are safe."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from tests.leaks import children, lane_threads_end
from tests.tables.plain import deliver, deliver_all, write_table
from torch_table_loader import ConfigError, StructuredDataset, TableError

pytestmark = pytest.mark.usefixtures("earlier_loaders_gone")

GROUPS = [[9, 7], [], [30], [0, 4], [8, 8, 8]]
TOTAL = sum(map(sum, GROUPS))
OPTIONS: dict[str, Any] = {"batch_size": 5, "num_workers": 2, "shuffle": "splits", "split_size": 1}


@pytest.fixture
def local(tmp_path: Path) -> Path:
    write_table(tmp_path / "table", GROUPS)
    return tmp_path / "table"


@pytest.fixture
def upload(local: Path, s3_client: Any, bucket: str) -> Callable[[], str]:
    """Give a function that puts the local table into the bucket."""

    def put() -> str:
        for path in sorted(local.iterdir()):
            s3_client.upload_file(str(path), bucket, f"lake/table/{path.name}")
        return f"s3://{bucket}/lake/table"

    return put


@pytest.fixture
def table(upload: Callable[[], str]) -> str:
    return upload()


def test_it_delivers_the_batches_of_the_local_table_once_each(
    local: Path, table: str, s3_options: dict[str, Any]
) -> None:
    for variant in ({}, {"filters": pc.field("k") < 5}, {"shuffle_buffer_size": 6}):
        options = OPTIONS | variant
        assert deliver(table, storage_options=s3_options, **options) == deliver(local, **options)
    ranks = deliver_all(table, 3, storage_options=s3_options, even_ranks="balance", **OPTIONS)
    assert sorted(row for batches in ranks for batch in batches for row in batch.rows) == list(range(TOTAL))


def test_processes_start_by_forkserver_and_deliver_the_same(
    local: Path, table: str, s3_options: dict[str, Any]
) -> None:
    found = deliver(table, storage_options=s3_options, worker_type="process", **OPTIONS | {"num_workers": 1})
    gc.collect()  # the loader, with the processes that wait for another epoch
    assert not children()
    assert lane_threads_end()
    assert found == deliver(local, **OPTIONS | {"num_workers": 1})


@pytest.mark.parametrize("as_context", [False, True])
def test_an_explicit_fork_is_refused_with_the_remedy(table: str, s3_options: dict[str, Any], as_context: bool) -> None:
    from torch.multiprocessing import get_context

    context: Any = get_context("fork") if as_context else "fork"
    with pytest.raises(
        ConfigError, match=r'"fork" breaks the threads .*pass "process" \(forkserver is then used\) or "spawn"'
    ):
        StructuredDataset.create_dataloader(
            table,
            "parquet",
            storage_options=s3_options,
            worker_type=context,
        )


def test_an_object_that_is_written_again_while_reading_is_named(
    local: Path, upload: Callable[[], str], s3_options: dict[str, Any]
) -> None:
    loader, _ = StructuredDataset.create_dataloader(upload(), "parquet", storage_options=s3_options, **OPTIONS)
    write_table(local, [[9, 6], *GROUPS[1:]])
    upload()
    with pytest.raises(TableError, match=r"000\.parquet changed while it was in use|000\.parquet"):
        list(loader)


def test_no_message_holds_a_secret(table: str, s3_options: dict[str, Any]) -> None:
    dataset = StructuredDataset(table, "parquet", storage_options=s3_options, **OPTIONS)
    told = f"{dataset.explain()} {dataset.options!r} {dataset.table.storage!r}"
    assert s3_options["secret"] not in told
    assert s3_options["key"] not in told
