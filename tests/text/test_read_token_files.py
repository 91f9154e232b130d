"""Flat files of tokens: Megatron's, datatrove's and nanotron's, fms-fsdp's."""

from __future__ import annotations

import itertools
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.servers.remote_files import FarStore
from tests.tables.reading import LocalStorage, as_table, inspect
from tests.tables.token_files import (
    LAYOUTS,
    MEGATRON_CODES,
    datatrove_bytes,
    fms_bytes,
    loss_of,
    megatron_bytes,
    some_documents,
    write_datatrove,
    write_megatron,
)
from torch_table_loader import StructuredDataset, TableError
from torch_table_loader.errors import MissingFileError
from torch_table_loader.extend import PathSource, format_contracts, reader_for
from torch_table_loader.formats.ipc.ipc import FmsFsdpReader
from torch_table_loader.read.list_groups import group_rows
from torch_table_loader.records import DataFile, FileMeta, content_key
from torch_table_loader.source.listing import named_files
from torch_table_loader.testing import check_format_reader, small_sizes, stored_files
from torch_table_loader.text.token_files import AT_ONCE, document_lengths, width_of
from torch_table_loader.text.token_formats import DatatroveReader, MegatronReader

TOKENS = "tokens"
SMALL = 64
"""Bytes of a row group in most tests."""
READERS: dict[str, Any] = {
    "megatron": MegatronReader(group_bytes=SMALL),
    "datatrove": DatatroveReader(group_bytes=SMALL),
    "nanotron": DatatroveReader("nanotron", group_bytes=SMALL),
    "fms-fsdp": FmsFsdpReader(group_bytes=8 * SMALL),
}
FORMS = pytest.mark.parametrize("form", LAYOUTS)
DOCUMENTS = some_documents(1, 50)


def listed(path: Any, form: str, **options: Any) -> tuple[DataFile, ...]:
    return PathSource.open(path, reader_for(form), by_name=True, **options).files


def rows(file: DataFile, reader: Any, meta: FileMeta, *columns: str, max_rows: int = 7) -> list[list[Any]]:
    """Read a file's columns, each as a list a row."""
    handle = reader.open(LocalStorage(), file, meta)
    try:
        groups = range(len(meta.group_rows))
        table = as_table(handle.batches(groups, columns, max_rows), pa.schema([meta.schema.field(c) for c in columns]))
    finally:
        handle.close()
    table.validate(full=True)
    return [table[name].to_pylist() for name in columns]


def write(form: str, folder: Path, documents: Any = DOCUMENTS) -> DataFile:
    suffix, writer = LAYOUTS[form]
    writer(folder / f"x{suffix}", documents)
    (file,) = listed(str(folder), form)
    return file


@FORMS
@daily(2)
def test_it_fulfils_the_contract(tmp_path: Path, form: str) -> None:
    reader = READERS[form]
    assert isinstance(reader, format_contracts.SidecarReader)
    assert isinstance(reader, format_contracts.RangedReader)
    assert isinstance(reader, format_contracts.NullProvingReader)
    file = write(form, tmp_path)
    check_format_reader(reader, LocalStorage(), [file])
    check_format_reader(reader_for(form), *stored_files(tmp_path, form))
    check_format_reader(reader, *stored_files(tmp_path, reader))
    assert len(reader.inspect(LocalStorage(), file, None).group_rows) > 3


TOKEN_LISTS = st.lists(st.lists(st.integers(0, 127), max_size=30), max_size=20)


