"""Sequences of tokens from a row store behind a URL are those from a store on this machine, bit for bit."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.tables.plain import meant_warnings
from tests.tables.row_stores import stored
from tests.text.packed_modes import STRATEGIES, PackedItems
from tests.text.packing_reference import EOS, full_pack, write_documents
from tests.text.test_every_pack import packs
from tests.waiting import threads, until
from torch_table_loader import MissingFileError, MixedDataset, Pack, StructuredDataset, TableError, TableLoader
from torch_table_loader.testing import small_sizes

LENGTHS_OF: list[int | None] = [5, 0, 17, 1, None, 400, 3, 9, 9, 2, 2, 30, 1, 12, 33, 4, 6] * 3
SMALL = {"memory": 1}
"""No lane may hold more than a small window."""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("documents")
    write_documents(root, [LENGTHS_OF], files=1)
    return root


@pytest.fixture(autouse=True)
def _small_gaps() -> Iterator[None]:
    """So small a store would come with one request."""
    with small_sizes(far_gap_bytes=16):
        yield


def opened(root: Path, pack: Pack, **options: Any) -> tuple[TableLoader, StructuredDataset]:
    chosen: dict[str, Any] = {"check_plan": False, "columns": ["id", "title"], "shuffle": "rows", "batch_size": 2}
    with meant_warnings():
        return StructuredDataset.create_dataloader(str(root), pack=pack, **stored(chosen | options))


def plain(value: Any) -> Any:
    """Write a batch as values that are compared bit for bit."""
    if isinstance(value, dict):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), [each.tolist() for each in value.unbind()] if value.is_nested else value.tolist())
    return [plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def batches(loader: TableLoader) -> list[Any]:
    return [plain(batch) for batch in loader]


def built(root: Path, url: str, machine: Callable[[str], None], pack: Pack, **options: Any) -> None:
    """Build the store as one machine, and go on as another."""
    machine("first")
    batches(opened(root, pack, row_store=url, **options)[0])
    machine("second")


FORMS: list[dict[str, Any]] = [
    {},
    SMALL,
    {"memory": "2KiB", "num_workers": 2, "even_ranks": "pad", "num_ranks": 2, "rank": 1},
    {**SMALL, "row_id": True, "filters": pc.field("id") > 7},
    pytest.param(
        {**SMALL, "worker_type": "fork", "num_workers": 2},
        id="processes",
    ),  # type: ignore[list-item]
]


@pytest.mark.parametrize("options", FORMS, ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
@daily(2)
def test_any_machine_reads_the_sequences_of_one(
    table: Path, machine: Callable[[str], None], tmp_path: Path, url: str, strategy: Any, options: dict[str, Any]
) -> None:
    pack = full_pack(seq_len=11, strategy=strategy, eos_id=EOS, aligned=("weight",), spans=("spans",), labels="shifted")
    options = {**options, "columns": ["id", "title", "spans"]}
    local = {name: value for name, value in options.items() if name != "memory"}
    wanted = opened(table, pack, row_store=str(tmp_path / "local"), **local)[0]
    built(table, url, machine, pack, **options)
    reader = opened(table, pack, row_store=url, **options)[0]
    for epoch in (0, 1):
        wanted.set_epoch(epoch)
        reader.set_epoch(epoch)
        expected = batches(wanted)
        assert len(expected) == len(reader)
        assert batches(reader) == expected
    assert not (tmp_path / "second").exists(), "nothing is built where the store is there"
    until(lambda: not threads("table-loader-window"))


@settings(max_examples=examples(6), deadline=None)
@given(
    pack=packs(PackedItems), workers=st.integers(0, 3), memory=st.sampled_from([1, 600, 5_000]), step=st.integers(0, 6)
)
def test_any_packing_from_a_url_resumes_as_from_a_directory(
    tmp_path_factory: pytest.TempPathFactory, pack: Pack, workers: int, memory: int, step: int
) -> None:
    root = tmp_path_factory.mktemp("one")
    write_documents(root, [LENGTHS_OF[:9]])
    folder, stores = uuid.uuid4().hex, str(tmp_path_factory.mktemp("stores"))
    url = f"memory://{folder}/stores"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_TABLE_LOADER_CACHE", f"{stores}/first")
        expected = batches(opened(root, pack, row_store=stores, num_workers=0)[0])
        assert batches(opened(root, pack, row_store=url, num_workers=0)[0]) == expected
        patch.setenv("TORCH_TABLE_LOADER_CACHE", f"{stores}/second")
        far: dict[str, Any] = {"row_store": url, "memory": memory, "num_workers": workers}
        loader = opened(root, pack, **far)[0]
        begun = [plain(batch) for batch in islice(loader, step)]
        state = json.loads(json.dumps(loader.state_dict()))
        rest = opened(root, pack, **far)[0]
        if begun:
            rest.load_state_dict(state)
        if len(begun) < len(expected):
            assert begun + batches(rest) == expected
    fsspec.filesystem("memory").rm(f"/{folder}", recursive=True)


def test_maps_exclusions_and_rows_of(table: Path, machine: Callable[[str], None], tmp_path: Path, url: str) -> None:
    windows, concat = full_pack(seq_len=7, strategy="windows", stride=5), full_pack(seq_len=7)
    built(table, url, machine, concat)
    near = {"row_store": str(tmp_path / "local")}
    far = {"row_store": url, **SMALL}
    here, there = (opened(table, windows, **options)[1].as_map() for options in (near, far))
    assert len(here) == len(there)
    assert plain(here.batch([0, 40, 3])) == plain(there.batch([0, 40, 3]))
    assert here.row_ids([0, 40]).tolist() == there.row_ids([0, 40]).tolist()
    found = []
    for options in (near, far):
        loader, dataset = opened(table, concat, **options)
        dataset.exclude([5, 11])
        rows = [loader.rows_of(step) for step in (0, 3)]
        found.append((rows, batches(loader), dataset.explain().packing))
    assert found[0] == found[1]
    assert f"in {url}" in str(opened(table, concat, **far)[1].explain())
    assert not (tmp_path / "second").exists()


def test_a_mixture_of_stores_behind_urls(tmp_path: Path, table: Path, machine: Callable[[str], None], url: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_documents(other, [[9, 61, 2, 5] * 6])
    pack, tables = full_pack(seq_len=8), {"a": table, "b": other}

    def mixed(**options: Any) -> TableLoader:
        own: dict[str, Any] = {"columns": ["id"], "check_plan": False, "shuffle": "rows", **options}
        with meant_warnings():
            sources = {name: StructuredDataset(str(root), pack=pack, **stored(own)) for name, root in tables.items()}
            weights = {"a": 0.6, "b": 0.4}
            return MixedDataset.create_dataloader(sources, weights, check_plan=False, batch_size=4, unit="tokens")[0]

    expected = [plain(batch) for batch in islice(mixed(row_store=str(tmp_path / "local")), 12)]
    assert [plain(batch) for batch in islice(mixed(row_store=url, **SMALL), 12)] == expected
    machine("second")
    assert [plain(batch) for batch in islice(mixed(row_store=url, **SMALL), 12)] == expected
    assert not (tmp_path / "second").exists()


def test_what_came_from_the_store_is_counted(table: Path, machine: Callable[[str], None], url: str) -> None:
    pack = full_pack(seq_len=16)
    built(table, url, machine, pack, columns=[])
    loader = opened(table, pack, row_store=url, columns=[], **SMALL)[0]
    batches(loader)
    fetched = loader.metrics().fetch
    assert fetched.num_bytes >= 2 * sum(length or 0 for length in LENGTHS_OF)
    assert fetched.unplanned == 0


@pytest.mark.parametrize("fault", ["gone", "damaged", "shorter"])
def test_lengths_that_are_not_there_or_damaged_are_named(
    table: Path, machine: Callable[[str], None], url: str, fault: str
) -> None:
    pack = full_pack(seq_len=7)
    built(table, url, machine, pack)
    memory = fsspec.filesystem("memory")
    [path] = [path for path in memory.find(url.removeprefix("memory:/")) if path.endswith("lengths.bin")]
    whole = bytearray(memory.cat_file(path))
    expected: Any = (TableError, r"the row store .* is damaged: lengths\.bin .*remove")
    if fault == "gone":
        memory.rm_file(path)
        expected = (MissingFileError, r"lengths\.bin: expected a file, found none")
    elif fault == "damaged":
        whole[-70] ^= 1
        memory.pipe_file(path, bytes(whole))
    else:
        memory.pipe_file(path, bytes(whole[:-1]))
    with pytest.raises(expected[0], match=expected[1]):
        batches(opened(table, pack, row_store=url, **SMALL)[0])


def test_the_store_is_as_small_as_the_documents(table: Path, tmp_path: Path) -> None:
    """Two bytes a token, and of each document two bytes and an eighth, in whole blocks of 64."""
    batches(opened(table, full_pack(seq_len=7), row_store=str(tmp_path), columns=[])[0])
    [store] = tmp_path.iterdir()
    sizes = {path.name: path.stat().st_size for path in store.iterdir()}
    assert sizes["lengths.bin"] == 64 * 2 + 16
    assert sum(size for name, size in sizes.items() if name.startswith("values-")) == 2 * sum(
        length or 0 for length in LENGTHS_OF
    )
    assert not [name for name in sizes if name.startswith("heap-")]
    assert sizes["records.bin"] == 0
