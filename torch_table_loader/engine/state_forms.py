"""Forms of plain values, as data, and the one function that holds a value against a form.

What a form lets through is nothing but ints, strings, bools, None, lists and dicts where they are expected, and no
number that would take time or memory. A state has no dicts: what has names is written as pairs, sorted by name, because
checkpoint stores that save key by key then keep it whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, TypeAlias, Union

from torch_table_loader.errors import ResumeError

MOST = 1 << 62

Form: TypeAlias = Union[range, "OneOf", "ByType", "ListOf", "Named", Literal["text", "whole", "plain", "anything"]]
"""What a value may be: an int of a range, a string, any int, plain data as options are, or what the classes say."""

_TYPES = {"text": (str,), "whole": (int,), "plain": (type(None), bool, int, str)}


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some values; a value of another type than theirs may have another form."""

    known: tuple[Any, ...]
    other: Form | None = None


@dataclass(frozen=True, slots=True)
class ByType:
    """A value of some types, each of which has its own form."""

    forms: Mapping[type, Form]


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of some entries."""

    each: Form
    least: int = 0
    most: int = MOST


@dataclass(frozen=True, slots=True)
class Named:
    """Values by name, some of which may be missing; they are written as pairs, sorted by name.

    Args:
        others: the form of values that have other names; None: there are none.
    """

    fields: Mapping[str, Form]
    optional: Mapping[str, Form] = field(default_factory=dict)
    others: Form | None = None


COUNT = range(MOST + 1)
FLAG = OneOf((False, True))


def checked(form: Form, value: Any, at: str) -> Any:
    """Return a value that has a form, what has names as a dict.

    Raises:
        ResumeError: it has another form; the message calls it by `at`.
    """
    fits, form = True, _of_type(form, value)
    match form:
        case Named():
            return _named(form, value, at)
        case OneOf(known, other):
            if other is not None and type(value) not in map(type, known):
                return checked(other, value, at)
            fits = any(type(value) is type(each) and value == each for each in known)
        case ListOf(each, least, most) if type(value) is list and least <= len(value) <= most:
            value = [checked(each, entry, f"{at}[{number}]") for number, entry in enumerate(value)]
        case "plain" if type(value) is list:
            value = [checked(form, entry, at) for entry in value]
        case range():
            fits = type(value) is int and value in form
        case _:
            fits = form == "anything" or (isinstance(form, str) and type(value) in _TYPES[form])
    if fits:
        return value
    return refuse(at, _described(form), value)


def _named(form: Named, value: Any, at: str) -> dict[str, Any]:
    if type(value) is not list or any(
        type(pair) is not list or len(pair) != 2 or type(pair[0]) is not str for pair in value
    ):
        refuse(at, "a list of names and values", value)
    if (names := [name for name, _ in value]) != sorted(set(names)):
        refuse(at, "sorted by names that differ", names)
    dot, known = f"{at}." if at else "", {**form.fields, **form.optional}
    if missing := [name for name in form.fields if name not in names]:
        refuse_missing(f"{dot}{missing[0]}")
    if form.others is None and (unknown := [name for name in names if name not in known]):
        refuse(at, f"without {unknown[0]!r}, which this release does not know", value)
    return {name: checked(known.get(name, form.others or "anything"), each, f"{dot}{name}") for name, each in value}


def _of_type(form: Form, value: Any) -> Form:
    """Return the form that a value of its type has, where forms differ by type."""
    if isinstance(form, ByType):
        return form.forms.get(type(value), form)
    return form


def _described(form: Form) -> str:
    """Return what a message calls the values of a form."""
    match form:
        case range():
            return f"an int from {form[0]} to {form[-1]}"
        case OneOf(known):
            return f"one of {', '.join(map(repr, known))}"
        case ByType(forms):
            return " or ".join(map(_described, forms.values()))
        case ListOf(_, least, most):
            return f"a list of at least {least} entries" + ("" if most == MOST else f", and {most} at most")
        case Named():
            return "a list of names and values"
    return {"text": "a string", "whole": "an int"}.get(str(form), "plain data")


def refuse(at: str, expected: str, value: Any) -> NoReturn:
    """Refuse a value of a state.

    Raises:
        ResumeError: names it, and what was expected.
    """
    shown = repr(value)
    if len(shown) > 200:
        shown = f"{shown[:200]}…"
    raise ResumeError(
        f"the state's {at} must be {expected}, as state_dict() writes it, got {shown}; pass the value of state_dict() "
        "unchanged"
    )


def refuse_missing(at: str) -> NoReturn:
    """Refuse a state that lacks a value.

    Raises:
        ResumeError: names it.
    """
    raise ResumeError(f"the state has no {at}; pass the value of state_dict() unchanged")


_HOLDING = (dict, list)


def written(value: Any) -> Any:
    """Return a value with the dicts in it as pairs, sorted by name; only lists and dicts are looked into.

    >>> written({"b": [{"c": 1}], "a": 0})
    [['a', 0], ['b', [[['c', 1]]]]]
    """
    if type(value) is dict:
        return [[name, written(own) if type(own) in _HOLDING else own] for name, own in sorted(value.items())]
    if type(value) is list:
        return [written(own) if type(own) in _HOLDING else own for own in value]
    return value
