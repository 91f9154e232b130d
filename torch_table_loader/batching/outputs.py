"""The three forms in which a column lies in memory, what can be done to each, and how it is cut into batches.

A kind is a value without data; the data is handed in, so that rows are bare arrays:

* `DenseKind`: an ndarray [rows, ...].
* `ListsKind`: `Lists`, offsets [rows + 1] and the values of all rows.
* `TextKind`: a pyarrow Array; it becomes Python objects only when it is cut into batches.

Every function named ``cut_…`` takes a column of rows and the bounds of batches, where each begins and the end, and
gives one output a batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise, repeat
from math import prod
from operator import sub
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from typing_extensions import override

from torch_table_loader.arrow.buffers import NewArray, joined, new_array
from torch_table_loader.arrow.copied_runs import COPIED_BYTES, copied_runs
from torch_table_loader.arrow.python_values import python_values
from torch_table_loader.batching.jagged import (
    KeptUntilJoined,
    Lists,
    ListsRoom,
    Room,
    joined_offsets,
    offsets_from,
    used_values,
)
from torch_table_loader.errors import MissingExtraError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.option_values import Pad


_NEAR_BYTES = 1 << 20
"""A column of so many bytes stays in a core's second cache while rows are taken from it."""

_LONG_LIST = 128
"""From so many values a row on, copying row by row is cheaper than a mask over the rectangle."""

Output = Callable[[Any], Any]
"""Makes what comes out of an array: `tensor_of` or `array_of`."""


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
    def take(self, parts: Sequence[Any], indices: NDArray[np.int64], new: NewArray, near: NewArray) -> Any:
        """Copy rows of consecutive runs in the given order; no index is outside.

        Args:
            new: makes arrays of as many bytes as `row_bytes` says for each row.
            near: makes one temporary array of these bytes for each row of the runs, at most, in memory just used.
        """

    @abstractmethod
    def join(self, parts: Sequence[Any], new: NewArray) -> Any:
        """Copy runs into one; arrays of as many bytes as `row_bytes` says for each row come from `new`."""

    def room(self, parts: Sequence[Any], to_come: int) -> Room:  # noqa: ARG002 others copy runs as they come
        """Return what joins runs with those of so many rows that are still to come."""
        return KeptUntilJoined(partial(self.join, new=new_array), parts)

    def whole(self, parts: Sequence[Any]) -> Any:
        """Return runs as one; a single one is not copied."""
        if len(parts) == 1:
            return parts[0]
        return self.join(parts, new_array)

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

    def take(
        self, parts: Sequence[NDArray[Any]], indices: NDArray[np.int64], new: NewArray, near: NewArray
    ) -> NDArray[Any]:
        """Copy rows in the given order."""
        data, num_rows = parts[0], sum(map(len, parts))
        # Read in order, and at random from what is near: that takes a third of reading far memory at random.
        if len(parts) > 1 or (num_rows <= len(indices) and num_rows * self.row_bytes <= _NEAR_BYTES):
            data = np.concatenate(parts, out=near((num_rows, *data.shape[1:]), data.dtype))
        # Any other mode writes to new memory first, whose pages cost more than the copy.
        return data.take(indices, axis=0, out=new((len(indices), *data.shape[1:]), data.dtype), mode="clip")

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


