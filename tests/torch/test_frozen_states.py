"""States that older code wrote go on for ever: one file a version, with what must come next.

``python -m tests.torch.test_frozen_states`` writes the file of the newest version, once.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from tests.torch.jobs import STEPS, State, make, own_rows, run_stage
from torch_table_loader.engine.state import STATE_VERSION

STATES = Path(__file__).parent / "states"
TABLE = STATES / "table"
"""Committed as bytes: 66 rows in three Parquet files of several row groups, and again as JSON lines."""

FILTER = pc.field("k") < 7

Case = dict[str, Any]

PLAIN: Case = {"batch_size": 5, "num_workers": 2, "shuffle": True, "split_rows": 10}
CASES: dict[str, Case] = {
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
            (PLAIN | {"num_ranks": 2, "shuffle_buffer_size": 12}, 3),
            (PLAIN | {"num_ranks": 1, "shuffle_buffer_size": 7, "batch_size": 3, "drop_last": True}, 4),
        ],
    },
    "rows that pass a filter": {
        "go on": PLAIN | {"filtered": True, "num_ranks": 2, "rank": 0, "even_ranks": "pad"},
        "epoch": 2,
        "stages": [(PLAIN | {"filtered": True, "batch_size": 4, "num_ranks": 1}, 5)],
    },
    "a strategy that deals": {
        "go on": {"batch_size": 5, "num_workers": 2, "num_ranks": 2, "rank": 1, "split_strategy": "round_robin"},
        "epoch": 1,
        "stages": [({"batch_size": 5, "num_workers": 1, "num_ranks": 2, "split_strategy": "round_robin"}, 3)],
    },
    "JSON lines": {"go on": PLAIN | {"form": "json"}, "epoch": 4, "stages": [(PLAIN | {"form": "json"}, 3)]},
}


def arguments(options: Case) -> Case:
    """Turn a case's options into those of a loader."""
    options = {"form": "parquet", "num_ranks": 1} | options
    filters = {"filters": FILTER} if options.pop("filtered", False) else {}
    return options | filters


def root_of(options: Case) -> Path:
    return TABLE / str(options.get("form", "parquet"))


def what_follows(options: Case, state: State) -> list[list[int]]:
    """Load a state and give the rows of every batch that comes."""
    loader = make(root_of(options), **arguments(options))
    loader.load_state_dict(state)
    return [own_rows([batch]) for batch in loader]


def digest(batches: list[list[int]]) -> str:
    return hashlib.sha256(json.dumps(batches).encode()).hexdigest()


FROZEN = [
    pytest.param(case, frozen, id=f"{path.stem} {case}")
    for path in sorted(STATES.glob("state-v*.json"))
    for case, frozen in json.loads(path.read_text()).items()
]


@pytest.mark.parametrize(("case", "frozen"), FROZEN)
def test_a_state_of_old_goes_on_with_the_batches_that_followed_it(case: str, frozen: dict[str, Any]) -> None:
    batches = what_follows(CASES[case]["go on"], frozen["state"])
    assert [batches[:2], len(batches), digest(batches)] == [frozen["next"], frozen["batches"], frozen["digest"]]


@pytest.mark.parametrize(("case", "frozen"), FROZEN)
def test_the_newest_code_writes_the_state_that_is_kept(case: str, frozen: dict[str, Any]) -> None:
    if frozen["state"]["version"] == STATE_VERSION:
        assert write(CASES[case]) == frozen["state"]


def test_there_is_a_file_of_every_version_with_every_case() -> None:
    for version in range(1, STATE_VERSION + 1):
        kept = json.loads((STATES / f"state-v{version}.json").read_text())
        assert {entry["state"]["version"] for entry in kept.values()} == {version}
    assert set(kept) == set(CASES)


def write(case: Case) -> State:
    """Run the stages of a case and give the state of its end."""
    state: State | None = None
    for options, steps in case["stages"]:
        _, states = run_stage(root_of(options), state, steps, epoch=case["epoch"], **arguments(options))
        state = states[0]
        assert state["history"][-1][STEPS] == steps
    assert state is not None
    return state


def freeze(path: Path) -> None:
    """Write the file of the newest version."""
    kept = {}
    for name, case in CASES.items():
        state = write(case)
        batches = what_follows(case["go on"], state)
        kept[name] = {
            "state": state,
            "next": batches[:2],
            "batches": len(batches),
            "digest": digest(batches),
        }
    path.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    target = STATES / f"state-v{STATE_VERSION}.json"
    if target.exists():
        raise SystemExit(f"{target.name} is kept for ever; raise STATE_VERSION first")
    freeze(target)
