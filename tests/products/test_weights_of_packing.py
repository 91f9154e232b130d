"""Documents that come several times an epoch under `pack`, or are drawn by weight, against plain numpy."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.tables.plain import meant_warnings
from torch_table_loader import ConfigError, MixedDataset, Pack, ResumeError, StructuredDataset, Weights

END = 9
LENGTHS = [5, 1, 17, 9, 3, 30, 2, 12, 9, 4, 6, 33, 8, 1, 7]
REPEATS = [2, 0, 1, 3, 1, 0, 5, 1, 2, 1, 1, 1, 0, 4, 2]
FRACTIONS = [0.5, 0, 1.5, 3, 0.25, 1, 2.75, 1, 2, 0.2, 1, 1, 0, 4.4, 2]
STRATEGIES = ["concat", "pad", "best_fit"]


def tokens_of(document: int) -> list[int]:
    return [100 * (document + 1) + at for at in range(LENGTHS[document])]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("documents")
    for file, rows in enumerate((range(6), range(6, 15))):
        columns = {
            "tokens": pa.array([tokens_of(row) for row in rows], pa.list_(pa.int32())),
            "n": pa.array([REPEATS[row] for row in rows], pa.int16()),
            "x": pa.array([FRACTIONS[row] for row in rows], pa.float64()),
        }
        pq.write_table(pa.table(columns), root / f"{file}.parquet", row_group_size=4)
    return str(root)


def make(path: str, weights: Any, strategy: Any = "concat", *, seq_len: Any = 8, **options: Any) -> Any:
    pack = Pack(seq_len=seq_len, tokens="tokens", strategy=strategy, eos_id=END, labels=None)
    asked: dict[str, Any] = {"shuffle": "rows", "batch_size": 2, "num_workers": 2, "check_plan": False} | options
    with meant_warnings():
        return StructuredDataset.create_dataloader(path, "parquet", pack=pack, weights=weights, **asked)[0]


def real(batches: Any) -> list[list[int]]:
    """Give the tokens of the sequences of some batches, without what fills them; padding of ranks has none."""
    rows = [row for batch in batches for row in batch["input_ids"].tolist()]
    return [found for row in rows if (found := [token for token in row if token])]


def counts_in(sequences: list[list[int]]) -> Counter[int]:
    """Count the documents by their first tokens."""
    return Counter(token // 100 - 1 for row in sequences for token in row if token != END and token % 100 == 0)


def assert_whole(sequences: list[list[int]], came: Counter[int]) -> None:
    """Hold all tokens against those of documents that come so often."""
    found = Counter(token for row in sequences for token in row)
    wanted = Counter({END: came.total()})
    for document, times in came.items():
        wanted.update(dict.fromkeys(tokens_of(document), times))
    assert found == wanted


def epoch_of(loader: Any, epoch: int) -> list[list[int]]:
    loader.set_epoch(epoch)
    batches = list(loader)
    assert len(batches) == len(loader)
    return real(batches)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_document_comes_as_often_as_its_column_says_each_time_whole(table: str, strategy: Any) -> None:
    loader = make(table, Weights(repeats="n"), strategy)
    orders = []
    for epoch in range(3):
        sequences = epoch_of(loader, epoch)
        came = counts_in(sequences)
        assert came == Counter({row: count for row, count in enumerate(REPEATS) if count})
        assert_whole(sequences, came)
        orders.append(sequences)
        if strategy == "concat":
            text = [token for row in sequences for token in row]
            ends = np.flatnonzero(np.array(text) == END)
            documents = [part[part != END].tolist() for part in np.split(np.array(text), ends + 1)[:-1]]
            assert all(document == tokens_of(document[0] // 100 - 1) for document in documents)
            assert len(sequences) == -(-len(text) // 8)
    assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize("strategy", STRATEGIES)
@daily(1)
def test_fractions_come_so_often_on_average_and_lengths_are_known(table: str, strategy: Any) -> None:
    loader, found = make(table, Weights(repeats="x"), strategy), Counter[int]()
    epochs = 40
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        steps = loader.remaining
        batches = list(loader)
        assert len(batches) == steps
        came = counts_in(real(batches))
        assert came.total() == round(sum(FRACTIONS))
        assert all(abs(came[row] - weight) < 2 for row, weight in enumerate(FRACTIONS))
        assert_whole(real(batches), came)
        found += came
    for row, weight in enumerate(FRACTIONS):
        assert abs(found[row] / epochs - weight * round(sum(FRACTIONS)) / sum(FRACTIONS)) < 0.3


@pytest.mark.parametrize("weights", [Weights(column="x"), "n", Weights(samples=6), Weights(column="n", samples=40)])
@pytest.mark.parametrize("strategy", STRATEGIES)
@daily(4)
def test_documents_are_drawn_by_weight_as_rows_are(table: str, strategy: Any, weights: Any) -> None:
    loader = make(table, weights, strategy)
    with meant_warnings():
        rows = StructuredDataset.create_dataloader(
            table, "parquet", weights=weights, shuffle="rows", batch_size=5, columns=["n"], row_id=True
        )[0]
    for epoch in range(2):
        loader.set_epoch(epoch)
        rows.set_epoch(epoch)
        came = counts_in(real(loader))
        assert came == Counter(row for batch in rows for row in batch["row_id"].tolist())


worlds = st.fixed_dictionaries(
    {
        "num_ranks": st.integers(1, 4),
        "num_workers": st.integers(0, 2),
        "batch_size": st.integers(1, 4),
        "even_ranks": st.sampled_from([None, "pad"]),
    }
)


@settings(max_examples=examples(4), deadline=None)
@given(
    before=worlds,
    after=worlds,
    steps=st.integers(0, 5),
    epoch=st.integers(0, 2),
    strategy=st.sampled_from(STRATEGIES),
    weights=st.sampled_from([Weights(repeats="n"), Weights(repeats="x"), "x", Weights(samples=9)]),
    data=st.data(),
)
def test_any_world_has_the_same_sequences_and_goes_on(
    table: str, before: Any, after: Any, steps: int, epoch: int, strategy: Any, weights: Any, data: st.DataObject
) -> None:
    whole = make(table, weights, strategy, num_workers=0)
    whole.set_epoch(epoch)
    wanted = Counter(map(tuple, real(whole)))
    lengths = [8] if strategy != "concat" else [8, {0: 8, 2: 5, 4: 11}]
    seq_len = data.draw(st.sampled_from(lengths))
    steps = min(steps, *part(table, weights, strategy, before, None, None, epoch, seq_len)[2])
    first, state, _ = part(table, weights, strategy, before, None, steps, epoch, seq_len)
    rest, _, _ = part(table, weights, strategy, after, state, None, epoch, seq_len)
    if seq_len == 8:
        assert Counter(map(tuple, first + rest)) == wanted
    assert Counter(token for row in first + rest for token in row) == Counter(
        token for row in wanted.elements() for token in row
    )


def part(
    path: str, weights: Any, strategy: Any, world: Any, state: Any, steps: int | None, epoch: int, seq_len: Any
) -> tuple[list[list[int]], Any, list[int]]:
    """Let all ranks go on for some steps; give their sequences, a state and their numbers of steps."""
    found: list[list[int]] = []
    lengths, told = list[int](), None
    for rank in range(world["num_ranks"]):
        loader = make(path, weights, strategy, seq_len=seq_len, rank=rank, **world)
        loader.set_epoch(epoch)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        lengths.append(loader.remaining)
        batches = list(islice(loader, steps))
        assert steps is not None or len(batches) == lengths[-1]
        found += real(batches)
        told = loader.state_dict() if told is None else told
    return found, told, lengths


def test_excluded_documents_do_not_come_and_the_others_come_as_often(table: str) -> None:
    loader = make(table, Weights(repeats="n"), "pad", seq_len=50)
    loader.dataset.exclude([3, 13])
    came = counts_in(epoch_of(loader, 0))
    assert came == Counter({row: count for row, count in enumerate(REPEATS) if count and row not in (3, 13)})


@pytest.mark.parametrize("strategy", STRATEGIES)
@daily(1)
def test_a_source_of_a_mixture_repeats_documents_in_each_round(table: str, strategy: Any) -> None:
    pack = Pack(seq_len=40, tokens="tokens", strategy=strategy, eos_id=END, labels=None)
    asked: dict[str, Any] = {"pack": pack, "shuffle": "rows"}

    def mixed(weights: Any, shares: Any, **options: Any) -> Any:
        with meant_warnings():
            one = StructuredDataset(table, "parquet", weights=weights, **asked)
            other = StructuredDataset(table, "parquet", **asked)
            sources = {"a": one, "b": other}
            return MixedDataset.create_dataloader(sources, shares, batch_size=3, check_plan=False, **options)[0]

    repeats = Weights(repeats="n")
    assert counts_in(real(mixed(repeats, "rows"))) == Counter({row: 1 + count for row, count in enumerate(REPEATS)})
    shares, stop = {"a": 1, "b": 5}, "all_exhausted"
    batches = list(mixed(repeats, shares, stop=stop))
    assert counts_in(real(batches))[0] > 2 + 5, "the other source has come several times"
    again, fresh = mixed(repeats, shares, stop=stop), mixed(repeats, shares, stop=stop)
    assert len(again) == len(batches)
    taken = list(islice(again, len(batches) - 3))
    fresh.load_state_dict(json.loads(json.dumps(again.state_dict())))
    assert real([*taken, *fresh]) == real(batches)
    with pytest.raises(ConfigError, match=r"rounds of a source of a mixture have the same documents.*repeats="):
        mixed("x", shares)


@pytest.mark.parametrize("wrong", [{"weights": "x"}, {"weights": Weights(repeats="x")}, {"weights": None}])
def test_a_state_of_other_repeats_is_refused_by_name(table: str, wrong: Any) -> None:
    loader = make(table, Weights(repeats="n"))
    next(iter(loader))
    other = make(table, wrong["weights"])
    with pytest.raises(ResumeError, match="weights"):
        other.load_state_dict(loader.state_dict())


def test_explain_says_what_comes(table: str) -> None:
    loader = make(table, Weights(repeats="n"), "best_fit", seq_len=20)
    plan = loader.dataset.explain()
    said = f"{sum(REPEATS)} documents an epoch are drawn by weight, repeats='n', from 15 of 15 live documents"
    assert any(said in note for note in plan.notes)
    assert plan.packing.sequences == len(epoch_of(loader, 0))
    assert plan.packing.parts >= sum(REPEATS)


@pytest.mark.parametrize(
    ("weights", "strategy", "said"),
    [
        ("n", "windows", 'weights repeats documents, but strategy="windows" cuts tokens without regard to documents'),
        (Weights(repeats="tokens"), "pad", "repeats='tokens' of weights must be a column of numbers"),
    ],
)
def test_what_cannot_be_meant_is_refused(table: str, weights: Any, strategy: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(table, weights, strategy)
