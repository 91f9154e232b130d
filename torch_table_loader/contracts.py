"""The sockets: what a source, a store, a format reader and a split strategy must do.

`torch_table_loader.testing` has a check for each, which a plug-in's author runs in a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard, TypeVar, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.records import DataFile, DataFileInfo, FileMeta, FileVersion, LeftOut, Split, Traffic

T = TypeVar("T")


class Storage(Protocol):
    """A place that holds files, as a value: it pickles, and each process opens its own client on first use.

    Two attributes may be there: `place`, as of `RangeStorage`, which a plan cache needs; and `fork_safe`, whether a
    process that used the storage may still fork (where it is missing, it may not).
    """

    @property
    def is_local(self) -> bool:
        """Whether files are on this machine's file system (small reads are then cheap)."""
        ...

    def open(self, path: str) -> pa.NativeFile:
        """Open for random access. Raises TableError if it is gone, StorageError if the store refuses."""
        ...

    def version(self, path: str) -> FileVersion:
        """Size, time and tag as they are now. Raises as `open` does."""
        ...

    def close(self) -> None:
        """Drop this process's client; the next call opens a new one."""
        ...


@runtime_checkable
class RenewingStorage(Storage, Protocol):
    """A storage whose credentials end, and that knows where to get others."""

    def renew(self, error: BaseException) -> bool:
        """Renew the credentials, if an error says that the store refused those in use.

        Args:
            error: what reading from an open file raised.

        Returns:
            Whether to open the file again.
        """
        ...


def renewing(storage: Storage, ask: Callable[[], T]) -> T:
    """Do something short with a storage, and once more where it refused and has fresh credentials.

    Args:
        storage: any.
        ask: opens a file and reads it.
    """
    try:
        return ask()
    except Exception as error:
        if not (isinstance(storage, RenewingStorage) and storage.renew(error)):
            raise
    return ask()


class RangeStorage(Storage, Protocol):
    """A storage that answers requests for byte ranges, many at once: its files are fetched ahead of decoding.

    A storage that has `read_range` must have all of this.
    """

    @property
    def place(self) -> str:
        """A name of the store without secrets, which no other store has: equal paths in two places are not one file."""
        ...

    def traffic(self) -> Traffic:
        """Return what this process asked of the store so far; of what a storage does not count, 0."""
        ...

    def read_range(self, path: str, start: int, stop: int, version: FileVersion | None = None) -> Any:
        """Read bytes of a file with one request; threads may share the storage.

        Args:
            path: which file.
            start: the first byte.
            stop: the byte after the last; not beyond the file's end, and more than `start`.
            version: what the file must still be, which the request itself checks where the store can; None: whatever
                is there.

        Returns:
            A buffer of exactly ``stop - start`` bytes.

        Raises:
            TableError: the file is gone, or no longer that version.
            StorageError: the store refuses, does not answer, or answered with other bytes.
        """
        ...

    def checks(self, version: FileVersion) -> bool:
        """Return whether a request for a range refuses a file that is no longer this version."""
        ...


def has_ranges(storage: Storage) -> TypeGuard[RangeStorage]:
    """Return whether a storage answers requests for byte ranges; the caller's was checked to have all that it takes."""
    return hasattr(storage, "read_range")


def is_far(storage: Storage) -> TypeGuard[RangeStorage]:
    """Return whether files are on another machine, and come in ranges."""
    return not storage.is_local and has_ranges(storage)


class PartStorage(RangeStorage, Protocol):
    """A storage that a row store can be kept on."""

    def read_bytes(self, path: str) -> bytes:
        """Read a small file whole. Raises as `open` does."""
        ...

    def write_bytes(self, path: str, data: bytes) -> None:
        """Write a small file whole: whoever reads sees all of it or none. Raises StorageError."""
        ...

    def put_file(self, local: str, path: str) -> None:
        """Copy a file of this machine there. Raises StorageError."""
        ...

    def shown(self, path: str) -> str:
        """Write a path as messages may show it, without login or query."""
        ...


class Source(Protocol):
    """A table as the lake has it: its files in canonical order, and where to open them."""

    @property
    def storage(self) -> Storage:
        """Where the files are."""
        ...

    @property
    def files(self) -> Sequence[DataFile]:
        """The data files, in an order that is the same on every rank."""
        ...

    @property
    def partition_schema(self) -> pa.Schema:
        """The columns that come from paths or manifests, not from the files."""
        ...


@runtime_checkable
class SnapshotSource(Source, Protocol):
    """A source that has a schema of its own, and says by itself which state of the table it is."""

    @property
    def schema(self) -> pa.Schema:
        """The schema to read the table as, partition columns included."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash of table and snapshot: 64 hexadecimal digits."""
        ...

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot's id; None for a table without one."""
        ...

    @property
    def description(self) -> str:
        """Table and snapshot, in words."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What planning has to say of filters and files."""
        ...


