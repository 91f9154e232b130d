"""Recognizes folders of other table formats, whose files are not simply their rows."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any

from torch_table_loader.errors import AccessRefusedError, ConfigError
from torch_table_loader.source.address import HTTP_PROTOCOLS, parse_address
from torch_table_loader.source.clients import Found
from torch_table_loader.source.hive import hive_root
from torch_table_loader.source.storage import FileStorage, open_storage

_ICEBERG = re.compile(r"(?P<table>(?:.*/)?)metadata/[^/]*\.metadata\.json")
_DELTA = re.compile(r"(?P<table>(?:.*/)?)_delta_log(?:/.*)?")
_HUDI = re.compile(r"(?P<table>(?:.*/)?)(?:\.hoodie(?:/.*)?|\.hoodie_partition_metadata[^/]*)")

_MARKS = ("metadata/", "_delta_log", ".hoodie")
"""Text that every pattern requires: most names contain none of it."""

_VERSION = re.compile(r"v?(\d+)")


def look_around(
    pool: Executor, storage: FileStorage, roots: Iterable[str], walked: Iterable[str]
) -> list[Future[list[Found]]]:
    """Look for metadata of other table formats where no listing will see it, without waiting.

    A path may be a table's ``data`` folder, a partition, or a file. So this looks into the table's folder and the one
    above it, which costs a few requests for a table, not one for each file. What it finds is for
    `refuse_table_formats`, in addition to the listing.

    Args:
        roots: the given directories, or the directories of the given files.
        walked: those of them that are listed with everything below.
    """
    if storage.protocol in HTTP_PROTOCOLS:
        return []
    near = {place for root in roots for place in _above(root)} - set(walked)
    return [
        pool.submit(look, storage, f"{folder}/{name}")
        for folder in sorted(near)
        for name, look in (("_delta_log", _folder), (".hoodie", _folder), ("metadata", _inside))
    ]


def refuse_table_formats(storage: FileStorage, seen: Iterable[Found], files: Collection[str]) -> None:
    """Raise if the files belong to a table of Iceberg, Delta Lake or Hudi.

    The metadata of such a table says which files belong to it, and which of their rows are deleted. It is among what
    the listing saw, including hidden files, and what `look_around` found.
    """
    marks = [entry for entry in seen if any(mark in entry.path for mark in _MARKS)]
    for pattern, explain in ((_ICEBERG, _iceberg), (_DELTA, _delta), (_HUDI, _hudi)):
        matches = ((pattern.fullmatch(entry.path), entry) for entry in marks)
        tables: dict[str, list[Found]] = {}
        for match, entry in matches:
            if match is not None:
                tables.setdefault(match["table"], []).append(entry)
        for table, found in sorted(tables.items()):
            if any(file.startswith(table) for file in files):
                raise ConfigError(
                    f"{explain(storage, storage.shown(table.rstrip('/')), found)}; "
                    "source=pyarrow.dataset.dataset(path) reads the files into memory, deleted rows included"
                )


def format_of_folder(path: str, storage_options: Mapping[str, Any] | None) -> str | None:
    """Return the table format that a folder declares: "delta", "iceberg", or None if it declares none.

    An Iceberg table declares itself with ``metadata/version-hint.text``, which tables without a catalog have.
    """
    protocol = parse_address(path).protocol
    if protocol in HTTP_PROTOCOLS or any(character in path for character in "*?["):
        return None
    storage, root = open_storage(path, storage_options)
    root = root.rstrip("/")
    try:
        if _folder(storage, f"{root}/_delta_log"):
            return "delta"
        with suppress(AccessRefusedError):  # the caller may be allowed to read only the files
            hint = storage.probe(f"{root}/metadata/version-hint.text")
            return None if hint is None or hint.is_dir else "iceberg"
    finally:
        storage.close()
    return None


def _above(root: str) -> Iterator[str]:
    """Yield the folder of the partitions, and the one above it, which contains an Iceberg table's ``data``."""
    base = root.rstrip("/")[: len(root.rstrip("/")) - len(hive_root(root)) or None].rstrip("/")
    yield base
    above, slash, _ = base.rpartition("/")
    if slash and (above or base.startswith("/")):
        yield above


def _folder(storage: FileStorage, path: str) -> list[Found]:
    try:
        found = storage.stat(f"{path}/")
        return [Found(path, None)] if found is not None and found.is_dir else []
    except AccessRefusedError:  # the caller may be allowed to read only the table
        return []


def _inside(storage: FileStorage, path: str) -> list[Found]:
    try:
        found = storage.probe(f"{path}/")
        return storage.walk(path, recursive=False) if found is not None and found.is_dir else []
    except AccessRefusedError:
        return []


def _iceberg(storage: FileStorage, table: str, found: list[Found]) -> str:
    newest = storage.shown(max(found, key=_age).path)
    return (
        f"{table} is an Iceberg table, and its files alone are not its rows; read it with "
        f'IcebergDataset.create_dataloader(metadata_location="{newest}"), or with table= and catalog_config='
    )


def _delta(_: FileStorage, table: str, __: list[Found]) -> str:
    return (
        f"{table} is a Delta Lake table, and its files alone are not its rows; read it with "
        f'DeltaDataset.create_dataloader("{table}")'
    )


def _hudi(_: FileStorage, table: str, __: list[Found]) -> str:
    return (
        f"{table} belongs to a Hudi table, and its files alone are not its rows; write its current rows out as Parquet "
        "with an engine that reads Hudi, and read those"
    )


def _age(metadata: Found) -> tuple[int, int, str]:
    """Return a sort key for metadata files: the number that their names begin with, then the time."""
    number = _VERSION.match(metadata.path.rpartition("/")[2])
    written = metadata.version.mtime_ns if metadata.version is not None else None
    return int(number[1]) if number else -1, written or 0, metadata.path
