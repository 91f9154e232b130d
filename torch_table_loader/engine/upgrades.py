"""States of older versions, rewritten as those of the next one. What is here is frozen: old states load for ever.

Only the places of version 1 are checked here, where its values had no names; the forms of the next version check what
stands in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch_table_loader.engine.state_forms import OneOf, checked, refuse, refuse_missing

State: TypeAlias = Mapping[str, Any]

_TOPOLOGY = ("num_ranks", "lanes", "batch_size", "shuffle_buffer_size", "even_ranks", "drop_last", "micro_batches")


def _of_version_1(state: State) -> dict[str, Any]:
    """Return a state of version 1, a list of places for each thing, as one of version 2, in which things have names.

    Version 1 had an entry ``[name, table, options, exclusions, anchor]`` for each table, an empty list or ``[options,
    given, newest]`` as ``mixture``, and stages that begin with their steps and whether they had ended.
    """
    tables = [
        _places(entry, ("name", "table", "options", "exclusions", "anchor"), "tables")
        for entry in _list(state, "tables")
    ]
    history, kind = _list(state, "history"), state.get("kind")
    if not history:
        refuse("history", "a list of at least 1 entries", history)
    mixture = _mixture(state, tables)
    checked(OneOf(("splits", "items")), kind, "kind")
    if kind == "items":
        stages = [_items(entry, mixed=mixture is not None) for entry in history]
        _move_anchors(stages[-1], tables)
    else:
        stage_of = _stream
        if mixture is not None:
            stage_of = _dealt
        stages = [stage_of(entry) for entry in history]
        if anchored := [entry["anchor"] for entry in tables if entry["anchor"] != []]:
            refuse("tables.anchor", "empty where splits are read", anchored[0])
    excluded = [[entry["name"], _versions(entry["exclusions"])] for entry in tables if entry["exclusions"] != []]
    if excluded:
        stages[-1]["exclusions"] = excluded
    bound = [[entry["name"], [["options", entry["options"]], ["table", entry["table"]]]] for entry in tables]
    names = sorted({name for stage in stages for name in stage})
    rows = [[stage.get(name) for name in names] for stage in stages]
    kept = {key: value for key, value in state.items() if key != "mixture"}
    if mixture is not None:
        kept["mixture"] = mixture
    return {**kept, "version": 2, "tables": bound, "history": [names, *rows]}


UPGRADES: dict[int, Callable[[State], State]] = {1: _of_version_1}
"""For each version before the current one, a function that upgrades a state to the next version."""


def _mixture(state: State, tables: list[dict[str, Any]]) -> list[Any] | None:
    """Return the record of a mixture; None for one table, whose checkpoint may lack the key that was empty."""
    if "mixture" not in state and [entry["name"] for entry in tables] == [""]:
        return None
    if not (found := _list(state, "mixture")):
        return None
    named = _places(found, ("options", "given", "newest"), "mixture")
    return [[name, named[name]] for name in sorted(named)]


def _stream(entry: Any) -> dict[str, Any]:
    """Return a stage of a stream, without what is null in most."""
    stage = _places(entry, ("steps", "ended", *_TOPOLOGY, "extent", "rank"), "history")
    checked(OneOf((1,)), stage.pop("micro_batches"), "history.micro_batches")
    return _slim({**stage, "extent": _extent(stage["extent"])})


def _dealt(entry: Any) -> dict[str, Any]:
    """Return a stage of a mixture of streams."""
    names = ("steps", "ended", *_TOPOLOGY, "total", "natural", "weights", "dropped", "width")
    stage = _places(entry, names, "history", optional=2)
    shares = {"total": stage.pop("total")}
    for name, usual in (("natural", False), ("weights", []), ("micro_batches", 1), ("dropped", [])):
        value = stage.pop(name, usual)
        if type(value) is not type(usual) or value != usual:
            shares[name] = value
    if "width" in stage:
        shares["width"] = stage.pop("width")
    if "dropped" in shares:
        shares["dropped"] = _pairs(_places(shares["dropped"], ("until", "weights"), "history.dropped"))
    return _slim({**stage, "mixture": _pairs(shares)})


def _slim(stage: dict[str, Any]) -> dict[str, Any]:
    """Return a stage of streams without columns that are null; a window of mixed splits has names."""
    window = stage["shuffle_buffer_size"]
    if isinstance(window, list):
        stage["shuffle_buffer_size"] = _pairs(_places(window, ("rows", "splits"), "history.shuffle_buffer_size"))
    often_null = ("shuffle_buffer_size", "extent", "rank")
    return {name: value for name, value in stage.items() if value is not None or name not in often_null}


def _items(entry: Any, *, mixed: bool) -> dict[str, Any]:
    """Return the stage of a job of items, with the records of sequences and of a mixture."""
    names: tuple[str, ...] = ("steps", "ended", "consumed", "seq_len", "origin", "extents")
    if mixed:
        names += ("total", "since", "sources")
    stage = _places(entry, names, "history")
    packing = {name: stage.pop(name) for name in ("seq_len", "origin")}
    if not all(type(value) is int for value in packing.values()):
        refuse("history", "ints, for the length and the origin of sequences", packing)
    extents = _list(stage, "extents")
    stage |= {"extents": [_extent(each) for each in extents]}
    if not extents:
        del stage["extents"]
    if mixed:
        sources = [_source(each) for each in _list(stage, "sources")]
        origins = [
            [each["name"], _pairs(_places(each["origin"], ("round", "tokens"), "history.origin"))]
            for each in sources
            if "origin" in each
        ]
        shares = {"total": stage.pop("total"), "since": stage.pop("since")}
        shares["sources"] = [
            [each["name"], _pairs({name: each[name] for name in ("weight", "before")})] for each in sources
        ]
        del stage["sources"]
        stage["mixture"] = _pairs(shares)
        if origins:
            packing["origins"] = origins
    if any(value != 0 for value in packing.values()):
        stage["packing"] = packing
    return stage


def _source(entry: Any) -> dict[str, Any]:
    return _places(entry, ("name", "weight", "before", "origin"), "history.sources", optional=1)


def _move_anchors(stage: dict[str, Any], tables: list[dict[str, Any]]) -> None:
    """Put the anchors of tables into the record of sequences, and write it."""
    names = ("round", "place", "before", "seal")
    anchors = [
        [each["name"], _pairs(_places(each["anchor"], names, "tables.anchor"))]
        for each in tables
        if each["anchor"] != []
    ]
    if anchors:
        stage.setdefault("packing", {})["anchors"] = anchors
    if "packing" in stage:
        stage["packing"] = _pairs(stage["packing"])


def _extent(value: Any) -> Any:
    if value is None:
        return None
    return _pairs(_places(value, ("snapshot_id", "files", "fingerprint"), "history.extent"))


def _versions(value: Any) -> list[Any]:
    if type(value) is not list:
        refuse("tables.exclusions", "a list", value)
    return [_pairs(_places(each, ("ids", "digest"), "tables.exclusions")) for each in value]


def _pairs(values: Mapping[str, Any]) -> list[list[Any]]:
    return [[name, value] for name, value in sorted(values.items())]


def _list(state: State, key: str) -> list[Any]:
    """Return a list of a state, or of a stage."""
    if key not in state:
        refuse_missing(key)
    value = state[key]
    if type(value) is list:
        return value
    return refuse(key, "a list", value)


def _places(value: Any, names: tuple[str, ...], at: str, optional: int = 0) -> dict[str, Any]:
    """Return the values at the places of a list by name; so many of the last places may be missing."""
    if type(value) is not list or not len(names) - optional <= len(value) <= len(names):
        refuse(at, f"a list of {', '.join(names)}", value)
    return dict(zip(names, value, strict=False))
