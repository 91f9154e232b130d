"""A walk over the samples of a tensor shard.

A file is samples one after the other, each ``[uint32 bytes of the sample] ([uint32 bytes of the feature]
[onnx.TensorProto])*``, little-endian. Samples of one form that follow each other are found at once: all of their bytes
that are not values are compared with those of the first.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torch_table_loader.errors import TableLoaderError
from torch_table_loader.read.tensorproto.protos import Feature, FeatureParser

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTH = struct.Struct("<I")
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
        """Return the samples of one form from a byte on; `length` is that of the first, as `needs` says.

        Raises:
            DamageError: the first of them cannot be read.
        """
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
