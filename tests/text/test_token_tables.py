"""Token files through the whole loader: every document once, whatever ranks, order, engine and store."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
import torch

from tests.effort import daily
from tests.tables.plain import meant_warnings
from tests.tables.token_files import LAYOUTS, loss_of, some_documents
from torch_table_loader import StructuredDataset, TableLoader

FORMS = pytest.mark.parametrize("form", LAYOUTS)
DOCUMENTS = {"a": some_documents(1, 40), "b": some_documents(2, 25), "c": some_documents(3, 33)}
ALL = [document for documents in DOCUMENTS.values() for document in documents]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    def table(form: str) -> str:
        suffix, writer = LAYOUTS[form]
        for name, documents in DOCUMENTS.items():
            folder = tmp_path / form / f"lang={name}"
            folder.mkdir(parents=True)
            writer(folder / f"{name}{suffix}", documents)
        return str(tmp_path / form)

    return table


def make(path: str, form: str, **options: Any) -> TableLoader:
    chosen: dict[str, Any] = {
        "batch_size": 8,
        "num_workers": 2,
        "output_format": "dict",
        "columns": ["tokens"],
    } | options
    with meant_warnings():
        return StructuredDataset.create_dataloader(path, form, **chosen)[0]


def taken(loader: Any) -> list[list[int]]:
    return [row for batch in loader for row in batch["tokens"]]


@FORMS
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 0},
        {"shuffle": "splits", "split_size": 7},
        {"shuffle": "rows"},
        {"worker_type": "process", "shuffle": "splits"},
        {"split_strategy": "row_balanced", "split_size": 10},
    ],
    ids=str,
)
@daily(7)
def test_every_document_comes_once(write: Callable[[str], str], form: str, options: dict[str, Any]) -> None:
    path = write(form)
    found = []
    for rank in range(3):
        loader = make(path, form, num_ranks=3, rank=rank, check_plan=False, even_ranks=False, **options)
        batches = list(loader)
        assert len(batches) == len(loader)
        found += taken(batches)
    assert sorted(found) == sorted(ALL)
    one_lane = taken(make(path, form, **options | {"num_workers": 0}))
    assert (one_lane == ALL) == ("shuffle" not in options)


@FORMS
@pytest.mark.parametrize("shuffle", [False, True, "rows"])
@daily(4)
def test_a_stopped_job_goes_on_at_the_next_document(write: Callable[[str], str], form: str, shuffle: Any) -> None:
    path = write(form)
    loader = make(path, form, shuffle=shuffle)
    whole = taken(make(path, form, shuffle=shuffle))
    batches = iter(loader)
    begun = [row for _ in range(4) for row in next(batches)["tokens"]]
    again = make(path, form, shuffle=shuffle)
    again.load_state_dict(loader.state_dict())
    assert begun + taken(again) == whole
    wider = make(path, form, shuffle=shuffle, num_workers=3)
    wider.load_state_dict(loader.state_dict())
    assert sorted(begun + taken(wider)) == sorted(ALL)


@FORMS
def test_partitions_are_filtered_and_plans_kept(write: Callable[[str], str], tmp_path: Path, form: str) -> None:
    path = write(form)
    options = {"filters": pc.field("lang") != "b", "plan_cache": str(tmp_path / "plans")}
    for _ in range(2):
        loader = make(path, form, **options)
        assert len(loader) == 10
        assert sorted(taken(loader)) == sorted(DOCUMENTS["a"] + DOCUMENTS["c"])
    assert len(list((tmp_path / "plans").iterdir())) >= 3


@FORMS
def test_documents_are_gathered_by_index(write: Callable[[str], str], form: str) -> None:
    dataset = StructuredDataset(write(form), form, shuffle="rows", columns=["tokens"])
    view = dataset.as_map()
    assert [view[place]["tokens"].tolist() for place in (0, 41, 97)] == [ALL[place] for place in (0, 41, 97)]


@FORMS
@daily(2)
def test_a_distant_table_gives_the_same_and_tokens_are_fetched_ahead(
    write: Callable[[str], str], far: Callable[[], Any], form: str
) -> None:
    path = write(form)
    with far():
        for options in ({}, {"shuffle": "splits", "split_size": 5}, {"worker_type": "process"}, {"num_workers": 0}):
            loader = make(path, form, **options)
            assert sorted(taken(loader)) == sorted(ALL)
        loader, dataset = StructuredDataset.create_dataloader(path, form, batch_size=8, columns=["tokens"])
        plan = dataset.explain().fetch
        list(loader)
        fetched = loader.metrics().fetch
        assert plan is not None
        assert (fetched.requests, fetched.unplanned) == (plan.requests, 0)
        assert fetched.num_bytes == plan.num_bytes > 0


def test_loss_masks_lie_beside_their_tokens(write: Callable[[str], str], far: Callable[[], Any]) -> None:
    path = write("datatrove")
    options = {"columns": ["loss_mask", "tokens"], "shuffle": "splits", "split_size": 5}
    near = list(make(path, "datatrove", **options))
    rows = [pair for batch in near for pair in zip(batch["tokens"], batch["loss_mask"], strict=True)]
    assert sorted(rows) == sorted((document, loss_of(document)) for document in ALL)
    with far():
        assert list(make(path, "datatrove", **options)) == near
        alone = make(path, "datatrove", columns=["loss_mask"], num_workers=0)
        masks = [row for batch in alone for row in batch["loss_mask"]]
    assert masks == [loss_of(document) for document in ALL]


def test_tensors_have_the_stored_type_and_share_nothing(write: Callable[[str], str]) -> None:
    loader = make(write("megatron"), "megatron", output_format="torch", ragged="offsets", num_workers=0)
    found = []
    for batch in loader:
        values, offsets = batch["tokens"]
        assert values.dtype == torch.uint16
        cuts = offsets.tolist()
        found += [values[a:b].tolist() for a, b in pairwise(cuts)]
        values.view(torch.int16).zero_()
    assert found == ALL
