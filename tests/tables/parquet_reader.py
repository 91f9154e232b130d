"""The class of the reader of Parquet, for tests that change or watch the methods of its contract."""

from __future__ import annotations

from typing import Any

from torch_table_loader.extend import reader_for

PARQUET_READER: Any = type(reader_for("parquet"))
