"""The three forms in which a column lies in memory, and what can be done to each.

A kind is a value without data; the data is handed in, so that rows are bare arrays:

* `DenseKind`: an ndarray [rows, ...].
* `ListsKind`: `Lists`, offsets [rows + 1] and the values of all rows.
* `TextKind`: a pyarrow Array; it becomes Python objects only when it is cut into batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow.buffers import NewArray, joined, new_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LONG_LIST = 32


class Lists(NamedTuple):
    """Lists of fixed-width values: row i is ``values[offsets[i]:offsets[i + 1]]``.

    Offsets are int32 or int64, only read, and need not begin at 0.
    """

    offsets: NDArray[Any]
    values: NDArray[Any]


class Kind(ABC):
    """What can be done to a column's data, whatever its form."""

    __slots__ = ()

    @abstractmethod
    def num_bytes(self, data: Any) -> int:
        """Bytes of the rows' values."""

    @abstractmethod
    def slice(self, data: Any, start: int, stop: int) -> Any:
        """View rows `start` to `stop`."""

    @abstractmethod
    def take(self, data: Any, indices: NDArray[np.int64]) -> Any:
        """Copy rows in the given order."""

    @abstractmethod
    def join(self, parts: Sequence[Any], new: NewArray) -> Any:
        """Copy runs into one; arrays of as many bytes as `row_bytes` says for each row come from `new`."""

    @property
    @abstractmethod
    def row_bytes(self) -> int:
        """Bytes of a row's values; 0 where rows differ."""

    @abstractmethod
    def prepare(self, parts: Sequence[Any]) -> tuple[Any, tuple[int, ...]]:
        """Return runs in the form that `write` takes, and the bytes of each piece that it fills."""

    @abstractmethod
    def write(self, prepared: Any, pieces: Sequence[NDArray[np.uint8]]) -> None:
        """Copy what `prepare` gave into memory."""

    @abstractmethod
    def read(self, pieces: Sequence[NDArray[np.uint8]], num_rows: int) -> Any:
        """View memory that `write` filled."""

    @property
    @abstractmethod
    def num_pieces(self) -> int:
        """How many pieces `write` fills."""


