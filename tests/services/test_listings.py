"""Listings of a store are whole, or an error says why they cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.servers.faults import BUCKET, FaultyStore, serving_faults
from torch_table_loader import MissingPathError, StorageError, StructuredDataset

FILES = 23
ROWS = 4
ODD = ("a b.parquet", "a+b.parquet", "a%20b.parquet", "ü&<.parquet")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyStore]:
    folder = tmp_path_factory.mktemp("listings")
    names = (*(f"day={number % 3}/{number:03}.parquet" for number in range(FILES)), *ODD)
    for number, name in enumerate(names):
        path = folder / "t" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"x": pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())}), path)
    (folder / "t2").mkdir()
    (folder / "t2" / "not-asked.parquet").write_bytes(b"no parquet")
    with serving_faults(folder) as serving:
        yield serving


@pytest.fixture(autouse=True)
def sound_again(store: FaultyStore) -> Iterator[None]:
    store.fail()
    yield
    store.fail()


def rows(store: FaultyStore, path: str = f"s3://{BUCKET}/t", **more: Any) -> list[int]:
    given: dict[str, Any] = {"storage_options": store.options, "num_workers": 0, "batch_size": 64, **more}
    loader, _ = StructuredDataset.create_dataloader(path, **given)
    return sorted(value for batch in loader for value in batch["x"].tolist())


@pytest.mark.parametrize("page", [1, 4, 5, 1000])
@daily(2)
def test_pages_of_any_size_give_each_row_once(store: FaultyStore, page: int) -> None:
    store.fail(page=page)
    assert rows(store) == list(range((FILES + len(ODD)) * ROWS))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("cut", "it says that more follows, and has no token to ask for it"),
        ("same token", "it gives the token 'same' for a second time"),
        ("same keys", "it names 't/.*' twice"),
        ("unasked", "it names 't2/not-asked.parquet', which does not begin with 't/'"),
    ],
)
@pytest.mark.parametrize("after", [0, 2])
@daily(3)
def test_a_listing_that_is_not_whole_is_refused(store: FaultyStore, kind: str, why: str, after: int) -> None:
    store.fail(kind, methods=("LIST",), after=after, page=4)
    with pytest.raises(StorageError, match=f"the store's listing cannot be trusted: {why}"):
        rows(store)


@pytest.mark.parametrize(
    ("kind", "said"), [("error", "InternalOops"), ("no xml", "got b'welcome'"), ("page", "got 'html'")]
)
@pytest.mark.parametrize("after", [0, 2])
@daily(2)
def test_what_is_no_listing_is_asked_for_again_and_then_refused(
    store: FaultyStore, kind: str, said: str, after: int
) -> None:
    store.fail(kind, methods=("LIST",), after=after, page=4)
    with pytest.raises(
        StorageError, match=rf"s3://{BUCKET}/t: the request to the store failed: .*{said}.*tried \d+ times"
    ):
        rows(store, storage_options={**store.options, "retry_seconds": 0.5})
    store.fail(kind, methods=("LIST",), after=after, page=4, seconds=0.2)
    assert len(rows(store)) == (FILES + len(ODD)) * ROWS


def test_a_bucket_that_is_missing_is_said_to_be(store: FaultyStore) -> None:
    with pytest.raises(MissingPathError, match=r"there is no bucket .* 'nobucket'; check the path") as raised:
        rows(store, "s3://nobucket/t")
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    with pytest.raises(MissingPathError, match="matches nothing"):
        rows(store, f"s3://{BUCKET}/nothing")
