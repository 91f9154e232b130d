"""The packing law: each document once, no pack too long, and best fit, as a plain search over all packs finds it."""

from __future__ import annotations

import hashlib
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.effort import examples
from torch_table_loader import Pack, TableError
from torch_table_loader.extend import Slices, derive_key, packer_of

Ints = NDArray[np.int64]


def int64(numbers: list[int]) -> Ints:
    return np.array(numbers, dtype=np.int64)


def packer(seq_len: int, strategy: Any, **options: Any) -> Any:
    return packer_of(Pack(seq_len=seq_len, strategy=strategy, **options))


def pieces_of(lengths: Ints, seq_len: int, how: str = "split") -> Slices:
    found: Slices = packer(seq_len, "pad", long_docs=how).row(lengths)
    return found


def best_fit(lengths: Ints, seq_len: int, most: int | None = None) -> Slices:
    """Return packs of documents that are no longer than a pack: of each, all tokens."""
    return whole(lengths, packer(seq_len, "best_fit", max_docs_per_row=most).row(lengths))


def another_best_fit(lengths: Ints, seq_len: int, count: int, epoch: int, most: int | None = None) -> Slices:
    key = derive_key(3, epoch, "packs")
    return whole(lengths, packer(seq_len, "best_fit", max_docs_per_row=most).another(lengths, key, count))


def whole(lengths: Ints, packed: Slices) -> Slices:
    assert not packed.start.any()
    assert np.array_equal(packed.length, lengths[packed.document])
    return packed


def packs(packed: Slices) -> list[list[int]]:
    if not len(packed.document):
        return []
    return [part.tolist() for part in np.split(packed.document, packed.offsets[1:-1])]


def sums(lengths: Ints, packed: Slices) -> list[int]:
    return [int(lengths[pack].sum()) for pack in packs(packed)]


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Ints, int]:
    """Lengths of documents and a seq_len; now and then of few different lengths, so that packs are equally full."""
    seq_len = draw(st.integers(1, 40) | st.sampled_from([63, 64, 65, 1000, 4096, 4097, 65_536, 100_003, 1 << 20]))
    length = draw(st.sampled_from([st.integers(1, seq_len), st.integers(1, min(seq_len, 5))]))
    few = draw(st.none() | st.lists(length, min_size=1, max_size=4))
    return int64(draw(st.lists(length if few is None else st.sampled_from(few), max_size=60))), seq_len


def searched(lengths: Ints, seq_len: int, most: int) -> list[list[int]]:
    """Best fit decreasing by looking at all packs for each document."""
    found: list[list[int]] = []
    touched: list[int] = []  # packs by when a document came into them last, the latest in front
    for document in sorted(range(len(lengths)), key=lambda document: (-lengths[document], document)):
        free = {pack: seq_len - int(lengths[found[pack]].sum()) for pack in touched if len(found[pack]) < most}
        fitting = [pack for pack in free if free[pack] >= lengths[document]]
        pack = min(fitting, key=lambda pack: free[pack], default=len(found))
        if pack == len(found):
            found.append([])
        found[pack].append(document)
        touched = [pack, *(other for other in touched if other != pack)]
    return [sorted(pack) for pack in sorted(found, key=lambda pack: pack[0])]


@given(blocks(), st.integers(1, 6) | st.none())
@settings(max_examples=examples(300), deadline=None)
def test_packs_are_those_of_a_plain_search(block: tuple[Ints, int], most: int | None) -> None:
    lengths, seq_len = block
    assert packs(best_fit(lengths, seq_len, most)) == searched(lengths, seq_len, most or len(lengths))


@given(blocks())
@settings(max_examples=examples(300), deadline=None)
def test_each_document_lies_in_one_pack_and_no_two_packs_would_fit_into_one(block: tuple[Ints, int]) -> None:
    lengths, seq_len = block
    packed = best_fit(lengths, seq_len)
    assert packed.document.dtype == packed.offsets.dtype == np.int64
    assert packed.offsets[0] == 0
    assert packed.offsets[-1] == len(lengths)
    assert np.array_equal(np.sort(packed.document), np.arange(len(lengths)))
    assert all(pack == sorted(pack) and pack for pack in packs(packed))
    tokens = sums(lengths, packed)
    assert max(tokens, default=0) <= seq_len
    assert all(first + second > seq_len for first, second in combinations(tokens, 2))


@given(blocks(), st.integers(1, 6))
@settings(max_examples=examples(150), deadline=None)
def test_a_pack_has_as_many_documents_as_it_may(block: tuple[Ints, int], most: int) -> None:
    lengths, seq_len = block
    packed = best_fit(lengths, seq_len, most)
    assert np.array_equal(np.sort(packed.document), np.arange(len(lengths)))
    held = list(zip(packs(packed), sums(lengths, packed), strict=True))
    assert all(len(pack) <= most and tokens <= seq_len for pack, tokens in held)
    open_ = [tokens for pack, tokens in held if len(pack) < most]
    assert all(first + second > seq_len for first, second in combinations(open_, 2))


