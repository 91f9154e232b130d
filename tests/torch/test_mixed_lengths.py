"""`seq_len_from` in mixtures: all sources change the length of their sequences at one step, and lose no token."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import partial
from itertools import islice, zip_longest
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.tables.plain import meant_warnings
from tests.torch.mixtures import FIRST, NAMES, SOURCES, ranks_take, worlds, write_sources
from tests.torch.packing_reference import (
    Place,
    Whole,
    check_batch,
    documents_of,
    full_pack,
    length_of_step,
    places_of,
)
from torch_table_loader import ConfigError, MixedDataset, Pack, Stop, StructuredDataset, TableLoader
from torch_table_loader.schedules import Schedule

KINDS: dict[str, dict[str, Any]] = {
    "streams": {"shuffle": True},
    "streams in order": {"shuffle": False},
    "rows": {"shuffle": "rows", "row_store": "memory"},
}
PACK = full_pack(seq_len=3, seq_len_from={2: 7, 4: 2, 9: 11}, labels="shifted")
WEIGHTS = {"a": 5, "b": 3, "c": 1}


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
    found = [Taken(own.seq_len, tuple(sequence)) for sequence in check_batch(batch, every, own) if sequence]
    assert all(len({document // 100 for document, _ in each.tokens}) == 1 for each in found)
    return found


def tokens_of(steps: Any) -> Counter[Place]:
    return Counter(place for step in steps for each in step for place in each.tokens)


def job(tables: Mapping[str, str], kind: str, state: Any, steps: int | None, **world: Any) -> tuple[list[Any], Any]:
    """Give what all ranks together deliver, step by step, and the state after it."""
    found, states = ranks_take(partial(make, tables, kind), state, steps, rows=taken, **world)
    assert all(each == states[0] for each in states) or steps is None
    return [[each for own in step for each in own] for step in zip_longest(*found, fillvalue=[])], states[0]


def check_lengths(steps: list[list[Taken]], pack: Pack, first: int) -> None:
    for step, found in enumerate(steps, first):
        assert {each.length for each in found} <= {length_of_step(pack, 0, step)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("worker_type", ["thread", "process"])
@daily(2)
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


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    chain=st.lists(st.tuples(worlds(3), st.integers(0, 4)), min_size=1, max_size=3),
    last=worlds(3),
    weights=st.sampled_from(["rows", WEIGHTS]),
)
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


@pytest.mark.parametrize("kind", KINDS)
def test_shares_hold_in_sequences_of_any_length(tables: dict[str, str], kind: str) -> None:
    loader, _ = make(tables, kind, weights=WEIGHTS, stop={"a": 3}, unit="tokens", batch_size=9)
    counts = Counter[str]()
    for step, batch in enumerate(islice(loader, len(loader) - 1)):
        found = taken(batch)
        counts.update(NAMES[each.tokens[0][0] // 100] for each in found)
        assert all(abs(counts[name] - WEIGHTS[name] * (step + 1)) <= 1 for name in NAMES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_goes_on_from_one_length_and_back(tables: dict[str, str], kind: str) -> None:
    plain = full_pack(seq_len=5, labels="shifted")
    found: list[list[Taken]] = []
    state: Any = None
    for pack, steps in ((plain, 3), (PACK, 3), (plain, 2), (full_pack(seq_len=13, labels="shifted"), None)):
        steps_taken, state = job(tables, kind, state, steps, pack=pack, num_ranks=1, num_workers=2)
        check_lengths(steps_taken, pack, len(found))
        found += steps_taken
    assert sorted(tokens_of(found).elements()) == ALL


@pytest.mark.parametrize("kind", KINDS)
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


@pytest.mark.parametrize("kind", KINDS)
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most", [{"c": 3}, {"b": 1, "c": 2}], ids=str)
def test_sources_come_at_most_so_often(tables: dict[str, str], kind: str, most: dict[str, int]) -> None:
    dropped = {"stop": Stop("all_exhausted", drop={"c": most["c"]})} if "b" not in most else {"stop": most}
    found, _ = job(tables, kind, None, None, weights=WEIGHTS, num_ranks=1, **dropped)
    counts = tokens_of(found)
    for name, times in most.items():
        assert max(counts[place] for place in TOKENS[name]) <= times
    reached = [name for name, times in most.items() if min(counts[place] for place in TOKENS[name]) >= times - 1]
    assert reached


@pytest.mark.parametrize("kind", KINDS)
@daily(2)
def test_rows_of_names_the_documents_of_any_length(tables: dict[str, str], kind: str) -> None:
    loader, _ = make(tables, kind, num_workers=1)
    for step, batch in enumerate(loader):
        other, _ = make(tables, kind, num_workers=1)
        other.seek(step=step)
        rows = other.rows_of(step - max(begin for begin in (0, *dict(PACK.seq_len_from)) if begin <= step))
        owners = np.asarray(batch["documents"]["id"]).tolist()
        assert [(each[0], FIRST[str(each[0])] + each[1]) for each in rows] == [
            (NAMES[own // 100], own) for own in owners
        ]


@pytest.mark.parametrize("kind", KINDS)
def test_explain_speaks_of_all_lengths(tables: dict[str, str], kind: str) -> None:
    loader, dataset = make(tables, kind, num_ranks=2, rank=0, even_ranks="pad")
    told = dataset.explain()
    assert list(told.steps_per_rank or ()) == [len(loader)] * 2
    assert any("3 tokens, 7 from step 2 of the first epoch on, 2 from step 4, 11 from step 9" in n for n in told.notes)
    assert len(list(loader)) == len(loader)
    assert loader.metrics().batches == len(loader)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_not_counted_where_lengths_change(tables: dict[str, str], kind: str) -> None:
    for options in ({"stop": Stop(tokens=50)}, {"weights": Schedule({0: WEIGHTS, 40: WEIGHTS}, "tokens")}):
        with pytest.raises(ConfigError, match="one length, got seq_len_from"):
            make(tables, kind, **options)
    packs = {"a": PACK, "b": full_pack(seq_len=3, labels="shifted")}
    sources = {name: partial(StructuredDataset, tables[name], pack=pack, **KINDS[kind]) for name, pack in packs.items()}
    with pytest.raises(ConfigError, match=r"pack.seq_len_from is .* in 'a'"):
        MixedDataset(sources, "rows", check_plan=False)
