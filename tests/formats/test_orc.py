from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc

from tests.effort import daily
from tests.launchers.sandbox import Sandbox
from tests.tables.reading import LocalStorage, all_batches, data_file, inspect
from torch_table_loader import StructuredDataset
from torch_table_loader.errors import TableError
from torch_table_loader.extend import reader_for
from torch_table_loader.formats.orc.orc import read_tail
from torch_table_loader.formats.orc.orc_encodings import are_within, bounds_of, decompressed
from torch_table_loader.sizes import small_sizes


@pytest.mark.parametrize("compression", ["uncompressed", "zlib", "snappy", "lz4", "zstd"])
def test_stripe_rows_come_from_the_footer_under_every_compression(tmp_path: Path, compression: str) -> None:
    table = pa.table({f"column_{i}": np.random.default_rng(i).integers(0, 1 << 40, 40_000) for i in range(6)})
    path = tmp_path / "x.orc"
    orc.write_table(table, str(path), compression=compression, stripe_size=1 << 17, batch_size=1024)
    file = data_file(path, "orc")
    storage = LocalStorage(counting=True)
    meta = reader_for("orc").inspect(storage, file, None)
    handle = orc.ORCFile(str(path))
    assert handle.nstripes > 3
    assert meta.group_rows == tuple(
        handle.read_stripe(i, columns=["column_0"]).num_rows for i in range(handle.nstripes)
    )
    assert 0 < sum(meta.group_bytes) <= file.version.num_bytes
    assert len(storage.log) == 1
    got = pa.Table.from_batches(all_batches(file, meta, ["column_3"], range(1, 3), max_rows=5000))
    start = meta.group_rows[0]
    assert got["column_3"].to_pylist() == table["column_3"][start : start + sum(meta.group_rows[1:3])].to_pylist()


def test_a_footer_longer_than_the_first_read_is_fetched_whole(tmp_path: Path) -> None:
    table = pa.table({f"c{i}_{np.random.default_rng(i).bytes(60).hex()}": [1, 2] for i in range(900)})
    path = tmp_path / "x.orc"
    orc.write_table(table, str(path), compression="uncompressed")
    meta = inspect(data_file(path, "orc"))
    assert meta.group_rows == (2,)
    assert meta.schema.equals(table.schema)


@pytest.mark.parametrize("compression", ["uncompressed", "zlib", "snappy", "lz4", "zstd"])
def test_a_footer_that_is_too_large_is_refused_before_it_is_decompressed(tmp_path: Path, compression: str) -> None:
    """Statistics have the least and the greatest text whole, of which a few bytes may be stored."""
    path = tmp_path / "x.orc"
    orc.write_table(pa.table({"s": ["x" * 3_000_000]}), str(path), compression=compression)
    with (
        small_sizes(orc_footer_bytes=1 << 22),
        pytest.raises(TableError, match=r"x\.orc.*footer may come to [56].*MiB"),
    ):
        inspect(data_file(path, "orc"))
    with small_sizes(orc_footer_bytes=1 << 23):
        assert inspect(data_file(path, "orc")).group_rows == (1,)


def test_a_damaged_stripe_names_file_and_row_group(tmp_path: Path) -> None:
    path = tmp_path / "x.orc"
    table = pa.table({"a": np.random.default_rng(0).random(50_000), "b": np.arange(50_000)})
    orc.write_table(table, str(path), compression="zstd", stripe_size=1 << 17, batch_size=1024)
    meta = inspect(data_file(path, "orc"))
    raw = bytearray(path.read_bytes())
    start = meta.group_bytes[0]
    raw[start + 10 : start + meta.group_bytes[1]] = bytes(meta.group_bytes[1] - 10)
    path.write_bytes(raw)
    dataset = StructuredDataset(str(path), num_workers=0)
    with pytest.raises(TableError, match=r"x\.orc, row group 1"):
        list(dataset)


@given(st.binary(max_size=300))
def test_invalid_footers_are_never_accepted(data: bytes) -> None:
    tail = data + b"\x03" + b"\x00" * 3
    with pytest.raises(ValueError, match=r"postscript|footer|number|field|type"):
        read_tail(pa.BufferReader(tail))


# What a stripe says of its sizes


def streams_of(data: bytes, column: int) -> dict[int, tuple[int, int]]:
    """Where the streams of a column of the first stripe are, by kind."""
    source = pa.BufferReader(data)
    tail = read_tail(source)
    return dict(tail.check.columns_of(source, tail.stripes[0])[column].streams)


