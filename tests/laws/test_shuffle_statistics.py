"""The order of row mode looks random; orders known not to be random are detected by the same tests."""

from __future__ import annotations

import numpy as np
import pytest

from tests.effort import daily
from tests.laws.shuffle_statistics import LEVEL, Maker, battery, every_small_order, parity, rejected, single
from tests.laws.shuffles import feistel_of, fisher_yates, lcg, ours, shuffle_buffer, sum_of_seed_and_epoch

SIZES = [65_536, 4_096, 10_000, 50_000, 100_000, 1_000_000, 4_000_000]
"""The network begins at 4,096."""


def test_it_is_a_bijection_for_every_small_n_and_around_powers_of_two() -> None:
    for n in [*range(2_001), *(2**k + d for k in range(11, 21) for d in (-1, 0, 1))]:
        assert np.array_equal(np.bincount(ours(n, 1, 2), minlength=n), np.ones(n)), n


@pytest.mark.slow
def test_every_statistic_is_explained_by_chance() -> None:
    found = [*battery(ours, SIZES), *every_small_order(ours), *parity(ours, 65_537, keys=120), *parity(ours, 50)]
    found += [*battery(ours, [4_096]), *parity(ours, 4_097, keys=120)]
    assert len(found) > 100
    assert rejected(found) == []
    values = np.sort([p for _, p in found])
    assert np.abs(values - (np.arange(len(values)) + 0.5) / len(values)).max() < 0.2, "p-values are about uniform"


def test_the_statistics_are_right_for_fisher_and_yates() -> None:
    assert rejected(battery(fisher_yates, [65_536, 70_001])) == []


NOT_CHANCE: list[tuple[str, Maker]] = [
    ("Feistel with 3 rounds", feistel_of(3)),
    ("Feistel with 4 rounds", feistel_of(4)),
    ("LCG", lcg),
    ("seed + epoch", sum_of_seed_and_epoch),
    ("shuffle buffer", shuffle_buffer),
]


@pytest.mark.parametrize(("name", "make"), NOT_CHANCE, ids=[name for name, _ in NOT_CHANCE])
@daily(2)
def test_what_is_not_chance_is_rejected_by_a_test_other_than_parity(name: str, make: Maker) -> None:
    found = battery(make, [65_536])
    assert not any("parity" in entry for entry, _ in found)
    assert rejected(found, LEVEL) != []


def test_a_shuffle_of_splits_is_rejected() -> None:
    splits = ours(64, 0, 0)
    order = (splits[:, None] * 1024 + np.arange(1024)).reshape(-1)
    assert rejected(list(single(order))) != []
