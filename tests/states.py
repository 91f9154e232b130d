"""Reads what states say, and changes it: the one place of the tests that knows their form."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

State = dict[str, Any]
"""What ``state_dict()`` returns."""
STATE_VERSION = 2
"""The newest, which the files of frozen states name."""


def stages_of(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the stages, oldest first, by the names of the columns."""
    names, *rows = state["history"]
    return [dict(zip(names, row, strict=True)) for row in rows]


def with_stages(state: State, stages: Sequence[Mapping[str, Any]]) -> State:
    """Return the state with other stages; what has names may be dicts."""
    names = sorted({name for stage in stages for name in stage})
    rows = [[in_pairs(stage.get(name)) for name in names] for stage in stages]
    return {**copy.deepcopy(state), "history": [names, *rows]}


def in_pairs(value: Any) -> Any:
    """Return plain data with dicts as states have them: pairs, sorted by name."""
    if isinstance(value, dict):
        return [[name, in_pairs(own)] for name, own in sorted(value.items())]
    return [in_pairs(own) for own in value] if isinstance(value, list) else value


def newest(state: State) -> dict[str, Any]:
    """Return the newest stage."""
    return stages_of(state)[-1]


def with_newest(state: State, **columns: Any) -> State:
    """Return the state with other values in the newest stage."""
    *past, last = stages_of(state)
    return with_stages(state, [*past, {**last, **columns}])


def without_column(state: State, name: str) -> State:
    """Return the state without a column of its history."""
    return with_stages(
        state, [{key: value for key, value in stage.items() if key != name} for stage in stages_of(state)]
    )


def named(value: Any) -> Any:
    """Return plain data with lists of names and values as dicts, sorted lists of names aside."""
    if not isinstance(value, list):
        return value
    pairs = value and all(isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) for each in value)
    return {name: named(own) for name, own in value} if pairs else [named(each) for each in value]


def record_of(state: State, key: str) -> dict[str, Any]:
    """Return what the newest stage says under the key of a record, by name; nothing if it says nothing."""
    found: dict[str, Any] = named(newest(state).get(key, [])) or {}
    return found


def with_record(state: State, key: str, **fields: Any) -> State:
    """Return the state with other values in a record of the newest stage; None leaves one out."""
    fields = {name: value for name, value in {**record_of(state, key), **fields}.items() if value is not None}
    return with_newest(state, **{key: fields})


def steps_of(state: State) -> int:
    """Read the steps of the newest stage."""
    return int(newest(state)["steps"])


def is_ended(state: State) -> bool:
    """Say whether a state was taken on a rank that ended before others."""
    return newest(state)["ended"] is True


def samples_of(state: State) -> int:
    """Read how many items were taken."""
    return int(newest(state)["consumed"])


def table_of(state: State, name: str = "") -> dict[str, Any]:
    """Read what a state says of a table."""
    return dict(dict(dict(state["tables"])[name])["table"])


def options_of(state: State, name: str = "") -> dict[str, Any]:
    """Read the options of a table's job."""
    return dict(dict(dict(state["tables"])[name])["options"])


def with_options(state: State, source: str = "", **options: Any) -> State:
    """Return the state with other options of a table; None leaves one out."""
    kept = {name: value for name, value in {**options_of(state, source), **options}.items() if value is not None}
    pairs = [[name, kept[name]] for name in sorted(kept)]
    changed = copy.deepcopy(state)
    changed["tables"] = [
        [name, [["options", pairs if name == source else dict(own)["options"]], ["table", dict(own)["table"]]]]
        for name, own in changed["tables"]
    ]
    return changed


ANCHOR = ("round", "place", "before", "seal")


def anchor_of(state: State, name: str = "") -> list[int]:
    """Return from where the walk over the documents of a source goes on; empty if there is no walk."""
    found = record_of(state, "packing").get("anchors", {}).get(name, {})
    return [found[part] for part in ANCHOR if found]


def with_anchors(state: State, anchors: Mapping[str, Sequence[Any]]) -> State:
    """Return the state with other anchors, by source; an empty one is left out."""
    kept = {name: dict(zip(ANCHOR, anchor, strict=True)) for name, anchor in anchors.items() if anchor}
    return with_record(state, "packing", anchors=kept or None)


def excluded_of(state: State) -> dict[str, list[dict[str, str]]]:
    """Return the versions of what is excluded from each source of which something is."""
    found: dict[str, list[dict[str, str]]] = {}
    for name, versions in dict(newest(state).get("exclusions") or []).items():
        found[name] = [dict(version) for version in versions]
    return found