@runtime_checkable
class TimeTravelSource(SnapshotSource, Protocol):
    """A snapshot source that can open its table at another snapshot.

    A state names its snapshot, and a loader that resumes from it opens that one, unless the caller chose another.
    """

    @property
    def pinned(self) -> bool:
        """Whether the caller chose the snapshot; a state of another one is then refused."""
        ...

    def at_snapshot(self, snapshot_id: int) -> TimeTravelSource:
        """Return the same table at another snapshot.

        Raises:
            ConfigError: the table has no such snapshot, or has it no more.
        """
        ...


@runtime_checkable
class HistorySource(TimeTravelSource, Protocol):
    """A source that can say what its table's commits did.

    One that reads only what was appended after another snapshot says so by ``start_snapshot_id``.
    """

    def changes_since(self, snapshot_id: int) -> Sequence[str]:
        """Return what the commits after another snapshot did that was more than to append files, for messages.

        Args:
            snapshot_id: an older one; where it is no ancestor, that is said too.
        """
        ...


class OpenFile(Protocol):
    """An open data file."""

    def batches(self, groups: range, columns: Sequence[str], max_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield all rows of consecutive row groups, in file order, nothing filtered.

        Args:
            groups: consecutive row groups.
            columns: names as the file spells them, each in the file's schema; may be empty (batches then have
                rows and no columns). The batches have exactly these columns, in this order.
            max_rows: no batch has more rows; a batch may span row groups.
        """
        ...

    def close(self) -> None:
        """Release the file."""
        ...


@runtime_checkable
class ThinningFile(OpenFile, Protocol):
    """An open data file that leaves out rows while it decodes, which costs less than doing so afterwards."""

    def thins(self, group: int, max_rows: int) -> bool:
        """Whether it would read a row group in one go, and no more than `max_rows` of it."""
        ...

    def thinned(self, group: int, columns: Sequence[str], num_rows: int, kept: Any) -> pa.RecordBatch:
        """Read some rows of a row group.

        Args:
            group: which.
            columns: as of `batches`.
            num_rows: that the row group must have.
            kept: uint32 Arrow array, ascending: the rows, counted from the row group's first.

        Raises:
            TableError: the row group has another number of rows.
        """
        ...


class FormatReader(Protocol):
    """Reads one file format. Stateless; it pickles.

    Four attributes may be there. Two are False where they are not: `infers_types`, of a format without types of its
    own (two files may then differ in a column's type, which the caller's ``schema=`` settles); and `columnar`, where
    one column of one row group can be read by itself (errors then name the column that is damaged). `suffixes` says how
    the names of the files end, in small letters with their dots, so that the caller may leave ``format=`` out.
    """

    @property
    def name(self) -> str:
        """What the caller writes as ``format=``, and messages say."""
        ...

    def inspect(self, storage: Storage, file: DataFile, schema: pa.Schema | None) -> FileMeta:
        """Read the footer, or parse the file once where it has none.

        Args:
            storage: where it is.
            file: which.
            schema: the caller's ``schema=``, which a format without types of its own must follow; else None.

        Raises:
            TableError: torn, of another format, or not as the schema says. Names the file.
        """
        ...

    def prune(self, file: DataFile, meta: FileMeta, filters: Any, schema: pa.Schema) -> Sequence[bool]:
        """Return for each row group whether any row can pass; True where statistics cannot decide.

        Args:
            file: which, with its partition values.
            meta: what `inspect` said.
            filters: a pyarrow compute Expression over `schema`.
            schema: the table's unified schema, partition columns included.
        """
        ...

    def null_columns(self, meta: FileMeta, columns: Sequence[str], kept: Sequence[bool]) -> frozenset[str]:
        """Return those of `columns` in which the statistics of a kept row group prove a null."""
        ...

    def open(self, storage: Storage, file: DataFile, meta: FileMeta) -> OpenFile:
        """Open without reading the footer again.

        Raises:
            TableError: it is gone, or no longer what it was.
        """
        ...


@runtime_checkable
class NullProvingReader(FormatReader, Protocol):
    """A format reader whose statistics can also prove that there is no null."""

    def null_free(self, meta: FileMeta, columns: Sequence[str], kept: Sequence[bool]) -> frozenset[str]:
        """Return those of `columns` in which the statistics prove that no kept row group has a null."""
        ...


class Traits(NamedTuple):
    """What a format can do, as ``torch-table-loader formats`` shows it; the contract checks compare it with the reader.

    Args:
        cut: what a file is cut into, such as "row groups"; None: it is read whole.
        pruned: what `FormatReader.prune` rules row groups out by; None: by nothing.
        counted: where the number of rows is known from.
        needs: the package that decodes it and does not come with this library; "" for none.
    """

    cut: str | None = None
    pruned: str | None = None
    counted: str = "one pass"
    needs: str = ""


class Sidecar(NamedTuple):
    """A file that stands beside a data file.

    Args:
        suffix: what its name ends with where the data file's ends with `SidecarReader.data_suffix`.
        required: whether a data file without it cannot be read; one without its data file is an error too.
    """

    suffix: str
    required: bool = True


@runtime_checkable
class SidecarReader(FormatReader, Protocol):
    """A format reader that knows its data files by how their names end, and that may read other files beside them.

    Of a folder or a glob only files with that ending are data files. What stands beside each is listed with it, as
    `DataFile.sidecars`: a sidecar that changes between planning and reading is found as a changed data file is, and
    what is kept of a data file (plan cache, row store) is kept for one version of its sidecars.
    """

    @property
    def data_suffix(self) -> str:
        """How the names of data files end."""
        ...

    @property
    def sidecars(self) -> Sequence[Sidecar]:
        """What may stand beside a data file; empty where nothing does."""
        ...


class SplitStrategy(Protocol):
    """How a table is split: a `Cutter` or a `Generator`. A class may inherit from this, and need not.

    Which form an object has, and whether it takes ranks, its signature says.
    """


class Cutter(SplitStrategy, Protocol):
    """A split strategy that cuts; the library shuffles, slices by rank and assigns to workers."""

    def __call__(self, files: Sequence[DataFileInfo]) -> Sequence[Split]:
        """Cut files into splits that cover each row once, in the order of an unshuffled epoch. Must be pure."""
        ...


class Generator(SplitStrategy, Protocol):
    """A split strategy that owns order and assignment (V1: three arguments; V2: also num_ranks and rank)."""

    generate: Any
    """``generate(files, num_workers, epoch[, num_ranks, rank]) -> list[Shard]``: pure; each row once."""


@runtime_checkable
class ListCountingReader(FormatReader, Protocol):
    """A format reader that knows how many values the lists of a column hold, so that packing need not count them."""

    def list_values(self, meta: FileMeta, column: str) -> tuple[Sequence[int], Sequence[int]] | None:
        """Return how many values the lists of a column hold together, and how many lists hold any.

        It reads nothing. What it says is compared with what decoding gives.

        Args:
            meta: what `inspect` said.
            column: a list column, as the file spells its name.

        Returns:
            Both for each row group; None where the file does not say.
        """
        ...


@runtime_checkable
class SettlingReader(FormatReader, Protocol):
    """A format reader of files that say one column in several types, of which a table takes one that holds all."""

    def settle(self, metas: Sequence[FileMeta]) -> Sequence[FileMeta]:
        """Return what `inspect` said, with the types of the table; files are opened with this.

        It reads nothing. What comes may have been settled before, with other files or these.

        Args:
            metas: of all files of the table that are of this format.
        """
        ...


@runtime_checkable
class SalvagingReader(FormatReader, Protocol):
    """A format reader that can leave damaged parts of a file out; of others the whole file is left out."""

    def salvage(self, storage: Storage, file: DataFile, schema: pa.Schema | None) -> tuple[FileMeta, Sequence[LeftOut]]:
        """Do what `inspect` does, and leave out what cannot be read.

        Returns:
            What the rest of the file is, and what was left out.

        Raises:
            TableError: as `inspect`, of damage that leaves nothing to read.
        """
        ...


@runtime_checkable
class ListMeasuringReader(FormatReader, Protocol):
    """A format reader that knows how long each list of a column is, so that packing need not look at any."""

    def list_lengths(self, meta: FileMeta, column: str) -> NDArray[Any] | None:
        """Return how many values the list of each row of a file has.

        It reads nothing. What it says is compared with what decoding gives.

        Args:
            meta: what `inspect` said.
            column: a list column, as the file spells its name.

        Returns:
            Integers, only to be read; None where the file does not say.
        """
        ...


@runtime_checkable
class ListBoundsReader(FormatReader, Protocol):
    """A format reader that knows between which bounds integers in lists lie, so that a store may keep them small."""

    def list_bounds(self, file: DataFile, meta: FileMeta, column: str) -> tuple[int, int] | None:
        """Return a number that no integer in the lists of a column is below, and one that none is above.

        It reads nothing. What it says is compared with what decoding gives.

        Args:
            file: which.
            meta: what `inspect` said.
            column: a column of lists of integers, as the file spells its name.

        Returns:
            Both; ``(0, 0)`` where there is none; None where the file does not say.
        """
        ...


@runtime_checkable
class RangedReader(FormatReader, Protocol):
    """A format reader that can say which bytes of a file it will read: far away they are fetched before it does."""

    def ranges(
        self, file: DataFile, meta: FileMeta, groups: Sequence[int], columns: Sequence[str]
    ) -> Sequence[Sequence[tuple[int, int]]]:
        """Return which bytes it takes to open a file and to decode some of its row groups.

        It reads nothing. A byte that is missing here is asked for when decoding wants it, which costs time and is no
        error.

        Args:
            file: which.
            meta: what `inspect` said.
            groups: row groups, ascending.
            columns: names as the file spells them.

        Returns:
            For each of `groups` the first byte of each range, and the byte after its last, in any order; what opening
            takes is among those of the first.
        """
        ...
