"""Reads what the rows of a table weigh, and keeps the sums of it for all epochs."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from typing_extensions import override

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.datatypes import plain_type
from torch_table_loader.cached import cached_property
from torch_table_loader.engine.row_column import KeptSums, RowColumn, RowSums, name_of_sums
from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.messages import did_you_mean
from torch_table_loader.option_values import MOST_SAMPLES, as_weights
from torch_table_loader.order.weighted_rows import (
    REPEAT_BITS,
    WeightedRows,
    WeightSums,
    cumulate,
    cumulate_repeats,
)
from torch_table_loader.planning.keys import derive_key
from torch_table_loader.planning.orders import EachOnce
from torch_table_loader.ranges import FetchSettings
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from torch_table_loader.engine.table import Table
    from torch_table_loader.option_values import Weights
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.exclusion import Remaining
    from torch_table_loader.planning.splits import SegmentTable

    Ints: TypeAlias = NDArray[np.int64]

_FORMAT = 1
"""Raise it when other sums come of the same weights: names of files carry it."""


def draws_of(
    table: Table, options: LoaderOptions, segments: SegmentTable, stores: Path | None
) -> RowWeights | SomeRows:
    """Return how often each row of a table comes; weights are read, unless they are kept already.

    Args:
        segments: whole files; every live row is known.
        stores: the folder of row stores; None keeps the sums in memory.

    Raises:
        ConfigError: there is no such column, or it has another type, or there are too few rows.
        TableError: a row has no weight or one that is not a number of at least 0, or all weights are 0.
    """
    asked, rows = as_weights(options.weights), int(segments.live.sum())
    if asked.source is None:
        return SomeRows.of(asked, rows)
    if asked.samples and not rows:
        raise ConfigError(
            f"the table has no live row, of which samples={asked.samples} could be drawn; change the filter"
        )
    _check_type(table, asked, asked.source)
    column = _Column(table, options, segments, asked, asked.source)
    name = name_of_sums(table, _FORMAT, asked.argument, asked.source)
    return RowWeights(asked, KeptSums.of(RowWeights.word, stores, name, rows, column.fill))


@dataclass(frozen=True, slots=True)
class SomeRows(EachOnce):
    """Some of the rows come in an epoch, each once."""

    asked: Weights = field(kw_only=True)

    @classmethod
    def of(cls, asked: Weights, rows: int) -> SomeRows:
        """Check that a table of some live rows has enough of them.

        Raises:
            ConfigError: it has fewer.
        """
        if asked.samples is not None and asked.samples > rows:
            raise ConfigError(
                f"weights asks for samples={asked.samples} of a table of {rows} live rows, which are drawn once each "
                "without column= or balance=; ask for fewer samples, or pass epochs= for more epochs"
            )
        return cls(asked.samples, asked=asked)

    @property
    @override
    def bound(self) -> Mapping[str, str]:
        return {"weights": f"Weights(samples={self.most})"}

    @override
    def refuse_rounds_that_differ(self) -> None:
        _refuse_rounds(self.asked)

    @override
    def in_words(self, rows: str, left: str) -> str:
        return f"{rows} an epoch are drawn from {left}"


class RowWeights(RowSums):
    """The sums of what the live rows of a table weigh."""

    word = "weights"

    def __init__(self, asked: Weights, kept: KeptSums) -> None:
        super().__init__(kept)
        self.asked = asked

    @property
    def most(self) -> None:
        """No bound: samples are counted when they are drawn."""

    @property
    def strategy(self) -> str:
        """What `explain()` calls the order."""
        return "rows by weight"

    @cached_property
    def _always_alike(self) -> bool:
        """Whether each row comes equally often in every epoch, since repeats are whole numbers."""
        return self._one is not None and not (self.sums.cells % self._one).any()

    @property
    def _one(self) -> int | None:
        if self.asked.repeats is None:
            return None
        return 1 << REPEAT_BITS

    @property
    def bound(self) -> Mapping[str, str]:
        """What was asked for, and the hash of what the rows weigh."""
        asked = f"Weights({self.asked.argument}, samples={self.asked.samples})"
        return {"weights": f"{asked}, which are {self.digest}"}

    def selected(
        self, remaining: Remaining, seed: int, epoch: int, source: str | None = None
    ) -> Remaining | WeightedRows:
        """Return the rows that an epoch draws of those that are left; none of none.

        Raises:
            ConfigError: none that has a weight is left.
        """
        if not remaining.num_rows:
            return remaining
        purpose = "places in weights"
        if source is not None:
            purpose = f"{purpose} of source {source}"
        return WeightedRows(self, remaining.gone, self.asked.samples, derive_key(seed, epoch, purpose), self._one)

    def refuse_rounds_that_differ(self) -> None:
        """Refuse weights that draw other rows in each round.

        Raises:
            ConfigError: names them.
        """
        if not self._always_alike:
            _refuse_rounds(self.asked)

    def in_words(self, rows: str, left: str) -> str:
        """Say how rows are drawn of those that are left."""
        return f"{rows} an epoch are drawn by weight, {self.asked.argument}, from {left}"

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
    ) -> None:
        super().__init__(table, options, segments, name, FetchSettings.of(options), "weights")
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


def _refuse_rounds(weights: Weights) -> NoReturn:
    raise ConfigError(
        f"rounds of a source of a mixture have the same documents, got weights={weights!r}; pass "
        "Weights(repeats=) with a column of whole numbers, or leave weights out of the packs of its sources"
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
