"""Weights of a mixture as exact numbers."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import gcd, lcm
from numbers import Rational, Real

from torch_table_loader.errors import ConfigError

_LEAST_SHARE = 1 << 20


def smallest(weights: Mapping[str, float]) -> dict[str, int]:
    """Write weights as the smallest integers, by name, sorted; a float counts as the decimal that it prints.

    Raises:
        ConfigError: no source, or a weight that is negative, not finite or too small beside the others.

    >>> smallest({"b": 0.3, "a": 0.7})
    {'a': 7, 'b': 3}
    """
    names = sorted(weights)
    shares = [_exact(weights[name]) for name in names]
    if shares and not any(share is None or share for share in shares):
        raise ConfigError(
            f"weights are all 0, so that no source gives a row, got {dict(weights)!r}; "
            "give at least one a weight above 0"
        )
    if None in shares or not any(shares) or min(shares, default=0) < 0:  # type: ignore[operator, type-var]
        raise ConfigError(
            f"weights must be numbers by source name, at least 0, and one of them above it, got {dict(weights)!r}"
        )
    exact = [share for share in shares if share is not None]
    if sum(exact) / min(share for share in exact if share) > _LEAST_SHARE:
        raise ConfigError(
            f"the smallest weight must be at least 1/{_LEAST_SHARE} of their sum, got {dict(weights)!r}; "
            "leave that source out"
        )
    common = lcm(*(share.denominator for share in exact))
    whole = [int(share * common) for share in exact]
    return dict(zip(names, (number // gcd(*whole) for number in whole), strict=True))


def _exact(weight: object) -> Fraction | None:
    if isinstance(weight, bool) or not isinstance(weight, Real):
        return None
    try:
        return Fraction(weight) if isinstance(weight, Rational) else Fraction(str(weight))
    except ValueError:
        return None
