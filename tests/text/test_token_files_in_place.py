"""Rows and sequences of token files in any order: local files are read where they lie, and no store is built."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import pytest

from tests.effort import daily
from tests.tables.plain import meant_warnings
from tests.tables.token_files import LAYOUTS, LISTS, fms_bytes, lists_bytes, some_documents, write_megatron
from torch_table_loader import MixedDataset, Pack, RowStore, StructuredDataset, TableError, TableLoader
from torch_table_loader.formats.ipc.ipc_layout import read_footer
from torch_table_loader.testing import small_sizes
from torch_table_loader.text import tokens_read

STRATEGIES = ("concat", "windows", "pad", "best_fit")
WRITERS = {**LAYOUTS, **LISTS}
IN_PLACE = tuple(WRITERS)
BEGIN, END = 1, 2
PUT_IN: list[dict[str, int]] = [
    {},
    {"sep_id": 3},
    {"min_length": 4},
    {"bos_id": BEGIN, "eos_id": END},
    {"bos_id": BEGIN, "eos_id": END, "sep_id": 3, "min_length": 4},
]


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """List the tokens that were kept for later."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("TORCH_TABLE_LOADER_CACHE", str(cache))
    return lambda: [str(path) for path in cache.glob("row-stores/*/values-*")]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def write(folder: Path, form: str, seed: int = 1) -> str:
    suffix, writer = WRITERS[form]
    folder.mkdir()
    for number, size in enumerate((40, 1, 25)):
        documents = some_documents(seed + number, size)
        for document in documents[::3]:  # some have the tokens that others lack
            document[:1], document[-1:] = [BEGIN], [END]
        writer(folder / f"{number}{suffix}", documents)
    return str(folder)


def make(path: str, form: str, pack: Pack, **options: Any) -> tuple[TableLoader, StructuredDataset]:
    asked: dict[str, Any] = {"batch_size": 3, "shuffle": "rows", "num_workers": 2, "check_plan": False, **options}
    with meant_warnings():
        return StructuredDataset.create_dataloader(path, form, pack=pack, **asked)


def ids_of(batches: Any) -> list[Any]:
    return [batch["input_ids"].tolist() for batch in batches]


@pytest.mark.parametrize("put_in", PUT_IN, ids=str)
@pytest.mark.parametrize("form", IN_PLACE)
@pytest.mark.parametrize("strategy", STRATEGIES)
@daily(4)
def test_sequences_are_those_of_a_store(
    tmp_path: Path, stores: Any, form: str, strategy: Any, put_in: dict[str, Any]
) -> None:
    path, pack = write(tmp_path / "t", form), Pack(seq_len=9, strategy=strategy, **put_in)
    world: dict[str, Any] = {"num_ranks": 2, "rank": 1, "even_ranks": "pad", "row_id": True}
    loader, dataset = make(path, form, pack, **world)
    stored, _ = make(path, form, pack, row_store=str(tmp_path / "stores"), **world)
    assert "from the table's own files" in dataset.explain().notes[0]
    for epoch in range(2):
        for each in (loader, stored):
            each.set_epoch(epoch)
        assert len(loader) == len(stored)
        for batch, base in zip(loader, stored, strict=True):
            assert batch["input_ids"].tolist() == base["input_ids"].tolist()
            assert batch["labels"].tolist() == base["labels"].tolist()
            assert batch["documents"]["row_id"].tolist() == base["documents"]["row_id"].tolist()
        assert loader.state_dict() == stored.state_dict()
    assert stores() == []


@pytest.mark.parametrize("put_in", PUT_IN, ids=str)
@pytest.mark.parametrize("form", IN_PLACE)
@pytest.mark.parametrize("strategy", STRATEGIES)
@daily(4)
def test_files_that_are_far_away_are_read_by_ranges(
    tmp_path: Path, stores: Any, far: Callable[[], Any], form: str, strategy: Any, put_in: dict[str, Any]
) -> None:
    path, pack = write(tmp_path / "t", form), Pack(seq_len=9, strategy=strategy, **put_in)
    expected = ids_of(make(path, form, pack)[0])
    with far():
        loader, dataset = make(path, form, pack, row_store=RowStore(memory=64))
        assert "from the table's own files" in dataset.explain().notes[0]
        with loader:
            assert ids_of(loader) == expected
            fetched = loader.metrics().fetch
        assert fetched.requests > 0
        held, _ = make(path, form, pack)  # what fits into memory is read once
        assert ids_of(held) == expected
        begun, _ = make(path, form, pack, row_store=RowStore(memory=64))
        with begun:
            taken, state = ids_of(islice(begun, 4)), begun.state_dict()
        again, _ = make(path, form, pack, row_store=RowStore(memory=64))
        again.load_state_dict(state)
        assert taken + ids_of(again) == expected
    assert stores() == []


