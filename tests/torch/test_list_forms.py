"""Lists as jagged and as padded tensors, in every mode, and what is said of a list that is too long in each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from tests.effort import daily
from tests.tables.plain import meant_warnings
from torch_table_loader import ConfigError, MixedDataset, Pad, StructuredDataset, TableError
from torch_table_loader.engine.device import BatchMover, CudaCopier

ROWS = 50
LENGTHS = [row * 37 % 11 for row in range(ROWS)]
FORKED: dict[str, Any] = {"worker_type": "fork", "num_workers": 2}
MODES: dict[str, dict[str, Any]] = {
    "threads": {},
    "caller": {"num_workers": 0},
    "processes": FORKED,
    "windows": {"shuffle": "splits", "split_size": 9, "shuffle_buffer_size": 7},
    "rows": {"shuffle": "rows"},
    "row-processes": {"shuffle": "rows", **FORKED},
    "collated": {"collate_fn": dict, **FORKED},
    "device": {"device": "cpu"},
}


@dataclass(frozen=True, slots=True)
class Form:
    """A form of lists: a table for it, the options that ask for it, and what each batch must be."""

    table: Callable[[], pa.Table]
    options: dict[str, Any]
    check: Callable[[Iterable[dict[str, Any]]], None]


def lists_to_add() -> pa.Table:
    lists = [[row + at / 100 for at in range(LENGTHS[row])] for row in range(ROWS)]
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "short": pa.array(lists, pa.list_(pa.float32())),
            "grid": pa.array([[[x, x] for x in row] for row in lists], pa.list_(pa.list_(pa.float32(), 2))),
            "twin": pa.array([[-x for x in row] for row in lists], pa.large_list(pa.float64())),
            "some": pa.array([None if row % 5 == 0 else lists[row] for row in range(ROWS)]),
            "empty": pa.array([[] for _ in range(ROWS)], pa.large_list(pa.int32())),
        }
    )


def check_jagged(batches: Iterable[dict[str, Any]]) -> None:
    """See that each batch pads to its own longest list, and that columns with the same lengths can be added."""
    num_rows = 0
    for batch in batches:
        ids = batch["id"].tolist()
        num_rows += len(ids)
        longest = max(LENGTHS[row] for row in ids)
        with_fill = max(3 if row % 5 == 0 else LENGTHS[row] for row in ids)
        shapes = {
            name: tuple(torch.nested.to_padded_tensor(batch[name], -1.0).shape)
            for name in ("short", "grid", "some", "empty")
        }
        assert shapes == {
            "short": (len(ids), longest),
            "grid": (len(ids), longest, 2),
            "some": (len(ids), with_fill),
            "empty": (len(ids), 0),
        }
        both = torch.nested.to_padded_tensor(batch["short"] + batch["twin"], 1.0)
        assert [(row.abs() < 1e-3).sum().item() for row in both] == [LENGTHS[row] for row in ids]
        padded = torch.nested.to_padded_tensor(batch["short"], -1.0)
        assert [(row >= 0).sum().item() for row in padded] == [LENGTHS[row] for row in ids]
    assert num_rows == ROWS


def lists_to_pad() -> pa.Table:
    lists = [[100 * row + at for at in range(LENGTHS[row])] for row in range(ROWS)]
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "ids": pa.array(lists, pa.list_(pa.int32())),
            "grid": pa.array([[[x, -x] for x in row] for row in lists], pa.list_(pa.list_(pa.float32(), 2))),
            "plain": pa.array(lists, pa.list_(pa.int32())),
        }
    )


def check_padded(batches: Iterable[dict[str, Any]]) -> None:
    """See that each batch is padded as was asked, and that columns that are not named come as they always do."""
    num_rows = 0
    for batch in batches:
        ids = batch["id"].tolist()
        num_rows += len(ids)
        lists = {row: [100 * row + at for at in range(LENGTHS[row])] for row in ids}
        assert batch["ids"].values.tolist() == [[-100] * (6 - len(lists[row])) + lists[row][-6:] for row in ids]
        assert batch["ids"].lengths.tolist() == [min(6, LENGTHS[row]) for row in ids]
        width = -(-max(LENGTHS[row] for row in ids) // 4) * 4
        grid = batch["grid"]
        assert tuple(grid.values.shape) == (len(ids), width, 2)
        assert grid.values[..., 0].tolist() == [lists[row] + [0] * (width - len(lists[row])) for row in ids]
        assert grid.lengths.tolist() == [LENGTHS[row] for row in ids]
        assert type(batch["plain"]) is not type(batch["ids"])
    assert num_rows == ROWS


JAGGED = Form(lists_to_add, {"batch_size": 8, "nulls": {"some": [7.0, 7.0, 7.0]}, "check_plan": False}, check_jagged)
PADDED = Form(
    lists_to_pad,
    {
        "batch_size": 8,
        "ragged": {"ids": Pad(value=-100, length=6, truncate="left", side="left"), "grid": Pad(multiple_of=4)},
        "check_plan": False,
    },
    check_padded,
)
OPTIONS = PADDED.options


@pytest.fixture(params=[JAGGED, PADDED], ids=["jagged", "padded"])
def form(request: pytest.FixtureRequest) -> Form:
    found: Form = request.param
    return found


@pytest.fixture
def lists(form: Form, tmp_path: Path) -> str:
    pq.write_table(form.table(), tmp_path / "0.parquet", row_group_size=13)
    return str(tmp_path)


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Write the lists to pad."""
    pq.write_table(PADDED.table(), tmp_path / "0.parquet", row_group_size=13)
    return str(tmp_path)


