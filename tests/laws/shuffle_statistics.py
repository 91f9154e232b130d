"""What a uniformly random permutation looks like, as statistics with p-values.

Every statistic takes a maker, ``make(n, seed, epoch) -> int64[n]``, and yields ``(name, p)``. A p-value is two-sided:
an order that is more even than chance is no better than one that is less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Maker: TypeAlias = Callable[[int, int, int], Ints]
PValues: TypeAlias = Iterator[tuple[str, float]]

LEVEL = 1e-6
SQUARE = 1 << 20
RANKS, BATCH = 7, 1000


# ---- distributions ---------------------------------------------------------------------------------------


def normal_p(z: float) -> float:
    """Two-sided."""
    return math.erfc(abs(z) / math.sqrt(2))


def chi_square_p(statistic: float, freedom: int) -> float:
    """Two-sided, by Wilson & Hilferty (1931): the cube root is nearly normal."""
    spread = 2 / (9 * freedom)
    return normal_p(((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread))


def poisson_p(count: int, mean: float) -> float:
    """Two-sided, exact."""
    terms = [-mean]
    terms += [terms[0] + k * math.log(mean) - math.lgamma(k + 1) for k in range(1, int(mean + 40 * mean**0.5) + 60)]
    below = math.fsum(math.exp(term) for term in terms[:count])
    upto = math.fsum(math.exp(term) for term in terms[: count + 1])
    return min(1.0, 2 * min(upto, max(1 - below, math.fsum(math.exp(term) for term in terms[count:]))))


def even_cells_p(counts: Ints) -> float:
    expected = counts.sum() / counts.size
    return chi_square_p(float(((counts - expected) ** 2 / expected).sum()), counts.size - 1)


def contingency_p(row: Ints, column: Ints) -> float:
    """Chi-square of a table whose margins are given."""
    rows, columns = int(row.max()) + 1, int(column.max()) + 1
    table = np.bincount(row * columns + column, minlength=rows * columns).reshape(rows, columns)
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / table.sum()
    # A permutation fixes both margins, so that the statistic's mean is n/(n - 1) of the freedom.
    statistic = float(((table - expected) ** 2 / expected).sum()) * (len(row) - 1) / len(row)
    return chi_square_p(statistic, (rows - 1) * (columns - 1))


# ---- one order -------------------------------------------------------------------------------------------


def single(order: Ints) -> PValues:
    """Compute every statistic of one order."""
    n = len(order)
    at = np.arange(n, dtype=np.int64)
    yield "blocks of positions", contingency_p(at * 16 // n, order * 16 // n)
    yield "low bits", contingency_p(at & 15, order & 15)
    yield "low bits of neighbours", contingency_p(order[:-1] & 15, order[1:] & 15)
    yield "rank stride", contingency_p(at % RANKS, order * 16 // n)
    yield "batches of sorted labels", contingency_p(at // BATCH, order * 10 // n)
    yield "steps from item to item", even_cells_p(np.bincount((order[1:] - order[:-1]) % n * 64 // n, minlength=64))
    mean = (n - 1) / 2
    variance = (n * n - 1) / 12
    yield "index and value", normal_p(float(((at - mean) * (order - mean)).sum()) / variance / math.sqrt(n - 1))
    for lag in (1, 2, RANKS, BATCH):
        product = float(((order[:-lag] - mean) * (order[lag:] - mean)).sum()) / variance
        yield f"serial correlation, lag {lag}", normal_p((product + (n - lag) / n) / math.sqrt(n))
        ups = int((order[:-lag] < order[lag:]).sum())
        chains = sum(len(range(first, n, lag)) + 1 for first in range(lag))
        yield f"ascents, lag {lag}", normal_p((ups - (n - lag) / 2) / math.sqrt(chains / 12))


# ---- many keys -------------------------------------------------------------------------------------------


def every_small_order(make: Maker) -> PValues:
    """All n! orders are equally likely."""
    for n, keys in ((2, 4_000), (3, 6_000), (4, 8_000), (5, 8_000), (6, 12_000), (7, 30_000)):
        number = {order: place for place, order in enumerate(permutations(range(n)))}
        found = [number[tuple(make(n, seed, 0).tolist())] for seed in range(keys)]
        yield f"all {n}! orders", even_cells_p(np.bincount(found, minlength=math.factorial(n)))


def ascents_vary(make: Maker, n: int, keys: int = 40) -> PValues:
    """The number of ascents has the variance (n + 1)/12 from key to key."""
    ups = [int((np.diff(make(n, seed, 5)) > 0).sum()) for seed in range(keys)]
    z = [(up - (n - 1) / 2) / math.sqrt((n + 1) / 12) for up in ups]
    yield "variance of ascents", chi_square_p(math.fsum(value * value for value in z), keys)


def cycles(make: Maker, n: int, keys: int = 24) -> PValues:
    """Fixed points are Poisson(1); cycles have the mean H(n); half of all orders are odd."""
    fixed, counts = 0, []
    for seed in range(keys):
        order = make(n, seed, 1)
        fixed += int((order == np.arange(n)).sum())
        counts.append(_count_cycles(order))
    harmonic = math.fsum(1 / k for k in range(1, n + 1))
    variance = harmonic - math.fsum(1 / k**2 for k in range(1, n + 1))
    yield "fixed points", poisson_p(fixed, keys)
    yield "cycles", normal_p((sum(counts) - keys * harmonic) / math.sqrt(keys * variance))


def parity(make: Maker, n: int, keys: int = 400) -> PValues:
    odd = sum((n - _count_cycles(make(n, seed, 2))) % 2 for seed in range(keys))
    yield "parity", normal_p((odd - keys / 2) / math.sqrt(keys / 4))


def neighbouring_keys(make: Maker, n: int) -> PValues:
    """Orders of neighboring seeds and epochs are independent of each other."""
    mean, variance = (n - 1) / 2, (n * n - 1) / 12
    for seed, epoch, other_seed, other_epoch in ((0, 0, 1, 0), (0, 0, 0, 1), (1, 0, 0, 1), (5, 3, 4, 4), (7, 0, -7, 0)):
        one, two = make(n, seed, epoch), make(n, other_seed, other_epoch)
        name = f"keys {seed},{epoch} and {other_seed},{other_epoch}"
        yield f"{name}: equal places", poisson_p(int((one == two).sum()), 1.0)
        product = float(((one - mean) * (two - mean)).sum()) / variance
        yield f"{name}: correlation", normal_p(product / math.sqrt(n - 1))


def avalanche(make: Maker) -> PValues:
    """Each bit of the position turns each bit of the item over in half of all cases."""
    order = make(SQUARE, 3, 0)
    bits = SQUARE.bit_length() - 1
    at = np.arange(SQUARE)
    total = 0.0
    for bit in range(bits):
        lower = at[at >> bit & 1 == 0]
        changed = order[lower] ^ order[lower ^ 1 << bit]
        for out in range(bits):
            flips = int((changed >> out & 1).sum())
            # Two different items differ in a given bit in 2**19 of 2**20 - 1 cases.
            chance = (SQUARE // 2) / (SQUARE - 1)
            total += (flips - len(lower) * chance) ** 2 / (len(lower) * chance * (1 - chance))
    yield "avalanche", chi_square_p(total, bits * bits)


def xor_pairs(make: Maker) -> PValues:
    """Pairs with one equal half, whose other halves differ as a half of their items does (Patarin 1991)."""
    order = make(SQUARE, 4, 0)
    half = (SQUARE.bit_length() - 1) // 2
    side = 1 << half
    at = np.arange(SQUARE)
    pairs = side * side * (side - 1) // 2
    mean = pairs * side / (SQUARE - 1)
    for equal, other, where in ((at >> half, at & side - 1, "right"), (at & side - 1, at >> half, "left")):
        for item, which in ((order & side - 1, "left"), (order >> half, "right")):
            for mixed, how in ((other ^ item, "xor"), ((item - other) % side, "difference")):
                cells = np.bincount(equal * side + mixed, minlength=SQUARE)
                count = int((cells * (cells - 1) // 2).sum())
                yield f"pairs of equal {where} halves, {how} of {which}", normal_p((count - mean) / math.sqrt(mean))


def kernel(make: Maker, n: int, samples: int = 4_000, length: int = 24) -> PValues:
    """Compare stretches of orders with Fisher & Yates' by the Mallows kernel's maximum mean discrepancy.

    The estimate is linear in time, and normal (Gretton et al. 2012, section 6; kernel: Mitchell et al. 2021).
    """
    rng = np.random.default_rng(0)
    per_key = min(n // length, 500)
    ours = np.concatenate(
        [make(n, seed, 9)[: per_key * length].reshape(-1, length) for seed in range(-(-2 * samples // per_key))]
    )[: 2 * samples]
    theirs = rng.permuted(np.tile(np.arange(length), (2 * samples, 1)), axis=1)
    x, y = _signs(ours), _signs(theirs)
    x1, x2, y1, y2 = x[::2], x[1::2], y[::2], y[1::2]
    h = _mallows(x1, x2) + _mallows(y1, y2) - _mallows(x1, y2) - _mallows(x2, y1)
    yield f"kernel distance, n={n}", normal_p(float(h.mean() / (h.std() / math.sqrt(len(h)))))


def battery(make: Maker, sizes: Sequence[int]) -> list[tuple[str, float]]:
    """Return every p-value except those of parity and of the smallest orders."""
    found = []
    for n in sizes:
        found += [(f"{name}, n={n}", p) for name, p in single(make(n, 0, 0))]
    n = sizes[0]
    for part in (
        ascents_vary(make, n),
        cycles(make, n),
        neighbouring_keys(make, n),
        avalanche(make),
        xor_pairs(make),
        kernel(make, n),
    ):
        found += list(part)
    return found


def rejected(found: list[tuple[str, float]], level: float = LEVEL) -> list[tuple[str, float]]:
    """Return what chance does not explain, with a Bonferroni correction over all statistics."""
    return [(name, p) for name, p in found if p * len(found) < level]


def _count_cycles(order: Ints) -> int:
    """Count cycles: each item learns the least of its cycle by doubling steps."""
    least, following = np.minimum(np.arange(len(order)), order), order
    for _ in range(len(order).bit_length()):
        following_least = least[following]
        if np.array_equal(np.minimum(least, following_least), least):
            break
        least = np.minimum(least, following_least)
        following = following[following]
    return int((least == np.arange(len(order))).sum())


def _signs(orders: Ints) -> NDArray[np.float32]:
    """For each order, +1 or −1 for each pair of places."""
    left, right = np.triu_indices(orders.shape[1], 1)
    return np.where(orders[:, left] < orders[:, right], np.float32(1), np.float32(-1))


def _mallows(one: NDArray[np.float32], two: NDArray[np.float32]) -> NDArray[np.float64]:
    """exp(−λ · discordant pairs), with λ such that chance gives about exp(−2.5)."""
    agreement = (one * two).mean(axis=1).astype(np.float64)
    return np.asarray(np.exp(-5 * (1 - agreement) / 2))
