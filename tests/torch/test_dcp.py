"""torch.distributed.checkpoint: a loader is `Stateful`; saved on 2 ranks and loaded on 3, every row comes once."""

from __future__ import annotations

import json
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.stateful import Stateful
from torch.multiprocessing.spawn import spawn

from tests.launchers.jobs import make, own_rows
from tests.tables.plain import write_table

pytestmark = pytest.mark.slow

SMALL = [[9, 4, 11], [1], [], [17, 5], [13, 13]]
TOTAL = sum(map(sum, SMALL))
OPTIONS: dict[str, dict[str, Any]] = {
    "splits": {
        "num_workers": 2,
        "shuffle": "splits",
        "split_size": 10,
        "shuffle_buffer_size": 6,
        "even_ranks": "balance",
    },
    "rows": {"shuffle": "rows", "row_store": "memory", "even_ranks": "pad"},
}
EPOCH, STEPS = 3, 3


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save on two ranks, load on three; gives where each has written down what it saw."""
    root = tmp_path_factory.mktemp("dcp")
    write_table(root / "table", SMALL)
    spawn(_train_and_save, args=(str(root),), nprocs=2)  # type: ignore[no-untyped-call]
    spawn(_load_and_finish, args=(str(root),), nprocs=3)  # type: ignore[no-untyped-call]
    return root


@pytest.mark.parametrize("order", OPTIONS)
def test_saved_on_two_ranks_and_loaded_on_three(trained: Path, order: str) -> None:
    first = [json.loads((trained / f"first-{order}-{rank}.json").read_text()) for rank in range(2)]
    then = [json.loads((trained / f"then-{order}-{rank}.json").read_text()) for rank in range(3)]
    assert [len(each["rows"]) for each in first] == [STEPS * 5] * 2
    assert all(each["epoch"] == EPOCH and each["step"] == STEPS for each in then), "the rest of the checkpoint too"
    assert sorted(sum([each["rows"] for each in first + then], [])) == list(range(TOTAL))


def _train_and_save(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-2", rank=rank, world_size=2)
    for order, options in OPTIONS.items():
        loader = make(Path(folder) / "table", num_ranks="auto", batch_size=5, check_plan=True, **options)
        assert isinstance(loader, Stateful)
        loader.set_epoch(EPOCH)
        batches = iter(loader)
        rows = own_rows(islice(batches, STEPS))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own
            save({"loader": loader, "step": torch.tensor(STEPS)}, checkpoint_id=f"{folder}/checkpoint-{order}")
        Path(folder, f"first-{order}-{rank}.json").write_text(json.dumps({"rows": rows}))
    dist.barrier()
    dist.destroy_process_group()


def _load_and_finish(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-3", rank=rank, world_size=3)
    for order, options in OPTIONS.items():
        loader = make(Path(folder) / "table", num_ranks="auto", batch_size=4, check_plan=True, **options)
        loaded: dict[str, Any] = {"loader": loader, "step": torch.tensor(0)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own
            load(loaded, checkpoint_id=f"{folder}/checkpoint-{order}")
        found = {"rows": own_rows(loader), "epoch": loader.state_dict()["epoch"], "step": int(loaded["step"])}
        Path(folder, f"then-{order}-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
