"""pyarrow.compute, imported when one of its names is first used.

Importing it wraps some three hundred functions, which takes about a tenth as long as importing torch, and most epochs
of plain Parquet need none of them.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Return pyarrow.compute's attribute of that name, and store it here."""
    import pyarrow.compute

    value = globals()[name] = getattr(pyarrow.compute, name)
    return value
