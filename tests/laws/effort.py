"""The effort of the laws."""

from __future__ import annotations

import os


def examples(usual: int) -> int:
    """Return the number of examples: the usual one, times LAWS_EFFORT."""
    return usual * int(os.environ.get("LAWS_EFFORT", "1"))
