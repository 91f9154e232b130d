"""Mixtures of packed streams: shares of sequences and of tokens, rounds, sources that are far away, and refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.products.packed_sources import FIRST, NAMES, SOURCES, write_sources
from tests.tables.plain import meant_warnings
from tests.text.packing_reference import (
    PackStrategy,
    Place,
    Whole,
    check_batch,
    documents_of,
    full_pack,
    places_of,
    write_documents,
)
from torch_table_loader import ConfigError, MixedDataset, Pack, ResumeError, StructuredDataset, TableLoader

WEIGHTS = {"a": 5, "b": 3, "c": 1}
STRATEGIES: tuple[PackStrategy, ...] = ("concat", "pad", "best_fit")


class Packed(NamedTuple):
    """A sequence as it came: its source, and its tokens."""

    source: str
    tokens: tuple[Place, ...]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_sources(tmp_path_factory.mktemp("documents"))


def wholes_of(pack: Pack, name: str) -> dict[int, Whole]:
    return documents_of(SOURCES[name], pack, FIRST[name])


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
    found = [tuple(sequence) for sequence in check_batch(batch, wholes, pack) if sequence]
    return [Packed(NAMES[sequence[0][0] // 100], sequence) for sequence in found]


def job(tables: Mapping[str, str], pack: Pack, **world: Any) -> list[list[Packed]]:
    """Give what all ranks deliver, step by step."""
    taken = []
    for rank in range(world["num_ranks"]):
        with make(tables, pack, rank=rank, **world)[0] as loader:
            taken.append([sequences(batch, pack) for batch in loader])
    return [[each for own in step for each in own] for step in zip_longest(*taken, fillvalue=[])]


worlds = st.fixed_dictionaries(
    {
        "num_ranks": st.integers(1, 3),
        "num_workers": st.integers(0, 3),
        "batch_size": st.integers(1, 4),
        "even_ranks": st.sampled_from([None, "pad"]),
    }
)


@settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
@given(world=worlds, strategy=st.sampled_from(STRATEGIES), weights=st.sampled_from(["rows", WEIGHTS]))
def test_each_source_has_its_share_after_every_step_that_has_room_for_all(
    tables: dict[str, str], world: Any, strategy: Any, weights: Any
) -> None:
    pack = full_pack(seq_len=8, strategy=strategy)
    found = job(tables, pack, weights=weights, **world)
    shares = make(tables, pack, weights)[1].weights
    total, counts, taken = sum(shares.values()), Counter[str](), 0
    unit = -(-total // (min(shares.values()) * world["num_ranks"] * world["batch_size"]))
    for step, delivered in enumerate(found, 1):
        counts.update(each.source for each in delivered)
        taken += len(delivered)
        if step % unit == 0 or step == len(found):
            assert all(abs(counts[name] - Fraction(taken * share, total)) < 1 for name, share in shares.items())


@pytest.mark.parametrize("strategy", STRATEGIES)
@daily(1)
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
            packs[-1].append(frozenset(document for document, _ in batch[0]))
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
    assert notes[3].endswith("to within one sequence; the epoch ends before any source repeats a sequence")


def test_a_filter_leaves_documents_out_of_sequences(tables: dict[str, str]) -> None:
    pack = full_pack(seq_len=8)
    loader, _ = make(tables, pack, filters=pc.field("id") != 2)
    found = Counter(token for batch in loader for each in sequences(batch, pack) for token in each.tokens)
    assert found == Counter(token for name in NAMES for token in places_of(wholes_of(pack, name)) if token[0] != 2)


def test_a_state_of_sequences_of_another_length_is_refused(tables: dict[str, str]) -> None:
    for strategy in ("pad", "best_fit"):
        state = make(tables, full_pack(seq_len=8, strategy=strategy))[0].state_dict()
        with pytest.raises(ResumeError, match="seq_len was 8 and is 9"):
            make(tables, full_pack(seq_len=9, strategy=strategy))[0].load_state_dict(state)


def test_what_does_not_fit_is_refused_by_name(tables: dict[str, str]) -> None:
    for options, message in (
        ({"pack": full_pack(seq_len=8, strategy="pad"), "unit": "tokens"}, 'counts tokens.*got strategy="pad"'),
        ({"pack": full_pack(seq_len=8, strategy="pad"), "weights": "tokens"}, 'counts tokens.*got strategy="pad"'),
        ({"pack": full_pack(seq_len=8, strategy="windows")}, 'needs shuffle="rows"'),
        ({"pack": full_pack(seq_len=8, balance="attention")}, 'needs shuffle="rows"'),
    ):
        with pytest.raises(ConfigError, match=message):
            make(tables, **options)
    sources = {
        name: partial(StructuredDataset, tables[name], shuffle="splits", pack=full_pack(seq_len=seq_len))
        for name, seq_len in (("a", 8), ("b", 9))
    }
    with pytest.raises(ConfigError, match=r"pack.seq_len is 8 in 'a' and 9 in 'b'"):
        MixedDataset(sources, "rows", check_plan=False)


@pytest.mark.parametrize("shuffle", [True, "rows"])
@pytest.mark.parametrize("strategy", ["concat", "best_fit"])
@daily(2)
def test_sources_have_documents_of_their_own_kind(tmp_path: Path, strategy: Any, shuffle: Any) -> None:
    packs = {}
    for number, (name, eos) in enumerate((("input_ids", 7), ("ids", None), ("tokens", 9))):
        documents = [[1000 * number + 10 * row + at for at in range(row % 6)] for row in range(1, 40)]
        columns = {name: pa.array(documents, pa.list_(pa.int32())), f"n{number}": range(39)}
        (tmp_path / name).mkdir()
        pq.write_table(pa.table(columns), tmp_path / name / "0.parquet", row_group_size=10)
        own: dict[str, Any] = {"tokens": name} if name == "ids" else {}
        packs[name] = Pack(seq_len=8, strategy=strategy, eos_id=eos, min_length=1 + number, **own)
    with meant_warnings():
        sources = {
            name: StructuredDataset(str(tmp_path / name), pack=pack, columns=[], shuffle=shuffle)
            for name, pack in packs.items()
        }
        loader, _ = MixedDataset.create_dataloader(sources, "rows", batch_size=2, check_plan=False)
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for batch in loader:
        owner = np.asarray(batch["doc_ids"]).reshape(-1)
        source = np.asarray(batch["documents"]["source"])[owner[owner >= 0]]
        for number, token in zip(source.tolist(), batch["input_ids"].reshape(-1)[owner >= 0].tolist(), strict=True):
            seen[number].append(token)
    for number, eos in enumerate((7, None, 9)):
        documents = [[1000 * number + 10 * row + at for at in range(row % 6)] for row in range(1, 40)]
        kept = [tokens for tokens in documents if len(tokens) > number and tokens]
        assert sorted(seen[number]) == sorted(sum(kept, []) + ([] if eos is None else [eos] * len(kept)))
