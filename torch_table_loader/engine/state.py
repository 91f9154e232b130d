"""The state of a loader: small plain data that says what the job has done, and on which tables.

Every job writes the same keys. Anything that grows or shrinks is a list of plain values, because checkpoint stores that
save key by key then keep it whole. The form of a state is data: the type and the range of each value, checked once. So
what reads a state finds nothing but ints, strings, bools, None, lists and dicts where it expects them, and no number
that would take time or memory. Whether they fit the tables and the plan is for the job to say (`engine/jobs/bound.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, Union, get_args

from torch_table_loader.errors import ConfigError, ResumeError
from torch_table_loader.option_checks import MOST_LANES, MOST_ROWS
from torch_table_loader.planning.mixture import LEAST_SHARE, NaturalShares
from torch_table_loader.planning.ranks import MOST_SPLITS
from torch_table_loader.planning.stages import SamplePosition, StreamPosition, refuse_ended
from torch_table_loader.samples import LENGTH
from torch_table_loader.schedules import StopWord

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from torch_table_loader.planning.mixed_stages import MixedPosition
    from torch_table_loader.planning.stages import Extent, Position

State: TypeAlias = Mapping[str, Any]

Kind: TypeAlias = Literal["splits", "items"]
"""What a job takes, and what its history counts."""

Weights: TypeAlias = dict[str, int] | str
"""Weights by the name of the source; or the word for those of what is left of each source."""

STATE_VERSION = 1

UPGRADES: dict[int, Callable[[State], State]] = {}
"""For each version before the current one, a function that upgrades a state to the next version."""


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
        files_of: which files the table had at earlier extents, in their order then, as far as that is known.
        grown: what the table was, if it is known to have grown since.
    """

    kind: Kind
    tables: Mapping[str, SavedTable]
    mixture: SavedMixture | None
    taken: StreamPosition | SamplePosition | MixedPosition
    files_of: Mapping[Extent, NDArray[np.int64]] = field(default_factory=dict)
    grown: Extent | None = None

    def is_of(self, tables: Mapping[str, Bound]) -> bool:
        """Return whether the epoch was read of some tables as they are now, those by other names left out."""
        common = (name for name in self.tables if name in tables)
        same = (self.tables[name].table["fingerprint"] == tables[name].table["fingerprint"] for name in common)
        return all(same) and not self.taken.extents


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
    try:
        return _read(state)
    except RecursionError:
        raise ResumeError("the state nests deeper than state_dict() writes it; pass its value unchanged") from None


def _read(state: Mapping[str, Any]) -> SavedState:
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
    found: dict[str, Any] = _checked(_STATE, state, "")
    found["tables"] = _checked(_TABLES[found["kind"]], found["tables"], "tables")
    kind, epoch, mixture = found["kind"], found["epoch"], SavedMixture(*found["mixture"]) if found["mixture"] else None
    history = _checked(_HISTORY[kind, mixture is not None], found["history"], "history")
    tables = {name: SavedTable(*saved) for name, *saved in found["tables"]}
    taken: StreamPosition | SamplePosition | MixedPosition
    if mixture is None:
        if list(tables) != [""]:
            _refuse("tables", 'one, named "", where there is no mixture', list(tables))
        alone: type[SamplePosition | StreamPosition] = SamplePosition if kind == "items" else StreamPosition
        taken = alone.of_history(epoch, history)
    else:
        seed, block = mixture.options["shuffle_seed"], mixture.options["block"]
        if kind == "items":
            natural = isinstance(mixture.newest, str)
            taken = SamplePosition.of_history(epoch, history, seed, block, natural=natural)
        else:
            from torch_table_loader.planning.mixed_stages import MixedPosition

            taken = MixedPosition.of_history(epoch, history, seed)
        _refuse_unfit(tuple(tables), mixture, taken)
    if isinstance(taken, SamplePosition):
        _refuse_unpacked(taken, tables)
    return SavedState(kind, tables, mixture, taken)


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
    taken, counts_rows = saved.taken, saved.kind == "items"
    if taken.ended:
        raise ResumeError("the state is of a rank that had ended; pass that of a rank which was still running")
    if counts_rows != (rows is not None):
        what = "counts rows, or sequences: pass how many" if counts_rows else "counts steps: leave out the rows that"
        raise ConfigError(f"the state {what} a step of all ranks takes")
    if isinstance(taken, SamplePosition):
        before = taken.steps_before + steps
        taken = replace(taken, start=taken.start + steps * (rows or 0), steps_before=before)
    else:
        taken = taken.after(taken.stage.steps + steps)
    after = {**state, "history": taken.history()}
    read_state(after)
    return after


