"""Reads what the rows of a table weigh, and keeps the sums of it for all epochs."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Hashable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.arrays import plain
from torch_table_loader.arrow.datatypes import plain_type
from torch_table_loader.cancellation import Threads
from torch_table_loader.engine.machine import usable_cpus
from torch_table_loader.engine.row_store import check_owner, read_tasks
from torch_table_loader.errors import ConfigError, StorageError, TableError
from torch_table_loader.messages import did_you_mean, progress_bar
from torch_table_loader.option_values import as_weights
from torch_table_loader.planning.keys import derive_key
from torch_table_loader.planning.splits import Chunks
from torch_table_loader.planning.weighted_rows import WeightedRows, WeightSums, cumulate
from torch_table_loader.predicates.filter_form import filter_key
from torch_table_loader.records import content_key
from torch_table_loader.sizes import sizes
from torch_table_loader.store.builder import build_sums, digest_of, open_sums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.engine.table import Table
    from torch_table_loader.option_values import Weights
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.exclusion import Remaining
    from torch_table_loader.planning.splits import SegmentTable
    from torch_table_loader.ranges import FetchSettings

    Ints: TypeAlias = NDArray[np.int64]

_FORMAT = 1
"""Raise it when other sums come of the same weights: names of files carry it."""

_CHUNK_ROWS = 1 << 20
"""Rows that a thread reads at a time."""


class RowWeights:
    """The sums of what the live rows of a table weigh. It pickles: those in a file are mapped again."""

    def __init__(self, asked: Weights, place: Path | None, cells: Ints, digest: str) -> None:
        """Hold sums, in memory alone if there is no file (`place`) that has them."""
        self.asked = asked
        self.digest = digest
        self.place = place
        self._rows = len(cells) - 1
        self._sums: WeightSums | None = WeightSums(cells)
        self._lock = threading.Lock()

    @classmethod
    def of(
        cls, table: Table, options: LoaderOptions, segments: SegmentTable, stores: Path | None, fetching: FetchSettings
    ) -> RowWeights | None:
        """Read a table's weights, unless they are kept already; None where each row comes once at most.

        Args:
            segments: whole files; every live row is known.
            stores: the folder of row stores; None keeps the sums in memory.

        Raises:
            ConfigError: there is no such column, or it has another type.
            TableError: a row has no weight or one that is not a number of at least 0, or all weights are 0.
        """
        rows = int(segments.live.sum())
        if options.weights is None:
            return None
        weights = as_weights(options.weights)
        if weights.source is None:
            _check_samples(weights, rows)
            return None
        if weights.samples and not rows:
            raise ConfigError(
                f"the table has no live row, of which samples={weights.samples} could be drawn; change the filter"
            )
        _check_type(table, weights, weights.source)
        column = _Column(table, options, segments, weights, weights.source, fetching)
        if stores is None:
            sums = np.zeros(rows + 1, dtype=np.int64)
            column.fill(sums)
            return cls(weights, None, sums, digest_of(sums))
        place = stores / "weights" / f"{_name(table, options, weights, weights.source)}.sums"
        check_owner(stores / "weights")
        if (found := open_sums(place, rows)) is None:
            build_sums(place, rows, column.fill)
            found = open_sums(place, rows)
        if found is None:
            raise StorageError(f"the weights in {str(place)!r} were removed while they were being read; run again")
        return cls(weights, place, *found)

    @property
    def identity(self) -> str:
        """What a state is bound to: what was asked for, and the hash of what the rows weigh."""
        return f"Weights({self.asked.argument}, samples={self.asked.samples}), which are {self.digest}"

    def drawn(self, remaining: Remaining, seed: int, epoch: int, purpose: str = "places in weights") -> WeightedRows:
        """Return the rows that an epoch draws.

        Raises:
            ConfigError: none that has a weight is left.
        """
        return WeightedRows(self, remaining.gone, self.asked.samples, derive_key(seed, epoch, purpose))

    @property
    def sums(self) -> WeightSums:
        """The sums; those in a file are mapped when they are first wanted."""
        with self._lock:
            if self._sums is None:
                assert self.place is not None  # noqa: S101 only sums in files are left out of a pickle
                if (found := open_sums(self.place, self._rows)) is None or found[1] != self.digest:
                    raise StorageError(f"the weights in {str(self.place)!r} were removed or replaced; run again")
                self._sums = WeightSums(found[0])
            return self._sums

    @property
    def memory_bytes(self) -> int:
        """Bytes that are held in memory."""
        return 8 * (self._rows + 1) if self.place is None else 0

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what a file has."""
        left_out = ("_lock",) if self.place is None else ("_lock", "_sums")
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Map nothing yet."""
        vars(self).update({"_sums": None} | state, _lock=threading.Lock())


class _Column:
    """The column that says what rows weigh."""

    def __init__(
        self,
        table: Table,
        options: LoaderOptions,
        segments: SegmentTable,
        weights: Weights,
        name: str,
        fetching: FetchSettings,
    ) -> None:
        self._table = table
        self._balances = weights.balance is not None
        self._name = name
        self._chunks = Chunks.of(segments, _CHUNK_ROWS)
        self._fetching = fetching
        self._reader = table.reader([name], options.filters, row_ids=True)
        self._progress = progress_bar("weights", show=options.show_progress, interval=options.progress_interval)
        self._classes: dict[Hashable, int] = {}
        self._counts = np.zeros(sizes().balanced_classes, dtype=np.int64)
        self._lock = threading.Lock()

    def fill(self, sums: Ints) -> None:
        """Write the sums of the weights; see `build_sums`."""
        starts = np.concatenate(([0], np.cumsum(self._chunks.rows))).astype(np.int64)
        cells = sums[1:]

        def read(chunk: int) -> None:
            self._read(chunk, cells[starts[chunk] : starts[chunk + 1]])

        chunks = len(self._chunks.rows)
        with Threads(usable_cpus(), "table-loader-weights", joined=True) as pool:
            for _ in self._progress(pool.map(read, range(chunks)), chunks):
                pass
        if self._balances:
            for chunk in range(chunks):
                part = cells[starts[chunk] : starts[chunk + 1]]
                part.view(np.float64)[:] = 1 / self._counts[part]
        cumulate(sums)
        if len(cells) and not sums[-1]:
            raise TableError(
                f"all {len(cells):,} live rows have the weight 0 in column {self._name!r}, so none can be drawn; "
                "leave weights out, or change the filter"
            )

    def _read(self, chunk: int, cells: Ints) -> None:
        """Write the weights of a chunk as float64, or the numbers of its classes."""
        at, rows = 0, len(cells)
        with closing(read_tasks(self._reader, self._chunks.tasks(chunk), self._fetching)) as batches:
            for batch in batches:
                values, ids = plain(batch.column(0)), batch.column(1)
                self._refuse_missing(values, ids)
                at += batch.num_rows
                part = cells[at - batch.num_rows : at]
                if at > rows:
                    break
                if self._balances:
                    part[:] = self._numbers_of_classes(values)
                else:
                    part.view(np.float64)[:] = self._numbers(values, ids)
        if at != rows:
            raise TableError(
                f"rows of column {self._name!r}: expected {rows:,} in a part of the table, got {at:,}; did "
                "its files change? open the table anew"
            )

    def _refuse_missing(self, values: pa.Array, ids: pa.Array) -> None:
        missing = pc.is_null(values, nan_is_null=True)
        if values.null_count or (pt.is_floating(values.type) and pc.any(missing).as_py()):
            self._refuse(values, ids, missing)

    def _numbers(self, values: pa.Array, ids: pa.Array) -> NDArray[np.float64]:
        numbers: NDArray[np.float64] = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        if (wrong := (numbers < 0) | np.isinf(numbers)).any():
            self._refuse(values, ids, pa.array(wrong))
        return numbers

    def _numbers_of_classes(self, values: pa.Array) -> Ints:
        """Return a number for the class of each row, and count them."""
        encoded = values.dictionary_encode()
        with self._lock:
            numbers = [self._classes.setdefault(value, len(self._classes)) for value in encoded.dictionary.to_pylist()]
            most = len(self._counts)
            if len(self._classes) > most:
                raise ConfigError(
                    f"balance takes a column of classes, and {self._name!r} has more than "
                    f"{most:,} values; pass a column of weights instead"
                )
            found: Ints = np.array(numbers, dtype=np.int64)[encoded.indices.to_numpy()]
            self._counts += np.bincount(found, minlength=most)
        return found

    def _refuse(self, values: pa.Array, ids: pa.Array, wrong: pa.Array) -> None:
        """Refuse the first row that is wrong."""
        at, layout = pc.index(wrong, True).as_py(), self._table.layout
        row = ids[at].as_py()
        file = int(np.searchsorted(layout.file_starts, row, side="right")) - 1
        of_weights = "a weight must be a finite number of at least 0"
        wanted = "a class must not be null or NaN" if self._balances else of_weights
        raise TableError(
            f"row {row - int(layout.file_starts[file])} of {layout.files[file].name!r} has {values[at].as_py()!r} in "
            f"column {self._name!r}; {wanted}: leave such rows out with filters=, or name another column"
        )


def _check_samples(weights: Weights, rows: int) -> None:
    if weights.samples is not None and weights.samples > rows:
        raise ConfigError(
            f"weights asks for samples={weights.samples} of a table of {rows} live rows, which are drawn once each "
            "without column= or balance=; ask for fewer samples, or pass epochs= for more epochs"
        )


def _check_type(table: Table, weights: Weights, name: str) -> None:
    names = table.schema.names
    if name not in names:
        raise ConfigError(
            f"{weights.argument} of weights: the table has no such column{did_you_mean(name, names, spare=20)}"
        )
    kind = plain_type(table.schema.field(name).type)
    if weights.balance is not None:
        if pt.is_nested(kind):
            raise ConfigError(f"{weights.argument} of weights must be a column of classes, got one of {kind}")
    elif not (pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind)):
        raise ConfigError(
            f"{weights.argument} of weights must be a column of numbers, got one of {kind}; "
            f"Weights(balance={name!r}) balances its values, and filters= leaves rows out"
        )


def _name(table: Table, options: LoaderOptions, weights: Weights, column: str) -> str:
    """Return the name of the file that has the sums: the same for every run of the same table, filter and weights."""
    key = (
        _FORMAT,
        content_key(table.fingerprint, table.files),
        None if options.filters is None else filter_key(options.filters, table.schema),
        weights.argument,
        str(table.schema.field(column).type),
    )
    return f"weights-{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}"
