"""Finds, builds and opens a table's row store, once a process and not before its rows are wanted."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.types as kinds
from torch.utils.data import get_worker_info

from torch_table_loader.arrow.datatypes import is_text, is_variable, width_of
from torch_table_loader.engine.machine import available_memory, place_on_this_node, ranks_on_this_node, usable_cpus
from torch_table_loader.engine.sizing import LANE_COPIES
from torch_table_loader.errors import ConfigError, OutOfMemoryError, StorageError
from torch_table_loader.forks import OfProcess
from torch_table_loader.local_files import check_owned
from torch_table_loader.messages import titled, warn_caller
from torch_table_loader.option_values import anywhere
from torch_table_loader.planning.splits import Chunks
from torch_table_loader.ranges import TasksAhead, far
from torch_table_loader.records import content_key
from torch_table_loader.sizes import sizes
from torch_table_loader.source.address import HTTP_PROTOCOLS, parse_address
from torch_table_loader.source.storage import FileStorage, open_storage
from torch_table_loader.store.builder import Report, build_files, build_memory, check_memory
from torch_table_loader.store.far_rows import far_stores
from torch_table_loader.store.gather import StoredRows
from torch_table_loader.store.opened import open_store
from torch_table_loader.store.record_layout import StoreSpec, check_storable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.contracts import RangeStorage
    from torch_table_loader.engine.table import Table
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.splits import SegmentTable
    from torch_table_loader.ranges import Fetcher, FetchSettings, OpenReader
    from torch_table_loader.read.tasks import TaskReader
    from torch_table_loader.records import ReadTask
    from torch_table_loader.store.far_rows import FarRows
    from torch_table_loader.store.gather import Spans
    from torch_table_loader.store.record_layout import RecordLayout


T = TypeVar("T")

_SHARE_OF_MEMORY = 0.75
"""The part of the memory that is there which a store may take that nobody asked to have in memory."""

_NOT_IN_MEMORY = "the row store is not in memory, though it is within the memory of RowStore: {}"

_TEXT_COPIES = 3
"""Copies of the distinct texts of a chunk that may be in memory while those of its batches are joined."""

_log = logging.getLogger(__name__)

CACHE_VARIABLE = "TORCH_TABLE_LOADER_CACHE"


class FilesInPlace(Protocol):
    """The table's own files, which serve as the store. A value; it pickles."""

    @property
    def remote(self) -> RangeStorage | None:
        """Where the files are, if that is not this machine."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes in memory."""
        ...

    def check(self) -> None:
        """Refuse files that are no longer those that were listed.

        Raises:
            TableError: names the file.
        """
        ...

    def open(self, layout: RecordLayout) -> StoredRows:
        """Return what reads local files by position.

        Raises:
            TableError: a file has changed since it was listed.
        """
        ...

    def open_remote(self, layout: RecordLayout, open_reader: OpenReader, window_bytes: int) -> FarRows:
        """Return what reads parts of remote files; see `FarRows`."""
        ...