def _refuse_unpacked(taken: SamplePosition, tables: Mapping[str, SavedTable]) -> None:
    """Refuse what only sequences have in a state of rows, and what only rows have in one of sequences.

    Raises:
        ResumeError: names it.
    """
    length, every = taken.width, [saved.options for saved in tables.values()]
    if any((bool(length), length) != ("stage" in own, own.get(LENGTH, length)) for own in every):
        _refuse("history", "of sequences as long as the options of tables say", length)
    if length and taken.extents:
        _refuse("history.extents", "empty, since tables of sequences do not grow", taken.extents)
    if not length and taken.origin:
        _refuse("history.origin", "0 where rows are no sequences", taken.origin)
    if not length and (anchors := [saved.anchor for saved in tables.values() if saved.anchor]):
        _refuse("tables.anchor", "empty where rows are no sequences", anchors[0])


def _pairs(values: Mapping[str, Any]) -> list[list[Any]]:
    return [[name, value] for name, value in sorted(values.items())]


def _weights(weights: Weights) -> str | list[list[Any]]:
    return weights if isinstance(weights, str) else _pairs(weights)


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
    newest, asked = mixture.newest, [(names, mixture.given), (names, mixture.newest)]
    if isinstance(taken, SamplePosition):
        running, natural, start = taken.mixed.weights, taken.mixed.natural, taken.start
    else:
        running, natural, start = taken.deal.by_name, taken.deal.natural, 0
        asked += [(stage.deal.names, stage.deal.by_name) for stage in taken.stages]
    for beside, weights in [*asked, (names, running)]:
        if isinstance(weights, str):
            continue
        least, shares = min(filter(None, weights.values()), default=0), sum(weights.values())
        if tuple(weights) != beside or gcd(*weights.values()) != 1 or shares > least * LEAST_SHARE:
            refuse(f"weights {weights!r} for the sources {', '.join(beside)}")
    if isinstance(taken, SamplePosition):
        since, before = taken.mixed.shares.start, taken.mixed.shares.before
        # Where lengths changed, other sequences are counted.
        if not since <= start <= taken.total or (not taken.origins and sum(before) > since):
            rows = dict(zip(taken.mixed.names, before, strict=True))
            refuse(f"rows of sources {rows}, weights from {since}, taken {start}, of the epoch {taken.total}")
        least = since if taken.width else 0
        if taken.origin < least or bool(taken.origin) != bool(least):
            refuse(f"{taken.origin} tokens before the weights, which begin at {since}")
        if sum(taken.mixed.shares.lacks):
            refuse(f"sources that lack {taken.mixed.shares.lacks} of their shares, which do not add up to nothing")
    else:
        _refuse_undealt(taken)
        start = taken.consumed
    refuse_ended(start, taken.total, ended=taken.ended)
    if start < taken.total and (natural != isinstance(newest, str) or not (natural or newest == running)):
        refuse(f"the running weights {running!r}, {'' if natural else 'not '}natural, and the newest {newest!r}")


def _refuse_undealt(taken: MixedPosition) -> None:
    """Refuse a stage with weights that no stage has where sources are dropped, and one too large to deal."""
    for deal in (stage.deal for stage in taken.stages):
        topology = deal.topology
        if topology.num_ranks * max(topology.lanes, topology.batch_size) > _MOST_PLACES or (
            deal.optimizer_rows > MOST_ROWS
        ):
            _refuse("history", f"of jobs with at most {_MOST_PLACES} rows of a step and as many workers", topology)
        fit = len(deal.weights) == len(deal.names) and any(deal.weights) and not deal.until % deal.step_rows
        fit = fit and len(deal.lacks) in (0, len(deal.names)) and not sum(deal.lacks)
        if not fit or deal.block_rows > LEAST_SHARE + deal.step_rows:
            lacks = f", which lack {deal.lacks!r}" * bool(deal.lacks)
            refuse(
                f"the dealt weights {deal.weights!r} until {deal.until} for the sources {', '.join(deal.names)}{lacks}"
            )


_MOST = 1 << 62
_MOST_RANKS = 1 << 17
_MOST_PLACES = 1 << 24
"""Rows of a step over all ranks, or lanes of all ranks, of a mixture of streams, which deals each of them."""

_Form: TypeAlias = Union[
    range, "_OneOf", "_ByType", "_List", "_Record", "_Dict", Literal["text", "whole", "plain", "anything"]
]
"""What a value may be: an int of a range, a string, any int, plain data as options are, or what the classes say."""

_TYPES = {"text": (str,), "whole": (int,), "plain": (type(None), bool, int, str)}


@dataclass(frozen=True, slots=True)
class _OneOf:
    """One of some values; a value of another type than theirs may have another form."""

    known: tuple[Any, ...]
    other: _Form | None = None