@lru_cache(maxsize=64)
def dense_kind(dtype: np.dtype[Any], inner: tuple[int, ...] = ()) -> DenseKind:
    """Return a kind, which all columns of it share."""
    return DenseKind(dtype, inner)


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

    def take(self, parts: Sequence[Lists], indices: NDArray[np.int64], new: NewArray, near: NewArray) -> Lists:  # noqa: ARG002
        """Copy rows in the given order: long lists as wholes, short ones value by value."""
        chunks, begins = [used_values(part) for part in parts], joined_offsets(parts)
        starts = begins.take(indices)
        lengths = begins.take(indices + 1) - starts
        offsets = offsets_from(lengths)
        if offsets[-1] * self.item.row_bytes > COPIED_BYTES * len(indices):
            return Lists(offsets, copied_runs(chunks, starts, lengths))
        places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        values = chunks[0] if len(chunks) == 1 else joined(chunks)
        return Lists(offsets, values.take(places, axis=0))

    def join(self, parts: Sequence[Lists], new: NewArray = new_array) -> Lists:  # noqa: ARG002
        """Copy runs into one."""
        return Lists(joined_offsets(parts), joined([used_values(part) for part in parts]))

    @override
    def room(self, parts: Sequence[Lists], to_come: int) -> Room:
        return ListsRoom(parts, to_come)

    def prepare(self, parts: Sequence[Lists]) -> tuple[Sequence[Lists], tuple[int, ...]]:
        """Nothing to do; one piece holds the offsets, one the values."""
        num_rows = sum(len(part.offsets) - 1 for part in parts)
        return parts, (8 * (num_rows + 1), sum(used_values(part).nbytes for part in parts))

    def write(self, prepared: Sequence[Lists], pieces: Sequence[NDArray[np.uint8]]) -> None:
        """Copy the runs one after another."""
        pieces[0].view(np.int64)[:] = joined_offsets(prepared)
        runs = [used_values(part) for part in prepared]
        np.concatenate(runs, out=self.item.read(pieces[1:], sum(map(len, runs))))

    def read(self, pieces: Sequence[NDArray[np.uint8]], num_rows: int) -> Lists:
        """View the two pieces as rows."""
        offsets = pieces[0].view(np.int64)[: num_rows + 1]
        return Lists(offsets, self.item.read(pieces[1:], int(offsets[-1])))


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

    def take(self, parts: Sequence[pa.Array], indices: NDArray[np.int64], new: NewArray, near: NewArray) -> pa.Array:  # noqa: ARG002
        """Copy rows in the given order."""
        return self.whole(parts).take(pa.array(indices))

    def join(self, parts: Sequence[pa.Array], new: NewArray = new_array) -> pa.Array:  # noqa: ARG002
        """Copy runs into one."""
        return pa.concat_arrays(parts)

    def prepare(self, parts: Sequence[pa.Array]) -> tuple[pa.RecordBatch, tuple[int, ...]]:
        """Join the runs; one piece holds them as an Arrow IPC stream."""
        batch = pa.record_batch([self.whole(parts)], names=[""])
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


class Ragged(NamedTuple):
    """Lists as values and offsets.

    Args:
        values: the values of all rows, one after another; [sum of lengths, ...].
        offsets: row i is ``values[offsets[i]:offsets[i + 1]]``; int64 [rows + 1], from 0.
    """

    values: Any
    offsets: Any


class Padded(NamedTuple):
    """Lists as one rectangle; see `Pad`.

    Args:
        values: [rows, width, ...]; the padding value beside the values of each row.
        lengths: int64 [rows], the values of the table in each.
    """

    values: Any
    lengths: Any


class Codes(NamedTuple):
    """Strings as indices into the batch's own dictionary.

    Args:
        codes: int64 [rows]; −1 is null.
        values: the dictionary, in the order of first appearance.
    """

    codes: Any
    values: list[Any]


def mark_of(dtype: np.dtype[Any]) -> str | None:
    """Return the element of a dtype from `arrow.arrays.marked_dtype`, if numpy lacks it; None for any other dtype."""
    if dtype.names is None:
        return None
    return dtype.names[0]


def unmarked(values: NDArray[Any]) -> NDArray[Any]:
    """View marked values as the unsigned integers of their bits."""
    found: NDArray[Any] = values.view(f"u{values.dtype.itemsize}")
    return found


def tensor_of(values: NDArray[Any]) -> torch.Tensor:
    """View an array as a tensor, of numbers that numpy has not as torch's own."""
    element = mark_of(values.dtype)
    if element is None:
        return torch.from_numpy(values)
    return torch.from_numpy(unmarked(values)).view(getattr(torch, element))


def array_of(values: NDArray[Any]) -> NDArray[Any]:
    """View numbers that numpy has not as an array of ml_dtypes; any other array is returned as it is."""
    element = mark_of(values.dtype)
    if element is None:
        return values
    found: NDArray[Any] = unmarked(values).view(numpy_dtype(element))
    return found


