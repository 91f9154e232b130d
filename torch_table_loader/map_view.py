"""A table in row mode as a map: rows by place, for torch samplers and for people who want to look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from torch_table_loader.batching.codec import make_codec
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.errors import ConfigTypeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.engine.row_job import RowJob


class MapView(torch.utils.data.Dataset[Any]):
    """The live rows of a table by place, in canonical order; made by ``dataset.as_map()``.

    Places count the rows that the filter passes; nothing is excluded or shuffled here. ``view[i]`` is one row,
    ``view.batch(indices)`` one batch of many, and a ``DataLoader(view, sampler=..., batch_size=...)`` works as with
    any map-style dataset.
    """

    def __init__(self, job: RowJob) -> None:
        """Take a table in row mode; the store is built when the first row is wanted.

        Args:
            job: the rank's share; every rank sees all rows here.
        """
        self._job = job
        self._codec = make_codec(job.columns, TypePolicy.of(job.options))

    def __len__(self) -> int:
        """Count the rows that deletes and filters leave."""
        return self._job.live_rows

    def __getitem__(self, index: int) -> Any:
        """Give one row: a batch of it, the first dimension taken off."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Give several rows, each as `__getitem__` does; they are gathered together."""
        rows = self._rows(indices)
        return [_first(batch) for batch in rows.batches(1)] if len(indices) else []

    def batch(self, indices: Sequence[int]) -> Any:
        """Give several rows as one batch of the output format.

        Args:
            indices: at least one place, each in [0, len); negative ones count from the end.
        """
        return self._rows(indices).batches(max(1, len(indices)))[0]

    def row_ids(self, indices: Sequence[int] | None = None) -> NDArray[np.int64]:
        """Give the row ids at some places, as `exclude` takes them.

        Args:
            indices: places; None for all, in canonical order.

        Returns:
            int64[n].
        """
        places = np.arange(len(self), dtype=np.int64) if indices is None else self._places(indices)
        return self._job.keeper.rows().ids(places) if self._job.keeper.spec.keeps_ids else places

    def _rows(self, indices: Sequence[int]) -> Any:
        places = self._places(indices)
        stored = self._job.keeper.rows()
        columns = stored.gather(places)
        if self._job.options.row_id:
            columns.append(pa.array(stored.ids(places)))
        return self._codec.decode(pa.RecordBatch.from_arrays(columns, schema=self._job.columns))

    def _places(self, indices: Sequence[int]) -> NDArray[np.int64]:
        places = np.asarray(indices)
        if places.size and places.dtype.kind not in "iu":
            raise ConfigTypeError(f"places must be integers, got {places.dtype}")
        places = places.astype(np.int64).reshape(-1)
        if outside := [int(place) for place in places if not -len(self) <= place < len(self)]:
            raise IndexError(f"place {outside[0]} is not in a table of {len(self)} rows")
        return np.where(places < 0, places + len(self), places)


def _first(batch: Any) -> Any:
    """Take the one row out of a batch."""
    if isinstance(batch, dict):
        return {name: _first(value) for name, value in batch.items()}
    if isinstance(batch, pa.RecordBatch):
        return batch
    if isinstance(batch, torch.Tensor) and batch.is_nested:
        return batch.unbind()[0]
    if isinstance(batch, tuple):
        return batch
    return batch[0]


__all__ = ["MapView"]
