"""pyarrow.compute, imported when one of its names is first used.

It wraps some three hundred functions when it is imported, which takes about a tenth as long as torch, and most epochs
of plain Parquet need none of them.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Return what pyarrow.compute calls so, and keep it here."""
    import pyarrow.compute

    value = globals()[name] = getattr(pyarrow.compute, name)
    return value
