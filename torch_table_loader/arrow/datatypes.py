"""The parts of an Arrow type: encodings around its values, types nested inside, and the width of its values.

Numbers that torch has and Arrow lacks (bfloat16, 8-bit floats, complex numbers) are extension types. Their storage
holds the bits, so that readers that do not know the type get unsigned integers or bytes.
"""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.types as pt

_VARIABLE_BYTES = 64
"""Estimated bytes of a value of variable width."""

_LIST_BYTES = 1 << 20
"""The most that is estimated of a list, unless one of its values takes more."""

_STORAGE = {
    "bfloat16": pa.uint16(),
    "float8_e4m3fn": pa.uint8(),
    "float8_e4m3fnuz": pa.uint8(),
    "float8_e5m2": pa.uint8(),
    "float8_e5m2fnuz": pa.uint8(),
    "float8_e8m0fnu": pa.uint8(),
    "complex64": pa.binary(8),
    "complex128": pa.binary(16),
}

_STRINGS = frozenset(kind.id for kind in (pa.string(), pa.large_string(), pa.string_view()))
_BINARIES = frozenset(kind.id for kind in (pa.binary(), pa.large_binary(), pa.binary(1), pa.binary_view()))
_TEXTS = _STRINGS | _BINARIES
_LIST_VIEWS = frozenset(kind.id for kind in (pa.list_view(pa.null()), pa.large_list_view(pa.null())))
_DICTIONARY, _RUNS = pa.dictionary(pa.int8(), pa.null()), pa.run_end_encoded(pa.int16(), pa.null())
_ENCODED = frozenset((_DICTIONARY.id, _RUNS.id))
_PLAIN_VIEWS = {pa.string_view().id: pa.large_string(), pa.binary_view().id: pa.large_binary()}

