"""Mixtures of packed streams: every token once a round, whole sequences, shares, and resuming in any world."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.states import is_ended
from tests.tables.plain import meant_warnings
from tests.torch.packing_reference import Place, Whole, check_batch, documents_of, full_pack, places_of, write_documents
from torch_table_loader import ConfigError, MixedDataset, Pack, ResumeError, StructuredDataset, TableLoader
from torch_table_loader.extend import SourceRow
from torch_table_loader.pack import PackStrategy

GROUPS: dict[str, list[list[int | None]]] = {
    "a": [[5, 0, 17, 1], [None, 40, 3], [9, 9, 2, 2, 30], [1], [12, 33, 4, 6], [20] * 9],
    "b": [[7, 8, 9], [3, 3, 3, 50], [16, 16]],
    "c": [[11, 2]],
}
NAMES = tuple(GROUPS)
FIRST = {"a": 0, "b": 100, "c": 200}
"""Sources number their documents apart, so that a token says which it is of."""

WEIGHTS = {"a": 5, "b": 3, "c": 1}
STRATEGIES: tuple[PackStrategy, ...] = ("concat", "pad", "best_fit")


class Packed(NamedTuple):
    """A sequence as it came: its source, and its tokens."""

    source: str
    tokens: tuple[Place, ...]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("documents")
    for name, groups in GROUPS.items():
        write_documents(root / name, groups, first=FIRST[name])
    return {name: str(root / name) for name in GROUPS}


def wholes_of(pack: Pack, name: str) -> dict[int, Whole]:
    return documents_of(GROUPS[name], pack, FIRST[name])


def make(
    tables: Mapping[str, str], pack: Pack, weights: Any = "rows", shuffle: bool = True, **options: Any
) -> tuple[TableLoader, MixedDataset]:
    asked: dict[str, Any] = {"check_plan": False, "columns": ["id"], "batch_size": 2, "pack": pack} | options
    with meant_warnings():
        sources = {name: partial(StructuredDataset, path, shuffle=shuffle) for name, path in tables.items()}
        return MixedDataset.create_dataloader(sources, weights, **asked)


def sequences(batch: Any, pack: Pack) -> list[Packed]:
    """Check every value of a batch; give its sequences, those that are padding left out."""
    wholes = {number: each for name in NAMES for number, each in wholes_of(pack, name).items()}
    tokens = iter(check_batch(batch, wholes, pack))
    sources, found = np.asarray(batch["documents"]["source"]), []
    for row in np.asarray(batch["doc_ids"]):
        real = row[row >= 0]
        if len(real):
            (source,) = set(sources[real].tolist())
            found.append(Packed(NAMES[source], tuple(next(tokens) for _ in real)))
            assert {document - document % 100 for document, _ in found[-1].tokens} == {FIRST[NAMES[source]]}
    return found


def job(
    tables: Mapping[str, str], pack: Pack, state: Any, steps: int | None, **world: Any
) -> tuple[list[list[Packed]], Any, list[int]]:
    """Give what all ranks deliver in some steps, step by step, the state after them, and the steps of each rank."""
    taken, states = [], []
    for rank in range(world["num_ranks"]):
        loader, _ = make(tables, pack, rank=rank, **world)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        with loader:
            left, batches = loader.remaining, list(islice(loader, steps))
            assert len(batches) == (left if steps is None else min(left, steps))
            states.append(loader.state_dict())
        taken.append([sequences(batch, pack) for batch in batches])
    most = max(map(len, taken))
    found = [[each for own in taken if step < len(own) for each in own[step]] for step in range(most)]
    running = [each for each in states if not is_ended(each)]
    return found, (running or states)[0], [len(own) for own in taken]


def check_rounds(found: Sequence[Packed], pack: Pack, least: int, most: int) -> None:
    """Check that each token of a source came as often as any other, but for one, and that sequences are what they are.

    Args:
        found: what came.
        pack: what was asked for.
        least: times that each token came.
        most: likewise.
    """
    seen = Counter(token for each in found for token in each.tokens)
    assert all(len(each.tokens) <= pack.seq_len for each in found)
    for name in NAMES:
        wholes = wholes_of(pack, name)
        times = [seen[token] for token in places_of(wholes)]
        assert max(times) - min(times) <= 1
        assert least <= min(times)
        assert max(times) <= most
        own = [each for each in found if each.source == name]
        if pack.strategy == "concat":
            short = sum(len(each.tokens) < pack.seq_len for each in own)
            assert short <= max(times)
        else:
            for each in own:
                _check_pieces(each, wholes, pack)


def _check_pieces(packed: Packed, wholes: Mapping[int, Whole], pack: Pack) -> None:
    """Documents that fit come whole; longer ones in pieces of one length, but for the last."""
    parts: dict[int, list[int]] = {}
    for document, place in packed.tokens:
        parts.setdefault(document, []).append(place)
    assert pack.strategy == "best_fit" or len(parts) == 1
    for document, places in parts.items():
        assert places[0] % pack.seq_len == 0
        assert len(places) == min(pack.seq_len, len(wholes[document].tokens) - places[0])


packs = st.builds(
    full_pack,
    seq_len=st.integers(1, 45),
    strategy=st.sampled_from(STRATEGIES),
    bos_id=st.sampled_from([None, 1]),
    eos_id=st.sampled_from([None, 2]),
    labels=st.sampled_from(["hf", "shifted"]),
    aligned=st.sampled_from([(), ("weight",)]),
    block_docs=st.sampled_from([1, 3, 4096]),
)
worlds = st.fixed_dictionaries(
    {
        "num_ranks": st.integers(1, 3),
        "num_workers": st.integers(0, 3),
        "batch_size": st.integers(1, 4),
        "even_ranks": st.sampled_from([None, "pad"]),
    }
)


@settings(max_examples=examples(6), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    pack=packs,
    chain=st.lists(st.tuples(worlds, st.integers(0, 6)), max_size=2),
    last=worlds,
    mixed=st.sampled_from([("rows", "first_exhausted"), (WEIGHTS, "first_exhausted"), (WEIGHTS, "all_exhausted")]),
    shuffle=st.booleans(),
)
def test_every_token_comes_once_a_round_over_any_chain_of_worlds(
    tables: dict[str, str], pack: Pack, chain: Any, last: Any, mixed: Any, shuffle: bool
) -> None:
    (weights, stop), state, found = mixed, None, []
    for world, steps in [*chain, (last, None)]:
        new, state, taken = job(tables, pack, state, steps, weights=weights, stop=stop, shuffle=shuffle, **world)
        found += [each for step in new for each in step]
        assert world["even_ranks"] is None or len(set(taken)) == 1
    least = 1 if weights == "rows" or stop == "all_exhausted" else 0
    check_rounds(found, pack, least, 10**6 if stop == "all_exhausted" else 1)


@settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
@given(world=worlds, strategy=st.sampled_from(STRATEGIES), weights=st.sampled_from(["rows", WEIGHTS]))
def test_each_source_has_its_share_after_every_step_that_has_room_for_all(
    tables: dict[str, str], world: Any, strategy: Any, weights: Any
) -> None:
    pack = full_pack(seq_len=8, strategy=strategy)
    found, _, _ = job(tables, pack, None, None, weights=weights, **world)
    shares = make(tables, pack, weights)[1].weights
    total, counts, taken = sum(shares.values()), Counter[str](), 0
    unit = -(-total // (min(shares.values()) * world["num_ranks"] * world["batch_size"]))
    for step, delivered in enumerate(found, 1):
        counts.update(each.source for each in delivered)
        taken += len(delivered)
        if step % unit == 0 or step == len(found):
            assert all(abs(counts[name] - Fraction(taken * share, total)) < 1 for name, share in shares.items())


@pytest.mark.parametrize("strategy", STRATEGIES)
@daily(lambda strategy: strategy != "pad")
def test_a_state_is_the_same_on_every_rank_and_resumes_after_every_step(tables: dict[str, str], strategy: Any) -> None:
    pack = full_pack(seq_len=9, strategy=strategy, labels="shifted", loss_mask="trained", spans=["spans"], block_docs=4)
    world: dict[str, Any] = {"num_ranks": 2, "num_workers": 2, "batch_size": 4, "weights": WEIGHTS}
    whole, _, _ = job(tables, pack, None, None, **world)
    for step in range(len(whole) + 1):
        first, state, _ = job(tables, pack, None, step, **world)
        again, _, _ = job(tables, pack, state, None, **world)
        assert first + again == whole
        grown, _, _ = job(tables, pack, state, None, **(world | {"num_ranks": 3, "num_workers": 1}))
        check_rounds([each for part in first + grown for each in part], pack, 0, 1)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks_are_evened_by_sequences_that_are_all_padding(tables: dict[str, str], strategy: Any) -> None:
    pack = full_pack(seq_len=9, strategy=strategy)
    world: dict[str, Any] = {"num_ranks": 3, "batch_size": 4, "even_ranks": "pad"}
    found, padding = Counter[Place](), 0
    for rank in range(3):
        for batch in make(tables, pack, rank=rank, **world)[0]:
            rows = sequences(batch, pack)
            padding += len(batch["input_ids"]) - len(rows)
            found.update(token for each in rows for token in each.tokens)
    assert padding > 0
    assert found == Counter(token for name in NAMES for token in places_of(wholes_of(pack, name)))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_threads_and_processes_give_the_same(tables: dict[str, str], strategy: Any) -> None:
    pack = full_pack(seq_len=9, strategy=strategy, aligned=["weight"])

    def all_of(**options: Any) -> list[list[Packed]]:
        loader, _ = make(tables, pack, num_workers=2, **options)
        with loader:
            return [sequences(batch, pack) for batch in loader]

    assert all_of(worker_type="process") == all_of(worker_type="thread")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sources_that_are_far_away_give_the_same(tables: dict[str, str], far: Callable[[], Any], strategy: Any) -> None:
    pack = full_pack(seq_len=9, strategy=strategy)
    options: dict[str, Any] = {"num_workers": 2, "even_ranks": "pad", "num_ranks": 2, "rank": 0}
    with make(tables, pack, **options)[0] as near:
        wanted = [sequences(batch, pack) for batch in near]
    with far():
        loader, dataset = make(tables, pack, **options)
        with loader:
            assert [sequences(batch, pack) for batch in loader] == wanted
            assert loader.metrics().fetch.requests >= 3
        assert dataset.explain().memory_bound > 0


def test_best_fit_is_repacked_in_each_round_of_a_shuffled_source(tmp_path: Path) -> None:
    lengths: list[int | None] = [int(each) for each in np.random.default_rng(2).integers(1, 60, 120)]
    write_documents(tmp_path / "a", [lengths], files=1)
    pack = full_pack(seq_len=64, strategy="best_fit", block_docs=60)
    wholes = documents_of([lengths], pack)

    def rounds(shuffle: bool) -> list[set[frozenset[int]]]:
        job: dict[str, Any] = {"stop": "forever", "num_workers": 1, "batch_size": 1}
        loader, dataset = make({"a": str(tmp_path / "a")}, pack, {"a": 1}, shuffle, **job)
        size = int(dataset.explain().notes[0].split(": ")[1].split()[0])
        batches = [check_batch(batch, wholes, pack) for batch in islice(loader, 2 * size)]
        packs: list[list[frozenset[int]]] = [[]]
        for batch in batches:
            packs[-1].append(frozenset(document for document, _ in batch))
            if len(packs[-1]) == size:
                packs.append([])
        assert all(sorted(doc for each in own for doc in each) == sorted(wholes) for own in packs[:2])
        return [{each for each in own if len(each) > 1} for own in packs[:2]]

    one, two = rounds(shuffle=True)
    assert len(one & two) < 0.7 * len(one)
    one, two = rounds(shuffle=False)
    assert one == two


def test_shares_of_tokens_are_those_of_full_sequences(tables: dict[str, str]) -> None:
    pack = full_pack(seq_len=8)
    tokens = {name: sum(len(each.tokens) for each in wholes_of(pack, name).values()) for name in NAMES}
    natural = make(tables, pack, "tokens")[1]
    sizes = {name: -(-own // 8) for name, own in tokens.items()}
    assert natural.explain().live_rows == sum(sizes.values())
    assert [natural.weights[name] * sizes["c"] for name in NAMES] == [sizes[n] * natural.weights["c"] for n in NAMES]
    loader, dataset = make(tables, pack, WEIGHTS, unit="tokens")
    next(iter(loader))
    dataset.set_weights("tokens")
    assert dataset.weights == natural.weights


def test_explain_counts_sequences(tables: dict[str, str]) -> None:
    notes = make(tables, full_pack(seq_len=8), WEIGHTS)[1].explain().notes
    assert notes[0].startswith("source 0 is 'a': 45 sequences, a share of")
    assert notes[-1].endswith("to within one sequence; the epoch ends before any source repeats a sequence")


def test_a_filter_leaves_documents_out_of_sequences(tables: dict[str, str]) -> None:
    pack = full_pack(seq_len=8)
    loader, _ = make(tables, pack, filters=pc.field("id") != 2)
    found = Counter(token for batch in loader for each in sequences(batch, pack) for token in each.tokens)
    assert found == Counter(token for name in NAMES for token in places_of(wholes_of(pack, name)) if token[0] != 2)


def test_a_state_of_sequences_of_another_length_is_refused(tables: dict[str, str]) -> None:
    for strategy in STRATEGIES:
        state = make(tables, full_pack(seq_len=8, strategy=strategy))[0].state_dict()
        with pytest.raises(ResumeError, match="seq_len was 8 and is 9"):
            make(tables, full_pack(seq_len=9, strategy=strategy))[0].load_state_dict(state)


def test_what_does_not_fit_is_refused_by_name(tables: dict[str, str]) -> None:
    for options, message in (
        (
            {"pack": full_pack(seq_len=8, seq_len_from={4: 16}), "even_ranks": None},
            r"seq_len_from=\.\.\.\).*leave it out",
        ),
        ({"pack": full_pack(seq_len=8, strategy="pad"), "unit": "tokens"}, 'counts tokens.*got strategy="pad"'),
        ({"pack": full_pack(seq_len=8, strategy="pad"), "weights": "tokens"}, 'counts tokens.*got strategy="pad"'),
        ({"pack": full_pack(seq_len=8, strategy="windows")}, 'needs shuffle="rows"'),
        ({"pack": full_pack(seq_len=8, balance="attention")}, 'needs shuffle="rows"'),
    ):
        with pytest.raises(ConfigError, match=message):
            make(tables, **options)
    sources = {
        name: partial(StructuredDataset, tables[name], shuffle=True, pack=full_pack(seq_len=seq_len))
        for name, seq_len in (("a", 8), ("b", 9))
    }
    with pytest.raises(ConfigError, match=r"pack.seq_len is 8 in 'a' and 9 in 'b'"):
        MixedDataset(sources, "rows", check_plan=False)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("filtered", [False, True])
@daily(2)
def test_rows_of_names_the_documents_under_each_sequence(
    tables: dict[str, str], strategy: PackStrategy, filtered: bool
) -> None:
    pack = full_pack(seq_len=11, strategy=strategy, block_docs=5, min_length=2, eos_id=7, max_docs_per_row=4)
    filters = ~pc.field("id").isin([2, 5, 101, 106]) if filtered else None
    world: dict[str, Any] = {"filters": filters, "num_ranks": 2, "num_workers": 2, "even_ranks": "pad"}
    for rank in range(2):
        loader, _ = make(tables, pack, WEIGHTS, stop="all_exhausted", row_id=True, rank=rank, **world)
        silent, _ = make(tables, pack, WEIGHTS, stop="all_exhausted", rank=rank, **world)
        for epoch in range(2):
            loader.set_epoch(epoch)
            silent.set_epoch(epoch)
            whole = [delivered_documents(batch) for batch in loader]
            assert sum(map(len, whole)) > 20
            assert [silent.rows_of(step) for step in range(len(silent))] == whole
    loader.set_epoch(2)
    with loader:
        assert len(list(islice(loader, 3))) == 3
        state = loader.state_dict()
    fewer, _ = make(tables, pack, WEIGHTS, stop="all_exhausted", row_id=True, filters=filters, even_ranks="pad")
    fewer.load_state_dict(json.loads(json.dumps(state)))
    rest = [delivered_documents(batch) for batch in fewer]
    fewer.load_state_dict(json.loads(json.dumps(state)))
    assert [fewer.rows_of(step) for step in range(len(rest))] == rest


def delivered_documents(batch: Any) -> list[SourceRow]:
    """Give the documents of a batch by source and row id."""
    documents = batch["documents"]
    sources = [NAMES[number] for number in np.asarray(documents["source"]).tolist()]
    return [SourceRow(*each) for each in zip(sources, np.asarray(documents["row_id"]).tolist(), strict=True)]
