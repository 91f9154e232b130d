"""Sound files that are not read, or are of another format, are not called damaged: what is wrong is said, and a way."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from tests.tables.reading import data_file
from torch_table_loader import StructuredDataset
from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.read.failures import as_reading_error

DAMAGE = re.compile("damaged|torn|write .* again")


class Keys(pe.KmsClient):  # type: ignore[misc]
    """Keeps keys in the file itself."""

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


SECRETS = pa.table({"s": ["secret"], "x": [1]})


def encrypted(path: Path, table: pa.Table = SECRETS, columns: Sequence[str] = ("s",), **options: Any) -> None:
    """Write a table, some columns of which are encrypted, and a plain footer."""
    config = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": list(columns)}, plaintext_footer=True)
    factory = pe.CryptoFactory(lambda _: Keys())
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), config)
    with pq.ParquetWriter(str(path), table.schema, encryption_properties=properties, **options) as writer:
        writer.write_table(table, row_group_size=4)


def int128(path: Path) -> None:
    """Write integers of 128 bits, as polars does; pyarrow says "Integers with more than 64 bits not implemented"."""
    table = pa.table({"x": [1]})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    data = path.read_bytes()
    assert data.count(b"\x40\0\0\0") == 2
    path.write_bytes(data.replace(b"\x40\0\0\0", b"\x80\0\0\0"))


def patched(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))


def months(path: Path) -> None:
    """Write intervals of months, which pyarrow has only of three parts."""
    table = pa.table({"x": pa.array([pa.MonthDayNano([1, 2, 3])], pa.month_day_nano_interval())})
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)
    patched(path, b"\0\2\0\xff\xff\xff\xff", b"\0\0\0\xff\xff\xff\xff")


def lzo(path: Path) -> None:
    """Write a column that says of itself that it is compressed with LZO."""
    pq.write_table(pa.table({"x": [1, 2]}), path, compression="none")
    patched(path, b"\x18\x01x\x15\x00", b"\x18\x01x\x15\x06")


OTHERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "array.json": (lambda path: path.write_text("[1, 2]"), "must be JSON objects, .* got '1'"),
    "types.json": (lambda path: path.write_text('{"x": "y"}\n{"x": 1}\n'), "must hold values of one type as 'x'"),
    "short.tab": (lambda path: path.write_text("x\ty\n1\t2\n"), "of another format, since it begins with .*format"),
    "long.tab": (lambda path: path.write_text("x\ty\n1\t2\n" * 99), "of another format, since it begins with .*format"),
    "x.parquet": (encrypted, "has encrypted columns, 's' among them; decrypt it first"),
    "lzo.parquet": (lzo, "column 'x' is compressed in a way that pyarrow does not read .*LZO.*leave such columns out"),
    "months.arrow": (months, "such as an interval .*; convert the file"),
    "x.arrow": (int128, "does not read .*64 bits.*; convert the file"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_sound_file_that_is_not_read_is_not_called_damaged(tmp_path: Path, name: str) -> None:
    write, said = OTHERS[name]
    write(tmp_path / name)
    schemas = [None, pa.schema([("x", pa.int64())])] if name == "array.json" else [None]
    for schema in schemas:
        with pytest.raises(TableError, match=rf"{name}.*{said}") as caught:
            list(StructuredDataset(str(tmp_path / name), schema=schema, num_workers=0))
        assert not DAMAGE.search(str(caught.value))


MANY = pa.table(
    {"a": range(10), "s": [f"s{x}" for x in range(10)], "n": [{"p": x, "q": [x, None]} for x in range(10)]}
    | {f"x{column}": [x * column for x in range(10)] for column in range(20)}
    | {"l": [[x] * (x % 3) for x in range(10)]}
)
COLUMNS_APART = {
    "one": (["s"], {"s"}),
    "inside": (["n.q.list.element"], {"n"}),
    "some": (["a", "l.list.element", "x3"], {"a", "l", "x3"}),
    "most": (["s", "n.p", *(f"x{column}" for column in range(20))], {"s", "n", *(f"x{c}" for c in range(20))}),
}


@pytest.mark.parametrize("which", COLUMNS_APART)
@pytest.mark.parametrize("shuffle", [False, "rows"])
def test_columns_beside_encrypted_ones_are_read(tmp_path: Path, which: str, shuffle: Any) -> None:
    leaves, hidden = COLUMNS_APART[which]
    encrypted(tmp_path / "x.parquet", MANY, leaves)
    plain = [name for name in MANY.column_names if name not in hidden]

    def read(columns: list[str] | None, **options: Any) -> pa.Table:
        given = {"num_workers": 0, "output_format": "arrow", "batch_size": 3, "shuffle": shuffle, **options}
        loader, _ = StructuredDataset.create_dataloader(tmp_path, columns=columns, **given)
        return pa.Table.from_batches(list(loader))

    assert sorted(read(plain).to_pylist(), key=repr) == sorted(MANY.select(plain).to_pylist(), key=repr)
    if "x5" in plain:
        assert read(["x5"], filters="x5 > 20 and x5 < 40").sort_by("x5")["x5"].to_pylist() == [25, 30, 35]
    for columns in (None, [min(hidden)]):
        with pytest.raises(TableError, match=r"x\.parquet has encrypted columns, .*leave them out") as caught:
            read(columns)
        assert not DAMAGE.search(str(caught.value))
    if "a" in hidden:
        with pytest.raises(TableError, match=r"encrypted columns, 'a' among them"):
            read(["s"], filters="a > 2")


def test_a_file_with_nothing_but_encrypted_columns_is_refused_at_once(tmp_path: Path) -> None:
    encrypted(tmp_path / "x.parquet", SECRETS, ["s", "x"])
    with pytest.raises(TableError, match=r"x\.parquet has encrypted columns .*decrypt it first"):
        StructuredDataset(str(tmp_path))


@pytest.mark.parametrize("count_filtered", [True, False])
def test_a_cast_that_a_filter_asks_for_is_the_fault_of_the_filter(tmp_path: Path, count_filtered: bool) -> None:
    pq.write_table(pa.table({"x": [1, 1000]}), str(tmp_path / "x.parquet"))
    filters = pc.field("x").cast(pa.int8()) > 0
    with pytest.raises(ConfigError, match=r"filters must .*1000 not in range.*cast to a type that holds all") as caught:
        list(StructuredDataset(str(tmp_path), filters=filters, count_filtered=count_filtered, num_workers=0))
    assert not DAMAGE.search(str(caught.value))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("While LZO compression is supported by the Parquet format in general, it is not"), "compressed in a"),
        (pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes, have 2147483647"), "texts of 2 GiB"),
        (pa.ArrowNotImplementedError("Nested data conversions not implemented for chunked array outputs"), "2 GiB"),
        (pa.ArrowNotImplementedError("Unsupported ORC type"), "what pyarrow does not read"),
        (pa.ArrowInvalid("Expected all lists to be of size=2 but index 2 had size=0"), "pyarrow before 26"),
        (pa.ArrowInvalid("Unrecognized type: 27"), "a type that pyarrow does not read"),
        (OSError("INT_64 can only annotate INT64"), "a type that pyarrow does not read"),
        (KeyError(21), "such as an interval"),  # Type_INTERVAL_MONTHS: pyarrow 21 does not name it
        (pa.ArrowInvalid("Length of byte array passed to Decimal128::FromBigEndian was 17"), "decimals of more bytes"),
    ],
)
def test_what_pyarrow_says_it_does_not_read_is_said_of_the_column(tmp_path: Path, error: Exception, said: str) -> None:
    (tmp_path / "x.parquet").touch()
    file = data_file(tmp_path / "x.parquet", "parquet")
    found = as_reading_error(error, file, is_local=True, group=3, column="c")
    assert re.match(rf"x\.parquet, row group 3, column 'c' .*{said}.*leave such columns out of columns=\[", str(found))
    assert isinstance(found, TableError)
    assert not DAMAGE.search(str(found))