@dataclass(frozen=True, slots=True)
class _ByType:
    """A value of some types, each of which has its own form."""

    forms: Mapping[type, _Form]


@dataclass(frozen=True, slots=True)
class _List:
    """A list of some entries, the last of which may have another form; sorted `by_name` if they begin with names."""

    each: _Form
    least: int = 0
    most: int = _MOST
    last: _Form | None = None
    by_name: bool = False


@dataclass(frozen=True, slots=True)
class _Record:
    """A list of fixed places, which messages call by names; or an empty list, where that is allowed.

    Args:
        optional: how many of the last places may be missing.
    """

    places: Mapping[str, _Form]
    may_be_empty: bool = False
    optional: int = 0


@dataclass(frozen=True, slots=True)
class _Dict:
    """A dict, of which some keys may be missing; `others` are all that are not named.

    Args:
        as_pairs: whether it is written as sorted pairs, since the keys of a state never change.
    """

    places: Mapping[str, _Form]
    optional: Mapping[str, _Form] = field(default_factory=dict)
    others: _Form = "anything"
    as_pairs: bool = True


def _checked(form: _Form, value: Any, at: str) -> Any:
    """Return a value that has a form."""
    fits, form = True, _of_type(form, value)
    match form:
        case _Dict(places, optional, others, as_pairs):
            value = dict(_checked(_PAIRS, value, at)) if as_pairs else value
            dot = f"{at}." if at else ""
            if missing := [name for name in places if name not in value]:
                raise ResumeError(f"the state has no {dot}{missing[0]}; pass the value of state_dict() unchanged")
            named = {**places, **optional}
            return {name: _checked(named.get(name, others), each, f"{dot}{name}") for name, each in value.items()}
        case _OneOf(known, other):
            if other is not None and type(value) not in map(type, known):
                return _checked(other, value, at)
            fits = any(type(value) is type(each) and value == each for each in known)
        case _List(each, least, most, last) if type(value) is list and least <= len(value) <= most:
            parts = zip([each] * (len(value) - 1) + [last or each], value, strict=False)
            value = [_checked(own, entry, f"{at}[{number}]") for number, (own, entry) in enumerate(parts)]
            if form.by_name and (names := [entry[0] for entry in value]) != sorted(set(names)):
                _refuse(at, "sorted by names that differ", names)
        case _Record(places) if type(value) is list and (
            len(places) - form.optional <= len(value) <= len(places) or (form.may_be_empty and not value)
        ):
            entries = zip(places.items(), value, strict=False)
            value = [_checked(own, entry, f"{at}.{name}") for (name, own), entry in entries]
        case "plain" if type(value) is list:
            value = [_checked(form, entry, at) for entry in value]
        case range():
            fits = type(value) is int and value in form
        case _:
            fits = form == "anything" or (isinstance(form, str) and type(value) in _TYPES[form])
    return value if fits else _refuse(at, _told(form), value)


def _of_type(form: _Form, value: Any) -> _Form:
    """Return the form that a value of its type has, where forms differ by type."""
    return form.forms.get(type(value), form) if isinstance(form, _ByType) else form


def _told(form: _Form) -> str:
    """Return what a message calls the values of a form."""
    match form:
        case range():
            return f"an int from {form[0]} to {form[-1]}"
        case _OneOf(known):
            return f"one of {', '.join(map(repr, known))}"
        case _ByType(forms):
            return " or ".join(map(_told, forms.values()))
        case _List(_, least, most):
            return f"a list of at least {least} entries" + ("" if most == _MOST else f", and {most} at most")
        case _Record(places):
            return f"a list of {', '.join(places)}"
    return {"text": "a string", "whole": "an int"}.get(str(form), "plain data")


def _refuse(at: str, expected: str, value: Any) -> NoReturn:
    text = repr(value)
    shown = text if len(text) <= 200 else f"{text[:200]}…"
    raise ResumeError(
        f"the state's {at} must be {expected}, as state_dict() writes it, got {shown}; pass the value of state_dict() "
        "unchanged"
    )


