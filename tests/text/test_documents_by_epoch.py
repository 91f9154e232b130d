"""`Pack(documents=...)` of a function that takes the epoch: what comes of a document differs by epoch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.effort import daily
from tests.tables.plain import meant_warnings
from tests.text.documents_by_epoch import (
    Place,
    all_places,
    corrupted,
    expected,
    fim,
    middle_filled,
    places_of,
    spans_corrupted,
    write_documents,
)
from torch_table_loader import Pack, StructuredDataset

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