_SIGNED = (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float16(), pa.float32(), pa.float64())
_UNSIGNED = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_TIMES = (pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.timestamp("us"), pa.duration("us"))
PLAIN = (*_SIGNED, *_UNSIGNED, *_TIMES)
"""Types whose id says how wide they are; a table of many columns is mostly of these."""
_WIDTHS: dict[int, int] = {kind.id: max(1, kind.bit_width // 8) for kind in PLAIN}
"""Bytes of a value, by the id of a type."""

ELEMENTS = tuple(_STORAGE)
"""The names, which are torch's, of numbers that Arrow lacks."""


class _Float8(NamedTuple):
    """How 8 bits are a number: a sign, an exponent, and a mantissa of so many bits.

    Args:
        bias: what is taken off the exponent.
        nans: the bits that are no number; none are infinite.
    """

    mantissa: int
    bias: int
    nans: tuple[int, ...]


_FLOATS8 = {
    "float8_e4m3fn": _Float8(3, 7, (0x7F, 0xFF)),
    "float8_e4m3fnuz": _Float8(3, 8, (0x80,)),
    "float8_e5m2fnuz": _Float8(2, 16, (0x80,)),
}


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without extensions, dictionaries, run-ends and views.

    The children of a nested type are unchanged.

    >>> plain_type(pa.dictionary(pa.int8(), pa.string_view()))
    DataType(large_string)
    """
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if kind.id in _ENCODED:
        return plain_type(kind.value_type)
    if kind.id in _LIST_VIEWS:
        return pa.large_list(kind.value_type)
    return _PLAIN_VIEWS.get(kind.id, kind)


def decoded_type(kind: pa.DataType) -> pa.DataType:
    """Return the value type of a dictionary; any other type is returned unchanged."""
    if pt.is_dictionary(kind):
        return kind.value_type
    return kind


def children_of(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields nested inside a type; those of a map are its key and its value."""
    if pt.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(place) for place in range(kind.num_fields)]


def levels_of(kind: pa.DataType) -> int:
    """Return how many types are inside of one another, without calling itself for each.

    >>> levels_of(pa.int8()), levels_of(pa.list_(pa.struct([("a", pa.dictionary(pa.int8(), pa.string()))])))
    (1, 4)
    """
    if kind.id in _WIDTHS:
        return 1
    levels, layer = 0, [kind]
    while layer:
        levels += 1
        below = list[pa.DataType]()
        for each in layer:
            if isinstance(each, pa.BaseExtensionType):
                below.append(each.storage_type)
            elif pt.is_dictionary(each) or pt.is_run_end_encoded(each):
                below.append(each.value_type)
            elif pt.is_nested(each):
                below += (child.type for child in children_of(each))
        layer = below
    return levels


def is_list_view(kind: pa.DataType) -> bool:
    """Return whether values are lists with an offset and a length each."""
    return kind.id in _LIST_VIEWS


def is_string(kind: pa.DataType) -> bool:
    """Return whether values are strings, in any of the three representations."""
    return kind.id in _STRINGS


def is_text(kind: pa.DataType) -> bool:
    """Return whether values become Python strings or bytes.

    >>> is_text(pa.string()), is_text(pa.binary(4)), is_text(pa.int8())
    (True, True, False)
    """
    return kind.id in _TEXTS


def whole_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of integers that dates and times of a type are stored as.

    >>> whole_type(pa.date32()), whole_type(pa.timestamp("us"))
    (DataType(int32), DataType(int64))
    """
    if kind.bit_width == 32:
        return pa.int32()
    return pa.int64()


def width_of(kind: pa.DataType) -> int:
    """Estimate the decoded bytes of one value; lists within lists are not guessed to be full to the last.

    >>> width_of(pa.list_(pa.int64())), width_of(pa.list_(pa.list_(pa.list_(pa.list_(pa.string())))))
    (512, 1048576)
    """
    if (known := _WIDTHS.get(kind.id)) is not None:
        return known
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pt.is_struct(kind):
        return sum(width_of(child.type) for child in children_of(kind)) or 1
    if pt.is_fixed_size_list(kind):
        return int(kind.list_size) * width_of(kind.value_type)
    if pt.is_list(kind) or pt.is_large_list(kind):
        width = width_of(kind.value_type)
        return max(width, min(_VARIABLE_BYTES * width, _LIST_BYTES))
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return _VARIABLE_BYTES


def is_variable(kind: pa.DataType) -> bool:
    """Return whether `width_of` has to guess.

    >>> is_variable(pa.int32()), is_variable(pa.struct([("tokens", pa.list_(pa.int32()))]))
    (False, True)
    """
    if kind.id in _WIDTHS:
        return False
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


class ElementScalar(pa.ExtensionScalar):  # type: ignore[misc]  # pyarrow is not typed
    """One number of a type that Arrow lacks.

    >>> bits = pa.array([0x3FC0, None], pa.uint16())
    >>> pa.ExtensionArray.from_storage(ElementType("bfloat16"), bits).to_pylist()
    [1.5, None]
    """

    def as_py(self, **options: Any) -> float | complex | None:
        """Return a number of Python's, or None for a null."""
        if self.value is None:
            return None
        return _number(self.type.element, self.value.as_py(**options))


class ElementType(pa.ExtensionType):  # type: ignore[misc]  # pyarrow is not typed
    """Numbers of a type that Arrow lacks.

    >>> ElementType("bfloat16").storage_type
    DataType(uint16)
    """

    def __init__(self, element: str) -> None:
        """Create the type for a name among `ELEMENTS`."""
        self.element = element
        super().__init__(_STORAGE[element], f"torch.{element}")

    def __arrow_ext_serialize__(self) -> bytes:
        """Write the name."""
        return self.element.encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Self:
        """Read what `__arrow_ext_serialize__` wrote."""
        return cls(serialized.decode())

    def __arrow_ext_scalar_class__(self) -> type[ElementScalar]:
        """Return the class of single values."""
        return ElementScalar

    def __str__(self) -> str:
        """Return the name."""
        return self.element

    def __hash__(self) -> int:
        """Hash the name: equal types have equal names."""
        return hash((ElementType, self.element))


def _number(element: str, stored: int | bytes) -> float | complex:
    """Return a number as Python has it, from what its storage holds."""
    if isinstance(stored, bytes):
        return complex(*struct.unpack("<2f" if element == "complex64" else "<2d", stored))
    if element == "bfloat16":
        return float(struct.unpack("<f", (stored << 16).to_bytes(4, "little"))[0])
    if element == "float8_e5m2":
        return float(struct.unpack("<e", (stored << 8).to_bytes(2, "little"))[0])
    if element == "float8_e8m0fnu":
        return math.nan if stored == 0xFF else math.ldexp(1.0, stored - 127)
    form = _FLOATS8[element]
    if stored in form.nans:
        return math.nan
    exponent, fraction = (stored & 0x7F) >> form.mantissa, stored & (1 << form.mantissa) - 1
    if exponent:
        fraction += 1 << form.mantissa
    size = math.ldexp(fraction, max(exponent, 1) - form.bias - form.mantissa)
    return -size if stored & 0x80 else size


for _name in ELEMENTS:
    pa.register_extension_type(ElementType(_name))


def opened_type(kind: pa.DataType) -> pa.DataType:
    """Return the plain type, except of numbers that Arrow lacks: they keep theirs."""
    if isinstance(kind, ElementType):
        return kind
    return plain_type(kind)


def innermost(kind: pa.DataType) -> pa.DataType:
    """Return the type of the innermost values inside lists and encodings.

    >>> str(innermost(pa.list_(pa.list_(ElementType("bfloat16"), 3))))
    'bfloat16'
    """
    while not isinstance(kind, ElementType):
        inner = plain_type(kind)
        if inner.equals(kind):
            if not (pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind)):
                return kind
            inner = kind.value_type
        kind = inner
    return kind