_COUNT = range(_MOST + 1)
_FLAG = _OneOf((False, True))
_ROWS = range(1, MOST_ROWS + 1)
_MIXING = _Record({"rows": _ROWS, "splits": range(1, MOST_SPLITS + 1)})
_SNAPSHOT = _OneOf((None,), range(-(1 << 63), 1 << 63))
_EXTENT = _Record({"snapshot_id": _SNAPSHOT, "files": _COUNT, "fingerprint": "text"})
_PAIRS = _List(_Record({"name": "text", "value": "anything"}), by_name=True)
_TABLE = _Dict(
    {"fingerprint": "text", "files": _COUNT, "rows": _COUNT, "bytes": _COUNT},
    {"snapshot_id": _SNAPSHOT, "start_snapshot_id": _SNAPSHOT, "changelog": _FLAG, "left_out": _COUNT},
    others="plain",
)
_OPTIONS = _Dict({}, others="plain")
_VERSIONS = _List(_Record({"ids": "text", "digest": "text"}), most=2)
_ANCHOR = _Record(dict.fromkeys(("round", "place", "before", "seal"), _COUNT), may_be_empty=True)
_WEIGHTS = _OneOf(get_args(NaturalShares), _Dict({}, others=_COUNT))
_TIMES = _List(_Record({"name": "text", "times": _COUNT}), by_name=True)
_STOP = _OneOf(get_args(StopWord), _TIMES)
_ORDER = _Dict(
    {"shuffle_seed": "whole", "stop": _STOP, "block": _OneOf((None,), _COUNT)},
    {"drop": _TIMES, "samples": _COUNT, "tokens": _COUNT},
    others="plain",
)
_STATE = _Dict(
    {
        "version": _COUNT,
        "kind": _OneOf(("splits", "items")),
        "tables": "anything",  # see `_TABLES`
        "mixture": _Record({"options": _ORDER, "given": _WEIGHTS, "newest": _WEIGHTS}, may_be_empty=True),
        "epoch": _COUNT,
        "history": "anything",  # see `_HISTORY`
    },
    as_pairs=False,
)
_SOURCE: dict[str, _Form] = {"name": "text", "table": _TABLE, "options": _OPTIONS}
_NOTHING = _List("anything", most=0)
_TABLES: dict[str, _Form] = {
    "splits": _List(_Record({**_SOURCE, "exclusions": _NOTHING, "anchor": _NOTHING}), by_name=True),
    "items": _List(_Record({**_SOURCE, "exclusions": _VERSIONS, "anchor": _ANCHOR}), by_name=True),
}
"""Of the tables, by the kind of job: rows are excluded, and walks begin anew, only where items are gathered."""
_SHAPE: dict[str, _Form] = {
    "num_ranks": range(1, _MOST_RANKS + 1),
    "lanes": range(1, MOST_LANES + 1),
    "batch_size": _ROWS,
    "shuffle_buffer_size": _ByType({int: _ROWS, list: _MIXING, type(None): _OneOf((None,))}),
    "even_ranks": _OneOf((None, "balance", "drop", "pad")),
    "drop_last": _FLAG,
    "micro_batches": _OneOf((1,)),
}
"""A topology; a single stream has no micro-batches."""
_LACK = range(-_MOST, _MOST + 1)
_DEALT = _SHAPE | {
    "shuffle_buffer_size": _OneOf((None,)),
    "micro_batches": _ROWS,
    "total": _COUNT,
    "natural": _FLAG,
    "weights": _List(_Record({"name": "text", "weight": _COUNT}), by_name=True),
    "dropped": _Record({"until": _COUNT, "weights": _List(_COUNT, least=1)}, may_be_empty=True),
    "width": range(1, MOST_ROWS + 1),
    "lacks": _List(_LACK),
}
_PAST: dict[str, _Form] = {"steps": range(1, _MOST + 1), "ended": _OneOf((False,))}
"""How an earlier stage begins: it has steps, and no rank ended in it."""
_NEWEST: dict[str, _Form] = {"steps": _COUNT, "ended": _FLAG}
_SAMPLES = _NEWEST | {"consumed": _COUNT, LENGTH: range(1 << 31), "origin": _COUNT, "extents": _List(_EXTENT)}
_ORIGIN = _Record({"round": _COUNT, "tokens": range(-MOST_ROWS, MOST_ROWS + 1)}, may_be_empty=True)
_SHARES: dict[str, _Form] = {
    "extents": _List(_EXTENT, most=0),
    "total": _COUNT,
    "start": _COUNT,
    "weights": _List(
        _Record({"name": "text", "weight": _COUNT, "before": _COUNT, "origin": _ORIGIN, "lack": _LACK}, optional=2),
        by_name=True,
    ),
}
_HISTORY: dict[tuple[str, bool], _Form] = {
    ("splits", False): _List(
        _Record({**_PAST, **_SHAPE, "extent": _OneOf((None,), _EXTENT), "rank": _OneOf((None,))}),
        least=1,
        last=_Record({**_NEWEST, **_SHAPE, "extent": _OneOf((None,)), "rank": _OneOf((None,), _COUNT)}),
    ),
    ("splits", True): _List(_Record(_PAST | _DEALT, optional=3), least=1, last=_Record(_NEWEST | _DEALT, optional=3)),
    ("items", False): _List(_Record(_SAMPLES), least=1, most=1),
    ("items", True): _List(_Record(_SAMPLES | _SHARES), least=1, most=1),
}
"""Of the history, by the kind of job, and whether it is a mixture."""
