"""The sockets of file formats: what a format reader must do, and may do beyond; and what a format writer must do.

`torch_table_loader.testing.check_format_reader` checks a reader; a plug-in's author runs it in a test.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from typing import TypeGuard

    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile, FileMeta, LeftOut


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

    def thins(self, group: int, columns: Sequence[str], max_rows: int) -> bool:
        """Whether it reads columns of a row group in one go, if that has no more than `max_rows` rows."""
        ...

    def thinned(self, group: int, columns: Sequence[str], num_rows: int, kept: Any) -> pa.RecordBatch:
        """Read some rows of a row group, or all.

        Args:
            group: which.
            columns: as of `batches`.
            num_rows: that the row group must have.
            kept: uint32 Arrow array, ascending: the rows, counted from the row group's first; None for all.

        Raises:
            TableError: the row group has another number of rows.
        """
        ...


@runtime_checkable
class EncodingReader(Protocol):
    """A format reader that may leave strings as its files hold them: as indices into a dictionary."""

    def encoding(self, columns: frozenset[str]) -> FormatReader:
        """Return a reader that gives some string columns as dictionary arrays, where that saves work.

        Args:
            columns: names as files spell them.
        """
        ...


@runtime_checkable
class LimitingReader(Protocol):
    """A format reader that finds, before it decodes them, values that are larger than a limit."""

    def limited(self, num_bytes: int) -> FormatReader:
        """Return a reader whose open files raise a TableError for what alone comes to more bytes once it is decoded."""
        ...


def limits(reader: FormatReader) -> TypeGuard[LimitingReader]:
    """Return whether a reader finds values that are too large; asked for each file, where `isinstance` takes long."""
    return hasattr(reader, "limited")


@runtime_checkable
class SharingReader(Protocol):
    """A format reader that can decode one row group with several threads."""

    def sharing(self) -> FormatReader:
        """Return a reader whose open files decode the columns of a row group in parallel; batches are the same."""
        ...


class FormatReader(Protocol):
    """Reads one file format. Stateless; it pickles.

    Five attributes are optional. `infers_types` (default: False) marks a format without types of its own: two files
    may then differ in a column's type, and the caller's ``schema=`` decides. `columnar` (default: False) says that one
    column of one row group can be read by itself: errors then name the damaged column. `suffixes` lists the ends of
    file names, in lower case with their dots, so that the caller may leave ``format=`` out. `traits` says what the
    format can do, as ``torch-table-loader formats`` shows it. `settings` (default: "") is a text of all settings that
    change rows and are not as by default, equal on every machine: a state of a table that was read with others is
    refused.
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


@runtime_checkable
class SizingReader(FormatReader, Protocol):
    """A format reader whose metadata tells how many bytes values decode to, which may be stored as few."""

    def decoded_bytes(self, meta: FileMeta, group: int, columns: Sequence[str]) -> tuple[int, int]:
        """Return how many bytes columns of a row group decode to, at the least and at the most."""
        ...


@runtime_checkable
class HoldingReader(FormatReader, Protocol):
    """A format reader that knows what its open files hold; of others, a row group is taken to be held whole."""

    def held_bytes(self, meta: FileMeta, group: int, columns: Sequence[str], max_rows: int, row_bytes: int) -> int:
        """Return how many bytes an open file holds beside the rows that it gave, while a row group is decoded.

        It reads nothing.

        Args:
            meta: what `inspect` said.
            group: which.
            columns: as of `OpenFile.batches`, like `max_rows`.
            row_bytes: what a row of these decodes to, about.
        """
        ...


class Traits(NamedTuple):
    """What a format can do, as ``torch-table-loader formats`` shows it; the contract checks compare it with the reader.

    Attributes:
        cut: what a file is cut into, such as "row groups"; None: it is read whole.
        pruned: what `FormatReader.prune` uses to rule out row groups; None: nothing.
        counted: where the number of rows is known from.
        needs: the package that decodes it and does not come with this library; "" for none.
    """

    cut: str | None = None
    pruned: str | None = None
    counted: str = "one pass"
    needs: str = ""


class Sidecar(NamedTuple):
    """A file that stands beside a data file.

    Attributes:
        suffix: what its name ends with where the data file's ends with `SidecarReader.data_suffix`.
        required: whether a data file without it cannot be read; one without its data file is an error too.
    """

    suffix: str
    required: bool = True


