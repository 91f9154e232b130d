"""Requests for a file's bytes: all needed bytes, none twice, in few requests, with few unneeded bytes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from torch_table_loader.extend import plan_pieces
from torch_table_loader.far.requests import Piece, fitted_to_held, merged, plan_file

Groups = list[list[tuple[int, int]]]

RANGES = st.tuples(st.integers(0, 400), st.integers(0, 60)).map(lambda each: (each[0], each[0] + each[1]))
GROUPS = st.lists(st.lists(RANGES, max_size=6), max_size=6)
LIMITS = st.fixed_dictionaries(
    {"gap": st.integers(0, 20), "most": st.integers(1, 80), "first": st.integers(0, 90), "spare": st.integers(0, 50)}
)
PLENTY = 1 << 40


@st.composite
def files(draw: st.DrawFn) -> Groups:
    """Row groups as writers lay them out: one after another, each some columns of it, in order."""
    place, groups = 4, []
    for _ in range(draw(st.integers(0, 6))):
        group = []
        for skipped, length in draw(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 100)), max_size=5)):
            group.append((place + skipped, place + skipped + length))
            place += skipped + length
        groups.append(group)
    return groups


def needed(groups: Groups) -> set[int]:
    return {at for group in groups for start, stop in group for at in range(start, stop)}


def asked(pieces: list[Piece]) -> list[int]:
    return [at for piece in pieces for start, stop in piece.requests for at in range(start, stop)]


def vain_runs(groups: Groups, pieces: list[Piece]) -> list[int]:
    """Return the lengths of unneeded stretches between two needed bytes of one request."""
    wanted = needed(groups)
    lengths = []
    for piece in pieces:
        for start, stop in piece.requests:
            run = 0
            for at in range(start, stop):
                run = 0 if at in wanted else run + 1
                if run and at + 1 in wanted:
                    lengths.append(run)
            assert start in wanted, "a request begins with a byte that is needed"
            assert stop - 1 in wanted, "a request ends with a byte that is needed"
    return lengths


def greedy(groups: Groups, gap: int, most: int) -> int:
    """Return the number of requests after merging all ranges of a file from its start."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(each for group in groups for each in group if each[0] < each[1]):
        begin = start
        if found and start - found[-1][1] <= gap and stop - found[-1][0] <= most:
            begin, _ = found.pop()
        while stop - begin > most:
            found.append((begin, begin + most))
            begin += most
        found.append((begin, stop))
    return len(found)


@settings(max_examples=examples(400), deadline=None)
@given(groups=GROUPS | files(), limits=LIMITS)
def test_every_needed_byte_is_requested_once(groups: Groups, limits: dict[str, int]) -> None:
    pieces = plan_pieces(groups, **limits)
    bytes_asked = asked(pieces)
    assert len(bytes_asked) == len(set(bytes_asked))
    assert needed(groups) <= set(bytes_asked)
    for piece in pieces:
        assert piece.requests
        assert piece.num_bytes == sum(stop - start for start, stop in piece.requests)
        assert all(0 < stop - start <= limits["most"] for start, stop in piece.requests)
        assert all(before[1] <= after[0] for before, after in pairwise(piece.requests))


@settings(max_examples=examples(400), deadline=None)
@given(groups=GROUPS | files(), limits=LIMITS)
def test_few_unneeded_bytes_are_read(groups: Groups, limits: dict[str, int]) -> None:
    vain = vain_runs(groups, plan_pieces(groups, **limits))
    assert max(vain, default=0) <= limits["gap"]
    num_needed = len(needed(groups))
    # The first piece and the others each may spend the spare bytes, or an eighth of what they need.
    assert sum(vain) <= 2 * limits["spare"] + num_needed // 8


@settings(max_examples=examples(400), deadline=None)
@given(groups=GROUPS | files(), limits=LIMITS)
def test_pieces_come_in_the_order_of_decoding(groups: Groups, limits: dict[str, int]) -> None:
    pieces = plan_pieces(groups, **limits)
    starts = [piece.groups.start for piece in pieces]
    assert starts == sorted(set(starts))
    held: set[int] = set()
    firsts = [*starts[1:], len(groups)][: len(pieces)]
    for piece, after in zip(pieces, firsts, strict=True):
        own = {at for start, stop in piece.requests for at in range(start, stop)}
        held |= own
        assert needed(groups[:after]) <= held, "what comes before the next piece's row groups is there"
        users = [number for number, group in enumerate(groups) if needed([group]) & own]
        assert (users[0], users[-1]) == (piece.groups.start, piece.groups.stop - 1)


