"""The epoch's order over rows: a keyed bijection of [0, n) whose memory does not grow with n.

Below 2**12 items, the items are sorted by keyed 64-bit hashes. From there on, an eight-round Feistel network
(Luby & Rackoff 1988) runs on the numbers ``right * 2**k + left``, ``left < 2**k`` and ``right < b``, where
``2**k`` is near the square root of n and ``b = ceil(n / 2**k)``. Left halves are xored and right halves added
modulo b, as in the generalised Feistel cipher of Black & Rogaway (2002): the domain then exceeds n by less than
``2**k``, and few results need cycle walking (same paper: go through the network again until below n). With
``2**k`` on both sides, up to three in four would. Shuffling by bijection: Mitchell et al. (2021).

Nothing here may change the result: the order is part of the saved state's format.

M. Luby & C. Rackoff, How to construct pseudorandom permutations from pseudorandom functions, SIAM J. Comput., 1988.
J. Black & P. Rogaway, Ciphers with arbitrary finite domains, CT-RSA 2002.
R. Mitchell et al., Bandwidth-optimal random shuffling for GPUs, arXiv:2106.06161, 2021.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.planning.keys import U32, U64, Key, as_int, keyed_hashes, keyed_mix, u32, u64

Ints: TypeAlias = NDArray[np.int64]

_SORT_BELOW = 1 << 12
_MAX_N = 1 << 63
# A 32-bit hash is uniform over [0, b) only if b is far below 2**32, or a power of two: above this it is one.
_MAX_MODULAR_BITS = 48
# Large enough that numpy's call overhead is small, and scratch (24 bytes a number) stays in a core's cache.
_BLOCK = 1 << 15
_HIGH_WORD = u64(32)
# Looking up a hash takes half the time of computing it, as long as the hashes of a round stay in a near cache.
_MAX_HALVES = 1 << 16


@dataclass(frozen=True, slots=True)
class Permutation:
    """A bijection of [0, n) that a key selects: position i of the epoch holds item p[i].

    Ask for blocks: a call costs about 60 us for one number, and 11 to 23 ns a number from 8,192 on (Intel Xeon).

    Args:
        n: How many items, in [0, 2**63].

    Raises:
        ConfigTypeError: n is not an integer.
        ConfigError: n is outside its range.

    >>> from torch_table_loader.planning.keys import derive_key
    >>> Permutation(10, derive_key(0, 0, "rows")).slice(0, 10).tolist()
    [5, 3, 7, 1, 9, 4, 6, 8, 0, 2]
    """

    n: int
    key: Key
    _network: _Sorted | _Feistel = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check n, and compute what every call needs."""
        n = as_int("n", self.n)
        if not 0 <= n <= _MAX_N:
            raise ConfigError(f"n must be in [0, 2**63], got n={n}; pass the number of rows")
        object.__setattr__(self, "n", n)
        network = _Sorted(n, self.key) if n < _SORT_BELOW else _Feistel(n, self.key)
        object.__setattr__(self, "_network", network)

    def __reduce__(self) -> tuple[type[Permutation], tuple[int, Key]]:
        """Pickle only n and the key; everything else is derived from them again."""
        return Permutation, (self.n, self.key)

    def take(self, positions: Ints) -> Ints:
        """Return the item at each position: a new int64 array of the same shape.

        Args:
            positions: integers that fit into int64, of any shape, each in [0, n).

        Raises:
            ConfigTypeError: The positions are not integers.
            ConfigError: A position is outside [0, n).

        >>> from torch_table_loader.planning.keys import derive_key
        >>> Permutation(10**12, derive_key(0, 0, "rows")).take(np.array([0, 1])).tolist()
        [519487621817, 907546953741]
        """
        return self._network.forward(_checked(positions, self.n))

    def slice(self, start: int, stop: int) -> Ints:
        """Return the items at the positions from start to before stop: a new int64[stop - start].

        Raises:
            ConfigTypeError: start or stop is not an integer.
            ConfigError: Not 0 <= start <= stop <= n.

        >>> from torch_table_loader.planning.keys import derive_key
        >>> Permutation(10**12, derive_key(0, 0, "rows")).slice(1, 3).tolist()
        [907546953741, 406344473331]
        """
        start, stop = as_int("start", start), as_int("stop", stop)
        if not 0 <= start <= stop <= self.n:
            raise ConfigError(
                f"a slice needs 0 <= start <= stop <= n, got start={start} stop={stop} n={self.n}; "
                "cut the last block at n"
            )
        positions = np.arange(stop - start, dtype=np.int64)
        if start < stop:  # an empty slice may start at 2**63, which does not fit an int64
            positions += np.int64(start)
        return self._network.forward(positions)