def numpy_dtype(element: str) -> np.dtype[Any]:
    """Return the dtype that ml_dtypes adds to numpy for a type of torch's."""
    try:
        import ml_dtypes
    except ImportError as error:
        raise MissingExtraError(
            f"numpy has no {element}, and ml_dtypes, which adds it, is not installed; pip install "
            "'torch-table-loader[onnx]', or use output_format=\"torch\""
        ) from error
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, element))
    return found


def bounds_of(num_rows: int, batch_size: int) -> list[int]:
    """Return the bounds of batches of one size, of which the last may be short.

    >>> bounds_of(5, 2), bounds_of(4, 2), bounds_of(0, 2)
    ([0, 2, 4, 5], [0, 2, 4], [0])
    """
    return [*range(0, num_rows, batch_size), num_rows]


def cut_tensors(data: NDArray[Any], bounds: Sequence[int]) -> Sequence[torch.Tensor]:
    """Cut an array into tensors that view it.

    `unsafe_split`, since pieces of `Tensor.split` share one version counter and one autograd base: writing into one
    batch would then void what autograd saved of the others. These share nothing but the chunk's memory.
    """
    tensor = tensor_of(data)
    if len(bounds) == 2:
        return [tensor]
    return torch.unsafe_split_with_sizes(tensor, list(map(sub, bounds[1:], bounds)))


def cut_all_tensors(columns: Sequence[NDArray[Any]], bounds: Sequence[int]) -> Iterator[Sequence[torch.Tensor]]:
    """Cut arrays of plain numbers like `cut_tensors`, with no step in Python for each."""
    tensors = map(torch.from_numpy, columns)
    if len(bounds) == 2:
        return zip(tensors, strict=False)
    return map(torch.unsafe_split_with_sizes, tensors, repeat(list(map(sub, bounds[1:], bounds))))


def cut_arrays(data: NDArray[Any], bounds: Sequence[int]) -> list[NDArray[Any]]:
    """Cut an array into views."""
    data = array_of(data)
    return [data[start:stop] for start, stop in pairwise(bounds)]


def _ragged(data: Lists, bounds: Sequence[int]) -> list[tuple[NDArray[Any], NDArray[np.int64]]]:
    offsets, values = data
    cut = []
    for start, stop in pairwise(bounds):
        own = offsets[start : stop + 1]
        cut.append((values[own[0] : own[-1]], np.subtract(own, own[0], dtype=np.int64)))
    return cut


def cut_ragged(data: Lists, bounds: Sequence[int], output: Output) -> list[Ragged]:
    """Cut lists into `Ragged`: values view, offsets are new."""
    return [Ragged(output(values), output(offsets)) for values, offsets in _ragged(data, bounds)]


def cut_nested(data: Lists, bounds: Sequence[int]) -> list[torch.Tensor]:
    """Cut lists into nested tensors of the jagged layout, whose values view."""
    return cut_nested_together([data], bounds)[0]


def cut_nested_together(columns: Sequence[Lists], bounds: Sequence[int]) -> list[list[torch.Tensor]]:
    """Cut columns of lists into nested tensors, one for each batch; equal lengths in a batch share offsets.

    Torch adds nested tensors only where their offsets are one tensor. Lengths are compared once for all rows, and batch
    by batch only among columns that differ somewhere.

    Each knows its longest list: torch pads to the sum of all lengths where it does not know. The shortest is left to
    torch, which finds it when it needs it, since each length that is passed costs time in every batch.
    """
    lengths = [np.diff(data.offsets).astype(np.int64, copy=False) for data in columns]
    keys = [each.tobytes() if len(columns) > 1 else b"" for each in lengths]
    distinct = dict(zip(keys, lengths, strict=True))
    offsets: dict[bytes, list[torch.Tensor]] = {key: [] for key in distinct}
    for start, stop in pairwise(bounds):
        known: dict[bytes, torch.Tensor] = {}
        for key, each in distinct.items():
            part = each[start:stop]
            same = part.tobytes() if len(distinct) > 1 else b""
            if same not in known:
                known[same] = torch.from_numpy(offsets_from(part))
            offsets[key].append(known[same])
    longest = {key: np.maximum.reduceat(each, bounds[:-1]).tolist() for key, each in distinct.items()}
    return [
        [
            torch.nested.nested_tensor_from_jagged(values, offsets=own, max_seqlen=most)
            for values, own, most in zip(_values_of(data, bounds), offsets[key], longest[key], strict=True)
        ]
        for key, data in zip(keys, columns, strict=True)
    ]


