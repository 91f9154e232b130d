"""Files that are known without listing, and the lists of names that `save_files` writes and ``files=path`` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from torch_table_loader.errors import ConfigError
from torch_table_loader.source.storage import open_storage

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile

_VERSION = 1


@dataclass(frozen=True, slots=True)
class FileSource:
    """A given list of files (implements `contracts.Source`)."""

    storage: Storage
    files: tuple[DataFile, ...]
    partition_schema: pa.Schema
    unread_keys: tuple[str, ...] = ()


def write_files(path: str, files: Sequence[DataFile], storage_options: Mapping[str, Any] | None) -> None:
    """Write the names of files, relative to the table's root and in its order, with their sizes for human readers."""
    storage, place = open_storage(path, storage_options)
    listed = [{"name": file.name, "num_bytes": file.version.num_bytes} for file in files]
    storage.write_bytes(place, json.dumps({"version": _VERSION, "files": listed}, indent=1).encode())


def read_files(path: str, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Read the names that `write_files` wrote.

    Raises:
        ConfigError: the file is not such a list.
        TableError: the file does not exist.
    """
    storage, place = open_storage(path, storage_options)
    try:
        content = json.loads(storage.read_bytes(place))
        if content["version"] != _VERSION:
            raise ConfigError(f"files={storage.shown(place)!r} has version {content['version']!r}, expected {_VERSION}")
        return [entry["name"] for entry in content["files"]]
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"files={storage.shown(place)!r} must be a list that dataset.save_files(path) wrote; pass names as a list"
        ) from error
