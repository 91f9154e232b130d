"""Values that decoders trust are checked: offsets, indices, text, names, and counts of rows."""

from __future__ import annotations

import io
import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc

from tests.tables.reading import data_file, inspect
from torch_table_loader import StructuredDataset, TableError
from torch_table_loader.arrow.sound import sound, sound_text
from torch_table_loader.formats.ipc.ipc_layout import Block, check_blocks
from torch_table_loader.formats.orc.orc import Stripe, check_stripes

BATCHES, ROWS = 3, 20
NO_TEXT = b"\xff\xfe"


def read_all(path: Path, form: str, **options: Any) -> list[Any]:
    given: Any = {"num_workers": 0, "output_format": "dict"} | options
    loader, _ = StructuredDataset.create_dataloader(str(path), form, batch_size=7, **given)
    return list(loader)


def ipc_bytes(table: pa.Table, *, stream: bool = False) -> bytes:
    target = io.BytesIO()
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(target, table.schema) as writer:
        writer.write_table(table, max_chunksize=ROWS)
    return target.getvalue()


def with_wrong_offset(stream: bool) -> bytes:
    """Return text whose 11th row ends a gigabyte after the last byte."""
    values = [f"{i:08d}" for i in range(BATCHES * ROWS)]
    data = ipc_bytes(pa.table({"n": range(BATCHES * ROWS), "s": values}), stream=stream)
    place = data.index(np.arange(0, 8 * ROWS + 1, 8, dtype=np.int32).tobytes()) + 4 * 11
    return data[:place] + struct.pack("<i", 1 << 30) + data[place + 4 :]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_wrong_offset_in_arrow_ipc_is_an_error_that_names_the_file(
    tmp_path: Path, stream: bool, worker_type: str
) -> None:
    path = tmp_path / "x.arrow"
    path.write_bytes(with_wrong_offset(stream))
    with pytest.raises(TableError, match=r"x\.arrow.*[Oo]ffset"):
        read_all(path, "arrow", worker_type=worker_type, num_workers=2 if worker_type == "process" else 0)


def test_a_wrong_index_into_a_dictionary_of_arrow_ipc_is_an_error(tmp_path: Path) -> None:
    indices = [i % 5 for i in range(ROWS)]
    column = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.array(list("abcde")))
    data = ipc_bytes(pa.table({"d": column, "n": pa.array(range(ROWS), pa.int8())}))
    place = data.index(np.array(indices, np.int32).tobytes()) + 4 * 3
    for index in (-1, 5, 1 << 30):
        (tmp_path / "x.arrow").write_bytes(data[:place] + struct.pack("<i", index) + data[place + 4 :])
        with pytest.raises(TableError, match=r"x\.arrow.*'d'"):
            read_all(tmp_path / "x.arrow", "arrow")


def test_a_record_batch_missing_from_the_arrow_ipc_footer_is_noticed(tmp_path: Path) -> None:
    data = bytearray(ipc_bytes(pa.table({"n": range(BATCHES * ROWS)})))
    (footer_bytes,) = struct.unpack_from("<i", data, len(data) - 10)
    footer = len(data) - 10 - footer_bytes
    count = data.index(struct.pack("<I", BATCHES), footer)  # the length of its list of record batches
    struct.pack_into("<I", data, count, BATCHES - 1)
    (tmp_path / "x.arrow").write_bytes(data)
    with pytest.raises(TableError, match=r"x\.arrow must be .* blocks must fill it"):
        inspect(data_file(tmp_path / "x.arrow", "arrow"))
    struct.pack_into("<I", data, count, BATCHES)
    data[count + 4 + 24 : count + 4 + 48] = data[count + 4 : count + 4 + 24]  # the first batch in place of the second
    (tmp_path / "x.arrow").write_bytes(data)
    with pytest.raises(TableError, match=r"x\.arrow must be .* blocks must fill it"):
        inspect(data_file(tmp_path / "x.arrow", "arrow"))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_blocks_fill_a_file_or_are_refused(lengths: list[int], random: Any) -> None:
    edges = np.cumsum([100, *(1000 * length for length in lengths)]).tolist()
    blocks = [Block(start, stop) for start, stop in pairwise(edges)]
    random.shuffle(blocks)
    check_blocks(blocks, 100, edges[-1] + 8)
    dropped = random.choice(blocks)
    for wrong in ([each for each in blocks if each != dropped], [*blocks, dropped]):
        with pytest.raises(ValueError, match="must fill"):
            check_blocks(wrong, 100, edges[-1] + 8)
    with pytest.raises(ValueError, match="must fill"):
        check_blocks(blocks, 100, edges[-1] - 1)