@settings(max_examples=examples(60), deadline=None)
@given(
    documents=st.lists(st.lists(st.lists(st.integers(0, 127), max_size=9), max_size=4), max_size=12),
    dtype=st.sampled_from(sorted(MEGATRON_CODES)),
    multimodal=st.booleans(),
    group_bytes=st.integers(1, 200),
)
def test_files_written_by_megatron_are_read(
    tmp_path_factory: pytest.TempPathFactory, documents: Any, dtype: str, multimodal: bool, group_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("t")
    sequences = [sequence for document in documents for sequence in document]
    modes = [place % 5 - 2 for place in range(len(sequences))]
    data, index = megatron_bytes(documents, dtype, modes if multimodal else None)
    (folder / "x.bin").write_bytes(data)
    (folder / "x.idx").write_bytes(index)
    (file,) = listed(str(folder), "megatron")
    reader = MegatronReader(group_bytes=group_bytes)
    meta = reader.inspect(LocalStorage(), file, None)
    whole = [[token for sequence in document for token in sequence] for document in documents]
    assert meta.schema.field(TOKENS).type == pa.list_(pa.from_numpy_dtype(np.dtype(dtype)))
    assert rows(file, reader, meta, TOKENS) == [whole]
    assert document_lengths(meta).tolist() == [len(document) for document in whole]
    assert ("modes" in meta.schema.names) == (multimodal and bool(sequences))
    if "modes" in meta.schema.names:
        left = iter(modes)
        wanted = [[mode for part in document for mode in [next(left)] * len(part)] for document in documents]
        assert rows(file, reader, meta, "modes", TOKENS) == [wanted, whole]


@settings(max_examples=examples(60), deadline=None)
@given(
    documents=TOKEN_LISTS,
    dtype=st.sampled_from(["uint16", "uint32"]),
    loss=st.booleans(),
    note=st.booleans(),
    group_bytes=st.integers(1, 200),
)
def test_files_written_by_datatrove_are_read(
    tmp_path_factory: pytest.TempPathFactory, documents: Any, dtype: str, loss: bool, note: bool, group_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("t")
    tokens = sum(map(len, documents))
    write_datatrove(folder / "x.ds", documents, dtype, loss=loss, note=note and tokens > 0)
    (file,) = listed(str(folder), "datatrove")
    reader = DatatroveReader(group_bytes=group_bytes)
    meta = reader.inspect(LocalStorage(), file, None)
    assert rows(file, reader, meta, TOKENS) == [documents]
    assert tokens == 0 or meta.schema.field(TOKENS).type == pa.list_(pa.from_numpy_dtype(np.dtype(dtype)))
    assert document_lengths(meta).tolist() == [len(document) for document in documents]
    assert ("loss_mask" in meta.schema.names) == loss
    if loss:
        masks = [loss_of(document) for document in documents]
        assert rows(file, reader, meta, "loss_mask") == [masks]
        assert rows(file, reader, meta, TOKENS, "loss_mask", max_rows=3) == [documents, masks]


@settings(max_examples=examples(60), deadline=None)
@given(
    documents=TOKEN_LISTS,
    kind=st.sampled_from([pa.uint32(), pa.int64(), pa.uint16()]),
    compression=st.sampled_from([None, "zstd"]),
    group_bytes=st.integers(1, 2000),
)
def test_files_written_by_fms_fsdp_are_read(
    tmp_path_factory: pytest.TempPathFactory, documents: Any, kind: Any, compression: Any, group_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("t")
    (folder / "x.arrow").write_bytes(fms_bytes(documents, kind, compression=compression))
    (file,) = listed(str(folder), "fms-fsdp")
    reader = FmsFsdpReader(group_bytes=group_bytes)
    meta = reader.inspect(LocalStorage(), file, None)
    assert meta.schema == pa.schema([(TOKENS, pa.list_(kind))])
    assert rows(file, reader, meta, TOKENS) == [documents]


@settings(max_examples=examples(100), deadline=None)
@given(lengths=st.lists(st.integers(0, 50), max_size=60), group_bytes=st.integers(1, 100))
@example(lengths=[18, 50, 0], group_bytes=68)
def test_row_groups_contain_each_document_once_within_the_requested_size(lengths: list[int], group_bytes: int) -> None:
    found, stops = group_rows(np.array(lengths, dtype=np.int64), 1, group_bytes)
    assert sum(found) == len(lengths)
    assert all(rows > 0 for rows in found)
    edges = np.cumsum([0, *found])
    assert stops == [sum(lengths[:edge]) for edge in edges[1:]]
    ends = [*edges[:-1], len(np.trim_zeros(lengths, "b"))]  # empty documents at the end open no row group
    for start, stop in itertools.pairwise(ends):
        assert sum(lengths[start : stop - 1]) < group_bytes


@FORMS
def test_the_plan_knows_rows_bytes_and_tokens_without_reading_tokens(tmp_path: Path, form: str) -> None:
    file = write(form, tmp_path)
    storage = LocalStorage(counting=True)
    reader = READERS[form]
    meta = reader.inspect(storage, file, None)
    assert meta.num_rows == len(DOCUMENTS)
    groups = range(len(meta.group_rows))
    ranges = [each for group in reader.ranges(file, meta, groups, [TOKENS]) for each in group]
    assert meta.group_ranges is not None
    assert sorted(ranges) == [place for place in meta.group_ranges if place[0] < place[1]]
    if form == "fms-fsdp":
        assert all(start > 0 for start, _ in ranges)
        return
    assert [stop for _, stop in meta.group_ranges] == [start for start, _ in meta.group_ranges[1:]] + [
        file.version.num_bytes
    ]
    assert sum(length for _, length in storage.log) == sum(
        each.version.num_bytes for each in file.sidecars if not each.name.endswith(".loss")
    )
    tokens = [(stop - start) // width_of(meta) for start, stop in meta.group_ranges]
    first = np.cumsum([0, *meta.group_rows])
    lengths = [len(document) for document in DOCUMENTS]
    assert tokens == [sum(lengths[a:b]) for a, b in itertools.pairwise(first)]
    assert reader.ranges(file, meta, [0, 1], []) == [[], []]


@FORMS
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("documents", [[[1, 2, 3], [], [4, 5]], [[6, 7]]], ids=str)
def test_returned_memory_is_owned_and_writable(
    tmp_path: Path, form: str, mapped: bool, documents: list[list[int]]
) -> None:
    class Storage(LocalStorage):
        def open(self, path: str) -> pa.NativeFile:
            return pa.memory_map(path) if mapped else super().open(path)

    file = write(form, tmp_path, documents)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    reader = READERS[form]
    meta = reader.inspect(Storage(), file, None)
    handle = reader.open(Storage(), file, meta)
    for batch in handle.batches(range(len(meta.group_rows)), meta.schema.names, 100):
        for column in batch.columns:
            buffer = column.values.buffers()[1]
            assert buffer.is_mutable
            memoryview(buffer).cast("B")[:] = bytes(buffer.size)
    handle.close()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert rows(file, reader, meta, TOKENS) == [documents]


def index_with(**changes: Any) -> bytes:
    """Return an index of three documents of 2, 0 and 3 tokens, changed."""
    parts: dict[str, Any] = {
        "magic": b"MMIDIDX\0\0",
        "version": 1,
        "code": 8,
        "sequences": 3,
        "edges": 4,
        "lengths": [2, 0, 3],
        "places": [0, 4, 4],
        "firsts": [0, 1, 2, 3],
        "rest": b"",
    } | changes
    header = struct.pack("<9sQBQQ", *(parts[name] for name in ("magic", "version", "code", "sequences", "edges")))
    arrays = (("lengths", "<i4"), ("places", "<i8"), ("firsts", "<i8"))
    return header + b"".join(np.array(parts[name], kind).tobytes() for name, kind in arrays) + bytes(parts["rest"])


@pytest.mark.parametrize("damage", [None, "place", "edge"])
def test_a_long_index_is_read_some_documents_at_a_time(tmp_path: Path, damage: str | None) -> None:
    count = AT_ONCE + 5  # of sequences; documents have two of them, so that both borders of a part lie inside one
    lengths = np.random.default_rng(1).integers(0, 4, count)
    places, firsts = (np.cumsum(lengths) - lengths) * 2, np.arange(0, 2 * count, 2).clip(max=count)
    if damage == "place":
        places[AT_ONCE] += 2
    if damage == "edge":
        firsts = np.arange(count + 1)
        firsts[AT_ONCE] = AT_ONCE - 2
    (tmp_path / "x.bin").write_bytes(bytes(2 * int(lengths.sum())))
    arrays: dict[str, Any] = {"lengths": lengths, "places": places, "firsts": firsts}
    (tmp_path / "x.idx").write_bytes(index_with(sequences=count, edges=len(firsts), **arrays))
    if damage is not None:
        said = {"place": f"sequence {AT_ONCE} begins at byte", "edge": f"document {AT_ONCE - 1} begins at sequence"}
        with pytest.raises(TableError, match=said[damage]):
            StructuredDataset(str(tmp_path), "megatron")
        return
    (file,) = listed(str(tmp_path), "megatron")
    meta = MegatronReader(group_bytes=1000).inspect(LocalStorage(), file, None)
    sums = np.concatenate(([0], np.cumsum(lengths)))
    assert document_lengths(meta).tolist() == np.diff(sums[firsts]).tolist()
    edges = np.cumsum([0, *meta.group_rows])
    stops = (sums[firsts[edges[1:]]] * 2).tolist()
    assert meta.group_ranges == tuple(zip([0, *stops[:-1]], stops, strict=True))


@pytest.mark.parametrize("falls", [False, True])
def test_a_long_index_of_ends_is_read_some_documents_at_a_time(tmp_path: Path, *, falls: bool) -> None:
    lengths = np.random.default_rng(1).integers(0, 4, AT_ONCE + 5)
    all_ends = np.cumsum(lengths)
    (tmp_path / "x.ds").write_bytes(bytes(2 * int(all_ends[-1])))
    all_ends[AT_ONCE] -= 5 if falls else 0
    (tmp_path / "x.ds.index").write_bytes(all_ends.astype("<u8").tobytes())
    if falls:
        with pytest.raises(TableError, match=f"document {AT_ONCE} ends at {all_ends[AT_ONCE]}, before it begins"):
            StructuredDataset(str(tmp_path), "datatrove")
        return
    (file,) = listed(str(tmp_path), "datatrove")
    assert document_lengths(DatatroveReader().inspect(LocalStorage(), file, None)).tolist() == lengths.tolist()


WRONG_INDEXES = {
    "magic": (index_with(magic=b"MMIDIDX\0\1"), r"begins with b'MMIDIDX"),
    "version": (index_with(version=2), "has version 2"),
    "code": (index_with(code=9), "type code 9"),
    "code 0": (index_with(code=0), "type code 0"),
    "empty": (b"", "ends in its header"),
    "cut header": (index_with()[:33], "ends in its header"),
    "cut": (index_with()[:-1], "says 3 sequences and 4 edges"),
    "too long": (index_with(rest=b"\0" * 4), "says 3 sequences and 4 edges"),
    "more sequences than bytes": (index_with(sequences=1 << 60), "sequences"),
    "no edges": (index_with(edges=0, firsts=[]), "says 3 sequences and 0 edges"),
    "negative length": (index_with(lengths=[2, -1, 4]), "length of -1 tokens for sequence 1"),
    "places that do not rise": (index_with(places=[0, 4, 2]), "sequence 2 begins at byte 2"),
    "negative place": (index_with(places=[-4, 4, 4]), "sequence 0 begins at byte -4"),
    "documents begin late": (index_with(firsts=[1, 1, 2, 3]), "sequences 1 to 3"),
    "documents end early": (index_with(firsts=[0, 1, 2, 2]), "sequences 0 to 2"),
    "documents beyond": (index_with(firsts=[0, 1, 2, 4]), "sequences 0 to 4"),
    "documents that fall": (index_with(firsts=[0, 2, 1, 3]), "document 1 begins at sequence 2 and ends at 1"),
    "a document beyond inside": (index_with(firsts=[0, 9, 2, 3]), "document 1 begins at sequence 9"),
    "beyond the tokens": (index_with(lengths=[2, 0, 4]), "says 12 bytes of tokens .uint16., and it has 10"),
    "short of the tokens": (index_with(lengths=[2, 0, 2]), "says 8 bytes of tokens"),
    "another type": (index_with(code=4, places=[0, 8, 8]), "says 20 bytes of tokens .int32., and it has 10"),
}


@pytest.mark.parametrize("name", WRONG_INDEXES)
@daily(7)
def test_an_invalid_megatron_index_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.bin").write_bytes(np.arange(5, dtype=np.uint16).tobytes())
    (tmp_path / "x.idx").write_bytes(index_with())
    assert StructuredDataset(str(tmp_path), "megatron").explain().rows == 3
    index, said = WRONG_INDEXES[name]
    (tmp_path / "x.idx").write_bytes(index)
    with pytest.raises(TableError, match=rf"x\.bin .*{said}"):
        StructuredDataset(str(tmp_path), "megatron")


def ends(*values: int) -> bytes:
    return np.array(values, "<u8").tobytes()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"x.ds.index": ends(2, 1, 5)}, r"x\.ds\.index says that document 1 ends at 1, before it begins"),
        ({"x.ds.index": ends(2, 2, 5)[:-1]}, r"x\.ds\.index has 23 bytes"),
        ({"x.ds.index": ends(2, 2, 6)}, r"x\.ds\.index says that 6 tokens of 2 or 4 bytes lie in 10 bytes"),
        ({"x.ds.index": ends(2, (1 << 64) - 1)}, "which no file has"),
        ({"x.ds.index": b""}, "lie in 10 bytes"),
        ({"x.ds": bytes(8)}, "lie in 8 bytes"),
        ({"x.ds": bytes(40)}, "lie in 40 bytes"),
        ({"x.ds.loss": bytes(4)}, r"x\.ds\.loss has 4 bytes for 5 tokens"),
        ({"x.ds.metadata": b"t|4\n5"}, r"x\.ds\.metadata says 4 bytes a token instead of 2"),
        ({"x.ds.metadata": b"t|2\n6"}, r"x\.ds\.metadata says 6 tokens instead of 5"),
        ({"x.ds.metadata": bytes(1 << 17)}, r"x\.ds\.metadata has 131072 bytes"),
    ],
)
def test_contradictory_datatrove_files_are_refused(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    write_datatrove(tmp_path / "x.ds", [[1, 2], [], [3, 4, 5]])
    assert StructuredDataset(str(tmp_path), "datatrove").explain().rows == 3
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(TableError, match=rf"x\.ds .*{said}"):
        StructuredDataset(str(tmp_path), "datatrove")


def test_a_note_without_numbers_says_nothing(tmp_path: Path) -> None:
    write_datatrove(tmp_path / "x.ds", [[1, 2]])
    for note in (b"", b"\xff\xfe|", b"gpt2\n9\n9 T", b"gpt2|\n\n"):
        (tmp_path / "x.ds.metadata").write_bytes(note)
        assert StructuredDataset(str(tmp_path), "datatrove").explain().rows == 1


def test_a_loss_mask_is_of_zeros_and_ones(tmp_path: Path) -> None:
    write_datatrove(tmp_path / "x.ds", [[1, 2], [3]])
    (tmp_path / "x.ds.loss").write_bytes(b"\0\1\2")
    with pytest.raises(TableError, match=r"x\.ds\.loss .of x\.ds. must be 0 or 1 for each token, got 2 for token 2"):
        list(StructuredDataset.create_dataloader(str(tmp_path), "datatrove", num_workers=0)[0])
    list(StructuredDataset.create_dataloader(str(tmp_path), "datatrove", num_workers=0, columns=["tokens"])[0])


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"x": pa.array([1], pa.uint32())}), "must have a column 'tokens'"),
        (pa.table({"tokens": [[1, 2]]}), "'tokens' of the type list"),
        (pa.table({"tokens": pa.array([1, None], pa.uint32())}), "a document has no nulls, got 1 in record batch 0"),
    ],
)
def test_arrow_files_without_documents_are_refused(tmp_path: Path, table: pa.Table, said: str) -> None:
    with pa.ipc.new_file(str(tmp_path / "x.arrow"), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(TableError, match=rf"x\.arrow.* {said}"):
        list(StructuredDataset.create_dataloader(str(tmp_path), "fms-fsdp", num_workers=0)[0])


def test_aligned_columns_of_an_arrow_file_come_along(tmp_path: Path) -> None:
    with pa.ipc.new_file(str(tmp_path / "x.arrow"), pa.schema([("tokens", pa.uint32()), ("w", pa.float32())])) as out:
        for document in ([1, 2], [], [3]):
            out.write_batch(
                pa.record_batch([pa.array(document, pa.uint32()), pa.array(document, pa.float32())], ["tokens", "w"])
            )
    (file,) = listed(str(tmp_path), "fms-fsdp")
    meta = inspect(file)
    assert rows(file, reader_for("fms-fsdp"), meta, "w", "tokens") == [[[1.0, 2.0], [], [3.0]], [[1, 2], [], [3]]]


@pytest.mark.parametrize("form", ["megatron", "datatrove"])
def test_longer_documents_come_after_shorter_ones(tmp_path: Path, form: str) -> None:
    documents = [[1]] * (AT_ONCE + 7) + [[2] * 300] * 3 + [[1]] * AT_ONCE + [[3] * 70_000, [4]]
    file = write(form, tmp_path, documents)
    assert document_lengths(inspect(file)).tolist() == list(map(len, documents))


@pytest.mark.parametrize("kind", [pa.uint8(), pa.uint16(), pa.int64()], ids=str)
def test_an_arrow_file_says_where_its_documents_begin(tmp_path: Path, kind: pa.DataType) -> None:
    documents = [[token % 100 for token in document] for document in DOCUMENTS]
    (tmp_path / "x.arrow").write_bytes(fms_bytes(documents, kind))
    (file,) = listed(str(tmp_path), "fms-fsdp")
    meta = READERS["fms-fsdp"].placed(LocalStorage(), file, inspect(file), TOKENS)
    (places,) = rows(file, READERS["fms-fsdp"], meta, format_contracts.PLACE)
    data = (tmp_path / "x.arrow").read_bytes()
    width = kind.bit_width // 8
    stored = np.frombuffer(data[: len(data) // width * width], kind.to_pandas_dtype())
    found = [stored[place : place + len(each)].tolist() for place, each in zip(places, documents, strict=True)]
    assert found == documents
    assert places == sorted(places)


def test_compressed_documents_do_not_lie_in_an_arrow_file(tmp_path: Path) -> None:
    reader = READERS["fms-fsdp"]
    (tmp_path / "x.arrow").write_bytes(fms_bytes([[1] * 90] * 9, compression="zstd"))
    (file,) = listed(str(tmp_path), "fms-fsdp")
    meta = inspect(file)
    assert reader.placed(LocalStorage(), file, meta, TOKENS) is None
    asked = replace(meta, schema=meta.schema.append(pa.field(format_contracts.PLACE, pa.int64())))
    with pytest.raises(TableError, match=r"x\.arrow.* not compressed"):
        rows(file, reader, asked, format_contracts.PLACE)


@FORMS
def test_a_folder_is_listed_by_how_data_files_are_named(tmp_path: Path, form: str) -> None:
    suffix, writer = LAYOUTS[form]
    (tmp_path / "meta").mkdir()
    for name in ("b", "a", "sub.d/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        writer(tmp_path / f"{name}{suffix}", [[1]])
    (tmp_path / "meta" / "some_counts.csv").write_text("dataset/filename,documents,tokens\n")
    (tmp_path / "README").write_text("hello")
    names = [f"a{suffix}", f"b{suffix}", f"sub.d/c{suffix}"]
    everything = listed(str(tmp_path), form)
    assert [file.name for file in everything] == names
    beside = [[each.name for each in file.sidecars] for file in everything]
    if form == "megatron":
        assert beside == [["a.idx"], ["b.idx"], ["sub.d/c.idx"]]
    assert listed(f"{tmp_path}/**", form) == everything
    assert listed(str(tmp_path), form, files=names) == everything
    assert [file.name for file in listed(f"{tmp_path}/*{suffix}", form)] == names[:2]
    assert listed(f"{tmp_path}/*{suffix}", form)[0].sidecars == everything[0].sidecars
    assert listed(f"{tmp_path}/a{suffix}", form)[0].sidecars == everything[0].sidecars
    own = named_files(LocalStorage(), str(tmp_path), names, reader_for(form), by_name=True)
    assert [[each.name for each in file.sidecars] for file in own.files] == beside


def test_a_file_without_its_index_and_an_index_without_its_file_are_errors(tmp_path: Path) -> None:
    write_megatron(tmp_path / "a.bin", [[1]])
    write_megatron(tmp_path / "b.bin", [[2]])
    with pytest.raises(MissingFileError, match=r"b\.idx stands beside .*b\.bin, which is not among the files"):
        listed(f"{tmp_path}/b.idx", "megatron")
    with pytest.raises(MissingFileError, match=r"a\.idx stands beside"):
        listed(f"{tmp_path}/*.idx", "megatron")
    (tmp_path / "b.idx").rename(tmp_path / "kept")
    for path in (str(tmp_path), f"{tmp_path}/b.bin", f"{tmp_path}/*.bin"):
        with pytest.raises(MissingFileError, match=r"b\.bin cannot be read without .*b\.idx, which is missing"):
            listed(path, "megatron")
    (tmp_path / "kept").rename(tmp_path / "b.idx")
    (tmp_path / "b.bin").unlink()
    with pytest.raises(MissingFileError, match=r"b\.idx stands beside"):
        listed(str(tmp_path), "megatron")


def test_a_folder_of_another_format_is_refused(tmp_path: Path) -> None:
    write_megatron(tmp_path / "a.bin", [[1]])
    with pytest.raises(TableError, match=r"files of format='datatrove' must have names that end with '\.ds', got 2"):
        listed(str(tmp_path), "datatrove")


def test_the_note_of_all_files_that_datatrove_merges_is_no_orphan(tmp_path: Path) -> None:
    write_datatrove(tmp_path / "all_0.ds", [[1]])
    (tmp_path / "all.ds.metadata").write_text("t|2\n100\n100 T")
    assert [file.name for file in listed(str(tmp_path), "datatrove")] == ["all_0.ds"]


@pytest.mark.parametrize("form", ["megatron", "datatrove"])
def test_empty_documents_alone_are_rows(tmp_path: Path, form: str) -> None:
    file = write(form, tmp_path, [[], [], []])
    assert file.version.num_bytes == 0
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), form, output_format="dict", batch_size=2)
    assert [batch["tokens"] for batch in loader] == [[[], []], [[]]]


@pytest.mark.parametrize(
    ("form", "suffix"), [("megatron", ".idx"), ("datatrove", ".ds.index"), ("datatrove", ".ds.loss")]
)
def test_a_sidecar_that_changes_after_planning_is_found(tmp_path: Path, form: str, suffix: str) -> None:
    write(form, tmp_path)
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), form, num_workers=0, ragged="offsets")
    path = tmp_path / f"x{suffix}"
    os.utime(path, ns=(1, 1))
    with pytest.raises(TableError, match=rf"x{suffix} changed while it was in use: mtime"):
        list(loader)
    path.unlink()
    loader.set_epoch(0)
    with pytest.raises(TableError, match=rf"x{suffix}"):
        list(loader)


