"""Exclusion: a set that round-trips, and an order over exactly the remaining rows."""

from __future__ import annotations

import json
import struct
import zlib
from base64 import b64encode

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_table_loader.errors import ConfigError, ConfigTypeError, ResumeError
from torch_table_loader.extend import Exclusions, ExclusionVersions, Permutation, Remaining, derive_key
from torch_table_loader.planning.exclusion import decode_ids, encode_ids

N = 300_000
spans = st.lists(st.tuples(st.integers(0, N - 1), st.integers(1, 9_000), st.integers(1, 3)), max_size=4)
operations = st.lists(st.tuples(st.booleans(), spans), max_size=5)


def ids_of(spans: list[tuple[int, int, int]]) -> list[int]:
    return [row for start, length, stride in spans for row in range(start, min(start + length, N), stride)]


@given(spans=spans)
def test_an_encoded_set_decodes_to_the_same_set(spans: list[tuple[int, int, int]]) -> None:
    ids = np.array(sorted(set(ids_of(spans))), dtype=np.int64)
    text = encode_ids(ids)
    assert np.array_equal(decode_ids(text), ids)
    assert json.loads(json.dumps(text)) == text


def test_large_numbers_and_full_blocks_round_trip() -> None:
    ids = np.array([0, 2**40, 2**62, 2**63 - 1])
    assert np.array_equal(decode_ids(encode_ids(ids)), ids)
    full = np.arange(1 << 20, dtype=np.int64)
    assert np.array_equal(decode_ids(encode_ids(full)), full)


@given(mask=st.lists(st.booleans(), max_size=50), before=st.sets(st.integers(0, 49)))
def test_a_mask_means_the_rows_where_it_is_true(mask: list[bool], before: set[int]) -> None:
    rows = len(mask)
    start = Exclusions().exclude([row for row in before if row < rows], rows)
    ids = [row for row, chosen in enumerate(mask) if chosen]
    for given_mask in (mask, np.array(mask, np.bool_), torch.tensor(mask, dtype=torch.bool)):
        if rows:
            assert start.exclude(given_mask, rows) == start.exclude(ids, rows)
            assert start.exclude(given_mask, rows).ids.tolist() == sorted({*ids, *start.ids.tolist()})
            assert start.include(given_mask, rows).ids.tolist() == sorted({*start.ids.tolist()} - {*ids})


@pytest.mark.slow
def test_millions_stay_compact() -> None:
    rows = 100_000_000
    scattered = np.unique(np.random.default_rng(0).integers(0, rows, 2_000_000))
    assert len(encode_ids(scattered)) < 3 * len(scattered)
    assert len(encode_ids(np.arange(5_000_000))) < 8_000


@given(operations=operations)
def test_exclude_and_include_are_set_operations(operations: list[tuple[bool, list[tuple[int, int, int]]]]) -> None:
    found, wanted = Exclusions(), set[int]()
    for exclude, spans in operations:
        ids = ids_of(spans)
        found = found.exclude(ids, N) if exclude else found.include(ids, N)
        wanted = wanted | set(ids) if exclude else wanted - set(ids)
    assert found.ids.tolist() == sorted(wanted)
    again = Exclusions.from_state(json.loads(json.dumps(found.to_state())), N)
    assert again == found
    assert np.array_equal(again.ids, found.ids)


def test_the_hash_depends_on_the_calls_and_their_order() -> None:
    asked = [
        Exclusions(),
        Exclusions().exclude([1], N),
        Exclusions().exclude([2], N),
        Exclusions().exclude([1], N).exclude([2], N),
        Exclusions().exclude([2], N).exclude([1], N),
        Exclusions().exclude([1, 2], N).include([2], N),
    ]
    assert len({entry.digest for entry in asked}) == len(asked)
    assert Exclusions().exclude([2, 1, 1], N) == Exclusions().exclude(np.array([1, 2], dtype=np.uint8), N)


@given(total=st.integers(0, 200), gone=st.sets(st.integers(0, 199)))
def test_remaining_places_are_selected_in_order(total: int, gone: set[int]) -> None:
    out = np.array(sorted(row for row in gone if row < total), dtype=np.int64)
    left = Remaining(total, out)
    wanted = [row for row in range(total) if row not in gone]
    assert left.num_rows == len(wanted)
    assert left.select(np.arange(left.num_rows, dtype=np.int64)).tolist() == wanted
    assert left.rank(np.array(wanted, dtype=np.int64)).tolist() == list(range(len(wanted)))


@given(gone=st.sets(st.integers(0, 999), max_size=900), epoch=st.integers(0, 3))
def test_the_epoch_is_a_permutation_of_the_remaining_rows(gone: set[int], epoch: int) -> None:
    left = Remaining(1_000, np.array(sorted(gone), dtype=np.int64))
    order = left.select(Permutation(left.num_rows, derive_key(7, epoch, "rows")).slice(0, left.num_rows))
    assert sorted(order.tolist()) == sorted(set(range(1_000)) - gone)


def test_versions_are_one_entry_until_something_changes() -> None:
    one = Exclusions().exclude([5], N)
    assert len(ExclusionVersions(one, one).to_state()) == 1
    assert ExclusionVersions.from_state([], N) == ExclusionVersions()
    two = ExclusionVersions(one, one.include([5], N))
    assert ExclusionVersions.from_state(two.to_state(), N) == two


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([-1], ConfigError, "got -1"),
        ([0, N], ConfigError, f"got {N}"),
        ([0.5], ConfigTypeError, "must be integers"),
        (["a"], ConfigTypeError, "must be integers"),
        ([True], ConfigError, rf"a mask of rows must have the shape \({N},\).*got \(1,\)"),
        (np.zeros(N + 1, np.bool_), ConfigError, rf"got \({N + 1},\); of a mask over as_map\(\) pass view.row_ids"),
        (np.zeros((N, 1), np.bool_), ConfigError, rf"got \({N}, 1\)"),
        (torch.zeros(0, dtype=torch.bool), ConfigError, r"got \(0,\)"),
    ],
)
def test_ids_without_a_row_are_refused(ids: list[object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Exclusions().exclude(ids, N)
    assert len(Exclusions().exclude([], N).ids) == 0


@pytest.mark.parametrize(
    "state",
    [
        ["!", "0" * 32],
        ["", "0"],
        [b64encode(zlib.compress(b"torn")).decode(), "0" * 32],
        [b64encode(zlib.compress(b"")).decode(), "0" * 32],
        [b64encode(zlib.compress(struct.pack("<QIH", 0, 1, 3)) + b"more").decode(), "0" * 32],
        [encode_ids(np.array([3, N])), "0" * 32],
        [encode_ids(np.array([3, 5]))[:-4], "0" * 32],
        [b64encode(zlib.compress(struct.pack("<QI2H", 0, 2, 5, 3))).decode(), "0" * 32],
        [b64encode(zlib.compress(struct.pack("<QIH", 2**63, 1, 3))).decode(), "0" * 32],
        [b64encode(zlib.compress(bytes(1 << 26))).decode(), "0" * 32],
    ],
)
def test_malformed_states_are_refused(state: list[str]) -> None:
    with pytest.raises(ResumeError, match="state_dict"):
        ExclusionVersions.from_state([dict(zip(("ids", "digest"), state, strict=True))], N)
