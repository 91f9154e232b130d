"""Reads one column of the live rows of a table, in the order of its row store, and keeps sums of it for all epochs."""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeAlias

import numpy as np

from torch_table_loader.arrow.arrays import plain
from torch_table_loader.cancellation import Threads
from torch_table_loader.engine.machine import usable_cpus
from torch_table_loader.engine.row_store import check_owner, read_tasks
from torch_table_loader.errors import StorageError, TableError
from torch_table_loader.forks import OfProcess
from torch_table_loader.messages import progress_bar
from torch_table_loader.planning.splits import Chunks
from torch_table_loader.records import content_key
from torch_table_loader.store.builder import build_sums, digest_of, open_sums

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.engine.table import Table
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.splits import SegmentTable
    from torch_table_loader.ranges import FetchSettings

    Ints: TypeAlias = NDArray[np.int64]

_CHUNK_ROWS = 1 << 20
"""Rows that a thread reads at a time."""


class RowColumn(ABC):
    """A column of the live rows.

    Args:
        segments: whole files; every live row is known.
        title: what a progress bar calls it.
    """

    def __init__(
        self,
        table: Table,
        options: LoaderOptions,
        segments: SegmentTable,
        name: str,
        fetching: FetchSettings,
        title: str,
    ) -> None:
        self.name = name
        self._table = table
        self._title = title
        self._chunks = Chunks.of(segments, _CHUNK_ROWS)
        self._fetching = fetching
        self._reader = table.reader([name], row_ids=True)
        self._progress = progress_bar(title, show=options.show_progress, interval=options.progress_interval)

    def parts(self, cells: Ints) -> Iterator[Ints]:
        """View the cells of all rows chunk by chunk."""
        ends = np.cumsum(self._chunks.rows).tolist()
        return (cells[end - rows : end] for end, rows in zip(ends, self._chunks.rows, strict=True))

    def read(self, cells: Ints) -> None:
        """Write what `put` makes of each row into its cell."""
        parts = list(self.parts(cells))
        with Threads(usable_cpus(), f"table-loader-{self._title}", joined=True) as pool:
            for _ in self._progress(pool.map(self._read, range(len(parts)), parts), len(parts)):
                pass

    @abstractmethod
    def put(self, values: pa.Array, ids: pa.Array, cells: Ints) -> None:
        """Write what is kept of some rows, given their values and row ids; several threads call it."""

    def refuse(self, values: pa.Array, ids: pa.Array, at: int, wanted: str) -> NoReturn:
        """Refuse the value at a place.

        Raises:
            TableError: names the row, its file and what was wanted.
        """
        layout, row = self._table.layout, ids[at].as_py()
        file = int(np.searchsorted(layout.file_starts, row, side="right")) - 1
        raise TableError(
            f"row {row - int(layout.file_starts[file])} of {layout.files[file].name!r} has {values[at].as_py()!r} in "
            f"column {self.name!r}; {wanted}: leave such rows out with filters=, or name another column"
        )

    def _read(self, chunk: int, cells: Ints) -> None:
        at, rows = 0, len(cells)
        with closing(read_tasks(self._reader, self._chunks.tasks(chunk), self._fetching)) as batches:
            for batch in batches:
                at += batch.num_rows
                if at > rows:
                    break
                self.put(plain(batch.column(0)), batch.column(1), cells[at - batch.num_rows : at])
        if at != rows:
            raise TableError(
                f"rows of column {self.name!r}: expected {rows:,} in a part of the table, got {at:,}; did "
                "its files change? open the table anew"
            )


@dataclass(frozen=True, slots=True, eq=False)
class KeptSums:
    """Sums over the live rows, one more than rows: in a file, or in memory alone.

    Args:
        place: the file that has them; None if there is none.
        digest: their hash.
    """

    place: Path | None
    cells: Ints
    digest: str

    @classmethod
    def of(cls, word: str, stores: Path | None, name: str, rows: int, fill: Callable[[Ints], None]) -> KeptSums:
        """Return sums that are kept, or make them.

        Args:
            word: what messages call them.
            stores: the folder of row stores; None keeps the sums in memory.
            fill: writes them into zeros.
        """
        if stores is None:
            sums = np.zeros(rows + 1, dtype=np.int64)
            fill(sums)
            return cls(None, sums, digest_of(sums))
        place = stores / word / f"{word}-{name}.sums"
        check_owner(stores / word)
        if (found := open_sums(place, rows)) is None:
            build_sums(place, rows, fill)
            found = open_sums(place, rows)
        if found is None:
            raise StorageError(f"the {word} in {str(place)!r} were removed while they were being read; run again")
        return cls(place, *found)


class RowSums(ABC):
    """Sums over the live rows of a table. It pickles: those in a file are mapped again."""

    word: ClassVar[str]

    def __init__(self, kept: KeptSums) -> None:
        self.digest = kept.digest
        self.place = kept.place
        self._rows = len(kept.cells) - 1
        self._made: Any = self._make(kept.cells)
        self._lock = OfProcess(threading.Lock)

    @abstractmethod
    def _make(self, cells: Ints) -> Any:
        """Return what is made of the sums in each process."""

    @property
    def made(self) -> Any:
        """What `_make` returned; sums in a file are mapped when they are first wanted."""
        with self._lock.own:
            if self._made is None:
                assert self.place is not None  # noqa: S101 only sums in files are left out of a pickle
                if (found := open_sums(self.place, self._rows)) is None or found[1] != self.digest:
                    raise StorageError(f"the {self.word} in {str(self.place)!r} were removed or replaced; run again")
                self._made = self._make(found[0])
            return self._made

    @property
    def memory_bytes(self) -> int:
        """Bytes that are held in memory."""
        if self.place is None:
            return 8 * (self._rows + 1)
        return 0

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what a file has."""
        state = dict(vars(self))
        if self.place is not None:
            del state["_made"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Map nothing yet."""
        vars(self).update({"_made": None} | state)


def name_of_sums(table: Table, form: int, argument: str, column: str) -> str:
    """Return the name of what has the sums: the same for every run of the same table, filter and argument.

    Args:
        form: other sums of the same values have another.
    """
    key = (
        form,
        content_key(table.fingerprint, table.files),
        table.filter_key,
        argument,
        str(table.schema.field(column).type),
    )
    return hashlib.sha256(repr(key).encode()).hexdigest()[:32]
