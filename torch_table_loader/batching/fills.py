"""What the caller gave for nulls and codes, checked against the type of its column."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_table_loader.arrow.datatypes import plain_type
from torch_table_loader.arrow.elements import mark_of, opened_type
from torch_table_loader.batching.cells import GridCell
from torch_table_loader.errors import ConfigError
from torch_table_loader.messages import the_nearest
from torch_table_loader.planning.column_statistics import ColumnStatistics

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.batching.cells import Cell

T = TypeVar("T")


def _typed(option: str, path: str, given: object, kind: object, make: Callable[[], T]) -> T:
    try:
        return make()
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{option}={{{path!r}: {given!r}}} does not fit the column's type {kind}: {error}") from error


def _refuse_none(path: str, given: object) -> None:
    if given is None:
        raise ConfigError(f"nulls={{{path!r}: None}} fills nothing; give a value, or leave {path!r} out")


def is_float(given: object) -> bool:
    """Return whether a fill is a float whatever the column holds: NaN, or the mean of statistics."""
    if isinstance(given, float):
        return math.isnan(given)
    return isinstance(given, ColumnStatistics) or (isinstance(given, str) and given == "nan")


def _float_fill(path: str, given: Any, dtype: np.dtype[Any], kind: pa.DataType) -> Any:
    """Return NaN, or the mean of statistics, in a cell's dtype.

    Raises:
        ConfigError: the cell holds no floats, or the statistics have no mean.
    """
    if dtype.kind != "f":
        what, inside = (plain_type(kind).value_type, ".item") if pt.is_nested(plain_type(kind)) else (kind, "")
        remedy = f"name '{path}{inside}'" if inside and pt.is_integer(what) else "give a value of that type"
        raise ConfigError(
            f"nulls fills column {path!r} of type {kind} with {_told(given)}, which only ints and floats take; "
            f'{remedy}, or pass nulls="mask"'
        )
    if not isinstance(given, ColumnStatistics):
        return dtype.type(np.nan)
    if given.mean is None or not given.count:
        raise ConfigError(
            f"nulls fills column {path!r} with the mean of statistics that have none; measure values, without "
            "bounds_only=True"
        )
    return dtype.type(given.mean)


def _told(given: object) -> str:
    return "the mean of statistics" if isinstance(given, ColumnStatistics) else "NaN"


def fixed_fill(path: str, given: Any, cell: Cell, kind: pa.DataType) -> Any:
    """Return a fill in a cell's dtype, which broadcasts to the shape of a row.

    Args:
        given: a value, or for fixed-size lists also a list of values; "nan"; statistics, whose mean is taken.
        cell: decodes the column, and makes the fill too, so that both follow one rule.

    Raises:
        ConfigError: it is None, or of another type or range.
    """
    _refuse_none(path, given)
    if is_float(given):
        return _float_fill(path, given, cell.kind.dtype, kind)
    if not isinstance(given, list | tuple | np.ndarray):
        while isinstance(cell, GridCell):
            kind, cell = opened_type(kind.value_type), cell.item
    if pt.is_decimal(kind):
        kind = pa.float64()

    def make() -> Any:
        found = cell.values(pa.array([given], kind), set())[0]
        plain = np.asarray(given)
        # pyarrow takes 1.5 as the integer 1.
        if found.dtype.kind in "iub" and plain.dtype.kind in "iufb" and not np.array_equal(found, plain):
            raise ValueError(f"{given!r} would become {found!r}")
        return found

    return _typed("nulls", path, given, kind, make)


def list_fill(path: str, given: Any, item: Cell) -> NDArray[Any]:
    """Return the list that a null list becomes, often [], in the values' dtype.

    Raises:
        ConfigError: it is not a list, or its values are of another type or shape.
    """
    _refuse_none(path, given)
    kind = item.kind
    if not isinstance(given, list | tuple | np.ndarray):
        raise ConfigError(
            f"nulls={{{path!r}: {given!r}}} must be a list (such as []), since the column holds lists; "
            f"for nulls inside the lists name '{path}.item'"
        )

    def make() -> NDArray[Any]:
        found = np.asarray(given) if len(given) else np.empty((0, *kind.inner), kind.dtype)
        if found.shape[1:] != kind.inner:
            raise ValueError(f"a value must have the shape {kind.inner}, got {found.shape[1:]}")
        exact = found.astype(kind.dtype)
        if kind.dtype.kind != "f" and not np.array_equal(exact, found):
            raise ValueError(f"values must be {kind.dtype}")
        return exact

    return _typed("nulls", path, given, kind.dtype, make)


def pad_value(path: str, given: float, item: Cell) -> Any:
    """Return the value that pads a column of lists, in the values' dtype.

    Raises:
        ConfigError: the dtype does not hold it.
    """
    dtype = item.kind.dtype
    element = mark_of(dtype)
    if element is not None and given == 0:
        return np.zeros((), dtype)[()]
    try:
        with np.errstate(all="ignore"):
            found = dtype.type(given) if element is None else None
    except (OverflowError, ValueError):
        found = None
    fits = found is not None and (found == given if dtype.kind != "f" else np.isinf(found) == math.isinf(given))
    if not fits:
        raise ConfigError(
            f"Pad(value={given!r}) does not fit column {path!r}, whose values are {element or dtype}; choose one that "
            f"they can have, for this column alone with ragged={{{path!r}: Pad(...)}}"
        )
    return found


def text_fill(path: str, given: Any, wide: pa.DataType) -> str | bytes:
    """Check the fill of a string or binary column.

    Raises:
        ConfigError: it is None, or no string (bytes).
    """
    _refuse_none(path, given)
    scalar = _typed("nulls", path, given, wide, partial(pa.scalar, given, wide))
    found: str | bytes = scalar.as_py()
    return found


def vocabulary_array(path: str, given: Any, wide: pa.DataType) -> pa.Array:
    """Check a vocabulary and make it an Arrow array.

    Raises:
        ConfigError: it holds another type, or a value twice, or None.
    """
    values = _typed("the Vocabulary of strings", path, given, wide, lambda: pa.array(given, wide))
    if values.null_count or len(values.unique()) != len(values):
        raise ConfigError(
            f"the Vocabulary of strings[{path!r}] must not repeat a value or contain None; null is always −1"
        )
    return values


def check_names(option: str, names: Mapping[str, Any], known: Mapping[str, str], usable_for: set[str]) -> None:
    """Refuse names of an option that cannot be used for them.

    Args:
        known: every path of the schema, and its kind.
        usable_for: the kinds for which the option can be used.

    Raises:
        ConfigError: with the nearest names.
    """
    usable = [path for path, what in known.items() if what in usable_for]
    for name in names:
        if name in usable:
            continue
        if name in known:
            raise ConfigError(f"{option} names {name!r}, which is a {known[name]}; it is for: {_few(usable)}")
        near = the_nearest(name, usable, spare=5)
        raise ConfigError(f"{option} names {name!r}, which is not a column here; {near}")


def _few(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:5])) or "none"
