"""Sequences shuffled over a whole table: their order, their windows, their states; and mixtures of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.states import anchor_of, is_ended, with_anchors, with_record
from tests.tables.plain import meant_warnings
from tests.text.packed_modes import STRATEGIES
from tests.text.packing_reference import (
    EOS,
    GROUPS,
    LENGTHS,
    SEP,
    Place,
    Whole,
    check_batch,
    delivered_by,
    documents_of,
    full_pack,
    places_of,
    token,
    write_documents,
)
from torch_table_loader import ConfigError, MixedDataset, Pack, ResumeError, StructuredDataset, TableError, TableLoader


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("documents")
    write_documents(root, GROUPS)
    return root


def sorted_places(wholes: Mapping[int, Whole]) -> list[Place]:
    return sorted(places_of(wholes))


def wholes_of(pack: Pack, documents: Sequence[int] = range(len(LENGTHS))) -> dict[int, Whole]:
    """Give the documents that come out, of some."""
    return {number: whole for number, whole in documents_of(GROUPS, pack).items() if number in documents}


def make(root: Path, pack: Pack, **options: Any) -> TableLoader:
    return opened(root, pack, **options)[0]


def opened(root: Path, pack: Pack, **options: Any) -> tuple[TableLoader, StructuredDataset]:
    chosen: dict[str, Any] = {"check_plan": False, "columns": ["id"], "shuffle": "rows"} | options
    with meant_warnings():
        return StructuredDataset.create_dataloader(str(root), pack=pack, **chosen)


def copied(state: Any) -> Any:
    return json.loads(json.dumps(state))


WORLDS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "num_ranks": st.integers(1, 4),
        "num_workers": st.integers(0, 3),
        "batch_size": st.integers(1, 4),
        "even_ranks": st.sampled_from([None, "pad"]),
    }
)


def run(
    root: Path, pack: Pack, world: Mapping[str, Any], state: Any = None, steps: int | None = None, epoch: int = 0
) -> tuple[list[list[Place]], Any]:
    """Let all ranks go on for some steps; give the sequences that are not padding, and the state."""
    found, states = [], []
    lengths = []
    for rank in range(world["num_ranks"]):
        loader = make(root, pack, rank=rank, **world)
        loader.set_epoch(epoch)
        if state is not None:
            loader.load_state_dict(copied(state))
        length = loader.remaining
        batches = list(islice(loader, steps))
        assert steps is not None or len(batches) == length
        found += [sequence for batch in batches for sequence in check_batch(batch, wholes_of(pack), pack) if sequence]
        states.append(loader.state_dict())
        lengths.append(length)
    if world.get("even_ranks") == "pad":
        assert len(set(lengths)) == 1
    running = [each for each in states if not is_ended(each)]
    return found, (running or states)[0]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_there_are_as_many_sequences_as_the_tokens_need(table: Path, strategy: Any) -> None:
    pack = full_pack(seq_len=9, strategy=strategy, sep_id=SEP)
    lengths = [len(whole.tokens) for whole in wholes_of(pack).values()]
    expected = sum(-(-length // 9) for length in lengths) if strategy == "pad" else -(-sum(lengths) // 9)
    found, _ = run(table, pack, {"num_ranks": 2, "batch_size": 2, "num_workers": 0})
    assert len(found) == expected if strategy != "best_fit" else expected <= len(found) <= expected + 1


@settings(max_examples=examples(10), deadline=None)
@given(seq_len=st.integers(1, 30), stride=st.integers(1, 30), labels=st.sampled_from(["hf", "shifted"]))
def test_windows_begin_a_stride_apart_as_long_as_they_add_a_token(
    table: Path, seq_len: int, stride: int, labels: Any
) -> None:
    pack = full_pack(seq_len=seq_len, strategy="windows", stride=min(stride, seq_len), eos_id=EOS, labels=labels)
    order = sorted_places(wholes_of(pack))
    assert pack.stride is not None
    starts = range(0, len(order), pack.stride)
    wanted = [
        order[start : start + seq_len] for start in starts if not start or start - pack.stride + seq_len < len(order)
    ]
    found, _ = run(table, pack, {"num_ranks": 2, "batch_size": 3, "num_workers": 2})
    assert sorted(found) == sorted(wanted)


def test_documents_that_are_put_behind_one_another_make_up_the_sequences(table: Path) -> None:
    pack = full_pack(seq_len=7, eos_id=EOS)
    one, _ = run(table, pack, {"num_ranks": 1, "batch_size": 1, "num_workers": 0})
    assert all(len(sequence) == 7 for sequence in one[:-1])
    joined = [place for sequence in one for place in sequence]
    documents = list(dict.fromkeys(number for number, _ in joined))
    assert joined == [(number, at) for number in documents for at in range(len(wholes_of(pack)[number].tokens))]
    assert documents != sorted(documents)
    loaders = [make(table, pack, num_ranks=3, rank=rank, batch_size=2) for rank in range(3)]
    dealt = [[check_batch(batch, wholes_of(pack), pack) for batch in loader] for loader in loaders]
    step = [dealt[rank][0][row] for row in range(2) for rank in range(3)]
    assert step == one[:6], "a global batch is the next sequences of the job, whoever takes them"


# ---- resuming --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["windows", "concat", "pad"])
@daily(1)
def test_a_state_without_an_anchor_is_walked_to(table: Path, strategy: Any) -> None:
    pack = full_pack(seq_len=7, strategy=strategy)
    whole = [check_batch(batch, wholes_of(pack), pack) for batch in make(table, pack, batch_size=2)]
    loader = make(table, pack, batch_size=2)
    list(islice(loader, len(whole) // 2))
    other = make(table, pack, batch_size=2)
    other.load_state_dict(with_anchors(copied(loader.state_dict()), {}))
    assert [check_batch(batch, wholes_of(pack), pack) for batch in other] == whole[len(whole) // 2 :]


@settings(max_examples=examples(8), deadline=None)
@given(
    stages=st.lists(st.tuples(st.integers(1, 30), WORLDS, st.integers(0, 3)), min_size=2, max_size=4),
    labels=st.sampled_from(["hf", "shifted"]),
)
def test_documents_put_behind_one_another_go_on_as_sequences_of_another_length(
    table: Path, stages: list[tuple[int, dict[str, Any], int]], labels: Any
) -> None:
    state, found = None, []
    for number, (seq_len, world, steps) in enumerate(stages):
        last = number == len(stages) - 1
        pack = full_pack(seq_len=seq_len, eos_id=EOS, labels=labels)
        got, state = run(table, pack, {**world, "even_ranks": "pad"}, state, None if last else steps)
        found += got
    assert sorted(place for sequence in found for place in sequence) == sorted_places(wholes_of(pack))


def test_the_epoch_after_begins_anew_with_the_length_that_is_asked_for(table: Path) -> None:
    first = make(table, full_pack(seq_len=8), batch_size=2, num_workers=0)
    list(islice(first, 3))
    loader = make(table, full_pack(seq_len=5), batch_size=2, num_workers=0)
    loader.load_state_dict(copied(first.state_dict()))
    left = -(-(len(sorted_places(wholes_of(full_pack(seq_len=5)))) - 48) // 5)
    assert loader.remaining == -(-left // 2) == len(list(loader))
    other = make(table, full_pack(seq_len=5), batch_size=2, num_workers=0)
    loader.set_epoch(1)
    other.set_epoch(1)
    assert [batch["input_ids"].tolist() for batch in loader] == [batch["input_ids"].tolist() for batch in other]


def test_a_state_of_another_length_or_order_is_refused_by_name(table: Path) -> None:
    state = make(table, full_pack(seq_len=8, strategy="pad")).state_dict()
    with pytest.raises(ResumeError, match="seq_len was 8 and is 5"):
        make(table, full_pack(seq_len=5, strategy="pad")).load_state_dict(state)
    state = make(table, full_pack(seq_len=8)).state_dict()
    for length, origin in ((8, -1), (8, "3"), (8, 10**9), (0, 0), (2**31, 0)):
        with pytest.raises(ResumeError):
            make(table, full_pack(seq_len=5)).load_state_dict(
                with_record(state, "packing", seq_len=length, origin=origin)
            )
    with pytest.raises(ResumeError, match=r"pack= .* was 'concat-"):
        make(table, full_pack(seq_len=8, strategy="windows")).load_state_dict(state)
    with pytest.raises(ResumeError, match="stage"):
        make(table, full_pack(seq_len=8, eos_id=EOS)).load_state_dict(state)
    loader = make(table, full_pack(seq_len=8), batch_size=2)
    list(islice(loader, 3))
    state = copied(loader.state_dict())
    number, place, before, seal = anchor_of(state)
    for anchor in (
        [1, "x", 0, 0],
        [0, 17, 3, None],
        [number, place, before + 1, seal],
        [number, place - 1, before, seal],
    ):
        with pytest.raises(ResumeError, match="anchor"):
            make(table, full_pack(seq_len=8)).load_state_dict(with_anchors(state, {"": anchor}))
    with pytest.raises(ResumeError, match="anchors"):
        make(table, full_pack(seq_len=8)).load_state_dict(with_record(state, "packing", anchors={"": {"round": 0}}))
    with pytest.raises(ResumeError, match=r"anchor .* is not one of this epoch's order"):
        make(table, full_pack(seq_len=8)).load_state_dict({**state, "epoch": 1})


def test_the_store_serves_any_length_and_strategy(table: Path, tmp_path: Path) -> None:
    strategy: Any
    for strategy in STRATEGIES:
        for seq_len in (4, 11):
            list(make(table, full_pack(seq_len=seq_len, strategy=strategy), row_store=str(tmp_path), batch_size=4))
    assert len(list(tmp_path.iterdir())) == 1
    list(make(table, full_pack(seq_len=4, eos_id=EOS), row_store=str(tmp_path), batch_size=4))
    assert len(list(tmp_path.iterdir())) == 2


# ---- what is left out, and what comes along --------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["concat", "pad", "best_fit"])
def test_documents_are_excluded_and_included(table: Path, strategy: Any) -> None:
    pack = full_pack(seq_len=7, strategy=strategy, eos_id=EOS)
    loader, dataset = opened(table, pack, batch_size=2, num_workers=2)
    dataset.exclude([2, 5, 11])
    left = [number for number in range(len(LENGTHS)) if number not in (2, 5, 11)]
    wholes = wholes_of(pack, left)
    whole = [check_batch(batch, wholes, pack) for batch in loader]
    assert sorted(place for batch in whole for row in batch for place in row) == sorted_places(wholes)
    assert len(whole) == len(loader)
    loader.set_epoch(0)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = copied(loader.state_dict())
    dataset.include([5])
    other = make(table, pack, batch_size=2)
    other.load_state_dict(state)
    assert [check_batch(batch, wholes, pack) for batch in other] == whole[3:]
    batches.close()
    loader.set_epoch(1)
    assert sorted(delivered_by(loader, wholes_of(pack, [*left, 5]), pack)) == sorted_places(wholes_of(pack, [*left, 5]))


def test_windows_refuse_to_leave_documents_out(table: Path) -> None:
    with pytest.raises(ConfigError, match='strategy="windows" cuts tokens without regard'):
        opened(table, full_pack(seq_len=7, strategy="windows"))[1].exclude([2])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_filters_row_ids_and_columns_of_documents(table: Path, strategy: Any) -> None:
    pack = full_pack(seq_len=9, strategy=strategy, spans=["spans"])
    loader = make(table, pack, batch_size=2, filters=pc.field("id") > 3, columns=["title", "id"], row_id=True)
    wholes = wholes_of(pack, range(4, len(LENGTHS)))
    found = []
    for batch in loader:
        found += [place for row in check_batch(batch, wholes, pack) for place in row]
        documents = batch["documents"]
        assert documents["row_id"].tolist() == documents["id"].tolist()
        assert documents["title"] == [f"document {number}" for number in documents["id"].tolist()]
    assert sorted(found) == sorted_places(wholes)


@pytest.mark.parametrize("kind", [pa.list_(pa.uint16()), pa.large_list(pa.int64()), pa.list_(pa.int32(), 4)], ids=str)
def test_lists_of_any_kind(tmp_path: Path, kind: pa.DataType) -> None:
    lengths: list[int | None] = [4, 4, None, 4, 4, 4]
    write_documents(tmp_path, [lengths], kind=kind)
    batches = list(make(tmp_path, full_pack(seq_len=6, eos_id=70_000), batch_size=1, num_workers=0))
    ids = [entry for batch in batches for row in batch["input_ids"].tolist() for entry in row]
    stored = [token(row, at) for row, n in enumerate(lengths) for at in range(n or 0)]
    assert sorted(ids) == sorted([*stored, *[70_000] * 5, *[0] * 5])


def test_windows_as_a_map(table: Path) -> None:
    pack = full_pack(seq_len=7, strategy="windows", eos_id=EOS)
    order = sorted_places(wholes_of(pack))
    with meant_warnings():
        view = StructuredDataset(str(table), pack=pack, shuffle="rows", columns=["id"], check_plan=False).as_map()
    assert len(view) == -(-len(order) // 7)
    places = [3, 0, len(view) - 1]
    found = check_batch(view.batch(places), wholes_of(pack), pack)
    assert found == [order[7 * place : 7 * place + 7] for place in places]
    assert view.row_ids([0]).tolist() == list(dict.fromkeys(number for number, _ in order[:7]))
    with pytest.raises(ConfigError, match="leave pack out"), meant_warnings():
        len(StructuredDataset(str(table), pack=full_pack(seq_len=7), shuffle="rows", check_plan=False).as_map())


@pytest.mark.parametrize("output", [None, "hf", "flash", "flex", "megatron", "segment_ids"])
@pytest.mark.parametrize("form", ["torch", "numpy"])
@daily(4)
def test_a_window_of_a_map_is_a_batch_of_one_without_the_first_dimension(
    table: Path, output: Any, form: Literal["torch", "numpy"]
) -> None:
    """What is of documents has no such dimension, and stays as it is."""
    pack = full_pack(seq_len=7, strategy="windows", aligned=["weight"], spans=["spans"], output=output)
    with meant_warnings():
        view = StructuredDataset(
            str(table), pack=pack, shuffle="rows", columns=["id"], output_format=form, check_plan=False
        ).as_map()
    of_documents = {"cu_seqlens", "max_seqlen", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"}
    row, batch = view[2], view.batch([2])
    assert row.keys() == batch.keys() == view.__getitems__([2, 0])[0].keys()
    for name in row.keys() - {"documents", "spans"}:
        expected = batch[name] if name in of_documents else batch[name][0]
        assert np.array_equal(row[name], expected), name
        assert name in of_documents or np.shape(row[name]) == (7,), name
    assert np.array_equal(row["documents"]["id"], batch["documents"]["id"])
    one, several = row["spans"]["spans"], batch["spans"]["spans"]
    assert np.array_equal(one.index, several.index[0])
    assert all(np.array_equal(getattr(one, name), getattr(several, name)) for name in ("start", "end", "document"))
    assert np.array_equal(one.columns["number"], several.columns["number"])


def test_explain_says_how_sequences_are_made(table: Path) -> None:
    _, dataset = opened(table, full_pack(seq_len=7, strategy="windows", stride=3), batch_size=2)
    notes = " ".join(dataset.explain().notes)
    assert "windows of the table's tokens, 3 apart" in notes
    assert f"{sum(length or 0 for length in LENGTHS):,} tokens" in notes


# ---- what is wrong ---------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_by_name(table: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no column 'tokens'"):
        make(table, full_pack(seq_len=7, tokens="tokens"))
    with pytest.raises(ConfigError, match="stride must be at most"):
        full_pack(seq_len=4, strategy="windows", stride=5)
    with pytest.raises(TableError, match=r"row 5 of '0.parquet' has 40 tokens.*seq_len=39"):
        make(table, full_pack(seq_len=39, strategy="pad", long_docs="error"))
    pq.write_table(pa.table({"input_ids": [[1, None]]}), tmp_path / "a.parquet")
    with pytest.raises(TableError, match="null inside"):
        make(tmp_path, full_pack(seq_len=7), columns=[])


# ---- chance ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["windows", "concat", "pad", "best_fit"])
@daily(2)
def test_each_epoch_has_an_order_of_its_own_and_places_are_uniform(tmp_path: Path, strategy: Any) -> None:
    write_documents(tmp_path, [[4] * 8])
    pack = full_pack(seq_len=4, strategy=strategy)
    loader = make(tmp_path, pack, batch_size=8, num_workers=0)
    counts, orders = np.zeros((8, 8), dtype=np.int64), set()
    epochs = 160
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        [batch] = loader
        order = (batch["input_ids"][:, 0].numpy() - 1000) // 64
        orders.add(tuple(order.tolist()))
        counts[np.arange(8), order] += 1
    assert len(orders) > epochs * 0.9
    expected = epochs / 8
    assert ((counts - expected) ** 2 / expected).sum() < 90, "chi-square of 49 degrees of freedom, p < 0.0004"


# ---- mixtures --------------------------------------------------------------------------------------------


MIXED: dict[str, list[int | None]] = {"a": [*[7] * 40, *[30] * 10], "b": [5, 9, 61, 2] * 12, "c": [25] * 9}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("mixture")
    for name, lengths in MIXED.items():
        (root / name).mkdir()
        write_documents(root / name, [lengths])
    return {name: root / name for name in "abc"}


def mix(
    tables: Mapping[str, Path], pack: Pack, weights: Mapping[str, float], **options: Any
) -> tuple[TableLoader, MixedDataset]:
    own = {"columns": ["id"], "check_plan": False, "shuffle": "rows"}
    with meant_warnings():
        sources = {name: StructuredDataset(str(path), pack=pack, **own) for name, path in tables.items()}  # type: ignore[arg-type]
        return MixedDataset.create_dataloader(sources, weights, check_plan=False, **options)


def of_sequences(batch: Mapping[str, Any]) -> list[tuple[int, list[tuple[int, int]]]]:
    """Give the source of each sequence, and its tokens as document and id; padding and whole padding left out."""
    found = []
    if not batch["documents"]:
        return []
    owners, sources = batch["documents"]["id"].tolist(), batch["documents"]["source"].tolist()
    for ids, docs in zip(batch["input_ids"].tolist(), batch["doc_ids"].tolist(), strict=True):
        own = [(owners[doc], entry) for doc, entry in zip(docs, ids, strict=True) if doc >= 0]
        if own:
            [source] = {sources[doc] for doc in docs if doc >= 0}
            found.append((source, own))
    return found


@pytest.mark.parametrize("strategy", ["windows", "concat", "best_fit"])
@pytest.mark.parametrize("weights", [{"a": 0.6, "b": 0.3, "c": 0.1}, {"a": 0.517, "b": 0.321, "c": 0.162}], ids=str)
@daily(2)
def test_weights_are_shares_of_tokens_at_every_prefix(tables: dict[str, Path], strategy: Any, weights: Any) -> None:
    pack = full_pack(seq_len=8, strategy=strategy, long_docs="split")
    loader, _ = mix(tables, pack, weights, batch_size=4, num_workers=2, unit="tokens")
    sequences = [entry for batch in loader for entry in of_sequences(batch)]
    assert len(sequences) > 50
    counts = Counter[int]()
    for taken, (source, _) in enumerate(sequences, 1):
        counts[source] += 1
        for number, weight in enumerate(weights.values()):
            assert abs(counts[number] - weight * taken) < 1
    delivered = Counter((source, entry) for source, own in sequences for entry in own)
    assert max(delivered.values()) == 1, "no token comes twice before a source is exhausted"


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("block", [0, 256])
@daily(3)
def test_a_mixture_of_which_weights_change_goes_on_in_another_world(
    tables: dict[str, Path], strategy: Any, block: int
) -> None:
    pack = full_pack(seq_len=11, strategy=strategy, eos_id=EOS, block_docs=4)
    options: dict[str, Any] = {"stop": "all_exhausted", "block": block, "even_ranks": "pad", "batch_size": 3}
    states, found = [], []
    for rank in range(2):
        loader, dataset = mix(tables, pack, {"a": 3, "b": 2, "c": 1}, num_ranks=2, rank=rank, **options)
        dataset.set_weights({"a": 1, "b": 1, "c": 2})
        found += [entry for batch in islice(loader, 3) for entry in of_sequences(batch)]
        states.append(loader.state_dict())
    assert states[0] == states[1]
    loader, dataset = mix(tables, pack, {"a": 3, "b": 2, "c": 1}, **options)
    loader.load_state_dict(copied(states[0]))
    assert dataset.weights == {"a": 1, "b": 1, "c": 2}
    found += [entry for batch in loader for entry in of_sequences(batch)]
    delivered = {(source, *entry) for source, own in found for entry in own if entry[1] != EOS}
    assert delivered == {
        (number, row, token(row, at))
        for number, lengths in enumerate(MIXED.values())
        for row, length in enumerate(lengths)
        for at in range(length or 0)
    }


def state_after(loader: Any, steps: int) -> Any:
    """Return the state of an epoch after some of its steps."""
    loader.set_epoch(0)
    batches = iter(loader)
    for _ in range(steps):
        next(batches)
    state = copied(loader.state_dict())
    batches.close()
    return state


def test_a_mixture_goes_on_where_each_source_stood(tables: dict[str, Path]) -> None:
    pack, weights = full_pack(seq_len=8), {"a": 1, "b": 1, "c": 4}
    loader, _ = mix(tables, pack, weights, batch_size=8, num_workers=2, stop="all_exhausted")
    whole = [of_sequences(batch) for batch in loader]
    steps = len(whole) * 2 // 3
    state = state_after(loader, steps)
    anchors = {name: anchor_of(state, name) for name in tables}
    assert anchors["c"][0] > 0, "the small source goes round"
    assert anchors["b"][0] == 0
    assert anchors["b"][1] > 0
    for name, anchor in anchors.items():
        turns = sum(source == "abc".index(name) for batch in whole[:steps] for source, _ in batch)
        in_round = turns % -(-sum(n or 0 for n in MIXED[name]) // 8) * 8
        assert in_round - max(n or 0 for n in MIXED[name]) < anchor[2] <= in_round
    other, _ = mix(tables, pack, weights, batch_size=8, num_workers=1, stop="all_exhausted")
    other.load_state_dict(state)
    assert [of_sequences(batch) for batch in other] == whole[steps:]
    later = {name: [number, place, before + 1, seal] for name, (number, place, before, seal) in anchors.items()}
    with pytest.raises(ResumeError, match=r"anchor .* is not one of this epoch's order"):
        other.load_state_dict(with_anchors(state, later))


@pytest.mark.parametrize("stop", ["forever", "first_exhausted"])
@pytest.mark.parametrize("strategy", ["pad", "best_fit"])
@daily(2)
def test_a_mixture_refuses_whole_documents_in_sequences_of_another_length(
    tables: dict[str, Path], strategy: Any, stop: Any, small_gathers: None
) -> None:
    weights = {"a": 1, "b": 1, "c": 1}
    loader, _ = mix(tables, full_pack(seq_len=8, strategy=strategy), weights, batch_size=2, stop=stop)
    for _ in zip(range(3), loader, strict=False):
        pass
    other, _ = mix(tables, full_pack(seq_len=16, strategy=strategy), weights, batch_size=2, stop=stop)
    with pytest.raises(ResumeError, match=r"source 'a': .* seq_len was 8 and is 16"):
        other.load_state_dict(copied(loader.state_dict()))


def test_a_mixture_says_where_sequences_come_from(tables: dict[str, Path]) -> None:
    loader, _ = mix(tables, full_pack(seq_len=11), {"a": 1, "b": 1, "c": 1}, batch_size=6, num_workers=0)
    for step, batch in zip(range(5), loader, strict=False):
        documents = batch["documents"]
        names = ["abc"[number] for number in documents["source"].tolist()]
        assert loader.rows_of(step) == list(zip(names, documents["id"].tolist(), strict=True))


def test_sources_of_a_mixture_must_be_packed_alike(tables: dict[str, Path]) -> None:
    own: dict[str, Any] = {"shuffle": "rows", "check_plan": False, "columns": ["input_ids"]}

    def sources(one: Pack | None, two: Pack | None) -> dict[str, StructuredDataset]:
        with meant_warnings():
            return {
                name: StructuredDataset(str(tables[name]), pack=pack, **own) for name, pack in (("a", one), ("b", two))
            }

    weights = {"a": 1, "b": 1}
    with pytest.raises(ConfigError, match=r"pack\.seq_len is 8 in 'a' and 9 in 'b'"):
        MixedDataset(sources(full_pack(seq_len=8), full_pack(seq_len=9)), weights, check_plan=False)
    with pytest.raises(ConfigError, match=r"but pack is Pack.* in 'a' and None in 'b'"):
        MixedDataset(sources(full_pack(seq_len=8), None), weights, check_plan=False)
    pad = full_pack(seq_len=8, strategy="pad", long_docs="split")
    with pytest.raises(ConfigError, match=r'unit="tokens" counts tokens.* got strategy="pad"'):
        MixedDataset(sources(pad, pad), weights, unit="tokens", check_plan=False)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted"])
@daily(3)
def test_natural_shares_deliver_each_token_once(tables: dict[str, Path], strategy: Any, stop: Any) -> None:
    pack = full_pack(seq_len=9, strategy=strategy, long_docs="split", block_docs=7)
    weights = "rows" if strategy == "pad" else "tokens"
    loader, _ = mix(tables, pack, weights, batch_size=5, num_workers=2, stop=stop)  # type: ignore[arg-type]
    found = Counter((source, *entry) for batch in loader for source, own in of_sequences(batch) for entry in own)
    assert found == Counter(
        (number, row, token(row, at))
        for number, lengths in enumerate(MIXED.values())
        for row, length in enumerate(lengths)
        for at in range(length or 0)
    )


def test_rounds_of_best_fit_differ_and_each_has_every_token(tables: dict[str, Path]) -> None:
    """A round's packs depend on its order, so that rounds differ in length; a state says where a round began."""
    pack, weights = full_pack(seq_len=64, strategy="best_fit", block_docs=3), {"b": 20, "a": 1}
    paths = {name: tables[name] for name in "ba"}
    loader, _ = mix(paths, pack, weights, batch_size=4, stop="all_exhausted")
    whole = [of_sequences(batch) for batch in loader]
    drawn = [own for batch in whole for source, own in batch if source == 0]
    tokens = sum(length or 0 for length in MIXED["b"])
    rounds: list[int] = []
    flat: list[Any] = []
    for own in drawn:
        if len(flat) == tokens:
            assert max(Counter(flat).values()) == 1
            rounds.append(0)
            flat = []
        rounds[-1:] = [rounds[-1] + 1] if rounds else [1]
        flat += own
    assert len(rounds) > 5
    assert len(set(rounds[:-1])) > 1, "not all rounds have as many sequences"
    steps = len(whole) - 3
    state = state_after(loader, steps)
    anchors = {name: anchor_of(state, name) for name in paths}
    anchor = anchors["b"]
    taken = sum(source == 0 for batch in whole[:steps] for source, _ in batch)
    assert anchor[0] > 3
    assert anchor[1] == sum(rounds[: anchor[0]]) <= taken
    assert anchor[2] == rounds[anchor[0]] or anchor[0] == len(rounds) - 1
    other, _ = mix(paths, pack, weights, batch_size=4, stop="all_exhausted")
    other.load_state_dict(state)
    assert [of_sequences(batch) for batch in other] == whole[steps:]
    later = {name: [number, place, before + 1, seal] for name, (number, place, before, seal) in anchors.items()}
    with pytest.raises(ResumeError, match=r"anchor .* is not one of this epoch's order"):
        other.load_state_dict(with_anchors(state, later))
