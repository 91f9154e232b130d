"""Where the files of a table may be: in the table's own place, and in those that the caller named."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

from torch_table_loader.errors import ConfigError, ConfigTypeError, TableError
from torch_table_loader.scrubbing import shown_url
from torch_table_loader.source.address import HTTP_PROTOCOLS, LOCAL_PROTOCOLS, S3_PROTOCOLS

LOCAL = "file"

_FAMILIES = {
    **dict.fromkeys(LOCAL_PROTOCOLS, LOCAL),
    **dict.fromkeys(S3_PROTOCOLS, "s3"),
    **dict.fromkeys(("abfs", "abfss", "az", "wasb", "wasbs"), "abfs"),
    "gcs": "gs",
}
"""Protocols that are other names for a kind of store."""

_HEAD = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://(arn:[^/]*/[^/]*|[^/]*)")
_UNSOUND = re.compile(r"[?#\\\s\x00-\x1f\x7f]")
"""Characters that no host contains, and that could make two parsers see different hosts."""

_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True)
class Place:
    """A host, bucket or container of one kind of store.

    Args:
        family: the protocol, under one name for all its spellings.
        authority: the host, bucket or container, without login; empty for this machine.
    """

    family: str
    authority: str

    @property
    def is_local(self) -> bool:
        """Whether it is the local file system."""
        return self.family == LOCAL

    def __str__(self) -> str:
        """The place as a URL."""
        return f"{self.family}://{self.authority}"


@dataclass(frozen=True, slots=True)
class Area:
    """A whole place, or one of its folders.

    Args:
        folder: the folder, without a trailing slash; empty for the whole place.
    """

    place: Place
    folder: str = ""

    def has(self, place: Place, inner: str) -> bool:
        """Return whether a path in a place belongs to this area; a path with ".." does not belong to a folder."""
        if place != self.place:
            return False
        if not self.folder:
            return True
        steps = unquote(inner).replace("\\", "/").split("/")
        return inner.startswith(f"{self.folder}/") and ".." not in steps


@lru_cache(maxsize=4096)
def _place(protocol: str, authority: str) -> Place:
    family = _FAMILIES.get(protocol.lower(), protocol.lower())
    if family in (LOCAL, "memory"):
        return Place(family, "")
    if _UNSOUND.search(authority):
        return Place(family, authority)
    if family == "abfs":
        container, at, account = authority.partition("@")
        return Place(family, container + at + account.partition(".")[0])
    host = authority.rpartition("@")[2]
    if family in HTTP_PROTOCOLS:
        host = host.lower().removesuffix(_DEFAULT_PORTS[family])
    return Place(family, host)


def locate(path: str) -> tuple[Place, str]:
    """Return the place of a path or URL, and its path there, as the store's client will interpret them.

    >>> locate("s3a://key:secret@bucket/a/b"), locate("/a"), locate("HTTPS://Host:443/a?b")[0].authority
    ((Place(family='s3', authority='bucket'), '/a/b'), (Place(family='file', authority=''), '/a'), 'host')
    """
    match = _HEAD.match(path)
    if match is None or match[1].lower() in LOCAL_PROTOCOLS:
        return _place(LOCAL, ""), local_path(path)
    return _place(match[1], match[2]), path[match.end() :]


def local_path(path: str) -> str:
    """Return a path without "file:"; the rest is a path, whatever characters it contains."""
    protocol, colon, rest = path.partition(":")
    if not colon or protocol.lower() not in LOCAL_PROTOCOLS:
        return path
    if rest.startswith("///"):
        return "/" + rest.lstrip("/")
    return "".join(rest[2:].partition("/")[1:]) if rest.startswith("//") else rest


def read_areas(allow_locations: Sequence[str] | None) -> tuple[Area, ...]:
    """Check ``allow_locations``.

    Raises:
        ConfigError: an entry is neither a URL with a host nor a local path.

    >>> read_areas(["s3://bucket", "/mnt/lake/"])[1]
    Area(place=Place(family='file', authority=''), folder='/mnt/lake')
    """
    if allow_locations is None:
        return ()
    if isinstance(allow_locations, str) or not isinstance(allow_locations, Sequence):
        raise ConfigTypeError(
            f'allow_locations must be a list of URLs such as ["s3://bucket"], got {type(allow_locations).__name__}'
        )
    return tuple(_area(entry) for entry in allow_locations)


def _area(entry: str) -> Area:
    if not isinstance(entry, str):
        raise ConfigTypeError(f"allow_locations must hold strings, got {type(entry).__name__}")
    place, inner = locate(entry)
    sound = inner.startswith("/") if place.is_local else bool(place.authority) or place.family == "memory"
    if not sound or shown_url(entry) != entry or _UNSOUND.search(place.authority) or ".." in inner.split("/"):
        raise ConfigError(
            "allow_locations must hold URLs with a host or bucket and at most a folder, such as s3://bucket or "
            f"https://host/lake, or absolute local paths, without login or query; got {shown_url(entry)!r}"
        )
    return Area(place, inner.rstrip("/"))


def refusal(path: str, root: Place) -> TableError:
    """Return the error for a path that the caller did not allow."""
    place, inner = locate(path)
    allow = f"file://{inner.rpartition('/')[0] or '/'}" if place.is_local else shown_url(str(place))
    return TableError(
        f"the metadata of a table at {root} names {shown_url(path)!r}, which lies elsewhere and is not opened; if the "
        f"table is meant to have files there, pass allow_locations=[{allow!r}]"
    )


def areas_of(overrides: Iterable[tuple[str, str]]) -> tuple[Area, ...]:
    """Return the areas that a ``location_override`` maps to."""
    located = [locate(new) for _, new in overrides]
    return tuple(Area(place, inner.rpartition("/")[0]) for place, inner in located)
