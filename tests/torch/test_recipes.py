"""Recipes in the shape of torchtitan's and torchtune's, on two ranks: killed inside an epoch, they go on exactly.

Neither is installed here. What a recipe asks of its loader is written down: torchtitan hands the loader to
`torch.distributed.checkpoint` beside the model and the train state; torchtune puts the loader's state into one dict
with the recipe's own numbers, and calls ``sampler.set_epoch`` before each epoch.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.checkpoint.stateful import Stateful
from torch.multiprocessing.spawn import spawn

from tests.launchers.jobs import make, own_rows
from tests.tables.plain import write_table
from torch_table_loader import Pack, StructuredDataset, TableLoader

pytestmark = pytest.mark.slow

SMALL = [[9, 4, 11], [1], [], [17, 5], [13, 13]]
ROWS = sum(map(sum, SMALL))
STEPS, KILLED = 40, 20
"""Steps of the whole run, and those before the checkpoint that it goes on from, inside the second epoch."""

EPOCHS = 3


class TrainState(Stateful):
    """What torchtitan's trainer keeps beside model and loader."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = int(state["step"])


def corpus_loader(folder: str, *, epochs: Any = None) -> TableLoader:
    return StructuredDataset.create_dataloader(
        f"{folder}/corpus.parquet",
        batch_size=2,
        pack=Pack(seq_len=16, labels="shifted"),
        shuffle="splits",
        num_ranks="auto",
        even_ranks="balance",
        epochs=epochs,
        num_workers=2,
        split_size=6,
    )[0]


def rows_loader(folder: str, batch_size: int) -> TableLoader:
    shape: dict[str, Any] = {"num_workers": 2, "shuffle": "splits", "split_size": 10, "even_ranks": "balance"}
    return make(Path(folder) / "table", num_ranks="auto", check_plan=True, batch_size=batch_size, **shape)


def tokens(batches: Any) -> list[Any]:
    return [batch["input_ids"].tolist() for batch in batches]


def states_of(loader: TableLoader) -> dict[str, Any]:
    """Give what torchtitan's checkpoint manager saves and loads."""
    torch.manual_seed(0)
    return {"model": torch.nn.Linear(2, 2).state_dict(), "train_state": TrainState(), "dataloader": loader}


def in_titans_shape(folder: str, kind: str, *, resumes: bool) -> list[Any]:
    """Train to the kill, with one step after the checkpoint was asked for; or load it, and train to the end."""
    loader = corpus_loader(folder, epochs="forever")
    states = states_of(loader)
    if resumes:
        load(states, checkpoint_id=f"{folder}/titan-{kind}")
        return tokens(islice(loader, STEPS - states["train_state"].step))
    batches = iter(loader)
    taken = tokens(islice(batches, KILLED))
    states["train_state"].step = KILLED
    if kind == "async":
        future: Any = async_save(states, checkpoint_id=f"{folder}/titan-{kind}")
        next(batches)
        future.result()
    else:
        save(states, checkpoint_id=f"{folder}/titan-{kind}")
        next(batches)
    loader.close()
    return taken


