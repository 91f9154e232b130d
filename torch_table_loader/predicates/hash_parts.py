"""Parts of a table by a hash of its values, as a filter: training and validation rows, folds, samples.

A row's part is a pure function of its values, the seed and the shares: the same in every order, on every rank, machine
and release. It is a function that pyarrow knows by a name, so that a part is an expression like any other.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from torch_table_loader.arrow import compute as pc
from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.forks import OfProcess
from torch_table_loader.messages import did_you_mean
from torch_table_loader.units import integer

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FUNCTION = "torch_table_loader_hash_between"
_REGISTERING = OfProcess(threading.Lock)
_shared = threading.local()
"""The seed, texts and hashes of the newest texts, for each thread that asks for several parts of them."""
_HASHES = 1 << 64
_BETWEEN = "\x1f"
"""What stands between the values of several columns."""
_NULL = "\x00"
"""What stands for null among the values of several columns."""


def part_of(columns: str | Sequence[str], shares: Mapping[Any, float], part: Hashable, *, seed: int = 0) -> Any:
    """Return a filter that keeps one part of a table; rows with equal values in the columns are in the same part.

    A column such as a user's id keeps all rows of a user together. Each row is in exactly one part. Values are hashed
    as text (XXH3, 64 bits), so that the width of an int does not matter; −0.0 is 0.0, all NaN are one value, and so is
    null.

    Args:
        columns: a column, or several; of types that pyarrow casts to strings.
        shares: the share of each part, by name, in any unit; their order matters.
        part: which one to keep.
        seed: another seed divides the values differently; from 0 to 2^64 − 1.

    Returns:
        A pyarrow compute Expression for ``filters=``, to be joined with others by ``&``; ``~`` keeps the other parts.

    Raises:
        ConfigError: there is no such part or no column, or a share is not a number of at least 0.

    >>> rows = pa.table({"user": range(1000)})
    >>> shares = {"train": 0.9, "val": 0.1}
    >>> {part: rows.filter(part_of("user", shares, part)).num_rows for part in shares}
    {'train': 899, 'val': 101}
    """
    make_known()
    low, high = hashes_of(shares, part)
    seed = integer("seed", seed, 0, _HASHES - 1)
    numbers = [pc.scalar(pa.scalar(number, pa.uint64())) for number in (seed, min(low, _HASHES - 1), max(0, high - 1))]
    found = pc.Expression._call(_FUNCTION, [_text_of(columns), *numbers])
    if low == high:  # a share of 0 has no hash
        found &= pc.scalar(False)
    return found


def _text_of(columns: str | Sequence[str]) -> Any:
    names = list(columns)
    if isinstance(columns, str):
        names = [columns]
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigTypeError(f"columns must be the name of a column, or a list of names, got {columns!r}")
    texts = [pc.field(name).cast(pa.string()) for name in names]
    if len(texts) == 1:
        return texts[0]
    return pc.binary_join_element_wise(*texts, _BETWEEN, null_handling="replace", null_replacement=_NULL)


def hashes_of(shares: Mapping[Any, float], part: Hashable) -> tuple[int, int]:
    """Return the first hash of a part, and the one after its last.

    >>> hashes_of({"a": 1, "b": 3}, "b") == (2**62, 2**64)
    True
    """
    if not isinstance(shares, Mapping) or not shares:
        raise ConfigTypeError(f"shares must be {{part: share}}, got {shares!r}")
    if wrong := [
        name
        for name, share in shares.items()
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < float("inf")
    ]:
        raise ConfigError(f"the share of {wrong[0]!r} must be a number of at least 0, got {shares[wrong[0]]!r}")
    if part not in shares:
        raise ConfigError(f"shares has no part {part!r}{did_you_mean(str(part), list(map(str, shares)), spare=20)}")
    ends = list(accumulate(map(Fraction, shares.values())))
    if not ends[-1]:
        raise ConfigError(f"a share must be above 0, got {dict(shares)!r}")
    edges = [0, *(int(end * _HASHES / ends[-1]) for end in ends)]
    at = list(shares).index(part)
    return edges[at], edges[at + 1]


def _hash_between(_: Any, texts: Any, seed: Any, low: Any, high: Any) -> Any:
    """Say of each text whether its hash lies between two numbers, both included."""
    if isinstance(texts, pa.Scalar):  # a partition column, whose value is known without reading
        return _hash_between(_, pa.array([texts.as_py()], pa.string()), seed, low, high)[0]
    if not len(texts):
        return pa.array([], pa.bool_())
    key, first, last = (
        (number if isinstance(number, pa.Scalar) else number[0]).as_py() for number in (seed, low, high)
    )
    hashes = _hashes(texts, key)
    return pa.array((hashes >= np.uint64(first)) & (hashes <= np.uint64(last)))


@contextmanager
def hashed_once() -> Iterator[None]:
    """Hash the same values once while this thread asks for several parts of them, one after another."""
    _shared.newest = None
    try:
        yield
    finally:
        del _shared.newest


def _hashes(texts: pa.Array, seed: int) -> NDArray[np.uint64]:
    """uint64[n]: the hash of each text."""
    newest = getattr(_shared, "newest", None)
    if newest is not None and newest[0] == seed and newest[1].equals(texts):
        known: NDArray[np.uint64] = newest[2]
        return known
    encoded = texts.dictionary_encode(null_encoding="encode")
    values = encoded.dictionary.to_pylist()
    distinct = np.fromiter((_hash_of(value, seed) for value in values), dtype=np.uint64, count=len(values))
    hashes: NDArray[np.uint64] = distinct[encoded.indices.to_numpy()]
    if hasattr(_shared, "newest"):
        _shared.newest = seed, texts, hashes
    return hashes


def _hash_of(text: str | None, seed: int) -> int:
    if text is None:
        return xxhash.xxh3_64_intdigest(b"\xff", seed)
    if "-0" in text:  # −0.0 as text, which equals 0.0
        text = _BETWEEN.join("0" if part == "-0" else part for part in text.split(_BETWEEN))
    return xxhash.xxh3_64_intdigest(text.encode(), seed)


def make_known() -> None:
    """Make the function known to pyarrow in this process, where expressions of `part_of` are to be evaluated."""
    with _REGISTERING.own:
        _register()


@cache
def _register() -> None:
    pc.register_scalar_function(
        _hash_between,
        _FUNCTION,
        {"summary": "Whether a hash lies in a range", "description": "XXH3 of texts; see torch_table_loader.part_of."},
        {"texts": pa.string(), "seed": pa.uint64(), "low": pa.uint64(), "high": pa.uint64()},
        pa.bool_(),
    )