@given(blocks(), st.randoms(use_true_random=False))
@settings(max_examples=examples(150), deadline=None)
def test_the_order_of_documents_decides_which_lie_together_but_not_which_lengths(
    block: tuple[Ints, int], random: object
) -> None:
    lengths, seq_len = block
    order = list(range(len(lengths)))
    random.shuffle(order)  # type: ignore[attr-defined]

    def kinds(of: Ints) -> list[list[int]]:
        return sorted(sorted(of[pack].tolist()) for pack in packs(best_fit(of, seq_len)))

    assert kinds(lengths) == kinds(lengths[order])


@given(blocks())
@settings(max_examples=examples(100), deadline=None)
def test_the_same_lengths_of_another_width_or_layout_give_the_same_packs(block: tuple[Ints, int]) -> None:
    lengths, seq_len = block
    strided = np.repeat(lengths, 2)[::2]
    for same in (lengths.astype(np.int32), strided, lengths.copy()):
        assert packs(best_fit(same, seq_len)) == packs(best_fit(lengths, seq_len))  # type: ignore[arg-type]


@pytest.mark.parametrize("seq_len", [1, 2, 3, 255, 256, 4096, 65_535, 65_536, 65_537, 1_000_003])
def test_documents_that_fit_exactly_fill_every_pack(seq_len: int) -> None:
    rng = np.random.default_rng(seq_len)
    cuts = [np.sort(rng.integers(0, seq_len + 1, 1)) for _ in range(50)]
    pairs = np.concatenate([np.diff(cut, prepend=0, append=seq_len) for cut in cuts])
    lengths = rng.permutation(pairs[pairs > 0])
    assert set(sums(lengths, best_fit(lengths, seq_len))) == {seq_len}


def test_packs_of_few_and_of_many_documents_are_mixed() -> None:
    """A block of shuffled documents gives packs in random order: sizes do not drift from its start to its end."""
    halves = np.zeros(2)
    for seed in range(20):
        lengths = pieces_of(log_normal(1000, seed), 4096).length
        documents = np.diff(best_fit(lengths, 4096).offsets)
        half = len(documents) // 2
        halves += documents[:half].mean(), documents[-half:].mean()
    assert abs(halves[0] / halves[1] - 1) < 0.15  # in the order of their lowest documents it would be 1.5


# ---- how full packs are ----------------------------------------------------------------------------------


def log_normal(documents: int, seed: int) -> Ints:
    return np.maximum(np.random.default_rng(seed).lognormal(np.log(600), 1.1, documents), 1).astype(np.int64)


@pytest.mark.parametrize(("documents", "least"), [(1000, 0.995), (4096, 0.999)])
def test_packs_of_real_lengths_are_full(documents: int, least: float) -> None:
    fills = []
    for seed in range(10):
        lengths = pieces_of(log_normal(documents, seed), 4096).length
        fills.append(lengths.sum() / 4096 / (len(best_fit(lengths, 4096).offsets) - 1))
    assert np.mean(fills) >= least


# ---- the same everywhere and for ever --------------------------------------------------------------------

# THESE VALUES MUST NEVER CHANGE. Packs are part of the saved state's format: whoever changes one of them makes every
# checkpoint of packed sequences resume in another order, without a word. Fix the code, not the values.
VECTORS: list[tuple[list[int], int, int | None, list[list[int]]]] = [
    ([], 7, None, []),
    ([7], 7, None, [[0]]),
    ([3, 6, 2, 5, 4], 10, None, [[1, 4], [0, 2, 3]]),
    ([1, 1, 1, 1, 1], 2, None, [[0, 1], [2, 3], [4]]),
    ([5, 2, 5, 2, 2], 7, None, [[0, 3], [1, 2], [4]]),
    ([9, 9, 9, 4, 4, 4, 4], 13, None, [[0, 5], [1, 4], [2, 3], [6]]),
    ([1, 2, 3, 4, 5, 6, 7, 8, 9], 11, 2, [[0], [4, 5], [3, 6], [2, 7], [1, 8]]),
    ([1, 1, 1, 1, 1, 1, 1], 100, 3, [[0, 1, 2], [3, 4, 5], [6]]),
]


@pytest.mark.parametrize(("lengths", "seq_len", "most", "expected"), VECTORS)
def test_packs_never_change(lengths: list[int], seq_len: int, most: int | None, expected: list[list[int]]) -> None:
    assert packs(best_fit(int64(lengths), seq_len, most)) == expected


@pytest.mark.parametrize(
    ("seq_len", "expected"),
    [
        (4096, "8f80fbdcf25a1bc3"),
        (5003, "4eae74781514eb3c"),
        (65_536, "de7f451ad52c2b9f"),
        (65_537, "e1ffba4cbdb51cd3"),
    ],
)
def test_packs_of_a_large_block_never_change(seq_len: int, expected: str) -> None:
    assert digest(best_fit(frozen_lengths(4096), seq_len)) == expected