def test_a_loss_file_of_a_far_store_is_the_one_that_was_listed(tmp_path: Path) -> None:
    write("datatrove", tmp_path)
    store = FarStore()
    (file,) = named_files(store, [f"{tmp_path}/x.ds"], None, reader_for("datatrove"), by_name=True).files
    reader = READERS["datatrove"]
    meta = reader.inspect(store, file, None)
    (tmp_path / "x.ds.loss").write_bytes(bytes(sum(map(len, DOCUMENTS))))
    handle = reader.open(store, file, meta)
    assert next(handle.batches(range(1), [TOKENS], 7)).num_rows
    with pytest.raises(TableError, match=r"x\.ds\.loss changed while it was in use: .*etag"):
        next(handle.batches(range(1), ["loss_mask"], 7))
    (tmp_path / "x.ds.index").write_bytes(ends(1))
    with pytest.raises(TableError, match="no longer that version"):
        reader.inspect(store, file, None)


@pytest.mark.parametrize(("form", "suffixes"), [("megatron", (".bin", ".idx")), ("datatrove", (".ds", ".ds.index"))])
def test_the_index_of_a_far_store_is_fetched_once(tmp_path: Path, form: str, suffixes: tuple[str, str]) -> None:
    count, store = 3 * AT_ONCE, FarStore()
    data, index = (tmp_path / f"x{suffix}" for suffix in suffixes)
    data.write_bytes(bytes(2 * count))
    lengths = {"lengths": np.ones(count), "places": np.arange(0, 2 * count, 2), "firsts": np.arange(count + 1)}
    whole = index_with(sequences=count, edges=count + 1, **lengths) if form == "megatron" else b""
    index.write_bytes(whole or np.arange(1, count + 1, dtype="<u8").tobytes())
    (file,) = named_files(store, [str(data)], None, reader_for(form), by_name=True).files
    with small_sizes(far_request_bytes=1 << 20):
        assert READERS[form].inspect(store, file, None).group_rows
    asked = [request for request in store.kinds("range") if request.name == index.name]
    assert sum(request.stop - request.start for request in asked) == index.stat().st_size


