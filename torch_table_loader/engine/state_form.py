"""The form of a state: the type and the range of each value. Every state is checked against it once, when it is read.

So what reads a state finds nothing but ints, strings, bools, None, lists and dicts where it expects them, and no number
that would take time or memory. Whether they fit the table and the plan is for the job to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, get_args

from torch_table_loader.errors import ResumeError
from torch_table_loader.option_checks import MOST_LANES, MOST_ROWS
from torch_table_loader.planning.mixture import NaturalShares, StopWord

_Form: TypeAlias = Callable[[Any, str], None]
"""Refuses a value that is not of the form; takes the value, and where it stands in the state."""

_MOST = 1 << 62
_MOST_RANKS = 1 << 17
_MOST_PLACES = 1 << 24
"""Rows of a step over all ranks, or lanes of all ranks, of a mixture of streams, which deals each of them."""


def check_form(state: Mapping[str, Any]) -> None:
    """Refuse a state of the current version that does not have the form of its kind of job.

    Raises:
        ResumeError: a value is missing, or of another type or range; the message says which.
    """
    _STATE(state, "")
    names = [entry[0] for entry in state["tables"]]
    if not state["mixture"] and names != [""]:
        _refuse("tables", 'one, named "", where there is no mixture', names)
    _HISTORY[state["kind"], bool(state["mixture"])](state["history"], "history")


def _refuse(at: str, expected: str, value: Any) -> None:
    text = repr(value)
    shown = text if len(text) <= 200 else f"{text[:200]}…"
    raise ResumeError(
        f"the state's {at} must be {expected}, as state_dict() writes it, got {shown}; pass the value of state_dict() "
        "unchanged"
    )


def _whole(least: int = 0, most: int = _MOST) -> _Form:
    def check(value: Any, at: str) -> None:
        if type(value) is not int or not least <= value <= most:
            _refuse(at, f"an int from {least} to {most}", value)

    return check


def _text(value: Any, at: str) -> None:
    if type(value) is not str:
        _refuse(at, "a string", value)


def _flag(value: Any, at: str) -> None:
    if type(value) is not bool:
        _refuse(at, "true or false", value)


def _plain(value: Any, at: str) -> None:
    """Let options through, which are compared with the loader's own."""
    if type(value) is list:
        for each in value:
            _plain(each, at)
    elif value is not None and type(value) not in (bool, int, str):
        _refuse(at, "plain data", value)


def _one_of(*known: Any) -> _Form:
    def check(value: Any, at: str) -> None:
        if not any(type(value) is type(each) and value == each for each in known):
            _refuse(at, f"one of {', '.join(map(repr, known))}", value)

    return check


def _or_none(form: _Form) -> _Form:
    return lambda value, at: None if value is None else form(value, at)


def _choice(choose: Callable[[Any], bool], form: _Form, other: _Form) -> _Form:
    """Return the form of values of two kinds; `choose` tells the first."""
    return lambda value, at: form(value, at) if choose(value) else other(value, at)


def _listed(form: _Form, least: int = 0, last: _Form | None = None) -> _Form:
    """Return the form of a list of any length; its last entry may have another form."""

    def check(value: Any, at: str) -> None:
        if type(value) is not list or len(value) < least:
            _refuse(at, f"a list of at least {least} entries", value)
        for number, each in enumerate(value):
            (form if last is None or number < len(value) - 1 else last)(each, f"{at}[{number}]")

    return check


def _record(*forms: _Form, then: tuple[_Form, ...] = ()) -> _Form:
    """Return the form of a list of fixed places; those of `then` may be missing at its end."""

    def check(value: Any, at: str) -> None:
        if type(value) is not list or not len(forms) <= len(value) <= len(forms) + len(then):
            _refuse(at, f"a list of {len(forms)}{f' to {len(forms) + len(then)}' if then else ''} entries", value)
        for number, (form, each) in enumerate(zip((*forms, *then), value, strict=False)):
            form(each, f"{at}[{number}]")

    return check


def _fields(**forms: _Form) -> _Form:
    """Return the form of a list of fixed places, which messages call by names."""

    def check(value: Any, at: str) -> None:
        if type(value) is not list or len(value) != len(forms):
            _refuse(at, f"a list of {', '.join(forms)}", value)
        for (name, form), each in zip(forms.items(), value, strict=True):
            form(each, f"{at}.{name}")

    return check


def _keyed(forms: Mapping[str, _Form], then: Mapping[str, _Form] | None = None, others: _Form | None = None) -> _Form:
    """Return the form of a dict; keys of `then` may be missing, and `others` is of all that are not named."""
    known = {**forms, **(then or {})}

    def check(value: Any, at: str) -> None:
        if type(value) is not dict and not isinstance(value, Mapping):
            _refuse(at, "a dict", value)
        dot = f"{at}." if at else ""
        for name in forms:
            if name not in value:
                raise ResumeError(f"the state has no {dot}{name}; pass the value of state_dict() unchanged")
        for name, each in value.items():
            if (form := known.get(name, others)) is not None:
                form(each, f"{dot}{name}")

    return check


