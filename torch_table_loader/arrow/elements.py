"""Numbers that torch has and Arrow lacks, as extension types: bfloat16, 8-bit floats, complex numbers.

The storage holds their bits, so that readers that do not know the type get unsigned integers or bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_table_loader.arrow.datatypes import plain_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

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

ELEMENTS = tuple(_STORAGE)
"""Their names, which are torch's."""


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

    def __str__(self) -> str:
        """Return the name."""
        return self.element

    def __hash__(self) -> int:
        """Hash the name: equal types have equal names."""
        return hash((ElementType, self.element))


for _name in ELEMENTS:
    pa.register_extension_type(ElementType(_name))


def opened_type(kind: pa.DataType) -> pa.DataType:
    """Return the plain type, except of numbers that Arrow lacks: they keep theirs."""
    return kind if isinstance(kind, ElementType) else plain_type(kind)


def marked_dtype(element: str) -> np.dtype[Any]:
    """Return the dtype in which arrays hold numbers of a name among `ELEMENTS`.

    numpy has complex numbers. For the others it is a record of one field, named after the element, so that bits are
    moved unchanged and nothing can be computed with them by mistake.

    >>> marked_dtype("complex64"), marked_dtype("bfloat16").names
    (dtype('complex64'), ('bfloat16',))
    """
    if element.startswith("complex"):
        return np.dtype(element)
    return np.dtype([(element, f"u{_STORAGE[element].bit_width // 8}")])


def mark_of(dtype: np.dtype[Any]) -> str | None:
    """Return the element of a dtype from `marked_dtype`, if numpy lacks it; None for any other dtype."""
    return None if dtype.names is None else dtype.names[0]


def unmarked(values: NDArray[Any], element: str) -> NDArray[Any]:
    """View marked values as the unsigned integers of their bits."""
    found: NDArray[Any] = values.view(f"u{_STORAGE[element].bit_width // 8}")
    return found


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
