"""What three ranks see of one table under Accelerate. Run by torchrun."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.parallelism_config import ParallelismConfig
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, IterableDataset

from tests.launchers.scripts.stage import play_all_and_leave, scene
from tests.launchers.scripts.training_scenes import EPOCHS, Run, add_training_scenes, count, of_table, own_rows
from torch_table_loader import StructuredDataset, TableLoader


def make(root: Path, **options: Any) -> TableLoader:
    chosen: dict[str, Any] = of_table({"even_ranks": None} | options)
    return StructuredDataset.create_dataloader(str(root / "table"), "parquet", **chosen)[0]


def accelerator(steps: int = 1, **config: Any) -> Accelerator:
    """Make an accelerator whose gradient state is new."""
    GradientState._reset_state()
    return Accelerator(cpu=True, gradient_accumulation_steps=steps, dataloader_config=DataLoaderConfiguration(**config))


def rows(loader: Any) -> list[int]:
    """List the rows of an epoch, padding left out."""
    return [row for batch in loader for row in own_rows(batch)]


def train(
    root: Path, table: dict[str, Any], *, resume: Path | None = None, saving: bool = False, rescaled: bool = False
) -> Run:
    """Train in a loop of one's own, which saves after every third batch and every epoch."""
    training = accelerator()
    model = torch.nn.Linear(1, 1)
    model, optimizer, loader = training.prepare(
        model, torch.optim.SGD(model.parameters(), lr=1e-6), make(root, **{"even_ranks": "balance"} | table)
    )
    if resume:
        training.load_state(str(resume))
    run: Run = {"batches": [], "counts": [], "epochs": 0}
    begun = int(resume.name.split("-")[1]) if resume else 0
    for epoch in range(loader.dataset.epoch, EPOCHS):
        loader.set_epoch(epoch)
        for made, batch in enumerate(loader, begun + 1):
            optimizer.zero_grad()
            training.backward(model(batch["f"].float()[:, None]).mean())
            optimizer.step()
            run["batches"].append(own_rows(batch))
            assert training.gradient_state.end_of_dataloader == (loader.remaining == 0)
            if not rescaled:
                run["counts"].append(count(made, loader))
            if saving and (loader.remaining == 0 or made % 3 == 0):
                training.save_state(str(root / "trained" / f"{epoch}-{made}"))
        begun = 0
    run["epochs"] = loader.dataset.epoch + (loader.remaining == 0)
    return run


def saved(folder: Path, steps: int) -> Iterator[tuple[int, Path]]:
    """Find the checkpoints, which are named by the epoch and its batches."""
    for path in folder.iterdir():
        epoch, taken = map(int, path.name.split("-"))
        yield epoch * steps + taken, path


add_training_scenes(train, saved)


@scene
def every_configuration(root: Path) -> Any:
    """Deliver an epoch under each configuration that an accelerator can have."""
    names = ("dispatch_batches", "split_batches", "even_batches", "use_stateful_dataloader")
    choices = itertools.product((None, True, False), (False, True), (True, False), (False, True), (True, False))
    seen: dict[str, list[int]] = {}
    for *config, places in choices:
        asked: dict[str, Any] = dict(zip(names, config, strict=True))
        loader = make(root, even_ranks="balance")
        assert accelerator(1, **asked).prepare(loader, device_placement=[places]) is loader
        seen[f"{asked} {places}"] = rows(loader)
    return seen


@scene
def every_mode(root: Path) -> Any:
    modes: list[dict[str, Any]] = [
        {},
        {"shuffle": False, "drop_last": False, "even_ranks": "pad"},
        {"shuffle": "rows", "row_store": "memory", "even_ranks": "pad"},
        {"worker_type": "process", "num_workers": 1, "even_ranks": "balance"},
        {"num_workers": 0, "even_ranks": "balance"},
    ]
    return [rows(accelerator().prepare(make(root, **mode))) for mode in modes]


@scene
def said_ranks(root: Path) -> Any:
    job = make(root, even_ranks="balance").dataset.job  # type: ignore[attr-defined]
    return [job.rank, job.topology.num_ranks]


def lengths(loader: Any) -> list[int]:
    """Give what a loader says of its epoch: all steps, and those to come."""
    return [len(loader), loader.remaining]


@scene
def save_and_load(root: Path) -> Any:
    return saved_and_loaded(root, even_ranks="balance")


