"""What a store should contain, as a value, and the names of its files."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa

from torch_table_loader.sizes import sizes
from torch_table_loader.store.record_layout import WIDE_BYTES, RecordLayout

FORMAT = 3
"""Increase it when the files' layout changes: names of stores contain it."""

FLAT_FORMAT = 4
"""The same for stores that keep lists flat, such as tokens of documents."""

MANIFEST = "manifest.json"
RECORDS = "records.bin"
NULLS = "nulls.bin"
IDS = "row_ids.bin"
LENGTHS = "lengths.bin"
CODES = "codes.bin"
WORDS = "words.arrow"
PARTS = "parts"
WIDE_LENGTHS = f"{PARTS}/lengths.bin"
"""The lengths of lists while a store is built, each of `WIDE_BYTES`."""
LEASES = "leases"


@dataclass(frozen=True, eq=False)
class StoreSpec:
    """What a store should contain.

    Args:
        filters: key of the row filter; None without one.
        chunk_rows: live rows of each chunk, in row order; a builder makes one chunk at a time.
        keeps_ids: whether row ids are stored, because they are not the places.
        variable_bytes: estimated bytes of the columns of variable width.
        made: key of what was made from the rows before they were stored; None if they are the table's rows.
        flat: number of leading columns whose lists are kept flat; see `RecordLayout`.
    """

    table: str
    filters: str | None
    schema: pa.Schema
    chunk_rows: tuple[int, ...]
    keeps_ids: bool = False
    variable_bytes: int = 0
    made: str | None = None
    flat: int = 0

    @cached_property
    def layout(self) -> RecordLayout:
        """The layout of the records."""
        return RecordLayout(self.schema, self.flat)

    @property
    def format(self) -> int:
        """The version of the file format."""
        return FLAT_FORMAT if self.flat else FORMAT

    @cached_property
    def name(self) -> str:
        """The store's folder name: the same for every run over the same table, columns and filter."""
        made = () if self.made is None else (self.made,)
        flat = (self.flat,) if self.flat else ()
        kept = (encode_schema(self.schema), self.chunk_rows, self.keeps_ids)
        key = (self.format, self.table, self.filters, *kept, *made, *flat)
        return f"rows-{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}"

    @cached_property
    def chunk_starts(self) -> tuple[int, ...]:
        """The first row of each chunk, and the row after the last."""
        return (0, *accumulate(self.chunk_rows))

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.chunk_starts[-1]

    @property
    def num_bytes(self) -> int:
        """Bytes that the store needs, with the estimate for columns of variable width."""
        return self.num_rows * (self.layout.width + 8 * self.keeps_ids) + self.variable_bytes

    @property
    def most_shared_bytes(self) -> int:
        """The most bytes of what all lanes need whole: lengths of flat lists with their sums, and distinct strings."""
        lengths = self.num_rows * (WIDE_BYTES + 1) if self.flat else 0
        return lengths + min(self.variable_bytes, sizes().store_word_bytes)


def encode_schema(schema: pa.Schema) -> str:
    """Write a schema as text, without its metadata."""
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode("ascii")


def decode_schema(text: str) -> pa.Schema:
    """Read what `encode_schema` wrote."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def heap_file(chunk: int) -> str:
    """Return the name of the heap of a chunk."""
    return f"heap-{chunk:06}.arrow"


def values_file(chunk: int) -> str:
    """Return the name of the file with the values of a chunk's lists."""
    return f"values-{chunk:06}.bin"


def chunk_codes_file(chunk: int) -> str:
    """Return the name of the file with the codes of a chunk's strings while a store is built."""
    return f"{PARTS}/{chunk:06}.arrow"


def part_file(place: Path, chunk: int) -> Path:
    """Return the path of the file that records a finished chunk."""
    return place / PARTS / f"{chunk:06}.json"


@dataclass(frozen=True, slots=True)
class CodesPart:
    """The codes of the strings that repeat, which a store keeps beside its heaps.

    Args:
        nullable: which of them contain a null.
        codes: XXH3 hash of the file of codes.
        words: XXH3 hash of the file of the distinct strings.
    """

    columns: tuple[int, ...]
    nullable: tuple[bool, ...]
    codes: int
    words: int

    def to_json(self) -> list[Any]:
        """Write as plain data."""
        return [list(self.columns), list(self.nullable), self.codes, self.words]

    @classmethod
    def from_json(cls, data: Any) -> CodesPart:
        """Read what `to_json` wrote. Raises ValueError or TypeError if the data is malformed."""
        columns, nullable, codes, words = data
        return cls(tuple(columns), tuple(nullable), codes, words)


@dataclass(frozen=True, slots=True)
class Part:
    """A finished chunk.

    Args:
        nulls: XXH3 hash of its records of nulls; None if it has no null.
        ids: XXH3 hash of its row ids; None if they are not stored.
        heap: XXH3 hash of its heap file; None if there is none.
        heap_bytes: bytes of that file.
        values: XXH3 hash of the values of its lists; None if none is kept flat.
    """

    rows: int
    records: int
    nulls: int | None
    ids: int | None
    heap: int | None
    heap_bytes: int
    null_columns: tuple[int, ...]
    values: int | None = None
    num_values: int = 0

    def to_json(self) -> list[Any]:
        """Write as plain data."""
        return [
            self.rows,
            self.records,
            self.nulls,
            self.ids,
            self.heap,
            self.heap_bytes,
            list(self.null_columns),
            *(() if self.values is None else (self.values, self.num_values)),
        ]

    @classmethod
    def from_json(cls, data: Any) -> Part:
        """Read what `to_json` wrote. Raises ValueError or TypeError if the data is malformed."""
        rows, records, nulls, ids, heap, heap_bytes, columns, *values = data
        return cls(rows, records, nulls, ids, heap, heap_bytes, tuple(columns), *values)
