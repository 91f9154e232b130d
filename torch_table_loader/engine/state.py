"""The state of a loader: small plain data that says what the job has done, and on which tables.

The core's part is ``version``, ``kind``, ``tables``, ``epoch`` and ``history``. The history is a table with a column
for each thing that is said of a stage, and a row for each stage. Its first row has the names of the columns. Whoever
adds to an order (a guest, or exclusions) adds a column under its own key, and perhaps a key of the state: its *record*
(`state_records.py`), with its own form and its own refusals. The core's form knows none of their names.

What reads a state finds nothing but ints, strings, bools, None, lists and dicts where it expects them. Whether they fit
the tables and the plan is for the job to say (`engine/jobs/bound.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from torch_table_loader.engine.saved_state import Bound, SavedState
from torch_table_loader.engine.state_forms import (
    COUNT,
    FLAG,
    MOST,
    ByType,
    Form,
    ListOf,
    Named,
    OneOf,
    checked,
    refuse,
    refuse_missing,
    written,
)
from torch_table_loader.engine.state_records import MIXING, find_record, is_record
from torch_table_loader.engine.upgrades import UPGRADES
from torch_table_loader.errors import ConfigError, ResumeError
from torch_table_loader.option_checks import MOST_LANES, MOST_ROWS
from torch_table_loader.planning.stages import SamplePosition, StreamPosition

if TYPE_CHECKING:
    from torch_table_loader.engine.saved_state import Kind
    from torch_table_loader.engine.state_records import StateRecord, Written

State: TypeAlias = Mapping[str, Any]
Stages: TypeAlias = list[dict[str, Any]]
"""What a history says, oldest first: in each stage by column."""

STATE_VERSION = 2


def write_state(
    kind: Kind, tables: Mapping[str, Bound], epoch: int, stages: Stages, records: Mapping[str, Written]
) -> dict[str, Any]:
    """Write a state as ints, strings, bools, None and lists of those.

    Args:
        stages: what the core says of each stage.
        records: what others say of them, by their keys.
    """
    added = {}
    for key, record in records.items():
        stages = [{**stage, key: own} for stage, own in zip(stages, record.stages, strict=True)]
        if record.whole is not None:
            added[key] = written(record.whole)
    bound = {name: {"options": own.options, "table": own.table} for name, own in tables.items()}
    return {
        "version": STATE_VERSION,
        "kind": kind,
        "tables": written(bound),
        **added,
        "epoch": epoch,
        "history": history_of(stages),
    }


def read_state(state: State) -> SavedState:
    """Upgrade a state of an older version, and check its form; refuse anything else, and states of newer releases.

    Raises:
        ResumeError: the state is malformed or too new; the message says what came.
    """
    try:
        return _read(upgraded(state))
    except RecursionError:
        raise ResumeError("the state nests deeper than state_dict() writes it; pass its value unchanged") from None


def upgraded(state: State) -> State:
    """Return a state as this version writes it; only its version is checked.

    Raises:
        ResumeError: it has no version, or one that this release does not know, or an older version does not look so.
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
    return state


def _read(state: State) -> SavedState:
    given = {key: _of(state, key) for key in _CORE}
    found = {key: checked(form, given[key], key) for key, form in _CORE.items()}
    kind: Kind = found["kind"]
    tables = {name: Bound(own["table"], own["options"]) for name, own in found["tables"].items()}
    stages = stages_of(state)
    records = {name: find_record(name) for name in stages[0] if name not in _COLUMNS[kind].every}
    stages = _checked_stages(kind, stages, records)
    if (names := list(tables)) != [""] and not any(record.names_tables for record in records.values()):
        refuse("tables", 'one, named "", as long as no record names them', names)
    if stray := [key for key in state if key not in (*_CORE, *records) and is_record(key)]:
        refuse("history", f"one with a column {stray[0]!r}, since the state has such a key", sorted(stages[0]))
    position: type[SamplePosition | StreamPosition] = StreamPosition
    if kind == "items":
        position = SamplePosition
    saved = SavedState(kind, tables, position.of_history(found["epoch"], stages))
    for key, record in records.items():
        whole = None
        if record.whole is not None:
            whole = checked(record.whole, _of(state, key), key)
        saved = record.read(saved, [stage[key] for stage in stages], whole)
    if isinstance(saved.taken, SamplePosition):
        saved.taken.check_steps()
    for record in records.values():
        record.check(saved)
    return saved


def _of(state: State, key: str) -> Any:
    if key in state:
        return state[key]
    return refuse_missing(key)


def history_of(stages: Stages) -> list[list[Any]]:
    """Write what stages have by name as rows below a row of names; None stands where a stage lacks what another has.

    >>> history_of([{"steps": 3, "ended": False}, {"steps": 1, "ended": True, "rank": 0}])
    [['ended', 'rank', 'steps'], [False, None, 3], [True, 0, 1]]
    """
    names = sorted({name for stage in stages for name in stage})
    return [names, *(written([stage.get(name) for name in names]) for stage in stages)]


def stages_of(state: State) -> Stages:
    """Read what `history_of` wrote; the form of the values is not checked.

    Raises:
        ResumeError: the history is no such table.
    """
    history = checked(_HISTORY, _of(state, "history"), "history")
    names, rows = checked(_HEADER, history[0], "history[0]"), history[1:]
    if names != sorted(set(names)):
        refuse("history[0]", "sorted names that differ", names)
    if odd := [row for row in rows if len(row) != len(names)]:
        refuse("history", f"rows of {', '.join(names)}", odd[0])
    return [dict(zip(names, row, strict=True)) for row in rows]


