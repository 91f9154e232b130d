"""Columns that this library adds to a table's, and field ids that Iceberg reserves.

https://iceberg.apache.org/spec/#reserved-field-ids
"""

from __future__ import annotations

ROW_ID = "row_id"
"""The column with the physical row number in the snapshot."""

PADDING_COLUMN = "padding"
"""The column that marks rows of a batch that repeat others, so that all ranks take the same number of steps."""

FIELD_ID_KEY = "PARQUET:field_id"
"""The key of the field id in the metadata of an Arrow field."""

PATH_FIELD = 2147483546
"""The column of a position delete file that names the data file."""

POSITION_FIELD = 2147483545
"""The column of a position delete file with the deleted row's position in the data file."""

ROW_ID_FIELD = 2147483540
LAST_UPDATED_FIELD = 2147483539
CHANGE_TYPE_FIELD = 2147483543
CHANGE_ORDINAL_FIELD = 2147483542
COMMIT_SNAPSHOT_FIELD = 2147483541

DOCUMENTS = "documents"
"""The column of packed rows that describes the parts of documents in them; see `arrow.token_rows`."""
