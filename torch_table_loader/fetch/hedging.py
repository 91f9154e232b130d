"""When to send a request again because it is much later than its peers, and how often that is allowed."""

from __future__ import annotations

import statistics
from collections import deque

from torch_table_loader.sizes import sizes

PEERS = 128
"""Requests that are remembered."""
LEAST_PEERS = 16
"""Number of requests below which none counts as late."""
REFRESH = 8
"""Requests after which the peers are evaluated again."""

LATE_SHARE = 0.95
"""A late request took longer than this share of its peers ..."""
LATE_FACTOR = 2.0
"""... and than this many times the median, and than the median and `Sizes.late_s`."""

BUDGET = 0.05
"""Extra requests for each that ended."""
ALLOWANCE = 4
"""Extra requests that may be sent together, if there were none for long."""


class HedgePolicy:
    """Decides when a request is late, from the most recent requests. Not thread-safe.

    A request takes a number of seconds, plus some for each byte. Both are estimated from the medians of the smaller and
    the larger half of the peers, so that a few late ones change nothing.
    """

    def __init__(self) -> None:
        self._peers: deque[tuple[int, float]] = deque(maxlen=PEERS)
        self._unseen = 0
        self._known = False
        self._fixed = self._each_byte = self._late = 0.0
        self._budget = float(ALLOWANCE)

    def ended(self, seconds: float, num_bytes: int) -> None:
        """Learn from a request whose bytes arrived `seconds` after it was sent the first time."""
        self._peers.append((num_bytes, seconds))
        self._budget = min(float(ALLOWANCE), self._budget + BUDGET)
        self._unseen += 1
        if len(self._peers) >= LEAST_PEERS and (not self._known or self._unseen >= REFRESH):
            self._look()

    def late_after(self, num_bytes: int) -> float | None:
        """Return after how many seconds a request counts as late; None while too few have ended."""
        if not self._known:
            return None
        usual = self._usual(num_bytes)
        return max(usual * LATE_FACTOR, usual + max(self._late, sizes().late_s))

    def take(self) -> bool:
        """Take one extra request out of the budget; return whether the budget allowed it."""
        if self._budget < 1:
            return False
        self._budget -= 1
        return True

    def _usual(self, num_bytes: int) -> float:
        return self._fixed + self._each_byte * num_bytes

    def _look(self) -> None:
        """Fit a line through the medians of both halves, and measure how late its peers were by it."""
        peers = sorted(self._peers)
        half = len(peers) // 2
        (small, short), (large, long) = (
            (statistics.median(num_bytes for num_bytes, _ in part), statistics.median(seconds for _, seconds in part))
            for part in (peers[:half], peers[half:])
        )
        self._each_byte = max(0.0, (long - short) / (large - small)) if large > small else 0.0
        # A negative latency would make small requests late at once.
        self._each_byte = min(self._each_byte, long / large)
        middle = statistics.median(seconds - self._each_byte * num_bytes for num_bytes, seconds in peers)
        self._fixed = max(0.0, middle)
        later = sorted(seconds - self._usual(num_bytes) for num_bytes, seconds in peers)
        self._late = later[int(LATE_SHARE * len(later))]
        self._known, self._unseen = True, 0
