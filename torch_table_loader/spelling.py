"""Names that a caller may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: object, known: Iterable[str], *, spare: int = 10) -> list[str]:
    """Return up to three names that are spelled like the one that came.

    Args:
        name: what came.
        known: the names that exist.
        spare: how many of `known` stand in where none is near.

    >>> nearest("lable", ["label", "price"])
    ['label']
    >>> nearest("x", ["label", "price"])
    ['label', 'price']
    """
    names = list(known)
    return difflib.get_close_matches(str(name), names) or names[:spare]


def did_you_mean(name: object, known: Iterable[str], *, spare: int = 0) -> str:
    """Return the end of a message that names what is near; nothing where nothing is.

    Args:
        name: what came.
        known: the names that exist.
        spare: how many of `known` stand in where none is near.

    >>> "no column 'lable'" + did_you_mean("lable", ["label", "price"])
    "no column 'lable'; did you mean label?"
    """
    near = nearest(name, known, spare=spare)
    return f"; did you mean {', '.join(near)}?" if near else ""
