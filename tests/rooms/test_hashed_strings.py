"""`strings=Hash(buckets=...)`: strings as buckets of a hash that never changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tests.conversions import convert
from torch_table_loader import ConfigError, ConfigTypeError, Hash, StructuredDataset, Vocabulary

TEXTS = st.lists(st.none() | st.text(max_size=9), min_size=1, max_size=30)


def bucket(value: str | bytes | None, buckets: int) -> int:
    """Return the bucket of a value, computed as documented."""
    if value is None:
        return 0
    data = value.encode() if isinstance(value, str) else value
    return 1 + xxhash.xxh3_64_intdigest(data) % (buckets - 1)


def read(column: pa.Array, **policy: Any) -> Any:
    return convert(pa.record_batch({"s": column}), **policy)["s"]


@given(TEXTS, st.integers(2, 50) | st.integers(2**40, 2**62), st.booleans())
def test_a_bucket_is_a_function_of_the_value_alone(texts: list[str | None], buckets: int, numpy: bool) -> None:
    output: Any = "numpy" if numpy else "torch"
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        column = pa.array(texts, pa.string()).cast(kind)
        found = read(column, strings=Hash(buckets), output_format=output)
        assert str(found.dtype).endswith("int64")
        assert found.tolist() == [bucket(text, buckets) for text in texts]


@given(st.lists(st.none() | st.lists(st.none() | st.binary(max_size=5), max_size=4), min_size=1, max_size=9))
def test_lists_of_strings_become_lists_of_buckets(rows: list[list[bytes | None] | None]) -> None:
    column = pa.array(rows, pa.list_(pa.binary()))
    found = read(column, strings=Hash(11), ragged="offsets", nulls={"s": []})
    lists = [found.values[start:stop].tolist() for start, stop in zip(found.offsets, found.offsets[1:], strict=False)]
    assert lists == [[bucket(value, 11) for value in row or []] for row in rows]


def test_buckets_are_those_of_the_first_release() -> None:
    texts = ["", "a", "Lima", "Düsseldorf", None, "user-42"]
    assert read(pa.array(texts), strings=Hash(1000)).tolist() == FIRST
    assert read(pa.array(texts), strings=Hash(1000), nulls={"s": "Lima"})[4] == FIRST[2]


FIRST = [236, 461, 476, 897, 0, 822]


def test_buckets_fill_alike() -> None:
    texts = pa.array([f"user {row}" for row in range(20_000)])
    counts = np.bincount(read(texts, strings=Hash(101)), minlength=101)
    assert counts[0] == 0
    assert 130 < counts[1:].min() <= counts.max() < 270, "each of 100 buckets has about 200, within five deviations"


def test_columns_take_forms_of_their_own(tmp_path: Any) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"user": ["u", None], "country": ["de", "fr"], "note": ["x", "y"]}), path)
    loader, _ = StructuredDataset.create_dataloader(
        path, strings={"user": Hash(50), "country": Vocabulary(["fr", "de"])}, check_plan=False
    )
    (batch,) = loader
    assert batch["user"].tolist() == [bucket("u", 50), 0]
    assert batch["country"].tolist() == [1, 0]
    assert batch["note"] == ["x", "y"]


@pytest.mark.parametrize(
    ("strings", "said"),
    [
        (
            "hash",
            r"strings must be one of 'list', 'codes', .* or a Hash\(buckets=...\).*pass strings=Hash\(buckets=...\)",
        ),
        ({"s": "hash"}, r"strings\['s'\] must be one of .*, got 'hash'; pass strings=Hash"),
        (Hash, r"pass strings=Hash\(buckets=...\)"),
        ({"t": Hash(5)}, "strings names 't', which is not a column here; the nearest are 's'"),
        ({"n": Hash(5)}, "strings names 'n', which is a number; it is for: 's'"),
    ],
)
def test_what_is_wrong_is_refused(tmp_path: Any, strings: Any, said: str) -> None:
    pq.write_table(pa.table({"s": ["a"], "n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=said):
        StructuredDataset(tmp_path, strings=strings, check_plan=False)


def test_a_number_of_buckets_is_one() -> None:
    with pytest.raises(ConfigError, match=r"Hash\(buckets=\) must be at least 2, got 1"):
        Hash(1)
    with pytest.raises(ConfigTypeError, match=r"Hash\(buckets=\) must be an int, got str '9'"):
        Hash("9")  # type: ignore[arg-type]
    with pytest.raises(ConfigTypeError, match="strings must name columns by str, got int 1"):
        StructuredDataset("nowhere", strings={1: "codes"})  # type: ignore[dict-item]
