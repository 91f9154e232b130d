"""The contracts of optional parts: each rule has a plug-in that breaks it, and the check reports it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tables.iceberg import IcebergWriter, some
from tests.tables.parquet_reader import PARQUET_READER
from tests.tables.tensor_shards import tensor, write_shard
from torch_table_loader.errors import TableError
from torch_table_loader.formats.tensorproto import TensorProtoReader
from torch_table_loader.formats.tensorproto.tensor_shards import _columns_of, _schema
from torch_table_loader.iceberg.catalog import TableAddress
from torch_table_loader.iceberg.source import IcebergRequest
from torch_table_loader.records import DataFile, FileMeta, LeftOut
from torch_table_loader.testing import ContractError, check_format_reader, check_source, stored_files
from torch_table_loader.testing.format_readers import Damaged


@pytest.fixture
def shards(tmp_path: Path) -> tuple[Any, Sequence[DataFile]]:
    """Write two files whose shapes differ, so that the table's type differs from both."""
    for file, width in enumerate((2, 3)):
        rows = [[tensor("x", np.ones(width, np.float32)), tensor("id", np.int64(n))] for n in range(6)]
        write_shard(tmp_path / f"{file}.pb", rows)
    return stored_files(tmp_path, "tensorproto")


Metas = list[FileMeta]


def unsettled(given: Metas, settled: Metas) -> Metas:
    return given


def fewer(given: Metas, settled: Metas) -> Metas:
    return settled[:1]


def moody(given: Metas, settled: Metas) -> Metas:
    return settled if given[0] not in settled else given[::-1]


def with_rows(given: Metas, settled: Metas) -> Metas:
    return [replace(each, group_rows=(5,)) for each in settled]


def unread(given: Metas, settled: Metas) -> Metas:
    """Correct the answer, for a reader that uses each file's own types."""
    return settled


@dataclass(frozen=True)
class Unsettling(TensorProtoReader):
    """Settles in a faulty way."""

    fault: ClassVar[Callable[[Metas, Metas], Metas]]

    def settle(self, metas: Sequence[FileMeta]) -> Sequence[FileMeta]:
        return type(self).fault(list(metas), list(TensorProtoReader.settle(self, metas)))

    def open(self, storage: Any, file: DataFile, meta: FileMeta) -> Any:
        return TensorProtoReader.open(self, storage, file, replace(meta, schema=_schema(_columns_of(meta))))


SETTLING = [
    (unsettled, "settle must give column 'x' one type, but it is .* in '0.pb' and .* in '1.pb'"),
    (fewer, "settle must give 2 FileMetas, got 1"),
    (moody, "settle must say the same each time"),
    (with_rows, "settle must change types alone, but changes more of '0.pb'"),
    (unread, r"as settle says, .*: column 'x' must be .* as inspect says, got"),
]


@pytest.mark.parametrize(("fault", "message"), SETTLING, ids=lambda each: getattr(each, "__name__", ""))
def test_faulty_settling_is_refused(
    shards: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, fault: Any, message: str
) -> None:
    check_format_reader(TensorProtoReader(), *shards)
    monkeypatch.setattr(Unsettling, "fault", staticmethod(fault), raising=False)
    with pytest.raises(ContractError, match=message):
        check_format_reader(Unsettling(), *shards)


def test_salvage_keeps_part_of_a_damaged_file(shards: tuple[Any, Any]) -> None:
    """The check has something to compare: a cut file has samples left, and its last one is left out."""
    storage, (file, _) = shards
    cut = Damaged(storage, "cut")
    meta, left_out = TensorProtoReader().salvage(cut, cut.listed(file), None)
    assert meta.num_rows == 3 or left_out
    spot = Damaged(storage, "spot")
    meta, left_out = TensorProtoReader().salvage(spot, spot.listed(file), None)
    assert 0 < meta.num_rows < 6
    assert left_out


Salvaged = tuple[FileMeta, list[LeftOut]]


def in_silence(file: DataFile, found: Salvaged) -> Salvaged:
    return found[0], []


def of_another_file(file: DataFile, found: Salvaged) -> Salvaged:
    return found[0], [part._replace(file="b") for part in found[1]]


def behind_the_end(file: DataFile, found: Salvaged) -> Salvaged:
    return found[0], [part._replace(stop=part.stop + (1 << 20)) for part in found[1]]


def too_much(file: DataFile, found: Salvaged) -> Salvaged:
    return found[0], found[1] or [LeftOut(file.name, "a sample", 0, 1, "it was in the way")]


