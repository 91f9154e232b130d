"""The key of a filter: part of states, so it never changes; it differs between filters, and contains no value."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from torch_table_loader.predicates.filter_form import filter_key

SCHEMA = pa.schema([("k", pa.int32()), ("s", pa.string())])
K = pc.field("k")
FIXED = pa.list_(pa.int8(), 2)

FILTERS: dict[str, tuple[Any, str]] = {
    "no filter": (None, "f35d373af7a2a9f1"),
    "a comparison": (K < 7, "f3e38d56be271ad2"),
    "another value": (K < 8, "7682ad88145fa0fa"),
    "another column": (pc.field("s") < 7, "9e813dc430adb7bf"),
    "another function": (K <= 7, "43d98f0e5924568d"),
    "of another type": (pa.scalar(7, pa.int8()) > K, "2d7a6cefde1afecf"),
    "and, not, a list with a null": ((K < 7) & ~pc.field("s").isin(["a", None, "b"]), "5aa05fd66e46e707"),
    "or": ((K < 7) | (K > 9), "b8bdc1a6fd61862c"),
    "other brackets": ((K < 7) | (K > 9) & (K != 8), "eebd29979a421736"),
    "a nested column": (pc.field("a", "b") == pa.scalar(1.5, pa.float32()), "3605ef7719e4f586"),
    "a name with a newline": (pc.field("\n'") == " ", "fc63c4a8cf0db299"),
    "a cast": (pc.field("d").cast(pa.int8()) > 1, "e49e47ac3626925c"),
    "null": (pa.scalar(None, pa.int8()) == K, "2fae1fed63d22572"),
    "null without a type": (pa.scalar(None) == K, "e7971e0c1be3f3ed"),
    "is null": (pc.is_null(K), "5482e53275f3431a"),
    "is null or NaN": (pc.is_null(K, nan_is_null=True), "0096b69ac02b4588"),
    "always": (pc.scalar(True), "2b893795dc4bcf62"),
    "a text": (pc.field("s") == "äöü", "29c4028f6e945b93"),
    "a view of a text": (pc.field("s") == pa.scalar("äöü", pa.string_view()), "1fe4b923c8082b0b"),
    "bytes": (pc.field("s") == b"\xff\x00", "22d315337db40df4"),
    "bytes of one width": (pc.field("s") == pa.scalar(b"abcd", pa.binary(4)), "3dbcd316e94f3b67"),
    "a pattern": (pc.match_substring_regex(pc.field("s"), "a.*"), "f07947ab94a7d405"),
    "a function of a time": (pc.strftime(pc.field("t"), format="%Y") == "2020", "0067b4d997e077fe"),
    "a choice": (pc.if_else(K > 1, K, 2) == 2, "d195f4995251efc6"),
    "a time": (pc.field("t") > dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "dfcbdca3fdb4212d"),
    "a time in a zone": (pc.field("t") > pa.scalar(5, pa.timestamp("ns", "UTC")), "b8f694e4873f98ab"),
    "a date": (pc.field("t") > dt.date(2020, 1, 1), "a78df512fd8bf523"),
    "a decimal": (pc.field("d") == decimal.Decimal("1.50"), "69b5b20092b54a8f"),
    "half a float": (pc.field("d") == pa.scalar(1.5, pa.float16()), "9ea3a6754a2256a3"),
    "a word of a dictionary": (
        pc.field("s") == pa.scalar("a", pa.dictionary(pa.int8(), pa.string())),
        "9436fd1f79fb6964",
    ),
    "an extension": (pc.field("s") == pa.scalar(b"0" * 16, pa.uuid()), "4ff34406eebf1e36"),
    "a list": (pc.field("l") == pa.scalar([1, None, 3]), "2c07c48b46260cd2"),
    "a view of a list": (pc.field("l") == pa.scalar([1, None, 3], pa.list_view(pa.int8())), "48deaa7bedd4642f"),
    "a struct": (pc.field("l") == pa.scalar({"a": 1, "b": "x"}), "5451d01d87a34ae2"),
    "a map": (pc.field("l") == pa.scalar([("a", 1)], pa.map_(pa.string(), pa.int8())), "0ee86ed5d78c5570"),
    "one of dates": (K.isin(pa.array([1, None], pa.date32())), "1890f191b8d77a84"),
    "one of bools": (K.isin([True]), "d99d3cd954c3c72e"),
    "one of lists": (K.isin(pa.array([[1, 2], None], FIXED)), "bc7870e8d7faa7af"),
    "one of many": (K.isin(range(1000)), "302d855872730cd2"),
}
"""By what they try: filters, and the first digits of their keys, the same under pyarrow 21 and 26."""

SCHEMAS: dict[str, tuple[pa.Schema, str]] = {
    "one column": (pa.schema([("k", pa.int32())]), "6295f1cc9a5e1692"),
    "never null": (pa.schema([pa.field("k", pa.int32(), nullable=False)]), "3afd59e55e504cf6"),
    "another type": (pa.schema([("k", pa.int64())]), "22d8b0d0a42f7114"),
    "a time": (pa.schema([("k", pa.timestamp("ns", "Europe/Berlin"))]), "16bbe677fb5b02f9"),
    "a decimal": (pa.schema([("k", pa.decimal128(3, 1))]), "ebf9cb88d0d6a73c"),
    "a dictionary": (pa.schema([("k", pa.dictionary(pa.int8(), pa.string()))]), "991bb0c11271b4a6"),
    "runs": (pa.schema([("k", pa.run_end_encoded(pa.int16(), pa.string()))]), "1eebe41950840e05"),
    "a list": (pa.schema([("k", pa.list_(pa.int8()))]), "3c009c58501b2280"),
    "a large list": (pa.schema([("k", pa.large_list(pa.int8()))]), "a7af7cbee1a94151"),
    "a list of one length": (pa.schema([("k", FIXED)]), "74bb4e1817d1fa54"),
    "a struct": (pa.schema([("k", pa.struct([pa.field("a", pa.int8(), nullable=False)]))]), "eb9a31e5cf357dea"),
    "a map": (pa.schema([("k", pa.map_(pa.string(), pa.int8()))]), "e19043d652730511"),
    "an extension": (pa.schema([("k", pa.uuid())]), "406d7b217f91a1ab"),
}


@pytest.mark.parametrize("name", FILTERS)
def test_frozen_keys_of_filters(name: str) -> None:
    filters, key = FILTERS[name]
    assert filter_key(filters, SCHEMA)[:16] == key
    assert len(filter_key(filters, SCHEMA)) == 64


@pytest.mark.parametrize("name", SCHEMAS)
def test_frozen_keys_over_schemas(name: str) -> None:
    schema, key = SCHEMAS[name]
    assert filter_key(K < 7, schema)[:16] == key


def test_different_filters_have_different_keys() -> None:
    keys = [key for _, key in FILTERS.values()] + [key for _, key in SCHEMAS.values()]
    assert len(set(keys)) == len(keys)


def test_every_element_of_a_long_list_counts() -> None:
    """What pyarrow prints leaves out the middle."""
    one, other = K.isin(range(1000)), K.isin([*range(500), 5000, *range(501, 1000)])
    assert str(one) == str(other)
    assert filter_key(one, SCHEMA) != filter_key(other, SCHEMA)


def test_an_equal_filter_has_the_same_key() -> None:
    def make() -> Any:
        return (K < 7) & pc.field("s").isin(["a", None]) | (pc.field("t") > dt.date(2020, 1, 1))

    assert filter_key(make(), SCHEMA) == filter_key(make(), SCHEMA)


def test_metadata_and_names_chosen_by_readers_do_not_count() -> None:
    names = [pa.field(name, pa.int8()) for name in ("item", "element")]
    one, other = (pa.schema([pa.field("l", pa.list_(name))]) for name in names)
    marked = one.with_metadata({"a": "b"}).set(0, one.field(0).with_metadata({"PARQUET:field_id": "3"}))
    assert filter_key(K < 7, one) == filter_key(K < 7, other) == filter_key(K < 7, marked)
