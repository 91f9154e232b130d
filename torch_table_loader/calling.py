"""Warnings that point at the caller's line, however deep in this library they are raised."""

from __future__ import annotations

import inspect
import warnings

_PACKAGE = __name__.partition(".")[0]


def warn_caller(message: str) -> None:
    """Warn at the line that called into this library.

    Args:
        message: what is the matter, and the remedy.
    """
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