def test_a_stream_that_ends_within_a_message_or_early_is_refused(tmp_path: Path) -> None:
    data = ipc_bytes(pa.table({"n": range(BATCHES * ROWS)}), stream=True)
    end = b"\xff\xff\xff\xff\0\0\0\0"
    assert data.endswith(end)
    with pa.ipc.open_stream(io.BytesIO(data)) as reader:
        assert sum(batch.num_rows for batch in reader) == BATCHES * ROWS
    header = len(ipc_bytes(pa.table({"n": pa.array([], pa.int64())}), stream=True)) - len(end)
    one = (len(data) - len(end) - header) // BATCHES
    first = data[: header + one]
    for torn, why in (
        (data[:-1], ""),
        (first + end + data[header + one :], "end-of-stream"),
        (data[:-9], ""),
        (first[:-1], ""),
        (first + data[:4], ""),
    ):
        (tmp_path / "x.arrows").write_bytes(torn)
        with pytest.raises(TableError, match=rf"x\.arrows must be an Arrow IPC file or stream.*{why}"):
            inspect(data_file(tmp_path / "x.arrows", "arrow"))
    for whole, batches in ((data[:-8], BATCHES), (first, 1)):  # the marker is optional
        (tmp_path / "x.arrows").write_bytes(whole)
        with pytest.warns(UserWarning, match=r"x\.arrows ends without.*rows after it are missing"):
            assert inspect(data_file(tmp_path / "x.arrows", "arrow")).group_rows == (batches * ROWS,)
    (tmp_path / "x.arrows").write_bytes(data[:-8] + end[4:])  # as before Arrow 0.15
    assert inspect(data_file(tmp_path / "x.arrows", "arrow")).group_rows == (BATCHES * ROWS,)


@pytest.mark.parametrize("output", ["dict", "arrow", "torch"])
@pytest.mark.parametrize("form", ["parquet", "orc", "json"])
@pytest.mark.parametrize("kind", ["text", "text in lists", "dictionary"])
def test_invalid_utf8_text_is_an_error_that_names_file_and_column(
    tmp_path: Path, form: str, output: str, kind: str
) -> None:
    if kind == "dictionary" and form != "parquet":
        return  # only Parquet has them
    text = pa.array(["a" * 40 if kind != "dictionary" else "abc", "marker", "ü"] * 30)
    column = {"text": text, "dictionary": text.dictionary_encode()}.get(kind)
    if column is None:
        column = pa.ListArray.from_arrays(pa.array(range(91), pa.int32()), text)
    table = pa.table({"n": range(90), "s": column})
    path = tmp_path / f"x.{form}"
    if form == "parquet":
        pq.write_table(table, path, compression="none", use_dictionary=kind == "dictionary")
    elif form == "orc":
        orc.write_table(table, str(path), compression="uncompressed")
    else:
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist()), "utf-8")
    assert sum(len(batch["n"]) for batch in read_all(path, form)) == 90
    data = path.read_bytes()
    body = data[: data.rindex(b"marker") + 6]  # the last is in the statistics of some formats
    place = max(body.find(b"marker"), 0)
    path.write_bytes(data[:place] + NO_TEXT + data[place + 2 :])
    where = r"" if form == "json" else r".*'s'"  # in JSON it is found before there are columns
    with pytest.raises(TableError, match=rf"x\.{form}{where}"):
        read_all(path, form, output_format=output)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.list_(pa.string())])