def what_is_damaged(file: DataFile, found: Salvaged) -> Salvaged:
    meta, left_out = found
    return (replace(meta, group_ranges=((0, file.version.num_bytes),)), left_out) if left_out else found


def nameless(file: DataFile, found: Salvaged) -> Salvaged:
    if found[1]:
        raise TableError("torn")
    return found


def raw(file: DataFile, found: Salvaged) -> Salvaged:
    if found[1]:
        raise ValueError("torn")
    return found


@dataclass(frozen=True)
class Unsaving(TensorProtoReader):
    """Leaves out in a faulty way."""

    fault: ClassVar[Callable[[DataFile, Salvaged], Salvaged]]

    def salvage(self, storage: Any, file: DataFile, schema: Any) -> tuple[FileMeta, Sequence[LeftOut]]:
        meta, left_out = TensorProtoReader.salvage(self, storage, file, schema)
        return type(self).fault(file, (meta, list(left_out)))


SALVAGING = [
    (in_silence, "salvage leaves nothing out; name each part"),
    (of_another_file, "must be a LeftOut of bytes of the file"),
    (behind_the_end, "must be a LeftOut of bytes of the file"),
    (too_much, "salvage of a sound file must say what inspect says and leave nothing out"),
    (what_is_damaged, "what salvage leaves"),
    (nameless, "a TableError must name"),
    (raw, "must raise TableError or nothing, but one raised ValueError: torn"),
]


@pytest.mark.parametrize(("fault", "message"), SALVAGING, ids=lambda each: getattr(each, "__name__", ""))
def test_faulty_salvaging_is_refused(
    shards: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, fault: Any, message: str
) -> None:
    monkeypatch.setattr(Unsaving, "fault", staticmethod(fault), raising=False)
    with pytest.raises(ContractError, match=message):
        check_format_reader(Unsaving(), *shards)


# Sources with a history


@dataclass(frozen=True, slots=True)
class Misspelling(PARQUET_READER):  # type: ignore[misc]
    """Reads other strings if they are encoded."""

    def encoding(self, columns: frozenset[str]) -> Any:
        return Wrong(encoded=columns)


@dataclass(frozen=True, slots=True)
class Wrong(PARQUET_READER):  # type: ignore[misc]
    def open(self, storage: Any, file: DataFile, meta: FileMeta) -> Any:
        handle = PARQUET_READER.open(self, storage, file, meta)
        batches = handle.batches

        def shorter(groups: range, columns: Sequence[str], max_rows: int) -> Iterator[pa.RecordBatch]:
            for batch in batches(groups, columns, max_rows):
                yield batch.slice(1)

        handle.batches = shorter
        return handle


def test_encoded_strings_are_checked(tmp_path: Path) -> None:
    pq.write_table(pa.table({"s": ["a", "b", None, "a"] * 5, "x": range(20)}), tmp_path / "0.parquet")
    storage, files = stored_files(tmp_path, "parquet")
    check_format_reader(PARQUET_READER(), storage, files)
    with pytest.raises(ContractError, match=r"an encoded column must hold the strings .* but 's' does not"):
        check_format_reader(Misspelling(), storage, files)


def history(tmp_path: Path) -> Any:
    """Open a table of two snapshots."""
    table = IcebergWriter(tmp_path / "ice")
    for start in (0, 6):
        table.append(some(start, start + 6))
        table.commit()
    return IcebergRequest(TableAddress(metadata_location=table.metadata)).open({})


@pytest.mark.parametrize(
    ("told", "start", "message"),
    [
        (lambda since: [], None, "must say that it is not an ancestor, got"),
        (lambda since: ["it was compacted"], None, r"must be empty, since that is its own snapshot, got \['it was"),
        (lambda since: "it is no ancestor", None, "must give a list of texts, got 'it is no ancestor'"),
        (lambda since: [7], None, r"must give a list of texts, got \[7\]"),
        (lambda since: [][since], None, "but changes_since raised: IndexError"),
        (None, "own", "must have a start_snapshot_id that is None or an older snapshot"),
        (None, "first", "must have a start_snapshot_id that is None or an older snapshot"),
    ],
)
def test_a_history_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Any, start: str | None, message: str
) -> None:
    source = history(tmp_path)
    check_source(source)
    if told is not None:
        monkeypatch.setattr(type(source), "changes_since", lambda _, since: told(since))
    if start is not None:
        object.__setattr__(source, "start_snapshot_id", source.snapshot_id if start == "own" else start)
    with pytest.raises(ContractError, match=message):
        check_source(source)
