"""Sequences shuffled over a whole table: every token once, in order, in any world; and mixtures of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.states import is_ended, source_of, with_anchor
from tests.tables.plain import meant_warnings
from tests.torch.packing_reference import full_pack
from torch_table_loader import ConfigError, MixedDataset, Pack, ResumeError, StructuredDataset, TableError, TableLoader
from torch_table_loader.extend import RowSpan

LENGTHS = [5, 0, 17, 1, None, 40, 3, 9, 9, 2, 2, 30, 1, 12, 33, 4, 6]
EOS, BOS, SEP = 1, 2, 3
STRATEGIES = ["windows", "concat", "pad", "best_fit"]

Place = tuple[int, int]
"""A document, and a token's place in it as it comes out."""


def token(document: int, place: int) -> int:
    return 1000 + 64 * document + place


def trains(document: int, place: int) -> bool:
    return (document + place) % 3 > 0


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("documents")
    write(root, LENGTHS)
    return root


def write(root: Path, lengths: list[int | None], kind: pa.DataType | None = None) -> None:
    """Write documents in two files of several row groups; document 5 ends with the end token as stored."""
    kind = kind or pa.list_(pa.int32())

    def lists(value: Any) -> list[Any]:
        return [None if n is None else [value(row, at) for at in range(n)] for row, n in enumerate(lengths)]

    spans = [[{"start": 1, "end": min(n, 4), "kind": row}] if n and n > 1 else [] for row, n in enumerate(lengths)]
    columns = pa.table(
        {
            "id": pa.array(range(len(lengths)), pa.int64()),
            "input_ids": pa.array(lists(token), kind),
            "weight": pa.array(lists(lambda row, at: row + at / 128), pa.list_(pa.float32())),
            "trained": pa.array(lists(trains), pa.list_(pa.bool_())),
            "title": pa.array([f"document {row}" for row in range(len(lengths))]).dictionary_encode(),
            "spans": pa.array(
                spans, pa.list_(pa.struct([("start", pa.int32()), ("end", pa.int32()), ("kind", pa.int64())]))
            ),
        }
    )
    half = len(lengths) // 2
    pq.write_table(columns.slice(0, half), root / "0.parquet", row_group_size=3)
    pq.write_table(columns.slice(half), root / "1.parquet", row_group_size=5)


@dataclass(frozen=True)
class Whole:
    """A document as it is to come out."""

    tokens: list[int]
    trained: list[bool]


def wholes_of(pack: Pack, documents: list[int] | None = None) -> dict[int, Whole]:
    """Give the documents that come out, with begin and end tokens, written out token by token."""
    found = {}
    for number, length in enumerate(LENGTHS):
        if (length or 0) < pack.min_length or (documents is not None and number not in documents):
            continue
        tokens = [token(number, at) for at in range(length or 0)]
        takes = [trains(number, at) for at in range(length or 0)]
        if pack.bos_id is not None:
            tokens, takes = [pack.bos_id, *tokens], [False, *takes]
        if pack.eos_id is not None:
            tokens, takes = [*tokens, pack.eos_id], [*takes, True]
        if pack.sep_id is not None:
            tokens, takes = [*tokens, pack.sep_id], [*takes, False]
        if pack.strategy in ("pad", "best_fit"):
            if pack.long_docs == "drop" and len(tokens) > pack.seq_len:
                continue
            if pack.long_docs == "truncate":
                tokens, takes = tokens[: pack.seq_len], takes[: pack.seq_len]
        found[number] = Whole(tokens, takes if pack.loss_mask else [True] * len(tokens))
    return found


def tokens_of(wholes: Mapping[int, Whole]) -> list[Place]:
    return [(number, at) for number, whole in wholes.items() for at in range(len(whole.tokens))]


