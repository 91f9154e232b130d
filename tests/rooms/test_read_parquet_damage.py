"""Damaged Parquet files: correct rows or a TableError that names the file, never a shorter table or a crash."""

from __future__ import annotations

import os
import pickle
import signal
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.tables.iceberg import IcebergWriter, some
from tests.tables.reading import LocalStorage, data_file
from torch_table_loader import IcebergDataset, Pack, StructuredDataset
from torch_table_loader.arrow.ranged_file import open_ranges
from torch_table_loader.errors import TableError
from torch_table_loader.extend import DataFile, reader_for
from torch_table_loader.read import parquet_footer
from torch_table_loader.read.deletes import Deletes
from torch_table_loader.read.parquet_footer import check_footer, parse, read_footer
from torch_table_loader.read.wide_parquet import WideParquet
from torch_table_loader.records import DeleteFile

ROWS = 60


def _table() -> pa.Table:
    return pa.table(
        {
            "i": pa.array(range(ROWS), pa.int64()),
            "n": pa.array([None if row % 5 == 0 else row for row in range(ROWS)], pa.int32()),
            "s": [f"text {row % 7}" for row in range(ROWS)],
            "l": [[row] * (row % 4) for row in range(ROWS)],
            "d": pa.array([bytes([row]) * 16 for row in range(ROWS)], pa.binary(16)),
        }
    )


def _write(path: Path, table: pa.Table | None = None, **options: Any) -> DataFile:
    pq.write_table(_table() if table is None else table, path, row_group_size=20, **options)
    return data_file(path)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _int64(field_delta: int, value: int) -> bytes:
    """Return a 64-bit field of a Thrift struct in the compact protocol."""
    return bytes([field_delta << 4 | 6]) + _varint((value << 1) ^ (value >> 63))


def _rewrite(path: Path, change: Callable[[bytes], bytes]) -> DataFile:
    """Rewrite a file with another footer of any length."""
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = change(data[start:-8])
    path.write_bytes(data[:start] + footer + struct.pack("<I", len(footer)) + b"PAR1")
    return data_file(path)


def _replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def change(footer: bytes) -> bytes:
        assert footer.count(old) >= 1
        return footer.replace(old, new, 1)

    return change


def _read(file: DataFile, batch_size: int = 65_536, **options: Any) -> pa.Table:
    given: dict[str, Any] = {"num_workers": 0, "batch_size": batch_size, "output_format": "arrow", **options}
    loader, dataset = StructuredDataset.create_dataloader(file.path, **given)
    return pa.Table.from_batches(list(loader), dataset.schema)


def parquet_reader() -> Any:
    return reader_for("parquet")


def _survives(work: Callable[[], object]) -> bool:
    """Run in a child process; return whether it survived, with or without one of our errors."""
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        signal.alarm(60)
        try:
            work()
        except TableError:
            pass
        except BaseException:  # noqa: BLE001 the parent is told
            os._exit(3)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def _group_end(total_bytes: int, num_rows: int) -> bytes:
    """Fields 2 and 3 of a RowGroup: total_byte_size and num_rows."""
    return _int64(1, total_bytes) + _int64(1, num_rows)


