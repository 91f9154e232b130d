"""The place between rows and batches where the number of rows may change, such as for packing by tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


class RowStage(ABC):
    """Turns each live row of a table into the rows that batches are made of: none, one or several. A value; it pickles.

    The plan counts the rows that come out. Length, equal steps, tails, lanes, states and rescaling are then the
    arithmetic that rows have without a stage, and resuming inside the rows that come of one row needs nothing more.
    What comes out of a row must depend on that row alone.
    """

    @property
    @abstractmethod
    def key(self) -> str:
        """A name that is another one wherever other rows come out. It stands in states and in caches of counts."""

    @property
    @abstractmethod
    def reads(self) -> tuple[str, ...]:
        """The columns that `counts` needs."""

    @abstractmethod
    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the schema of what comes out of rows of a schema.

        Raises:
            ConfigError: the columns do not fit the stage.
        """

    @abstractmethod
    def counts(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """Return how many rows come out of each row.

        Args:
            batch: rows with at least the columns of `reads`.

        Returns:
            int64[rows], none negative.
        """

    @abstractmethod
    def apply(self, batch: pa.RecordBatch, start: int, stop: int) -> pa.RecordBatch:
        """Return some of the rows that come out, in the order of the rows that they come of.

        Args:
            batch: rows of the schema that `schema` was given.
            start: the first row of what comes out of the batch.
            stop: behind the last, at most ``counts(batch).sum()``.
        """
