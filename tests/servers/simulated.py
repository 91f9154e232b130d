"""A simulated store: a distribution of latencies, a line that connections share, and a cap for each connection."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch_table_loader.far.limit import Flight, InFlightLimit

MB = 1e6


@dataclass(frozen=True)
class Store:
    """Args: seconds to the first byte (the median), its lognormal sigma, and bytes a second of a connection and in all.

    `refuses_above`: requests in flight above which others are refused (503); `until`: the second at which that ends.
    """

    latency: float
    sigma: float = 0.0
    connection: float = 90 * MB
    total: float = 125 * MB
    refuses_above: int | None = None
    until: float = math.inf


class Limit(Protocol):
    def begin(self, num_bytes: int, now: float) -> Flight | None: ...
    def ended(self, flight: Flight, now: float) -> None: ...
    def failed(self, flight: Flight, now: float) -> None: ...


class Fixed:
    """A limit that never changes."""

    def __init__(self, most: int) -> None:
        self.most, self.count = most, 0

    def begin(self, num_bytes: int, now: float) -> Flight | None:
        if self.count >= self.most:
            return None
        self.count += 1
        return Flight(num_bytes, now)

    def ended(self, flight: Flight, now: float) -> None:
        self.count -= 1

    failed = ended


@dataclass
class Run:
    """What happened: the second at which each request ended and its bytes, and requests in flight over time."""

    ends: list[tuple[float, int]] = field(default_factory=list)
    flying: list[tuple[float, int]] = field(default_factory=list)
    windows: list[tuple[float, int]] = field(default_factory=list)
    refused: int = 0

    @property
    def seconds(self) -> float:
        return self.ends[-1][0]

    def rate(self, start: float, stop: float = math.inf) -> float:
        """Bytes a second that ended in a span of time."""
        stop = min(stop, self.seconds)
        return sum(num_bytes for at, num_bytes in self.ends if start < at <= stop) / (stop - start)

    def mean_flying(self, stop: float) -> float:
        """Mean number of requests in flight until a second."""
        area = 0.0
        for (at, count), (after, _) in zip(self.flying, [*self.flying[1:], (stop, 0)], strict=True):
            area += count * max(0.0, min(after, stop) - at)
        return area / stop


def simulate(store: Store, sizes: Sequence[int], limit: Limit, seed: int = 0) -> Run:
    """Request all sizes in order, with as many in flight as the limit allows."""
    return _Simulation(store, list(reversed(sizes)), limit, random.Random(seed)).run()


class _Simulation:
    """Connections that transfer get equal shares, so that one number says how many bytes each got since the start."""

    def __init__(self, store: Store, waiting: list[int], limit: Limit, rng: random.Random) -> None:
        self.store, self.waiting, self.limit, self.rng = store, waiting, limit, rng
        self.now = self.served = 0.0
        self.latent: list[tuple[float, int, Flight, bool]] = []
        self.moving: list[tuple[float, int, Flight]] = []
        self.result = Run()
        self.serial = self.taken = 0

    def run(self) -> Run:
        self.fill()
        while self.latent or self.moving:
            self.step()
            self.fill()
        return self.result

    def fill(self) -> None:
        while self.waiting and (flight := self.limit.begin(self.waiting[-1], self.now)) is not None:
            self.waiting.pop()
            self.serial += 1
            refused = (
                self.store.refuses_above is not None
                and self.now < self.store.until
                and self.taken >= self.store.refuses_above
            )
            self.taken += not refused
            late = self.store.latency * math.exp(self.rng.gauss(0, self.store.sigma))
            heapq.heappush(self.latent, (self.now + late, self.serial, flight, refused))
        self.result.flying.append((self.now, len(self.latent) + len(self.moving)))
        if isinstance(self.limit, InFlightLimit):
            self.result.windows.append((self.now, self.limit.window))

    def step(self) -> None:
        rate = min(self.store.connection, self.store.total / max(1, len(self.moving)))
        moved = self.now + (self.moving[0][0] - self.served) / rate if self.moving else math.inf
        first = self.latent[0][0] if self.latent else math.inf
        then = max(self.now, min(moved, first))
        self.served += (then - self.now) * rate if self.moving else 0
        self.now = then
        if first <= moved:
            _, serial, flight, refused = heapq.heappop(self.latent)
            if refused:
                self.result.refused += 1
                self.limit.failed(flight, self.now)
                self.waiting.append(flight.num_bytes)
            else:
                heapq.heappush(self.moving, (self.served + flight.num_bytes, serial, flight))
        else:
            _, _, flight = heapq.heappop(self.moving)
            self.taken -= 1
            self.result.ends.append((self.now, flight.num_bytes))
            self.limit.ended(flight, self.now)


def best_fixed(store: Store, sizes: Sequence[int], rate: Callable[[Run], float], seed: int = 0) -> float:
    """Return the best rate that any fixed number of requests in flight gives, by a measure of a run."""
    return max(rate(simulate(store, sizes, Fixed(most), seed)) for most in (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256))