def check(batch: Mapping[str, Any], pack: Pack, wholes: Mapping[int, Whole]) -> list[list[Place]]:
    """Check every value of a batch; give the tokens of each of its sequences."""
    ids, docs = batch["input_ids"].tolist(), batch["doc_ids"].tolist()
    owners = [] if "documents" not in batch or not batch["documents"] else batch["documents"]["id"].tolist()
    found, edges, parts = [], [0], 0
    for row, (row_ids, row_docs) in enumerate(zip(ids, docs, strict=True)):
        sequence: list[Place] = []
        for start, stop in runs_of(row_docs):
            edges.append(row * pack.seq_len + stop)
            at = slice(start, stop)
            if row_docs[start] < 0:
                assert stop == pack.seq_len, "padding is at the end"
                check_padding(batch, row, at, pack)
                continue
            assert row_docs[start] == parts
            sequence += check_part(batch, row, at, pack, owners[parts], wholes[owners[parts]])
            parts += 1
        found.append(sequence)
        assert len(row_ids) == pack.seq_len
    assert parts == len(owners)
    assert batch["cu_seqlens"].tolist() == edges
    assert batch["max_seqlen"] == max(np.diff(edges))
    return found


def runs_of(numbers: list[int]) -> Iterator[tuple[int, int]]:
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    return pairwise(edges)


def check_padding(batch: Mapping[str, Any], row: int, at: slice, pack: Pack) -> None:
    assert set(batch["input_ids"][row, at].tolist()) == {pack.pad_id}
    assert set(batch["position_ids"][row, at].tolist()) == {0}
    if pack.labels is not None:
        assert set(batch["labels"][row, at].tolist()) == {-100}


def check_part(batch: Mapping[str, Any], row: int, at: slice, pack: Pack, owner: int, whole: Whole) -> list[Place]:
    ids = batch["input_ids"][row, at].tolist()
    first = whole.tokens.index(ids[0])
    places = range(first, first + len(ids))
    assert ids == whole.tokens[first : places.stop]
    assert batch["position_ids"][row, at].tolist() == list(range(len(ids)))
    known = [whole.tokens[place] if whole.trained[place] else -100 for place in range(len(whole.tokens))]
    if pack.labels == "hf":
        assert batch["labels"][row, at].tolist() == [-100, *known[first + 1 : places.stop]]
    elif pack.labels == "shifted":
        assert batch["labels"][row, at].tolist() == [*known, -100][first + 1 : places.stop + 1]
    else:
        assert "labels" not in batch
    if "weight" in batch:
        stored = [place - (pack.bos_id is not None) for place in places]
        length = LENGTHS[owner] or 0
        expected = [owner + place / 128 if 0 <= place < length else 0.0 for place in stored]
        assert batch["weight"][row, at].tolist() == expected
    return [(owner, place) for place in places]


def make(root: Path, pack: Pack, **options: Any) -> TableLoader:
    return opened(root, pack, **options)[0]


def opened(root: Path, pack: Pack, **options: Any) -> tuple[TableLoader, StructuredDataset]:
    chosen: dict[str, Any] = {"check_plan": False, "columns": ["id"], "shuffle": "rows"} | options
    with meant_warnings():
        return StructuredDataset.create_dataloader(str(root), pack=pack, **chosen)


def copied(state: Any) -> Any:
    return json.loads(json.dumps(state))