@settings(max_examples=examples(400), deadline=None)
@given(groups=GROUPS | files(), limits=LIMITS)
def test_the_first_piece_is_one_row_group_or_small(groups: Groups, limits: dict[str, int]) -> None:
    for piece in plan_pieces(groups, **limits)[:1]:
        in_it = [group for group in groups[: piece.groups.stop] if needed([group])]
        own = {at for start, stop in piece.requests for at in range(start, stop)}
        # Later row groups may find bytes in it; those that it was made for are one, or small.
        made_for = [group for group in in_it if needed([group]) <= own]
        wanted = needed(made_for[:1])
        vain = limits["spare"] + len(own) // 8
        assert len(own) <= max(len(wanted), limits["first"]) + vain


@settings(max_examples=examples(400), deadline=None)
@given(groups=files(), limits=LIMITS)
def test_cuts_lie_between_ranges(groups: Groups, limits: dict[str, int]) -> None:
    requests = [each for piece in plan_pieces(groups, **limits) for each in piece.requests]
    for group in groups:
        for start, stop in group:
            if stop - start <= limits["most"]:
                assert any(begin <= start and stop <= end for begin, end in requests)


@settings(max_examples=examples(400), deadline=None)
@given(groups=files(), limits=LIMITS, tail=st.none() | st.integers(1, 30))
def test_there_are_few_requests(groups: Groups, limits: dict[str, int], tail: int | None) -> None:
    limits["spare"] = PLENTY
    if tail is not None and groups:  # as ORC has it: opening takes the file's end
        end = max((stop for group in groups for _, stop in group), default=0)
        groups[0].append((end, end + tail))
    requests = sum(len(piece.requests) for piece in plan_pieces(groups, **limits))
    apart = 1 if tail is None else 2
    assert requests <= 1.1 * greedy(groups, limits["gap"], limits["most"]) + apart


@settings(max_examples=examples(400), deadline=None)
@given(groups=GROUPS | files(), before=st.lists(GROUPS | files(), max_size=3), limits=LIMITS)
def test_held_bytes_are_not_requested_however_they_arrived(
    groups: Groups, before: list[Groups], limits: dict[str, int]
) -> None:
    held = [each for other in before for piece in plan_pieces(other, **limits) for each in piece.requests]
    pieces = plan_pieces(groups, **limits)
    fitted = list(fitted_to_held(pieces, groups, held))
    here = {at for start, stop in held for at in range(start, stop)}
    assert [piece.groups for piece in fitted] == [piece.groups for piece in pieces]
    assert needed(groups) <= set(asked(fitted)) <= set(asked(pieces))
    assert len(asked(fitted)) == len(set(asked(fitted)))
    for piece in fitted:
        assert all(start < stop for start, stop in piece.requests)
        assert all(one[1] <= other[0] for one, other in pairwise(piece.requests))
    if needed(groups) <= here:
        assert set(asked(fitted)) <= here, "a table that was read comes from the cache, whoever reads which part"
    if not here & needed(groups):
        assert fitted == pieces


def test_a_small_file_is_fetched_whole_unless_its_parts_are_held() -> None:
    groups = [[(4, 100)], [(200, 300)]]
    pieces = plan_file(groups, 390)
    assert [piece.requests for piece in pieces] == [((0, 390),)]
    for held, wanted in (([(4, 100)], ((0, 390),)), ([(0, 390)], ((0, 390),)), ([(4, 50), (50, 100), (180, 310)],
                         ((4, 100), (200, 300)))):  # fmt: skip
        assert [piece.requests for piece in fitted_to_held(pieces, groups, held)] == [wanted]
    assert [piece.requests for piece in plan_file(groups[:1], 390)] == [((4, 100),)]


@given(st.lists(RANGES))
def test_merged_ranges_are_apart_and_have_the_same_bytes(ranges: list[tuple[int, int]]) -> None:
    found = merged(ranges)
    assert needed([found]) == needed([ranges])
    assert all(one[1] < other[0] for one, other in pairwise(found))


def test_a_small_file_is_one_request() -> None:
    groups = [
        [(100 * group + 10 * column, 100 * group + 10 * column + 10) for column in range(10)] for group in range(5)
    ]
    assert [piece.requests for piece in plan_pieces(groups)] == [((0, 500),)]


def test_four_of_forty_columns_cost_little_more_than_their_bytes() -> None:
    for chunk in (1 << 10, 1 << 14, 1 << 17, 1 << 20):
        wanted = (0, 1, 17, 39)
        groups = [[((40 * g + c) * chunk, (40 * g + c + 1) * chunk) for c in wanted] for g in range(50)]
        num_bytes = sum(piece.num_bytes for piece in plan_pieces(groups))
        least = 50 * 4 * chunk
        assert num_bytes <= 1.2 * least + 2 * (1 << 15)
