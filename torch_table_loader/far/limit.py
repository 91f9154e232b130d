"""How much may be in flight to one store, and when a request is sent again.

In flight is the least that reaches nearly the best throughput. A request that is much later than its peers is sent
again, within an allowance.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from torch_table_loader.sizes import sizes

MIB = 1024 * 1024
LEAST_WEIGHT = MIB // 4
"""A smaller request counts as this many bytes: its cost is its latency, not its bytes."""

WINDOWS = tuple(size * MIB for k in range(3, 11) for size in (1 << k, 3 << (k - 1)))
"""The sizes that the window can have: 8 MiB, 12, 16, 24, 32, 48, ... 1.5 GiB."""
FIRST = 2
"""The initial window: two requests of 8 MiB, or 64 small ones."""

MOST_REQUESTS = 256

CLIMB_GAIN = 1.1
"""During the climb, throughput must grow by this factor for each step of the window; a doubling is two steps."""
ENOUGH = 0.96
"""The smallest window is taken that reaches this share of the best throughput."""
ROUNDS_BETWEEN_PROBES = 8
PATIENCE = 2
"""Rounds without growth that end the climb: one may be the tail of the latency."""

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


class Flight(NamedTuple):
    """A request in flight, and when it began, in seconds."""

    num_bytes: int
    began: float

    @property
    def weight(self) -> int:
        """Bytes that it occupies in the window."""
        return max(self.num_bytes, LEAST_WEIGHT)


class InFlightLimit:
    """A window of bytes for one store, which adapts to latency and bandwidth. Not thread-safe.

    A round is as many requests as are in flight at once, all begun under one window. By Little's law, their seconds and
    bytes give the throughput of the window, whatever the latency and the sizes of requests: throughput is requests in
    flight × bytes of a request / seconds of a request. The window doubles while that improves throughput. After that it
    is the smallest with nearly the best throughput, and every few rounds one of its neighbors is tried. Rounds in which
    the window was never full are ignored.
    """

    def __init__(self) -> None:
        self._level = FIRST
        self._rates: dict[int, float] = {}
        self._step = 2
        self._misses = 0
        self._rounds = 0
        self._count = 0
        self._weight = 0
        self._peak = 0
        self._new_round(float("-inf"))

    def heir(self) -> InFlightLimit:
        """Return a successor with the same knowledge; it also starts small, so that the first bytes arrive soon."""
        other = InFlightLimit()
        other._rates, other._step = dict(self._rates), self._step
        return other

    @property
    def window(self) -> int:
        """Bytes that may be in flight; a small request counts as `LEAST_WEIGHT`."""
        return WINDOWS[self._level]

    @property
    def in_flight(self) -> int:
        """Requests in flight."""
        return self._count

    def begin(self, num_bytes: int, now: float) -> Flight | None:
        """Begin a request if the window allows it, at a time in seconds; a single request is always allowed.

        Returns:
            The argument for exactly one later call of `ended`, `failed` or `cancelled`; None if it must wait.
        """
        flight = Flight(num_bytes, now)
        if self._count and (self._weight + flight.weight > self.window or self._count >= MOST_REQUESTS):
            self._full = True
            return None
        self._count += 1
        self._weight += flight.weight
        self._peak = max(self._peak, self._count)
        return flight

    def ended(self, flight: Flight, now: float) -> None:
        """Learn from a request whose bytes arrived."""
        self.cancelled(flight)
        if flight.began < self._since:
            return
        self._ended += 1
        self._seconds += now - flight.began
        self._moved += flight.num_bytes
        if self._ended >= (1 if self._step else 2) * self._peak:
            before = self._level
            if self._full and self._seconds > 0:
                self._learn(self._peak * self._moved / self._seconds)
            # Slow requests of a round end in the next: they count as long as the window stays the same.
            if self._level == before:
                now = self._since
            self._new_round(now)

    def failed(self, flight: Flight, now: float) -> None:
        """Halve the window, because the store refused a request; once for all requests in flight at the time."""
        self.cancelled(flight)
        if flight.began < self._since:
            return
        self._level = max(0, self._level - 2)
        self._rates = {level: rate for level, rate in self._rates.items() if level < self._level}
        self._step, self._misses, self._rounds = 1, 0, 0
        self._new_round(now)

    def cancelled(self, flight: Flight) -> None:
        """Forget a request that nobody waits for."""
        self._count -= 1
        self._weight -= flight.weight

    def _new_round(self, now: float) -> None:
        self._since = now
        self._full = False
        self._peak = self._count
        self._ended = 0
        self._seconds = 0.0
        self._moved = 0

    def _learn(self, rate: float) -> None:
        """Choose the window of the next round from the throughput of this one."""
        known = self._rates.get(self._level)
        self._rates[self._level] = rate
        if known is not None:
            self._rates[self._level] = (known + rate) / 2
        if self._step and self._climbs(rate):
            self._level += self._step
            return
        self._step = 0
        self._rounds += 1
        self._level = self._best()
        if self._rounds % ROUNDS_BETWEEN_PROBES == 0:
            if self._rounds % (2 * ROUNDS_BETWEEN_PROBES) or self._level == 0:
                self._level = min(self._level + 1, len(WINDOWS) - 1)
            else:
                self._level -= 1

    def _climbs(self, rate: float) -> bool:
        before = self._rates.get(self._level - self._step)
        self._misses += 1
        if before is None or rate >= CLIMB_GAIN**self._step * before:
            self._misses = 0
        return self._misses < PATIENCE and self._level + self._step < len(WINDOWS)

    def _best(self) -> int:
        enough = ENOUGH * max(self._rates.values())
        return min(level for level, rate in self._rates.items() if rate >= enough)


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
        import statistics

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