def permuted_range(n: int, key: Key) -> Ints:
    """Return all items of a permutation: the numbers below n, in an order that the key selects.

    >>> from torch_table_loader.planning.keys import derive_key
    >>> permuted_range(10, derive_key(0, 0, "rows")).tolist()
    [5, 3, 7, 1, 9, 4, 6, 8, 0, 2]
    """
    return Permutation(n, key)._network.forward(np.arange(n, dtype=np.int64))


class _Sorted:
    """Items in the order of their keyed hashes; ties go by their numbers."""

    __slots__ = ("_items",)

    def __init__(self, n: int, key: Key) -> None:
        self._items = np.argsort(keyed_hashes(n, key), kind="stable").astype(np.uint16)

    def forward(self, positions: Ints) -> Ints:
        return np.array(self._items[positions], dtype=np.int64)


class _Scratch:
    """The halves and mixing buffers of one block; made for each call, so that threads share nothing."""

    __slots__ = ("left", "mixed", "right", "shifted", "size", "wide")

    def __init__(self, size: int) -> None:
        self.size = size
        self.left, self.right, self.mixed, self.shifted = np.empty((4, size), dtype=np.uint32)
        self.wide: U64 = np.empty(size, dtype=np.uint64)


class _Feistel:
    """The network over ``right * 2**k + left``, its walk down to n, and the swap that flips the parity.

    Each xor round is an even permutation, and so is each addition modulo an odd b: if no number walks, only the
    swap of 0 and 1 lets both parities occur.
    """

    __slots__ = (
        "_b",
        "_is_narrow",
        "_keys",
        "_landings",
        "_left_bits",
        "_left_mask",
        "_left_shift",
        "_n",
        "_sent",
        "_swap",
        "_tables",
        "_wide_b",
    )

    def __init__(self, n: int, key: Key) -> None:
        bits = (n - 1).bit_length()
        if bits <= _MAX_MODULAR_BITS:
            left_bits = bits // 2
            b = -(-n >> left_bits)
        else:
            left_bits = bits - bits // 2
            b = 1 << bits // 2
        self._left_bits = u32(left_bits), u64(left_bits)
        self._is_narrow = b << left_bits <= 1 << 32
        self._left_mask, self._left_shift = u32((1 << left_bits) - 1), u32(32 - left_bits)
        self._b, self._wide_b = u32(b), u64(b)
        self._keys = tuple(u32(word) for word in key.rounds)
        self._swap = key.swap
        excess = (b << left_bits) - n
        # No bound if the domain is exactly [0, n): nothing walks, and n = 2**63 does not fit an int64.
        self._n = np.int64(n) if excess else None
        self._tables: tuple[U32, ...] = ()
        self._sent = 0
        # A pass costs 40 us even for the few numbers that walk, so each one's destination is stored.
        self._landings = self._landings_from(n, excess) if 0 < excess <= _BLOCK else None

    def _landings_from(self, n: int, excess: int) -> Ints:
        landings = np.arange(excess, dtype=np.int64) + np.int64(n)
        self._pass(landings, _Scratch(excess))
        # Each turn doubles the steps taken. A cycle beyond n stays there: nothing below n leads to it.
        for _ in range(excess.bit_length()):
            outside = np.flatnonzero(landings >= n)
            landings[outside] = landings[landings[outside] - n]
        return landings

    def forward(self, positions: Ints) -> Ints:
        items = self._map(positions)
        if self._swap:
            return np.bitwise_xor(items, items < np.int64(2), out=items)
        return items

    def _map(self, numbers: Ints) -> Ints:
        """Replace the numbers, all of them in the domain, by the numbers in [0, n) that they lead to."""
        flat = numbers.reshape(-1)
        self._sent += flat.size
        halves = int(self._b) + int(self._left_mask) + 1
        # A table takes a hash of each half, which pays after about as many numbers. Two threads may both build it.
        if not self._tables and self._sent >= halves and halves <= _MAX_HALVES:
            self._tables = self._hash_all_halves()
        scratch = _Scratch(min(flat.size, _BLOCK))
        for start in range(0, flat.size, _BLOCK):
            block = flat[start : start + _BLOCK]
            self._pass(block, scratch)
            if self._n is not None:
                self._walk(block, self._n)
        return numbers

    def _walk(self, block: Ints, n: np.int64) -> None:
        outside = np.flatnonzero(block >= n)
        if outside.size and self._landings is not None:
            block[outside] = self._landings[block[outside] - n]
            return
        while outside.size:
            walking = block[outside]
            self._pass(walking, _Scratch(walking.size))
            block[outside] = walking
            outside = outside[walking >= n]

    def _pass(self, numbers: Ints, scratch: _Scratch) -> None:
        """Send the numbers through the network once, in place."""
        s = scratch if numbers.size == scratch.size else _Scratch(numbers.size)
        wide = numbers.view(np.uint64)
        self._part(wide, s)
        for index in range(len(self._keys)):
            self._hash(index, s)
            if index % 2 == 0:
                np.bitwise_xor(s.left, s.mixed, out=s.left)
            else:  # modulo b: the smaller of the sum and the sum less b, which wraps if it is negative
                np.add(s.right, s.mixed, out=s.right)
                np.subtract(s.right, self._b, out=s.mixed)
                np.minimum(s.right, s.mixed, out=s.right)
        self._join(wide, s)

    def _part(self, wide: U64, s: _Scratch) -> None:
        """Write the halves of numbers to the scratch."""
        if self._is_narrow:
            np.copyto(s.right, wide, casting="unsafe")
            np.bitwise_and(s.right, self._left_mask, out=s.left)
            np.right_shift(s.right, self._left_bits[0], out=s.right)
            return
        np.copyto(s.left, wide, casting="unsafe")
        np.bitwise_and(s.left, self._left_mask, out=s.left)
        np.right_shift(wide, self._left_bits[1], out=s.wide)
        np.copyto(s.right, s.wide, casting="unsafe")

    def _join(self, wide: U64, s: _Scratch) -> None:
        """Write the numbers from the halves in the scratch."""
        if self._is_narrow:
            np.left_shift(s.right, self._left_bits[0], out=s.right)
            np.bitwise_or(s.right, s.left, out=s.right)
            np.copyto(wide, s.right)
            return
        np.copyto(wide, s.right)
        np.left_shift(wide, self._left_bits[1], out=wide)
        np.bitwise_or(wide, s.left, out=wide)

    def _hash_all_halves(self) -> tuple[U32, ...]:
        """Hash every half that a round can meet, into a table for each round."""
        tables = []
        for index in range(len(self._keys)):
            if index % 2:
                s = _Scratch(int(self._left_mask) + 1)
                s.left[:] = np.arange(s.size, dtype=np.uint32)
            else:
                s = _Scratch(int(self._b))
                s.right[:] = np.arange(s.size, dtype=np.uint32)
            self._hash(index, s)
            tables.append(s.mixed)
        return tuple(tables)

    def _hash(self, index: int, s: _Scratch) -> None:
        """Hash one half in a round, to as many values as the other half has."""
        half = s.left if index % 2 else s.right
        if self._tables:
            places = s.wide.view(np.int64)
            np.copyto(places, half)
            np.take(self._tables[index], places, out=s.mixed, mode="wrap")  # the fastest mode: no index is outside
            return
        keyed_mix(half, self._keys[index], s.mixed, s.shifted)
        if index % 2 == 0:
            np.right_shift(s.mixed, self._left_shift, out=s.mixed)
        else:
            np.multiply(s.mixed, self._wide_b, out=s.wide, dtype=np.uint64)
            np.right_shift(s.wide, _HIGH_WORD, out=s.wide)
            np.copyto(s.mixed, s.wide, casting="unsafe")


def _checked(positions: Ints, n: int) -> Ints:
    """Copy positions to a new int64 array; refuse any outside [0, n)."""
    given = np.asarray(positions)
    if not np.can_cast(given.dtype, np.int64) or given.dtype == np.bool_:
        raise ConfigTypeError(
            f"positions must be an int64 array, got dtype {given.dtype}; convert with .astype(np.int64)"
        )
    copy = np.array(given, dtype=np.int64, order="C")
    # As unsigned numbers, negative ones are the largest.
    if copy.size and int(copy.view(np.uint64).max()) >= n:
        wrong = copy[copy < 0]
        if n < _MAX_N:
            wrong = copy[(copy < 0) | (copy >= n)]
        raise ConfigError(
            f"positions must be in [0, n), got {int(wrong[0])} (one of {wrong.size} outside) with n={n}; "
            "was the permutation made for another table?"
        )
    return copy
