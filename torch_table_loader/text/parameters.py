"""What a function of the caller's asks for by the names of its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

EPOCH = "epoch"
"""The parameter by which a function says that what it makes of a document differs by epoch, and its length too."""


def takes_epoch(function: Callable[..., Any] | None) -> bool:
    """Return whether a function has a parameter `epoch`.

    >>> takes_epoch(lambda batch, *, epoch: batch), takes_epoch(lambda batch: batch), takes_epoch(None)
    (True, False, False)
    """
    if function is None:
        return False
    try:
        found = inspect.signature(function).parameters.get(EPOCH)
    except (TypeError, ValueError):  # such as of a class of C
        return False
    return found is not None and found.kind in (found.KEYWORD_ONLY, found.POSITIONAL_OR_KEYWORD)
