"""Keys and keyed hashes for the epoch's order, and seeds of rows: a hash of (seed, epoch, purpose), never a sum.

With ``seed + epoch``, seed 1 would show at epoch 0 what seed 0 shows at epoch 1. A hash of an encoding that no two
triples share has no such neighbors.
"""

from __future__ import annotations

import operator
import struct
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from torch_table_loader.errors import ConfigError, ConfigTypeError

# Part of the state's format: with another name, layout or length, saved states would resume in another order.
_PERSON = b"ttl order v1"
_LAYOUT = struct.Struct("<8I2QB")

U32: TypeAlias = NDArray[np.uint32]
U64: TypeAlias = NDArray[np.uint64]


def u32(value: int) -> U32:
    """Return the value as a 0-d array: numpy warns when products of scalars wrap, and reads scalars more slowly."""
    return np.array(value, dtype=np.uint32)


def u64(value: int) -> U64:
    """Return the value as a 0-d array, as ``u32`` does."""
    return np.array(value, dtype=np.uint64)


_ROUNDS = 8
_HASH_WORDS = 2
_MULTIPLIERS = (u32(0xED5AD4BB), u32(0xAC4C1B51), u32(0x31848BAB))
_SHIFTS = (u32(11), u32(15))


@dataclass(frozen=True, slots=True)
class Key:
    """A key that selects one permutation out of many.

    Attributes:
        rounds: Eight words in [0, 2**32), one for each Feistel round.
        hashing: Two words in [0, 2**64), for the sort by keyed hashes.
        swap: Whether two fixed elements are swapped, which flips the permutation's parity.

    Raises:
        ConfigError: A word is missing or outside its range.

    >>> derive_key(0, 0, "rows").rounds[:2]
    (1739765283, 624898236)
    """

    rounds: tuple[int, ...]
    hashing: tuple[int, int]
    swap: bool

    def __post_init__(self) -> None:
        """Check the words."""
        for name, words, count, bits in (
            ("rounds", self.rounds, _ROUNDS, 32),
            ("hashing", self.hashing, _HASH_WORDS, 64),
        ):
            if len(words) != count or not all(isinstance(word, int) and 0 <= word < 1 << bits for word in words):
                raise ConfigError(
                    f"{name} must be {count} integers in [0, 2**{bits}), got {words!r}; use derive_key to make a key"
                )


@dataclass(frozen=True, slots=True)
class EpochKey(Key):
    """The key of an epoch, which says its number."""

    epoch: int

    @classmethod
    def of(cls, seed: int, epoch: int, purpose: str) -> EpochKey:
        """Return what `derive_key` does, with the epoch."""
        key = derive_key(seed, epoch, purpose)
        return cls(key.rounds, key.hashing, key.swap, epoch)


def stage_key(seed: int, epoch: int) -> EpochKey:
    """Return what decides by chance what a stage makes of rows in an epoch."""
    return EpochKey.of(seed, epoch, "packs")


def derive_key(seed: int, epoch: int, purpose: str) -> Key:
    """Hash (seed, epoch, purpose) to a key; a difference in any of the three gives an unrelated key.

    The key is the same on every machine and version of Python.

    Args:
        purpose: What is being permuted, such as ``"rows"``, so that two uses of one seed differ.

    Raises:
        ConfigTypeError: The seed or epoch is not an integer, or the purpose is not a string.
        ConfigError: The epoch is negative.

    >>> derive_key(1, 0, "rows") == derive_key(0, 1, "rows")
    False
    """
    seed, epoch = as_int("seed", seed), as_int("epoch", epoch)
    if not isinstance(purpose, str):
        raise ConfigTypeError(f"purpose must be a string, got {purpose!r}; name what is permuted, such as 'rows'")
    if epoch < 0:
        raise ConfigError(f"epoch must be at least 0, got epoch={epoch}; count epochs from 0")
    # Each field is preceded by its length, so that no two triples share an encoding.
    numbers = (value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True) for value in (seed, epoch))
    fields = (*numbers, purpose.encode("utf-8", "surrogatepass"))
    message = b"".join(len(field).to_bytes(8, "little") + field for field in fields)
    digest = blake2b(message, digest_size=64, person=_PERSON).digest()
    words = _LAYOUT.unpack_from(digest)
    return Key(rounds=words[:8], hashing=words[8:10], swap=bool(words[10] & 1))


def keyed_hashes(n: int, key: Key) -> U64:
    """Hash the numbers below n with the key to uint64[n]; sorting by the hashes puts them in a random order.

    >>> keyed_hashes(2, derive_key(0, 0, "rows")).tolist()
    [14777830027171508221, 7933587523992070928]
    """
    return hashes_of(np.arange(n, dtype=np.uint64), key)


def hashes_of(numbers: U64, key: Key) -> U64:
    """Hash uint64 numbers with the key, in place, and return the same array."""
    hashes = numbers
    hashes *= u64(0x9E3779B97F4A7C15)
    for word in key.hashing:
        hashes += u64(word)
        # The finaliser of SplitMix64 (Steele, Lea & Flood 2014).
        hashes ^= hashes >> u64(30)
        hashes *= u64(0xBF58476D1CE4E5B9)
        hashes ^= hashes >> u64(27)
        hashes *= u64(0x94D049BB133111EB)
        hashes ^= hashes >> u64(31)
    return hashes


def keyed_mix(half: U32, key: U32, out: U32, scratch: U32) -> None:
    """Hash each number with one key word (0-d), into the high bits of ``out``.

    All arrays are uint32[m]; ``out`` and ``scratch`` are overwritten.

    This is triple32 (C. Wellons, 2018) of half + key, without its outer shifts: those improve low bits, which no
    caller uses alone.

    >>> out, scratch = np.empty((2, 1), dtype=np.uint32)
    >>> keyed_mix(np.array([5], dtype=np.uint32), u32(7), out, scratch)
    >>> out.tolist()
    [2377166716]
    """
    np.add(half, key, out=out)
    np.multiply(out, _MULTIPLIERS[0], out=out)
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS[1:], strict=True):
        np.right_shift(out, shift, out=scratch)
        np.bitwise_xor(out, scratch, out=out)
        np.multiply(out, multiplier, out=out)


def as_int(name: str, value: object) -> int:
    """Return an integer of any type, including numpy's, as an int; raise ConfigTypeError for anything else."""
    try:
        return operator.index(value)  # type: ignore[arg-type]  # the call is the check
    except TypeError:
        raise ConfigTypeError(f"{name} must be an integer, got {value!r}; pass int({name})") from None


def row_seeds(row_ids: Any, *, epoch: int, seed: int = 0) -> NDArray[np.int64]:
    """Return a seed for each row, int64[n] from 0 to 2^63 − 1: the same for any ranks, workers and batches of an epoch.

    With these seeds, random changes to a row stay the same when a job continues on other machines.

    Args:
        row_ids: int[n], as the column ``row_id`` gives them: a tensor, an array or a list.
        seed: a different value gives unrelated seeds.

    Raises:
        ConfigTypeError: the ids are not integers.

    >>> row_seeds([0, 1], epoch=0).tolist()
    [1073068205629341916, 3443160574030500380]
    >>> row_seeds([1], epoch=1).tolist()
    [7929402630430648056]
    """
    ids = np.asarray(row_ids)
    if ids.dtype.kind not in "iu" and ids.size:
        raise ConfigTypeError(f"row_ids must be integers, as the column row_id gives them, got {ids.dtype}")
    hashes = hashes_of(ids.astype(np.uint64), derive_key(seed, epoch, "row seeds"))
    return (hashes >> np.uint64(1)).astype(np.int64)
