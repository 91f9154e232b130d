"""What is special to row mode: its map view, and what only it refuses; see test_every_mode.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from tests.effort import daily
from tests.states import with_newest
from tests.tables.plain import meant_warnings
from torch_table_loader import ConfigError, ResumeError, StructuredDataset, TableLoader
from torch_table_loader.store.gather import StoredRows

ROWS = 2_903


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("table")
    start = 0
    for number, size in enumerate([700, 1, 0, 650, 652, 900]):
        ids = np.arange(start, start + size)
        columns = {"id": ids, "x": ids.astype("f4") / 3, "name": [f"row {i}" for i in ids]}
        pq.write_table(pa.table(columns), root / f"part-{number}.parquet", row_group_size=130)
        start += size
    return str(root)


def make(path: str, **options: Any) -> tuple[TableLoader, StructuredDataset]:
    defaults: dict[str, Any] = {"shuffle": "rows", "check_plan": False}
    if "global_batch_size" not in options:
        defaults["batch_size"] = 64
    with meant_warnings():
        return StructuredDataset.create_dataloader(path, "parquet", **(defaults | options))


def ids(loader: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in loader]


# ---- state -----------------------------------------------------------------------------------------------


def test_a_state_that_was_tampered_with_is_refused(table: str) -> None:
    state = make(table)[0].state_dict()
    make(table)[0].load_state_dict(with_newest(state, steps=1, consumed=1))
    for wrong in (
        {"history": -1},
        with_newest(state, steps="1", consumed=1),
        with_newest(state, steps=1, consumed=ROWS + 1),
        {"epoch": None},
        with_newest(state, exclusions=1),
        with_newest(state, exclusions={"another": [{"ids": "", "digest": "0" * 32}]}),
    ):
        with pytest.raises(ResumeError):
            make(table)[0].load_state_dict(state | wrong)


# ---- exclusion -------------------------------------------------------------------------------------------


def test_all_excluded_is_an_error(table: str) -> None:
    loader, dataset = make(table)
    dataset.exclude(range(ROWS))
    with pytest.raises(ConfigError, match="all 2903 rows are excluded"):
        iter(loader)
    dataset.include([7])
    assert ids(loader) == [[7]]


# ---- the map ---------------------------------------------------------------------------------------------


def test_the_map_serves_samplers_and_people(table: str) -> None:
    _, dataset = make(table, filters=pc.field("x") >= 100, row_id=True)
    view = dataset.as_map()
    assert len(view) == ROWS - 300
    assert view[0] == {"id": 300, "x": 100.0, "name": "row 300", "row_id": 300}
    assert view[-1]["id"] == ROWS - 1
    assert view.row_ids([1, 0]).tolist() == [301, 300]
    assert view.row_ids().tolist() == list(range(300, ROWS))
    assert view.batch([2, 0])["name"] == ["row 302", "row 300"]
    sampler = RandomSampler(view, generator=torch.Generator().manual_seed(0))
    found = [row for batch in DataLoader(view, batch_size=100, sampler=sampler) for row in batch["id"].tolist()]
    assert sorted(found) == list(range(300, ROWS))
    with pytest.raises(IndexError, match="place 5000"):
        view[5000]


class Gathers:
    """Counts how often a view reads the store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        gather = StoredRows.gather

        def counted(rows: StoredRows, places: Any) -> Any:
            self.times += 1
            return gather(rows, places)

        monkeypatch.setattr(StoredRows, "gather", counted)


SEVERAL: dict[str, tuple[Any, list[int]]] = {
    "list": ([3, 4], [3, 4]),
    "tuple": ((7, 2, 2), [7, 2, 2]),
    "negative": ([-1, 0], [ROWS - 1, 0]),
    "array": (np.array([5, -2], dtype="i4"), [5, ROWS - 2]),
    "unsigned array": (np.array([5, 6], dtype="u8"), [5, 6]),
    "tensor": (torch.tensor([9, 8]), [9, 8]),
    "range": (range(4, 0, -1), [4, 3, 2, 1]),
    "slice": (slice(3, 6), [3, 4, 5]),
    "slice from the end": (slice(-2, None), [ROWS - 2, ROWS - 1]),
    "slice backwards": (slice(6, 2, -2), [6, 4]),
    "slice past the end": (slice(ROWS - 1, ROWS + 50), [ROWS - 1]),
    "one in a list": ([11], [11]),
}