def test_only_valid_text_passes(kind: pa.DataType) -> None:
    bad = pa.array([b"ok", None, NO_TEXT, b"\xc3\xa9"], pa.binary())
    good = pa.array(["ok", None, "é", ""])

    def as_kind(array: pa.Array) -> pa.Array:
        if pa.types.is_list(kind):
            return pa.ListArray.from_arrays(pa.array([0, 1, 4], pa.int32()), array.view(pa.string()))
        if pa.types.is_string_view(kind):
            return (
                array.view(pa.string()).cast(pa.string_view())
                if array is good
                else array.cast(pa.binary_view()).view(kind)
            )
        return array.cast(pa.large_binary()).view(kind) if pa.types.is_large_string(kind) else array.view(pa.string())

    for check in (sound, sound_text):
        assert check(pa.record_batch({"s": as_kind(good)})).num_rows
        assert check(pa.record_batch({"s": as_kind(good)}).slice(1)).num_rows
        assert check(pa.record_batch({"s": as_kind(good).slice(0, 0)})).num_rows == 0
        with pytest.raises(pa.ArrowInvalid, match="UTF8"):
            check(pa.record_batch({"s": as_kind(bad)}))
    assert sound_text(pa.record_batch({"s": pa.array(["é"] * 9).slice(3, 2)})).num_rows == 2


def test_a_name_with_invalid_utf8_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    data = ipc_bytes(pa.table({"outer": [{"inside": 1}] * 3}))
    (tmp_path / "x.arrow").write_bytes(data.replace(b"inside", b"in\xffide"))
    with pytest.raises(TableError, match=r"x\.arrow.*UnicodeDecodeError"):
        read_all(tmp_path / "x.arrow", "arrow")


def zigzag(number: int) -> bytes:
    """Encode an Avro long."""
    value, out = (number << 1) ^ (number >> 63), bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def avro_bytes() -> tuple[bytes, bytes, bytes]:
    """A file of one block: its header, which ends in the sync marker, the rows of the block, and the marker."""
    target = io.BytesIO()
    schema = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}
    fastavro.writer(target, fastavro.parse_schema(schema), [{"n": i} for i in range(ROWS)], codec="null")
    data = target.getvalue()
    rows = b"".join(zigzag(i) for i in range(ROWS))
    assert data.endswith(zigzag(ROWS) + zigzag(len(rows)) + rows + data[-16:])
    return data[: data.index(data[-16:]) + 16], rows, data[-16:]


def test_avro_blocks_declare_their_number_of_rows(tmp_path: Path) -> None:
    header, rows, marker = avro_bytes()
    path = tmp_path / "x.avro"

    def write(count: int) -> None:
        path.write_bytes(header + zigzag(count) + zigzag(len(rows)) + rows + marker)

    write(ROWS)
    assert sum(len(batch["n"]) for batch in read_all(path, "avro")) == ROWS
    for count in (ROWS - 1, ROWS + 1, 0, -1, 1 << 40, 1 << 62, -(1 << 62)):
        write(count)
        with pytest.raises(TableError, match=r"x\.avro"):
            read_all(path, "avro")


def test_the_rest_of_a_damaged_avro_block_is_not_the_end(tmp_path: Path) -> None:
    header, rows, marker = avro_bytes()
    path = tmp_path / "x.avro"
    path.write_bytes(header + zigzag(ROWS) + zigzag(len(rows)) + rows + marker + b"\x80")
    with pytest.raises(TableError, match=r"x\.avro must be an Avro file"):
        read_all(path, "avro")


def test_orc_stripes_must_lie_in_the_file_without_overlap() -> None:
    stripes = [Stripe(10, 3, 10, 80, 10), Stripe(10, 110, 0, 50, 0), Stripe(10, 160, 0, 40, 0)]
    check_stripes(stripes, 200)
    for start, num_bytes in ((3, 100), (150, 20), (160, 41), (1 << 63, 1)):
        with pytest.raises(ValueError, match="a stripe of"):
            check_stripes([*stripes[:2], Stripe(10, start, 0, num_bytes, 0)], 200)


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")])
def test_a_date_that_python_has_no_object_for_is_an_error_that_names_the_column(
    tmp_path: Path, kind: pa.DataType
) -> None:
    far = pa.array([1 << (30 if pa.types.is_date(kind) else 62)]).cast(
        pa.int32() if pa.types.is_date(kind) else pa.int64()
    )
    pq.write_table(pa.table({"n": [1], "at": far.cast(kind)}), tmp_path / "x.parquet")
    with pytest.raises(TableError, match=r"x\.parquet: each value of column 'at'"):
        read_all(tmp_path / "x.parquet", "parquet")
    assert len(read_all(tmp_path / "x.parquet", "parquet", output_format="torch")) == 1
