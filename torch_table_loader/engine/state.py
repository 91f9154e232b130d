"""The state of a loader: small plain data that says what the job has done, and on which tables.

Every job writes the same keys. Anything that grows or shrinks is a list of plain values, because checkpoint stores that
save key by key then keep it whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

import numpy as np

from torch_table_loader.engine.state_form import checked_state
from torch_table_loader.errors import ConfigError, ResumeError
from torch_table_loader.options import DEFAULT_SPLIT_BYTES
from torch_table_loader.planning.mixed_stages import MixedPosition
from torch_table_loader.planning.mixture import LEAST_SHARE, smallest
from torch_table_loader.planning.stages import SamplePosition, StreamPosition, refuse_ended
from torch_table_loader.predicates.filter_key import filter_key
from torch_table_loader.source.fingerprint import fingerprint

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.engine.table import Table
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.dealing import Deal
    from torch_table_loader.planning.stages import Extent, Position

State: TypeAlias = Mapping[str, Any]

Kind: TypeAlias = Literal["splits", "items"]
"""What a job takes, and what its history counts."""

Weights: TypeAlias = dict[str, int] | str
"""Weights by the name of the source; or the word for those of what is left of each source."""

STATE_VERSION = 1

UPGRADES: dict[int, Callable[[State], State]] = {}
"""For each version before the current one, a function that upgrades a state to the next version."""

_COLUMN_NAMES_BYTES = 1024
"""Names of columns are written out up to this many bytes, and hashed beyond."""

_REMEDIES = {
    "table": "pin the files of the first run with files= (dataset.save_files(path) keeps them), or start a new epoch",
    "options": "give the loader the options of the run that was saved, or start without its state",
}


@dataclass(frozen=True, slots=True)
class Bound:
    """A table, and the options that decide which rows come, in which form and order: what a state is bound to.

    This is plain data, without paths or secrets.
    """

    table: Mapping[str, Any]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SavedTable(Bound):
    """What a state says of a table.

    Args:
        exclusions: what `ExclusionVersions.to_state` wrote; empty if nothing is excluded.
        anchor: from where a walk finds the next items; see `TurnStream.anchor`. Empty if there is no walk.
    """

    exclusions: Sequence[Sequence[str]] = ()
    anchor: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class SavedMixture:
    """What a state says of a mixture beside its tables; the options are those that decide the order.

    Args:
        given: the weights that the loader was made with.
        newest: the weights of the steps to come.
    """

    options: Mapping[str, Any]
    given: Weights
    newest: Weights


@dataclass(frozen=True, slots=True)
class SavedState:
    """A checked state.

    Args:
        tables: by name of their source; a single table has the name "".
        taken: what the job has done in the epoch; of a mixture of streams with all its deals.
    """

    kind: Kind
    tables: Mapping[str, SavedTable]
    mixture: SavedMixture | None
    taken: StreamPosition | SamplePosition | MixedPosition


def bound(table: Table, columns: pa.Schema, options: LoaderOptions, strategy: str, splits: str) -> Bound:
    """Return the table and options that a state is bound to; `strategy` is a name, and `splits` a hash."""
    about = {
        "fingerprint": table.fingerprint,
        "files": len(table.files),
        "rows": table.layout.num_rows,
        "bytes": table.layout.num_bytes,
        **({} if table.snapshot_id is None else {"snapshot_id": table.snapshot_id}),
        **({} if table.start_snapshot_id is None else {"start_snapshot_id": table.start_snapshot_id}),
        **({"changelog": True} if table.changelog else {}),
        **({"left_out": len(table.left_out)} if table.left_out else {}),
    }
    asked = {
        "columns": _columns(columns),
        "filters": None if options.filters is None else filter_key(options.filters, table.schema),
        "shuffle": bool(options.shuffle),
        "shuffle_seed": options.shuffle_seed,
        "split_strategy": strategy,
        "split_size": options.split_rows or f"{options.split_bytes or DEFAULT_SPLIT_BYTES} B",
        "splits": splits,
    }
    return Bound(about, asked)


def write_state(
    kind: Kind, tables: Mapping[str, SavedTable], mixture: SavedMixture | None, position: Position
) -> dict[str, Any]:
    """Write a state as ints, strings, bools, None and lists of those."""
    order = [] if mixture is None else [_pairs(mixture.options), *map(_weights, (mixture.given, mixture.newest))]
    return {
        "version": STATE_VERSION,
        "kind": kind,
        "tables": [
            [name, _pairs(saved.table), _pairs(saved.options), list(saved.exclusions), list(saved.anchor)]
            for name, saved in sorted(tables.items())
        ],
        "mixture": order,
        "epoch": position.epoch,
        "history": position.history(),
    }


def read_state(state: Mapping[str, Any]) -> SavedState:
    """Upgrade a state of an older version, and check its form; refuse anything else, and states of newer releases.

    Raises:
        ResumeError: the state is malformed or too new; the message says what came.
    """
    if not isinstance(state, Mapping) or "version" not in state:
        raise ResumeError(
            f"expected what state_dict() returned, got {type(state).__name__} without a version; pass it unchanged"
        )
    given = state["version"]
    while type(state["version"]) is int and state["version"] in UPGRADES:
        state = UPGRADES[state["version"]](state)
    if type(state["version"]) is not int or state["version"] != STATE_VERSION:
        raise ResumeError(
            f"expected a state of version {STATE_VERSION}, got version {given!r}; "
            "load it with the release of torch-table-loader that wrote it"
        )
    found = checked_state(state)
    kind, epoch, history = found["kind"], found["epoch"], found["history"]
    tables = {name: SavedTable(*saved) for name, *saved in found["tables"]}
    if not found["mixture"]:
        alone: type[SamplePosition | StreamPosition] = SamplePosition if kind == "items" else StreamPosition
        return SavedState(kind, tables, None, alone.of_history(epoch, history))
    mixture = SavedMixture(*found["mixture"])
    seed, natural = mixture.options["shuffle_seed"], isinstance(mixture.newest, str)
    taken = (
        SamplePosition.of_history(epoch, history, seed, mixture.options["block"], natural=natural)
        if kind == "items"
        else MixedPosition.of_history(epoch, history, seed)
    )
    _refuse_unfit(tuple(tables), mixture, taken)
    return SavedState(kind, tables, mixture, taken)


def _pairs(values: Mapping[str, Any]) -> list[list[Any]]:
    return [[name, value] for name, value in sorted(values.items())]


def _weights(weights: Weights) -> str | list[list[Any]]:
    return weights if isinstance(weights, str) else _pairs(weights)


@contextmanager
def of_source(name: str) -> Iterator[None]:
    """Name the source in errors about its part of a state; a table alone has the name ""."""
    try:
        yield
    except ResumeError as error:
        raise ResumeError(f"source {name!r}: {error}" if name else str(error)) from error


def check_state(
    saved: SavedState,
    kind: Kind,
    own: Mapping[str, Bound],
    tables: Mapping[str, Table],
    order: Mapping[str, Any] | None = None,
    earlier: Mapping[Extent, Any] = MappingProxyType({}),
    options_of: Callable[[Extent], Mapping[str, Any]] = lambda _: {},
) -> Extent | None:
    """Refuse a state of something else than a job; return what its table was, if it is one that has grown since.

    Args:
        kind: what the job takes that is to continue.
        own: the table and options that the job has, by name of their source. Others may be in a mixture's state.
        order: the options that decide the order of a mixture; None for a table alone.
        earlier: extents of the table before it grew, as far as they are known.
        options_of: returns the options that differ for a job of the table as it was.

    Raises:
        ResumeError: the state is of another table, other options or another kind of job; names what differs.
    """
    _refuse_mixture(saved, kind, order)
    grown = None
    for name in (name for name in own if name in saved.tables):
        with of_source(name):
            theirs, options = saved.tables[name], own[name].options
            if (digest := theirs.table["fingerprint"]) != own[name].table["fingerprint"]:
                grown = next((extent for extent in earlier if extent.fingerprint == digest), None)
                if grown is None:
                    _refuse_table(tables[name], own[name].table, theirs.table)
                options = {**options, **options_of(grown)}
            asked = dict.fromkeys((*options, "stage", "weights", "batch_by"))
            if differing := [each for each in asked if options.get(each) != theirs.options.get(each)]:
                _refuse_options(differing, options, theirs.options)
    if saved.kind != kind:
        raise ResumeError(
            f"the state counts {saved.kind}, and its options are those of a job that counts {kind}; pass the value of "
            "state_dict() unchanged"
        )
    return grown


def refuse_unknown(extents: Sequence[Extent], files_of: Mapping[Extent, NDArray[np.int64]]) -> None:
    """Refuse to continue from a table whose earlier extent is not known, or that shrank from one to the next.

    Raises:
        ResumeError: the message says what was expected.
    """
    if unknown := [extent for extent in extents if extent not in files_of]:
        raise ResumeError(
            f"the state's epoch began before the table grew, when it had {unknown[0].files} files, and this process "
            "does not know which; load it into a loader made by create_dataloader(...), in the process that trains"
        )
    for before, after in pairwise(extents):
        # A commit may bring no file, but makes another snapshot.
        if before == after or not np.isin(files_of[before], files_of[after]).all():
            raise ResumeError(
                f"the state's epoch began before the table grew, and a table of {before.files} files does not grow to "
                f"one of {after.files} files by these; pass the value of state_dict() unchanged"
            )


def _columns(schema: pa.Schema) -> list[str] | str:
    names = sorted(f"{field.name}: {field.type}" for field in schema)
    if len(json.dumps(names)) <= _COLUMN_NAMES_BYTES:
        return names
    return f"{len(names)} columns, {hashlib.sha256(repr(names).encode()).hexdigest()[:32]}"


def _refuse_table(table: Table, own: Mapping[str, Any], theirs: Mapping[str, Any]) -> NoReturn:
    """Say in what another table differs from the job's own."""
    if "snapshot_id" in own and "snapshot_id" in theirs and own["snapshot_id"] != theirs["snapshot_id"]:
        raise ResumeError(
            f"the state is of snapshot {theirs['snapshot_id']}, and this is snapshot {own['snapshot_id']}; "
            f"pass snapshot_id={theirs['snapshot_id']} (version={theirs['snapshot_id']} of a Delta Lake table) to "
            "continue, or start a new epoch without the state"
        )
    then, now = map(_interval, (theirs, own))
    if then != now:
        raise ResumeError(
            f"the state is of {then}, and this is {now}; pass the start_snapshot_id of the run that was saved, and "
            "its changelog=, or start a new epoch without the state"
        )
    if table.left_out or "left_out" in theirs:
        raise ResumeError(
            f"the state is of a table of which on_error left out {theirs.get('left_out', 0)} damaged parts, but here "
            f"it leaves out {len(table.left_out)}, or others; {_REMEDIES['table']}"
        )
    if younger := _files_since(table, theirs):
        shown = ", ".join(map(repr, younger[:5])) + (f" and {len(younger) - 5} more" if len(younger) > 5 else "")
        raise ResumeError(
            f"the table grew since the state was saved: {len(younger)} new files: {shown}; {_REMEDIES['table']}; or "
            'pass on_growth="continue" to continue with the new rows too'
        )
    counts = "; ".join(f"{name}: {theirs[name]} then, {own[name]} now" for name in ("files", "rows", "bytes"))
    raise ResumeError(f"the state is of another table ({counts}); {_REMEDIES['table']}")


