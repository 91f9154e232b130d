"""The effort of the laws: how many examples they draw, and which cases run every day."""

from __future__ import annotations

import math
import os

import pytest

daily = pytest.mark.daily.with_args
"""Choose a test's cases of every day, by a function of its parameters or as a number, spread over all of them.

Twice as many more are slow, and the others rare, which `make test-all` alone runs.
"""


def examples(usual: int) -> int:
    """Return the number of examples: the usual one, times LAWS_EFFORT, which `make test` sets to a quarter."""
    return math.ceil(usual * float(os.environ.get("LAWS_EFFORT", "1")))