@pytest.mark.parametrize("mode", MODES)
@daily(6)
def test_every_mode_delivers_the_form(form: Form, lists: str, mode: str) -> None:
    form.check(StructuredDataset.create_dataloader(lists, **form.options, **MODES[mode])[0])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_of_ones_own_delivers_it(form: Form, lists: str, workers: int) -> None:
    with meant_warnings():
        form.check(DataLoader(StructuredDataset(lists, **form.options), batch_size=None, num_workers=workers))


def test_a_mixture_delivers_it(form: Form, lists: str) -> None:
    source = StructuredDataset(lists, **form.options, shuffle="rows")
    form.check(MixedDataset.create_dataloader({"a": source}, {"a": 1}, batch_size=8)[0])


def test_a_map_view_delivers_it(form: Form, lists: str) -> None:
    view = StructuredDataset(lists, **form.options, shuffle="rows").as_map()
    form.check([view.batch(range(start, min(start + 8, ROWS))) for start in range(0, ROWS, 8)])


def test_one_buffer_for_a_device_delivers_it(form: Form, lists: str) -> None:
    form.check(BatchMover(iter(StructuredDataset.create_dataloader(lists, **form.options)[0]), _HereCopier()))


def test_arrays_are_padded_too(table: str) -> None:
    PADDED.check(StructuredDataset.create_dataloader(table, **OPTIONS, output_format="numpy")[0])


def test_sources_of_a_mixture_must_pad_alike(table: str) -> None:
    def source(**otherwise: Any) -> StructuredDataset:
        return StructuredDataset(table, **{**OPTIONS, "shuffle": "rows", **otherwise})

    alike = [{"ids": Pad(value=0.0, length=9, truncate="right")}, {"ids": Pad(value=0, length=9, truncate="right")}]
    MixedDataset({str(at): source(ragged=each) for at, each in enumerate(alike)}, {"0": 1, "1": 1})
    with pytest.raises(ConfigError, match=r"must come in one form, but ragged is .*Pad"):
        MixedDataset({"a": source(), "b": source(ragged="pad")}, {"a": 1, "b": 1})


class _HereCopier(CudaCopier):
    """Copies on the CPU what a GPU's copier would send."""

    def __init__(self) -> None:
        """Need no GPU."""

    def page_locked(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def send(self, data: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return data.clone(), _Done()

    def receive(self, data: torch.Tensor, mark: Any) -> None:
        """Wait for nothing."""


class _Done:
    def synchronize(self) -> None:
        """Wait for nothing."""


def test_a_tensor_that_does_not_know_its_lengths_crosses_as_it_is() -> None:
    bare: Any = torch.nested.nested_tensor_from_jagged(torch.arange(7.0), torch.tensor([0, 2, 2, 7]))
    (came,) = BatchMover(iter([{"lists": bare}]), _HereCopier())
    assert came["lists"].values().tolist() == bare.values().tolist()
    assert tuple(torch.nested.to_padded_tensor(came["lists"], 0.0, (3, 5)).shape) == (3, 5)


TOO_LONG = LENGTHS.index(10)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({}, "0.parquet: "),
        ({"shuffle": "rows"}, "the row whose row_id is {row}: "),
        ({"shuffle": "rows", "filters": pa.compute.field("id") > 2}, "the row whose row_id is {row}: "),
        ({"shuffle": "rows", **FORKED}, "the row whose row_id is {row}: "),
    ],
    ids=["stream", "rows", "filtered", "row-processes"],
)
def test_a_list_that_is_too_long_is_named_with_its_row(table: str, options: dict[str, Any], where: str) -> None:
    given = {**OPTIONS, "ragged": Pad(length=9), "columns": ["id", "ids"], **options}
    loader, _ = StructuredDataset.create_dataloader(table, **given)
    with pytest.raises(TableError) as caught:
        list(loader)
    rows = [row for row in range(ROWS) if LENGTHS[row] > 9]
    said = str(caught.value)
    assert any(said.startswith(where.format(row=row)) for row in rows)
    assert "column 'ids' has a list of 10 values at row " in said
    assert "truncate=" in said


def test_a_list_that_is_too_long_is_named_in_a_mixture_and_in_a_view(table: str) -> None:
    source = StructuredDataset(table, "parquet", shuffle="rows", ragged=Pad(length=9), columns=["id", "ids"])
    rows = "|".join(str(row) for row in range(ROWS) if LENGTHS[row] > 9)
    with pytest.raises(TableError, match=f"^the row whose row_id is ({rows}) in source 1 of the mixture: column 'ids'"):
        list(MixedDataset.create_dataloader({"a": short(table), "b": source}, {"a": 0, "b": 1})[0])
    with pytest.raises(
        TableError, match=f"^the row at place {TOO_LONG}: column 'ids' has a list of 10 values at row 1"
    ):
        source.as_map().batch([0, TOO_LONG])


def short(table: str) -> StructuredDataset:
    """Open a source of which nothing is too long."""
    some = pa.compute.field("id") == 0
    return StructuredDataset(table, shuffle="rows", ragged=Pad(length=9), columns=["id", "ids"], filters=some)


def test_values_are_ones_own_to_write_to(table: str) -> None:
    loader, _ = StructuredDataset.create_dataloader(table, **OPTIONS)
    for batch in loader:
        batch["ids"].values.fill_(1)
        batch["grid"].values.zero_()
        assert torch.equal(batch["ids"].values, torch.ones_like(batch["ids"].values))
