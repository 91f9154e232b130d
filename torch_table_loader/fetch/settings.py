"""What is fetched ahead, and what is kept of it: a value that pickles."""

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
    """How files that are far away are fetched.

    Args:
        ahead_bytes: compressed bytes that a process fetches ahead of decoding at most; 0 fetches nothing ahead.
        cache: ranges on the local disk; or None.
    """

    ahead_bytes: int
    cache: DiskCache | None = None

    @classmethod
    def of(cls, options: LoaderOptions) -> FetchSettings:
        """Return what the caller asked for. Raises ConfigError where the cache's folder cannot be used."""
        cache = None if options.cache_dir is None else DiskCache(options.cache_dir, options.target_cache_bytes)
        return cls(options.target_read_ahead_bytes, cache)

    def shared_by(self, threads: int) -> FetchSettings:
        """Return those of one of several that fetch side by side."""
        return replace(self, ahead_bytes=self.ahead_bytes // threads)

    def applies_to(self, storage: Storage) -> bool:
        """Return whether files of a storage are fetched ahead of decoding."""
        return self.ahead_bytes > 0 and is_far(storage)
