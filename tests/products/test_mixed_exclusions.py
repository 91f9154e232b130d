"""Sources of a mixture of which nothing is left: no error where they give nothing, and one where they should."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.tables.iceberg import IcebergWriter
from torch_table_loader import ConfigError, IcebergDataset, MixedDataset, ResumeError, StructuredDataset, TableLoader

EMPTY = "source 'b' has no row in this epoch"
ALL_OF_B = range(30)
Made = tuple[TableLoader, MixedDataset]


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Tables of 100 rows and of 30."""
    for name, rows in (("a", 100), ("b", 30)):
        pq.write_table(pa.table({"x": range(rows)}), tmp_path / f"{name}.parquet")
    return tmp_path


def make(tables: Path, weights: Mapping[str, float], gone: Mapping[str, Any] | None = None, **options: Any) -> Made:
    sources = {name: StructuredDataset(str(tables / f"{name}.parquet"), shuffle="rows", row_id=True) for name in "ab"}
    for name, rows in (gone or {}).items():
        sources[name].exclude(rows)
    return MixedDataset.create_dataloader(sources, weights, batch_size=8, **options)


def rows(batches: Any) -> list[tuple[int, int]]:
    return [pair for batch in batches for pair in zip(batch["source"].tolist(), batch["row_id"].tolist(), strict=True)]


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted"])
@pytest.mark.parametrize("worker_type", ["thread", "process"])
@daily(2)
def test_a_source_without_weight_and_rows_is_no_error_at_the_start_and_on_resume(
    tables: Path, stop: Any, worker_type: Any
) -> None:
    chosen: dict[str, Any] = {"stop": stop, "worker_type": worker_type, "num_workers": 2}
    loader, dataset = make(tables, {"a": 1, "b": 0}, {"b": ALL_OF_B}, **chosen)
    batches = iter(loader)
    taken = rows([next(batches), next(batches)])
    state = json.loads(json.dumps(loader.state_dict()))
    rest = rows(batches)
    assert sorted(taken + rest) == [(0, row) for row in range(100)]
    for _ in range(2):
        loader, dataset = make(tables, {"a": 1, "b": 0}, **chosen)
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert rows(loader) == rest
    dataset.include({"b": ALL_OF_B})
    dataset.set_weights({"a": 1, "b": 1})
    loader.set_epoch(1)
    assert {source for source, _ in rows(loader)} == {0, 1}


def test_a_source_that_an_epoch_began_with_goes_on_though_the_next_has_nothing_of_it(tables: Path) -> None:
    loader, dataset = make(tables, {"a": 1, "b": 1})
    batches = iter(loader)
    next(batches)
    dataset.exclude({"b": ALL_OF_B})
    state = loader.state_dict()
    fresh, _ = make(tables, {"a": 1, "b": 1})
    fresh.load_state_dict(state)
    assert rows(fresh) == rows(batches)
    fresh.set_epoch(1)
    with pytest.raises(ConfigError, match=EMPTY):
        iter(fresh)


def test_a_source_with_weight_and_without_rows_is_an_error_on_resume_too(tables: Path) -> None:
    with pytest.raises(ConfigError, match=EMPTY):
        make(tables, {"a": 1, "b": 1}, {"b": ALL_OF_B})
    loader, _ = make(tables, {"a": 1, "b": 0}, {"b": ALL_OF_B})
    next(iter(loader))
    fresh, dataset = make(tables, {"a": 1, "b": 1})
    before = fresh.state_dict()
    with pytest.raises(ResumeError, match=EMPTY):
        fresh.load_state_dict(loader.state_dict())
    assert fresh.state_dict() == before
    assert dataset.weights == {"a": 1, "b": 1}


def test_a_snapshot_of_which_all_is_excluded_is_found_on_resume(tmp_path: Path, tables: Path) -> None:
    table = IcebergWriter(tmp_path / "lake")
    table.append([{"x": x, "k": 1, "s": "s"} for x in ALL_OF_B])
    table.commit()

    def made() -> Made:
        sources = {
            "a": StructuredDataset(str(tables / "a.parquet"), shuffle="rows", row_id=True),
            "b": IcebergDataset(metadata_location=table.metadata, shuffle="rows", row_id=True, columns=["x"]),
        }
        return MixedDataset.create_dataloader(sources, {"a": 1, "b": 0}, batch_size=8)

    loader, dataset = made()
    dataset.exclude({"b": ALL_OF_B})
    batches = iter(loader)
    taken = rows([next(batches)])
    state = loader.state_dict()
    table.append([{"x": 30, "k": 1, "s": "s"}])
    table.commit()
    fresh, dataset = made()
    fresh.load_state_dict(state)
    assert rows(fresh) == rows(batches)
    dataset.include({"b": [3]})
    fresh.set_epoch(1)
    dataset.set_weights({"a": 1, "b": 1})
    assert [row for row in rows(fresh) if row[0] == 1] == [(1, 3)]
    assert len(taken) == 8