def test_caches_of_a_file_depend_on_its_index_too(tmp_path: Path) -> None:
    table, cache = tmp_path / "t", str(tmp_path / "plans")
    table.mkdir()
    (table / "x.bin").write_bytes(np.arange(4, dtype=np.uint16).tobytes())
    keys = set()
    for lengths in ([[0], [1, 2, 3]], [[0, 1], [2, 3]]):
        _, index = megatron_bytes([[document] for document in lengths])
        (table / "x.idx").write_bytes(index)
        for _ in range(2):
            loader, dataset = StructuredDataset.create_dataloader(
                str(table), "megatron", plan_cache=cache, output_format="dict"
            )
            assert [row for batch in loader for row in batch["tokens"]] == lengths
        keys.add(content_key(dataset.table.fingerprint, dataset.table.files))
    assert len(keys) == 2
    assert len(list((tmp_path / "plans").iterdir())) == 2


def test_a_source_must_list_the_index(tmp_path: Path) -> None:
    file = replace(write("megatron", tmp_path), sidecars=())
    with pytest.raises(TableError, match=r"x\.bin .*DataFile\.sidecars"):
        inspect(file)


def test_a_data_file_that_is_cut_after_planning_is_found(tmp_path: Path) -> None:
    for form in ("megatron", "fms-fsdp"):
        folder = tmp_path / form
        folder.mkdir()
        file = write(form, folder)
        meta = inspect(file)
        data = Path(file.path).read_bytes()
        Path(file.path).write_bytes(data[: len(data) // 3])
        with pytest.raises(TableError, match=rf"{file.name} .*cut"):
            rows(file, reader_for(form), meta, TOKENS)


def test_the_index_has_the_documented_bytes() -> None:
    data, index = datatrove_bytes([[1, 2], [3]])
    assert (data, index) == (b"\1\0\2\0\3\0", ends(2, 3))
    data, index = megatron_bytes([[[1], [2]], [[3]]], modes=[0, 1, 2])
    assert data == b"\1\0\2\0\3\0"
    assert len(index) == 34 + 12 * 3 + 8 * 3 + 3