def _interval(table: Mapping[str, Any]) -> str:
    start = table.get("start_snapshot_id")
    if start is None:
        return "a whole snapshot"
    return f"the {'changelog' if table.get('changelog') else 'rows'} after snapshot {start}"


def _files_since(table: Table, theirs: Mapping[str, Any]) -> list[str]:
    """Return the names of the youngest files, if the table without them is the state's table."""
    old = oldest_files(table, theirs["files"], theirs["fingerprint"])
    younger = sorted(set(range(len(table.files))).difference(old or ()))
    return [] if old is None else [table.files[at].name for at in younger]


def oldest_files(table: Table, count: int, digest: Any) -> list[int] | None:
    """Return the oldest `count` files of a table that may have grown, if they have a given fingerprint; else None.

    Files come in the table's order.
    """
    by_age = sorted(range(len(table.files)), key=lambda at: (table.files[at].version.mtime_ns or 0, at))
    old, rows = sorted(by_age[:count]), table.layout.file_rows
    restored = fingerprint([table.files[at] for at in old], [int(rows[at]) for at in old])
    return old if restored == digest else None


_LABELS = {"stage": "stage (what pack= makes of the rows)"}
"""Names in messages for options of a state that the caller knows by another name."""


def _refuse_options(differing: list[str], own: Mapping[str, Any], theirs: Mapping[str, Any]) -> NoReturn:
    """Say which options differ from the job's own."""
    if "shuffle" in differing:  # splits matter only to streams
        differing = [name for name in differing if not name.startswith("split")]
    if differing == ["splits"]:
        raise ResumeError(
            "the state was saved with the table split differently (by the same strategy, with other parameters); "
            + _REMEDIES["options"]
        )
    shown = "; ".join(
        f"{_LABELS.get(name, name)} was {_shown(theirs.get(name))} and is {_shown(own.get(name))}"
        for name in differing
        if name != "splits"
    )
    raise ResumeError(f"the state was saved under other options: {shown}; {_REMEDIES['options']}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


_NAMES = {"splits": "streams", "items": "rows"}


def _refuse_mixture(saved: SavedState, kind: Kind, order: Mapping[str, Any] | None) -> None:
    """Refuse a mixture's state for a table alone, a table's for a mixture, and a mixture of other options."""
    if order is None:
        if "" not in saved.tables:
            raise ResumeError("the state is of a mixture, and this is one table; load it with a MixedDataset's loader")
        return
    if saved.mixture is None:
        raise ResumeError(
            "the state is of one table, and this is a mixture; load it with the loader of that table, or start "
            "without the state"
        )
    if saved.kind != kind:
        raise ResumeError(
            f"the state is of a mixture of {_NAMES[saved.kind]}, and this is a mixture of {_NAMES[kind]}; pass the "
            'shuffle= of the run that was saved to the sources (shuffle="rows" makes a mixture of rows, True or False '
            "one of streams), or start without its state"
        )
    theirs = saved.mixture.options
    names = dict.fromkeys((*order, "drop", "samples"))
    if differing := [name for name in names if order.get(name) != theirs.get(name)]:
        shown = "; ".join(f"{name} was {theirs.get(name)!r} and is {order.get(name)!r}" for name in differing)
        raise ResumeError(
            f"the state was saved under other options: {shown}; give the mixture the options of the run that was "
            "saved, or start without its state"
        )


def refuse(what: str) -> NoReturn:
    """Refuse a state whose parts do not fit each other."""
    raise ResumeError(
        f"the state of a mixture must fit itself, as state_dict() writes it, got {what}; pass the value of "
        "state_dict() of a MixedDataset's loader unchanged"
    )


def _refuse_unfit(names: tuple[str, ...], mixture: SavedMixture, taken: SamplePosition | MixedPosition) -> None:
    """Refuse a state of a mixture whose parts do not fit each other.

    Raises:
        ResumeError: names them.
    """
    if isinstance(taken, SamplePosition):
        mixed, start, total = taken.mixed, taken.start, taken.total
        running, natural, since = mixed.weights, mixed.natural, mixed.shares.start
        _refuse_weights(names, mixture.given, mixture.newest, running)
        # Where lengths changed, other sequences are counted.
        beyond = not taken.origins and sum(mixed.shares.before) > since
        if not since <= start <= total or beyond:
            before = dict(zip(mixed.names, mixed.shares.before, strict=True))
            refuse(f"rows of sources {before}, weights from {since}, taken {start}, of the epoch {total}")
        taken.check(total)
    else:
        for stage in taken.stages:
            _refuse_weights(stage.deal.names, stage.deal.by_name)
            _refuse_undealt(stage.deal)
        running, natural, start, total = taken.deal.by_name, taken.deal.natural, taken.consumed, taken.total
        _refuse_weights(names, mixture.given, mixture.newest, running)
        refuse_ended(start, total, ended=taken.ended)
    newest = mixture.newest
    if start < total and (natural != isinstance(newest, str) or not (natural or newest == running)):
        refuse(f"the running weights {running!r}, {'' if natural else 'not '}natural, and the newest {newest!r}")


def _refuse_weights(names: tuple[str, ...], *weights: Mapping[str, int] | str) -> None:
    """Refuse weights of other sources, and those that nobody can have asked for."""
    for entry in weights:
        if isinstance(entry, str):
            continue
        try:
            fit = tuple(entry) == names and smallest(entry) == entry
        except ConfigError:
            fit = False
        if not fit:
            refuse(f"weights {entry!r} for the sources {', '.join(names)}")


def _refuse_undealt(deal: Deal) -> None:
    """Refuse a stage with weights that no stage has where sources are dropped."""
    fit = len(deal.weights) == len(deal.names) and any(deal.weights) and not deal.until % deal.step_rows
    if not fit or deal.block_rows > LEAST_SHARE + deal.step_rows:
        refuse(f"the dealt weights {deal.weights!r} until {deal.until} for the sources {', '.join(deal.names)}")