class RowStoreHandle:
    """A table's row store, wherever it is. It pickles; what was opened stays in its process."""

    def __init__(
        self,
        table: Table,
        options: LoaderOptions,
        schema: pa.Schema,
        segments: SegmentTable,
        reader: TaskReader,
        fetching: FetchSettings,
        made: str | None = None,
        flat: int = 0,
        *,
        in_place: FilesInPlace | None = None,
    ) -> None:
        """Decide what the store holds and where it is; nothing is read.

        Args:
            segments: whole files; every live row is known.
            reader: reads those columns, and row ids where live rows are not all rows.
            made: key of what the reader makes of the table's rows, or None.
            flat: columns, from the first on, whose lists are kept flat.
            in_place: the table's own files, where they can serve as the store, so that none is built. Remote ones do
                only if a store would not be in memory.

        Raises:
            ConfigError: a column that cannot be kept, or a place that does not fit the workers.
            OutOfMemoryError: the caller asked for a store in memory, and it does not fit.
        """
        check_storable(schema)
        row_bytes = sum(map(width_of, schema.types)) or 1
        chunks = Chunks.of(segments, max(1, sizes().store_chunk_bytes // row_bytes))
        self.spec = _spec_of(table, schema, chunks, made, flat)
        self.in_place = in_place
        self.built: list[int] = []
        """The chunks that this process built, or began to."""
        self._reader = reader
        self._draws_every = options.progress_interval if options.show_progress else None
        self._title = titled("row store", options.show_progress)
        self._lock = OfProcess(threading.Lock)
        self._rows: StoredRows | FarRows | None = None
        self._memory = options.rows_kept.memory_bytes
        self._fetching = fetching
        self._lanes = options.lanes
        self._verify = options.remote.verify_checksums
        self._alone = options.num_ranks == 1
        self._inherited: bool | None = None
        """Whether the process that started this one compared all contents; None if it did not open the store."""
        self._threaded = not options.processes
        self.url = store_url(options, getattr(table.storage, "protocol", None), self.spec.name)
        """Where the store is kept for all machines, or None; `place` is then this machine's copy, if it built one."""
        self.note = ""
        """Why the store is not in memory, though the options let it be."""
        self._in_memory_asked = options.rows_kept.place == "memory"
        self._chunks = chunks
        self.place = self._choose(options, fork_safe=bool(getattr(table.storage, "fork_safe", False)))
        if self.place is not None and sys.platform == "win32":
            raise ConfigError('row stores in files need Linux or macOS; pass row_store="memory" with threads')

    def _choose(self, options: LoaderOptions, *, fork_safe: bool) -> Path | None:
        """Return the folder of the store; None keeps it in memory."""
        if self.in_place is not None and self.in_place.remote is None:
            return None
        if self.url is not None:
            return default_folder() / self.spec.name
        crosses = crosses_by_fork(options, fork_safe=fork_safe)
        if options.rows_kept.place == "memory":
            if not crosses:
                raise ConfigError(
                    'row_store="memory" cannot be shared with worker processes that are not forked; pass row_store= '
                    'a directory, or worker_type="thread"'
                )
            check_memory(self.spec.num_bytes, self._room(ranks_on_this_node()))
            return None
        if options.rows_kept.place is not None:
            return Path(local_path(options.rows_kept.place)).expanduser().absolute() / self.spec.name
        if crosses and self.spec.num_bytes <= self._memory:
            try:
                check_memory(self.spec.num_bytes, self._room(ranks_on_this_node()))
            except OutOfMemoryError as error:
                self.note = _NOT_IN_MEMORY.format(error)
            else:
                self.in_place = None
                return None
        return default_folder() / self.spec.name if self.in_place is None else None

    def _room(self, sharers: int) -> int | None:
        """Return the bytes of memory that the store may take where so many hold one; None where nobody says.

        What the caller asked to have in memory may take all of it. Else a part is left for batches and the trainer.
        """
        free = available_memory()
        if free is None:
            return None
        share = _SHARE_OF_MEMORY
        if self._in_memory_asked:
            share = 1.0
        return int(share * (free // sharers))

    @property
    def in_memory(self) -> bool:
        """Whether this process holds the rows in memory."""
        return self.place is None and self.in_place is None

    @property
    def fork_safe(self) -> bool:
        """Whether a process that asked for the store may still fork."""
        return self._far is None or bool(getattr(self._far, "fork_safe", False))

    @property
    def _far(self) -> RangeStorage | None:
        """Where rows are fetched from; None where they are on this machine."""
        if self.in_place is not None:
            return self.in_place.remote
        if self.url is None:
            return None
        return self.url.storage

    def close_clients(self) -> None:
        """Close this process's client of the store behind a URL."""
        if self.url is not None:
            self.url.storage.close()

    @property
    def window_bytes(self) -> int:
        """Bytes of rows that a lane may hold, and as many again that it may read ahead, where not all are in memory."""
        return self._memory // (2 * self._lanes)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the store that are held in memory at most, beside what lanes gather."""
        if self.in_place is not None:
            held = self.in_place.num_bytes
            if self._far is not None:
                held += self._memory + self._fetching.ahead_bytes
            return held
        if self.place is None:
            return self.spec.num_bytes
        if self.url is None:
            return 0
        return min(self.spec.num_bytes, self._memory) + self._fetching.ahead_bytes + self.spec.most_shared_bytes

    def building_bytes(self, table: Table) -> int:
        """Return what it takes to build the store from its table, beside what is held of the store afterwards."""
        if self.in_place is not None:
            return 0
        names, threads = self._reader.reads, min(self._builders, len(self.spec.chunk_rows))
        row_bytes, texts = table.row_bytes(names), [name for name in names if is_text(table.schema.field(name).type)]
        fetched = 0
        if self._fetching.applies_to(table.storage):
            request = min(sizes().far_request_bytes, int(table.layout.file_bytes.max(initial=0)))
            fetched = min(self._fetching.ahead_bytes + threads * request, table.layout.num_bytes)
        read = LANE_COPIES * min(self._reader.max_rows, int(table.layout.group_rows.max(initial=0))) * row_bytes
        opened = threads * (table.open_bytes(names, self._reader.max_rows, row_bytes) + read)
        opened = max(opened + table.part_bytes(names, threads), table.part_bytes(names, 2 * threads))
        rows = min(threads * max(self.spec.chunk_rows, default=0), table.layout.num_rows)
        # Distinct texts are looked for among those of a chunk, which are then joined.
        joined = rows * table.kept_bytes(texts, self.spec.chunk_rows)
        joined = _TEXT_COPIES * min(joined, threads * len(texts) * sizes().chunk_word_bytes)
        beyond = 2 * table.beyond_bytes(names, row_bytes, rows, threads)
        return joined + beyond + fetched + opened

    @property
    def _builders(self) -> int:
        """Threads that build."""
        return max(1, usable_cpus() // ranks_on_this_node())

    def begin_fetching(self) -> Fetcher | None:
        """Return what fetches the rows of an epoch for all lanes; None where the store is on this machine."""
        if self._far is None:
            return None
        return far().begin_fetching(self._far, iter(()), self._fetching)

    def windows(
        self,
        blocks: Iterator[tuple[NDArray[Any], T]],
        most_blocks: int | None,
        fetcher: Fetcher | None,
        spans: Callable[[T], Spans] | None = None,
    ) -> Iterator[tuple[StoredRows, NDArray[Any], T]]:
        """Make ready the rows of consecutive blocks, each the places of its rows and a note of the caller's.

        Args:
            most_blocks: the most blocks that are made ready together.
            fetcher: of the epoch, which may fetch for other stores too; None if there is none.
            spans: returns what is wanted of lists that are kept flat for a block, by its note.
        """
        rows = self.rows()
        if isinstance(rows, StoredRows):
            return rows.windows(blocks, most_blocks, spans)
        ahead = None
        if fetcher is not None and self._far is not None:
            ahead = far().parts_ahead(fetcher, self._far)
        return rows.windows(blocks, most_blocks, ahead, spans)

    def open(self) -> None:
        """Open the store at the start of an epoch; see `rows`."""
        self.rows()
        if self.in_place is not None:
            self.in_place.check()

    def rows(self) -> StoredRows | FarRows:
        """Open the store; build it before, or help those who do, if it is not there.

        Raises:
            TableError: it is damaged, or the table is.
            StorageError: there is no room for it, or its folder is not safe to use.
        """
        with self._lock.own:
            if self._rows is None:
                threads = self._builders
                if self.in_place is not None:
                    self._rows = self._of_files(self.in_place)
                elif self.place is None:
                    self._rows = self._in_memory(threads)
                elif self.url is None:
                    self._rows = self._in_files(self.place, threads)
                else:
                    self._rows = self._behind_url(self.place, self.url, threads)
                _log.info("the row store of %d rows is ready", self.spec.num_rows)
            return self._rows

    def _of_files(self, files: FilesInPlace) -> StoredRows | FarRows:
        if self._far is None:
            return files.open(self.spec.layout)
        reader = partial(far().reading_parts, self._far, self._fetching)
        return files.open_remote(self.spec.layout, reader, self.window_bytes)

    def _in_memory(self, threads: int) -> StoredRows:
        """Build the store in memory, or, where it does not fit and was not asked for, in files.

        Other ranks of the node may hold theirs by now, so that what is free is for this one; but the workers of a
        DataLoader of the caller's begin together.
        """
        sharers = 1
        if (worker := get_worker_info()) is not None:
            sharers = worker.num_workers
        room = self._room(sharers)
        try:
            with self.progress() as report:
                return build_memory(self.spec, self._read, threads, report, room)
        except OutOfMemoryError as error:
            if self._in_memory_asked:
                raise
            self.note = _NOT_IN_MEMORY.format(error)
        self.place = default_folder() / self.spec.name
        self.built.clear()
        _log.warning("%s; it is built in %s", self.note, self.place)
        return self._in_files(self.place, threads)

    def _in_files(self, place: Path, threads: int) -> StoredRows:
        rows = self._opened(place, threads)
        if rows is None:
            with self.progress() as report:
                build_files(place, self.spec, self._read, threads, report)
            rows = self._opened(place, threads)
        if rows is None:
            raise StorageError(f"the row store in {str(place)!r} was removed while it was being built; run again")
        return rows

    def _opened(self, place: Path, threads: int) -> StoredRows | None:
        check_owner(place)
        window_bytes, share = None, self._share()
        if (free := available_memory()) is not None and self.spec.num_bytes > free:
            window_bytes, share = self.window_bytes, None
        return open_store(
            place,
            self.spec,
            threads,
            window_bytes,
            share=share,
            contents=self._verify == "all" and self._inherited is None,
            compared=bool(self._inherited),
        )

    def _share(self) -> tuple[int, int] | None:
        """Return the part of the contents that this process compares; see `Manifest.opening_sums`.

        Ranks of a node share the work if all of them open this store; so do the workers of a DataLoader of the
        caller's.
        """
        if not self._verify or self._inherited is not None:
            return None
        rank, ranks = place_on_this_node()
        if self._alone or rank is None:
            rank, ranks = 0, 1
        worker = get_worker_info()
        if worker is None:
            return (rank, ranks)
        return (rank * worker.num_workers + worker.id, ranks * worker.num_workers)

    def _behind_url(self, place: Path, url: StoreUrl, threads: int) -> StoredRows | FarRows:
        """Read what this machine built from its own copy; what others built by ranges; what nobody built is built."""
        reader = partial(far().reading_parts, url.storage, self._fetching)
        remote = far_stores().open_remote(url.storage, url.root, self.spec, reader, self.window_bytes)
        if remote is None:
            url.check_writable()
            built = self._in_files(place, threads)
            far_stores().upload_store(place, url.storage, url.root, self.spec)
            return built
        if (own := self._opened(place, threads)) is not None:
            return own
        room = self._memory
        if (free := self._room(1)) is not None:
            room = min(room, free)
        if self._threaded and self.spec.num_bytes <= room:
            return remote.fetch_all()
        return remote

    def _read(self, chunk: int) -> Iterator[pa.RecordBatch]:
        self.built.append(chunk)
        return read_tasks(self._reader, self._chunks.tasks(chunk), self._fetching)

    def build_share(self, place: Path, threads: int) -> list[int]:
        """Build the store in a folder, together with other builders; return the chunks that this process built."""
        check_owner(place)
        build_files(place, self.spec, self._read, threads)
        return self.built

    @contextmanager
    def progress(self) -> Iterator[Report | None]:
        """Draw how many chunks are done, whoever built them, where the caller wants to see it."""
        if self._draws_every is None:
            yield None
            return
        from tqdm.auto import tqdm

        lock = threading.Lock()
        total, every = len(self.spec.chunk_rows), self._draws_every
        with tqdm(desc=self._title, total=total, unit="chunk", mininterval=every) as bar:

            def report(done: int) -> None:
                with lock:
                    bar.update(max(0, done - bar.n))

            yield report
            report(total)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was opened: whoever unpickles this opens the store's files."""
        state = {name: value for name, value in vars(self).items() if name != "_rows"}
        if isinstance(self._rows, StoredRows):
            state["_inherited"] = self._rows.text is None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open nothing yet."""
        vars(self).update(state, _rows=None)
        if self.in_memory:
            warn_caller(
                "a row store in memory is built again in each process that is not forked; pass row_store= a directory"
            )


def _variable_bytes(table: Table, schema: pa.Schema, chunk_rows: Sequence[int]) -> int:
    """Estimate the bytes of a row's values of variable width, as a store keeps them."""
    kept, others = [], 0
    for field in filter(lambda field: is_variable(field.type), schema):
        if field.name not in table.schema.names:
            others += width_of(field.type)
        elif (share := _share_of_width(table.schema.field(field.name).type, field.type)) < 1:
            others += int(table.kept_bytes([field.name], chunk_rows) * share) + 1
        else:
            kept.append(field.name)
    return others + table.kept_bytes(kept, chunk_rows)


def _share_of_width(kind: pa.DataType, kept: pa.DataType) -> float:
    """Return the share of its bytes that a list has if its numbers are narrower ones; 1 of all others."""
    if not (kinds.is_nested(kind) and kinds.is_large_list(kept)) or is_variable(kept.value_type):
        return 1
    if not hasattr(kind, "value_type") or is_variable(kind.value_type):
        return 1
    return width_of(kept.value_type) / width_of(kind.value_type)


def read_tasks(reader: TaskReader, tasks: Sequence[ReadTask], fetching: FetchSettings) -> Generator[pa.RecordBatch]:
    """Yield the rows of a chunk, where each thread of this process reads a chunk."""
    needs = [partial(reader.needs, task) for task in tasks]
    with closing(TasksAhead(reader.storage, needs, fetching.shared_by(usable_cpus()))) as ahead:
        for number, task in enumerate(tasks):
            with ahead.storage_of(number) as storage:
                yield from reader.read(task, storage)


def default_folder() -> Path:
    """Return where stores are kept if the caller names no place."""
    if given := os.environ.get(CACHE_VARIABLE):
        return Path(given).expanduser().absolute() / "row-stores"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "torch-table-loader" / "row-stores"


def check_owner(place: Path) -> None:
    """Refuse a store in this user's own cache directory to which somebody else may write.

    A folder that the caller named may be shared on purpose.

    Raises:
        StorageError: with the remedy.
    """
    if os.environ.get(CACHE_VARIABLE) or place.parent != default_folder():
        return
    for folder in (place.parent.parent, place.parent, place):
        check_owned(folder)


def _spec_of(table: Table, schema: pa.Schema, chunks: Chunks, made: str | None, flat: int) -> StoreSpec:
    rows = int(chunks.segments.live.sum())
    return StoreSpec(
        content_key(table.fingerprint, table.files),
        table.filter_key,
        schema,
        chunks.rows,
        keeps_ids=rows != table.layout.num_rows,
        variable_bytes=rows * _variable_bytes(table, schema, chunks.rows),
        made=made,
        flat=flat,
    )


def crosses_by_fork(options: LoaderOptions, *, fork_safe: bool) -> bool:
    """Return whether what this process holds is there in its workers too."""
    if not options.processes:
        return True
    if not fork_safe:
        return False
    given = options.start_method
    method = given if isinstance(given, str) else (given or multiprocessing).get_start_method()
    return bool(method == "fork")


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A store's folder behind a URL."""

    storage: FileStorage
    root: str

    @property
    def shown(self) -> str:
        """The URL as messages may show it."""
        return self.storage.shown(self.root)

    def check_writable(self) -> None:
        """Refuse a store that takes no files.

        Raises:
            ConfigError: with the command that builds the store elsewhere.
        """
        if self.storage.protocol in HTTP_PROTOCOLS:
            raise ConfigError(
                f"there is no whole row store at {self.shown}, and it cannot be written over {self.storage.protocol}; "
                "build it with `torch-table-loader store build --store DIR`, and put the folder that this makes there"
            )


def store_url(options: LoaderOptions, table_protocol: str | None, name: str) -> StoreUrl | None:
    """Return the URL behind which a store is; None if `row_store` names no URL.

    The `storage_options` are used if the table is local or on the same kind of store; `table_protocol` is
    None if it is not on one.

    Raises:
        ConfigError: a URL that cannot be the folder of stores.
    """
    place = options.rows_kept.place
    if place is None or place == "memory":
        return None
    address = parse_address(place)
    if address.protocol == "file":
        return None
    if address.protocol in HTTP_PROTOCOLS and "?" in address.path:
        raise ConfigError(
            f"row_store must be the URL of a folder, got {address.shown} with a query; pass headers in storage_options"
        )
    given = options.storage_options
    if table_protocol not in (None, "file", address.protocol):
        given = anywhere(given)
    storage, root = open_storage(place, given)
    return StoreUrl(storage, f"{root.rstrip('/')}/{name}")


def local_path(row_store: str | os.PathLike[str]) -> str:
    """Return the path of a ``file://`` URL; a path as it is."""
    if "://" in str(row_store):
        return parse_address(row_store).path
    return str(row_store)