@scene
def save_and_load_rows(root: Path) -> Any:
    return saved_and_loaded(root, shuffle="rows", row_store="memory", even_ranks="pad")


def saved_and_loaded(root: Path, **mode: Any) -> Any:
    """Save after some steps, finish, go on from the checkpoint in a new loader, and once more by skipping."""
    saving = accelerator()
    options: dict[str, Any] = {"batch_size": 5} | mode
    loader = saving.prepare(make(root, **options))
    loader.set_epoch(3)
    batches = iter(loader)
    before = [row for _ in range(4) for row in next(batches)["x"].tolist()]
    told = [lengths(loader)]
    saving.save_state(str(root / "checkpoint"))
    saving.wait_for_everyone()
    after = rows(batches)
    loading = accelerator()
    resumed = loading.prepare(make(root, **options))
    told.append(lengths(resumed))
    loading.load_state(str(root / "checkpoint"))
    told.append(lengths(resumed))
    again, epoch = rows(resumed), resumed.dataset.epoch
    told.append(lengths(resumed))
    loading.load_state(str(root / "checkpoint"))
    skipped = rows(skip_first_batches(resumed, 4))
    resumed.set_epoch(3)
    unloaded = rows(skip_first_batches(resumed, 4))
    return {
        "before": before,
        "after": after,
        "again": again,
        "skipped": skipped,
        "unloaded": unloaded,
        "epoch": epoch,
        "lengths": told,
    }


@scene
def gathered_rows(root: Path) -> Any:
    """Gather what a metric would see: each row once, with nothing cut by hand."""
    found = []
    for options in ({}, {"drop_last": True}, {"batch_size": 71}, {"filters": None, "columns": ["x"]}):
        training = accelerator()
        chosen: dict[str, Any] = {"shuffle": "rows", "row_store": "memory", "even_ranks": "pad"} | options
        loader = training.prepare(make(root, **chosen))
        found.append([row for batch in loader for row in training.gather_for_metrics(batch)["x"].tolist()])
    return found


@scene
def gathered_with_the_mask(root: Path) -> Any:
    training = accelerator()
    loader = training.prepare(make(root, even_ranks="pad"))
    found, remainders = [], []
    for batch in loader:
        remainders.append(training.gradient_state.remainder)
        every = training.gather_for_metrics({"x": batch["x"], "padding": batch["padding"]})
        found += every["x"][~every["padding"]].tolist()
    return {"rows": found, "remainders": remainders}


@scene
def accumulated(root: Path) -> Any:
    """Train on seven batches, four to an update; the last three make an update too."""
    training = accelerator(steps=4)
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    model, optimizer, loader = training.prepare(
        model,
        torch.optim.SGD(model.parameters(), lr=1e-6),
        make(root, shuffle="rows", row_store="memory", even_ranks="pad"),
    )
    synced, weights = [], []
    for _ in range(2):
        for batch in loader:
            with training.accumulate(model):
                loss = model(batch["f"].float()[:, None]).mean()
                training.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            synced.append(training.sync_gradients)
        weights.append(next(model.parameters()).item())
        loader.set_epoch(1)
    return {"synced": synced, "weights": weights}


@scene
def tensor_parallel_ranks(root: Path) -> Any:
    """All ranks are one tensor-parallel group, which reads one part: all of the table."""
    AcceleratorState._reset_state()
    try:
        state = accelerator().state
        state.device_mesh = ParallelismConfig(tp_size=state.num_processes).get_device_mesh("cpu")
        return rows(make(root))
    finally:
        AcceleratorState._reset_state()


class DealtRows(IterableDataset[torch.Tensor]):
    """Every third of fifty rows: a dataset that has dealt its rows to the ranks already."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor(row) for row in range(self._rank, 50, 3))


@scene
def plain_loaders(root: Path) -> Any:
    """What a plain DataLoader over rows that were dealt already delivers under prepare(): by default, and sharded."""
    found = []
    for dispatch in (None, False):
        training = accelerator(dispatch_batches=dispatch)
        plain: DataLoader[torch.Tensor] = DataLoader(DealtRows(training.process_index), batch_size=4)
        found.append([row for batch in training.prepare(plain) for row in batch.tolist()])
    return found


if __name__ == "__main__":
    play_all_and_leave()
