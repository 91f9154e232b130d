"""What is fetched ahead, and what is cached of it, as a picklable value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch_table_loader.contracts import is_far
from torch_table_loader.fetch.disk_cache import DiskCache

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.options import LoaderOptions


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How remote files are fetched: how many compressed bytes ahead of decoding (0: none), and through which cache."""

    ahead_bytes: int
    cache: DiskCache | None = None

    @classmethod
    def of(cls, options: LoaderOptions) -> FetchSettings:
        """Build from the caller's options. Raises ConfigError if the cache's folder cannot be used."""
        remote = options.remote
        cache = None if remote.cache_dir is None else DiskCache(remote.cache_dir, remote.cache_bytes)
        return cls(remote.read_ahead_bytes, cache)

    def shared_by(self, threads: int) -> FetchSettings:
        """Return the settings of one of several threads that fetch side by side."""
        return replace(self, ahead_bytes=self.ahead_bytes // threads)

    def applies_to(self, storage: Storage) -> bool:
        """Return whether files of a storage are fetched ahead of decoding."""
        return self.ahead_bytes > 0 and is_far(storage)
