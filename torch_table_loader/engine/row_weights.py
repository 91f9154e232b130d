"""Reads what the rows of a table weigh, and keeps the sums of it for all epochs."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from typing_extensions import override

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.datatypes import plain_type
from torch_table_loader.engine.row_column import KeptSums, RowColumn, RowSums, name_of_sums
from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.messages import did_you_mean
from torch_table_loader.option_values import MOST_SAMPLES, as_weights
from torch_table_loader.planning.exclusion import Remaining
from torch_table_loader.planning.keys import derive_key
from torch_table_loader.planning.weighted_rows import (
    REPEAT_BITS,
    WeightedRows,
    WeightSums,
    cumulate,
    cumulate_repeats,
)
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from torch_table_loader.engine.table import Table
    from torch_table_loader.option_values import Weights
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.splits import SegmentTable
    from torch_table_loader.ranges import FetchSettings

    Ints: TypeAlias = NDArray[np.int64]

_NONE = np.empty(0, dtype=np.int64)

_FORMAT = 1
"""Raise it when other sums come of the same weights: names of files carry it."""


class RowWeights(RowSums):
    """The sums of what the live rows of a table weigh."""

    word = "weights"

    def __init__(self, asked: Weights, kept: KeptSums) -> None:
        super().__init__(kept)
        self.asked = asked

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
        name = name_of_sums(table, options, _FORMAT, weights.argument, weights.source)
        return cls(weights, KeptSums.of(cls.word, stores, name, rows, column.fill))

    @property
    def samples(self) -> int | None:
        """The samples of an epoch from which nothing is excluded, if the weights or the caller say that."""
        if self._one is None:
            return self.asked.samples
        return self.drawn(Remaining(self.sums.rows, _NONE), 0, 0).num_rows

    @cached_property
    def always_alike(self) -> bool:
        """Whether each row comes equally often in every epoch, since repeats are whole numbers."""
        return self._one is not None and not (self.sums.cells % self._one).any()

    @property
    def _one(self) -> int | None:
        if self.asked.repeats is None:
            return None
        return 1 << REPEAT_BITS

    @property
    def identity(self) -> str:
        """What a state is bound to: what was asked for, and the hash of what the rows weigh."""
        return f"Weights({self.asked.argument}, samples={self.asked.samples}), which are {self.digest}"

    def drawn(self, remaining: Remaining, seed: int, epoch: int, purpose: str = "places in weights") -> WeightedRows:
        """Return the rows that an epoch draws.

        Raises:
            ConfigError: none that has a weight is left.
        """
        return WeightedRows(self, remaining.gone, self.asked.samples, derive_key(seed, epoch, purpose), self._one)

    @property
    def sums(self) -> WeightSums:
        """The sums; those in a file are mapped when they are first wanted."""
        found: WeightSums = self.made
        return found

    @override
    def _make(self, cells: Ints) -> WeightSums:
        return WeightSums(cells)


class _Column(RowColumn):
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
        super().__init__(table, options, segments, name, fetching, "weights")
        self._balances = weights.balance is not None
        self._repeats = weights.repeats is not None
        self._classes: dict[Hashable, int] = {}
        self._counts = np.zeros(sizes().balanced_classes, dtype=np.int64)
        self._lock = threading.Lock()

    def fill(self, sums: Ints) -> None:
        """Write the sums of the weights; see `build_sums`."""
        cells = sums[1:]
        self.read(cells)
        if self._repeats:
            self._sum_repeats(sums)
            return
        if self._balances:
            for part in self.parts(cells):
                part.view(np.float64)[:] = 1 / self._counts[part]
        cumulate(sums)
        if len(cells) and not sums[-1]:
            raise TableError(
                f"all {len(cells):,} live rows have the weight 0 in column {self.name!r}, so none can be drawn; "
                "leave weights out, or change the filter"
            )

    def _sum_repeats(self, sums: Ints) -> None:
        rows, whole = len(sums) - 1, cumulate_repeats(sums)
        if rows and not 0.5 <= whole <= MOST_SAMPLES:
            raise TableError(
                f"the repeats of {rows:,} live rows in column {self.name!r} sum to {whole:g}, and an epoch has 1 to "
                "2^40 rows; name another column, or change the filter"
            )

    @override
    def put(self, values: pa.Array, ids: pa.Array, cells: Ints) -> None:
        """Write the weights of some rows as float64, or the numbers of their classes."""
        self._refuse_missing(values, ids)
        if self._balances:
            cells[:] = self._numbers_of_classes(values)
        else:
            cells.view(np.float64)[:] = self._numbers(values, ids)

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
                    f"balance takes a column of classes, and {self.name!r} has more than "
                    f"{most:,} values; pass a column of weights instead"
                )
            found: Ints = np.array(numbers, dtype=np.int64)[encoded.indices.to_numpy()]
            self._counts += np.bincount(found, minlength=most)
        return found

    def _refuse(self, values: pa.Array, ids: pa.Array, wrong: pa.Array) -> None:
        """Refuse the first row that is wrong."""
        of_weights = "a weight must be a finite number of at least 0"
        wanted = "a class must not be null or NaN" if self._balances else of_weights
        self.refuse(values, ids, pc.index(wrong, True).as_py(), wanted)


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