def _values_of(data: Lists, bounds: Sequence[int]) -> list[torch.Tensor]:
    """View the values of each batch."""
    return [tensor_of(data.values[start:stop]) for start, stop in pairwise(data.offsets[bounds].tolist())]


def cut_padded(data: Lists, bounds: Sequence[int], output: Output, pad: Pad, value: Any = 0) -> list[Padded]:
    """Cut lists, none longer than `pad.longest`, into `Padded`, whose arrays are new.

    The padding value is that of `pad`, in the dtype of the values.
    """
    cut = (_padded(values, offsets, pad, value) for values, offsets in _ragged(data, bounds))
    return [Padded(output(values), output(lengths)) for values, lengths in cut]


def _padded(values: NDArray[Any], offsets: NDArray[np.int64], pad: Pad, value: Any) -> Padded:
    starts, stops = offsets[:-1], offsets[1:]
    lengths = stops - starts
    width = pad.width(int(lengths.max()))
    cut = np.minimum(lengths, width)
    if pad.truncate == "left":
        starts = stops - cut
    padded = np.zeros((len(cut), width, *values.shape[1:]), values.dtype)
    if mark_of(values.dtype) is None and value != 0:
        padded[...] = value
    num_values = int(cut.sum())
    if num_values > _LONG_LIST * len(cut):
        places = (width - cut if pad.side == "left" else np.zeros_like(cut)).tolist()
        for row, place, start, length in zip(padded, places, starts.tolist(), cut.tolist(), strict=True):
            row[place : place + length] = values[start : start + length]
        return Padded(padded, cut)
    if num_values < len(values):
        values = values.take(np.repeat(starts - offsets_from(cut)[:-1], cut) + np.arange(num_values), axis=0)
    along = np.arange(width)
    padded[along >= width - cut[:, None] if pad.side == "left" else along < cut[:, None]] = values
    return Padded(padded, cut)


def _objects(array: pa.Array) -> list[Any]:
    found: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
    return found


def cut_texts(data: pa.Array, bounds: Sequence[int]) -> list[list[Any]]:
    """Cut strings or bytes into Python lists; a null is None."""
    rows = _objects(data)
    return [rows[start:stop] for start, stop in pairwise(bounds)]


def cut_values(data: pa.Array, bounds: Sequence[int]) -> list[list[Any]]:
    """Cut values of any type into lists of Python values; a null is None."""
    return [python_values(data.slice(start, stop - start)) for start, stop in pairwise(bounds)]


def cut_text_lists(data: pa.Array, bounds: Sequence[int]) -> list[list[list[Any] | None]]:
    """Cut lists of strings or bytes into lists of Python lists; a null, inside or outside, is None."""
    values = _objects(data.flatten())
    lengths = data.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    inner = offsets_from(lengths).tolist()
    rows: list[list[Any] | None] = [values[start:stop] for start, stop in pairwise(inner)]
    if data.null_count:
        for row in np.flatnonzero(data.is_null().to_numpy(zero_copy_only=False)).tolist():
            rows[row] = None
    return [rows[start:stop] for start, stop in pairwise(bounds)]


def cut_codes(data: pa.Array, bounds: Sequence[int], output: Output) -> list[Codes]:
    """Cut strings into `Codes`, each batch with its own dictionary."""
    cut = []
    for start, stop in pairwise(bounds):
        encoded = data.slice(start, stop - start).dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        cut.append(Codes(output(codes), _objects(encoded.dictionary)))
    return cut
