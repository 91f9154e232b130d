"""Fetching through loaders: late requests are asked again, and metrics add up."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.servers.faults import FaultyStore, serving_faults
from tests.servers.faulty_tables import loader_of, taken
from tests.waiting import PATIENCE_S
from torch_table_loader import StorageError, StructuredDataset, TableLoader
from torch_table_loader.extend import FileStorage
from torch_table_loader.testing import small_sizes

ROWS, FILES = 50, 80


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("many") / "t"
    root.mkdir()
    for number in range(FILES):
        x = pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())
        pq.write_table(pa.table({"x": x}), root / f"{number:03}.parquet")
    return root


@pytest.fixture(scope="module")
def store(table: Path) -> Iterator[FaultyStore]:
    with serving_faults(table.parent) as serving:
        yield serving


@pytest.fixture
def served(store: FaultyStore) -> Iterator[Callable[..., TableLoader]]:
    """Give what makes loaders over a store that may fail."""
    store.fail()
    yield partial(loader_of, store, columns=["x"])  # named: else files so small come while planning
    store.fail()


EVERY_ROW = list(range(FILES * ROWS))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_does_not_wait_for_late_answers(
    table: Path, far: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    over, asked, read = threading.Event(), Counter[str](), FileStorage.read_range
    late = {"000.parquet", "050.parquet", "070.parquet"}

    def held(storage: FileStorage, path: str, start: int, stop: int, version: Any = None) -> Any:
        name = Path(path).name
        asked[name] += 1
        if name in late and asked[name] == 1 and not over.wait(PATIENCE_S):
            raise StorageError("nobody asked again")
        return read(storage, path, start, stop, version)

    with far(), small_sizes(late_s=0.5):  # a busy machine must not use the budget up
        loader, _ = StructuredDataset.create_dataloader(str(table), "parquet", batch_size=50, num_workers=workers)
        monkeypatch.setattr(FileStorage, "read_range", held)
        assert sorted(taken(loader)) == EVERY_ROW
        assert not over.is_set()
        over.set()
        assert loader.metrics().fetch.hedges >= 3
        assert {asked[name] for name in late} == {2}


# ---- metrics ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [{"num_workers": 0}, {}, {"worker_type": "process"}], ids=str)
@daily(1)
def test_what_was_fetched_adds_up_over_workers_and_begins_anew_with_each_epoch(
    table: Path, far: Callable[[], Any], engine: dict[str, Any]
) -> None:
    with far():
        loader, dataset = StructuredDataset.create_dataloader(
            str(table), "parquet", **{"batch_size": 50, "num_workers": 2} | engine
        )
        plan = dataset.explain().fetch
        assert plan is not None
        for _ in range(2):
            assert sorted(taken(loader)) == EVERY_ROW
            fetched = loader.metrics().fetch
            assert fetched.requests - fetched.hedges == plan.requests == FILES
            assert fetched.num_bytes >= plan.num_bytes > 0
        for _ in itertools.islice(loader, 1):
            pass
        assert 0 < loader.metrics().fetch.requests <= FILES


def test_retries_are_those_of_the_loader_that_made_them(
    served: Callable[..., TableLoader], store: FaultyStore, table: Path
) -> None:
    with serving_faults(table.parent) as sound:
        failing, other = served(), served(storage_options=sound.options)
        store.fail("503", share=1 / 3)
        rows = [int(x) for one, two in zip(failing, other, strict=True) for x in (*one["x"], *two["x"])]
        assert sorted(rows) == sorted(EVERY_ROW * 2)
        assert 0.5 * store.seen()["faults"] <= failing.metrics().fetch.retries <= store.seen()["faults"]
        assert other.metrics().fetch.retries == 0
    store.fail()
    assert sorted(taken(failing)) == EVERY_ROW
    assert failing.metrics().fetch.retries == 0, "of the newest epoch"


@small_sizes(first_wait_s=0.02, longest_wait_s=0.1)
def test_two_loaders_of_one_store_count_for_themselves(served: Callable[..., TableLoader], store: FaultyStore) -> None:
    one, two = served(), served()
    store.fail("503", share=1 / 3)
    pairs = list(zip(one, two, strict=True))
    assert len(pairs) == FILES
    found = [loader.metrics().fetch.retries for loader in (one, two)]
    assert min(found) > 0
    # Those of a request that was asked again elsewhere may come after the end.
    assert 0.5 * store.seen()["faults"] <= sum(found) <= store.seen()["faults"]


def test_retries_of_worker_processes_add_up(served: Callable[..., TableLoader], store: FaultyStore) -> None:
    loader = served(worker_type="process")
    store.fail("503", "429", "500", share=1 / 3)
    assert sorted(taken(loader)) == EVERY_ROW
    fetched = loader.metrics().fetch
    assert 0.5 * store.seen()["faults"] <= fetched.retries <= store.seen()["faults"]
