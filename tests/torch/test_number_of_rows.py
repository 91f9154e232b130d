"""`dataset.num_rows` counts the table's rows, and ``len(loader.dataset)`` what an epoch gives, as scripts divide by it.

The length of the dataset itself is that of the DataLoader that wraps it: its batches.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.effort import daily
from tests.tables.delta import DeltaWriter
from tests.tables.iceberg import IcebergWriter, some
from tests.tables.plain import meant_warnings
from tests.torch.modes import MIXTURE, ROWS, SOME, SPLITS, STREAMS, Mode
from torch_table_loader import DeltaDataset, IcebergDataset, StructuredDataset, TableLoader

pytestmark = pytest.mark.usefixtures("small_gathers")

SHAPES: list[dict[str, Any]] = [{}, {"num_ranks": 3}, {"num_ranks": 2, "even_ranks": "pad"}, {"epochs": 2}]


@pytest.mark.parametrize("filters", [None, SOME], ids=["all", "some"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@daily(8)
def test_it_is_what_all_ranks_deliver_in_an_iteration(
    mode: Mode, tables: Path, shape: dict[str, Any], filters: Any
) -> None:
    made = [
        mode.make(tables, filters=filters, **shape | ({"rank": rank} if "num_ranks" in shape else {}))
        for rank in range(shape.get("num_ranks", 1))
    ]
    datasets: list[Any] = [loader.dataset for loader in made]
    if datasets[0].explain().live_rows is None:
        assert len(datasets) > 1, "a rank alone knows all rows"
        with pytest.raises(TypeError, match="a rank counted its own rows alone"):
            print(datasets[0].num_rows)
        return
    said = {len(dataset) for dataset in datasets}
    live = {dataset.num_rows for dataset in datasets}
    assert said == {sum(len(rows) for loader in made for rows in mode.read(loader))}
    assert live == {datasets[0].explain().live_rows}
    if mode in (SPLITS, ROWS):
        assert live == {len(mode.live(tables, filtered=filters is not None))}


def test_excluded_rows_are_not_in_the_epoch_and_are_in_the_table(tables: Path) -> None:
    loader: Any = ROWS.make(tables)
    loader.dataset.exclude(range(7))
    assert loader.dataset.num_rows == len(loader.dataset) + 7 == len(ROWS.live(tables))


def test_of_tables_with_deletes(tmp_path: Path) -> None:
    lake = IcebergWriter(tmp_path / "lake")
    lake.delete_rows({lake.append(some(0, 30)): [1, 2]})
    lake.commit()
    delta = DeltaWriter(tmp_path / "delta")
    delta.append(some(0, 30))
    delta.commit()
    where = {"filters": pc.field("x") >= 2}
    assert IcebergDataset(metadata_location=lake.metadata).num_rows == 28
    assert IcebergDataset(metadata_location=lake.metadata, **where).num_rows == 27
    assert DeltaDataset(delta.uri, **where).num_rows == 28


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"filters": SOME, "count_filtered": False}, "count_filtered=False"),
        ({"epochs": "forever"}, 'epochs="forever"'),
    ],
    ids=["uncounted", "endless"],
)
def test_what_is_not_known_is_said(tables: Path, options: dict[str, Any], said: str) -> None:
    loader: Any = SPLITS.make(tables, **options)
    with pytest.raises(TypeError, match=said):
        len(loader.dataset)
    if "epochs" in options:
        assert loader.dataset.num_rows == len(SPLITS.live(tables))
    else:
        with pytest.raises(TypeError, match="the number of rows is not known here: count_filtered=False"):
            print(loader.dataset.num_rows)


@pytest.mark.parametrize("mode", [MIXTURE, STREAMS], ids=str)
def test_an_endless_mixture_has_rows_and_no_end(mode: Mode, tables: Path) -> None:
    loader: Any = mode.make(tables, stop="forever")
    assert loader.dataset.num_rows == len(mode.live(tables))
    with pytest.raises(TypeError, match="or has no end"):
        len(loader.dataset)


# ---- scripts and frameworks ------------------------------------------------------------------------------


def accuracy(loader: Any) -> float:
    """Compute the accuracy of a model that is always right, as PyTorch's quick start does."""
    size, correct = len(loader.dataset), 0.0
    for batch in loader:
        correct += (batch["k"] == batch["k"]).type(torch.float).sum().item()
    return correct / size


