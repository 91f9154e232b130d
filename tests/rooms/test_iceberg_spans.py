"""Statistics decide to which files an equality delete may apply."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from torch_table_loader.iceberg.scan import KeySpans, bound, may_meet
from torch_table_loader.predicates.facts import Facts

KEYS = {
    1: ("int", "<i", (-2, 0, 3, 7)),
    2: ("decimal(9, 2)", None, (-129, -1, 0, 128)),
    3: ("string", "", ("", "a", "ab")),
}
SPANS = KeySpans({field_id: kind for field_id, (kind, _, _) in KEYS.items()}, frozenset())


def key_bytes(field_id: int, value: Any) -> bytes:
    how = KEYS[field_id][1]
    if how is None:
        return int(value).to_bytes(2, "big", signed=True)
    return struct.pack(how, value) if how else str(value).encode()


@st.composite
def key_files(draw: st.DrawFn) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
    """Draw the keys of a file, and a manifest that may say less about them than it could."""
    keys = draw(st.lists(st.tuples(*(st.sampled_from([None, *values]) for _, _, values in KEYS.values())), max_size=3))
    said: dict[str, Any] = {"record_count": len(keys), "equality_ids": list(KEYS), "content": 2}
    for name in ("lower_bounds", "upper_bounds", "null_value_counts", "value_counts"):
        said[name] = []
        for place, field_id in enumerate(KEYS):
            known = [key_bytes(field_id, key[place]) for key in sorted_by(keys, place)]
            what = {
                "lower_bounds": known[0] if known else None,
                "upper_bounds": known[-1] if known else None,
                "null_value_counts": len(keys) - len(known),
                "value_counts": len(keys),
            }[name]
            if what is not None and draw(st.booleans()):
                said[name].append({"key": field_id, "value": what})
    return keys, said


def sorted_by(keys: list[tuple[Any, ...]], place: int) -> list[tuple[Any, ...]]:
    return sorted((key for key in keys if key[place] is not None), key=lambda key: key[place])


@given(one=key_files(), other=key_files(), ids=st.sets(st.sampled_from(list(KEYS)), min_size=1))
def test_files_with_a_key_in_common_may_meet(one: Any, other: Any, ids: set[int]) -> None:
    (some, said), (others, of_other) = one, other
    data = replace(SPANS, ids=frozenset(ids)).read(said | {"content": 0})
    deletes = SPANS.read(of_other | {"equality_ids": sorted(ids)})
    places = [place for place, field_id in enumerate(KEYS) if field_id in ids]
    common = {tuple(key[at] for at in places) for key in some} & {tuple(key[at] for at in places) for key in others}
    assert may_meet(deletes, data) or not common


def test_spans_of_keys_are_read_from_statistics() -> None:
    def span(low: Any, high: Any, nulls: bool = False, values: bool = True, nans: bool = False) -> Any:
        return ((1, Facts(low, high, nulls, nans, values)),)

    assert not may_meet(span(0, 5), span(6, 9))
    assert not may_meet(span("b", "c"), span("a", "az"))
    assert not may_meet(span(0, 5), span(None, None, nulls=True, values=False))
    assert may_meet(span(0, 5, nulls=True), span(6, 9, nulls=True))
    assert may_meet(span(0.0, 5.0, nans=True), span(6.0, 9.0, nans=True))
    assert not may_meet(span(0.0, 5.0, nans=True), span(6.0, 9.0))
    assert may_meet(span(0.0, 5.0), span(-9.0, -0.0))
    assert may_meet(span(0, 5), ((2, Facts(6, 9, nulls=False, nans=False)),))
    assert may_meet(span(None, 5), span(2, None))
    assert bound(struct.pack("<i", 7), "timestamp") is None
    assert bound(struct.pack("<d", float("nan")), "double") is None
    assert bound(bytes(16), "uuid") is None
    assert bound(b"\xff", "string") is None
    [(_, facts)] = replace(SPANS, types={1: "double"}).read(
        {"record_count": 1, "equality_ids": [1], "content": 2, "lower_bounds": [{"key": 1, "value": bytes(8)}]}
    )
    assert facts == Facts(low=0.0)
