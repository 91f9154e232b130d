"""What a format writer must do; ``torch-table-loader convert`` finds it by its entry point."""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO, Protocol

import pyarrow as pa

ENTRY_POINT_GROUP = "torch_table_loader.writers"


class FormatWriter(Protocol):
    """Writes one file format. An entry point of the group names a class, which is called without arguments."""

    @property
    def name(self) -> str:
        """What the caller writes as ``--to``."""
        ...

    @property
    def suffix(self) -> str:
        """How the names of files end."""
        ...

    def check(self, schema: pa.Schema) -> None:
        """Refuse a table that the format cannot carry.

        Raises:
            ConfigError: names the column, and its type.
        """
        ...

    def write(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, file: BinaryIO) -> None:
        """Write a file from its start; the caller closes it.

        Raises:
            TableError: a value that the format cannot carry; names column and row of the file.
        """
        ...