def _pairs(form: _Form) -> _Form:
    """Return the form of a dict that is written as pairs, since the keys of a state never change."""

    def check(value: Any, at: str) -> None:
        _listed(_record(_text, _plain))(value, at)
        form(dict(value), at)

    return check


def _named(form: _Form) -> _Form:
    """Return the form of a list of entries that begin with a name: sorted, and no name twice."""

    def check(value: Any, at: str) -> None:
        _listed(form)(value, at)
        names = [entry[0] for entry in value]
        if names != sorted(set(names)):
            _refuse(at, "sorted by names that differ", names)

    return check


def _or_empty(form: _Form) -> _Form:
    """Return the form of a list that may be empty."""
    return lambda value, at: None if type(value) is list and not value else form(value, at)


_SNAPSHOT = _or_none(_whole(-(1 << 63), (1 << 63) - 1))
_COUNT = _whole()
_EXTENT = _record(_SNAPSHOT, _COUNT, _text)
_TABLE = _pairs(
    _keyed(
        {"fingerprint": _text, "files": _COUNT, "rows": _COUNT, "bytes": _COUNT},
        {"snapshot_id": _SNAPSHOT, "start_snapshot_id": _SNAPSHOT, "changelog": _flag, "left_out": _COUNT},
    )
)
_OPTIONS = _pairs(_keyed({}, others=_plain))
_DIGESTS = _record(_text, _text)
_VERSIONS = _or_empty(_record(_DIGESTS, then=(_DIGESTS,)))
_ANCHOR = _or_empty(_record(_COUNT, _COUNT, _COUNT, _COUNT))
_WEIGHTS = _choice(lambda value: type(value) is str, _one_of(*get_args(NaturalShares)), _named(_record(_text, _COUNT)))
_STOP = _choice(lambda value: type(value) is str, _one_of(*get_args(StopWord)), _named(_record(_text, _COUNT)))
_ORDER = _pairs(_keyed({"shuffle_seed": _plain, "stop": _STOP, "block": _or_none(_COUNT)}, others=_plain))
_STATE = _keyed(
    {
        "version": _COUNT,
        "kind": _one_of("splits", "items"),
        "tables": _named(_fields(name=_text, table=_TABLE, options=_OPTIONS, exclusions=_VERSIONS, anchor=_ANCHOR)),
        "mixture": _or_empty(_fields(options=_ORDER, given=_WEIGHTS, newest=_WEIGHTS)),
        "epoch": _COUNT,
        "history": lambda _value, _at: None,  # see `_HISTORY`
    }
)
_SHAPE = (
    _whole(1, _MOST_RANKS),
    _whole(1, MOST_LANES),
    _whole(1, MOST_ROWS),
    _or_none(_whole(1, MOST_ROWS)),
    _one_of(None, "balance", "drop", "pad"),
    _flag,
)
"""The forms of a topology's values, in order, without micro-batches, which a single stream does not have."""
_PAST = (_whole(1), _one_of(False))
"""How an earlier stage begins: it has steps, and no rank ended in it."""
_NEWEST = (_COUNT, _flag)
_SAMPLES = (*_NEWEST, _COUNT, _COUNT, _listed(_EXTENT))


def _dealt(*begins: _Form) -> _Form:
    ranks, lanes, size, _, *rest = _SHAPE
    shape = (
        ranks,
        lanes,
        size,
        _one_of(None),
        *rest,
        _whole(1, MOST_ROWS),
    )  # micro-batches, no windows
    stage = _record(*begins, *shape, _COUNT, _flag, _named(_record(_text, _COUNT)))

    def check(value: Any, at: str) -> None:
        stage(value, at)
        of_ranks, of_lanes, rows, *_, micro_batches = value[2:9]
        if of_ranks * max(of_lanes, rows) > _MOST_PLACES or of_ranks * rows * micro_batches > MOST_ROWS:
            _refuse(at, f"of a job with at most {_MOST_PLACES} rows of a step and as many workers", value[2:9])

    return check


_HISTORY: dict[tuple[str, bool], _Form] = {
    ("splits", False): _listed(
        _record(*_PAST, *_SHAPE, _one_of(1), _or_none(_EXTENT), _one_of(None)),
        1,
        _record(*_NEWEST, *_SHAPE, _one_of(1), _one_of(None), _or_none(_COUNT)),
    ),
    ("splits", True): _listed(_dealt(*_PAST), 1, _dealt(*_NEWEST)),
    ("items", False): _record(_record(*_SAMPLES)),
    ("items", True): _record(_record(*_SAMPLES, _COUNT, _COUNT, _named(_record(_text, _COUNT, _COUNT)))),
}
"""Of the history, by the kind of job, and whether it is a mixture."""
