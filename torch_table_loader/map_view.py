"""A table in row mode as a map from positions to rows, for torch samplers and for looking at rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import torch

from torch_table_loader.batching.codec import make_codec
from torch_table_loader.batching.decoders import RowError
from torch_table_loader.batching.outputs import Codes, Padded, Ragged
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.errors import ConfigError, ConfigTypeError, TableError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.batching.rows import PlainCodec
    from torch_table_loader.engine.items import TableItems

_OF_A_MASK = "of a mask pass numpy.flatnonzero(mask)"


class MapView(torch.utils.data.Dataset[Any]):
    """The live rows of a table by position, in canonical order; made by ``dataset.as_map()``.

    Positions count the rows that pass the filter; nothing is excluded or shuffled here. ``view[i]`` is one row.
    ``view[i:j]`` and ``view[[i, j]]`` are one batch, as ``view.batch(indices)`` is. `transforms` and `decode` are
    called with each batch, and with a row as a batch of one; `collate_fn` is not called. In a row, a list of numbers is
    a plain vector, whatever the form of lists in batches. With `pack`, a row is a sequence: its `cu_seqlens`,
    `documents` and spans are those of a batch of one. A ``DataLoader(view, sampler=..., batch_size=...)`` works as
    with any map-style dataset.
    """

    def __init__(self, items: TableItems) -> None:
        """Show a table in row mode; the store is built when the first row is needed.

        Args:
            items: of the table; every rank sees all of them here.
        """
        options = items.rows.options
        self._items = items
        self._codec = cast("PlainCodec[Any]", make_codec(items.columns, TypePolicy.of(options)))
        self._first = _first if options.samples.are_rows else options.samples.parts.one_of

    def __len__(self) -> int:
        """Count the rows that remain after deletes and filters."""
        return self._items.num_places

    def __getitem__(self, index: Any) -> Any:
        """Return one row, or one batch of several rows.

        Args:
            index: a position, for its row: a batch of one without the first dimension. A slice, or a list, array or
                tensor of positions, for a batch; see `batch`.

        Raises:
            IndexError: a position is out of range.
            ConfigTypeError: the index is not a position, such as a bool.
        """
        if isinstance(index, slice):
            return self.batch(range(*index.indices(len(self))))
        if getattr(index, "ndim", 1) == 0 or not hasattr(index, "__len__"):  # a tensor of no dimension has a __len__
            return self.__getitems__([index])[0]
        return self.batch(index)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several rows, each as ``view[i]`` does; they are gathered together. ``DataLoader`` calls this."""
        rows = self._rows(indices)
        if len(indices):
            return [self._first(self._finished(batch)) for batch in rows.batches(1)]
        return []

    def batch(self, indices: Sequence[int]) -> Any:
        """Return several rows as one batch of the output format; they are gathered together.

        Args:
            indices: at least one position, each in [-len, len); negative ones count from the end.

        Raises:
            IndexError: a position is out of range.
            ConfigError: no position is given.
        """
        if not len(indices):
            raise ConfigError("a batch has at least one row, got no place; pass one, or a slice that is not empty")
        return self._finished(self._rows(indices).batches(len(indices))[0])

    def row_ids(self, indices: Sequence[int] | None = None) -> NDArray[np.int64]:
        """Return the row ids at some positions, as `exclude` takes them.

        Args:
            indices: positions; None for all, in canonical order.

        Returns:
            int64[n].
        """
        places = np.arange(len(self), dtype=np.int64) if indices is None else self._places(indices)
        return self._items.ids_at(places)

    def _finished(self, batch: Any) -> Any:
        """Call the functions of `transforms` and `decode` with a batch."""
        for function in self._codec.functions:
            try:
                batch = function(batch)
            except BaseException as error:
                error.add_note(f"raised by {function.label}; as_map()")
                raise
        return batch

    def _rows(self, indices: Sequence[int]) -> Any:
        places = self._places(indices)
        columns = self._items.columns_at(places)
        try:
            return self._codec.decode_plain(columns)
        except RowError as error:
            if error.row is None:
                raise
            raise TableError(f"the row at place {places[error.row]}: {error}") from error

    def _places(self, indices: Any) -> NDArray[np.int64]:
        """Return the places that are meant as int64[n], each in [0, len)."""
        if isinstance(indices, torch.Tensor):
            indices = indices.cpu().numpy()
        if isinstance(indices, list | tuple) and any(isinstance(index, bool | np.bool_) for index in indices):
            raise ConfigTypeError(f"places must be integers, got a bool in {indices!r}; {_OF_A_MASK}")
        try:
            places = np.asarray(indices)
        except ValueError as error:
            raise ConfigTypeError(f"places must be one list of integers, got {indices!r}") from error
        if not places.size:
            return np.empty(0, dtype=np.int64)
        if places.dtype.kind not in "iu":
            raise ConfigTypeError(f"places must be integers, got {places.dtype}; {_OF_A_MASK}")
        if places.ndim != 1:
            raise ConfigTypeError(f"places must be one list of integers, got an array of shape {places.shape}")
        outside = (places < -len(self)) | (places >= len(self))  # before the cast, in which a large uint64 wraps
        if outside.any():
            raise IndexError(f"place {places[outside][0]} is not in a table of {len(self)} rows")
        places = places.astype(np.int64)
        return np.where(places < 0, places + len(self), places)


def _first(batch: Any) -> Any:
    """Return the one row of a batch; of lists its vector, without lengths or offsets."""
    if isinstance(batch, dict):
        return {name: _first(value) for name, value in batch.items()}
    if isinstance(batch, pa.RecordBatch | Codes):
        return batch
    if isinstance(batch, torch.Tensor) and batch.is_nested:
        return batch.unbind()[0]
    if isinstance(batch, Ragged):
        return batch.values
    if isinstance(batch, Padded):
        return batch[0][0]
    return batch[0]
