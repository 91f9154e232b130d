"""What makes a file's batches the table's, however its columns are found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class FileConformer(ABC):
    """Makes the batches of one file into the table's.

    Args:
        name: the file, for messages.
        reads: the columns to read from the file, in this order.
        schema: of what `apply` returns.
    """

    name: str
    reads: tuple[str, ...]
    schema: pa.Schema

    @property
    def counts_rows(self) -> bool:
        """Whether a column says where in the file its row stands, so that `apply` must see all rows."""
        return False

    @abstractmethod
    def apply(self, batch: pa.RecordBatch, row: int = 0) -> pa.RecordBatch:
        """Convert, fill and order a batch.

        Args:
            batch: has exactly the columns `reads`.
            row: the place of its first row in the file.

        Raises:
            TableError: a value does not fit the table's type, or a null stands where none may; names the column.
        """
