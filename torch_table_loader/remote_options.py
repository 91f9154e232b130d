"""How files of stores are read: the part of ``storage_options`` that is the same for every store."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.scrubbing import shown_url
from torch_table_loader.units import parse_bytes, seconds, whole

DEFAULT_RETRY_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """How requests are repeated, what is fetched ahead and kept on a local disk, and whether checksums are compared.

    Args:
        retry_seconds: how long to retry a request that the store does not serve; 0: one try. Outages of stores, and
            restarts of those that one runs oneself, are mostly over after the default.
        read_ahead_bytes: the most compressed bytes that each process fetches ahead of decoding; 0 fetches nothing
            ahead. The default is enough for a line of 10 Gbit/s over 100 ms.
        cache_dir: a directory of this machine that keeps what was fetched, for all its ranks; None keeps nothing.
        cache_bytes: the most bytes that are kept there; the least recently used are removed first.
        verify_checksums: refuse pages of Parquet files, and files of row stores, that differ from their checksums;
            "all" compares row stores whole whenever they are opened.
    """

    retry_seconds: float = DEFAULT_RETRY_SECONDS
    read_ahead_bytes: int = 128 << 20
    cache_dir: str | None = None
    cache_bytes: int = 64 << 30
    verify_checksums: bool | Literal["all"] = True

    @classmethod
    def of(cls, storage_options: Mapping[str, Any] | None) -> RemoteOptions:
        """Read them from the caller's options, in which sizes may be text.

        >>> RemoteOptions.of({"key": "K", "cache_bytes": "1GiB", "retry_seconds": 5}).cache_bytes
        1073741824
        """
        if storage_options is not None and not isinstance(storage_options, Mapping):
            raise ConfigTypeError(
                f"storage_options must be a mapping of names to values, got {type(storage_options).__name__}"
            )
        given = anywhere(storage_options)
        if "retry_seconds" in given:
            given["retry_seconds"] = seconds(_called("retry_seconds"), given["retry_seconds"])
        for name in ("read_ahead_bytes", "cache_bytes"):
            if name in given and (name == "cache_bytes" or whole(given[name]) != 0):
                given[name] = parse_bytes(given[name], _called(name))
        if given.get("cache_dir") is not None:
            given["cache_dir"] = _directory(given["cache_dir"])
        verify = given.get("verify_checksums", True)
        if not isinstance(verify, bool) and verify != "all":
            raise ConfigTypeError(f'{_called("verify_checksums")} must be True or False, or "all", got {verify!r}')
        return cls(**given)


OWN = frozenset(entry.name for entry in fields(RemoteOptions))


def anywhere(storage_options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options that hold for any store.

    >>> anywhere({"key": "K", "retry_seconds": 5})
    {'retry_seconds': 5}
    """
    return {name: value for name, value in (storage_options or {}).items() if name in OWN}


def of_the_store(storage_options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options that are for one store: its login, its endpoint and the like.

    >>> of_the_store({"key": "K", "retry_seconds": 5})
    {'key': 'K'}
    """
    return {name: value for name, value in (storage_options or {}).items() if name not in OWN}


def _called(name: str) -> str:
    return f"storage_options[{name!r}]"


def _directory(given: Any) -> str:
    if not isinstance(given, str | os.PathLike) or "://" in str(given):
        shown = repr(shown_url(given) if isinstance(given, str) else given)
        raise ConfigTypeError(f"{_called('cache_dir')} must be a directory of this machine, got {shown}")
    if sys.platform == "win32":
        raise ConfigError(f"{_called('cache_dir')} needs locks of files that Windows does not have; leave it out")
    return os.fspath(given)
