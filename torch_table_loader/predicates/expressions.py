"""Whether a filter expression fits a table, and what it says of a batch: pyarrow decides both."""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.arrays import bits
from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.messages import first_line, note_of_folders, the_nearest
from torch_table_loader.predicates.evaluation import bound_type, evaluated

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_MOST_CALLS, _MOST_LEVELS = 8192, 300
"""Functions of a filter, and how deep they nest: pyarrow calls itself for each of a chain, and ends the process."""

_BYTES_OF_FEW = 1 << 14
"""Of a pickled filter that has few functions for certain: each takes over a hundred bytes."""


def check_filter(filters: Any, schema: pa.Schema, unread_keys: Sequence[str] = ()) -> Any:
    """Refuse a filter that is not a boolean expression over a schema; `unread_keys` of folders are no columns of it.

    Returns:
        The filter with its literals in the types of their columns: see `fitting.fitted`.

    Raises:
        ConfigTypeError: it is not a pyarrow compute Expression.
        ConfigError: it names a column that the table does not have, compares types that do not compare, or
            does not say true or false.
    """
    if not isinstance(filters, pc.Expression):
        raise ConfigTypeError(
            "filters must be a pyarrow compute Expression such as pyarrow.compute.field('x') > 3, got "
            f"{type(filters).__name__} {filters!r}"
        )
    try:
        num_bytes = len(pickle.dumps(filters))
    except pa.ArrowNotImplementedError as error:
        raise ConfigError(
            f"filters must refer to columns by name, got {filters}; write field('name'), not field(0)"
        ) from error
    calls = levels = 0
    if num_bytes > _BYTES_OF_FEW:
        from torch_table_loader.predicates.filter_form import extent_of

        calls, levels = extent_of(filters)
    if calls > _MOST_CALLS or levels > _MOST_LEVELS:
        raise ConfigError(
            f"filters must have at most {_MOST_CALLS} comparisons and other functions, at most {_MOST_LEVELS} levels "
            f"deep, got {calls}, {levels} deep; write pyarrow.compute.field('x').isin(values) for many values of a "
            "column, and text or tuples for many terms, which are joined in a tree"
        )
    from torch_table_loader.predicates.fitting import fitted

    found = fitted(filters, schema)
    try:
        kind = bound_type(found, schema)
    except pa.ArrowException as error:
        raise ConfigError(_misfit(filters, schema, unread_keys, error)) from error
    if not pa.types.is_boolean(kind):
        raise ConfigError(
            f"filters must give true or false for each row, but {filters} gives {kind}; compare it with something"
        )
    return found


def row_mask(batch: pa.RecordBatch, filters: Any) -> pa.Array:
    """Evaluate a filter on a batch: a boolean for each row, or null where it cannot say (such a row does not pass)."""
    return row_masks(batch, [filters])[0]


def row_masks(batch: pa.RecordBatch, filters: Sequence[Any]) -> list[pa.Array]:
    """Evaluate several filters on a batch, each as `row_mask` does; the parts of one table hash its values once."""
    if batch.num_columns == 0:
        one = pa.record_batch([pa.nulls(1)], names=["none"])
        return [pa.repeat(mask[0], batch.num_rows) for mask in row_masks(one, filters)]
    try:
        masks = evaluated(filters, pa.Table.from_batches([batch])).columns
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigError(
            f"filters must give true, false or null for each value, but {' and '.join(map(str, filters)):.300} fails "
            f"on one ({first_line(error)}); compare with a value of the column's type, or cast to a type that holds all"
        ) from error
    return [mask.chunk(0) if mask.num_chunks == 1 else mask.combine_chunks() for mask in masks]


def known_true(mask: pa.BooleanArray) -> NDArray[np.bool_]:
    """Return which rows pass: bool [rows]."""
    if mask.null_count:
        mask = mask.fill_null(False)
    return bits(mask.buffers()[1], mask.offset, len(mask))


def _misfit(filters: Any, schema: pa.Schema, unread_keys: Sequence[str], error: Exception) -> str:
    unknown = re.search(r"No match for FieldRef\.(?:Nested\(FieldRef\.)?Name\((.*?)\)", first_line(error))
    if unknown is None or unknown[1] in schema.names:
        return (
            f"filters must fit the table's types, got {filters}: {first_line(error)}; compare a column with a "
            "value of its own type, or cast one of them"
        )
    hint = the_nearest(unknown[1], schema.names)
    if unknown[1] in unread_keys:
        hint = note_of_folders([unknown[1]])
    return f"filters name the column {unknown[1]!r}, which the table does not have; {hint}"
