"""A walk over the samples of a tensor shard.

A file is samples one after the other, each ``[uint32 bytes of the sample] ([uint32 bytes of the feature]
[onnx.TensorProto])*``, little-endian. Samples of one form that follow each other are found at once: all of their bytes
that are no values are compared with those of the first.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torch_table_loader.read.tensorproto.protos import Feature, FeatureParser

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

LENGTH = struct.Struct("<I")
_FIRST_BLOCK, _BLOCK = 16, 4096


class Damage(ValueError):
    """A sample that cannot be read.

    Args:
        message: what is wrong, without file and sample.
        length: bytes of the sample, its length included; None where nobody knows where the next one begins.
    """

    def __init__(self, message: str, length: int | None) -> None:
        """Keep the message as the text."""
        super().__init__(message)
        self.length = length


class Place(NamedTuple):
    """A feature of some samples.

    Args:
        feature: what its head says.
        start: the byte of the sample at which its values begin.
        stop: the byte after the last.
    """

    feature: Feature
    start: int
    stop: int


class Samples(NamedTuple):
    """Samples of one form that follow each other.

    Args:
        count: how many.
        length: bytes of each, its length included.
        places: their features, in order.
    """

    count: int
    length: int
    places: tuple[Place, ...]


class _Form:
    """All bytes of a sample that are no values."""

    def __init__(self, sample: Bytes, places: tuple[Place, ...]) -> None:
        fixed = np.ones(len(sample), np.bool_)
        for place in places:
            fixed[place.start : place.stop] = False
        self.places = places
        self.length = len(sample)
        self._at = np.flatnonzero(fixed)
        self._bytes = sample[self._at].copy()

    def count(self, data: Bytes, start: int) -> int:
        """Return how many samples of the form there are from a byte on."""
        most = (len(data) - start) // self.length
        found, block = 0, 1
        while found < most:
            block = min(block, most - found)
            begin = start + found * self.length
            rows = data[begin : begin + block * self.length].reshape(block, self.length)
            same = (rows[:, self._at] == self._bytes).all(axis=1)
            if not same.all():
                return found + int(same.argmin())
            found, block = found + block, min(max(_FIRST_BLOCK, 4 * block), _BLOCK)
        return found


class SampleWalk:
    """Finds the samples in the bytes of a file, and what their features are."""

    def __init__(self) -> None:
        """Begin with no form known."""
        self._parser = FeatureParser()
        self._form: _Form | None = None

    def needs(self, data: Bytes, start: int) -> int:
        """Return how many bytes from `start` on the next sample takes, as far as its first bytes say."""
        if start + LENGTH.size > len(data):
            return LENGTH.size
        return LENGTH.size + int(LENGTH.unpack_from(data, start)[0])

    def next(self, data: Bytes, start: int) -> Samples:
        """Return the samples from a byte on that have one form.

        Args:
            data: bytes of the file.
            start: where a sample begins that is there whole.

        Raises:
            Damage: the first of them cannot be read.
        """
        if self._form is not None and (count := self._form.count(data, start)):
            return Samples(count, self._form.length, self._form.places)
        length = self.needs(data, start)
        sample = data[start : start + length]
        places = self._places(sample)
        follows = data[start + length : start + length + LENGTH.size]
        if all(place.feature.values is None for place in places) and np.array_equal(follows, sample[: LENGTH.size]):
            self._form = _Form(sample, places)
        return Samples(1, length, places)

    def _places(self, sample: Bytes) -> tuple[Place, ...]:
        """Walk over the features of a sample."""
        view, place, found = memoryview(sample), LENGTH.size, []
        while place < len(view):
            position = len(found)
            if place + LENGTH.size > len(view):
                raise Damage(f"feature {position}: its length is cut off by the end of the sample", len(view))
            num_bytes = LENGTH.unpack_from(view, place)[0]
            start, stop = place + LENGTH.size, place + LENGTH.size + num_bytes
            if stop > len(view):
                raise Damage(
                    f"feature {position} says {num_bytes} bytes, and {len(view) - start} remain of the sample", len(view)
                )
            try:
                feature = self._parser.parse(position, view[start:stop])
            except ValueError as error:
                raise Damage(f"feature {position}: {error}", len(view)) from error
            found.append(Place(feature, start + feature.start, stop))
            place = stop
        if not found:
            raise Damage("it has no features", len(view))
        return tuple(found)
