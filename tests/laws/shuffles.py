"""Ways to shuffle: ours, a good one to compare with, and poor ones that the statistics must find."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torch_table_loader.extend import Permutation, derive_key
from torch_table_loader.planning import permutation

if TYPE_CHECKING:
    from tests.laws.shuffle_statistics import Ints, Maker


def ours(n: int, seed: int, epoch: int) -> Ints:
    return Permutation(n, derive_key(seed, epoch, "rows")).slice(0, n)


def fisher_yates(n: int, seed: int, epoch: int) -> Ints:
    return np.random.default_rng([seed & 0xFFFF, epoch]).permutation(n)


def feistel_of(rounds: int) -> Maker:
    """Our network with fewer rounds; parity is restored in it as in ours."""

    def make(n: int, seed: int, epoch: int) -> Ints:
        key = derive_key(seed, epoch, "rows")
        network = permutation._Feistel(n, key)
        network._keys = network._keys[:rounds]
        network._landings = None  # numbers beyond n walk, as they did before landings were kept
        return network.forward(np.arange(n, dtype=np.int64))

    return make


def lcg(n: int, seed: int, epoch: int) -> Ints:
    """A linear congruential generator of full period, below n."""
    modulus = 1 << (n - 1).bit_length()
    start = hash((seed, epoch)) % modulus
    numbers = (np.arange(modulus, dtype=np.int64) * 1_664_525 + start) % modulus
    return numbers[numbers < n]


def sum_of_seed_and_epoch(n: int, seed: int, epoch: int) -> Ints:
    return ours(n, seed + epoch, 0)


def shuffle_buffer(n: int, seed: int, epoch: int, size: int = 10_000) -> Ints:
    """Draw from a buffer that is filled up in order."""
    rng = np.random.default_rng([seed & 0xFFFF, epoch])
    held, out = list(range(min(size, n))), []
    picks = rng.integers(0, len(held), max(0, n - len(held))).tolist()
    for row, pick in enumerate(picks, start=len(held)):
        out.append(held[pick])
        held[pick] = row
    return np.array(out + rng.permutation(held).tolist(), dtype=np.int64)