def numbers() -> dict[str, list[int]]:
    random = np.random.default_rng(7)
    return {
        "small": random.integers(-5, 6, 3000).tolist(),
        "wide": random.integers(-(1 << 62), 1 << 62, 3000).tolist(),
        "outliers": [1 << 40 if i % 37 == 5 else i % 20 for i in range(3000)],
        "negative outliers": [-(1 << 20) if i % 91 == 5 else i % 3 for i in range(3000)],
        "far outliers": [10**9 if i % 600 == 599 else 1000 + i % 3 for i in range(3000)],
        "steps": [7 * i for i in range(3000)],
        "steps down": [-7 * i for i in range(3000)],
        "growing steps": [i * i for i in range(3000)],
        "shrinking steps": [-i * i + i % 3 for i in range(3000)],
        "one": [5],
        "repeats": [1 if i % 5 else 9 for i in range(3000)],
    }


@pytest.mark.parametrize("name", numbers())
@pytest.mark.parametrize("version", ["0.11", "0.12"])
@pytest.mark.parametrize("compression", ["uncompressed", "zlib", "snappy", "lz4", "zstd"])
@daily(40)
def test_bounds_of_runs_hold_and_are_exact_where_asked(name: str, version: str, compression: str) -> None:
    values = numbers()[name]
    target = pa.BufferOutputStream()
    lengths = [abs(value) % 300 for value in values]
    table = pa.table({"x": values, "s": ["y" * length for length in lengths]})
    orc.write_table(table, target, compression=compression, file_version=version)
    data = target.getvalue().to_pybytes()
    source = pa.BufferReader(data)
    tail = read_tail(source)
    check = tail.check
    check.check(source, tail.stripes[0], ["x", "s"])
    for column, kind, signed, expected in ((1, 1, True, values), (2, 2, False, lengths)):
        start, length = streams_of(data, column)[kind]
        stored = decompressed(data[start : start + length], *check.chunks)
        loose, exact = (
            bounds_of(stored, version=1 if version == "0.11" else 2, signed=signed, exact=how) for how in (False, True)
        )
        assert exact == (len(expected), min(0, *expected), max(0, *expected), sum(expected))
        assert loose.num_values == exact.num_values
        assert loose.least <= exact.least <= exact.most <= loose.most
        assert loose.total >= exact.total
        if not signed and version == "0.12":
            assert are_within(stored, exact.most)
            assert exact.most == 0 or not are_within(stored, exact.most - 1)


def giant(column: int, kind: int, value: bytes) -> Any:
    """Put a number in place of the first ones of a stream."""

    def spoil(data: bytes) -> bytes:
        start, length = streams_of(data, column)[kind]
        assert length >= len(value)
        return data[:start] + value + data[start + len(value) :]

    return spoil


REPEATS = b"\x3f"  # ten times the same number of eight bytes
DAMAGED: dict[str, tuple[Any, str]] = {
    "a giant text": (giant(1, 2, REPEATS + (1 << 45).to_bytes(8, "big")), "lengths of column 1 are .* add up to"),
    "a negative text": (giant(1, 2, REPEATS + b"\xff" * 8), "lengths of column 1 are"),
    "giant lists": (
        giant(2, 2, REPEATS + (1 << 40).to_bytes(8, "big")),
        "(lengths of column 2 are|a run of integers ends after)",
    ),
    "digits for ever": (giant(4, 5, b"\xc1\xff\x7f\x00"), "decimals of column 4 have -64 to"),
    "a zone elsewhere": (lambda data: data.replace(b"GMT", b"../"), r"the stripe's time zone is b'\.\./'"),
}


def read_column(path: str) -> int:
    loader, _ = StructuredDataset.create_dataloader(path, "orc", num_workers=0, output_format="arrow")
    return sum(batch.num_rows for batch in loader)


def test_sizes_that_cannot_be_are_errors_and_end_no_process(tmp_path: Path) -> None:
    rows = range(3000)
    table = pa.table(
        {
            "s": [f"{i * i}" * (i % 7) for i in rows],
            "l": [list(range(i % 5)) for i in rows],
            "d": pa.array(rows, pa.int64()).cast(pa.decimal128(24, 2)),
        }
    )
    orc.write_table(table, str(tmp_path / "x.orc"), compression="uncompressed")
    sound = (tmp_path / "x.orc").read_bytes()
    with Sandbox(__name__) as sandbox:  # which bounds memory and time
        assert sandbox.run(read_column, str(tmp_path / "x.orc")).value == 3000
        for name, (spoil, said) in DAMAGED.items():
            (tmp_path / "x.orc").write_bytes(spoil(sound))
            outcome = sandbox.run(read_column, str(tmp_path / "x.orc"))
            assert (outcome.kind, outcome.error) == ("ours", "TableError"), (name, outcome)
            assert re.search(rf"x\.orc, row group 0.*{said}", outcome.text), (name, outcome.text)


def test_chunks_longer_than_any_writer_makes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.orc"
    orc.write_table(pa.table({"a": [1]}), str(path), compression="zlib")
    data = path.read_bytes()
    assert data.count(b"\x18\x80\x80\x04") == 1
    postscript = data[-1 - data[-1] : -1].replace(b"\x18\x80\x80\x04", b"\x18\x80\x80\x80\x80\x80\x80\x04")
    path.write_bytes(data[: -1 - data[-1]] + postscript + bytes([len(postscript)]))
    with pytest.raises(
        TableError, match=r"x\.orc must be an ORC file, got one that does not parse \(the postscript says"
    ):
        read_column(str(path))