@pytest.mark.parametrize(
    ("seq_len", "most", "expected"),
    [(4096, None, "0ad3985ebdedcced"), (5003, 3, "651005cb66241a5f"), (65_536, None, "ebc3253850058210")],
)
def test_packs_of_an_epoch_never_change(seq_len: int, most: int | None, expected: str) -> None:
    lengths = frozen_lengths(1000)
    count = len(best_fit(lengths, seq_len, most).offsets) - 1
    assert digest(another_best_fit(lengths, seq_len, count, 1, most)) == expected


def frozen_lengths(documents: int) -> Ints:
    # A linear congruential generator: lengths that no version of a library changes.
    lengths, number = [], 1
    for _ in range(documents):
        number = (number * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        lengths.append(1 + (number >> 33) % 3000)
    return int64(lengths)


def digest(packed: Slices) -> str:
    told = packed.document.astype("<i8").tobytes() + packed.offsets.astype("<i8").tobytes()
    return hashlib.blake2b(told, digest_size=8).hexdigest()


# ---- documents longer than a pack ------------------------------------------------------------------------


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 20))
@settings(max_examples=examples(150), deadline=None)
def test_pieces_of_split_documents_are_the_documents(lengths: list[int], seq_len: int) -> None:
    pieces = pieces_of(int64(lengths), seq_len, "split")
    tokens = [(document, start + token) for document, start, length in triples(pieces) for token in range(length)]
    assert tokens == [(document, token) for document, length in enumerate(lengths) for token in range(length)]
    last = {document: (start, length) for document, start, length in triples(pieces)}
    assert all(length == seq_len or last[document] == (start, length) for document, start, length in triples(pieces))
    assert all(1 <= length <= seq_len for _, _, length in triples(pieces))


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 20))
@settings(max_examples=examples(100), deadline=None)
def test_truncated_and_dropped_documents(lengths: list[int], seq_len: int) -> None:
    truncated = [(document, 0, min(length, seq_len)) for document, length in enumerate(lengths) if length]
    assert triples(pieces_of(int64(lengths), seq_len, "truncate")) == truncated
    whole = [(document, 0, length) for document, length in enumerate(lengths) if 0 < length <= seq_len]
    assert triples(pieces_of(int64(lengths), seq_len, "drop")) == whole
    if max(lengths, default=0) <= seq_len:
        assert triples(pieces_of(int64(lengths), seq_len, "error")) == whole
    else:
        with pytest.raises(TableError, match=f"more than seq_len={seq_len}"):
            pieces_of(int64(lengths), seq_len, "error")


def triples(pieces: Slices) -> list[tuple[int, int, int]]:
    assert {pieces.document.dtype, pieces.start.dtype, pieces.length.dtype} == {np.dtype(np.int64)}
    return list(zip(pieces.document.tolist(), pieces.start.tolist(), pieces.length.tolist(), strict=True))


def test_a_refusal_names_the_document() -> None:
    with pytest.raises(TableError, match=r"document 2 has 9 tokens, more than seq_len=4"):
        pieces_of(int64([3, 4, 9, 8]), 4, "error")


# ---- another grouping ------------------------------------------------------------------------------------


@settings(max_examples=examples(60), deadline=None)
@given(block=blocks(), most=st.sampled_from([None, 1, 3]), epoch=st.integers(0, 5))
def test_another_best_fit_has_every_document_once_in_as_many_packs(
    block: tuple[Ints, int], most: int | None, epoch: int
) -> None:
    lengths, seq_len = block
    count = len(best_fit(lengths, seq_len, most).offsets) - 1
    other = another_best_fit(lengths, seq_len, count, epoch, most)
    assert sorted(other.document.tolist()) == list(range(len(lengths)))
    assert len(packs(other)) == count
    assert max(sums(lengths, other), default=0) <= seq_len
    assert most is None or max(map(len, packs(other)), default=0) <= most


@pytest.mark.parametrize(("documents", "seq_len"), [(1000, 4096), (4096, 4096), (4096, 1001)])
def test_packs_of_two_epochs_have_few_in_common(documents: int, seq_len: int) -> None:
    lengths = np.minimum(np.random.default_rng(5).lognormal(np.log(600), 1.1, documents).astype(np.int64) + 1, seq_len)
    count = len(best_fit(lengths, seq_len).offsets) - 1

    def together(epoch: int) -> set[frozenset[int]]:
        found = packs(another_best_fit(lengths, seq_len, count, epoch))
        return {frozenset(pack) for pack in found if len(pack) > 1}

    one, two, again = together(0), together(1), together(0)
    assert one == again
    assert len(one & two) < 0.3 * len(one)
