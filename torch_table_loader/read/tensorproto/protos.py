"""What a serialized TensorProto says: its name, element type and shape, and where its values are."""

from __future__ import annotations

from collections import OrderedDict
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow.elements import ELEMENTS, ElementType
from torch_table_loader.errors import MissingExtraError

try:
    from google.protobuf.message import DecodeError
    from onnx import TensorProto
except ImportError as error:
    raise MissingExtraError(
        f"tensor shards are parsed by onnx, which is not installed ({error}); pip install 'torch-table-loader[onnx]'"
    ) from error

__all__ = ["CODES", "TYPES", "Feature", "FeatureParser", "TensorProto", "byte_width", "type_name"]

if TYPE_CHECKING:
    from collections.abc import Mapping

_NATIVE = {
    "FLOAT": pa.float32(),
    "UINT8": pa.uint8(),
    "INT8": pa.int8(),
    "UINT16": pa.uint16(),
    "INT16": pa.int16(),
    "INT32": pa.int32(),
    "INT64": pa.int64(),
    "BOOL": pa.bool_(),
    "FLOAT16": pa.float16(),
    "DOUBLE": pa.float64(),
    "UINT32": pa.uint32(),
    "UINT64": pa.uint64(),
}
_NAMES = dict(TensorProto.DataType.items())
TYPES: Mapping[int, pa.DataType] = {_NAMES[name]: kind for name, kind in _NATIVE.items()} | {
    _NAMES[name]: ElementType(element)
    for element in ELEMENTS
    if (name := element.upper().replace("FLOAT8_", "FLOAT8").replace("E8M0FNU", "E8M0")) in _NAMES
}
"""The Arrow type of the values, by the number of their type in a TensorProto: all that torch has too."""

CODES: Mapping[pa.DataType, int] = {kind: code for code, kind in TYPES.items()}
"""The number of a type in a TensorProto, by the Arrow type of the values."""

_MOST_TEMPLATES = 1 << 14
_MOST_HEADS = 4
"""The most heads of one length that are remembered: mostly, all samples have the same head in a feature."""


class Feature(NamedTuple):
    """A parsed TensorProto.

    Args:
        name: may be empty.
        start: the byte of the message at which its values begin; they continue to its end.
        values: the values' bytes, if they are not those from `start` on; else None.
    """

    name: str
    code: int
    dims: tuple[int, ...]
    start: int
    values: bytes | None = None


class FeatureParser:
    """Parses TensorProtos, each form of them once.

    If its values are the last bytes of a message, the bytes before them are its head. Another message of the same
    length that begins with the same head differs in its values alone, and is not parsed.
    """

    def __init__(self) -> None:
        self._heads: OrderedDict[tuple[int, int], list[tuple[bytes, Feature]]] = OrderedDict()

    def parse(self, position: int, message: bytes) -> Feature:
        """Parse the feature at a position of a sample.

        Raises:
            ValueError: it is no TensorProto, or none that can be read; says why.
        """
        key = (position, len(message))
        known = self._heads.get(key, ())
        for head, feature in known:
            if message.startswith(head):
                return feature
        feature = _parsed(message)
        if feature.values is None and _is_template(message, feature.start):
            if key not in self._heads and len(self._heads) >= _MOST_TEMPLATES:
                self._heads.popitem(last=False)
            self._heads[key] = [(message[: feature.start], feature), *known][:_MOST_HEADS]
        return feature


def type_name(code: int) -> str:
    """Return what ONNX calls an element type."""
    return next((name for name, number in _NAMES.items() if number == code), str(code))


