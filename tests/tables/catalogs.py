"""Catalogs that tests open: `tests/conftest.py` closes them after each test, as a user's program does in the end."""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.catalog import load_catalog as opened

_OPENED: list[Catalog] = []


def load_catalog(name: str | None = None, **properties: str | None) -> Catalog:
    """Open a catalog as pyiceberg does; what it connects to is closed after each test, and opened again when used."""
    _OPENED.append(opened(name, **properties))
    return _OPENED[-1]


def close_catalogs() -> None:
    """Close the connections of all that are open."""
    for each in _OPENED:
        each.close()


def forget_catalogs() -> None:
    """Let go of them: those of a module's fixtures live until it ends."""
    _OPENED.clear()