@pytest.mark.parametrize("time", ["9999-12-31T00:00:00", "0001-01-01T00:00:00"])
def test_a_time_that_nanoseconds_do_not_hold_is_no_damage(tmp_path: Path, time: str) -> None:
    path = tmp_path / "x.orc"
    times = pa.array([time]).cast(pa.timestamp("us"))
    orc.write_table(pa.table({"ts": times, "v": [1]}), str(path))
    with pytest.raises(
        TableError, match=r"x\.orc.*column 'ts' holds a time outside of the years 1677 to 2262"
    ) as caught:
        list(StructuredDataset(str(path), num_workers=0))
    assert "damaged" not in str(caught.value)
    assert next(iter(StructuredDataset(str(path), columns=["v"], num_workers=0)))["v"].tolist() == [1]


def with_postscript(path: Path, spoil: Any) -> None:
    data = path.read_bytes()
    postscript = spoil(data[-1 - data[-1] : -1])
    path.write_bytes(data[: -1 - data[-1]] + postscript + bytes([len(postscript)]))


@pytest.mark.parametrize("compression", ["uncompressed", "zlib"])
def test_the_postscript_may_lack_the_magic_that_the_file_begins_with(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "x.orc"
    orc.write_table(pa.table({"a": range(3000)}), str(path), compression=compression)
    with_postscript(path, lambda postscript: postscript.removesuffix(b"\x82\xf4\x03\x03ORC"))
    (batch,) = StructuredDataset(str(path), batch_size=3000, num_workers=0)
    assert batch["a"].tolist() == list(range(3000))
    path.write_bytes(b"PAR" + path.read_bytes()[3:])
    with pytest.raises(TableError, match=r"x\.orc must be an ORC file.*does not say ORC"):
        read_column(str(path))


def test_lzo_is_said_and_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.orc"
    orc.write_table(pa.table({"a": [1]}), str(path), compression="zlib")
    with_postscript(path, lambda postscript: postscript.replace(b"\x10\x01", b"\x10\x03", 1))
    with pytest.raises(TableError, match=r"x\.orc.*compressed with LZO, which is not read; convert it") as caught:
        read_column(str(path))
    assert not re.search("damaged|torn", str(caught.value))


def in_zone(path: Path, zone: bytes) -> None:
    """Say that the one stripe of a file without compression, which says GMT, was written in a zone."""
    data = path.read_bytes()
    tail = read_tail(pa.BufferReader(data))
    (stripe,) = tail.stripes
    assert data.count(b"\x03GMT") == 1
    more = len(zone) - 3
    place = data.index(b"\x03GMT")
    data = data[:place] + bytes([len(zone)]) + zone + data[place + 4 :]
    old = bytes([0x20, stripe.footer_bytes])  # the field of a stripe that says how long its footer is
    footer = data.rindex(b"\x08" + bytes([stripe.start]) + b"\x10")
    at = data.index(old, footer)
    path.write_bytes(data[: at + 1] + bytes([stripe.footer_bytes + more]) + data[at + 2 :])


@pytest.mark.parametrize(("zone", "hours"), [("Asia/Shanghai", 8), ("America/New_York", -5), ("Etc/UTC", 0)])
@pytest.mark.parametrize("nested", [False, True])
def test_times_near_1970_are_right_in_every_zone(tmp_path: Path, zone: str, hours: int, nested: bool) -> None:
    # What a writer stores of an instant: its seconds, cut towards 1970, since 2015 on the clock of its zone.
    # The last second before 1970 is not told from the first one after it.
    instants = [-30_000, -21_600, -7713, -2, 0, 1, 7200, 17_999, 18_001, 30_000]
    rest = [0, 500_000, 883_873_000, 999_999, 1_000_000, 999_999_999]
    expected = [(at + hours * 3600) * 10**9 + more for at in instants for more in rest]
    # The writer in GMT cuts by the same rule, and has no zone: its input is what makes it store the same numbers.
    stored = [at + (at < 0 and more > 999_999) + hours * 3600 for at in instants for more in rest]
    given = [
        (at - (at < 0 and more > 999_999)) * 10**9 + more for at, more in zip(stored, rest * len(instants), strict=True)
    ]
    times = pa.array(given, pa.timestamp("ns"))
    column = pa.array([[each] for each in times], pa.list_(pa.timestamp("ns"))) if nested else times
    path = tmp_path / "x.orc"
    orc.write_table(pa.table({"t": column}), str(path), compression="uncompressed")
    in_zone(path, zone.encode())
    (batch,) = StructuredDataset(str(path), output_format="arrow", num_workers=0)
    found = batch["t"].flatten() if nested else batch["t"]
    assert found.cast(pa.int64()).to_pylist() == expected
