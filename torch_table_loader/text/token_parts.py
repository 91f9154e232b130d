"""Parts of a token table: the rows of a split with their text as tokens, each in a Parquet file of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from torch_table_loader.arrow.datatypes import decoded_type, is_string
from torch_table_loader.errors import ConfigError, StorageError, TableError, TableLoaderError
from torch_table_loader.fetch.fetcher import TasksAhead
from torch_table_loader.local_files import new_file
from torch_table_loader.messages import did_you_mean
from torch_table_loader.read.tokenizers import RowFaultError
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from torch_table_loader.fetch.settings import FetchSettings
    from torch_table_loader.read.tasks import TaskReader
    from torch_table_loader.read.tokenizers import Tokenizer
    from torch_table_loader.records import ReadTask

Nulls = Literal["error", "drop", "empty"]
IdType = Literal["uint16", "uint32", "int32"]

ID_TYPES: dict[str, pa.DataType] = {"uint16": pa.uint16(), "uint32": pa.uint32(), "int32": pa.int32()}


@dataclass(frozen=True, slots=True)
class TokenForm:
    """What the rows of a token table are; the fields are arguments of `tokenize_table`."""

    column: str
    ids: str
    id_type: IdType
    nulls: Nulls
    lengths: str | None = None

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the schema of a token table.

        Raises:
            ConfigError: there is no such column of text, or two columns of one name.
        """
        if self.column not in given.names:
            raise ConfigError(f"the table has no column {self.column!r}{did_you_mean(self.column, given.names)}")
        kind = given.field(self.column).type
        if not is_string(decoded_type(kind)):
            raise ConfigError(f"the column {self.column!r} must have strings to tokenize, got {kind}")
        fields = [pa.field(self.ids, self._list_type, nullable=False)]
        fields += [field for field in given if field.name != self.column]
        if self.lengths is not None:
            fields.append(pa.field(self.lengths, pa.int32(), nullable=False))
        names = [field.name for field in fields]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError(
                f"the token table would have two columns {twice[0]!r}; give the new one another name, or leave the "
                "table's own out"
            )
        return pa.schema(fields)

    @property
    def _list_type(self) -> pa.DataType:
        return pa.list_(pa.field("element", ID_TYPES[self.id_type], nullable=False))

    def apply(self, batch: pa.RecordBatch, tokenizer: Tokenizer, schema: pa.Schema) -> pa.RecordBatch:
        """Tokenize the rows of a batch.

        Raises:
            RowFaultError: a text is null, or has an id beyond the type.
            ConfigError: the tokenizer failed, or returned something else than lists of ids.
        """
        texts = batch.column(self.column)
        if texts.null_count and self.nulls == "drop":
            batch = batch.filter(pc.is_valid(texts))
        elif texts.null_count and self.nulls == "error":
            row = pc.is_null(texts).index(True).as_py()
            raise RowFaultError(row, f'the column {self.column!r} is null; pass nulls="drop" or nulls="empty"')
        lists = tokenizer.lists(batch.column(self.column).to_pylist(), self.id_type, "pass another dtype")
        ids = pa.ListArray.from_arrays(lists.offsets.cast(pa.int32()), lists.values, type=self._list_type)
        columns = {name: batch.column(name) for name in batch.schema.names} | {self.ids: ids}
        if self.lengths is not None:
            columns[self.lengths] = pc.list_value_length(ids).cast(pa.int32())
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


class PartCounts(NamedTuple):
    """What a part holds, and how many rows without text were left out."""

    documents: int = 0
    tokens: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class TextReader:
    """Reads the rows of the parts. It pickles.

    Args:
        places: delivers the ordinals of the same rows among all physical rows of the table.
        file_starts: the ordinal of each file's first row.
        tasks: what each part reads; None for nothing.
    """

    reader: TaskReader
    places: TaskReader
    file_starts: tuple[int, ...]
    file_names: tuple[str, ...]
    tasks: tuple[ReadTask | None, ...]
    fetching: FetchSettings

    def batches(self, part: int) -> Iterator[pa.RecordBatch]:
        """Yield the live rows of a part."""
        task = self.tasks[part]
        if task is None:
            return
        needs = [partial(self.reader.needs, task)]
        with closing(TasksAhead(self.reader.storage, needs, self.fetching)) as ahead, ahead.storage_of(0) as storage:
            yield from self.reader.read(task, storage)

    def name_of(self, part: int) -> str:
        """Return the file that a part reads."""
        task = self.tasks[part]
        return "" if task is None else self.file_names[task.file_index]

    def row_of(self, part: int, live: int) -> int:
        """Return the row in its file of a live row of a part, by reading the part again."""
        task = self.tasks[part]
        assert task is not None  # noqa: S101 it has rows
        for batch in self.places.read(task):
            if live < batch.num_rows:
                return int(batch.column(0)[live].as_py()) - self.file_starts[task.file_index]
            live -= batch.num_rows
        raise TableError(f"{self.name_of(part)} has fewer rows than it had a moment ago; run again")


class PartsWriter:
    """Makes the parts of a token table."""

    def __init__(self, rows: TextReader, form: TokenForm, tokenizer: Tokenizer) -> None:
        """Look at the schema, and raise what `TokenForm.schema` does."""
        self.rows, self.form, self.tokenizer = rows, form, tokenizer
        self.schema = form.schema(rows.reader.schema)

    def write(self, part: int, path: Path) -> PartCounts:
        """Write a part; the file is there when it is whole.

        Raises:
            TableError: a row that cannot be tokenized, by file and row; or the table is damaged.
            ConfigError: the tokenizer failed, or returned something else than lists of ids.
            StorageError: the file cannot be written.
        """
        try:
            with new_file(path) as (unfinished, file):
                with pq.ParquetWriter(file, self.schema, compression="zstd") as writer:
                    counts = self._write_rows(part, writer)
                file.flush()
                os.fsync(file.fileno())
                unfinished.replace(path)
        except TableLoaderError:
            raise
        except OSError as error:
            raise StorageError(f"{str(path)!r} cannot be written: {error}") from error
        return counts

    def _write_rows(self, part: int, writer: pq.ParquetWriter) -> PartCounts:
        counts, waiting, tokens = PartCounts(), list[pa.RecordBatch](), 0
        group_tokens = sizes().text_group_tokens
        for given, batch in self._tokenized(part):
            found = len(batch.column(self.form.ids).values)
            dropped = given - batch.num_rows
            counts = PartCounts(counts.documents + batch.num_rows, counts.tokens + found, counts.dropped + dropped)
            waiting.append(batch)
            tokens += found
            if tokens >= group_tokens:
                _write_group(writer, waiting)
                waiting, tokens = [], 0
        _write_group(writer, waiting)
        return counts

    def _tokenized(self, part: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield batches of tokens, and how many rows each was made of."""
        live = 0
        with closing(self.rows.batches(part)) as batches:  # type: ignore[type-var]
            for batch in batches:
                try:
                    tokenized = self.form.apply(batch, self.tokenizer, self.schema)
                except RowFaultError as fault:
                    where = f"{self.rows.name_of(part)}, row {self.rows.row_of(part, live + fault.row)}"
                    raise TableError(f"{where}: {fault.message}") from None
                yield batch.num_rows, tokenized
                live += batch.num_rows


def _write_group(writer: pq.ParquetWriter, batches: list[pa.RecordBatch]) -> None:
    rows = sum(batch.num_rows for batch in batches)
    if rows:
        writer.write_table(pa.Table.from_batches(batches), row_group_size=rows)
