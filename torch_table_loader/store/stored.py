"""Which Arrow type a column has in the store, and the way there and back.

Most types are stored as they are. Dictionaries and run-ends are stored as what they stand for, views as plain strings
and lists, extension types as what is inside: Arrow can gather all of those by index.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from torch_table_loader.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Fixed:
    """A type of fixed width.

    Args:
        item: the Arrow type of one value.
        sizes: of the fixed-size lists around it, outermost first.
        width: bytes of one value in a record.
    """

    item: pa.DataType
    sizes: tuple[int, ...]
    width: int

    @property
    def count(self) -> int:
        """Values in a row."""
        return prod(self.sizes)

    @property
    def null_bits(self) -> int:
        """Bits that say which parts of a row are null: one for the row, one for each list inside, one a value."""
        return sum(prod(self.sizes[:depth]) for depth in range(len(self.sizes) + 1))


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that a column of some type has in the store.

    >>> stored_type(pa.dictionary(pa.int8(), pa.string()))
    DataType(string)
    """
    if isinstance(kind, pa.BaseExtensionType):
        return stored_type(kind.storage_type)
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        return stored_type(kind.value_type)
    if pt.is_string_view(kind):
        return pa.large_string()
    if pt.is_binary_view(kind):
        return pa.large_binary()
    if pt.is_list_view(kind) or pt.is_large_list_view(kind):
        return pa.large_list(kind.value_type)
    return kind


def to_stored(array: pa.Array) -> pa.Array:
    """Bring an array to its stored type."""
    while (kind := array.type) != stored_type(kind):
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif isinstance(array, pa.DictionaryArray):
            array = array.dictionary_decode()
        elif isinstance(array, pa.RunEndEncodedArray):
            array = pc.run_end_decode(array)
        elif pt.is_list_view(kind) or pt.is_large_list_view(kind):
            array = _as_list(array)
        else:
            array = array.cast(stored_type(kind))
    return array


def from_stored(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Bring an array of the stored type of `kind` back to `kind`."""
    if array.type == kind:
        return array
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, from_stored(array, kind.storage_type))
    if pt.is_dictionary(kind):
        encoded = from_stored(array, kind.value_type).dictionary_encode()
        indices = encoded.indices.cast(kind.index_type)
        return pa.DictionaryArray.from_arrays(indices, encoded.dictionary, ordered=kind.ordered)
    if pt.is_run_end_encoded(kind):
        return pc.run_end_encode(from_stored(array, kind.value_type), run_end_type=kind.run_end_type)
    if pt.is_list_view(kind) or pt.is_large_list_view(kind):
        return _as_view(array, kind)
    return array.cast(kind)


def fixed(kind: pa.DataType) -> Fixed | None:
    """Describe a stored type of fixed width; None if its values have no fixed width.

    >>> fixed(pa.list_(pa.int16(), 3))
    Fixed(item=DataType(int16), sizes=(3,), width=2)
    >>> fixed(pa.string()) is None
    True
    """
    sizes: list[int] = []
    while pt.is_fixed_size_list(kind):
        sizes.append(kind.list_size)
        kind = kind.value_type
    if pt.is_boolean(kind):
        return Fixed(kind, tuple(sizes), 1)
    if pt.is_nested(kind) or pt.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType) or pt.is_null(kind):
        return None
    try:
        bits = int(kind.bit_width)
    except ValueError:
        return None
    return None if 0 in sizes or bits < 8 else Fixed(kind, tuple(sizes), bits // 8)


def check_storable(schema: pa.Schema) -> None:
    """Refuse columns that the store could not give back.

    Raises:
        ConfigError: names the column and its type.
    """
    for entry in schema:
        try:
            probe = pa.nulls(2, stored_type(entry.type))
            back = from_stored(probe.take(pa.array([1, 0])), entry.type)
            pa.concat_arrays([probe, probe])
        except (pa.ArrowException, NotImplementedError, ValueError, TypeError) as error:
            raise ConfigError(
                f"column {entry.name!r} is of type {entry.type}, which cannot be gathered row by row ({error}); leave "
                'it out with columns=[...], or take shuffle="splits"'
            ) from error
        if back.type != entry.type:
            raise ConfigError(
                f"column {entry.name!r} is of type {entry.type}, which comes back as {back.type}; leave it out with "
                'columns=[...], or take shuffle="splits"'
            )


def _as_list(views: pa.Array) -> pa.Array:
    """Turn list views into lists: pyarrow 26 casts them to offsets that do not rise."""
    lengths = views.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
    mask = views.is_null() if views.null_count else None
    return pa.LargeListArray.from_arrays(pa.array(offsets), views.flatten(), mask=mask)


def _as_view(lists: pa.Array, kind: pa.DataType) -> pa.Array:
    """Turn large lists into list views."""
    wide = pt.is_large_list_view(kind)
    index = pa.int64() if wide else pa.int32()
    lengths = lists.value_lengths().fill_null(0).cast(index)
    mask = lists.is_null() if lists.null_count else None
    make = pa.LargeListViewArray if wide else pa.ListViewArray
    return make.from_arrays(lists.offsets.slice(0, len(lists)).cast(index), lengths, lists.values, type=kind, mask=mask)