def byte_width(kind: pa.DataType) -> int:
    """Return the bytes of a value in a TensorProto."""
    storage = kind.storage_type if isinstance(kind, ElementType) else kind
    return max(1, int(storage.bit_width) // 8)


_WIDTHS = {code: byte_width(kind) for code, kind in TYPES.items()}
_EXTERNAL = TensorProto.EXTERNAL
_FIELDS: Mapping[str, tuple[str, np.dtype[Any]]] = {
    **dict.fromkeys(("FLOAT", "COMPLEX64"), ("float_data", np.dtype("<f4"))),
    **dict.fromkeys(("DOUBLE", "COMPLEX128"), ("double_data", np.dtype("<f8"))),
    **dict.fromkeys(("UINT32", "UINT64"), ("uint64_data", np.dtype("<u8"))),
    "INT64": ("int64_data", np.dtype("<i8")),
}
"""The field of values that are not in `raw_data`, and its type, by the name of theirs; of all others `int32_data`."""


class _Carrier(NamedTuple):
    """The field that holds the values of a type, and the bounds of its numbers.

    Args:
        narrow: the type of a value, if it is not that of the field, which has floats as their bits.
    """

    field: str
    dtype: np.dtype[Any]
    narrow: np.dtype[Any] | None = None
    least: int = 0
    most: int = 0


def _carrier(code: int, kind: pa.DataType) -> _Carrier:
    field, dtype = _FIELDS.get(type_name(code), ("int32_data", np.dtype("<i4")))
    signed = pa.types.is_signed_integer(kind)
    if dtype.kind == "f" or dtype.itemsize == _WIDTHS[code]:
        return _Carrier(field, dtype)
    narrow = np.dtype(f"<{'i' if signed else 'u'}{_WIDTHS[code]}")
    most = 1 if pa.types.is_boolean(kind) else int(np.iinfo(narrow).max)
    return _Carrier(field, dtype, narrow, int(np.iinfo(narrow).min), most)


_CARRIERS = {code: _carrier(code, kind) for code, kind in TYPES.items()}


def _parsed(data: bytes) -> Feature:
    tensor = _message(data)
    if tensor.data_location == _EXTERNAL:
        raise ValueError("its values are in another file (external data), which is not read")
    if tensor.HasField("segment"):
        raise ValueError("it is a segment of a tensor, and only whole tensors are read")
    code, dims = tensor.data_type, tuple(tensor.dims)
    if dims and min(dims) < 0:
        raise ValueError(f"its shape is {list(dims)}")
    count, width = prod(dims), _WIDTHS.get(code)
    if width is None:
        return Feature(tensor.name, code, dims, len(data), None if count == 0 else b"")
    if tensor.HasField("raw_data"):
        values = tensor.raw_data
        if len(values) == count * width and values and data.endswith(values):
            return Feature(tensor.name, code, dims, len(data) - len(values))
    else:
        values = _typed(tensor, code) if count else b""
    if len(values) != count * width:
        raise ValueError(
            f"it has {len(values)} bytes of values, and {type_name(code)} of the shape {list(dims)} has {count * width}"
        )
    return Feature(tensor.name, code, dims, len(data), values or None)


def _typed(tensor: Any, code: int) -> bytes:
    """Return the bytes of values that are in the field of their type."""
    carrier = _CARRIERS[code]
    values = np.array(getattr(tensor, carrier.field), carrier.dtype)
    if carrier.narrow is not None and values.size:
        least, most = int(values.min()), int(values.max())
        if least < carrier.least or most > carrier.most:
            wrong = least if least < carrier.least else most
            raise ValueError(
                f"{carrier.field} has the value {wrong}, and those of {type_name(code)} are {carrier.least} to "
                f"{carrier.most}"
            )
        values = values.astype(carrier.narrow)
    return bytes(values.tobytes())


def _message(data: bytes) -> Any:
    try:
        return TensorProto.FromString(data)
    except DecodeError as error:
        raise ValueError(f"it is not an onnx.TensorProto ({error})") from error


def _is_template(data: bytes, start: int) -> bool:
    """Return whether messages of this head and length differ in their values alone.

    They do if the bytes behind the head are `raw_data` and nothing else: then inverting them inverts it.
    """
    inverted = (~np.frombuffer(data, np.uint8, offset=start)).tobytes()
    one, other = _message(data), TensorProto()
    try:
        other.ParseFromString(data[:start] + inverted)
    except DecodeError:
        return False
    if start == len(data):
        return True
    if other.raw_data != inverted:
        return False
    one.ClearField("raw_data")
    other.ClearField("raw_data")
    return bool(one == other)
