"""CSV with a header: types from ``schema=`` or one parse, rows streamed in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import csv
from typing_extensions import override

from torch_table_loader.errors import TableError
from torch_table_loader.format_contracts import Traits
from torch_table_loader.read.compressed import open_text, text_bytes, text_of
from torch_table_loader.read.failures import reading
from torch_table_loader.read.reader_base import (
    SequentialFile,
    WithoutStatistics,
    one_group,
    refuse_duplicates,
    refuse_large_inference,
)
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile, FileMeta


@dataclass(frozen=True, slots=True)
class CsvReader(WithoutStatistics):
    """Reads comma-separated values with a header (RFC 4180), compressed or not; null is what pyarrow takes for null."""

    name: str = "csv"
    suffixes = (".csv",)
    traits = Traits(pruned="partitions")
    infers_types = True

    @override
    def inspect(self, storage: Storage, file: DataFile, schema: pa.Schema | None) -> FileMeta:
        with reading(storage, file):
            return _inspected(storage, file, schema)

    @override
    def open(self, storage: Storage, file: DataFile, meta: FileMeta) -> SequentialFile:
        return SequentialFile(
            storage, file, lambda source, columns: _decode(text_of(source, file), columns, meta.schema)
        )


def _inspected(storage: Storage, file: DataFile, schema: pa.Schema | None) -> FileMeta:
    try:
        if schema is None:
            refuse_large_inference(file, text_bytes(storage, file, sizes().inference_bytes))
            with open_text(storage, file) as source:
                table = csv.read_csv(source, _read_options(), _parse_options())
            refuse_duplicates(table.schema, file)
            return one_group(table.schema, table.num_rows, file)
        with open_text(storage, file) as source:
            header = csv.open_csv(source, _read_options(), _parse_options()).schema
        refuse_duplicates(header, file)
        own = [pa.field(field.name, field.type) for field in schema if field.name in header.names]
        # With no column to parse there would be no rows to count.
        known = pa.schema(own or [pa.field(header.names[0], pa.string())])
        with open_text(storage, file) as source:
            num_rows = sum(batch.num_rows for batch in _decode(source, known.names, known))
        return one_group(known, num_rows, file)
    except pa.ArrowInvalid as error:
        if "straddl" not in str(error):
            raise
        raise TableError(
            f"{file.name} must have rows of at most {sizes().csv_block_bytes} bytes, got a longer one, or an unclosed "
            "quote; write such rows as Parquet or JSON lines"
        ) from error


def _decode(source: pa.NativeFile, columns: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Stream columns; if none is asked for, the first one, since a batch needs a column to have rows."""
    read = list(columns) or schema.names[:1]
    types = {name: schema.field(name).type for name in read}
    convert = csv.ConvertOptions(column_types=types, include_columns=read)
    with csv.open_csv(source, _read_options(), _parse_options(), convert) as batches:
        yield from batches


def _read_options() -> csv.ReadOptions:
    return csv.ReadOptions(use_threads=False, block_size=sizes().csv_block_bytes)


def _parse_options() -> csv.ParseOptions:
    # Without it, a quoted line break at the edge of a block is an error or a wrong row.
    return csv.ParseOptions(newlines_in_values=True)
