"""Reads what states say: the one place of the tests that knows their form."""

from __future__ import annotations

import copy
from typing import Any

State = dict[str, Any]
"""What ``state_dict()`` returns."""

STEPS, ENDED, SAMPLES, SEQ_LEN, ORIGIN, EXTENTS = range(6)
"""Where a stage has its steps, and whether its rank had ended; and where one of items has how many were taken, their
length, what came before them as others, and which tables came before."""


def newest(state: State) -> list[Any]:
    """Return the newest stage."""
    stage: list[Any] = state["history"][-1]
    return stage


def steps_of(state: State) -> int:
    """Read the steps of the newest stage."""
    return int(newest(state)[STEPS])


def is_ended(state: State) -> bool:
    """Say whether a state was taken on a rank that ended before others."""
    return newest(state)[ENDED] is True


def samples_of(state: State) -> int:
    """Read how many items were taken."""
    return int(newest(state)[SAMPLES])


def source_of(state: State, name: str = "") -> list[Any]:
    """Return what a state says of a source: its name, table, options, exclusions and anchor."""
    [found] = [entry for entry in state["tables"] if entry[0] == name]
    return list(found)


def table_of(state: State, name: str = "") -> dict[str, Any]:
    """Read what a state says of a table."""
    return dict(source_of(state, name)[1])


def options_of(state: State, name: str = "") -> dict[str, Any]:
    """Read the options of a table's job."""
    return dict(source_of(state, name)[2])


def with_options(state: State, **options: Any) -> State:
    """Return the state of one table with other options; None leaves one out."""
    changed = copy.deepcopy(state)
    kept = {name: value for name, value in {**options_of(state), **options}.items() if value is not None}
    changed["tables"][0][2] = [[name, kept[name]] for name in sorted(kept)]
    return changed


def with_anchor(state: State, anchor: list[Any]) -> State:
    """Return the state of one table with another anchor."""
    changed = copy.deepcopy(state)
    changed["tables"][0][4] = anchor
    return changed