# Frameworks are imported where they are used: each process that collects tests would load them.


def fabric(loader: TableLoader) -> Any:
    from lightning.fabric import Fabric

    return Fabric(accelerator="cpu", devices=1).setup_dataloaders(loader)


def accelerate(loader: TableLoader) -> Any:
    from accelerate import Accelerator

    return Accelerator(cpu=True).prepare(loader)


WRAPS: dict[str, Callable[[TableLoader], Any]] = {
    "alone": lambda loader: loader,
    "accelerate": accelerate,
    "fabric": fabric,
    "pickled": lambda loader: pickle.loads(pickle.dumps(loader)),  # noqa: S301 our own bytes
    "made again": lambda loader: type(loader)(loader.dataset),
}


@pytest.mark.parametrize("shuffle", [False, True, "rows"])
@pytest.mark.parametrize("wrap", WRAPS)
@daily(8)
@pytest.mark.filterwarnings("ignore:a row store in memory is built again")
def test_the_accuracy_of_the_quick_start_is_right(tables: Path, wrap: str, shuffle: Any) -> None:
    mode = ROWS if shuffle == "rows" else SPLITS
    assert accuracy(WRAPS[wrap](mode.make(tables, shuffle=shuffle))) == 1


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("num_workers", [0, 2])
@daily(2)
def test_a_loader_of_ones_own_has_as_many_steps_as_batches(tables: Path, kind: Any, num_workers: int) -> None:
    dataset: Any = SPLITS.open(tables)
    loader = kind(dataset, batch_size=None, num_workers=num_workers)
    with meant_warnings():
        assert len(loader) == len(dataset) == len(list(loader))
    of_loader: Any = SPLITS.make(tables)
    assert len(kind(of_loader.dataset, batch_size=None)) == len(of_loader) == len(dataset)


def test_skipping_with_accelerate_counts_batches(tables: Path) -> None:
    from accelerate import skip_first_batches

    loader = SPLITS.make(tables)
    rest = skip_first_batches(loader, 2)
    assert len(list(rest)) == len(loader) - 2


def test_the_trainer_counts_examples(tables: Path, tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    loader: Any = SPLITS.make(tables)
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    assert Trainer(torch.nn.Linear(1, 1), arguments).num_examples(loader) == loader.dataset.num_rows


def test_the_loaders_dataset_is_the_dataset_in_all_else(tables: Path) -> None:
    plain, arguments, options = SPLITS.parts(tables, {"batch_size": 5, "check_plan": False})
    loader, dataset = plain.create_dataloader(*arguments, **options)
    shown: Any = loader.dataset
    shown.note = "mine"
    assert (vars(dataset)["note"], shown.note) == ("mine", "mine")
    assert shown == dataset
    assert dataset == shown
    assert hash(shown) == hash(dataset)
    assert isinstance(shown, StructuredDataset)
    assert isinstance(shown, IterableDataset)
    assert shown.__class__ is StructuredDataset
    assert (repr(shown), shown.loader(), "x" in shown) == (repr(dataset), loader, True)
    shown.set_epoch(3)
    assert dataset.epoch == 3
    assert [batch["x"].tolist() for batch in shown] == [batch["x"].tolist() for batch in dataset]
    twin, other = pickle.loads(pickle.dumps((loader, dataset)))  # noqa: S301 our own bytes
    assert twin.dataset == other
    assert copy.copy(shown) == dataset
    assert len(shown) != len(dataset) == len(loader)
