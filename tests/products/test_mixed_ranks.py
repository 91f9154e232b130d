"""What ranks are told of a mixture: uneven steps where there are some, and what another rank was told otherwise."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

from tests.tables.iceberg import IcebergWriter
from torch_table_loader import IcebergDataset, MixedDataset, StructuredDataset, TableLoader

RANKS: dict[str, Any] = {"num_ranks": 2, "rank": 0, "check_plan": False, "even_ranks": False}
UNEVEN = "ranks take different numbers of steps: 2, 1"


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, str]:
    """Tables of 61 rows and of 40: in batches of 30, two ranks take different numbers of steps of the first alone."""
    for name, rows in (("odd", 61), ("even", 40)):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"x": range(rows)}), tmp_path / name / "0.parquet")
    return {name: str(tmp_path / name) for name in ("odd", "even")}


@contextmanager
def heard() -> Iterator[list[str]]:
    """Collect what is said."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
        said += [str(entry.message) for entry in caught]


def source(path: str, **options: Any) -> StructuredDataset:
    asked: dict[str, Any] = {"shuffle": "rows", "batch_size": 30} | RANKS | options
    return StructuredDataset(path, **asked)


@pytest.mark.parametrize("shuffle", ["rows", "splits"])
@pytest.mark.parametrize("tail", [{"even_ranks": "pad"}, {"drop_last": True}], ids=str)
def test_a_source_has_no_steps_of_its_own(tables: dict[str, str], tail: dict[str, Any], shuffle: str) -> None:
    with heard() as said:
        sources = {name: source(path, shuffle=shuffle) for name, path in tables.items()}
        loader, _ = MixedDataset.create_dataloader(
            sources, {"odd": 1, "even": 0}, batch_size=30, check_plan=False, **tail
        )
        for _ in loader:
            pass
        loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert said == []


def test_the_mixtures_own_uneven_steps_are_said_once(tables: dict[str, str]) -> None:
    with heard() as said:
        sources = {name: source(path) for name, path in tables.items()}
        loader, dataset = MixedDataset.create_dataloader(
            sources, {"odd": 1, "even": 0}, batch_size=30, check_plan=False, even_ranks=False
        )
        assert len(list(loader)) == 2
        assert TableLoader(dataset)
    assert [UNEVEN in entry for entry in said] == [True]


@pytest.mark.parametrize("num_ranks", [3, 5, 7])
def test_an_epoch_without_end_has_no_uneven_steps(tables: dict[str, str], num_ranks: int) -> None:
    with heard() as said:
        sources = {name: source(path, num_ranks=num_ranks) for name, path in tables.items()}
        MixedDataset(sources, {"odd": 2, "even": 1}, stop="forever", batch_size=1, check_plan=False)
    assert said == []


def test_a_table_alone_says_it_when_its_loader_is_made_or_before_its_first_batch(tables: dict[str, str]) -> None:
    with heard() as said:
        first, second = source(tables["odd"]), source(tables["odd"])
        assert len(second.as_map()) == 61
    assert said == []
    with heard() as said:
        TableLoader(first)
        list(TableLoader(first))
    assert [UNEVEN in entry for entry in said] == [True]
    with heard() as said:
        going = iter(DataLoader(second, batch_size=None))
        next(going)
    assert [UNEVEN in entry for entry in said] == [True]
    with heard() as said:
        list(DataLoader(second, batch_size=None))
    assert said == []


@pytest.mark.parametrize("shuffle", ["rows", "splits"])
def test_one_worker_of_a_callers_own_dataloader_says_it_once(
    tables: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shuffle: str
) -> None:
    def note(message: Warning, *_: Any) -> None:
        with (tmp_path / "said").open("a") as said:
            said.write(str(message))

    own: dict[str, dict[str, Any]] = {"rows": {"row_store": str(tmp_path / "stores")}, "splits": {"num_workers": 2}}
    dataset = source(tables["odd"], shuffle=shuffle, **own[shuffle])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", note)
        for epoch in range(2):
            dataset.set_epoch(epoch)
            list(DataLoader(dataset, batch_size=None, num_workers=2))
    assert (tmp_path / "said").read_text().count("ranks take different numbers of steps") == 1


def test_a_table_that_is_opened_again_at_a_states_snapshot_says_nothing_new(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path)
    table.append([{"x": x, "k": 1, "s": "s"} for x in range(61)])
    table.commit()

    def made() -> TableLoader:
        options: dict[str, Any] = {"batch_size": 30, "check_plan": False}
        lake = IcebergDataset(metadata_location=table.metadata, shuffle="rows", columns=["x"], **RANKS | options)
        return MixedDataset.create_dataloader({"lake": lake}, {"lake": 1}, even_ranks="pad", **options)[0]

    with heard():
        state = made().state_dict()
    table.append([{"x": 61, "k": 1, "s": "s"}])
    table.commit()
    with heard() as said:
        loader = made()
        loader.load_state_dict(state)
        assert len(loader) == 2
    assert said == []