@pytest.mark.parametrize("rows", [-201, 4, 19, 21, 1 << 40])
def test_a_row_group_with_a_wrong_number_of_rows_is_refused(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "x.parquet"
    _write(path)
    size = pq.read_metadata(path).row_group(0).total_byte_size
    file = _rewrite(path, _replaced(_group_end(size, 20), _group_end(size, rows)))
    with pytest.raises(TableError, match=r"x\.parquet must have a Parquet footer with .*rows"):
        reader_for("parquet").inspect(LocalStorage(), file, None)


def test_counts_that_add_up_but_contradict_columns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    _write(path)
    sizes = [pq.read_metadata(path).row_group(group).total_byte_size for group in range(3)]

    def swap(footer: bytes) -> bytes:
        footer = _replaced(_group_end(sizes[0], 20), _group_end(sizes[0], 21))(footer)
        return _replaced(_group_end(sizes[1], 20), _group_end(sizes[1], 19))(footer)

    file = _rewrite(path, swap)
    assert pq.read_metadata(path).num_rows == ROWS
    with pytest.raises(TableError, match=r"x\.parquet .*21 values in each column of row group 0, got 20 in column 'i'"):
        reader_for("parquet").inspect(LocalStorage(), file, None)


def test_a_negative_size_of_a_row_group_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    _write(path)
    size = pq.read_metadata(path).row_group(0).total_byte_size
    file = _rewrite(path, _replaced(_group_end(size, 20), _group_end(-size, 20)))
    with pytest.raises(TableError, match=r"x\.parquet .*0 or more rows and bytes"):
        reader_for("parquet").inspect(LocalStorage(), file, None)


@pytest.mark.parametrize("num_values", [-20, 0, 16, 19, 21, 1 << 50])
@pytest.mark.parametrize("column", [0, 3])
def test_a_column_chunk_with_a_wrong_number_of_values_is_refused(tmp_path: Path, column: int, num_values: int) -> None:
    path = tmp_path / "x.parquet"
    _write(path)
    chunk = pq.read_metadata(path).row_group(0).column(column)
    sizes = _int64(1, chunk.total_uncompressed_size) + _int64(1, chunk.total_compressed_size)
    old, new = (_int64(1, count) + sizes for count in (chunk.num_values, num_values))
    file = _rewrite(path, _replaced(old, new))
    if column == 3 and num_values >= 20:  # a list has any number of values, and pages say how many there are
        assert _read(file, 7).equals(_table())
        return
    with pytest.raises(TableError, match=r"x\.parquet .*20 values .*in each column of row group 0, got"):
        reader_for("parquet").inspect(LocalStorage(), file, None)


@pytest.mark.parametrize("offset", [-4, 1 << 20, 1 << 62, 1 << 63])
@pytest.mark.parametrize("which", ["data", "dictionary"])
def test_a_column_chunk_outside_of_the_file_is_refused(tmp_path: Path, which: str, offset: int) -> None:
    path = tmp_path / "x.parquet"
    _write(path)
    chunk = pq.read_metadata(path).row_group(1).column(2)
    size = chunk.total_compressed_size
    old = _int64(1, size) + _int64(2, chunk.data_page_offset) + _int64(2, chunk.dictionary_page_offset)
    data, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
    offset = offset - (1 << 64) if offset >= 1 << 63 else offset
    data, dictionary = (offset, offset) if which == "data" else (data, offset)
    file = _rewrite(path, _replaced(old, _int64(1, size) + _int64(2, data) + _int64(2, dictionary)))
    if which == "dictionary":  # pyarrow then takes the chunk to begin at its data page, and misses the dictionary
        with pytest.raises(TableError, match=r"x\.parquet, row group 1, column 's'"):
            _read(file)
        return
    with pytest.raises(TableError, match=r"x\.parquet .*sound column chunks inside its \d+ bytes of data"):
        reader_for("parquet").inspect(LocalStorage(), file, None)


@pytest.mark.parametrize("size", [-1, 1 << 20, 1 << 40, (1 << 63) - 1])
def test_a_column_chunk_that_ends_outside_of_the_file_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.parquet"
    _write(path)
    chunk = pq.read_metadata(path).row_group(1).column(0)
    tail = _int64(2, chunk.data_page_offset)
    file = _rewrite(path, _replaced(_int64(1, chunk.total_compressed_size) + tail, _int64(1, size) + tail))
    with pytest.raises(TableError, match=r"x\.parquet .*sound column chunks"):
        reader_for("parquet").inspect(LocalStorage(), file, None)


def _ask_statistics(file: DataFile) -> None:
    storage, reader = LocalStorage(), parquet_reader()
    meta = reader.inspect(storage, file, None)
    reader.null_columns(meta, meta.schema.names, [True] * len(meta.group_rows))
    for name, value in (("i", 3), ("n", pa.scalar(3, pa.int32())), ("s", "text 3"), ("d", b"x" * 16)):
        reader.prune(file, meta, pc.field(name) == value, meta.schema)
    reader.list_values(meta, "l")
    reader.list_bounds(file, meta, "l")
    for column in ("i", "n"):
        reader.bounds(meta, column)
    _read(file)


def test_a_footer_is_checked_without_a_byte_of_data_or_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _write(tmp_path / "a.parquet")
    footer, data_bytes = read_footer(LocalStorage(), file)
    parsed = parse(footer)
    asked: list[tuple[int, int]] = []

    def read(start: int, stop: int) -> bytes:
        asked.append((start, stop))
        return b""

    with open_ranges(read, data_bytes) as source:
        WideParquet(source, metadata=parsed, pre_buffer=True)
    assert asked == []  # so a check may give pyarrow a file that it closes before anything is read
    known = parquet_footer._CLOSED
    monkeypatch.setattr(pa, "PythonFile", None)  # threads of Arrow would read one, and wait for Python each time
    for closed in (known, "what another pyarrow says"):
        monkeypatch.setattr(parquet_footer, "_CLOSED", closed)
        check_footer(file, parsed, data_bytes)
    assert parquet_footer._of_a_closed_file() == known  # so that no file takes the time to find it out
    with pytest.raises(TableError, match="sound column chunks inside its 100 bytes of data"):
        check_footer(file, parsed, 100)


@pytest.mark.parametrize("kind", [-3, -1, 0, 3, 4, 5, 6, 7, 8, 100])
def test_a_chunk_of_another_type_than_the_schemas_does_not_crash_the_process(tmp_path: Path, kind: int) -> None:
    path = tmp_path / "x.parquet"
    _write(path)

    def change(footer: bytes) -> bytes:
        place = footer.index(b"\x18\x01i", footer.index(b"\x18\x01i") + 3)  # the path of the first chunk of `i`
        start = footer.rindex(b"\x15\x04\x19", 0, place)  # its type, INT64, and the list of encodings
        return footer[: start + 1] + _varint((kind << 1) ^ (kind >> 63)) + footer[start + 2 :]

    file = _rewrite(path, change)
    assert pq.read_metadata(path).num_rows == ROWS
    assert _survives(lambda: _ask_statistics(file))
    meta = reader_for("parquet").inspect(LocalStorage(), file, None)
    with pytest.raises(TableError, match=r"footer with INT64 in column 'i', got .* in row group 0"):
        reader_for("parquet").null_columns(meta, ["i"], [True] * 3)
    with pytest.raises(TableError, match=r"x\.parquet .* INT64 in column 'i'"):
        reader_for("parquet").prune(file, meta, pc.field("i") == 3, meta.schema)
    with pytest.raises(TableError, match=r"x\.parquet.* INT64 in column 'i'"):
        StructuredDataset.create_dataloader(str(path), columns=["i"])


@pytest.mark.parametrize("repetition", [0, 2])
@pytest.mark.parametrize("element", [b"\x15\x02\x25\x02\x18\x01n", b"\x15\x04\x25\x02\x18\x01i"])
def test_histograms_that_do_not_fit_the_schema_do_not_crash_the_process(
    tmp_path: Path, element: bytes, repetition: int
) -> None:
    path = tmp_path / "x.parquet"
    _write(path)
    # SchemaElement: type, repetition_type (OPTIONAL), name. Its chunks count two definition levels.
    file = _rewrite(path, _replaced(element, element[:3] + bytes([2 * repetition]) + element[4:]))
    assert _survives(lambda: _ask_statistics(file))
    if repetition == 0:  # else the file is one of lists
        with pytest.raises(TableError, match=r"x\.parquet .*histogram size mismatch"):
            reader_for("parquet").inspect(LocalStorage(), file, None)


@pytest.mark.parametrize("width", [8, 17, 80, 1 << 20])
def test_statistics_of_another_width_than_the_schemas_do_not_crash_the_process(tmp_path: Path, width: int) -> None:
    path = tmp_path / "x.parquet"
    _write(path)
    # SchemaElement: type FIXED_LEN_BYTE_ARRAY, type_length
    file = _rewrite(path, _replaced(b"\x15\x0e\x15\x20", b"\x15\x0e\x15" + _varint(2 * width)))
    assert _survives(lambda: _ask_statistics(file))


@pytest.mark.parametrize("length", [0, 1, 3, 7])
def test_short_statistics_do_not_crash_the_process(tmp_path: Path, length: int) -> None:
    path = tmp_path / "x.parquet"
    _write(path)
    nineteen = b"\x08" + (19).to_bytes(8, "little")
    file = _rewrite(path, lambda footer: footer.replace(nineteen, bytes([length]) + nineteen[1 : length + 1]))
    assert pq.read_metadata(path).num_rows == ROWS
    assert _survives(lambda: _ask_statistics(file))
    meta = reader_for("parquet").inspect(LocalStorage(), file, None)
    with pytest.raises(TableError, match=rf"statistics of 8 bytes in column 'i', got {length} in row group 0"):
        reader_for("parquet").null_columns(meta, ["i"], [True] * 3)


@pytest.mark.parametrize("length", [0, 7])
def test_short_statistics_of_lists_do_not_crash_the_process_that_counts_their_values(
    tmp_path: Path, length: int
) -> None:
    path = tmp_path / "x.parquet"
    _write(path)
    nineteen = b"\x08" + (19).to_bytes(8, "little")
    file = _rewrite(path, lambda footer: footer.replace(nineteen, bytes([length]) + nineteen[1 : length + 1]))
    reader = parquet_reader()
    meta = reader.inspect(LocalStorage(), file, None)
    assert _survives(lambda: reader.list_values(meta, "l"))
    with pytest.raises(
        TableError, match=rf"x\.parquet.* statistics of 8 bytes in column 'l.list.element', got {length}"
    ):
        StructuredDataset.create_dataloader(str(path), columns=["l"], pack=Pack(seq_len=8, tokens="l"))


def test_invalid_names_and_false_lengths_are_table_errors(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    for old, new in ((b"\x18\x01i", b"\x18\x01\xff"), (b"\x18\x06schema", b"\x18\xff\xff\xff\xff\x0fschema")):
        _write(path, store_schema=False)
        file = _rewrite(path, _replaced(old, new))
        with pytest.raises(TableError, match=r"x\.parquet must end with a Parquet footer"):
            reader_for("parquet").inspect(LocalStorage(), file, None)


def test_a_claimed_footer_of_two_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    with path.open("wb") as stream:
        stream.truncate(3 << 30)
        stream.seek((3 << 30) - 8)
        stream.write(struct.pack("<I", 2 << 30) + b"PAR1")
    storage = LocalStorage(counting=True)
    with pytest.raises(TableError, match=r"x\.parquet .*a footer of at most \d+ bytes, got a length of 2147483648"):
        reader_for("parquet").inspect(storage, data_file(path), None)
    assert sum(length for _, length in storage.log) <= 1 << 16


def _delete_file(path: Path, rows: int, told: int | None, **options: Any) -> DeleteFile:
    table = pa.table({"file_path": ["data"] * rows, "pos": pa.array(range(rows), pa.int64())})
    pq.write_table(table, path, **options)
    return DeleteFile(replace(data_file(path), num_rows=told), "position", rows)


def test_a_delete_file_that_contradicts_the_tables_metadata_is_refused(tmp_path: Path) -> None:
    data = DataFile("data", "data", LocalStorage().version(str(tmp_path)), "parquet")
    right = _delete_file(tmp_path / "right.parquet", 5, 5)
    assert Deletes(LocalStorage()).positions(replace(data, deletes=(right,))).tolist() == [0, 1, 2, 3, 4]
    wrong = _delete_file(tmp_path / "wrong.parquet", 5, 6)
    with pytest.raises(TableError, match=r"wrong\.parquet must have 6 rows, as the table's metadata says, got 5"):
        Deletes(LocalStorage()).positions(replace(data, deletes=(wrong,)))


PAGES = [
    {"use_dictionary": dictionary, "data_page_version": version, "compression": compression}
    for dictionary in (True, False)
    for version in ("1.0", "2.0")
    for compression in ("none", "snappy", "zstd")
]


def _page_flips(path: Path, number: int) -> Iterator[tuple[int, bytes]]:
    """Flip a bit in the pages, but not in headers: the last bytes of each chunk belong to a page."""
    data, parsed = path.read_bytes(), pq.read_metadata(path)
    spans = []
    for group in range(parsed.num_row_groups):
        for column in range(parsed.num_columns):
            chunk = parsed.row_group(group).column(column)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            spans.append((start, start + chunk.total_compressed_size))
    rng = np.random.default_rng(7)
    for turn in range(number):
        _, stop = spans[turn % len(spans)]
        place = stop - 1 - int(rng.integers(0, 8))
        damaged = bytearray(data)
        damaged[place] ^= 1 << int(rng.integers(0, 8))
        yield place, bytes(damaged)


@pytest.mark.parametrize("options", PAGES, ids=lambda options: "-".join(map(str, options.values())))
@daily(4)
def test_every_change_of_a_page_with_a_checksum_is_detected(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table(
        {"i": range(400), "f": np.random.default_rng(0).random(400), "s": [f"text {i}" for i in range(400)]}
    )
    pq.write_table(table, path, row_group_size=100, write_page_checksum=True, **options)
    assert _read(data_file(path)).equals(table)
    for place, damaged in _page_flips(path, 32):
        path.write_bytes(damaged)
        with pytest.raises(
            TableError, match=r"page in x\.parquet, row group \d, column '[ifs]' does not match"
        ) as told:
            _read(data_file(path))
        assert "'verify_checksums': False" in str(told.value), place
        path.write_bytes(damaged)


def test_dictionary_pages_are_compared_with_their_checksum(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({"s": [f"text {row % 7}" for row in range(100)]})
    pq.write_table(table, path, write_page_checksum=True, compression="none")
    path.write_bytes(path.read_bytes().replace(b"text 3", b"test 3", 1))
    with pytest.raises(TableError, match=r"page in x\.parquet, row group 0, column 's' does not match"):
        _read(data_file(path))
    unverified: dict[str, Any] = {"verify_checksums": False}
    assert _read(data_file(path), storage_options=unverified)["s"].to_pylist().count("test 3") == 14
    dataset = StructuredDataset(str(path), storage_options=unverified, num_workers=0)
    again = pickle.loads(pickle.dumps(dataset))  # noqa: S301 our own
    assert [word for batch in again for word in batch["s"]].count("test 3") == 14


def test_delete_files_are_compared_with_their_checksums(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    data = DataFile("data", "data", LocalStorage().version(str(tmp_path)), "parquet")
    options: dict[str, Any] = {"write_page_checksum": True, "compression": "none", "use_dictionary": False}
    deleted = replace(data, deletes=(_delete_file(path, 5, 5, **options),))
    path.write_bytes(path.read_bytes().replace(struct.pack("<5q", *range(5)), struct.pack("<5q", 0, 1, 2, 3, 9), 1))
    with pytest.raises(TableError, match=r"page in x\.parquet does not match"):
        Deletes(LocalStorage()).positions(deleted)
    unverified = Deletes(LocalStorage(), verify_checksums=False)
    for deletes in (unverified, pickle.loads(pickle.dumps(unverified))):  # noqa: S301 our own
        assert deletes.positions(deleted).tolist() == [0, 1, 2, 3, 9]


@pytest.mark.parametrize(
    "how", [{}, {"worker_type": "process", "num_workers": 2}, {"shuffle": "rows"}, {"num_workers": 0}], ids=str
)
def test_the_option_reaches_every_reader(tmp_path: Path, how: dict[str, Any]) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({"i": pa.array(range(100), pa.int64())})
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    path.write_bytes(path.read_bytes().replace(struct.pack("<2q", 50, 51), struct.pack("<2q", 50, 1051), 1))
    with pytest.raises(TableError, match=r"page in x\.parquet, row group 0, column 'i' does not match"):
        list(StructuredDataset(str(tmp_path), batch_size=50, **how))
    rows = StructuredDataset(str(tmp_path), batch_size=50, storage_options={"verify_checksums": False}, **how)
    assert 1051 in [value for batch in rows for value in batch["i"].tolist()]


def _iceberg(root: Path) -> tuple[IcebergWriter, Path]:
    """A table of one data file, written with checksums, and one position delete."""
    table = IcebergWriter(root)
    path = table.append(some(0, 50))
    table.delete_rows({path: [3]})
    table.commit()
    local = Path(path.removeprefix("file://"))
    options: dict[str, Any] = {"write_page_checksum": True, "compression": "none", "use_dictionary": False}
    pq.write_table(pq.read_table(local), local, **options)
    for each in table.data:
        each.entry["file_size_in_bytes"] = local.stat().st_size
    table.commit()
    return table, local


@pytest.mark.parametrize("footers", ["eager", "lazy"])
def test_files_of_an_iceberg_table_are_verified_unless_turned_off(tmp_path: Path, footers: str) -> None:
    table, local = _iceberg(tmp_path)
    local.write_bytes(local.read_bytes().replace(struct.pack("<2q", 40, 41), struct.pack("<2q", 40, 1041), 1))
    how: dict[str, Any] = {"metadata_location": table.metadata, "footers": footers, "columns": ["x"]}
    with pytest.raises(TableError, match=rf"page in .*{local.name}, row group 0, column 'x' does not match"):
        list(IcebergDataset(**how))
    found = [
        x for batch in IcebergDataset(storage_options={"verify_checksums": False}, **how) for x in batch["x"].tolist()
    ]
    assert found == [*range(3), *range(4, 41), 1041, *range(42, 50)]


@pytest.mark.parametrize("footers", ["eager", "lazy"])
@pytest.mark.parametrize("rows", [49, 51])
def test_a_manifest_that_counts_other_rows_than_the_footer_is_refused(tmp_path: Path, footers: str, rows: int) -> None:
    table = IcebergWriter(tmp_path)
    name = Path(table.append(some(0, 50))).name
    table.data[0].entry["record_count"] = rows
    table.commit()
    how: dict[str, Any] = {"metadata_location": table.metadata, "footers": footers, "columns": ["x"]}
    with pytest.raises(TableError, match=rf"{name} must have {rows} rows, as the table's metadata says, got 50"):
        list(IcebergDataset(**how))
