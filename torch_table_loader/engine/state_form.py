"""The form of a state, as data: the type and the range of each value. A state is checked once, when it is read.

So what reads a state finds nothing but ints, strings, bools, None, lists and dicts where it expects them, and no number
that would take time or memory. Whether they fit the table and the plan is for the job to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, TypeAlias, Union, get_args

from torch_table_loader.errors import ResumeError
from torch_table_loader.option_checks import MOST_LANES, MOST_ROWS
from torch_table_loader.planning.mixture import NaturalShares
from torch_table_loader.schedules import StopWord

_MOST = 1 << 62
_MOST_RANKS = 1 << 17
_MOST_PLACES = 1 << 24
"""Rows of a step over all ranks, or lanes of all ranks, of a mixture of streams, which deals each of them."""

_Form: TypeAlias = Union[range, "_OneOf", "_List", "_Record", "_Dict", Literal["text", "whole", "plain", "anything"]]
"""What a value may be: an int of a range, a string, any int, plain data as options are, or what the classes say."""

_TYPES = {"text": (str,), "whole": (int,), "plain": (type(None), bool, int, str)}


@dataclass(frozen=True, slots=True)
class _OneOf:
    """One of some values; a value of another type than theirs may have another form."""

    known: tuple[Any, ...]
    other: _Form | None = None


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


def checked_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a state of the current version, with dicts where pairs are written.

    Raises:
        ResumeError: a value is missing, or of another type or range; the message says which.
    """
    found: dict[str, Any] = _checked(_STATE, state, "")
    kind, is_mixture, names = found["kind"], bool(found["mixture"]), [entry[0] for entry in found["tables"]]
    if not is_mixture and names != [""]:
        _refuse("tables", 'one, named "", where there is no mixture', names)
    found["history"] = history = _checked(_HISTORY[kind, is_mixture], found["history"], "history")
    for stage in history if is_mixture and kind == "splits" else ():
        ranks, lanes, rows, *_, micro_batches = shape = stage[2:9]
        if ranks * max(lanes, rows) > _MOST_PLACES or ranks * rows * micro_batches > MOST_ROWS:
            _refuse("history", f"of jobs with at most {_MOST_PLACES} rows of a step and as many workers", shape)
    return found


def _checked(form: _Form, value: Any, at: str) -> Any:
    """Return a value that has a form."""
    fits = True
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


def _told(form: _Form) -> str:
    """Return what a message calls the values of a form."""
    match form:
        case range():
            return f"an int from {form[0]} to {form[-1]}"
        case _OneOf(known):
            return f"one of {', '.join(map(repr, known))}"
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
_ROWS, _SOME_ROWS = range(1, MOST_ROWS + 1), _OneOf((None,), range(1, MOST_ROWS + 1))
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
        "tables": _List(
            _Record({"name": "text", "table": _TABLE, "options": _OPTIONS, "exclusions": _VERSIONS, "anchor": _ANCHOR}),
            by_name=True,
        ),
        "mixture": _Record({"options": _ORDER, "given": _WEIGHTS, "newest": _WEIGHTS}, may_be_empty=True),
        "epoch": _COUNT,
        "history": "anything",  # see `_HISTORY`
    },
    as_pairs=False,
)
_SHAPE: dict[str, _Form] = {
    "num_ranks": range(1, _MOST_RANKS + 1),
    "lanes": range(1, MOST_LANES + 1),
    "batch_size": _ROWS,
    "shuffle_buffer_size": _SOME_ROWS,
    "even_ranks": _OneOf((None, "balance", "drop", "pad")),
    "drop_last": _FLAG,
    "micro_batches": _OneOf((1,)),
}
"""A topology; a single stream has no micro-batches."""
_DEALT = _SHAPE | {
    "shuffle_buffer_size": _OneOf((None,)),
    "micro_batches": _ROWS,
    "total": _COUNT,
    "natural": _FLAG,
    "weights": _List(_Record({"name": "text", "weight": _COUNT}), by_name=True),
    "dropped": _Record({"until": _COUNT, "weights": _List(_COUNT, least=1)}, may_be_empty=True),
    "width": range(2, MOST_ROWS + 1),
}
_PAST: dict[str, _Form] = {"steps": range(1, _MOST + 1), "ended": _OneOf((False,))}
"""How an earlier stage begins: it has steps, and no rank ended in it."""
_NEWEST: dict[str, _Form] = {"steps": _COUNT, "ended": _FLAG}
_SAMPLES = _NEWEST | {"consumed": _COUNT, "origin": _COUNT, "extents": _List(_EXTENT)}
_ORIGIN = _Record({"round": _COUNT, "tokens": range(-MOST_ROWS, MOST_ROWS + 1)})
_SHARES: dict[str, _Form] = {
    "total": _COUNT,
    "start": _COUNT,
    "weights": _List(
        _Record({"name": "text", "weight": _COUNT, "before": _COUNT, "origin": _ORIGIN}, optional=1), by_name=True
    ),
}
_HISTORY: dict[tuple[str, bool], _Form] = {
    ("splits", False): _List(
        _Record({**_PAST, **_SHAPE, "extent": _OneOf((None,), _EXTENT), "rank": _OneOf((None,))}),
        least=1,
        last=_Record({**_NEWEST, **_SHAPE, "extent": _OneOf((None,)), "rank": _OneOf((None,), _COUNT)}),
    ),
    ("splits", True): _List(_Record(_PAST | _DEALT, optional=2), least=1, last=_Record(_NEWEST | _DEALT, optional=2)),
    ("items", False): _List(_Record(_SAMPLES), least=1, most=1),
    ("items", True): _List(_Record(_SAMPLES | _SHARES), least=1, most=1),
}
"""Of the history, by the kind of job, and whether it is a mixture."""
