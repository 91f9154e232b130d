"""Sizes as people write them, numbers of any type, and values of a list."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from numbers import Real
from typing import Any

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.messages import did_you_mean

_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024), ("", 1000))
}


class Size(int):
    """A number of bytes, shown in a unit that fits it.

    >>> str(Size(512)), str(Size(1536)), str(Size(1 << 30))
    ('512 bytes', '1.5 KiB', '1 GiB')
    """

    def __str__(self) -> str:
        """Format the number, rounded to a tenth of its unit."""
        units = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
        power = 0
        while power < len(units) - 1 and round(self / 1024**power, 1) >= 1024:
            power += 1
        value = f"{self / 1024**power:,.1f}".removesuffix(".0")
        return f"{value} {units[power]}"


def whole(value: Any) -> int | None:
    """Return an integer of any type, including numpy's, as an int; None for anything else.

    >>> whole(3), whole(3.0), whole(True)
    (3, None, None)
    """
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def parse_bytes(value: int | str, name: str = "a size") -> int:
    """Parse a size in bytes.

    Args:
        value: an int, or a number with a unit: B, KB, KiB, MB, MiB, GB, GiB, TB, TiB, in any case.
        name: the name of the option, for messages.

    Raises:
        ConfigError: the value is not a size, or is not positive.

    >>> parse_bytes("512mb"), parse_bytes("1.5 GiB"), parse_bytes(4096)
    (512000000, 1610612736, 4096)
    """
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", value.lower())
        if match is None or match[2] not in _UNITS:
            raise ConfigError(f"{name} must look like '128MiB', '512mb' or '4096', got {value!r}")
        num_bytes = int(float(match[1]) * _UNITS[match[2]]) if "." in match[1] else int(match[1]) * _UNITS[match[2]]
    else:
        given = whole(value)
        if given is None:
            raise ConfigTypeError(
                f"{name} must be an int or a string such as '128MiB', got {type(value).__name__} {value!r}"
            )
        num_bytes = given
    if num_bytes <= 0:
        raise ConfigError(f"{name} must be positive, got {value!r}")
    return num_bytes


def integer(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return an integer of any type, including numpy's, as an int; errors call it by a name."""
    number = whole(value)
    if number is None:
        raise ConfigTypeError(f"{name} must be an int, got {type(value).__name__} {value!r}")
    if least is not None and number < least:
        raise ConfigError(f"{name} must be at least {least}, got {number}")
    if most is not None and number > most:
        raise ConfigError(f"{name} must be at most {most}, got {number}")
    return number


def seconds(name: str, value: Any) -> float:
    """Return a duration, a number of any type, as a float."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigTypeError(f"{name} must be a number of seconds, got {type(value).__name__} {value!r}")
    number = float(value)
    if not number >= 0:
        raise ConfigError(f"{name} must be at least 0, got {value!r}")
    return number


def one_of(allowed: Sequence[Any], name: str, value: Any) -> Any:
    """Return a value if it is one of those that are allowed; the error names the nearest."""
    if value not in allowed:
        near = did_you_mean(repr(value), [repr(each) for each in allowed]) if isinstance(value, str) else ""
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}{near}")
    return value