def test_far_files_are_mixed_and_excluded(tmp_path: Path, stores: Any, far: Callable[[], Any]) -> None:
    paths = {
        "a": (write(tmp_path / "a", "megatron"), "megatron"),
        "b": (write(tmp_path / "b", "datatrove"), "datatrove"),
    }
    pack, small = Pack(seq_len=9), RowStore(memory=64)

    def mixed(**options: Any) -> Any:
        with meant_warnings():
            sources = {
                name: StructuredDataset(path, form, pack=pack, shuffle="rows", row_store=small)
                for name, (path, form) in paths.items()
            }
            return MixedDataset.create_dataloader(sources, "rows", batch_size=3, check_plan=False, **options)

    near, dataset = mixed()
    dataset.exclude({"a": range(9)})
    near.set_epoch(1)
    expected = ids_of(near)
    with far():
        loader, dataset = mixed(num_workers=2)
        dataset.exclude({"a": range(9)})
        loader.set_epoch(1)
        with loader:
            assert ids_of(loader) == expected
    assert stores() == []


SERVED: list[dict[str, Any]] = [{"num_workers": 0}, {"worker_type": "fork"}, {"worker_type": "forkserver"}]
SOME = [("megatron", PUT_IN[0]), ("megatron", PUT_IN[4]), ("fms-fsdp", PUT_IN[3]), ("ipc", PUT_IN[0])]


@pytest.mark.parametrize(("form", "put_in"), SOME, ids=str)
@pytest.mark.parametrize("served", SERVED, ids=str)
@daily(3)
def test_anyone_makes_the_same_and_goes_on(
    tmp_path: Path, stores: Any, served: dict[str, Any], form: str, put_in: dict[str, Any]
) -> None:
    path, pack = write(tmp_path / "t", form), Pack(seq_len=9, **put_in)
    expected = ids_of(make(path, form, pack)[0])
    loader, _ = make(path, form, pack, **served)
    batches = iter(loader)
    taken, state = ids_of(islice(batches, 4)), loader.state_dict()
    assert taken + ids_of(batches) == expected
    for other in ({}, {"row_store": "memory"}):  # a state says nothing of where the tokens are
        again, _ = make(path, form, pack, **other)
        again.load_state_dict(state)
        assert taken + ids_of(again) == expected
    assert stores() == []


