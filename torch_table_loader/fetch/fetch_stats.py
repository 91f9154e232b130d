"""What was fetched, counted while it runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(slots=True)
class FetchStats:
    """What was fetched from an object store for an epoch; all 0 where the files are on this machine.

    Args:
        num_bytes: compressed bytes that came from the store.
        requests: that the store answered, hedges included.
        retries: requests that were sent again, since the store did not serve them.
        hedges: requests that were sent a second time, since they were late.
        unplanned: requests for bytes that were not fetched ahead.
        cached_bytes: compressed bytes that came from the disk cache.
        seconds_waiting: time that decoding waited for bytes, added up over workers.
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
        """Return what all have fetched."""
        total = cls()
        total.become_sum(parts)
        return total

    def become_sum(self, parts: Iterable[FetchStats]) -> None:
        """Take on the sums of others."""
        parts = list(parts)
        for field in fields(self):
            setattr(self, field.name, sum(getattr(part, field.name) for part in parts))
