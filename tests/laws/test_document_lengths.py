"""Lengths in narrow integers give the start of any document, and the document of any token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.text.test_sequence_orders import tokens_of
from torch_table_loader.planning.lists import ListLengths
from torch_table_loader.testing import small_sizes
from torch_table_loader.text.slices import TokenRow

LENGTHS = st.one_of(
    st.lists(st.integers(0, 5), max_size=200),
    st.lists(st.sampled_from([0, 0, 1, 70_000]), max_size=200),
    st.tuples(st.integers(0, 200), st.integers(0, 200)).map(lambda run: [0] * run[0] + [3] + [0] * run[1]),
)


@given(lengths=LENGTHS)
def test_every_document_and_every_token_is_found(lengths: list[int]) -> None:
    made = ListLengths.of(np.array(lengths, dtype=np.int64))
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    documents = np.arange(len(lengths))
    assert made.total == offsets[-1]
    assert made.take(documents).tolist() == lengths
    assert made.starts(documents).tolist() == offsets[:-1].tolist()
    assert made.longest == ((max(lengths), lengths.index(max(lengths))) if lengths else (0, 0))
    assert [entry for _, batch in made.batches() for entry in batch.tolist()] == lengths
    if made.total:
        tokens = np.unique(np.concatenate((offsets[:-1], offsets[1:] - 1, offsets[:-1] + 1)).clip(0, made.total - 1))
        owners = np.repeat(documents, lengths)
        assert made.find(tokens).tolist() == owners[tokens].tolist()


@given(lengths=st.lists(st.integers(0, 5), max_size=200), data=st.data())
def test_cuts_equal_those_of_plain_offsets(lengths: list[int], data: st.DataObject) -> None:
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    edge = st.integers(0, int(offsets[-1]))
    stretches = data.draw(st.lists(st.tuples(edge, edge).map(sorted), max_size=8))
    starts = np.array([start for start, _ in stretches], dtype=np.int64)
    stops = np.array([stop for _, stop in stretches], dtype=np.int64)
    found = ListLengths.of(np.array(lengths, dtype=np.int64)).cut(starts, stops)
    assert tokens_of(found) == tokens_of(TokenRow(offsets).cut(starts, stops))


@small_sizes(lookups_at_once=7, lengths_at_once=7)
def test_many_documents_are_processed_in_parts() -> None:
    lengths = np.arange(1, 301)
    made = ListLengths.of(lengths)
    assert made.starts(np.arange(300)).tolist() == (np.cumsum(lengths) - lengths).tolist()
    assert made.find(np.arange(made.total)).tolist() == np.repeat(np.arange(300), lengths).tolist()
    assert np.concatenate([batch for _, batch in made.batches()]).tolist() == lengths.tolist()


@pytest.mark.parametrize(("longest", "width"), [(255, 1), (256, 2), (65_535, 2), (65_536, 4)])
def test_a_document_takes_the_bytes_of_the_longest_length_plus_an_eighth(longest: int, width: int) -> None:
    made = ListLengths.of(np.full(6400, longest))
    assert made.padded.nbytes + made.sums.nbytes == 6400 * width + 8 * 101