def in_tunes_shape(folder: str, stop_at: int | None, *, resumes: bool) -> Iterator[Any]:
    """Train epoch by epoch; a dict with the loader's state is saved by one rank, and loaded by all."""
    recipe: dict[str, Any] = {"epochs_run": 0, "steps_run": 0}
    loader = corpus_loader(folder)
    sampler: Any = loader.sampler
    if resumes:
        recipe = torch.load(f"{folder}/recipe_state.pt", weights_only=True)
        loader.load_state_dict(recipe["dataloader"])
    for epoch in range(recipe["epochs_run"], EPOCHS):
        sampler.set_epoch(epoch)
        for batch in loader:
            yield batch["input_ids"].tolist()
            recipe["steps_run"] += 1
            if recipe["steps_run"] == stop_at:
                if dist.get_rank() == 0:
                    torch.save({**recipe, "dataloader": loader.state_dict()}, f"{folder}/recipe_state.pt")
                dist.barrier()
                return
        recipe["epochs_run"] = epoch + 1


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Train on two ranks, three, and two again; gives what each rank of each run saw."""
    folder = tmp_path_factory.mktemp("recipes")
    write_table(folder / "table", SMALL)
    ids = pa.array([list(range(100 * n, 100 * n + 5 + n)) for n in range(40)], pa.list_(pa.int32()))
    pq.write_table(pa.table({"input_ids": ids}), folder / "corpus.parquet", row_group_size=6)
    for number, world in enumerate((2, 3, 2)):
        spawn(_run, args=(str(folder), number, world), nprocs=world)  # type: ignore[no-untyped-call]
    seen: dict[str, list[Any]] = {}
    for path in sorted(folder.glob("seen-*.json")):
        for name, batches in json.loads(path.read_text()).items():
            seen.setdefault(name, []).append(batches)
    return seen


def _run(rank: int, folder: str, number: int, world: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{number}", rank=rank, world_size=world)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        seen = (_begin, _on_three_ranks, _go_on)[number](folder)
    Path(folder, f"seen-{number}-{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


def _begin(folder: str) -> dict[str, Any]:
    loader = rows_loader(folder, 5)
    rows = own_rows(islice(batches := iter(loader), 3))
    save(states_of(loader), checkpoint_id=f"{folder}/rows")
    del batches
    return {
        "titan whole": tokens(islice(corpus_loader(folder, epochs="forever"), STEPS)),
        "titan sync": in_titans_shape(folder, "sync", resumes=False),
        "titan async": in_titans_shape(folder, "async", resumes=False),
        "tune whole": list(in_tunes_shape(folder, None, resumes=False)),
        "tune first": list(in_tunes_shape(folder, KILLED, resumes=False)),
        "rows first": rows,
    }


def _on_three_ranks(folder: str) -> dict[str, Any]:
    loader = rows_loader(folder, 4)
    load(states_of(loader), checkpoint_id=f"{folder}/rows")
    rows = own_rows(islice(loader, 2))
    save(states_of(loader), checkpoint_id=f"{folder}/rows-again")
    return {"rows then": rows}


def _go_on(folder: str) -> dict[str, Any]:
    loader = rows_loader(folder, 3)
    load(states_of(loader), checkpoint_id=f"{folder}/rows-again")
    return {
        "titan sync resumed": in_titans_shape(folder, "sync", resumes=True),
        "titan async resumed": in_titans_shape(folder, "async", resumes=True),
        "tune resumed": list(in_tunes_shape(folder, None, resumes=True)),
        "rows at last": own_rows(loader),
    }


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_loader_beside_the_model_in_a_distributed_checkpoint(trained: dict[str, list[Any]], kind: str) -> None:
    """As in torchtitan: a step that is taken while the checkpoint is written is no part of it."""
    for rank in range(2):
        first, then = trained[f"titan {kind}"][rank], trained[f"titan {kind} resumed"][rank]
        assert (len(first), len(then)) == (KILLED, STEPS - KILLED)
        assert first + then == trained["titan whole"][rank]


def test_a_state_in_the_dict_of_a_recipe(trained: dict[str, list[Any]]) -> None:
    """As in torchtune: one rank's state goes to all, and the sampler is told the epoch after it was loaded."""
    for rank in range(2):
        first, then, whole = (trained[f"tune {part}"][rank] for part in ("first", "resumed", "whole"))
        steps = len(whole) // EPOCHS
        assert steps < KILLED < 2 * steps, "the kill is inside the second epoch"
        assert first + then == whole


def test_two_ranks_three_and_two_again_deliver_each_row_once(trained: dict[str, list[Any]]) -> None:
    """A state that speaks of several topologies goes through a checkpoint, too."""
    parts = [rows for name in ("rows first", "rows then", "rows at last") for rows in trained[name]]
    assert all(parts)
    assert sorted(sum(parts, [])) == list(range(ROWS))
