"""The table that a command line names, opened, and the cluster that it names."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch_table_loader.cli.arguments import SNAPSHOTS, flag_of, loader_keywords
from torch_table_loader.dataset import StructuredDataset, TableDataset
from torch_table_loader.engine.ray_cluster import RayCluster, ray_cluster
from torch_table_loader.errors import ConfigError
from torch_table_loader.installed import load
from torch_table_loader.source.folders import format_of_folder


def asked_for(typed: argparse.Namespace, **own: Any) -> tuple[type[TableDataset], dict[str, Any]]:
    """Return the class of the dataset that was named, of files, of Iceberg or of Delta Lake, and its keywords.

    The kind is detected from a catalog or a table name, a metadata.json, or a folder with a table's own log.
    ``--format`` overrides it.

    Args:
        typed: the options, from a parser with `add_arguments`.
        own: keywords that the command itself sets, and that take precedence.
    """
    keywords = {**loader_keywords(typed), **own}
    chosen = {name: getattr(typed, name) for name in SNAPSHOTS if hasattr(typed, name)}
    path = keywords.get("path")
    if (path is None) == ("table" not in chosen):
        raise ConfigError("name one table: PATH, or --table with the --catalog that has it")
    kind = _kind(keywords, chosen)
    if kind is None or kind not in _DATASETS:
        if chosen:
            raise ConfigError(
                f"{flag_of(next(iter(chosen)))} is for Iceberg and Delta Lake tables, but this is a table of plain "
                "files; pass --catalog or --format, or leave it out"
            )
        return StructuredDataset, keywords
    for name in ("path", "format"):
        keywords.pop(name, None)
    if path is not None and not isinstance(path, str):
        raise ConfigError(f"expected the path of one table, got {len(path)} paths; name one")
    name, said = _DATASETS[kind]
    return getattr(load(kind), name), keywords | said(path, chosen)


def _kind(keywords: Mapping[str, Any], chosen: Mapping[str, Any]) -> str | None:
    """Return the format that was named, or that the path shows; None for the format of its files."""
    named, path = keywords.get("format"), keywords.get("path")
    if "catalog" in chosen or "table" in chosen:
        if named not in (None, "iceberg"):
            raise ConfigError(f"--catalog and --table name an Iceberg table, got --format {named}; leave --format out")
        return "iceberg"
    if named is not None or not isinstance(path, str):
        return named
    if path.endswith(".metadata.json"):
        return "iceberg"
    return format_of_folder(path, keywords.get("storage_options"))


def _iceberg(path: str | None, chosen: Mapping[str, Any]) -> dict[str, Any]:
    if "catalog" in chosen and "table" not in chosen:
        return {**chosen, "table": path}
    if path is None:
        return dict(chosen)
    return {**chosen, "metadata_location": path}


def _delta(path: str | None, chosen: Mapping[str, Any]) -> dict[str, Any]:
    names = {"snapshot_id": "version", "as_of": "timestamp"}
    for name in chosen:
        if name not in names:
            raise ConfigError(f"{flag_of(name)} is for Iceberg tables, but this is a Delta Lake table; leave it out")
    return {"table_uri": path, **{names[name]: value for name, value in chosen.items()}}


_DATASETS: dict[str, tuple[str, Callable[[str | None, Mapping[str, Any]], dict[str, Any]]]] = {
    "iceberg": ("IcebergDataset", _iceberg),
    "delta": ("DeltaDataset", _delta),
}
"""By format: the class of its datasets, and what makes its arguments of the table and the snapshot that are named."""


def open_table(typed: argparse.Namespace, **own: Any) -> TableDataset:
    """Open the table that was named; see `asked_for`."""
    kind, keywords = asked_for(typed, **{"check_plan": False, **own})
    return kind(**keywords)


@contextmanager
def cluster_of(typed: argparse.Namespace) -> Iterator[RayCluster | None]:
    """Connect to the cluster that was asked for, if any."""
    if typed.engine is not None:
        with ray_cluster(typed.address) as cluster:
            yield cluster
    elif typed.address is not None:
        raise ConfigError("--address names a Ray cluster; also pass --engine ray, or leave it out")
    else:
        yield None
