"""Every kind of loader goes on under every framework with exactly the batches that an uninterrupted run has."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

import torch_table_loader
from tests.effort import daily
from tests.guests import is_here
from tests.tables.plain import meant_warnings
from torch_table_loader import StructuredDataset, TableLoader
from torch_table_loader.sizes import small_sizes

SAVED_AFTER, STEPS = 4, 9
"""Steps before the checkpoint, and all that are compared; some loaders begin their second epoch in between."""

ROWS: dict[str, Any] = {"shuffle": "rows", "row_store": "memory"}
STREAM: dict[str, Any] = {"shuffle": "splits", "split_size": 10}
FOREVER: dict[str, Any] = {"epochs": "forever"}


def _packed() -> dict[str, dict[str, Any]]:
    """Return loaders of sequences, if this build makes them."""
    if not is_here("text"):
        return {}
    pack: dict[str, Any] = {"pack": torch_table_loader.Pack(seq_len=4, strategy="pad"), "columns": []}
    cut: dict[str, Any] = {"pack": torch_table_loader.Pack(seq_len=4), "columns": []}
    return {
        "packed stream": STREAM | pack,
        "packed rows": ROWS | pack,
        "cut stream": STREAM | cut,
        "cut rows": ROWS | cut,
    }


SHAPES = {"stream": STREAM, "rows": ROWS} | _packed()
PLAIN: dict[str, dict[str, Any]] = {
    **SHAPES,
    **{f"endless {kind}": shape | FOREVER for kind, shape in SHAPES.items()},
    "growing stream": STREAM | {"on_growth": "continue"},
    "growing rows": ROWS | {"on_growth": "continue"},
    "uncounted stream": STREAM | {"filters": pc.field("x") > 2, "count_filtered": False},
    "uncounted endless stream": STREAM | FOREVER | {"filters": pc.field("x") > 2, "count_filtered": False},
    "two epochs of a stream": STREAM | {"epochs": 2},
    "two epochs of rows": ROWS | {"epochs": 2},
}
MIXED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    f"{ends} of {kind}": (PLAIN[kind], options)
    for kind in (SHAPES if is_here("mixtures") else ())
    for ends, options in {
        "mixture": {"stop": "all_exhausted"},
        "endless mixture": {"stop": "forever"},
        "endless epochs of a mixture": FOREVER,
    }.items()
}
KINDS = [*PLAIN, *MIXED]
EVERY_DAY = ("uncounted endless stream", "endless cut rows", "two epochs of a stream", "endless mixture of stream")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tables")
    for name, size in {"small": 60, "a": 600, "b": 400}.items():
        (root / name).mkdir()
        lists = pa.array([[row, row + 1, row + 2] for row in range(size)], pa.list_(pa.int32()))
        table = pa.table({"x": range(size), "input_ids": lists})
        pq.write_table(table, root / name / "0.parquet", row_group_size=size // 6)
    return root


@pytest.fixture(autouse=True)
def _few_rows_at_once() -> Iterator[None]:
    """Let endless mixtures read little ahead of what is taken."""
    with small_sizes(gather_rows=80):
        yield


def make(tables: Path, kind: str) -> TableLoader:
    size: dict[str, Any] = {"batch_size": 10, "num_workers": 2, "check_plan": False}
    with meant_warnings():
        if kind in PLAIN:
            own = {"columns": ["x"], **PLAIN[kind], **size}
            return StructuredDataset.create_dataloader(str(tables / "small"), **own)[0]
        of_sources, options = MIXED[kind]
        own = {"columns": ["x"], **of_sources, **({"split_size": 100} if "split_size" in of_sources else {})}
        sources = {name: partial(StructuredDataset, str(tables / name), **own) for name in "ab"}
        return torch_table_loader.MixedDataset.create_dataloader(sources, {"a": 2, "b": 1}, **size, **options)[0]


def told(batch: dict[str, Any]) -> Any:
    """Return what a batch has, as plain data."""
    return {
        name: told(value) if isinstance(value, dict) else torch.as_tensor(value).tolist()
        for name, value in batch.items()
    }


class Model(torch.nn.Module):
    """Notes which batches came."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.batches: list[Any] = []

    def forward(self, **batch: Any) -> dict[str, torch.Tensor]:
        self.batches.append(told(batch))
        return {"loss": self.layer(torch.ones(1, 1)).mean() * 1e-6}


