"""Checks of values in table metadata. Each raises a ValueError that says what was expected, and what came.

The reader of a file turns these errors into a `TableError` that names the file: see `torn`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from torch_table_loader.errors import TableError

M = TypeVar("M", bound=BaseModel)

_LONG = 1 << 63
_SHOWN = 80


def shown(value: Any) -> str:
    """Format a value for a message, truncated if it is long.

    >>> shown("x" * 100)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…"
    """
    if isinstance(value, int) and abs(value) >= 1 << 128:
        return "a number of very many digits"
    if isinstance(value, dict | list):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    if len(text) <= _SHOWN:
        return text
    return text[:_SHOWN] + "…"


def unfit(place: str, expected: str, value: Any) -> ValueError:
    """Build the error for a value that does not fit."""
    return ValueError(f"{place} must be {expected}, got {shown(value)}")


def whole(value: Any, place: str, least: int = -_LONG, most: int = _LONG - 1) -> int:
    """Check a whole number.

    >>> whole(3, "a count", 0)
    3
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise unfit(place, "a whole number", value)
    if not least <= value <= most:
        raise unfit(place, f"a whole number from {least} to {most}", value)
    return value


def text(value: Any, place: str) -> str:
    """Check a non-empty text that a file system and a message can hold."""
    if not isinstance(value, str) or not value:
        raise unfit(place, "a text that is not empty", value)
    if not value.isascii():
        value.encode("utf-8")  # a lone surrogate is a ValueError of its own
    return value


def flag(value: Any, place: str) -> bool:
    """Check a boolean."""
    if not isinstance(value, bool):
        raise unfit(place, "true or false", value)
    return value


def mapping(value: Any, place: str) -> Mapping[str, Any]:
    """Check a JSON object or a record."""
    if not isinstance(value, dict):
        raise unfit(place, "an object", value)
    return value


def many(value: Any, place: str) -> list[Any]:
    """Check a list."""
    if not isinstance(value, list):
        raise unfit(place, "a list", value)
    return value


def modelled(model: type[M], value: Any, place: str = "") -> M:
    """Check a JSON object at a place in the file against a model."""
    try:
        return model.model_validate(mapping(value, place or "the file"))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
        at = f"{place}{''.join(steps)}".lstrip(".")
        if len(at) > 2 * _SHOWN:
            at = f"{at[:_SHOWN]}…"
        got = f"got {shown(first['input'])}"
        if first["type"] == "missing":
            got = "it is missing"
        raise ValueError(f"{at}: {first['msg']}, {got}") from None


def unlike(values: Iterable[Hashable], place: str, show: Callable[[Any], str] = shown) -> None:
    """Refuse duplicate values; `show` formats one for a message.

    >>> unlike([1, 2], "snapshot-id")
    """
    seen: set[Hashable] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{place} must be unique, got {show(value)} twice")
        seen.add(value)


def torn(what: str, error: Exception, remedy: str) -> TableError:
    """Build the error for a metadata file that does not decode, or fails a check.

    `what` names the file, and what it should be.
    """
    details = str(error)
    if type(error) is not ValueError:
        details = f"{type(error).__name__}: {error}"
    first = next(iter(details.splitlines()), type(error).__name__)
    return TableError(f"{what} ({first[:400]}); {remedy}")
