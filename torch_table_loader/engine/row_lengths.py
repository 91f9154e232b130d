"""How many tokens each live row of a table has, read once and kept for all epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from typing_extensions import override

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.arrays import plain
from torch_table_loader.arrow.datatypes import plain_type
from torch_table_loader.engine.row_column import KeptSums, RowColumn, RowSums, name_of_sums
from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.messages import did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from torch_table_loader.engine.table import Table
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.splits import SegmentTable
    from torch_table_loader.ranges import FetchSettings

    Ints: TypeAlias = NDArray[np.int64]

_FORMAT = 1
"""Raise it when other sums come of the same column: names of files carry it."""

_MOST_TOKENS = 2**31
"""The most tokens of a row, so that sums of any rows fit."""


class RowLengths(RowSums):
    """The tokens of the live rows before each."""

    word = "lengths"

    @classmethod
    def of(
        cls,
        table: Table,
        options: LoaderOptions,
        segments: SegmentTable,
        column: str,
        stores: Path | None,
        fetching: FetchSettings,
    ) -> Self:
        """Read the lengths of a table's rows, unless they are kept already.

        Args:
            segments: whole files; every live row is known.
            column: lists, whose values are counted, or integers.
            stores: the folder of row stores; None keeps the sums in memory.

        Raises:
            ConfigError: there is no such column, or it has another type.
            TableError: a row has no length, or one that is no number of tokens.
        """
        check_lengths(table.schema, column)
        read = _Column(table, options, segments, column, fetching, cls.word)
        name = name_of_sums(table, _FORMAT, column, column)
        return cls(KeptSums.of(cls.word, stores, name, int(segments.live.sum()), read.fill))

    def take(self, rows: Ints) -> Ints:
        """Return the tokens of some rows of the store."""
        cells: Ints = self.made
        return cells[rows + 1] - cells[rows]

    @override
    def _make(self, cells: Ints) -> Ints:
        return cells


class _Column(RowColumn):
    """The column that says how long rows are."""

    def fill(self, sums: Ints) -> None:
        """Write the sums of the lengths; see `build_sums`."""
        self.read(sums[1:])
        np.cumsum(sums, out=sums)

    @override
    def put(self, values: pa.Array, ids: pa.Array, cells: Ints) -> None:
        """Write the lengths of some rows."""
        if (at := _first_wrong(values)) is not None:
            self.refuse(values, ids, at, _WANTED)
        cells[:] = _lengths(values)


_WANTED = f"a length must be an integer from 0 to {_MOST_TOKENS}"


def check_lengths(schema: pa.Schema, column: str) -> bool:
    """Return whether a column of lengths has lists, whose values are counted.

    Raises:
        ConfigError: there is no such column, or it has another type.
    """
    names = schema.names
    if column not in names:
        raise ConfigError(
            f"length={column!r} of Budget: the table has no such column{did_you_mean(column, names, spare=20)}"
        )
    kind = plain_type(schema.field(column).type)
    if not (pt.is_integer(kind) or _are_lists(kind)):
        raise ConfigError(
            f"length={column!r} of Budget must be a column of lists, whose values are counted, or of integers, got "
            f"one of {kind}; name another column"
        )
    return bool(pt.is_list(kind) or pt.is_large_list(kind))


def lengths_in(column: str, values: pa.Array) -> Ints:
    """Return the lengths of some rows.

    Raises:
        TableError: a row has no length, or one that is no number of tokens.
    """
    values = plain(values)
    if (at := _first_wrong(values)) is not None:
        raise TableError(
            f"a row has {values[at].as_py()!r} in column {column!r}; {_WANTED}: leave such rows out with filters=, or "
            "name another column"
        )
    return _lengths(values)


def _first_wrong(values: pa.Array) -> int | None:
    """Return the first row that has no length; None if all have one."""
    if _are_lists(values.type):
        return None
    wrong = pc.or_kleene(pc.is_null(values), pc.or_(pc.less(values, 0), pc.greater(values, _MOST_TOKENS)))
    found: int = pc.index(wrong, pa.scalar(True)).as_py()
    if found >= 0:
        return found
    return None


def _lengths(values: pa.Array) -> Ints:
    """Return the lengths of rows that have one; a list that is null has none."""
    if _are_lists(values.type):
        values = pc.fill_null(pc.list_value_length(values), 0)
    found: Ints = values.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return found


def _are_lists(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))
