"""What the samples of a tensor shard say: the name, element type and shape of each feature, and where its values are.

A file is samples one after the other, each ``[uint32 bytes of the sample] ([uint32 bytes of the feature]
[onnx.TensorProto])*``, little-endian. Samples of one form that follow each other are found at once: all of their bytes
that are not values are compared with those of the first.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow.datatypes import ELEMENTS, ElementType
from torch_table_loader.errors import MissingExtraError, TableLoaderError

try:
    from google.protobuf.message import DecodeError
    from onnx import TensorProto
except ImportError as error:
    raise MissingExtraError(
        f"tensor shards are parsed by onnx, which is not installed ({error}); pip install 'torch-table-loader[onnx]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LENGTH = struct.Struct("<I")

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
        if feature.values is None and not _is_template(message, feature.start):
            feature = feature._replace(start=len(message), values=message[feature.start :])
        if feature.values is None:
            if key not in self._heads and len(self._heads) >= _MOST_TEMPLATES:
                self._heads.popitem(last=False)
            self._heads[key] = [(message[: feature.start], feature), *known][:_MOST_HEADS]
        return feature


def type_name(code: int) -> str:
    """Return what ONNX calls an element type."""
    return next((name for name, number in _NAMES.items() if number == code), str(code))


def byte_width(kind: pa.DataType) -> int:
    """Return the bytes of a value in a TensorProto."""
    return max(1, int(storage_of(kind).bit_width) // 8)


def storage_of(kind: pa.DataType) -> pa.DataType:
    """Return what values of a type are stored as."""
    if isinstance(kind, ElementType):
        return kind.storage_type
    return kind


def empty_tensor(name: str, kind: pa.DataType) -> Any:
    """Return a TensorProto of a name and a type, without values."""
    return TensorProto(name=name, data_type=CODES[kind])


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
    if dtype.kind == "f" or dtype.itemsize == _WIDTHS[code]:
        return _Carrier(field, dtype)
    narrow = np.dtype(f"<u{_WIDTHS[code]}")
    if pa.types.is_signed_integer(kind):
        narrow = np.dtype(f"<i{_WIDTHS[code]}")
    least, most = int(np.iinfo(narrow).min), int(np.iinfo(narrow).max)
    if pa.types.is_boolean(kind):
        most = 1
    return _Carrier(field, dtype, narrow, least, most)


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
    values = b""
    if tensor.HasField("raw_data"):
        values = tensor.raw_data
        if len(values) == count * width and values and data.endswith(values):
            return Feature(tensor.name, code, dims, len(data) - len(values))
    elif count:
        values = _typed(tensor, code)
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

    They do if the bytes after the head are `raw_data` and nothing else: then inverting them inverts it.
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


_FIRST_BLOCK, _BLOCK = 16, 4096
_MOST_FORMS = 1 << 13
"""The most lengths of samples whose forms are remembered."""

_MOST_OF_A_LENGTH = 4


class DamageError(ValueError):
    """A sample that cannot be read.

    Args:
        message: what is wrong, without file and sample.
        length: bytes of the sample, its length included; None if it is not known where the next one begins.
    """

    def __init__(self, message: str, length: int | None) -> None:
        super().__init__(message)
        self.length = length


class Place(NamedTuple):
    """A feature of some samples, and the bytes of a sample at which its values begin and end."""

    feature: Feature
    start: int
    stop: int


class Samples(NamedTuple):
    """Samples of one form that follow each other; `length` is the bytes of each, its length included."""

    num: int
    length: int
    places: tuple[Place, ...]


class _Form:
    """Samples that differ in their values alone."""

    def __init__(self, sample: bytes, places: tuple[Place, ...]) -> None:
        self.places = places
        self.length = len(sample)
        edges = [0, *(edge for place in places for edge in (place.start, place.stop)), len(sample)]
        self._heads = [
            (start, sample[start:stop]) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop
        ]
        self._at = np.concatenate([np.arange(start, start + len(head)) for start, head in self._heads])
        self._bytes = np.frombuffer(b"".join(head for _, head in self._heads), np.uint8)

    def matches(self, data: bytes, start: int) -> bool:
        """Return whether a sample of the form begins at a byte."""
        return all(data.startswith(head, start + at) for at, head in self._heads)

    def count(self, data: bytes, start: int) -> int:
        """Return how many samples of the form follow each other from a byte on, where the first one begins."""
        found, most = 1, (len(data) - start) // self.length
        if most < 2 or not self.matches(data, start + self.length):
            return found
        found, block = 2, _FIRST_BLOCK
        while found < most:
            block = min(block, most - found)
            rows = np.frombuffer(data, np.uint8, block * self.length, start + found * self.length)
            same = (rows.reshape(block, self.length)[:, self._at] == self._bytes).all(axis=1)
            if not same.all():
                return found + int(same.argmin())
            found, block = found + block, min(4 * block, _BLOCK)
        return found


class SampleWalk:
    """Finds the samples in the bytes of a file, and their features.

    Args:
        check: raises ValueError if the features of a sample are not like those of the file's other samples.
    """

    def __init__(self, check: Callable[[tuple[Place, ...]], None]) -> None:
        self._check = check
        self._parser = FeatureParser()
        self._forms: dict[int, list[_Form]] = {}

    def needs(self, data: bytes, start: int) -> int:
        """Return how many bytes the sample at `start` has, as its first bytes say."""
        if start + LENGTH.size > len(data):
            return LENGTH.size
        return LENGTH.size + int(LENGTH.unpack_from(data, start)[0])

    def next(self, data: bytes, start: int, length: int) -> Samples:
        """Return the samples of one form from a byte on; `length` is that of the first, as `needs` says."""
        known = self._forms.get(length, ())
        for form in known:
            if form.matches(data, start):
                return Samples(form.count(data, start), length, form.places)
        sample = data[start : start + length]
        if len(sample) < length:
            raise DamageError(f"it says {length} bytes, its length included, and {len(sample)} remain", None)
        try:
            places = self._places(sample)
            self._check(places)
        except TableLoaderError:
            raise
        except ValueError as error:
            raise DamageError(str(error), length) from error
        if all(place.feature.values is None for place in places):
            if len(self._forms) >= _MOST_FORMS:
                self._forms.clear()
            self._forms[length] = [_Form(sample, places), *known][:_MOST_OF_A_LENGTH]
        return Samples(1, length, places)

    def _places(self, sample: bytes) -> tuple[Place, ...]:
        """Walk over the features of a sample."""
        place, found = LENGTH.size, list[Place]()
        while place < len(sample):
            position = len(found)
            start = place + LENGTH.size
            if start > len(sample):
                raise ValueError(f"feature {position}: its length is cut off by the end of the sample")
            num_bytes = LENGTH.unpack_from(sample, place)[0]
            stop = start + num_bytes
            if stop > len(sample):
                raise ValueError(
                    f"feature {position} says {num_bytes} bytes, and {len(sample) - start} remain of the sample"
                )
            try:
                feature = self._parser.parse(position, sample[start:stop])
            except ValueError as error:
                raise ValueError(f"feature {position}: {error}") from error
            found.append(Place(feature, start + feature.start, stop))
            place = stop
        if not found:
            raise ValueError("it has no features")
        return tuple(found)
