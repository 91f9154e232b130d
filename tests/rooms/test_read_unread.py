"""Sound files that are not read, or are of another format, are not called damaged: what is wrong is said, and a way."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path

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


def encrypted(path: Path) -> None:
    """Write two columns, one of them encrypted, and a plain footer."""
    config = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["s"]}, plaintext_footer=True)
    factory = pe.CryptoFactory(lambda _: Keys())
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), config)
    table = pa.table({"s": ["secret"], "x": [1]})
    with pq.ParquetWriter(str(path), table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)


def int128(path: Path) -> None:
    """Write integers of 128 bits, as polars does; pyarrow says "Integers with more than 64 bits not implemented"."""
    table = pa.table({"x": [1]})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    data = path.read_bytes()
    assert data.count(b"\x40\0\0\0") == 2
    path.write_bytes(data.replace(b"\x40\0\0\0", b"\x80\0\0\0"))


OTHERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "array.json": (lambda path: path.write_text("[1, 2]"), "must be JSON objects, .* got '1'"),
    "types.json": (lambda path: path.write_text('{"x": "y"}\n{"x": 1}\n'), "must hold values of one type as 'x'"),
    "short.tab": (lambda path: path.write_text("x\ty\n1\t2\n"), "of another format, since it begins with .*format"),
    "long.tab": (lambda path: path.write_text("x\ty\n1\t2\n" * 99), "of another format, since it begins with .*format"),
    "x.parquet": (encrypted, "has encrypted columns .* decrypt it first"),
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
        (pa.ArrowInvalid("Unrecognized type: 27"), "a type that pyarrow does not read"),
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
