"""Statistics of fetching, counted as it happens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(slots=True)
class FetchStats:
    """What was fetched from an object store for an epoch; all 0 if the files are on this machine.

    Args:
        num_bytes: compressed bytes that came from the store.
        requests: requests that the store answered, including hedges.
        retries: requests that were sent again because they failed.
        hedges: requests that were sent a second time because they were late.
        unplanned: requests for bytes that were not fetched ahead.
        cached_bytes: compressed bytes that came from the disk cache.
        seconds_waiting: time that decoding waited for bytes, summed over workers.
    """

    num_bytes: int = 0
    requests: int = 0
    retries: int = 0
    hedges: int = 0
    unplanned: int = 0
    cached_bytes: int = 0
    seconds_waiting: float = 0.0

    @classmethod
    def sum_of(cls, parts: Iterable[FetchStats]) -> FetchStats:
        """Return the sum of several statistics."""
        total = cls()
        total.become_sum(parts)
        return total

    def become_sum(self, parts: Iterable[FetchStats]) -> None:
        """Set this object to the sum of several statistics."""
        parts = list(parts)
        for field in fields(self):
            setattr(self, field.name, sum(getattr(part, field.name) for part in parts))