def test_a_filter_that_leaves_nothing_is_an_error_with_weight_alone(tables: Path) -> None:
    def sources() -> dict[str, StructuredDataset]:
        return {
            name: StructuredDataset(str(tables / f"{name}.parquet"), shuffle="rows", filters=pc.field("x") >= 30)
            for name in "ab"
        }

    loader, _ = MixedDataset.create_dataloader(sources(), {"a": 1, "b": 0}, batch_size=8)
    next(iter(loader))
    fresh, _ = MixedDataset.create_dataloader(sources(), {"a": 1, "b": 0}, batch_size=8)
    fresh.load_state_dict(loader.state_dict())
    assert sum(len(batch["x"]) for batch in fresh) == 70 - 8
    with pytest.raises(ConfigError, match=EMPTY):
        MixedDataset(sources(), {"a": 1, "b": 1})


def test_weights_that_the_running_epoch_cannot_take_are_refused_when_they_are_said(tables: Path) -> None:
    loader, dataset = make(tables, {"a": 1, "b": 0}, {"b": ALL_OF_B})
    batches = iter(loader)
    taken = rows([next(batches)])
    dataset.include({"b": ALL_OF_B})
    with pytest.raises(ConfigError, match=EMPTY):
        dataset.set_weights({"a": 1, "b": 1})
    assert dataset.weights == {"a": 1, "b": 0}
    state = loader.state_dict()
    fresh, other = make(tables, {"a": 1, "b": 0})
    fresh.load_state_dict(state)
    with pytest.raises(ConfigError, match=EMPTY):
        other.set_weights({"a": 1, "b": 1})
    assert sorted(taken + rows(batches)) == [(0, row) for row in range(100)]
    dataset.set_weights({"a": 1, "b": 1})
    loader.set_epoch(1)
    assert {source for source, _ in rows(loader)} == {0, 1}
    fresh.set_epoch(1)
    other.set_weights({"a": 1, "b": 1})
    loader.set_epoch(1)
    assert rows(fresh) == rows(loader)


def test_weights_that_the_epoch_before_could_not_take_hold_in_the_one_that_is_set(tables: Path) -> None:
    loader, dataset = make(tables, {"a": 1, "b": 0}, {"b": ALL_OF_B})
    batches = iter(loader)
    dataset.include({"b": ALL_OF_B})
    loader.set_epoch(1)
    dataset.set_weights({"a": 1, "b": 1})
    told = rows(batches)
    loader.set_epoch(1)
    assert rows(loader) == told
    assert {source for source, _ in told} == {0, 1}


def test_exclusions_of_which_one_is_wrong_change_nothing(tables: Path) -> None:
    loader, dataset = make(tables, {"a": 1, "b": 1})
    before = loader.state_dict()
    for change in (dataset.exclude, dataset.include):
        with pytest.raises(ConfigError, match="row ids must be in"):
            change({"a": [1], "b": [30]})
    assert loader.state_dict() == before


UNDONE = "the loaded state replaces the exclusions"


def test_a_state_that_undoes_what_was_excluded_here_says_so(tables: Path) -> None:
    older = make(tables, {"a": 1, "b": 1})[0].state_dict()
    loader, dataset = make(tables, {"a": 1, "b": 1})
    dataset.exclude({"a": [1, 2, 3], "b": [4]})
    with pytest.warns(UserWarning, match=UNDONE) as said:
        loader.load_state_dict(older)
    assert [str(entry.message).partition(": ")[2].partition(";")[0] for entry in said] == [
        "3 rows of source 'a' that were excluded here come back",
        "1 rows of source 'b' that were excluded here come back",
    ]
    assert all(Path(entry.filename) == Path(__file__) for entry in said)
    loader.set_epoch(1)
    dataset.exclude({"a": [1, 2, 3], "b": [4]})
    assert not {(0, 1), (0, 2), (0, 3), (1, 4)} & set(rows(loader)), "what is said after loading holds"


def test_a_state_that_undoes_what_was_included_here_says_so(tables: Path) -> None:
    loader, dataset = make(tables, {"a": 1, "b": 1})
    dataset.exclude({"a": [1, 2, 3]})
    older = loader.state_dict()
    dataset.include({"a": [2]})
    with pytest.warns(
        UserWarning, match=f"{UNDONE}: 1 rows of source 'a' that were included again here are excluded again"
    ):
        loader.load_state_dict(older)
    dataset.include({"a": [2]})
    dataset.exclude({"a": [2]})
    loader.load_state_dict(older)


def test_a_run_that_repeats_what_its_state_knows_hears_nothing(tables: Path) -> None:
    loader, dataset = make(tables, {"a": 1, "b": 1}, {"b": [4]})
    dataset.exclude({"a": [1, 2]})
    loader.set_epoch(1)
    batches = iter(loader)
    next(batches)
    dataset.exclude({"a": [3]})
    state, rest = loader.state_dict(), rows(batches)
    again, dataset = make(tables, {"a": 1, "b": 1}, {"b": [4]})
    dataset.exclude({"a": [1, 2]})
    again.load_state_dict(state)
    assert rows(again) == rest


def test_row_mode_says_it_as_a_mixture_does(tables: Path) -> None:
    loader, dataset = StructuredDataset.create_dataloader(str(tables / "a.parquet"), shuffle="rows", batch_size=8)
    older = loader.state_dict()
    dataset.exclude([1, 2, 3])
    with pytest.warns(UserWarning, match=f"{UNDONE}: 3 rows that were excluded here come back; call exclude"):
        loader.load_state_dict(older)
    assert sum(len(batch["x"]) for batch in loader) == 100