def expected_count(pack: Pack) -> int | None:
    """How many sequences there are; None where only packing tells."""
    wholes = wholes_of(pack)
    total = len(tokens_of(wholes))
    if pack.strategy == "windows":
        stride = pack.stride or pack.seq_len
        starts = [start for start in range(0, total, stride) if not start or start - stride + pack.seq_len < total]
        return len(starts)
    if pack.strategy == "concat":
        return -(-total // pack.seq_len)
    if pack.strategy == "pad":
        return sum(-(-len(whole.tokens) // pack.seq_len) for whole in wholes.values())
    return None


PACKS = st.builds(
    full_pack,
    seq_len=st.integers(1, 45),
    strategy=st.sampled_from(STRATEGIES),
    bos_id=st.sampled_from([None, BOS]),
    eos_id=st.sampled_from([None, EOS]),
    sep_id=st.sampled_from([None, SEP]),
    min_length=st.sampled_from([1, 2, 6]),
    labels=st.sampled_from(["hf", "shifted", None]),
    aligned=st.sampled_from([(), ("weight",)]),
    block_docs=st.sampled_from([1, 3, 4096]),
)
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
        found += [sequence for batch in batches for sequence in check(batch, pack, wholes_of(pack)) if sequence]
        states.append(loader.state_dict())
        lengths.append(length)
    if world.get("even_ranks") == "pad":
        assert len(set(lengths)) == 1
    running = [each for each in states if not is_ended(each)]
    return found, (running or states)[0]


@settings(max_examples=examples(20), deadline=None)
@given(pack=PACKS, world=WORLDS, epoch=st.integers(0, 2))
def test_every_token_comes_once_and_the_length_is_exact(
    table: Path, pack: Pack, world: dict[str, Any], epoch: int
) -> None:
    found, _ = run(table, pack, world, epoch=epoch)
    assert sorted(place for sequence in found for place in sequence) == sorted(tokens_of(wholes_of(pack)))
    if (expected := expected_count(pack)) is not None:
        assert len(found) == expected


@settings(max_examples=examples(10), deadline=None)
@given(
    pack=PACKS.filter(lambda pack: pack.strategy in ("pad", "best_fit")),
    how=st.sampled_from(["truncate", "drop"]),
    mask=st.booleans(),
)
def test_long_documents_are_cut_off_or_left_out(table: Path, pack: Pack, how: Any, mask: bool) -> None:
    fields = {name: getattr(pack, name) for name in pack.__dataclass_fields__}
    labels = pack.labels if pack.labels is not None or not mask else "hf"
    pack = full_pack(**{**fields, "long_docs": how, "loss_mask": "trained" if mask else None, "labels": labels})
    found, _ = run(table, pack, {"num_ranks": 2, "batch_size": 2, "num_workers": 0})
    assert sorted(place for sequence in found for place in sequence) == sorted(tokens_of(wholes_of(pack)))


@settings(max_examples=examples(10), deadline=None)
@given(seq_len=st.integers(1, 30), stride=st.integers(1, 30), labels=st.sampled_from(["hf", "shifted"]))
def test_windows_begin_a_stride_apart_as_long_as_they_add_a_token(
    table: Path, seq_len: int, stride: int, labels: Any
) -> None:
    pack = full_pack(seq_len=seq_len, strategy="windows", stride=min(stride, seq_len), eos_id=EOS, labels=labels)
    order = tokens_of(wholes_of(pack))
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
    dealt = [[check(batch, pack, wholes_of(pack)) for batch in loader] for loader in loaders]
    step = [dealt[rank][0][row] for row in range(2) for rank in range(3)]
    assert step == one[:6], "a global batch is the next sequences of the job, whoever takes them"


# ---- resuming --------------------------------------------------------------------------------------------


@settings(max_examples=examples(12), deadline=None)
@given(pack=PACKS, worlds=st.lists(WORLDS, min_size=2, max_size=3), steps=st.integers(0, 4))
def test_another_world_delivers_the_rest(table: Path, pack: Pack, worlds: list[dict[str, Any]], steps: int) -> None:
    state, found = None, []
    for number, world in enumerate(worlds):
        got, state = run(
            table, pack, {**world, "even_ranks": "pad"}, state, None if number == len(worlds) - 1 else steps
        )
        found += got
    assert sorted(place for sequence in found for place in sequence) == sorted(tokens_of(wholes_of(pack)))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("worker_type", ["thread", "process"])
@daily(3)
def test_it_resumes_from_every_step(table: Path, strategy: Any, worker_type: Any) -> None:
    pack = full_pack(seq_len=7, strategy=strategy, labels="shifted", loss_mask="trained", aligned=["weight"])
    options: dict[str, Any] = {
        "batch_size": 2,
        "num_workers": 2,
        "worker_type": worker_type,
        "columns": ["title", "id"],
    }
    wholes = wholes_of(pack)
    whole = [check(batch, pack, wholes) for batch in make(table, pack, **options)]
    for taken in range(len(whole) + 1) if worker_type == "thread" else (len(whole) // 2,):
        loader = make(table, pack, **options)
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        state = copied(loader.state_dict())
        batches.close()
        other = make(table, pack, **options)
        other.load_state_dict(state)
        assert [check(batch, pack, wholes) for batch in other] == whole[taken:]
        if strategy != "best_fit":
            other.load_state_dict(with_anchor(state, []))
            assert [check(batch, pack, wholes) for batch in other] == whole[taken:], "without an anchor it walks"


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
    assert sorted(place for sequence in found for place in sequence) == sorted(tokens_of(wholes_of(pack)))


def test_the_epoch_after_begins_anew_with_the_length_that_is_asked_for(table: Path) -> None:
    first = make(table, full_pack(seq_len=8), batch_size=2, num_workers=0)
    list(islice(first, 3))
    loader = make(table, full_pack(seq_len=5), batch_size=2, num_workers=0)
    loader.load_state_dict(copied(first.state_dict()))
    left = -(-(len(tokens_of(wholes_of(full_pack(seq_len=5)))) - 48) // 5)
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
    for origin in (-1, "3", 10**9):
        with pytest.raises(ResumeError):
            make(table, full_pack(seq_len=5)).load_state_dict({**state, "history": [[0, False, 0, origin, []]]})
    with pytest.raises(ResumeError, match=r"pack= .* was 'concat-"):
        make(table, full_pack(seq_len=8, strategy="windows")).load_state_dict(state)
    with pytest.raises(ResumeError, match="stage"):
        make(table, full_pack(seq_len=8, eos_id=EOS)).load_state_dict(state)
    loader = make(table, full_pack(seq_len=8), batch_size=2)
    list(islice(loader, 3))
    state = copied(loader.state_dict())
    number, place, before, seal = source_of(state)[4]
    for anchor in ([1, "x"], [0, 17, 3], [number, place, before + 1, seal], [number, place - 1, before, seal]):
        with pytest.raises(ResumeError, match="anchor"):
            make(table, full_pack(seq_len=8)).load_state_dict(with_anchor(state, anchor))
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
    whole = [check(batch, pack, wholes) for batch in loader]
    assert sorted(place for batch in whole for row in batch for place in row) == sorted(tokens_of(wholes))
    assert len(whole) == len(loader)
    loader.set_epoch(0)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = copied(loader.state_dict())
    dataset.include([5])
    other = make(table, pack, batch_size=2)
    other.load_state_dict(state)
    assert [check(batch, pack, wholes) for batch in other] == whole[3:]
    batches.close()
    loader.set_epoch(1)
    again = [place for batch in loader for row in check(batch, pack, wholes_of(pack, [*left, 5])) for place in row]
    assert sorted(again) == sorted(tokens_of(wholes_of(pack, [*left, 5])))


def test_windows_refuse_to_leave_documents_out(table: Path) -> None:
    with pytest.raises(ConfigError, match='strategy="windows" cuts tokens without regard'):
        opened(table, full_pack(seq_len=7, strategy="windows"))[1].exclude([2])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_filters_row_ids_and_columns_of_documents(table: Path, strategy: Any) -> None:
    pack = full_pack(seq_len=9, strategy=strategy, spans=["spans"])
    loader = make(table, pack, batch_size=2, filters=pc.field("id") > 3, columns=["title", "id"], row_id=True)
    wholes = wholes_of(pack, list(range(4, len(LENGTHS))))
    found = []
    for step, batch in enumerate(loader):
        found += [place for row in check(batch, pack, wholes) for place in row]
        documents = batch["documents"]
        assert documents["row_id"].tolist() == documents["id"].tolist()
        assert documents["title"] == [f"document {number}" for number in documents["id"].tolist()]
        half = len(LENGTHS) // 2
        files = [
            (f"{int(row >= half)}.parquet", row % half if row < half else row - half)
            for row in documents["id"].tolist()
        ]
        assert loader.rows_of(step) == [RowSpan(file, row, row + 1) for file, row in files]
        flat = [place for row in check(batch, pack, wholes) for place in [*row, *[None] * (9 - len(row))]]
        index = batch["spans"]["spans"].index.reshape(-1).tolist()
        kinds = batch["spans"]["spans"].columns["kind"].tolist()
        wanted = [place[0] if place is not None and 1 <= place[1] < 4 else None for place in flat]
        assert [None if number < 0 else kinds[number] for number in index] == wanted
    assert sorted(found) == sorted(tokens_of(wholes))


def test_spans_are_moved_by_a_begin_token(table: Path) -> None:
    pack = full_pack(seq_len=9, bos_id=BOS, spans=["spans"])
    wholes, found = wholes_of(pack), []
    for batch in make(table, pack, batch_size=2):
        places = [place for row in check(batch, pack, wholes) for place in [*row, *[None] * (9 - len(row))]]
        index = batch["spans"]["spans"].index.reshape(-1).tolist()
        inside = [place is not None and 2 <= place[1] < 5 and (LENGTHS[place[0]] or 0) > 1 for place in places]
        stored = [place is not None and place[1] - 1 < (LENGTHS[place[0]] or 0) for place in places]
        assert [number >= 0 for number in index] == [a and b for a, b in zip(inside, stored, strict=True)]
        found += index
    assert max(found) > 0


@pytest.mark.parametrize("kind", [pa.list_(pa.uint16()), pa.large_list(pa.int64()), pa.list_(pa.int32(), 4)], ids=str)
def test_lists_of_any_kind(tmp_path: Path, kind: pa.DataType) -> None:
    lengths: list[int | None] = [4, 4, None, 4, 4, 4]
    write(tmp_path, lengths, kind)
    batches = list(make(tmp_path, full_pack(seq_len=6, eos_id=70_000), batch_size=1, num_workers=0))
    ids = [entry for batch in batches for row in batch["input_ids"].tolist() for entry in row]
    stored = [token(row, at) for row, n in enumerate(lengths) for at in range(n or 0)]
    assert sorted(ids) == sorted([*stored, *[70_000] * 5, *[0] * 5])


def test_workers_of_a_dataloader_and_formats(table: Path) -> None:
    pack = full_pack(seq_len=7, eos_id=EOS, aligned=["weight"])
    with meant_warnings():
        dataset = StructuredDataset(
            str(table), pack=pack, shuffle="rows", columns=["id"], batch_size=2, check_plan=False
        )
        loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)
        found = [place for batch in loader for row in check(batch, pack, wholes_of(pack)) for place in row]
    assert sorted(found) == sorted(tokens_of(wholes_of(pack)))
    flash = next(iter(make(table, full_pack(seq_len=7, output="flash"), output_format="numpy", batch_size=2)))
    assert flash["input_ids"].shape == (1, 14)
    assert isinstance(flash["cu_seq_lens_q"], np.ndarray)


def test_windows_as_a_map(table: Path) -> None:
    pack = full_pack(seq_len=7, strategy="windows", eos_id=EOS)
    order = tokens_of(wholes_of(pack))
    with meant_warnings():
        view = StructuredDataset(str(table), pack=pack, shuffle="rows", columns=["id"], check_plan=False).as_map()
    assert len(view) == -(-len(order) // 7)
    places = [3, 0, len(view) - 1]
    assert check(view.batch(places), pack, wholes_of(pack)) == [order[7 * place : 7 * place + 7] for place in places]
    assert view.row_ids([0]).tolist() == list(dict.fromkeys(number for number, _ in order[:7]))
    with pytest.raises(ConfigError, match="leave pack out"), meant_warnings():
        len(StructuredDataset(str(table), pack=full_pack(seq_len=7), shuffle="rows", check_plan=False).as_map())


@pytest.mark.parametrize("output", [None, "hf", "flash", "flex", "megatron", "segment_ids"])
@pytest.mark.parametrize("form", ["torch", "numpy"])
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
    assert np.array_equal(one.columns["kind"], several.columns["kind"])


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
def test_each_epoch_has_an_order_of_its_own_and_places_are_uniform(tmp_path: Path, strategy: Any) -> None:
    write(tmp_path, [4] * 8)
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
        write(root / name, lengths)
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


@settings(max_examples=examples(4), deadline=None)
@given(
    strategy=st.sampled_from(["windows", "concat", "pad", "best_fit"]),
    worlds=st.lists(WORLDS.filter(lambda world: world["num_ranks"] < 3), min_size=2, max_size=2),
    steps=st.integers(0, 5),
    changes=st.booleans(),
    stop=st.sampled_from(["first_exhausted", "all_exhausted"]),
    weights=st.sampled_from([{"a": 3, "b": 2, "c": 1}, {"a": 1, "b": 1, "c": 5}, "rows"]),
    block=st.sampled_from([0, 256]),
)
def test_a_mixture_goes_on_in_another_world(
    tables: dict[str, Path],
    strategy: Any,
    worlds: list[dict[str, Any]],
    steps: int,
    changes: bool,
    stop: Any,
    weights: Any,
    block: int,
) -> None:
    pack = full_pack(seq_len=11, strategy=strategy, eos_id=EOS, block_docs=4)
    block = 0 if weights == "rows" else block

    def run_once(worlds: list[dict[str, Any]]) -> list[Any]:
        state, found = None, []
        for number, world in enumerate(worlds):
            last = number == len(worlds) - 1
            states, got = [], []
            for rank in range(world["num_ranks"]):
                options = {**world, "even_ranks": "pad", "rank": rank}
                loader, dataset = mix(tables, pack, weights, stop=stop, block=block, **options)
                if state is not None:
                    loader.load_state_dict(copied(state))
                if changes and not last:
                    dataset.set_weights({"a": 1, "b": 1, "c": 2})
                got.append([of_sequences(batch) for batch in islice(loader, None if last else steps)])
                states.append(loader.state_dict())
            state = states[0]
            found += [entry for batches in got for batch in batches for entry in batch]
        return found

    once = run_once([worlds[0]]) if not changes else None
    found = run_once(worlds)
    if once is not None:
        assert sorted(map(repr, found)) == sorted(map(repr, once))
    if stop == "all_exhausted":
        assert {entry for source, own in found for entry in own if source == 2} >= {
            (row, token(row, at)) for row in range(9) for at in range(25)
        }


def test_a_mixture_goes_on_where_each_source_stood(tables: dict[str, Path]) -> None:
    pack, weights = full_pack(seq_len=8), {"a": 1, "b": 1, "c": 4}
    loader, _ = mix(tables, pack, weights, batch_size=8, num_workers=2, stop="all_exhausted")
    whole = [of_sequences(batch) for batch in loader]
    steps = len(whole) * 2 // 3
    loader.set_epoch(0)
    batches = iter(loader)
    for _ in range(steps):
        next(batches)
    state = copied(loader.state_dict())
    batches.close()
    anchors = {name: anchor for name, *_, anchor in state["tables"]}
    assert anchors["c"][0] > 0, "the small source goes round"
    assert anchors["b"][0] == 0
    assert anchors["b"][1] > 0
    for name, *_, anchor in state["tables"]:
        turns = sum(source == "abc".index(name) for batch in whole[:steps] for source, _ in batch)
        in_round = turns % -(-sum(n or 0 for n in MIXED[name]) // 8) * 8
        assert in_round - max(n or 0 for n in MIXED[name]) < anchor[2] <= in_round
    other, _ = mix(tables, pack, weights, batch_size=8, num_workers=1, stop="all_exhausted")
    other.load_state_dict(state)
    assert [of_sequences(batch) for batch in other] == whole[steps:]
    for *_, each in state["tables"]:
        each[2] += 1
    with pytest.raises(ResumeError, match=r"anchor .* is not one of this epoch's order"):
        other.load_state_dict(state)


@pytest.mark.parametrize("stop", ["forever", "first_exhausted"])
def test_a_mixture_refuses_places_of_sequences_of_another_length(
    tables: dict[str, Path], stop: Any, small_gathers: None
) -> None:
    weights = {"a": 1, "b": 1, "c": 1}
    loader, _ = mix(tables, full_pack(seq_len=8), weights, batch_size=2, stop=stop)
    for _ in zip(range(3), loader, strict=False):
        pass
    other, _ = mix(tables, full_pack(seq_len=16), weights, batch_size=2, stop=stop)
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
    loader.set_epoch(0)
    batches = iter(loader)
    for _ in range(steps):
        next(batches)
    state = copied(loader.state_dict())
    batches.close()
    anchor = source_of(state, "b")[4]
    taken = sum(source == 0 for batch in whole[:steps] for source, _ in batch)
    assert anchor[0] > 3
    assert anchor[1] == sum(rounds[: anchor[0]]) <= taken
    assert anchor[2] == rounds[anchor[0]] or anchor[0] == len(rounds) - 1
    other, _ = mix(paths, pack, weights, batch_size=4, stop="all_exhausted")
    other.load_state_dict(state)
    assert [of_sequences(batch) for batch in other] == whole[steps:]
    for *_, each in state["tables"]:
        each[2] += 1
    with pytest.raises(ResumeError, match=r"anchor .* is not one of this epoch's order"):
        other.load_state_dict(state)