def _checked_stages(kind: Kind, stages: Stages, records: Mapping[str, StateRecord]) -> Stages:
    """Return stages whose values have the forms of the core and of records."""
    columns, names = _COLUMNS[kind], stages[0]
    if missing := [name for name in columns.required if name not in names]:
        refuse_missing(f"history.{missing[0]}")
    for key, record in records.items():
        if kind not in record.forms:
            refuse("history", f"without {key!r} in a job that counts {kind}", sorted(names))
        if foreign := [name for name in record.without if name in names]:
            refuse(f"history.{foreign[0]}", f"left out of a state with {key!r}", [each[foreign[0]] for each in stages])
    if len(stages) > columns.most:
        refuse("history", f"of {columns.most} stage where a job counts {kind}", len(stages))
    found = []
    for number, stage in enumerate(stages):
        newest = number == len(stages) - 1
        forms = {
            **columns.of(newest=newest),
            **{key: own.forms[kind].of(newest=newest) for key, own in records.items()},
        }
        where = f"history[{number + 1}]"
        found.append({name: checked(forms[name], value, f"{where}.{name}") for name, value in stage.items()})
    return found


def left_out(state: State, steps: int, rows: int | None = None) -> dict[str, Any]:
    """Return a state of a job that took more steps than another state says; the tables are not asked for the end.

    Args:
        steps: how many more, each a batch of every rank.
        rows: those of such a step, or its sequences, over all ranks; only where the state counts them.

    Raises:
        ConfigError: `rows` is missing, or not counted.
        ResumeError: the state is malformed, of a rank that had ended, or of an epoch with fewer rows.
    """
    saved = read_state(state)
    counts_rows = saved.kind == "items"
    if saved.taken.ended:
        raise ResumeError("the state is of a rank that had ended; pass that of a rank which was still running")
    if counts_rows != (rows is not None):
        what = "counts steps: leave out the rows that"
        if counts_rows:
            what = "counts rows, or sequences: pass how many"
        raise ConfigError(f"the state {what} a step of all ranks takes")
    state = upgraded(state)
    *past, newest = stages_of(state)
    taken = {**newest, "steps": newest["steps"] + steps}
    if rows is not None:
        taken["consumed"] = newest["consumed"] + steps * rows
    after = {**state, "history": history_of([*past, taken])}
    read_state(after)
    return after


_MOST_RANKS = 1 << 17
_SNAPSHOT = OneOf((None,), range(-(1 << 63), 1 << 63))
_EXTENT = Named({"snapshot_id": _SNAPSHOT, "files": COUNT, "fingerprint": "text"})
_TABLE = Named(
    {"fingerprint": "text", "files": COUNT, "rows": COUNT, "bytes": COUNT},
    {"snapshot_id": _SNAPSHOT, "start_snapshot_id": _SNAPSHOT, "changelog": FLAG, "left_out": COUNT},
    others="plain",
)
_CORE: dict[str, Form] = {
    "version": COUNT,
    "kind": OneOf(("splits", "items")),
    "tables": Named({}, others=Named({"options": Named({}, others="plain"), "table": _TABLE})),
    "epoch": COUNT,
}
_HEADER = ListOf("text")
_HISTORY = ListOf(ListOf("anything"), least=2)


@dataclass(frozen=True, slots=True)
class _Columns:
    """What the core says of a stage, where jobs count one thing.

    Args:
        required: forms of what every stage has; the last one may have others in `newest`, and those before in `past`.
        optional: forms of what stages may lack.
        most: the most stages that a history has.
    """

    required: Mapping[str, Form]
    optional: Mapping[str, Form]
    past: Mapping[str, Form]
    newest: Mapping[str, Form]
    most: int = MOST

    @property
    def every(self) -> Mapping[str, Form]:
        """All columns."""
        return {**self.required, **self.optional}

    def of(self, *, newest: bool) -> dict[str, Form]:
        """Return the forms of the newest stage, or of an earlier one."""
        if newest:
            return {**self.every, **self.newest}
        return {**self.every, **self.past}


_NOTHING = OneOf((None,))
_WINDOW = ByType(
    {
        int: range(1, MOST_ROWS + 1),
        list: MIXING,
        type(None): _NOTHING,
    }
)
_COLUMNS: dict[str, _Columns] = {
    "splits": _Columns(
        {
            "steps": COUNT,
            "ended": FLAG,
            "num_ranks": range(1, _MOST_RANKS + 1),
            "lanes": range(1, MOST_LANES + 1),
            "batch_size": range(1, MOST_ROWS + 1),
            "even_ranks": OneOf((None, "balance", "drop", "pad")),
            "drop_last": FLAG,
        },
        {
            "shuffle_buffer_size": _WINDOW,
            "extent": ByType({list: _EXTENT, type(None): _NOTHING}),
            "rank": OneOf((None,), COUNT),
        },
        past={"steps": range(1, MOST + 1), "ended": OneOf((False,)), "rank": _NOTHING},
        newest={"extent": _NOTHING},
    ),
    "items": _Columns(
        {"steps": COUNT, "ended": FLAG, "consumed": COUNT}, {"extents": ListOf(_EXTENT)}, past={}, newest={}, most=1
    ),
}
"""What the core says of stages, by what a job counts. A job of items says no shape: its history has one stage."""
