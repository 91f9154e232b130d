"""Documents that lie in files: what is taken of them is what a list of their tokens gives."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from torch_table_loader.planning.lists import PUT_IN, ListLengths
from torch_table_loader.text.placed_documents import LACKS_BEGIN, LACKS_END, PlacedDocuments, PutIn

BEGIN, END, BEHIND = 1000, 1001, 1002


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data(), first=st.integers(0, 5), behind=st.booleans())
def test_parts_are_those_of_whole_documents(data: Any, first: int, behind: bool) -> None:
    documents = data.draw(
        st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4), st.integers(0, 3), st.booleans()), min_size=1)
    )
    file, whole, strides, lacking = list(range(first)), list[list[int]](), list[int](), list[int]()
    for stored, gap, lacks, left_out in documents:
        tokens = list(range(len(file), len(file) + stored))
        file += range(len(file), len(file) + stored + gap)
        strides.append(stored + gap)
        out = left_out or not stored
        lacking.append(0 if out else lacks)
        begin, end = [BEGIN] * (lacks & LACKS_BEGIN > 0), [END] * (lacks & LACKS_END > 0)
        whole.append([] if out else [*begin, *tokens, *end, *[BEHIND] * behind])
    lengths = ListLengths.of(np.array(list(map(len, whole))))
    placed = PlacedDocuments(
        lengths,
        ListLengths.of(np.array(strides)),
        np.array(lacking, np.uint8),
        PutIn(BEGIN, END, BEHIND if behind else None),
        first,
    )
    some = [number for number, document in enumerate(whole) if document]
    of, start, length = list[int](), list[int](), list[int]()
    for number in data.draw(st.lists(st.sampled_from(some)) if some else st.just([])):
        of.append(number)
        start.append(data.draw(st.integers(0, len(whole[number]) - 1)))
        length.append(data.draw(st.integers(1, len(whole[number]) - start[-1])))
    document, first_token, count = (np.array(each, np.int64) for each in (of, start, length))
    runs = placed.runs(placed.locate(document), first_token, count)
    elements = dict(enumerate(file)) | dict(enumerate(placed.put_in.tokens, PUT_IN))
    found = [elements[at + place] for at, n in zip(*map(np.ndarray.tolist, runs), strict=True) for place in range(n)]
    assert found == [token for d, a, n in zip(of, start, length, strict=True) for token in whole[d][a : a + n]]
    stored = placed.stored(lengths.starts(document) + first_token, count)
    kept = [file[at + place] for at, n in zip(*map(np.ndarray.tolist, stored), strict=True) for place in range(n)]
    assert kept == [token for token in found if token < BEGIN]