Trained = Callable[[Callable[[], TableLoader], Path, int, bool], list[Any]]
"""Trains up to a step, from the start with a checkpoint at its end, or from a checkpoint; gives the batches."""


def epochs_of(loader: TableLoader) -> Iterator[Any]:
    """Yield the batches of epoch after epoch, as a loop of one's own takes them."""
    first = loader.state_dict()["epoch"]
    for epoch in range(first, first + 100):
        if epoch > first:
            loader.set_epoch(epoch)
        yield from loader


def by_hand(make: Callable[[], TableLoader], folder: Path, steps: int, resume: bool) -> list[Any]:
    with make() as loader:
        if resume:
            loader.load_state_dict(json.loads((folder / "state.json").read_text()))
        batches = list(map(told, islice(epochs_of(loader), steps)))
        (folder / "state.json").write_text(json.dumps(loader.state_dict()))
    return batches


def by_dcp(make: Callable[[], TableLoader], folder: Path, steps: int, resume: bool) -> list[Any]:
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save

    with make() as loader, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        if resume:
            load({"loader": loader}, checkpoint_id=str(folder), no_dist=True)
            return list(map(told, islice(epochs_of(loader), steps)))
        batches = list(map(told, islice(epochs_of(loader), steps)))
        save({"loader": loader}, checkpoint_id=str(folder), no_dist=True)
    return batches


def by_accelerate(make: Callable[[], TableLoader], folder: Path, steps: int, resume: bool) -> list[Any]:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))
    with make() as made:
        loader: Any = accelerator.prepare(made)
        if resume:
            accelerator.load_state(str(folder))
        batches = list(map(told, islice(epochs_of(loader), steps)))
        if not resume:
            accelerator.save_state(str(folder))
    return batches


def by_trainer(make: Callable[[], TableLoader], folder: Path, steps: int, resume: bool) -> list[Any]:
    from transformers import TrainingArguments

    from torch_table_loader.integrations.transformers import TableTrainer

    done = SAVED_AFTER if resume else 0
    arguments = TrainingArguments(
        str(folder),
        max_steps=done + steps,
        save_strategy="steps",
        save_steps=SAVED_AFTER,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = TableTrainer(model := Model(), arguments, make_loader=make)
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{SAVED_AFTER}") if resume else None)
    assert trainer.state.global_step == done + steps
    return model.batches


def by_lightning(make: Callable[[], TableLoader], folder: Path, steps: int, resume: bool) -> list[Any]:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from torch_table_loader.integrations.lightning import ResumeOnAnyRanks

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def train_dataloader(self) -> Any:
            return make()

        def training_step(self, batch: dict[str, Any]) -> torch.Tensor:
            loss: torch.Tensor = self.model(**batch)["loss"]
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    done = SAVED_AFTER if resume else 0
    trainer = lightning.Trainer(
        max_steps=done + steps,
        max_epochs=-1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ResumeOnAnyRanks(), ModelCheckpoint(folder, save_last=True, every_n_train_steps=SAVED_AFTER)],
        default_root_dir=folder,
    )
    trainer.fit(module := Module(), ckpt_path=str(folder / "last.ckpt") if resume else None)
    return module.model.batches


FRAMEWORKS: dict[str, Trained] = {
    "by hand": by_hand,
    "DCP": by_dcp,
    "Accelerate": by_accelerate,
    "TableTrainer": by_trainer,
    "Lightning": by_lightning,
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore")
@daily(lambda kind, framework: kind in EVERY_DAY and framework in ("by hand", "Accelerate"))
def test_a_run_goes_on_as_if_it_had_not_stopped(tables: Path, tmp_path: Path, kind: str, framework: str) -> None:
    train, made = FRAMEWORKS[framework], partial(make, tables, kind)
    whole = (
        train(made, tmp_path / "whole", STEPS, False)
        if framework == "TableTrainer"
        else by_hand(made, tmp_path, STEPS, False)
    )
    first = train(made, tmp_path, SAVED_AFTER, False)
    rest = train(made, tmp_path, STEPS - SAVED_AFTER, True)
    assert first + rest == whole
