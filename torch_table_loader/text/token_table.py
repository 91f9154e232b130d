"""Writes a token table: part by part, in processes of several machines, and going on where it was left."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from torch_table_loader.arrow.datatypes import decoded_type
from torch_table_loader.engine.jobs.modes import stream_job
from torch_table_loader.engine.jobs.resolve import columns_of
from torch_table_loader.engine.ray_cluster import check_mark, shared_mark
from torch_table_loader.errors import ConfigError, ResumeError, StorageError, TableError, TableLoaderError, WorkerError
from torch_table_loader.local_files import new_file, read_regular, write_whole
from torch_table_loader.messages import did_you_mean, first_twice, progress_bar
from torch_table_loader.nesting import load_json
from torch_table_loader.planning.splits import SegmentTable
from torch_table_loader.ranges import TasksAhead
from torch_table_loader.records import content_key
from torch_table_loader.sizes import sizes
from torch_table_loader.system import end_with_parent
from torch_table_loader.text.chat import Chat
from torch_table_loader.text.tokenizers import Encode, Loads, RowFaultError, Tokenizer, load_tokenizer
from torch_table_loader.units import integer, one_of

if TYPE_CHECKING:
    from torch_table_loader.dataset import TableDataset
    from torch_table_loader.engine.jobs.stream_job import StreamJob
    from torch_table_loader.engine.ray_cluster import RayCluster
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.ranges import FetchSettings
    from torch_table_loader.read.tasks import TaskReader
    from torch_table_loader.records import ReadTask
    from torch_table_loader.text.tokenizers import Tokenizer

DESCRIPTION = "_tokens.json"
"""In the folder of a token table: of what it was made. Loaders leave out names that begin so."""

_FORMAT = 1

_SHARES_OF_A_CPU = 4
"""Of a cluster: a few, so that CPUs end closer together; each loads the tokenizer once."""

Nulls = Literal["error", "drop", "empty"]
IdType = Literal["uint16", "uint32", "int32"]

_MADE = pa.field("element", pa.uint8(), nullable=False)
"""A value of what a tokenizer makes beside the ids."""

ID_TYPES: dict[str, pa.DataType] = {"uint16": pa.uint16(), "uint32": pa.uint32(), "int32": pa.int32()}


@dataclass(frozen=True, slots=True)
class TokenizedShare:
    """The result of a call of `tokenize_table`.

    If the token table is not finished, other ranks are still at work. Rows without text were dropped.
    """

    path: Path
    finished: bool
    num_parts: int
    written: int
    documents: int
    tokens: int
    dropped: int


def tokenize_table(
    dataset: TableDataset,
    out: str | os.PathLike[str],
    tokenizer: str | Encode | Loads,
    *,
    column: str = "text",
    ids: str = "input_ids",
    lengths: str | None = None,
    dtype: IdType | Literal["auto"] = "auto",
    nulls: Nulls = "error",
    special_tokens: bool = False,
    num_workers: int = 1,
    cluster: RayCluster | None = None,
) -> TokenizedShare:
    """Write a table with tokens in place of text, as Parquet; a call that was interrupted may be repeated.

    Each split of the table becomes one file. The result does not depend on the number of writers, nor on interruptions.
    It is collected in the folder ``OUT.unfinished``, which becomes `out` once it is complete.

    Args:
        dataset: the table, not shuffled; its columns, filter and splits are those of the token table. Its rank
            writes every ``num_ranks``-th file, and its `show_progress` draws a bar.
        out: a folder that all ranks see, and that does not exist yet.
        tokenizer: see `load_tokenizer`. Of a `Chat`, the result has ``assistant_mask`` after the tokens.
        column: the column of text or conversations, which the result does not have.
        ids: the name of the column of tokens, which comes first.
        lengths: the name of a last column with the number of tokens of each row; None for none.
        dtype: of a token: "uint16", "uint32" or "int32"; "auto" is uint16 for a tokenizer that is known to have no
            id above 65,535, else int32.
        nulls: what to do with a row without text: "error" refuses it, "drop" leaves it out, "empty" gives it no tokens.
        special_tokens: whether tokenizers of Hugging Face add their special tokens, such as begin and end.
        num_workers: processes; 1 tokenizes in this one.
        cluster: the cluster whose CPUs do the work instead; every node must see `out`, and have what `tokenizer` names.

    Raises:
        ConfigError: an option is wrong, or `out` is something else.
        ResumeError: `out` was begun with another table, tokenizer or options; `nulls` may change from "error".
        TableError: a row that cannot be tokenized, by file and row; or the table is damaged.
        StorageError: `out` cannot be written, or the table cannot be read.
        WorkerError: a process was killed.
    """
    loaded = load_tokenizer(tokenizer, special_tokens=special_tokens)
    one_of(get_args(Nulls), "nulls", nulls)
    form = TokenForm(column, ids, _id_type(dtype, loaded), nulls, lengths, getattr(tokenizer, "beside", ()))
    num_workers = integer("num_workers", num_workers, 1, 1 << 10)
    job = _job_of(dataset)
    reader, identity = _plan(job, form, loaded)
    writer = PartsWriter(reader, form, loaded)
    folder = _Folder(_local_folder(out), len(reader.tasks))
    if folder.begin(identity):
        return TokenizedShare(folder.path, True, folder.num_parts, 0, *PartCounts())
    todo = [part for part in range(job.rank, folder.num_parts, job.topology.num_ranks) if not folder.has(part)]
    source = (tokenizer, special_tokens)
    if cluster is None:
        written = _written(writer, source, folder, todo, min(num_workers, len(todo)))
    else:
        written = _written_over(cluster, writer, source, folder, todo)
    done = _summed(written, len(todo), job.options)
    return TokenizedShare(folder.path, folder.finish(), folder.num_parts, len(todo), *done)


def _summed(written: Iterator[PartCounts], num_parts: int, options: LoaderOptions) -> PartCounts:
    """Return what parts hold together, which are written meanwhile; a bar shows how far they are."""
    done = PartCounts()

    def counted() -> Iterator[None]:
        nonlocal done
        for counts in written:
            done = PartCounts(*map(sum, zip(done, counts, strict=True)))
            yield

    bar = progress_bar(
        "tokenizing",
        show=options.show_progress,
        interval=options.progress_interval,
        beside=lambda: f"{done.tokens:,} tokens",
    )
    for _ in bar(counted(), num_parts):
        pass
    return done


def chat_of(tokenizer: str, template: str | None, tools: str | None) -> Chat:
    """Return what tokenizes conversations, as the command line asks for it."""
    return Chat(tokenizer, template, tools=tools)


def _job_of(dataset: TableDataset) -> StreamJob:
    if dataset.options.pack is not None:
        raise ConfigError("pack= packs tokens, which do not exist yet; pass it to the dataset of the token table")
    job = stream_job(dataset.job)
    if job is None or not job.strategy.cuts:
        raise ConfigError(
            "a table to tokenize is read split by split, in its order; leave shuffle= out, and a split_strategy= that "
            "deals splits to ranks by itself"
        )
    return job


def _plan(job: StreamJob, form: TokenForm, tokenizer: Tokenizer) -> tuple[TextReader, dict[str, Any]]:
    """Return what reads the parts, and what a token table is bound to."""
    table, options = job.table, job.options
    splits = job.strategy.cut(table.layout)
    segments = SegmentTable.of(splits, filtered=table.filters is not None)
    tasks = tuple(segments.task(split, 0, -1) for split in range(len(splits)))
    max_rows = sizes().text_batch_rows
    reader = TextReader(
        table.reader(columns_of(table, options), row_ids=options.row_id, max_rows=max_rows),
        table.reader((), row_ids=True, max_rows=max_rows),
        tuple(table.layout.file_starts.tolist()),
        tuple(file.name for file in table.files),
        tasks or (None,),
        job.fetching,
    )
    identity = {
        "format": _FORMAT,
        "table": content_key(table.fingerprint, table.files),
        "snapshot": table.snapshot_id,
        "filter": table.filter_key,
        "columns": [f"{field.name}: {field.type}" for field in reader.reader.schema],
        "splits": splits.digest(),
        "tokenizer": tokenizer.name,
        "text": form.column,
        "nulls": form.nulls,
        "tokens": f"{form.ids}: {form.id_type}",
        "lengths": form.lengths,
    }
    return reader, identity


def _id_type(dtype: str, tokenizer: Tokenizer) -> IdType:
    known = tokenizer.vocabulary
    if dtype == "auto":
        if known is not None and known <= 1 << 16:
            return "uint16"
        return "int32"
    found: IdType = one_of(("auto", *get_args(IdType)), "dtype", dtype)
    if known is not None and known > 1 << (ID_TYPES[dtype].bit_width - (dtype == "int32")):
        raise ConfigError(f"the tokenizer {tokenizer.name!r} has ids up to {known - 1}, which {dtype} does not hold")
    return found


def _local_folder(out: str | os.PathLike[str]) -> Path:
    if "://" in str(out):
        raise ConfigError(
            "out must be a folder of a file system, in which files can be renamed, got a URL; copy the folder that "
            "this makes to the URL"
        )
    return Path(out).expanduser().absolute()


class _Folder:
    """The folder of a token table; until the table is whole, its parts are in a folder beside it."""

    def __init__(self, path: Path, num_parts: int) -> None:
        self.path = path
        self.num_parts = num_parts
        self._unfinished = path.with_name(f"{path.name}.unfinished")

    def part(self, number: int) -> Path:
        """Return the path of an unfinished table's part."""
        return self._unfinished / self._name(number)

    def _name(self, number: int) -> str:
        return f"part-{number:0{max(5, len(str(self.num_parts - 1)))}d}.parquet"

    def has(self, number: int) -> bool:
        """Return whether a part is there; if so, it is whole."""
        return self.part(number).exists()

    def begin(self, identity: Mapping[str, Any]) -> bool:
        """Make the folder, or look whether it was made for the same; return whether the table is finished."""
        try:
            if self.path.exists() and not (self.path.is_dir() and not any(self.path.iterdir())):
                self._compare(self.path, identity)
                return True
            self._unfinished.mkdir(parents=True, exist_ok=True)
            description = self._unfinished / DESCRIPTION
            if not description.exists():
                with new_file(description) as (written, file):
                    file.write(_described(identity))
                    file.close()
                    with suppress(FileExistsError):  # another rank was faster
                        os.link(written, description)
            self._take_over(description, identity)
            self._compare(self._unfinished, identity)
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"the token table {str(self.path)!r} cannot be written: {error}") from error
        return False

    def _take_over(self, description: Path, identity: Mapping[str, Any]) -> None:
        """Go on with a table that was begun with nulls="error": its parts have no such rows, and suit any `nulls`."""
        with suppress(FileNotFoundError, ValueError):  # which `_compare` tells
            found = load_json(read_regular(description), str(description))
            if found != identity and found == {**identity, "nulls": "error"}:
                write_whole(description, _described(identity))

    def _compare(self, folder: Path, identity: Mapping[str, Any]) -> None:
        try:
            found = load_json(read_regular(folder / DESCRIPTION), str(folder / DESCRIPTION))
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:
            raise ConfigError(
                f"{str(folder)!r} already exists, but is not a token table that was begun here; name another folder"
            ) from error
        differ = [
            f"{name} was {found.get(name)!r}, is {value!r}"
            for name, value in identity.items()
            if found.get(name) != value
        ]
        if differ:
            raise ResumeError(
                f"{str(folder)!r} is of another table, tokenizer or options: {'; '.join(differ)}; run as before, name "
                "another folder, or remove that one"
            )

    def finish(self) -> bool:
        """Give the folder its name, if all parts are there; return whether it has it."""
        try:
            names = set()
            if self._unfinished.exists():
                names = {path.name for path in self._unfinished.iterdir()}
            if names and not names.issuperset(map(self._name, range(self.num_parts))):
                return False
            with suppress(FileNotFoundError):  # another rank was faster
                self._unfinished.rename(self.path)
            for left in self.path.glob(".*.tmp"):  # of processes that were killed
                left.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"the token table {str(self.path)!r} cannot be finished: {error}") from error
        return True