@pytest.mark.parametrize("several", SEVERAL)
@daily(4)
def test_the_map_gives_several_places_as_one_batch(table: str, several: str, monkeypatch: pytest.MonkeyPatch) -> None:
    view = make(table)[1].as_map()
    gathers = Gathers(monkeypatch)
    index, wanted = SEVERAL[several]
    batch = view[index]
    assert isinstance(batch["id"], torch.Tensor)
    assert batch["id"].tolist() == wanted
    assert batch["name"] == [f"row {place}" for place in wanted]
    assert gathers.times == 1


@pytest.mark.parametrize("place", [6, np.int32(6), np.uint64(6), torch.tensor(6), 6 - ROWS], ids=repr)
def test_the_map_gives_one_place_as_one_row(table: str, place: Any) -> None:
    assert make(table)[1].as_map()[place] == {"id": 6, "x": 2.0, "name": "row 6"}


@pytest.mark.parametrize(
    ("index", "kind", "message"),
    [
        ([3, ROWS], IndexError, f"place {ROWS} is not in a table of {ROWS} rows"),
        ([-ROWS - 1], IndexError, f"place {-ROWS - 1} is not in"),
        (np.array([2**64 - 1], dtype="u8"), IndexError, "place 18446744073709551615 is not in"),
        (np.uint64(2**64 - 1), IndexError, "place 18446744073709551615 is not in"),
        (True, TypeError, "places must be integers, got a bool"),
        (np.True_, TypeError, "places must be integers, got a bool"),
        (torch.tensor(True), TypeError, "places must be integers, got bool"),
        ([True, 3], TypeError, "got a bool"),
        (np.ones(ROWS, dtype=bool), TypeError, "flatnonzero"),
        (torch.ones(4, dtype=torch.bool), TypeError, "flatnonzero"),
        ([[1, 2]], TypeError, "an array of shape"),
        ([[1], [2, 3]], TypeError, "one list of integers"),
        (1.0, TypeError, "got float64"),
        ([1.5], TypeError, "got float64"),
        ("3", TypeError, "places must be integers"),
        (None, TypeError, "places must be integers"),
        ([], ConfigError, "at least one row"),
        (slice(5, 5), ConfigError, "at least one row"),
    ],
    ids=repr,
)
@daily(6)
def test_the_map_refuses_what_is_no_place(table: str, index: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make(table)[1].as_map()[index]


def test_a_batch_sampler_reads_the_store_once_a_batch(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    view = make(table)[1].as_map()
    gathers = Gathers(monkeypatch)
    sampler = BatchSampler(SequentialSampler(view), 500, drop_last=False)
    found = [row for batch in DataLoader(view, sampler=sampler, batch_size=None) for row in batch["id"].tolist()]
    assert found == list(range(ROWS))
    assert gathers.times == 6


# ---- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1024, 256, 64, 32])
def test_a_batch_size_that_was_given_must_divide_the_global_one(table: str, batch_size: int) -> None:
    said = f"global_batch_size must be a multiple of num_ranks=4 times batch_size={batch_size}, got 64"
    with pytest.raises(ConfigError, match=said):
        make(table, global_batch_size=64, num_ranks=4, rank=1, batch_size=batch_size)


def test_splits_mode_has_no_rows_to_exclude(table: str) -> None:
    _, dataset = make(table, shuffle="splits")
    for call in (
        lambda: dataset.exclude([1]),
        lambda: dataset.include([1], gather=True),
        lambda: dataset.excluded,
        dataset.as_map,
    ):
        with pytest.raises(ConfigError, match='pass shuffle="rows"'):
            call()
