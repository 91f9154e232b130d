"""The parts of an Arrow type: encodings around its values, types nested inside, and the width of its values."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

_VARIABLE_BYTES = 64
"""Estimated bytes of a value of variable width."""


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without extensions, dictionaries, run-ends and views.

    The children of a nested type are unchanged.

    >>> plain_type(pa.dictionary(pa.int8(), pa.string_view()))
    DataType(large_string)
    """
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pt.is_string_view(kind):
        return pa.large_string()
    if pt.is_binary_view(kind):
        return pa.large_binary()
    if is_list_view(kind):
        return pa.large_list(kind.value_type)
    return kind


def decoded_type(kind: pa.DataType) -> pa.DataType:
    """Return the value type of a dictionary; any other type is returned unchanged."""
    return kind.value_type if pt.is_dictionary(kind) else kind


def children_of(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields nested inside a type; those of a map are its key and its value."""
    if pt.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(place) for place in range(kind.num_fields)]


def is_list_view(kind: pa.DataType) -> bool:
    """Return whether values are lists with an offset and a length each."""
    return bool(pt.is_list_view(kind) or pt.is_large_list_view(kind))


def is_string(kind: pa.DataType) -> bool:
    """Return whether values are strings, in any of the three representations."""
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def is_text(kind: pa.DataType) -> bool:
    """Return whether values become Python strings or bytes.

    >>> is_text(pa.string()), is_text(pa.binary(4)), is_text(pa.int8())
    (True, True, False)
    """
    tests = (pt.is_binary, pt.is_large_binary, pt.is_fixed_size_binary, pt.is_binary_view)
    return is_string(kind) or any(test(kind) for test in tests)


def width_of(kind: pa.DataType) -> int:
    """Estimate the decoded bytes of one value."""
    if isinstance(kind, pa.BaseExtensionType):
        return width_of(kind.storage_type)
    if pt.is_struct(kind):
        return sum(width_of(child.type) for child in children_of(kind)) or 1
    if pt.is_fixed_size_list(kind):
        return int(kind.list_size) * width_of(kind.value_type)
    if pt.is_list(kind) or pt.is_large_list(kind):
        return _VARIABLE_BYTES * width_of(kind.value_type)
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return _VARIABLE_BYTES


def is_variable(kind: pa.DataType) -> bool:
    """Return whether `width_of` has to guess.

    >>> is_variable(pa.int32()), is_variable(pa.struct([("tokens", pa.list_(pa.int32()))]))
    (False, True)
    """
    if isinstance(kind, pa.BaseExtensionType):
        return is_variable(kind.storage_type)
    if pt.is_struct(kind):
        return any(is_variable(child.type) for child in children_of(kind))
    if pt.is_fixed_size_list(kind):
        return is_variable(kind.value_type)
    try:
        return kind.bit_width is None
    except ValueError:
        return True
