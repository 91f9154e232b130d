"""Tables in a folder without a catalog: which metadata file is the newest, as in Hadoop tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_table_loader.errors import ConfigError, MissingFileError, TableError
from torch_table_loader.scrubbing import shown_url
from torch_table_loader.source.table_storage import read_whole

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage

_NAMES = ("v{}.metadata.json", "v{}.gz.metadata.json", "v{}.metadata.json.gz")
"""Possible names of a version's file; Iceberg used the last one before the one above."""

_MOST_DIGITS = 18


def is_folder(location: str) -> bool:
    """Return whether a location is a table's folder rather than a metadata file.

    >>> is_folder("s3://b/t"), is_folder("/t/metadata/v3.metadata.json.gz")
    (True, False)
    """
    return ".json" not in location.rstrip("/").rpartition("/")[2]


def hint_of(folder: str) -> str:
    """Return the path of the version hint in a table's folder.

    >>> hint_of("/lake/t/")
    '/lake/t/metadata/version-hint.text'
    """
    return f"{folder.rstrip('/')}/metadata/version-hint.text"


def newest_metadata(storage: Storage, folder: str) -> str:
    """Return the newest metadata file of a folder.

    A writer commits by creating the file of the next version, and updates the hint afterwards. The hint may therefore
    be old, so later versions are looked up one by one, as Iceberg's own reader does.

    Raises:
        ConfigError: there is no hint.
        TableError: the hint names no existing metadata file.
    """
    hint = hint_of(folder)
    try:
        text = read_whole(storage, hint).decode("ascii", "replace").strip()
    except MissingFileError as error:
        raise ConfigError(
            f"metadata_location must be a metadata.json, or a folder that holds metadata/version-hint.text, and "
            f"{shown_url(folder)} is neither; pass the path of the newest metadata file, or the table's catalog"
        ) from error
    above = hint.rpartition("/")[0]
    if not text.isdecimal():
        name = text if text.endswith(".json") else f"{text}.metadata.json"
        if "/" in name or not _is_there(storage, f"{above}/{name}"):
            raise _wrong(hint, text)
        return f"{above}/{name}"
    if len(text) > _MOST_DIGITS or (found := _version(storage, above, int(text))) is None:
        raise _wrong(hint, text)
    number = int(text)
    while (later := _version(storage, above, number + 1)) is not None:
        found, number = later, number + 1
    return found


def _version(storage: Storage, above: str, number: int) -> str | None:
    return next((path for name in _NAMES if _is_there(storage, path := f"{above}/{name.format(number)}")), None)


def _is_there(storage: Storage, path: str) -> bool:
    try:
        storage.version(path)
    except MissingFileError:
        return False
    return True


def _wrong(hint: str, text: str) -> TableError:
    return TableError(
        f"{shown_url(hint)} must name a version whose metadata file is beside it, got {text[:40]!r}; restore that "
        "file, or pass the path of the newest metadata file as metadata_location="
    )
