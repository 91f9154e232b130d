"""Filters as they are typed: ``column operator value``, or ``column is [not] null``."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from datetime import date, datetime
from functools import reduce
from typing import Any

import pyarrow.compute as pc

from torch_table_loader.errors import ConfigError

_COMPARISON = re.compile(r"\s*(?P<column>.+?)\s*(?P<how>==|!=|<=|>=|<|>|=)\s*(?P<value>.*\S)\s*")
_NULL = re.compile(r"\s*(?P<column>.+?)\s+is\s+(?P<no>not\s+)?null\s*", re.IGNORECASE)

_OPERATORS = {
    "==": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


def parse_filters(texts: Sequence[str]) -> Any:
    """Make one expression of which every part must hold.

    Args:
        texts: at least one.

    Raises:
        ConfigError: one of them cannot be read.
    """
    return reduce(operator.and_, map(parse_filter, texts))


def parse_filter(text: str) -> Any:
    """Make a pyarrow expression.

    Args:
        text: a column, an operator (``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=``) and a value; or a column and
            ``is null`` or ``is not null``.

    Raises:
        ConfigError: it cannot be read.

    >>> print(parse_filter("day >= 2026-01-03"), parse_filter("city is not null"))
    (day >= 2026-01-03) invert(is_null(city, {nan_is_null=false}))
    """
    if match := _NULL.fullmatch(text):
        found = pc.field(match["column"]).is_null()
        return ~found if match["no"] else found
    if match := _COMPARISON.fullmatch(text):
        return _OPERATORS[match["how"]](pc.field(match["column"]), parse_value(match["value"]))
    raise ConfigError(
        f"a filter must read 'COLUMN OPERATOR VALUE', such as 'day >= 2026-01-03', or 'COLUMN is null', got {text!r}"
    )


def parse_value(text: str) -> Any:
    """Read a value: an int, a float, true or false, an ISO date or time; quotes make anything a string.

    >>> parse_value("3"), parse_value("2.5"), parse_value("'3'"), parse_value("2026-01-03"), parse_value("red")
    (3, 2.5, '3', datetime.date(2026, 1, 3), 'red')
    """
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for read in (int, float, date.fromisoformat, datetime.fromisoformat):
        try:
            return read(text)
        except ValueError:
            continue
    return text