@dataclass(frozen=True, slots=True)
class DenseKind(Kind):
    """One value, or one array of a fixed shape, for each row; the shape is () for a single value."""

    dtype: np.dtype[Any]
    inner: tuple[int, ...] = ()
    num_pieces = 1

    def num_bytes(self, data: NDArray[Any]) -> int:
        """Bytes of the rows' values."""
        return data.nbytes

    def slice(self, data: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
        """View rows `start` to `stop`."""
        return data[start:stop]

    def take(self, data: NDArray[Any], indices: NDArray[np.int64]) -> NDArray[Any]:
        """Copy rows in the given order."""
        return data.take(indices, axis=0)

    def join(self, parts: Sequence[NDArray[Any]], new: NewArray = new_array) -> NDArray[Any]:
        """Copy runs into one."""
        return joined(parts, new)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's values."""
        return self.dtype.itemsize * prod(self.inner)

    def prepare(self, parts: Sequence[NDArray[Any]]) -> tuple[Sequence[NDArray[Any]], tuple[int, ...]]:
        """Nothing to do; one piece holds the values."""
        return parts, (sum(part.nbytes for part in parts),)

    def write(self, prepared: Sequence[NDArray[Any]], pieces: Sequence[NDArray[np.uint8]]) -> None:
        """Copy the runs one after another."""
        num_rows = sum(len(part) for part in prepared)
        np.concatenate(prepared, out=self.read(pieces, num_rows))

    def read(self, pieces: Sequence[NDArray[np.uint8]], num_rows: int) -> NDArray[Any]:
        """View the piece as rows."""
        return pieces[0].view(self.dtype).reshape((num_rows, *self.inner))


@dataclass(frozen=True, slots=True)
class ListsKind(Kind):
    """A list of fixed-width values a row."""

    item: DenseKind
    num_pieces = 2
    row_bytes = 0

    def num_bytes(self, data: Lists) -> int:
        """Bytes of the rows' values, and 8 an offset."""
        num_values = int(data.offsets[-1]) - int(data.offsets[0])
        return 8 * len(data.offsets) + num_values * self.item.dtype.itemsize * prod(self.item.inner)

    def slice(self, data: Lists, start: int, stop: int) -> Lists:
        """View rows `start` to `stop`."""
        return Lists(data.offsets[start : stop + 1], data.values)

    def take(self, data: Lists, indices: NDArray[np.int64]) -> Lists:
        """Copy rows in the given order: long lists as wholes, short ones value by value."""
        starts = data.offsets[:-1].take(indices).astype(np.int64, copy=False)
        stops = data.offsets[1:].take(indices).astype(np.int64, copy=False)
        lengths = stops - starts
        offsets = offsets_from(lengths)
        if offsets[-1] > _LONG_LIST * len(indices):
            runs = [data.values[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
            return Lists(offsets, joined(runs))
        places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Lists(offsets, data.values.take(places, axis=0))

    def join(self, parts: Sequence[Lists], new: NewArray = new_array) -> Lists:  # noqa: ARG002
        """Copy runs into one."""
        return Lists(_joined_offsets(parts), joined([_used(part) for part in parts]))

    def prepare(self, parts: Sequence[Lists]) -> tuple[Sequence[Lists], tuple[int, ...]]:
        """Nothing to do; one piece holds the offsets, one the values."""
        num_rows = sum(len(part.offsets) - 1 for part in parts)
        return parts, (8 * (num_rows + 1), sum(_used(part).nbytes for part in parts))

    def write(self, prepared: Sequence[Lists], pieces: Sequence[NDArray[np.uint8]]) -> None:
        """Copy the runs one after another."""
        pieces[0].view(np.int64)[:] = _joined_offsets(prepared)
        runs = [_used(part) for part in prepared]
        np.concatenate(runs, out=self.item.read(pieces[1:], sum(map(len, runs))))

    def read(self, pieces: Sequence[NDArray[np.uint8]], num_rows: int) -> Lists:
        """View the two pieces as rows."""
        offsets = pieces[0].view(np.int64)[: num_rows + 1]
        return Lists(offsets, self.item.read(pieces[1:], int(offsets[-1])))


def _used(data: Lists) -> NDArray[Any]:
    return data.values[data.offsets[0] : data.offsets[-1]]


def _joined_offsets(parts: Sequence[Lists]) -> NDArray[np.int64]:
    return offsets_from(np.concatenate([np.diff(part.offsets) for part in parts]))


def offsets_from(lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Return where each list begins and the last ends, from 0, for some lengths.

    >>> offsets_from(np.array([2, 0, 3]))
    array([0, 2, 2, 5])
    """
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


@dataclass(frozen=True, slots=True)
class TextKind(Kind):
    """Strings or bytes, or lists of them, as an Arrow array of the wide (64-bit offset) type; or values of any type."""

    type: pa.DataType
    num_pieces = 1
    row_bytes = 0

    def num_bytes(self, data: pa.Array) -> int:
        """Bytes of the rows' values and offsets."""
        return int(data.nbytes)

    def slice(self, data: pa.Array, start: int, stop: int) -> pa.Array:
        """View rows `start` to `stop`."""
        return data.slice(start, stop - start)

    def take(self, data: pa.Array, indices: NDArray[np.int64]) -> pa.Array:
        """Copy rows in the given order."""
        return data.take(pa.array(indices))

    def join(self, parts: Sequence[pa.Array], new: NewArray = new_array) -> pa.Array:  # noqa: ARG002
        """Copy runs into one."""
        return pa.concat_arrays(parts)

    def prepare(self, parts: Sequence[pa.Array]) -> tuple[pa.RecordBatch, tuple[int, ...]]:
        """Join the runs; one piece holds them as an Arrow IPC stream."""
        column = parts[0] if len(parts) == 1 else self.join(parts)
        batch = pa.record_batch([column], names=[""])
        return batch, (ipc_size(batch),)

    def write(self, prepared: pa.RecordBatch, pieces: Sequence[NDArray[np.uint8]]) -> None:
        """Write the stream."""
        ipc_write(prepared, pieces[0])

    def read(self, pieces: Sequence[NDArray[np.uint8]], num_rows: int) -> pa.Array:
        """View the stream's buffers."""
        return ipc_read(pieces[0]).column(0).slice(0, num_rows)


def ipc_size(batch: pa.RecordBatch) -> int:
    """Return how many bytes `ipc_write` fills."""
    sink = pa.MockOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return int(sink.size())


def ipc_write(batch: pa.RecordBatch, piece: NDArray[np.uint8]) -> None:
    """Write a record batch as an Arrow IPC stream."""
    with (
        pa.FixedSizeBufferWriter(pa.py_buffer(piece)) as sink,
        pa.ipc.new_stream(sink, batch.schema) as writer,
    ):
        writer.write_batch(batch)


def ipc_read(piece: NDArray[np.uint8]) -> pa.RecordBatch:
    """View what `ipc_write` wrote."""
    with pa.ipc.open_stream(pa.py_buffer(piece)) as reader:
        return reader.read_next_batch()