@pytest.mark.parametrize(("form", "put_in"), SOME, ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
@daily(4)
def test_a_state_goes_on_in_another_world(
    tmp_path: Path, stores: Any, strategy: Any, form: str, put_in: dict[str, Any]
) -> None:
    path, pack = write(tmp_path / "t", form), Pack(seq_len=9, strategy=strategy, **put_in)

    def world(ranks: int, **options: Any) -> list[TableLoader]:
        options = {"num_ranks": ranks, "even_ranks": False, **options}
        return [make(path, form, pack, rank=rank, **options)[0] for rank in range(ranks)]

    def sequences(loaders: list[TableLoader], steps: int | None = None) -> list[Any]:
        return sorted(
            row for loader in loaders for batch in islice(loader, steps) for row in batch["input_ids"].tolist()
        )

    whole, before = sequences(world(1)), world(2)
    taken = sequences(before, 2)
    for options in ({}, {"row_store": "memory"}):
        after = world(3, **options)
        for loader in after:
            loader.load_state_dict(before[0].state_dict())
        assert sorted(taken + sequences(after)) == whole
    assert stores() == []


@pytest.mark.parametrize(("form", "write"), [("fms-fsdp", fms_bytes), ("arrow", lists_bytes)])
def test_a_compressed_arrow_file_makes_a_store(tmp_path: Path, stores: Any, form: str, write: Any) -> None:
    (tmp_path / "t").mkdir()
    documents, pack = some_documents(1, 30), Pack(seq_len=9, strategy="windows")
    (tmp_path / "t" / "0.arrow").write_bytes(write(documents))
    (tmp_path / "t" / "1.arrow").write_bytes(write(documents, compression="zstd"))
    loader, dataset = make(str(tmp_path / "t"), form, pack, row_store=RowStore(memory=1))
    assert "from a row store in" in dataset.explain().notes[0]
    assert len(list(loader)) == len(loader)
    assert stores() != []


def test_what_does_not_lie_in_an_arrow_file_as_its_first_batch_does_is_an_error(tmp_path: Path) -> None:
    plain, packed = (lists_bytes([[7] * 90] * 7, stream=True, compression=how) for how in (None, "zstd"))
    with pa.ipc.open_stream(packed) as reader:
        schema_bytes = 8 + int.from_bytes(packed[4:8], "little")
        assert reader.schema.names[3] == "tokens"
    (tmp_path / "x.arrow").write_bytes(plain[:-8] + packed[schema_bytes:])
    with pytest.raises(TableError, match=r"x\.arrow.*row_store="):
        make(str(tmp_path), "arrow", Pack(seq_len=9))
    loader, _ = make(str(tmp_path), "arrow", Pack(seq_len=9), row_store="memory")
    assert len(ids_of(loader)) == len(loader)


def test_an_arrow_file_of_an_old_version_makes_a_store(tmp_path: Path) -> None:
    data = lists_bytes([[7] * 5] * 14, metadata_version=pa.ipc.MetadataVersion.V4)
    (tmp_path / "x.arrow").write_bytes(data)
    loader, dataset = make(str(tmp_path), "arrow", Pack(seq_len=5, strategy="pad"), batch_size=14)
    assert "the table's own files" not in dataset.explain().notes[0]
    assert sum(row.count(7) for batch in ids_of(loader) for row in batch) == 70


def test_an_arrow_file_whose_batches_do_not_ascend_makes_a_store(tmp_path: Path) -> None:
    data = lists_bytes([[7] * 5, *[[8] * 5] * 13])
    one, other = read_footer(pa.BufferReader(data)).batches
    first, second = (data.rindex(block.start.to_bytes(8, "little")) for block in (one, other))
    swapped = data[:first] + data[second : second + 24] + data[first + 24 : second] + data[first : first + 24]
    (tmp_path / "x.arrow").write_bytes(swapped + data[second + 24 :])
    loader, dataset = make(str(tmp_path), "arrow", Pack(seq_len=5, strategy="pad"), batch_size=14)
    assert "the table's own files" not in dataset.explain().notes[0]
    assert sum(row.count(7) for batch in ids_of(loader) for row in batch) == 5


@pytest.mark.parametrize("kind", [pa.list_(pa.int16(), 2), pa.list_view(pa.int16()), pa.list_(pa.int64())], ids=str)
def test_columns_of_other_lists_make_a_store(tmp_path: Path, stores: Any, kind: pa.DataType) -> None:
    (tmp_path / "t").mkdir()
    for number, each in enumerate((kind, kind if kind.num_fields and not pt.is_list(kind) else pa.list_(pa.int32()))):
        table = pa.table({"tokens": pa.array([[1, 2], [3, 4]], each)})
        with pa.ipc.new_file(str(tmp_path / "t" / f"{number}.arrow"), table.schema) as writer:
            writer.write_table(table)
    loader, dataset = make(str(tmp_path / "t"), "arrow", Pack(seq_len=4))
    assert "the table's own files" not in dataset.explain().notes[0]
    assert sum(map(len, ids_of(loader))) == 2


@pytest.mark.parametrize("put_in", [PUT_IN[0], PUT_IN[3]], ids=str)
@pytest.mark.parametrize("form", IN_PLACE)
@daily(3)
def test_a_rank_reads_the_bytes_of_its_sequences_alone(
    tmp_path: Path, stores: Any, far: Callable[[], Any], form: str, put_in: dict[str, Any]
) -> None:
    (tmp_path / "t").mkdir()
    suffix, writer = WRITERS[form]
    for number in range(2):
        writer(tmp_path / "t" / f"{number}{suffix}", [[7] * 9_000] * 20)
    width = 4 if form == "fms-fsdp" else 2
    world: dict[str, Any] = {"num_ranks": 10, "rank": 3, "batch_size": 1, "num_workers": 1, "even_ranks": False}
    with far(), small_sizes(far_gap_bytes=16):
        loader, _ = make(str(tmp_path / "t"), form, Pack(seq_len=100, **put_in), row_store=RowStore(memory=64), **world)
        assert len(loader) == 360  # lengths are measured here, if they must be
        with loader:
            rows = sum(len(batch["input_ids"]) for batch in loader)
            fetched = loader.metrics().fetch
    tokens = rows * 101  # with the label of the last one
    sent_twice = fetched.hedges * 101 * width
    assert 0.95 * tokens * width <= fetched.num_bytes - sent_twice <= tokens * width
    assert stores() == []


def test_documents_are_excluded_and_mixed(tmp_path: Path, stores: Any) -> None:
    path, pack = write(tmp_path / "a", "megatron"), Pack(seq_len=9)
    other = write(tmp_path / "b", "datatrove", seed=7)
    for options in SERVED:
        with meant_warnings():
            sources = {
                "a": StructuredDataset(path, "megatron", pack=pack, shuffle="rows"),
                "b": StructuredDataset(other, "datatrove", pack=pack, shuffle="rows"),
            }
            loader, dataset = MixedDataset.create_dataloader(sources, "rows", batch_size=3, check_plan=False, **options)
        before = sum(len(batch["input_ids"]) for batch in loader)
        dataset.exclude({"a": range(40)})
        loader.set_epoch(1)
        after = list(loader)
        assert sum(len(batch["input_ids"]) for batch in after) < before
        assert len(after) == len(loader)
    assert stores() == []


@pytest.mark.parametrize(
    "options",
    [
        {"pack": {"eos_id": 1 << 20}},
        {"filters": pc.list_value_length(pc.field("tokens")) > 2},
        {"row_store": "STORES"},
    ],
    ids=str,
)
def test_what_files_do_not_hold_as_it_is_makes_a_store(tmp_path: Path, stores: Any, options: dict[str, Any]) -> None:
    path, pack = write(tmp_path / "t", "megatron"), Pack(seq_len=9, **options.pop("pack", {}))
    if "row_store" in options:
        options["row_store"] = str(tmp_path / "stores")
    loader, dataset = make(path, "megatron", pack, **options)
    assert "from a row store in" in dataset.explain().notes[0]
    assert len(list(loader)) == len(loader)


@pytest.mark.parametrize("how", ["changed", "cut", "gone"])
@pytest.mark.parametrize("where", ["near", "far"])
def test_a_file_that_changes_is_an_error_that_names_it(
    tmp_path: Path, how: str, where: str, request: pytest.FixtureRequest
) -> None:
    path = write(tmp_path / "t", "megatron")
    if where == "far":
        request.getfixturevalue("stack").enter_context(request.getfixturevalue("far")())
    loader, _ = make(path, "megatron", Pack(seq_len=9), row_store=RowStore(memory=64))
    list(loader)
    file = tmp_path / "t" / "2.bin"
    if how == "gone":
        file.unlink()
    else:
        data = file.read_bytes()
        new = data if how == "changed" else data[:-2]
        copy = tmp_path / "new"
        copy.write_bytes(new)
        copy.replace(file)
    loader.set_epoch(1)
    with pytest.raises((TableError, FileNotFoundError), match=r"2\.bin"):
        list(loader)


def test_only_lengths_are_held(tmp_path: Path) -> None:
    path = write(tmp_path / "t", "datatrove")
    _, dataset = make(path, "datatrove", Pack(seq_len=9))
    with meant_warnings():
        _, stored = make(path, "datatrove", Pack(seq_len=9), row_store="memory")
    assert dataset.explain().memory_bound < stored.explain().memory_bound


@pytest.mark.parametrize("dtypes", [("uint16", "int32"), ("int32", "int32")], ids=str)
def test_files_of_several_types_make_a_store(tmp_path: Path, stores: Any, dtypes: tuple[str, str]) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    documents = [some_documents(seed, 30) for seed in (1, 2)]
    for number, dtype in enumerate(dtypes):
        write_megatron(folder / f"{number}.bin", documents[number], dtype)
    loader, dataset = make(str(folder), "megatron", Pack(seq_len=9, strategy="windows"))
    assert ("the table's own files" in dataset.explain().notes[0]) == (len(set(dtypes)) == 1)
    tokens = [token for batch in loader for row in batch["input_ids"].tolist() for token in row]
    expected = sorted(token for each in documents for document in each for token in document)
    assert sorted(tokens)[-len(expected) :] == expected


@pytest.mark.parametrize("form", ["megatron", "fms-fsdp"])
def test_few_files_are_open_at_a_time_and_none_behind(tmp_path: Path, form: str) -> None:
    path = write(tmp_path / "t", form)
    expected = ids_of(make(path, form, Pack(seq_len=9))[0])

    def open_ones() -> list[str]:
        links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return [link for link in links if link.startswith(path)]

    assert open_ones() == []  # of an epoch that has ended

    with small_sizes(open_files=1, gather_rows=6):
        loader, _ = make(path, form, Pack(seq_len=9), num_workers=0)
        found = []
        for batch in loader:
            found.append(batch["input_ids"].tolist())
            assert len(open_ones()) <= 1
        assert found == expected
        assert open_ones() == []
        loader.set_epoch(1)
        batches = iter(loader)
        next(batches)
        assert open_ones() != []
        del batches
        assert open_ones() == []


def test_reads_that_come_short_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "t", "megatron")
    expected = ids_of(make(path, "megatron", Pack(seq_len=9))[0])
    preadv = os.preadv
    monkeypatch.setattr(tokens_read, "_preadv", lambda file, into, start: preadv(file, [into[0][:3]], start))
    assert ids_of(make(path, "megatron", Pack(seq_len=9))[0]) == expected
    monkeypatch.setattr(tokens_read, "_preadv", tokens_read._read_at)  # as where there is no preadv
    assert ids_of(make(path, "megatron", Pack(seq_len=9))[0]) == expected
