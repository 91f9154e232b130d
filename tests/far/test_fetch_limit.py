"""How much is in flight: nearly as fast as the best fixed number, without slowing the first requests."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.servers.simulated import MB, Fixed, Limit, Store, simulate
from torch_table_loader.far.limit import LEAST_WEIGHT, MOST_REQUESTS, WINDOWS, Flight, InFlightLimit

MIB = 1024 * 1024
EPOCH = 132 * MB
TAIL = 0.99
"""Sigma of a lognormal distribution whose p99 is 10 times its median."""

STORES = {
    "15 ms": Store(0.015),
    "40 ms": Store(0.04),
    "100 ms": Store(0.1),
    "15 ms with a tail": Store(0.015, TAIL),
    "40 ms with a tail": Store(0.04, TAIL),
    "10 Gbit/s": Store(0.015, 0.2, total=1250 * MB),
    "near and fast": Store(0.0005, 0.3, 1000 * MB, 2000 * MB),
}
SIZES = {"8 MiB": 8 * MIB, "1 MiB": MIB, "190 kB": 190_000}
FIXED = (2, 4, 8, 16, 32, 64, 128, 256)


def seconds(store: Store, sizes: list[int], limit: type[InFlightLimit] | int) -> float:
    """Mean over a few draws of the latency."""
    made: list[Limit] = [Fixed(limit) if isinstance(limit, int) else limit() for _ in range(2)]
    return sum(simulate(store, sizes, each, seed).seconds for seed, each in enumerate(made)) / 2


def share_of_the_best(store: Store, sizes: list[int]) -> float:
    return min(seconds(store, sizes, most) for most in FIXED) / seconds(store, sizes, InFlightLimit)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("store", STORES)
@daily(3)
def test_a_long_epoch_is_as_fast_as_with_the_best_fixed_number(store: str, size: str) -> None:
    num_bytes = EPOCH * (100 if STORES[store].total > 1000 * MB and SIZES[size] > 190_000 else 10)
    sizes = [SIZES[size]] * int(num_bytes / SIZES[size])
    assert share_of_the_best(STORES[store], sizes) >= 0.9


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("store", [name for name, store in STORES.items() if store.total == 125 * MB])
@daily(5)
def test_starting_small_costs_a_short_epoch_little(store: str, size: str) -> None:
    """At 100 ms a request of 8 MiB takes a fifth of the epoch: two at first cost a fifth of the line."""
    sizes = [SIZES[size]] * int(EPOCH / SIZES[size])
    assert share_of_the_best(STORES[store], sizes) >= (0.8 if STORES[store].latency < 0.1 else 0.77)


@pytest.mark.parametrize("latency", [0.015, 0.1])
def test_the_first_large_requests_share_the_line_with_one_other(latency: float) -> None:
    run = simulate(Store(latency), [8 * MIB] * 16, InFlightLimit())
    first = run.ends[0][0]
    assert run.mean_flying(first) <= 2
    assert first <= latency + 2 * 8 * MIB / (125 * MB) + 0.001


@pytest.mark.parametrize("latency", [0.015, 0.04, 0.1])
def test_no_more_requests_are_in_flight_than_the_line_carries(latency: float) -> None:
    """Requests of 8 MiB fill the line in pairs or threes; a few times as many is the most that is ever tried."""
    run = simulate(Store(latency), [8 * MIB] * 500, InFlightLimit())
    late = [count for at, count in run.flying if at > run.seconds / 2]
    assert max(late) <= 24


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("refuses_above", [0, 4])
def test_it_recovers_after_refusals(size: str, refuses_above: int) -> None:
    sizes = [SIZES[size]] * int(8 * EPOCH / SIZES[size])
    run = simulate(Store(0.04, 0.3, refuses_above=refuses_above, until=3.0), sizes, InFlightLimit())
    assert run.refused
    assert run.rate(5.0, 8.0) >= 0.8 * 125 * MB


def test_refusals_halve_the_window_once_for_all_requests_in_flight() -> None:
    limit = InFlightLimit()
    flights = [limit.begin(1, 0.0) for _ in range(16)]
    window = limit.window
    for flight in flights:
        assert flight is not None
        limit.failed(flight, 1.0)
    assert limit.window == window // 2
    assert limit.in_flight == 0


def test_a_round_that_never_filled_the_window_is_ignored() -> None:
    limit = InFlightLimit()
    for second in range(100):
        flight = limit.begin(8 * MIB, float(second))
        assert flight is not None
        limit.ended(flight, second + 0.5)
    assert limit.window == InFlightLimit().window


Deeds = st.lists(
    st.tuples(st.sampled_from(["begin", "begin", "ended", "failed", "cancelled"]), st.integers(1, 64 * MIB))
)


@settings(max_examples=examples(100))
@given(Deeds, st.integers(0, 5))
def test_the_window_stays_within_bounds_and_always_allows_one_request(deeds: list[tuple[str, int]], step: int) -> None:
    limit, flying, now = InFlightLimit(), list[Flight](), 0.0
    for deed, number in deeds * 20:
        now += step * number / MB
        if deed == "begin":
            flight = limit.begin(number, now)
            assert flight is not None or flying
            flying += [flight] if flight is not None else []
        elif flying:
            flight = flying.pop(number % len(flying))
            limit.cancelled(flight) if deed == "cancelled" else getattr(limit, deed)(flight, now)
        assert limit.in_flight == len(flying) <= MOST_REQUESTS
        assert limit.window in WINDOWS
        if len(flying) > 1:
            assert sum(flight.weight for flight in flying[:-1]) <= WINDOWS[-1]


def test_small_requests_fill_the_line_as_well() -> None:
    limit = InFlightLimit()
    while limit.begin(4096, 0.0) is not None:
        pass
    assert limit.in_flight == limit.window // LEAST_WEIGHT == 64
