"""The outputs that are no plain tensor, and how a column is cut into batches.

Every function named ``cut_…`` takes a column of rows and a batch size and gives one output a batch.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.batching.kinds import Lists


class Ragged(NamedTuple):
    """Lists as values and offsets.

    Args:
        values: the values of all rows, one after another; [sum of lengths, ...].
        offsets: row i is ``values[offsets[i]:offsets[i + 1]]``; int64 [rows + 1], from 0.
    """

    values: Any
    offsets: Any


class Padded(NamedTuple):
    """Lists as one rectangle.

    Args:
        values: [rows, longest, ...]; 0 (or False) behind the end of each row.
        lengths: int64 [rows].
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


def cut_tensors(data: NDArray[Any], batch_size: int) -> list[torch.Tensor]:
    """Cut an array into tensors that view it.

    `unsafe_split`, since pieces of `Tensor.split` share one version counter and one autograd base: writing into one
    batch would then void what autograd saved of the others. These share nothing but the chunk's memory.
    """
    tensor = torch.from_numpy(data)
    return [tensor] if len(data) <= batch_size else list(torch.unsafe_split(tensor, batch_size))


def cut_arrays(data: NDArray[Any], batch_size: int) -> list[NDArray[Any]]:
    """Cut an array into views."""
    return [data[start : start + batch_size] for start in range(0, len(data), batch_size)]


def _ragged(data: Lists, batch_size: int) -> list[tuple[NDArray[Any], NDArray[np.int64]]]:
    offsets, values = data
    last = len(offsets) - 1
    cut = []
    for start in range(0, last, batch_size):
        bounds = offsets[start : min(start + batch_size, last) + 1]
        cut.append((values[bounds[0] : bounds[-1]], np.subtract(bounds, bounds[0], dtype=np.int64)))
    return cut


def cut_ragged_arrays(data: Lists, batch_size: int) -> list[Ragged]:
    """Cut lists into `Ragged` of arrays: values view, offsets are new."""
    return [Ragged(values, offsets) for values, offsets in _ragged(data, batch_size)]


def cut_ragged_tensors(data: Lists, batch_size: int) -> list[Ragged]:
    """Cut lists into `Ragged` of tensors: values view, offsets are new."""
    return [
        Ragged(torch.from_numpy(values), torch.from_numpy(offsets)) for values, offsets in _ragged(data, batch_size)
    ]


def cut_nested(data: Lists, batch_size: int) -> list[torch.Tensor]:
    """Cut lists into nested tensors of the jagged layout, whose values view.

    Each knows its longest list: torch pads to the sum of all lengths where it does not know. The shortest is left to
    torch, which finds it when it needs it, since each length that is passed costs time in every batch.
    """
    lengths = np.diff(data.offsets)
    longest = np.maximum.reduceat(lengths, np.arange(0, len(lengths), batch_size)).tolist()
    return [
        torch.nested.nested_tensor_from_jagged(
            torch.from_numpy(values), offsets=torch.from_numpy(offsets), max_seqlen=most
        )
        for (values, offsets), most in zip(_ragged(data, batch_size), longest, strict=True)
    ]


def cut_padded_arrays(data: Lists, batch_size: int) -> list[Padded]:
    """Cut lists into `Padded` of arrays, which are new."""
    cut = []
    for values, offsets in _ragged(data, batch_size):
        lengths = np.diff(offsets)
        longest = int(lengths.max())
        padded = np.zeros((len(lengths), longest, *values.shape[1:]), values.dtype)
        padded[np.arange(longest) < lengths[:, None]] = values
        cut.append(Padded(padded, lengths))
    return cut


def cut_padded_tensors(data: Lists, batch_size: int) -> list[Padded]:
    """Cut lists into `Padded` of tensors, which are new."""
    return [
        Padded(torch.from_numpy(values), torch.from_numpy(lengths))
        for values, lengths in cut_padded_arrays(data, batch_size)
    ]


def _objects(array: pa.Array) -> list[Any]:
    found: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
    return found


def cut_texts(data: pa.Array, batch_size: int) -> list[list[Any]]:
    """Cut strings or bytes into Python lists; a null is None."""
    rows = _objects(data)
    return [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]


def cut_text_lists(data: pa.Array, batch_size: int) -> list[list[list[Any] | None]]:
    """Cut lists of strings or bytes into lists of Python lists; a null, inside or outside, is None."""
    values = _objects(data.flatten())
    lengths = data.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    bounds = np.concatenate(([0], np.cumsum(lengths))).tolist()
    rows: list[list[Any] | None] = [values[start:stop] for start, stop in pairwise(bounds)]
    if data.null_count:
        for row in np.flatnonzero(data.is_null().to_numpy(zero_copy_only=False)).tolist():
            rows[row] = None
    return [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]


def cut_codes_arrays(data: pa.Array, batch_size: int) -> list[Codes]:
    """Cut strings into `Codes` with an array, each batch with its own dictionary."""
    cut = []
    for start in range(0, len(data), batch_size):
        encoded = data.slice(start, batch_size).dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        cut.append(Codes(codes, _objects(encoded.dictionary)))
    return cut


def cut_codes_tensors(data: pa.Array, batch_size: int) -> list[Codes]:
    """Cut strings into `Codes` with a tensor, each batch with its own dictionary."""
    return [Codes(torch.from_numpy(codes), values) for codes, values in cut_codes_arrays(data, batch_size)]
