"""A row store on S3: built and put there, then read by ranges, from threads and from processes, with either client."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.effort import daily
from tests.tables.plain import deliver, meant_warnings, write_table
from tests.tables.row_stores import stored
from tests.text.packing_reference import full_pack, write_documents
from torch_table_loader import Pack, StructuredDataset, TableError, TableLoader
from torch_table_loader.testing import small_sizes

GROUPS = [[90, 70], [], [300], [0, 40]]
OPTIONS: dict[str, Any] = {"shuffle": "rows", "batch_size": 16, "num_workers": 2}
MORE: list[Any] = [
    {},
    {"memory": "4KiB"},
    pytest.param({"memory": "4KiB", "worker_type": "process"}, marks=pytest.mark.slow, id="processes"),
]


@pytest.mark.parametrize("client", ["obstore", "s3fs"])
@pytest.mark.parametrize("more", MORE, ids=str)
@small_sizes(far_gap_bytes=64)
@daily(2)
def test_a_store_in_a_bucket_delivers_the_same(
    tmp_path: Path,
    s3_options: dict[str, Any],
    bucket: str,
    client: str,
    more: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
            storage_options=forced,
            **stored({"row_store": f"s3://{bucket}/stores"} | options),
        )
        assert found == expected
    assert not (tmp_path / "second").exists()


def test_a_store_that_is_written_anew_meanwhile_is_refused(
    tmp_path: Path, s3_options: dict[str, Any], s3_client: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"
    write_table(table, GROUPS)
    options: dict[str, Any] = stored({"row_store": f"s3://{bucket}/stores", "memory": "4KiB", **OPTIONS})
    for machine in ("first", "second"):
        monkeypatch.setenv("TORCH_TABLE_LOADER_CACHE", str(tmp_path / machine))
        _, dataset = StructuredDataset.create_dataloader(table, storage_options=s3_options, **options)
        view = dataset.as_map()
        assert view[0] is not None
    [key] = [
        entry["Key"]
        for entry in s3_client.list_objects_v2(Bucket=bucket)["Contents"]
        if entry["Key"].endswith("records.bin")
    ]
    body = s3_client.get_object(Bucket=bucket, Key=key)["Body"].read()
    s3_client.put_object(Bucket=bucket, Key=key, Body=bytes(len(body)))
    with pytest.raises(TableError, match=r"records\.bin changed while it was in use"):
        view[1]


DOCUMENTS: Any = [5, 0, 17, 1, None, 400, 3, 9, 9, 2, 2, 30, 1, 12, 33, 4, 6] * 4


def packed(root: Path, pack: Pack, **options: Any) -> TableLoader:
    with meant_warnings():
        return StructuredDataset.create_dataloader(
            str(root), pack=pack, columns=["id"], shuffle="rows", batch_size=3, check_plan=False, **stored(options)
        )[0]


def values_of(batches: Any) -> list[Any]:
    return [
        [batch[name].tolist() for name in ("input_ids", "labels", "doc_ids", "cu_seqlens")]
        + [batch["documents"]["id"].tolist()]
        for batch in batches
    ]


@pytest.mark.parametrize("client", ["obstore", "s3fs"])
@pytest.mark.parametrize("strategy", ["windows", "concat", "pad", "best_fit"])
@small_sizes(far_gap_bytes=64)
@daily(2)
def test_sequences_of_a_store_in_a_bucket_are_the_same_and_resume(
    tmp_path: Path,
    s3_options: dict[str, Any],
    bucket: str,
    client: str,
    strategy: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, pack = tmp_path / "table", full_pack(seq_len=11, strategy=strategy, eos_id=1)
    table.mkdir()
    write_documents(table, [DOCUMENTS])
    expected = values_of(packed(table, pack, row_store=str(tmp_path / "stores"), num_workers=0))
    forced = s3_options | ({"max_concurrency": 4} if client == "s3fs" else {})
    far: dict[str, Any] = {"row_store": f"s3://{bucket}/stores", "storage_options": forced, "memory": "2KiB"}
    for machine in ("first", "second"):
        monkeypatch.setenv("TORCH_TABLE_LOADER_CACHE", str(tmp_path / machine))
        loader = packed(table, pack, num_workers=2, **far)
        with closing(iter(loader)) as running:
            begun = values_of(islice(running, 5))
            state = loader.state_dict()
        other = packed(table, pack, num_workers=1, **far)
        other.load_state_dict(state)
        assert begun + values_of(other) == expected
    assert not (tmp_path / "second").exists()
