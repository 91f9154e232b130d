"""Sizes as people write them."""

from __future__ import annotations

import re

from torch_table_loader.errors import ConfigError, ConfigTypeError

_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024), ("", 1000))
}


def parse_bytes(value: int | str) -> int:
    """Turn a size into bytes.

    Args:
        value: an int, or a number with a unit: B, KB, KiB, MB, MiB, GB, GiB, TB, TiB, in any case.

    Raises:
        ConfigError: not a size, or not positive.

    >>> parse_bytes("512mb"), parse_bytes("1.5 GiB"), parse_bytes(4096)
    (512000000, 1610612736, 4096)
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ConfigTypeError(
            f"a size must be an int or a string such as '128MiB', got {type(value).__name__} {value!r}"
        )
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", value.lower())
        if match is None or match[2] not in _UNITS:
            raise ConfigError(f"a size must read like '128MiB', '512mb' or '4096', got {value!r}")
        num_bytes = int(float(match[1]) * _UNITS[match[2]]) if "." in match[1] else int(match[1]) * _UNITS[match[2]]
    else:
        num_bytes = value
    if num_bytes <= 0:
        raise ConfigError(f"a size must be positive, got {value!r}")
    return num_bytes


__all__ = ["parse_bytes"]
