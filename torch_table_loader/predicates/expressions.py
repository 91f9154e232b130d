"""Filters as expressions: whether one fits a table, and what it says of a batch, pyarrow decides.

Parts of a table by a hash of its values, such as training and validation rows, are such an expression, too: a function
that pyarrow knows by a name. A row's part is a pure function of its values, the seed and the shares: the same in every
order, on every rank, machine and release.
"""

from __future__ import annotations

import pickle
import re
import threading
from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from torch_table_loader.arrow import compute as pc
from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.messages import did_you_mean, first_line, note_of_folders, the_nearest
from torch_table_loader.units import integer

_FUNCTION = "torch_table_loader_hash_between"
_REGISTERING = threading.Lock()
_HASHES = 1 << 64
_NULL = "\x00"
"""What stands for null among the values of several columns."""


def check_filter(filters: Any, schema: pa.Schema, unread_keys: Sequence[str] = ()) -> None:
    """Refuse a filter that is not a boolean expression over a schema; `unread_keys` of folders are no columns of it.

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
        pickle.dumps(filters)
    except pa.ArrowNotImplementedError as error:
        raise ConfigError(
            f"filters must refer to columns by name, got {filters}; write field('name'), not field(0)"
        ) from error
    try:
        kind = _bound_type(filters, schema)
    except pa.ArrowException as error:
        raise ConfigError(_misfit(filters, schema, unread_keys, error)) from error
    if not pa.types.is_boolean(kind):
        raise ConfigError(
            f"filters must give true or false for each row, but {filters} gives {kind}; compare it with something"
        )


def row_mask(batch: pa.RecordBatch, filters: Any) -> pa.Array:
    """Evaluate a filter on a batch: a boolean for each row, or null where it cannot say (such a row does not pass)."""
    if batch.num_columns == 0:
        one = pa.record_batch([pa.nulls(1)], names=["none"])
        return pa.repeat(row_mask(one, filters)[0], batch.num_rows)
    mask = _project(filters, pa.Table.from_batches([batch])).column(0)
    return mask.chunk(0) if mask.num_chunks == 1 else mask.combine_chunks()


def _project(filters: Any, table: pa.Table) -> pa.Table:
    from pyarrow import acero  # about 40 MB of libraries, for those who filter

    make_known()
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    project = acero.Declaration("project", acero.ProjectNodeOptions([filters], ["mask"]))
    # One thread: with more, acero hands out chunks in the order in which they are ready.
    return acero.Declaration.from_sequence([source, project]).to_table(use_threads=False)


def _bound_type(filters: Any, schema: pa.Schema) -> pa.DataType:
    # `schema.empty_table()` does not know extension types inside lists.
    empty = pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)
    return _project(filters, empty).schema.field(0).type


def _misfit(filters: Any, schema: pa.Schema, unread_keys: Sequence[str], error: Exception) -> str:
    unknown = re.search(r"No match for FieldRef\.(?:Nested\(FieldRef\.)?Name\((.*?)\)", first_line(error))
    if unknown is None or unknown[1] in schema.names:
        return (
            f"filters must fit the table's types, got {filters}: {first_line(error)}; compare a column with a "
            "value of its own type, or cast one of them"
        )
    hint = note_of_folders([unknown[1]]) if unknown[1] in unread_keys else the_nearest(unknown[1], schema.names)
    return f"filters name the column {unknown[1]!r}, which the table does not have; {hint}"


def part_of(columns: str | Sequence[str], shares: Mapping[Any, float], part: Hashable, *, seed: int = 0) -> Any:
    """Return a filter that keeps one part of a table; rows with equal values in the columns are in the same part.

    A column such as a user's id keeps all rows of a user together. Each row is in exactly one part. Values are hashed
    as text (XXH3, 64 bits), so that the width of an int does not matter; null is a value.

    Args:
        columns: a column, or several; of types that pyarrow casts to strings.
        shares: the share of each part, by name, in any unit; their order matters.
        part: which one to keep.
        seed: another seed divides the values differently; from 0 to 2^64 − 1.

    Returns:
        A pyarrow compute Expression for ``filters=``, to be joined with others by ``&``; ``~`` keeps the other parts.

    Raises:
        ConfigError: there is no such part or no column, or a share is not a number of at least 0.

    >>> rows = pa.table({"user": range(1000)})
    >>> shares = {"train": 0.9, "val": 0.1}
    >>> {part: rows.filter(part_of("user", shares, part)).num_rows for part in shares}
    {'train': 899, 'val': 101}
    """
    make_known()
    low, high = _range_of(shares, part)
    seed = integer("seed", seed, 0, _HASHES - 1)
    numbers = [pc.scalar(pa.scalar(number, pa.uint64())) for number in (seed, min(low, _HASHES - 1), max(0, high - 1))]
    found = pc.Expression._call(_FUNCTION, [_text_of(columns), *numbers])
    return found if low < high else found & pc.scalar(False)  # a share of 0 has no hash


def _text_of(columns: str | Sequence[str]) -> Any:
    names = [columns] if isinstance(columns, str) else list(columns)
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigTypeError(f"columns must be the name of a column, or a list of names, got {columns!r}")
    texts = [pc.field(name).cast(pa.string()) for name in names]
    if len(texts) == 1:
        return texts[0]
    return pc.binary_join_element_wise(*texts, "\x1f", null_handling="replace", null_replacement=_NULL)


def _range_of(shares: Mapping[Any, float], part: Hashable) -> tuple[int, int]:
    """Return the first hash of a part, and the one behind its last.

    >>> _range_of({"a": 1, "b": 3}, "b") == (2**62, 2**64)
    True
    """
    if not isinstance(shares, Mapping) or not shares:
        raise ConfigTypeError(f"shares must be {{part: share}}, got {shares!r}")
    if wrong := [
        name
        for name, share in shares.items()
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < float("inf")
    ]:
        raise ConfigError(f"the share of {wrong[0]!r} must be a number of at least 0, got {shares[wrong[0]]!r}")
    if part not in shares:
        raise ConfigError(f"shares has no part {part!r}{did_you_mean(str(part), list(map(str, shares)), spare=20)}")
    ends = list(accumulate(map(Fraction, shares.values())))
    if not ends[-1]:
        raise ConfigError(f"a share must be above 0, got {dict(shares)!r}")
    edges = [0, *(int(end * _HASHES / ends[-1]) for end in ends)]
    at = list(shares).index(part)
    return edges[at], edges[at + 1]


def _hash_between(_: Any, texts: Any, seed: Any, low: Any, high: Any) -> Any:
    """Say of each text whether its hash lies between two numbers, both included."""
    if isinstance(texts, pa.Scalar):  # a partition column, whose value is known without reading
        return _hash_between(_, pa.array([texts.as_py()], pa.string()), seed, low, high)[0]
    if not len(texts):
        return pa.array([], pa.bool_())
    key, first, last = (
        (number if isinstance(number, pa.Scalar) else number[0]).as_py() for number in (seed, low, high)
    )
    encoded = texts.dictionary_encode(null_encoding="encode")
    values = encoded.dictionary.to_pylist()
    hashes = np.fromiter((_hash_of(value, key) for value in values), dtype=np.uint64, count=len(values))
    inside = (hashes >= np.uint64(first)) & (hashes <= np.uint64(last))
    return pa.array(inside[encoded.indices.to_numpy()])


def _hash_of(text: str | None, seed: int) -> int:
    return xxhash.xxh3_64_intdigest(b"\xff" if text is None else text.encode(), seed)


def make_known() -> None:
    """Make the function known to pyarrow in this process, where expressions of `part_of` are to be evaluated."""
    with _REGISTERING:
        _register()


@cache
def _register() -> None:
    pc.register_scalar_function(
        _hash_between,
        _FUNCTION,
        {"summary": "Whether a hash lies in a range", "description": "XXH3 of texts; see torch_table_loader.part_of."},
        {"texts": pa.string(), "seed": pa.uint64(), "low": pa.uint64(), "high": pa.uint64()},
        pa.bool_(),
    )