@runtime_checkable
class SidecarReader(FormatReader, Protocol):
    """A format reader that knows its data files by the ends of their names, and may read other files beside them.

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
        """The files that may stand beside a data file; may be empty."""
        ...


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
    """A format reader of files that may hold a column in several types; the table then uses one that holds all."""

    def settle(self, metas: Sequence[FileMeta]) -> Sequence[FileMeta]:
        """Return what `inspect` said, with the types of the table; files are opened with this.

        It reads nothing. The arguments may have been settled before, with other files or these.

        Args:
            metas: of all files of the table that are of this format.
        """
        ...


@runtime_checkable
class SalvagingReader(FormatReader, Protocol):
    """A format reader that can leave out damaged parts of a file; without it, the whole file is left out."""

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
        """Return a lower and an upper bound of the integers in the lists of a column.

        It reads nothing. What it says is compared with what decoding gives.

        Args:
            file: which.
            meta: what `inspect` said.
            column: a column of lists of integers, as the file spells its name.

        Returns:
            Both; ``(0, 0)`` where there is none; None where the file does not say.
        """
        ...


PLACE = "place in the file"
"""A column that a reader adds where it is asked for: the first value of a row's list, counted from the file's start.

The lists are those of the column that is read with it.
"""


@runtime_checkable
class PlacingReader(FormatReader, Protocol):
    """A format reader whose files hold the values of lists as they are, so that they are gathered from there."""

    def placed(self, storage: Storage, file: DataFile, meta: FileMeta, column: str) -> FileMeta | None:
        """Return the metadata with one column more, which says where the list of each row begins.

        Args:
            storage: opens the file.
            file: which.
            meta: what `inspect` said.
            column: a column of lists of numbers, as the file spells its name.

        Returns:
            It; None where values are stored in another form, or not in the order of rows.
        """
        ...


@runtime_checkable
class BoundsReader(FormatReader, Protocol):
    """A format reader whose statistics hold the least and the greatest integer of a column, not only bounds of them."""

    def bounds(self, meta: FileMeta, column: str) -> tuple[int, int | None, int | None] | None:
        """Return the number of nulls of a flat column of integers in a file, and its least and greatest value.

        It reads nothing.

        Args:
            meta: what `inspect` said.
            column: a column of integers, as the file spells its name.

        Returns:
            The values are None where all are null; None where the file does not say.
        """
        ...


@runtime_checkable
class RangedReader(FormatReader, Protocol):
    """A format reader that can say which bytes of a file it will read, so that remote ones are fetched ahead."""

    def ranges(
        self, file: DataFile, meta: FileMeta, groups: Sequence[int], columns: Sequence[str]
    ) -> Sequence[Sequence[tuple[int, int]]]:
        """Return which bytes it takes to open a file and to decode some of its row groups.

        It reads nothing. A byte that is missing here is requested when decoding needs it, which costs time but is not
        an error.

        Args:
            file: which.
            meta: what `inspect` said.
            groups: row groups, ascending.
            columns: names as the file spells them.

        Returns:
            For each of `groups`, in any order, the first byte of each range and the byte after its last. The ranges for
            opening the file are among those of the first group.
        """
        ...


def says_ranges(reader: FormatReader) -> TypeGuard[RangedReader]:
    """Return whether a reader is a `RangedReader`; asked for each file, where `isinstance` takes 0.1 ms."""
    return hasattr(reader, "ranges")


class FormatWriter(Protocol):
    """Writes one file format.

    An entry point of the group ``torch_table_loader.writers`` names a class, which is called without arguments.
    """

    @property
    def name(self) -> str:
        """What the caller writes as ``--to``."""
        ...

    @property
    def suffix(self) -> str:
        """How the names of files end."""
        ...

    def check(self, schema: pa.Schema) -> None:
        """Refuse a table that the format cannot carry.

        Raises:
            ConfigError: names the column, and its type.
        """
        ...

    def write(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, file: BinaryIO) -> None:
        """Write a file from its start; the caller closes it.

        Raises:
            TableError: a value that the format cannot carry; names column and row of the file.
        """
        ...
