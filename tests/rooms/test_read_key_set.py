"""Key sets against sets of Python's tuples."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_table_loader.read import key_set
from torch_table_loader.read.key_set import KeySet

DAY = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
NAN = float("nan")
OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000123))[0]
VALUES: dict[Any, Sequence[Any]] = {
    pa.int32(): (0, 1, -1, 2**31 - 1, -(2**31)),
    pa.int64(): (0, 1, -1, 2**63 - 1, -(2**63)),
    pa.bool_(): (False, True),
    pa.float32(): (0.0, -0.0, 0.5, NAN, math.inf),
    pa.float64(): (0.0, -0.0, 0.5, NAN, OTHER_NAN, math.inf),
    pa.date32(): (DAY.date(), dt.date(1969, 12, 31)),
    pa.time64("us"): (dt.time(), dt.time(12, 30)),
    pa.timestamp("us"): (DAY.replace(tzinfo=None),),
    pa.timestamp("us", "UTC"): (DAY,),
    pa.decimal128(38, 2): tuple(decimal.Decimal(text) for text in ("0", "1.50", "-1.50", "12345678901234567890.12")),
    pa.string(): ("", "a", "b", "a\0", "a\0\0", "12345678", "123456789", "é" * 9, "x" * 400, "x" * 399 + "y"),
    pa.large_string(): ("", "a", "12345678"),
    pa.binary(): (b"", b"\0", b"\0\0", b"a" * 7, b"a" * 8, b"a" * 16),
    pa.binary(3): (b"abc", b"abd", b"\0\0\0"),
    pa.binary(16): (bytes(16), bytes(15) + b"\1", b"\1" + bytes(15)),
    pa.null(): (),
}


def spelled(value: Any) -> Any:
    """Return equal results exactly for values that are the same key: all NaN are one, +0 and −0 are two."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (value, math.copysign(1.0, value))
    return value


def arrays(types: Sequence[pa.DataType], rows: Sequence[Sequence[Any]], skipped: int) -> list[pa.Array]:
    """Build columns with some rows sliced off."""
    padded = [*([rows[0]] * skipped if rows else []), *rows]
    return [
        pa.array([row[at] for row in padded], kind).slice(min(skipped, len(padded) - len(rows)))
        for at, kind in enumerate(types)
    ]


@pytest.fixture(params=[True, False], ids=["spread", "colliding"])
def hashing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hash normally, or give everything the same hash."""
    if not request.param:
        monkeypatch.setattr(key_set, "mixed", lambda so_far, _: np.zeros_like(so_far))


@pytest.mark.usefixtures("hashing")
@given(data=st.data())
def test_a_key_set_is_a_set_of_tuples(data: st.DataObject) -> None:
    types = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    row = st.tuples(*(st.sampled_from([None, *VALUES[kind]]) for kind in types))
    known = data.draw(st.lists(row, max_size=8))
    asked = known + data.draw(st.lists(row, max_size=8))
    commits = data.draw(st.lists(st.integers(1, 300), min_size=len(known), max_size=len(known)))
    after = data.draw(st.integers(0, 301))
    skipped = data.draw(st.integers(0, 9))
    keys = KeySet(arrays(types, known, skipped), np.array(commits, dtype=np.int64))
    deleted = {tuple(map(spelled, key)) for key, commit in zip(known, commits, strict=True) if commit > after}
    found = keys.lacks(arrays(types, asked, skipped), after)
    assert found.tolist() == [tuple(map(spelled, each)) not in deleted for each in asked]
    assert keys.num_bytes > 0


@pytest.mark.usefixtures("hashing")
@pytest.mark.parametrize("commits", [(1, 2), (2, 1)])
def test_the_last_commit_of_a_key_counts_for_any_nan_representation(commits: tuple[int, int]) -> None:
    keys = KeySet([pa.array([NAN, OTHER_NAN]), pa.array([1, 1])], np.array(commits, dtype=np.int64))
    assert keys.lacks([pa.array([NAN, OTHER_NAN]), pa.array([1, 1])], 1).tolist() == [False, False]


@given(known=st.lists(st.integers(-(2**63), 2**63 - 1)), others=st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_numbers_far_apart_are_found(known: list[int], others: list[int]) -> None:
    asked = known + others
    lacks = KeySet([pa.array(known, pa.int64())]).lacks([pa.array(asked, pa.int64())])
    assert lacks.tolist() == [each not in set(known) for each in asked]


@pytest.mark.parametrize("known", [[-(2**63), -(2**63) + 2], [2**63 - 1, 2**63 - 3], [0, 5]])
def test_keys_at_the_ends_of_64_bits(known: list[int]) -> None:
    asked = [-(2**63), -(2**63) + 1, -(2**63) + 2, -1, 0, 4, 5, 6, 2**63 - 3, 2**63 - 2, 2**63 - 1]
    keys = KeySet([pa.array(known, pa.int64())])
    assert keys.lacks([pa.array(asked, pa.int64())]).tolist() == [each not in known for each in asked]


@pytest.mark.parametrize("around", [("x" * 300, ""), ("", "x" * 300), ("x" * 200, "x" * 300)])
def test_long_strings_with_common_ends_are_spread(around: tuple[str, str]) -> None:
    texts = [f"{around[0]}{number:06}{around[1]}" for number in range(5000)]
    keys = KeySet([pa.array(texts[::2])])
    assert np.array_equal(np.flatnonzero(~keys.lacks([pa.array(texts)])), np.arange(0, 5000, 2))
    assert len(set(keys._found._hashes.tolist())) == 2500  # type: ignore[union-attr]


@pytest.mark.parametrize("scale", [1, 1 << 20, 1 << 40], ids=["near", "apart", "far"])
def test_many_keys_spread_over_the_table(scale: int) -> None:
    """What a look-up costs is how many keys share a place; numbers that are multiples of a power of two must not."""
    numbers = np.arange(200_000, dtype=np.int64) * scale
    keys = KeySet([pa.array(numbers[::2]), pa.array(numbers[::2] % 7)])
    lacks = keys.lacks([pa.array(numbers), pa.array(numbers % 7)])
    assert np.array_equal(np.flatnonzero(~lacks), np.arange(0, 200_000, 2))
    table = keys._found
    assert int(np.diff(table._starts.astype(np.int64)).max()) < 24  # type: ignore[union-attr]
