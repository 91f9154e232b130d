"""The outputs that are not plain tensors, and how a column is cut into batches.

Every function named ``cut_…`` takes a column of rows and a batch size and gives one output a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from torch_table_loader.arrow.elements import mark_of, unmarked
from torch_table_loader.batching.kinds import offsets_from
from torch_table_loader.errors import MissingExtraError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.batching.kinds import Lists
    from torch_table_loader.column_options import Pad

_LONG_LIST = 128
"""From so many values a row on, copying row by row is cheaper than a mask over the rectangle."""


Output = Callable[[Any], Any]
"""Makes what comes out of an array: `tensor_of` or `array_of`."""


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


def tensor_of(values: NDArray[Any]) -> torch.Tensor:
    """View an array as a tensor, of numbers that numpy has not as torch's own."""
    element = mark_of(values.dtype)
    if element is None:
        return torch.from_numpy(values)
    return torch.from_numpy(unmarked(values, element)).view(getattr(torch, element))


def array_of(values: NDArray[Any]) -> NDArray[Any]:
    """View numbers that numpy has not as an array of ml_dtypes; any other array is returned as it is."""
    element = mark_of(values.dtype)
    if element is None:
        return values
    found: NDArray[Any] = unmarked(values, element).view(numpy_dtype(element))
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


def cut_tensors(data: NDArray[Any], batch_size: int) -> Sequence[torch.Tensor]:
    """Cut an array into tensors that view it.

    `unsafe_split`, since pieces of `Tensor.split` share one version counter and one autograd base: writing into one
    batch would then void what autograd saved of the others. These share nothing but the chunk's memory.
    """
    tensor, num_rows = tensor_of(data), len(data)
    if num_rows <= batch_size:
        return [tensor]
    sizes = [batch_size] * (num_rows // batch_size)  # torch cuts faster where it is told them all
    if short := num_rows % batch_size:
        sizes.append(short)
    return torch.unsafe_split_with_sizes(tensor, sizes)


def cut_arrays(data: NDArray[Any], batch_size: int) -> list[NDArray[Any]]:
    """Cut an array into views."""
    data = array_of(data)
    return [data[start : start + batch_size] for start in range(0, len(data), batch_size)]


def _ragged(data: Lists, batch_size: int) -> list[tuple[NDArray[Any], NDArray[np.int64]]]:
    offsets, values = data
    last = len(offsets) - 1
    cut = []
    for start in range(0, last, batch_size):
        bounds = offsets[start : min(start + batch_size, last) + 1]
        cut.append((values[bounds[0] : bounds[-1]], np.subtract(bounds, bounds[0], dtype=np.int64)))
    return cut


def cut_ragged(data: Lists, batch_size: int, output: Output) -> list[Ragged]:
    """Cut lists into `Ragged`: values view, offsets are new."""
    return [Ragged(output(values), output(offsets)) for values, offsets in _ragged(data, batch_size)]


def cut_nested(data: Lists, batch_size: int) -> list[torch.Tensor]:
    """Cut lists into nested tensors of the jagged layout, whose values view."""
    return cut_nested_together([data], batch_size)[0]


def cut_nested_together(columns: Sequence[Lists], batch_size: int) -> list[list[torch.Tensor]]:
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
    starts = np.arange(0, len(lengths[0]), batch_size)
    for start in starts.tolist():
        known: dict[bytes, torch.Tensor] = {}
        for key, each in distinct.items():
            part = each[start : start + batch_size]
            same = part.tobytes() if len(distinct) > 1 else b""
            if same not in known:
                known[same] = torch.from_numpy(offsets_from(part))
            offsets[key].append(known[same])
    longest = {key: np.maximum.reduceat(each, starts).tolist() for key, each in distinct.items()}
    return [
        [
            torch.nested.nested_tensor_from_jagged(values, offsets=own, max_seqlen=most)
            for values, own, most in zip(_values_of(data, starts), offsets[key], longest[key], strict=True)
        ]
        for key, data in zip(keys, columns, strict=True)
    ]


def _values_of(data: Lists, starts: NDArray[np.int64]) -> list[torch.Tensor]:
    """View the values of each batch."""
    bounds = [*data.offsets[starts].tolist(), int(data.offsets[-1])]
    return [tensor_of(data.values[start:stop]) for start, stop in pairwise(bounds)]


def cut_padded(data: Lists, batch_size: int, output: Output, pad: Pad, value: Any = 0) -> list[Padded]:
    """Cut lists, none longer than `pad.longest`, into `Padded`, whose arrays are new.

    The padding value is that of `pad`, in the dtype of the values.
    """
    cut = (_padded(values, offsets, pad, value) for values, offsets in _ragged(data, batch_size))
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


def cut_texts(data: pa.Array, batch_size: int) -> list[list[Any]]:
    """Cut strings or bytes into Python lists; a null is None."""
    rows = _objects(data)
    return [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]


def cut_values(data: pa.Array, batch_size: int) -> list[list[Any]]:
    """Cut values of any type into lists of what Arrow makes of them in Python; a null is None."""
    return [data.slice(start, batch_size).to_pylist() for start in range(0, len(data), batch_size)]


def cut_text_lists(data: pa.Array, batch_size: int) -> list[list[list[Any] | None]]:
    """Cut lists of strings or bytes into lists of Python lists; a null, inside or outside, is None."""
    values = _objects(data.flatten())
    lengths = data.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    bounds = offsets_from(lengths).tolist()
    rows: list[list[Any] | None] = [values[start:stop] for start, stop in pairwise(bounds)]
    if data.null_count:
        for row in np.flatnonzero(data.is_null().to_numpy(zero_copy_only=False)).tolist():
            rows[row] = None
    return [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]


def cut_codes(data: pa.Array, batch_size: int, output: Output) -> list[Codes]:
    """Cut strings into `Codes`, each batch with its own dictionary."""
    cut = []
    for start in range(0, len(data), batch_size):
        encoded = data.slice(start, batch_size).dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        cut.append(Codes(output(codes), _objects(encoded.dictionary)))
    return cut
