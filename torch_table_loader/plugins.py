"""Plug-ins of other distributions, found by name: entry points of a group."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from torch_table_loader.errors import ConfigError, MissingExtraError
from torch_table_loader.messages import did_you_mean


def installed_names(group: str) -> list[str]:
    """Return the names that are installed in a group of entry points, sorted."""
    return sorted({point.name for point in entry_points(group=group)})


def origins(group: str) -> dict[str, str]:
    """Return by name which distribution installed what in a group of entry points, and its version."""
    found: dict[str, set[str]] = {}
    for point in entry_points(group=group):
        where = point.value if point.dist is None else f"{point.dist.name} {point.dist.version}"
        found.setdefault(point.name, set()).add(where)
    return {name: " and ".join(sorted(places)) for name, places in sorted(found.items())}


def load_installed(group: str, name: str, what: str) -> Any:
    """Load a plug-in.

    Args:
        what: the kind of plug-in, for messages.

    Raises:
        ConfigError: there is none of that name (the nearest are named), there are two, or it cannot be loaded.
        MissingExtraError: a package that it needs is not installed.
    """
    found: dict[str, set[EntryPoint]] = {}
    for point in entry_points(group=group):
        found.setdefault(point.name, set()).add(point)
    if name not in found:
        hint = did_you_mean(name, sorted(found), spare=len(found))
        raise ConfigError(f"no {what} is installed under the name {name!r}{hint}")
    places = sorted({point.value for point in found[name]})
    if len(places) > 1:
        raise ConfigError(
            f"the name {name!r} must mean one {what}, but {' and '.join(places)} are installed under it; "
            "uninstall one, or pass the object itself"
        )
    try:
        return found[name].pop().load()
    except MissingExtraError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the {what} {name!r} is installed as {places[0]} but cannot be loaded ({error}); reinstall its package"
        ) from error
