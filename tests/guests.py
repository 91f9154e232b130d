"""Which guests this checkout has: `tools/guests.py` takes them off."""

from __future__ import annotations

from pathlib import Path

import torch_table_loader


def is_here(guest: str) -> bool:
    """Return whether a guest's folder is here."""
    return (Path(torch_table_loader.__file__).parent / guest / "__init__.py").is_file()
