"""What was made last, by what decides it, so that it need not be made again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Newest(Generic[K, V]):
    """The values that were made last, by key.

    Args:
        most: so many are kept.
    """

    def __init__(self, most: int) -> None:
        """Keep none yet."""
        self._most = most
        self.by_key: dict[K, V] = {}
        """Those that are kept."""

    def of(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key, made if it is not kept; others may be made, and kept, for that."""
        if (known := self.by_key.get(key)) is not None:
            return known
        return self.add(key, make())

    def add(self, key: K, made: V) -> V:
        """Keep a value, and no longer those that were made first; return it."""
        self.by_key[key] = made
        for old in list(self.by_key)[: -self._most]:
            self.by_key.pop(old, None)  # another thread may have taken it out
        return made