def _described(identity: Mapping[str, Any]) -> bytes:
    return json.dumps(identity, indent=1).encode()


_Source = tuple[str | Encode | Loads, bool]
"""The arguments of `load_tokenizer`: what it loads need not pickle."""


def _written(
    writer: PartsWriter, source: _Source, folder: _Folder, parts: Sequence[int], num_workers: int
) -> Iterator[PartCounts]:
    """Write parts, and yield what each holds when it is there."""
    if num_workers <= 1:
        for part in parts:
            yield writer.write(part, folder.part(part))
        return
    rows = replace(writer.rows, fetching=writer.rows.fetching.shared_by(num_workers))
    arguments = (rows, writer.form, source)
    # Spawned: threads of pyarrow and of object stores do not survive a fork.
    with ProcessPoolExecutor(num_workers, multiprocessing.get_context("spawn"), _begin_worker, arguments) as pool:
        try:
            waiting = [pool.submit(_write_part, part, folder.part(part)) for part in parts]
            for written in as_completed(waiting):
                yield written.result()
        except BrokenProcessPool as error:
            raise WorkerError(
                "a process that tokenizes ended before its work did; if it was killed for memory, lower num_workers. "
                "Run again to continue where it stopped"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _written_over(
    cluster: RayCluster, writer: PartsWriter, source: _Source, folder: _Folder, parts: Sequence[int]
) -> Iterator[PartCounts]:
    """Write parts on the nodes of a cluster, and yield what each holds when its share is there."""
    tasks = min(len(parts), _SHARES_OF_A_CPU * cluster.cpus)
    with shared_mark(folder.path.parent) as mark:
        shared = cluster.share((writer.rows, writer.form, source, folder, str(mark)))
        for _, written in cluster.run(_write_share, [(shared, list(parts[task::tasks])) for task in range(tasks)]):
            yield from written


def _write_share(shared: tuple[TextReader, TokenForm, _Source, _Folder, str], parts: Sequence[int]) -> list[PartCounts]:
    """Write parts on a node; one whose task was lost with its node may be there already, and is written again."""
    rows, form, (given, special_tokens), folder, mark = shared
    check_mark(mark)
    writer = PartsWriter(rows, form, load_tokenizer(given, special_tokens=special_tokens))
    return [writer.write(part, folder.part(part)) for part in parts]


_WRITERS: list[PartsWriter] = []
"""Of this worker process."""


def _begin_worker(rows: TextReader, form: TokenForm, source: _Source) -> None:
    """Prepare a worker process, which ends with the process that began it."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent says what Ctrl-C means
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the workers take the CPUs
    given, special_tokens = source
    _WRITERS[:] = [PartsWriter(rows, form, load_tokenizer(given, special_tokens=special_tokens))]


def _write_part(part: int, path: Path) -> PartCounts:
    return _WRITERS[0].write(part, path)


@dataclass(frozen=True, slots=True)
class TokenForm:
    """What the rows of a token table are; the fields are arguments of `tokenize_table`."""

    column: str
    ids: str
    id_type: IdType
    nulls: Nulls
    lengths: str | None = None
    beside: tuple[str, ...] = ()

    def schema(self, given: pa.Schema, tokenizer: Tokenizer) -> pa.Schema:
        """Return the schema of a token table.

        Raises:
            ConfigError: there is no such column of text, or two columns of one name.
        """
        for name in (self.column, *self.beside):
            if name not in given.names:
                raise ConfigError(f"the table has no column {name!r}{did_you_mean(name, given.names)}")
        kind = given.field(self.column).type
        if (refused := tokenizer.refuses(decoded_type(kind))) is not None:
            raise ConfigError(f"the column {self.column!r} {refused}, got {kind}")
        fields = [pa.field(self.ids, self._list_type, nullable=False)]
        fields += [pa.field(name, pa.list_(_MADE), nullable=False) for name in tokenizer.makes]
        fields += [field for field in given if field.name not in (self.column, *self.beside)]
        if self.lengths is not None:
            fields.append(pa.field(self.lengths, pa.int32(), nullable=False))
        if (twice := first_twice(field.name for field in fields)) is not None:
            raise ConfigError(
                f"the token table would have two columns {twice!r}; give the new one another name, or leave the "
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
        given = [batch.column(name).to_pylist() for name in (self.column, *self.beside)]
        lists, *masks = tokenizer.columns(given, self.id_type, "pass another dtype")
        offsets = lists.offsets.cast(pa.int32())
        ids = pa.ListArray.from_arrays(offsets, lists.values, type=self._list_type)
        columns = {name: batch.column(name) for name in batch.schema.names} | {self.ids: ids}
        for name, mask in zip(tokenizer.makes, masks, strict=True):
            columns[name] = pa.ListArray.from_arrays(offsets, mask.values, type=pa.list_(_MADE))
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
        if task is None:
            return ""
        return self.file_names[task.file_index]

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
        self.schema = form.schema(rows.reader.schema, tokenizer)

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
