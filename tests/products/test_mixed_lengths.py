"""`seq_len` by step in mixtures: all sources change the length of their sequences at one step, and lose no token."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from itertools import islice, zip_longest
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.launchers.jobs import of_a_running_rank
from tests.mixtures.mixed_worlds import ranks_take, worlds
from tests.products.packed_sources import FIRST, NAMES, SOURCES, write_sources
from tests.states import record_of, with_record
from tests.tables.plain import meant_warnings
from tests.text.packing_reference import (
    Place,
    Whole,
    check_batch,
    documents_of,
    full_pack,
    length_of_step,
    places_of,
)
from torch_table_loader import ConfigError, MixedDataset, Pack, ResumeError, Stop, StructuredDataset, TableLoader
from torch_table_loader.schedules import Done, Schedule
from torch_table_loader.testing import small_sizes

KINDS: dict[str, dict[str, Any]] = {
    "streams": {"shuffle": "splits"},
    "streams in order": {"shuffle": False},
    "rows": {"shuffle": "rows", "row_store": "memory"},
}
EVERY_KIND = [pytest.param(kind, marks=[pytest.mark.slow] if "order" in kind else []) for kind in KINDS]
PACK = full_pack(seq_len={0: 3, 2: 7, 4: 2, 9: 11}, labels="shifted")
WEIGHTS = {"a": 5, "b": 3, "c": 1}
EVEN = {"a": 1, "b": 1, "c": 1}


class Taken(NamedTuple):
    """A sequence that one step delivered."""

    length: int
    tokens: tuple[Place, ...]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_sources(tmp_path_factory.mktemp("documents"))


def wholes(name: str) -> dict[int, Whole]:
    return documents_of(SOURCES[name], PACK, FIRST[name])


TOKENS = {name: places_of(wholes(name)) for name in NAMES}
ALL = sorted(place for own in TOKENS.values() for place in own)


def make(
    tables: Mapping[str, str], kind: str, pack: Pack = PACK, weights: Any = "rows", **options: Any
) -> tuple[TableLoader, MixedDataset]:
    size = {} if "global_batch_size" in options else {"batch_size": 2}
    asked: dict[str, Any] = {"check_plan": False, "columns": ["id"], "pack": pack, **size} | options
    with meant_warnings():
        sources = {name: partial(StructuredDataset, path, **KINDS[kind]) for name, path in tables.items()}
        return MixedDataset.create_dataloader(sources, weights, **asked)


def taken(batch: Any, names: tuple[str, ...] = NAMES) -> list[Taken]:
    """Check every value of a batch, and that each sequence is of one source; give them, padding left out."""
    own = full_pack(seq_len=batch["input_ids"].shape[1], labels=PACK.labels)
    every = {number: each for name in names for number, each in wholes(name).items()}
    found = [Taken(own.width, tuple(sequence)) for sequence in check_batch(batch, every, own) if sequence]
    assert all(len({document // 100 for document, _ in each.tokens}) == 1 for each in found)
    return found


def tokens_of(steps: Any) -> Counter[Place]:
    return Counter(place for step in steps for each in step for place in each.tokens)


def job(tables: Mapping[str, str], kind: str, state: Any, steps: int | None, **world: Any) -> tuple[list[Any], Any]:
    """Give what all ranks together deliver, step by step, and the state after it."""
    found, states = ranks_take(partial(make, tables, kind), state, steps, rows=taken, **world)
    state = of_a_running_rank(states)
    return [[each for own in step for each in own] for step in zip_longest(*found, fillvalue=[])], state


def check_lengths(steps: list[list[Taken]], pack: Pack, first: int) -> None:
    for step, found in enumerate(steps, first):
        assert {each.length for each in found} <= {length_of_step(pack, 0, step)}


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("worker_type", ["thread", "process"])
@daily(1)
def test_each_token_comes_once_and_every_step_resumes(tables: dict[str, str], kind: str, worker_type: Any) -> None:
    world = {"num_workers": 2, "worker_type": worker_type, "num_ranks": 1}
    whole, _ = job(tables, kind, None, None, **world)
    assert [step[0].length for step in whole[:10]] == [3, 3, 7, 7, 2, 2, 2, 2, 2, 11]
    check_lengths(whole, PACK, 0)
    assert sorted(tokens_of(whole).elements()) == ALL
    loader, _ = make(tables, kind, **world)
    batches = iter(loader)
    for steps in range(len(whole) + 1):
        state = loader.state_dict()
        fresh, _ = make(tables, kind, num_workers=2)
        fresh.load_state_dict(json.loads(json.dumps(state)))
        assert (len(fresh), fresh.remaining) == (len(whole), len(whole) - steps)
        if worker_type == "thread" or steps == len(whole) // 2:
            rest, _ = job(tables, kind, state, None, **world)
            assert rest == whole[steps:]
        assert [taken(batch) for batch in islice(batches, 1)] == whole[steps : steps + 1]


@pytest.mark.parametrize("kind", EVERY_KIND)
@settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    chain=st.lists(st.tuples(worlds(3), st.integers(0, 4)), min_size=1, max_size=3),
    last=worlds(3),
    weights=st.sampled_from(["rows", WEIGHTS]),
)
@daily(1)
def test_any_chain_of_worlds_delivers_each_token_once(
    tables: dict[str, str], kind: str, chain: Any, last: Any, weights: Any
) -> None:
    stop = "first_exhausted" if weights == "rows" else "all_exhausted"
    found: list[list[Taken]] = []
    state: Any = None
    for world, steps in [*chain, (last, None)]:
        steps_taken, state = job(tables, kind, state, steps, weights=weights, stop=stop, **world)
        check_lengths(steps_taken, PACK, len(found))
        found += steps_taken
    counts = tokens_of(found)
    for own in TOKENS.values():
        times = [counts[place] for place in own]
        assert min(times) >= 1
        assert max(times) - min(times) <= 1
        assert weights != "rows" or max(times) == 1


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_shares_hold_in_sequences_of_any_length(tables: dict[str, str], kind: str) -> None:
    loader, _ = make(tables, kind, weights=WEIGHTS, stop={"a": 3}, unit="tokens", batch_size=9)
    counts = Counter[str]()
    for step, batch in enumerate(islice(loader, len(loader) - 1)):
        found = taken(batch)
        counts.update(NAMES[each.tokens[0][0] // 100] for each in found)
        assert all(abs(counts[name] - WEIGHTS[name] * (step + 1)) <= 1 for name in NAMES)


def lacks_of(steps: list[list[Taken]], weights: Mapping[str, int]) -> dict[str, Fraction]:
    """Count the tokens that each source lacks of its share of all that came."""
    counts = {
        name: counted([[each for each in step if sources_of([each]) == {name}] for step in steps]) for name in NAMES
    }
    came, whole = sum(counts.values()), sum(weights.values())
    return {name: Fraction(came * weights[name], whole) - counts[name] for name in NAMES}


@pytest.mark.parametrize("kind", EVERY_KIND)
@settings(max_examples=examples(4), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    chain=st.lists(st.tuples(worlds(5), st.integers(1, 6)), min_size=2, max_size=3),
    lengths=st.lists(st.integers(2, 8), min_size=3, max_size=6).map(sorted),
    weights=st.sampled_from([WEIGHTS, {"a": 3, "b": 2, "c": 2}, {"a": 1, "b": 4, "c": 2}]),
)
@daily(1)
def test_shares_of_tokens_go_on_where_sequences_grow(
    tables: dict[str, str], kind: str, chain: Any, lengths: list[int], weights: dict[str, int]
) -> None:
    """They hold to within one sequence of the present length; of streams after every step that completes a block."""
    pack = full_pack(seq_len=dict(zip(range(0, 60, 3), lengths, strict=False)), labels="shifted")
    options: dict[str, Any] = {"pack": pack, "weights": weights, "stop": Stop("forever", tokens=2500), "unit": "tokens"}
    found: list[list[Taken]] = []
    state: Any = None
    for world, steps in chain:
        size = -(-sum(weights.values()) // min(weights.values()))
        own = {**world, "batch_size": size, "even_ranks": None}
        steps_taken, state = job(tables, kind, state, steps, **options, **own)
        for step in steps_taken:
            found.append(step)
            length = length_of_step(pack, 0, len(found) - 1)
            assert all(abs(lack) < length for lack in lacks_of(found, weights).values())


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_schedule_goes_on_from_one_length_and_back(tables: dict[str, str], kind: str) -> None:
    plain = full_pack(seq_len=5, labels="shifted")
    found: list[list[Taken]] = []
    state: Any = None
    for pack, steps in ((plain, 3), (PACK, 3), (plain, 2), (full_pack(seq_len=13, labels="shifted"), None)):
        steps_taken, state = job(tables, kind, state, steps, pack=pack, num_ranks=1, num_workers=2)
        check_lengths(steps_taken, pack, len(found))
        found += steps_taken
    assert sorted(tokens_of(found).elements()) == ALL


@pytest.mark.parametrize("kind", EVERY_KIND)
@daily(2)
def test_seek_and_later_epochs(tables: dict[str, str], kind: str) -> None:
    loader, _ = make(tables, kind, epochs=2)
    length, whole = len(loader), [taken(batch) for batch in loader]
    assert len(whole) == length
    first = len(make(tables, kind)[0])
    assert sorted(tokens_of(whole[:first]).elements()) == ALL
    assert sorted(tokens_of(whole[first:]).elements()) == ALL
    assert {each.length for step in whole[first:] for each in step} == {11}
    for step in (0, 2, 3, 9, first):
        sought, _ = make(tables, kind)
        assert sought.seek(step=step) == step
        assert [taken(batch) for batch in sought] == whole[step:first]


@pytest.mark.parametrize("kind", EVERY_KIND)
@daily(1)
def test_lengths_weights_and_batch_sizes_change_together(tables: dict[str, str], kind: str) -> None:
    options: dict[str, Any] = {
        "weights": {0: WEIGHTS, 3: {"a": 1, "b": 1, "c": 0}, 8: {"a": 1, "b": 4, "c": 3}},
        "stop": "all_exhausted",
        "global_batch_size": Schedule({0: 2, 3: 4}),
        "num_ranks": 1,
    }

    def own(state: Any, steps: int | None) -> tuple[list[Any], Any]:
        return job(tables, kind, state, steps, **options)

    whole, _ = own(None, None)
    check_lengths(whole, PACK, 0)
    counts = tokens_of(whole)
    assert all(counts[place] >= 1 for place in ALL)
    for steps in (1, 3, 4, 5, 9, len(whole)):
        begun, state = own(None, steps)
        rest, _ = own(state, None)
        assert begun + rest == whole


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("most", [{"c": 3}, {"b": 1, "c": 2}], ids=str)
def test_sources_come_at_most_so_often(tables: dict[str, str], kind: str, most: dict[str, int]) -> None:
    dropped = {"stop": Stop("all_exhausted", drop={"c": most["c"]})} if "b" not in most else {"stop": most}
    found, _ = job(tables, kind, None, None, weights=WEIGHTS, num_ranks=1, **dropped)
    counts = tokens_of(found)
    for name, times in most.items():
        assert max(counts[place] for place in TOKENS[name]) <= times
    reached = [name for name, times in most.items() if min(counts[place] for place in TOKENS[name]) >= times - 1]
    assert reached


@pytest.mark.parametrize("kind", EVERY_KIND)
@daily(2)
def test_rows_of_names_the_documents_of_any_length(tables: dict[str, str], kind: str) -> None:
    loader, _ = make(tables, kind, num_workers=1)
    for step, batch in enumerate(loader):
        other, _ = make(tables, kind, num_workers=1)
        other.seek(step=step)
        rows = other.rows_of(step - max(begin for begin in PACK.lengths_by_step.values if begin <= step))
        owners = np.asarray(batch["documents"]["id"]).tolist()
        assert [(each[0], FIRST[str(each[0])] + each[1]) for each in rows] == [
            (NAMES[own // 100], own) for own in owners
        ]


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_explain_speaks_of_all_lengths(tables: dict[str, str], kind: str) -> None:
    loader, dataset = make(tables, kind, num_ranks=2, rank=0, even_ranks="pad")
    told = dataset.explain()
    assert list(told.steps_per_rank or ()) == [len(loader)] * 2
    assert any("3 tokens, 7 from step 2 of the first epoch on, 2 from step 4, 11 from step 9" in n for n in told.notes)
    assert len(list(loader)) == len(loader)
    assert loader.metrics().batches == len(loader)


def counted(steps: list[list[Taken]]) -> int:
    """Count the tokens of sequences, each by its length."""
    return sum(each.length for step in steps for each in step)


def sources_of(step: list[Taken]) -> set[str]:
    return {NAMES[each.tokens[0][0] // 100] for each in step}


ONE_BY_ONE = Schedule(
    {0: {"a": 1, "b": 0, "c": 0}, 20: {"a": 0, "b": 1, "c": 0}, 47: {"a": 0, "b": 0, "c": 1}}, unit="tokens"
)


def check_tokens(steps: list[list[Taken]], pack: Pack, most: int, size: int = 2) -> None:
    """Check that weights by tokens hold from their tokens on, and that no sequence more fits into the epoch.

    Where the last step filled it and the next one has shorter sequences, those need not come.

    Args:
        size: sequences of the last step, if it is full.
    """
    came = 0
    for step in steps:
        [name] = sources_of(step)
        assert ONE_BY_ONE.at(0, Done(tokens=came))[name] == 1
        came += counted([step])
    steps_with_room = range(len(steps) - 1, len(steps) + (len(steps[-1]) == size))
    assert came <= most < came + max(length_of_step(pack, 0, step) for step in steps_with_room)


@pytest.mark.parametrize("kind", EVERY_KIND)
@settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
@given(chain=st.lists(st.tuples(worlds(3), st.integers(0, 4)), max_size=3), last=worlds(3), most=st.integers(60, 130))
@daily(1)
def test_tokens_are_counted_in_any_chain_of_worlds(
    tables: dict[str, str], kind: str, chain: Any, last: Any, most: int
) -> None:
    options: dict[str, Any] = {"weights": ONE_BY_ONE, "stop": Stop("forever", tokens=most)}
    found: list[list[Taken]] = []
    state: Any = None
    size = 0
    for world, steps in [*chain, (last, None)]:
        steps_taken, state = job(tables, kind, state, steps, **options, **world)
        check_lengths(steps_taken, PACK, len(found))
        found += steps_taken
        size = world["num_ranks"] * world["batch_size"] if steps_taken else size
    check_tokens(found, PACK, most, size)


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("most", [3, 6, 17, 46, 60, 61, 200])
@daily(2)
def test_every_step_resumes_where_tokens_are_counted(tables: dict[str, str], kind: str, most: int) -> None:
    options: dict[str, Any] = {"weights": ONE_BY_ONE, "stop": Stop("forever", tokens=most), "num_ranks": 1}
    whole, _ = job(tables, kind, None, None, **options)
    check_tokens(whole, PACK, most)
    for steps in range(len(whole) + 1):
        begun, state = job(tables, kind, None, steps, **options)
        loader, _ = make(tables, kind, **options, rank=0)
        loader.load_state_dict(json.loads(json.dumps(state)))
        assert (len(loader), loader.remaining) == (len(whole), len(whole) - steps)
        rest, _ = job(tables, kind, state, None, **options)
        assert begun + rest == whole
        sought, _ = make(tables, kind, **options, rank=0)
        sought.seek(step=steps)
        assert [taken(batch) for batch in sought] == whole[steps:]


@pytest.mark.parametrize("kind", EVERY_KIND)
@daily(1)
def test_tokens_count_as_in_a_mixture_of_one_length(tables: dict[str, str], kind: str) -> None:
    later = full_pack(seq_len={0: 3, 10_000: 7}, labels="shifted")
    for most in (30, 31, 95):
        options: dict[str, Any] = {"weights": ONE_BY_ONE, "stop": Stop("forever", tokens=most), "num_ranks": 1}
        alike = [
            job(tables, kind, None, None, pack=pack, **options)[0]
            for pack in (later, full_pack(seq_len=3, labels="shifted"))
        ]
        assert alike[0] == alike[1]
        assert counted(alike[0]) == most // 3 * 3


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_tokens_of_a_source_that_is_gone_stay_counted(tables: dict[str, str], kind: str) -> None:
    stop, few = Stop("forever", tokens=150), {name: tables[name] for name in ("a", "b")}
    begun, state = job(tables, kind, None, 7, stop=stop, weights=WEIGHTS, num_ranks=1)
    names: Any = ("a", "b")
    loader, _ = make(few, kind, stop=stop, weights={"a": 1, "b": 1}, num_ranks=1, rank=0)
    loader.load_state_dict(state)
    rest = [taken(batch, names) for batch in loader]
    assert 150 - 11 < counted(begun) + counted(rest) <= 150


@pytest.mark.parametrize("pack", [PACK, full_pack(seq_len=3, labels="shifted")], ids=["lengths", "length"])
@small_sizes(gather_rows=12)  # by default workers read hundreds of rounds of so few documents ahead
def test_a_state_says_the_tokens_before_its_weights(tables: dict[str, str], pack: Pack) -> None:
    options: dict[str, Any] = {"pack": pack, "weights": {0: WEIGHTS, 4: EVEN}, "stop": "forever", "num_ranks": 1}
    begun, _ = job(tables, "rows", None, 4, **options)
    _, state = job(tables, "rows", None, 6, **options)
    assert record_of(state, "packing")["origin"] == counted(begun)
    loader, _ = make(tables, "rows", **options, rank=0)
    with pytest.raises(ResumeError, match=r"packing\.origin must be that of weights which begin at \d+"):
        loader.load_state_dict(with_record(state, "packing", origin=0))


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_source_may_go_where_sequences_change_their_length(tables: dict[str, str], kind: str) -> None:
    _, state = job(tables, kind, None, 3, pack=full_pack(seq_len=5, labels="shifted"), weights=WEIGHTS, num_ranks=1)
    names: Any = ("a", "b")
    few = {name: tables[name] for name in names}
    loader, _ = make(few, kind, full_pack(seq_len=9, labels="shifted"), {"a": 1, "b": 1})
    loader.load_state_dict(state)
    rest = [taken(batch, names) for batch in loader]
    assert {each.length for step in rest for each in step} == {9}
    assert max(tokens_of(rest).values()) == 1


def of_sources(tables: Mapping[str, str], names: str, **packing: Any) -> TableLoader:
    own: dict[str, Any] = {"shuffle": "rows", "row_store": "memory", "columns": ["id"], "check_plan": False}
    sources = {name: StructuredDataset(tables[name], **own, **packing) for name in names}
    job: dict[str, Any] = {"batch_size": 2, "num_workers": 0, "stop": "all_exhausted", "check_plan": False}
    return MixedDataset.create_dataloader(sources, dict.fromkeys(names, 1), **job)[0]


def documents_in(batches: Any) -> list[list[int]]:
    return [batch.get("documents", batch)["id"].tolist() for batch in batches]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"pack": Pack(seq_len=5)}, {"pack": Pack(seq_len=9)}),
        ({"pack": Pack(seq_len=5, strategy="pad")}, {"pack": Pack(seq_len=9, strategy="pad")}),
        ({"pack": Pack(seq_len=5)}, {}),
        ({}, {"pack": Pack(seq_len=9)}),
    ],
    ids=["cut anywhere", "kept whole", "rows", "packed"],
)
@daily(2)
def test_sources_that_are_all_new_come_in_their_own_form(tables: dict[str, str], before: Any, after: Any) -> None:
    loader = of_sources(tables, "a", **before)
    list(islice(loader, 2))
    state = loader.state_dict()
    loader, whole = of_sources(tables, "bc", **after), documents_in(of_sources(tables, "bc", **after))
    loader.load_state_dict(json.loads(json.dumps(state)))
    batches = iter(loader)
    found = documents_in(islice(batches, 1))
    state, again = loader.state_dict(), of_sources(tables, "bc", **after)
    again.load_state_dict(json.loads(json.dumps(state)))
    rest = documents_in(batches)
    assert documents_in(again) == rest
    assert {number for batch in found + rest for number in batch} == {number for batch in whole for number in batch}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_what_does_not_fit_is_refused(tables: dict[str, str], kind: str) -> None:
    with pytest.raises(ConfigError, match="at least those of one sequence, 3, got 2"):
        make(tables, kind, stop=Stop(tokens=2))
    packs = {"a": PACK, "b": full_pack(seq_len=3, labels="shifted")}
    sources = {name: partial(StructuredDataset, tables[name], pack=pack, **KINDS[kind]) for name, pack in packs.items()}
    with pytest.raises(ConfigError, match=r"pack.seq_len is .* in 'a'"):
        MixedDataset(sources, "rows", check_plan=False)
