"""`Pack(documents=...)` of a function that takes the epoch: what comes of a document differs by epoch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.tables.plain import meant_warnings
from tests.text.documents_by_epoch import (
    LENGTHS,
    Place,
    all_places,
    corrupted,
    expected,
    fim,
    middle_filled,
    placed,
    places_of,
    seed_of,
    spans_corrupted,
    write_documents,
)
from torch_table_loader import (
    ConfigError,
    FlatTokens,
    MixedDataset,
    Pack,
    ResumeError,
    StructuredDataset,
    TableError,
    TableLoader,
)

MODES = [(shuffle, strategy) for shuffle in (False, True, "rows") for strategy in ("concat", "pad", "best_fit")]
MODES += [("rows", "windows")]
CHANGES = {"fim": (fim, middle_filled), "corrupted": (corrupted, spans_corrupted)}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_documents(tmp_path_factory.mktemp("by-epoch"))


def pack_of(documents: Any, strategy: Any, **options: Any) -> Pack:
    output = ("input_ids", "labels", "doc_ids")
    asked = {"seq_len": 7, "aligned": ["at", "owner"], "labels": "shifted", "output": output, **options}
    return Pack(strategy=strategy, documents=documents, **asked)


def loader_of(table: str, pack: Pack, **options: Any) -> Any:
    asked: dict[str, Any] = {"batch_size": 2, "check_plan": False, "num_workers": 2, "shuffle_seed": 11, **options}
    with meant_warnings():
        return StructuredDataset.create_dataloader(table, pack=pack, **asked)[0]


def world(table: str, pack: Pack, ranks: int, **options: Any) -> list[Any]:
    return [loader_of(table, pack, num_ranks=ranks, rank=rank, **options) for rank in range(ranks)]


def taken(loaders: list[Any], documents: dict[int, list[int]], steps: int | None = None) -> Counter[Place]:
    """Take steps of each rank, or all that are left, as many as were told."""
    found: Counter[Place] = Counter()
    for loader in loaders:
        told, came = loader.remaining, 0
        for batch in loader:
            found.update(places_of(batch, documents))
            came += 1
            if came == steps:
                break
        assert came == (told if steps is None else steps)
    return found


@pytest.mark.parametrize(("shuffle", "strategy"), MODES)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("ranks", [1, 3])
@daily(6)
def test_each_epoch_has_its_own_documents_once(
    table: str, shuffle: Any, strategy: Any, change: str, ranks: int
) -> None:
    function, reference = CHANGES[change]
    loaders = world(table, pack_of(function, strategy), ranks, shuffle=shuffle)
    totals = set()
    for epoch in range(3):
        documents = expected(reference, 11, epoch)
        for loader in loaders:
            loader.set_epoch(epoch)
        assert len({len(loader) for loader in loaders}) == 1
        assert taken(loaders, documents) == all_places(documents)
        totals.add(sum(map(len, documents.values())))
    assert len(totals) == 3  # or this shows nothing of lengths that vary


@pytest.mark.parametrize(("shuffle", "strategy"), MODES)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("worlds", [(3, 1), (1, 2)])
@daily(6)
def test_a_killed_job_goes_on_in_another_world(
    table: str, shuffle: Any, strategy: Any, change: str, worlds: tuple[int, int]
) -> None:
    function, reference = CHANGES[change]
    before, after = worlds
    pack = pack_of(function, strategy, seq_len=5)
    options: dict[str, Any] = {"shuffle": shuffle, "batch_size": 1}
    loaders = world(table, pack, before, **options)
    documents = expected(reference, 11, 1)
    for loader in loaders:
        loader.set_epoch(1)
    found = taken(loaders, documents, steps=3)
    state = loaders[0].state_dict()
    others = world(table, pack, after, num_workers=0, **options)
    for loader in others:
        loader.load_state_dict(state)
    found += taken(others, documents)
    assert found == all_places(documents)
    documents = expected(reference, 11, 2)
    for loader in others:
        loader.set_epoch(2)
    assert taken(others, documents) == all_places(documents)


@pytest.mark.parametrize(("shuffle", "strategy"), [(True, "concat"), ("rows", "concat"), ("rows", "best_fit")])
def test_tokens_are_put_in_behind_the_function(table: str, shuffle: Any, strategy: Any) -> None:
    ends = {"bos_id": 7, "eos_id": 8}

    def ended(batch: pa.RecordBatch, *, epoch: int) -> pa.RecordBatch:
        return fim(batch, epoch=epoch)

    pack = pack_of(ended, strategy, aligned=[], output=("input_ids", "doc_ids"), min_length=4, **ends)
    loader = loader_of(table, pack, shuffle=shuffle, columns=["row"])
    for epoch in range(2):
        loader.set_epoch(epoch)
        documents = expected(middle_filled, 11, epoch)
        wanted = {row: [7, *tokens, 8] for row, tokens in documents.items() if len(tokens) >= 4}
        found: dict[int, Counter[int]] = {}
        for batch in loader:
            owner, ids = (np.asarray(batch[name]).reshape(-1) for name in ("doc_ids", "input_ids"))
            rows = np.asarray(batch["documents"]["row"])[owner[owner >= 0]]
            for row, token in zip(rows.tolist(), ids[owner >= 0].tolist(), strict=True):
                found.setdefault(row, Counter())[token] += 1
        assert found == {row: Counter(tokens) for row, tokens in wanted.items()}


@pytest.mark.parametrize("shuffle", [True, "rows"])
@pytest.mark.parametrize("served", [{"worker_type": "forkserver"}, {"worker_type": "thread"}], ids=str)
@daily(2)
def test_processes_make_the_same(table: str, shuffle: Any, served: dict[str, Any]) -> None:
    loader = loader_of(table, pack_of(fim, "concat"), shuffle=shuffle, **served)
    for epoch in range(2):
        loader.set_epoch(epoch)
        documents = expected(middle_filled, 11, epoch)
        assert taken([loader], documents) == all_places(documents)


@pytest.mark.parametrize("shuffle", [True, "splits", "rows"])
@daily(1)
def test_sequences_grow(table: str, shuffle: Any) -> None:
    pack = pack_of(corrupted, "concat", seq_len={0: 3, 4: 6})
    loader = loader_of(table, pack, shuffle=shuffle)
    for epoch in range(2):
        loader.set_epoch(epoch)
        documents = expected(spans_corrupted, 11, epoch)
        found: Counter[Place] = Counter()
        widths = [(batch["input_ids"].shape[1], found.update(places_of(batch, documents)))[0] for batch in loader]
        assert found == all_places(documents)
        assert widths == [3] * 4 * (1 - epoch) + [6] * (len(loader) - 4 * (1 - epoch))


@pytest.mark.parametrize(("shuffle", "strategy"), MODES)
@daily(4)
def test_it_is_told_before_an_epoch_what_it_holds(table: str, shuffle: Any, strategy: Any) -> None:
    loader = loader_of(table, pack_of(fim, strategy), shuffle=shuffle)
    for epoch in range(2):
        loader.set_epoch(epoch)
        tokens = sum(map(len, expected(middle_filled, 11, epoch).values()))
        assert loader.dataset.explain().packing.tokens == tokens


def test_documents_can_be_excluded(table: str) -> None:
    loader = loader_of(table, pack_of(fim, "concat"), shuffle="rows")
    loader.dataset.exclude([3, 20])
    loader.set_epoch(1)
    documents = expected(middle_filled, 11, 1)
    left = {row: tokens for row, tokens in documents.items() if row not in (3, 20)}
    assert taken([loader], documents) == all_places(left)


def test_attention_is_balanced_over_what_an_epoch_has(table: str) -> None:
    loaders = world(table, pack_of(fim, "best_fit", balance="attention", seq_len=40), 2, shuffle="rows")
    documents = expected(middle_filled, 11, 0)
    assert taken(loaders, documents) == all_places(documents)


@pytest.mark.parametrize("shuffle", [True, "rows"])
def test_under_a_filter(table: str, shuffle: Any) -> None:
    loader = loader_of(table, pack_of(fim, "concat"), shuffle=shuffle, filters=[("row", ">", 5)])
    for epoch in range(2):
        loader.set_epoch(epoch)
        documents = expected(middle_filled, 11, epoch)
        assert taken([loader], documents) == all_places({row: each for row, each in documents.items() if row > 5})


@pytest.mark.parametrize("shuffle", ["splits", "rows"])
def test_parts_of_a_table_have_their_own(table: str, shuffle: Any) -> None:
    with meant_warnings():
        whole = StructuredDataset(
            table, pack=pack_of(fim, "concat"), shuffle=shuffle, shuffle_seed=11, batch_size=2, check_plan=False
        )
        parts = whole.split({"train": 0.7, "test": 0.3}, by="row")
    documents, found = expected(middle_filled, 11, 1), []
    for part in parts.values():
        loader = TableLoader(part)
        loader.set_epoch(1)
        found.append(taken([loader], documents))
    assert found[0] + found[1] == all_places(documents)
    assert all(found)


def test_a_stream_that_is_not_counted_makes_the_same(table: str) -> None:
    loader = loader_of(table, pack_of(fim, "concat"), count_filtered=False)
    documents = expected(middle_filled, 11, 0)
    assert sum((Counter(places_of(batch, documents)) for batch in loader), Counter()) == all_places(documents)


@pytest.mark.parametrize("shuffle", [True, "rows"])
def test_rows_of_names_the_documents_of_a_batch(table: str, shuffle: Any) -> None:
    loader = loader_of(table, pack_of(fim, "concat"), shuffle=shuffle, num_workers=0)
    loader.set_epoch(1)
    documents = expected(middle_filled, 11, 1)
    for step, batch in enumerate(loader):
        rows = list(dict.fromkeys(row for row, _ in places_of(batch, documents)))
        told = [int(Path(span.file).stem) * 8 + span.row_start for span in loader.rows_of(step)]
        assert list(dict.fromkeys(told)) == rows


@pytest.mark.parametrize("kind", ["flat", "text"])
def test_documents_of_token_files_and_of_text(tmp_path: Path, kind: str) -> None:
    tokens = [list(range(100 * row, 100 * row + 7)) for row in range(9)]
    options: dict[str, Any] = {}
    if kind == "flat":
        np.concatenate([[*document, 65535] for document in tokens]).astype(np.uint16).tofile(tmp_path / "t.bin")
        arguments: list[Any] = [str(tmp_path / "t.bin"), FlatTokens("uint16", eos_id=65535)]
        tokens = [[*document, 65535] for document in tokens]
    else:
        texts = [" ".join(map(str, document)) for document in tokens]
        pq.write_table(pa.table({"text": texts}), tmp_path / "t.parquet")
        arguments, options = [str(tmp_path / "t.parquet")], {"tokenizer": numbers}
    pack = Pack(seq_len=5, documents=turned, labels=None, output=("input_ids", "doc_ids"), **options)
    with meant_warnings():
        loader, _ = StructuredDataset.create_dataloader(
            *arguments, pack=pack, shuffle="rows", shuffle_seed=11, batch_size=1, check_plan=False
        )
    for epoch in range(2):
        loader.set_epoch(epoch)
        made = [repeated_tokens(each, seed_of(11, epoch, row), epoch) for row, each in enumerate(tokens)]
        wanted = [token for document in made for token in document]
        found = [int(token) for batch in loader for token in batch["input_ids"][batch["doc_ids"] >= 0]]
        assert Counter(found) == Counter(wanted)


def numbers(texts: list[str]) -> list[list[int]]:
    """Take the numbers in texts as their tokens."""
    return [list(map(int, text.split())) for text in texts]


def repeated_tokens(tokens: list[int], seed: int, epoch: int) -> list[int]:
    """Give a document once, twice or three times, from another token on in each epoch."""
    return (tokens[epoch:] + tokens[:epoch]) * (1 + seed % 3)


def turned(batch: pa.RecordBatch, *, epoch: int) -> pa.RecordBatch:
    """Repeat documents as their seeds say."""
    name = batch.schema.names[0]
    given = zip(batch.column(name).to_pylist(), batch.column("seed").to_pylist(), strict=True)
    return pa.RecordBatch.from_pydict({name: [repeated_tokens(tokens, seed, epoch) for tokens, seed in given]})


class Unsteady:
    """Gives documents other tokens when it is called again, or other documents come with them."""

    def __init__(self, how: str) -> None:
        self.how, self.calls = how, 0

    def __call__(self, batch: pa.RecordBatch, *, epoch: int) -> pa.RecordBatch:
        """Return documents whose lengths, or tokens, are not of the document, seed and epoch alone."""
        self.calls += 1
        documents = [tokens or [] for tokens in batch.column("tokens").to_pylist()]
        own = batch.column("seed")[0].as_py() % 1000 if self.how == "neighbours" else self.calls
        if self.how != "calls":
            documents = [[own] * len(tokens) for tokens in documents]
        else:
            documents = [tokens * (1 + (own + len(tokens)) % 3) for tokens in documents]
        return placed(batch, documents)


@pytest.mark.parametrize("shuffle", [True, "rows"])
@pytest.mark.parametrize("how", ["calls", "neighbours", "tokens"])
def test_a_function_that_makes_another_document_of_the_same_is_an_error(table: str, shuffle: Any, how: str) -> None:
    said = r"Unsteady.* must return the same for a document whenever it has the same seed and epoch.* row_id is \d+, "
    with pytest.raises(ConfigError, match=said + r"in epoch 0, it returned \d+ tokens from"):
        list(loader_of(table, pack_of(Unsteady(how), "concat"), shuffle=shuffle))


class LaterLonger:
    """Makes documents longer than they were counted, once all were counted."""

    def __init__(self) -> None:
        self.counted = False

    def __call__(self, batch: pa.RecordBatch, *, epoch: int) -> pa.RecordBatch:
        """Return documents once, or twice."""
        documents = [(tokens or []) * (1 + self.counted) for tokens in batch.column("tokens").to_pylist()]
        return placed(batch, documents)


@pytest.mark.parametrize("shuffle", ["splits", "rows"])
def test_other_lengths_than_were_counted_are_an_error(table: str, shuffle: Any) -> None:
    change = LaterLonger()
    loader = loader_of(table, pack_of(change, "concat"), shuffle=shuffle, worker_type="thread")
    assert len(loader)
    change.counted = True
    said = r"LaterLonger made \d+ tokens of .*, and \d+ now; what it returns for a document must depend on the document"
    with pytest.raises(ConfigError, match=said):
        list(loader)


@pytest.mark.parametrize("shuffle", ["splits", "rows"])
def test_a_document_beyond_the_bound_is_an_error(table: str, shuffle: Any) -> None:
    pack = pack_of(fim, "pad", seq_len=30, long_docs="error")
    loader = loader_of(table, pack, shuffle=shuffle)
    lengths = [len(expected(middle_filled, 11, epoch)[20]) for epoch in range(6)]
    loader.set_epoch(lengths.index(33))  # it has 30 tokens, and three more where it is cut
    with pytest.raises(TableError, match=r"has 33 tokens, more than seq_len=30"):
        list(loader)


@pytest.mark.parametrize("shuffle", [True, "rows"])
def test_lengths_that_stay_are_not_counted(table: str, shuffle: Any) -> None:
    def marked(batch: pa.RecordBatch, *, epoch: int) -> pa.RecordBatch:
        return placed(batch, [[epoch] * len(tokens or []) for tokens in batch.column("tokens").to_pylist()])

    loader = loader_of(table, pack_of(marked, "concat", same_lengths=True), shuffle=shuffle)
    for epoch in range(3):
        loader.set_epoch(epoch)
        documents = {row: [epoch] * length for row, length in enumerate(LENGTHS) if length}
        assert taken([loader], documents) == all_places(documents)


@pytest.mark.parametrize("shuffle", [True, "rows"])
def test_states_know_the_function(table: str, shuffle: Any) -> None:
    loader = loader_of(table, pack_of(fim, "concat"), shuffle=shuffle)
    next(iter(loader))
    other = loader_of(table, pack_of(corrupted, "concat"), shuffle=shuffle)
    with pytest.raises(ResumeError, match="stage"):
        other.load_state_dict(loader.state_dict())


def test_a_mixture_of_streams_refuses_it(table: str) -> None:
    with meant_warnings():
        sources = {name: StructuredDataset(table, pack=pack_of(fim, "concat"), shuffle="splits") for name in "ab"}
    with pytest.raises(ConfigError, match='documents= takes the epoch, so that each has others; pass shuffle="rows"'):
        MixedDataset(sources, "rows", check_plan=False)


def mixture(table: str, strategy: Any, ranks: int, weights: Any = "rows", **options: Any) -> list[Any]:
    """Mix a table with itself on each rank; what its sources say of seeds does not matter."""
    loaders = []
    for rank in range(ranks):
        with meant_warnings():
            pack = pack_of(fim, strategy)
            sources = {
                name: StructuredDataset(table, pack=pack, shuffle="rows", shuffle_seed=seed)
                for seed, name in enumerate("ab")
            }
        asked = {"batch_size": 2, "shuffle_seed": 11, "num_ranks": ranks, "rank": rank, "check_plan": False, **options}
        loaders.append(MixedDataset.create_dataloader(sources, weights, **asked)[0])
    return loaders


MIXED = ["concat", "pad", "best_fit", "windows"]


@pytest.mark.parametrize("strategy", MIXED)
@daily(2)
def test_each_epoch_of_a_mixture_has_its_own_documents_once(table: str, strategy: str) -> None:
    loaders, totals = mixture(table, strategy, 2), set()
    for epoch in range(3):
        documents = expected(middle_filled, 11, epoch)
        for loader in loaders:
            loader.set_epoch(epoch)
        assert len({len(loader) for loader in loaders}) == 1
        twice = all_places(documents)
        assert taken(loaders, documents) == twice + twice
        totals.add(sum(map(len, documents.values())))
    assert len(totals) == 3


@pytest.mark.parametrize("strategy", MIXED)
@daily(2)
def test_a_mixture_goes_on_in_another_world(table: str, strategy: str) -> None:
    loaders, documents = mixture(table, strategy, 3, batch_size=1), expected(middle_filled, 11, 1)
    for loader in loaders:
        loader.set_epoch(1)
    found = taken(loaders, documents, steps=3)
    others = mixture(table, strategy, 2, batch_size=1)
    for loader in others:
        loader.load_state_dict(loaders[0].state_dict())
    twice = all_places(documents)
    assert found + taken(others, documents) == twice + twice


@pytest.mark.parametrize("strategy", MIXED)
@daily(2)
def test_rounds_of_a_source_have_the_documents_of_their_epoch(table: str, strategy: str) -> None:
    [loader] = mixture(table, strategy, 1, {"a": 1, "b": 4}, stop="all_exhausted")
    for epoch in (0, 2):
        documents = expected(middle_filled, 11, epoch)
        loader.set_epoch(epoch)
        found = taken([loader], documents)
        assert min(found[place] for place in all_places(documents)) >= 2
        assert max(found.values()) >= 4


def test_as_map_refuses_it(table: str) -> None:
    with meant_warnings():
        dataset = StructuredDataset(table, pack=pack_of(fim, "windows"), shuffle="rows")
    with pytest.raises(ConfigError, match=r"as_map\(\) has no epochs"):
        len(dataset.as_map())
