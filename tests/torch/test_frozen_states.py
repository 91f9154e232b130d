"""States that older code wrote go on for ever: one file a version, with what must come next.

``python -m tests.torch.test_frozen_states`` adds the cases that are missing to the file of the newest version. What was
written is kept for ever.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from functools import cache
from itertools import islice
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pyarrow.compute as pc
import pytest

import torch_table_loader
from tests.effort import daily
from tests.launchers.jobs import make, own_rows
from tests.states import STATE_VERSION, State
from tests.tables.plain import meant_warnings
from torch_table_loader import ResumeError, StructuredDataset, TableLoader, Weights

STATES = Path(__file__).parent / "states"
TABLE = STATES / "table"
"""Committed as bytes: 66 rows in three Parquet files of several row groups, and again as JSON lines."""

FILTER = pc.field("k") < 7

Case = dict[str, Any]
"""How a job ran before its state was kept, and how it goes on.

``stages`` are options and what was done under them: an int takes so many steps, a dict calls methods of the dataset.
"""
Cases = dict[str, Case]

PLAIN: Case = {"batch_size": 5, "num_workers": 2, "shuffle": "splits", "split_size": 10}
ROWS: Case = {"batch_size": 4, "num_workers": 2, "shuffle": "rows"}
MIXED: Case = {"batch_size": 6, "num_workers": 2, "weights": {"b": 1, "a": 3}, "block": 8}
NATURAL: Case = {"batch_size": 6, "num_workers": 2, "weights": "rows"}
WEIGHTED: Case = ROWS | {"filtered": True, "drawn": Weights(column="x", samples=50)}
STREAMS: Case = MIXED | {"shuffle": "splits"}
STREAMS.pop("block")
DROPPING: Case = STREAMS | {"stop": {"at": "forever", "drop": {"b": 1}, "samples": 150}}
GROWS: Case = {"on_growth": "continue"}
CASES: Cases = {
    "in the middle of an epoch": {"go on": PLAIN, "epoch": 3, "stages": [(PLAIN, 4)]},
    "rows in table order": {
        "go on": PLAIN | {"shuffle": False, "num_workers": 0},
        "epoch": 0,
        "stages": [(PLAIN | {"shuffle": False, "num_workers": 0}, 6)],
    },
    "two changes of topology, shuffle windows open": {
        "go on": PLAIN | {"num_ranks": 3, "rank": 1, "shuffle_buffer_size": 8, "even_ranks": "balance"},
        "epoch": 1,
        "stages": [
            (PLAIN | {"num_ranks": 2, "shuffle_buffer_size": 12, "even_ranks": False}, 3),
            (PLAIN | {"num_ranks": 1, "shuffle_buffer_size": 7, "batch_size": 3, "drop_last": True}, 4),
        ],
    },
    "rows that pass a filter": {
        "go on": PLAIN | {"filtered": True, "num_ranks": 2, "rank": 0, "even_ranks": "pad"},
        "epoch": 2,
        "stages": [(PLAIN | {"filtered": True, "batch_size": 4, "num_ranks": 1}, 5)],
    },
    "rows that nobody counted": {
        "go on": PLAIN | {"filtered": True, "count_filtered": False, "num_ranks": 2, "rank": 1},
        "epoch": 2,
        "stages": [(PLAIN | {"filtered": True, "count_filtered": False, "num_ranks": 2, "rank": 1}, 2)],
    },
    "a rank that ended before another": {
        "go on": PLAIN | {"num_ranks": 5, "rank": 4, "even_ranks": False},
        "epoch": 0,
        "stages": [(PLAIN | {"num_ranks": 5, "rank": 4, "even_ranks": False}, 3)],
    },
    "a strategy that deals": {
        "go on": {"batch_size": 5, "num_workers": 2, "num_ranks": 2, "rank": 1, "split_strategy": "round_robin"},
        "epoch": 1,
        "stages": [({"batch_size": 5, "num_workers": 1, "num_ranks": 2, "split_strategy": "round_robin"}, 3)],
    },
    "JSON lines": {"go on": PLAIN | {"form": "json"}, "epoch": 4, "stages": [(PLAIN | {"form": "json"}, 3)]},
    "single rows": {"go on": ROWS, "epoch": 3, "stages": [(ROWS, 5)]},
    "single rows, two changes of topology": {
        "go on": ROWS | {"num_ranks": 3, "rank": 1, "even_ranks": "pad"},
        "epoch": 1,
        "stages": [(ROWS | {"num_ranks": 2}, 3), (ROWS | {"batch_size": 3, "drop_last": True}, 4)],
    },
    "single rows that pass a filter, some of them excluded": {
        "go on": ROWS | {"filtered": True, "num_ranks": 2, "rank": 1},
        "epoch": 2,
        "stages": [
            (ROWS | {"filtered": True}, {"exclude": [3, 4, 60]}, 3, {"include": [4], "exclude": [30, 31]}),
            (ROWS | {"filtered": True, "num_ranks": 3}, 2),
        ],
    },
    "single rows, a rank that ended before another": {
        "go on": ROWS | {"num_ranks": 5, "rank": 4, "even_ranks": False},
        "epoch": 0,
        "stages": [(ROWS | {"num_ranks": 5, "rank": 4, "batch_size": 13, "even_ranks": False}, 1)],
    },
    "rows by weight that pass a filter, some of them excluded": {
        "go on": WEIGHTED | {"num_ranks": 2, "rank": 1},
        "epoch": 2,
        "stages": [
            (WEIGHTED, {"exclude": [3, 4, 60]}, 3, {"include": [4], "exclude": [30, 31]}),
            (WEIGHTED | {"num_ranks": 3}, 2),
        ],
    },
    "a mixture that draws by weight": {
        "go on": MIXED | {"drawn": Weights(balance="k"), "num_ranks": 2, "rank": 1},
        "epoch": 1,
        "stages": [(MIXED | {"drawn": Weights(balance="k")}, 4)],
    },
    "a mixture": {"go on": MIXED, "epoch": 3, "stages": [(MIXED, 4)]},
    "a mixture that never ends, two changes of topology": {
        "go on": MIXED | {"stop": "forever", "num_ranks": 2, "rank": 1},
        "epoch": 1,
        "stages": [
            (MIXED | {"stop": "forever", "num_ranks": 3}, 3),
            (MIXED | {"stop": "forever", "batch_size": 5, "drop_last": True}, 2),
        ],
    },
    "a mixture whose weights changed, filtered, some rows excluded": {
        "go on": MIXED | {"filtered": True, "stop": "all_exhausted", "num_ranks": 2, "rank": 0, "even_ranks": "pad"},
        "epoch": 2,
        "stages": [
            (
                MIXED | {"filtered": True, "stop": "all_exhausted"},
                {"exclude": {"a": [3, 4, 60]}},
                3,
                {"set_weights": {"a": 1, "b": 1.5}, "exclude": {"b": [7]}},
                2,
                {"set_weights": {"a": 1, "b": 1}},
            ),
        ],
    },
    "a mixture of all that there is, with other weights for a while": {
        "go on": NATURAL | {"num_ranks": 2, "rank": 1},
        "epoch": 1,
        "stages": [
            (NATURAL | {"num_ranks": 3}, 2, {"set_weights": {"a": 1, "b": 2}}, 1, {"set_weights": "rows"}),
            (NATURAL | {"batch_size": 5}, 3),
        ],
    },
    "a mixture, a rank that ended before another": {
        "go on": MIXED | {"num_ranks": 5, "rank": 4, "batch_size": 17, "even_ranks": False},
        "epoch": 0,
        "stages": [(MIXED | {"num_ranks": 5, "rank": 4, "batch_size": 17, "even_ranks": False}, 1)],
    },
    "a mixture of streams": {"go on": STREAMS, "epoch": 3, "stages": [(STREAMS, 4)]},
    "a mixture of streams, other weights and micro-batches for a while": {
        "go on": STREAMS | {"weights": "rows", "num_ranks": 2, "rank": 1},
        "epoch": 1,
        "stages": [
            (STREAMS | {"weights": "rows", "num_ranks": 3}, 2, {"set_weights": {"a": 1, "b": 2}}, 1),
            (STREAMS | {"weights": "rows", "batch_size": 2, "global_batch_size": 6}, 3),
        ],
    },
    "a mixture of streams, a source dropped": {
        "go on": DROPPING | {"num_ranks": 2, "rank": 0},
        "epoch": 2,
        "stages": [(DROPPING | {"num_ranks": 3}, 1), (DROPPING, 9)],
    },
    "a table that grew": {
        "go on": PLAIN | GROWS | {"of_files": 3, "num_ranks": 2, "rank": 0},
        "epoch": 1,
        "stages": [(PLAIN | GROWS | {"of_files": 2}, 3), (PLAIN | GROWS | {"of_files": 3}, 2)],
    },
    "a table that grew since": {
        "go on": PLAIN | GROWS | {"of_files": 3},
        "epoch": 1,
        "stages": [(PLAIN | GROWS | {"of_files": 2}, 3)],
    },
    "single rows of a table that grew": {
        "go on": ROWS | GROWS | {"of_files": 3, "num_ranks": 2, "rank": 0},
        "epoch": 1,
        "stages": [
            (ROWS | GROWS | {"of_files": 2}, {"exclude": [3, 4]}, 3),
            (ROWS | GROWS | {"of_files": 3}, 2),
        ],
    },
}


@cache
def first_files(count: int) -> Path:
    """Return a folder with the first files of the table, each younger than the one before."""
    root = Path(mkdtemp())
    for number, path in enumerate(sorted((TABLE / "parquet").iterdir())[:count]):
        shutil.copy(path, root)
        os.utime(root / path.name, (1000 + number, 1000 + number))
    return root


def open_loader(options: Case) -> TableLoader:
    """Make the loader of a case."""
    chosen: Case = {"num_ranks": 1, "rank": 0} | options
    filters: Case = {"filters": FILTER} if chosen.pop("filtered", False) else {}
    drawn: Case = {"weights": chosen.pop("drawn")} if "drawn" in chosen else {}
    if "weights" not in chosen:
        root = chosen.pop("root", TABLE / chosen.get("form", "parquet"))
        root = first_files(chosen.pop("of_files")) if "of_files" in chosen else root
        return make(root, **chosen, **filters, **drawn)
    with meant_warnings():
        own = {key: chosen.pop(key) for key in ("shuffle", "pack", "columns", "row_id") if key in chosen}
        filters |= {"shuffle": "rows", "columns": ["x", "f"], "row_id": True, "check_plan": False} | drawn | own
        forms = chosen.pop("forms", {"a": "parquet", "b": "json"})
        sources = {name: StructuredDataset(str(TABLE / form), **filters) for name, form in forms.items()}
        if "at" in chosen.get("stop", ()):
            chosen["stop"] = torch_table_loader.Stop(**chosen["stop"])
        return torch_table_loader.MixedDataset.create_dataloader(sources, check_plan=False, **chosen)[0]


def what_comes(loader: TableLoader) -> list[list[Any]]:
    """Give the rows of the next batches, of a mixture with their sources: all, or some where there is no end."""
    found = []
    for batch in islice(loader, 20):
        rows = batch["input_ids"].tolist() if "input_ids" in batch else own_rows([batch])
        sources = batch["source"].tolist()[: len(rows)] if "source" in batch else []
        found.append([list(pair) for pair in zip(sources, rows, strict=True)] if sources else rows)
    return found


def what_follows(options: Case, state: State) -> dict[str, Any]:
    """Load a state and give what comes, or how it is refused."""
    loader = open_loader(options)
    try:
        loader.load_state_dict(state)
    except ResumeError as error:
        return {"refused": str(error)}
    batches = what_comes(loader)
    return {"next": batches[:2], "batches": len(batches), "digest": digest(batches)}


def digest(batches: list[list[Any]]) -> str:
    return hashlib.sha256(json.dumps(batches).encode()).hexdigest()


def frozen_in(folder: Path) -> list[Any]:
    """Return the cases of all versions whose files are in a folder, each with its name."""
    return [
        pytest.param(case, frozen, id=f"{path.stem} {case}")
        for path in sorted(folder.glob("state-v*.json"))
        for case, frozen in json.loads(path.read_text()).items()
    ]


FROZEN = frozen_in(STATES)


@pytest.mark.parametrize(("case", "frozen"), FROZEN)
@daily(4)
def test_a_state_of_old_goes_on_with_the_batches_that_followed_it(case: str, frozen: dict[str, Any]) -> None:
    assert {"state": frozen["state"], **what_follows(CASES[case]["go on"], frozen["state"])} == frozen


@pytest.mark.parametrize(("case", "frozen"), FROZEN)
@daily(17)
def test_the_newest_code_writes_the_state_that_is_kept(case: str, frozen: dict[str, Any]) -> None:
    if frozen["state"]["version"] == STATE_VERSION:
        assert write(CASES[case]) == frozen["state"]


@pytest.mark.parametrize(("case", "frozen"), FROZEN)
@daily(17)
def test_a_state_that_was_loaded_is_written_again_as_it_was(case: str, frozen: dict[str, Any]) -> None:
    if frozen["state"]["version"] == STATE_VERSION and "refused" not in frozen:
        loader = open_loader(CASES[case]["stages"][-1][0])
        loader.load_state_dict(frozen["state"])
        assert loader.state_dict() == frozen["state"]


def test_there_is_a_file_of_every_version_with_every_case() -> None:
    for version in range(1, STATE_VERSION + 1):
        kept = json.loads((STATES / f"state-v{version}.json").read_text())
        assert {entry["state"]["version"] for entry in kept.values()} == {version}
    assert set(kept) == set(CASES)


def write(case: Case) -> State:
    """Run the stages of a case and give the state of its end."""
    state: State | None = None
    for options, *moves in case["stages"]:
        loader = open_loader(options)
        loader.set_epoch(case["epoch"])
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        batches = None
        for move in moves:
            if isinstance(move, int):
                batches = iter(loader) if batches is None else batches
                assert len(list(islice(batches, move))) == move
                continue
            for method, given in move.items():
                getattr(loader.dataset, method)(given)
        state = loader.state_dict()
    assert state is not None
    return state


def freeze(path: Path, cases: Cases) -> None:
    """Write the file of the newest version; what is in it stays."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    for name, case in cases.items():
        if name in kept:
            continue
        state = write(case)
        kept[name] = {"state": state, **what_follows(case["go on"], state)}
    path.write_text(json.dumps({name: kept[name] for name in cases}, indent=1) + "\n")


if __name__ == "__main__":
    freeze(STATES / f"state-v{STATE_VERSION}.json", CASES)
