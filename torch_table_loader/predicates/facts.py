"""What is known of all rows of a file or row group, as expressions, and whether a filter can be true of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa

from torch_table_loader.arrow import compute as pc
from torch_table_loader.predicates.hash_parts import make_known


def can_pass(facts: Sequence[Any], filters: Any, schema: pa.Schema) -> bool:
    """Return whether a filter can be true of a row of which some facts hold; True where pyarrow cannot decide.

    >>> schema = pa.schema([("a", pa.int64())])
    >>> can_pass([pc.field("a") >= 3], pc.field("a") < 3, schema)
    False
    """
    if not facts:
        return True
    import pyarrow.dataset as ds  # about 40 MB of libraries, for those who filter

    make_known()
    # No file is opened: the dataset looks at what is known of its fragment alone.
    form = ds.IpcFileFormat()
    fragment = form.make_fragment(pa.BufferReader(b""), partition_expression=reduce(and_, facts))
    try:
        return bool(list(ds.FileSystemDataset([fragment], schema, form).get_fragments(filter=filters)))
    except pa.ArrowException:
        return True


def nan_can_pass(name: str, kind: pa.DataType, facts: Sequence[Any], filters: Any, schema: pa.Schema) -> bool:
    """Return whether a filter can be true of a row with NaN in a column, which statistics leave out."""
    if not pa.types.is_floating(kind):
        return False
    return can_pass([*facts, equals(name, pa.scalar(float("nan"), kind))], filters, schema)


def equals(name: str, value: pa.Scalar) -> Any:
    """Return the fact that a column has one value, which may be null."""
    return pc.field(name) == value if value.is_valid else pc.field(name).is_null()


def between(name: str, low: pa.Scalar, high: pa.Scalar, *, nulls: bool) -> Any:
    """Return the fact that a column lies between two values, or is null if it has `nulls`.

    None for zeros: −0 is written as 0, and `isin` tells them apart.
    """
    if pa.types.is_floating(low.type) and low.as_py() == 0 == high.as_py():
        return None
    field = pc.field(name)
    bounds = (field >= low) & (field <= high)
    return bounds | field.is_null() if nulls else bounds
