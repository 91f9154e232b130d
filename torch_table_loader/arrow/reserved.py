"""Columns that this library adds to a table's, and field ids that Iceberg reserves.

https://iceberg.apache.org/spec/#reserved-field-ids
"""

from __future__ import annotations

ROW_ID = "row_id"
"""The column that says which physical row of the snapshot a row is."""

PADDING_COLUMN = "padding"
"""The column that says which rows of a batch repeat others, so that all ranks take as many steps."""

FIELD_ID_KEY = "PARQUET:field_id"
"""Where the metadata of an Arrow field has the field id."""

PATH_FIELD = 2147483546
"""The column of a position delete file that names the data file."""

POSITION_FIELD = 2147483545
"""The column of a position delete file that says which row of the data file is deleted."""

ROW_ID_FIELD = 2147483540
LAST_UPDATED_FIELD = 2147483539
CHANGE_TYPE_FIELD = 2147483543
CHANGE_ORDINAL_FIELD = 2147483542
COMMIT_SNAPSHOT_FIELD = 2147483541

DOCUMENTS = "documents"
"""The column of packed rows that says which parts of documents lie under them; see `arrow.token_rows`."""
