"""Documents as a function of the caller's changes them, before they are cut into sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow.arrays import plain
from torch_table_loader.arrow.reserved import ROW_ID
from torch_table_loader.errors import ConfigError
from torch_table_loader.planning.keys import hashes_of
from torch_table_loader.read.token_fields import lengths_of
from torch_table_loader.read.tokenizers import name_of

if TYPE_CHECKING:
    from torch_table_loader.pack import Pack
    from torch_table_loader.planning.keys import Key

SEED = "seed"
"""The column of a seed for each document."""


def changed_documents(
    pack: Pack, batch: pa.RecordBatch, lists: Sequence[pa.Array], kinds: Sequence[pa.DataType], key: Key
) -> list[pa.Array]:
    """Return the columns that are cut as ``pack.documents`` returns them.

    Args:
        batch: has the documents' row ids, of which their seeds are made; without them, where documents are only
            counted, all seeds are 0.
        lists: the columns that are cut.
        kinds: the types that their values come out in.

    Raises:
        ConfigError: the function failed, or did not return what it must.
    """
    function, names = pack.documents, pack.cut_columns
    assert function is not None  # noqa: S101 asked only then
    seeds = np.zeros(batch.num_rows, dtype=np.int64)
    if ROW_ID in batch.schema.names:
        ids = batch.column(ROW_ID).to_numpy(zero_copy_only=False).astype(np.uint64)
        seeds = (hashes_of(ids, key) >> np.uint64(1)).astype(np.int64)
    given = pa.RecordBatch.from_arrays([*lists, pa.array(seeds)], names=[*names, SEED])
    try:
        returned: Any = function(given)
    except Exception as error:
        raise ConfigError(f"Pack: documents={name_of(function)} failed: {type(error).__name__}: {error}") from error
    if isinstance(returned, pa.Table):
        returned = returned.combine_chunks()
    if not isinstance(returned, pa.RecordBatch | pa.Table) or sorted({*returned.schema.names} - {SEED}) != sorted(
        names
    ):
        shown = returned.schema.names if isinstance(returned, pa.RecordBatch | pa.Table) else type(returned).__name__
        raise _wrong(function, f"return a RecordBatch of the columns {', '.join(names)}", shown)
    if returned.num_rows != batch.num_rows:
        raise _wrong(function, f"return {batch.num_rows} rows, as it was given", returned.num_rows)
    found = [_list_of(function, returned, name, kind) for name, kind in zip(names, kinds, strict=True)]
    if pack.same_lengths and not np.array_equal(lengths_of(found[0]), lengths_of(lists[0])):
        raise _wrong(function, "keep the number of tokens of each document with same_lengths=True", "another")
    return found


def _list_of(function: Any, returned: pa.RecordBatch | pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    column = returned.column(name)
    column = plain(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
    try:
        return column.cast(pa.large_list(kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _wrong(function, f"return lists of {kind} as {name!r}", f"{column.type} ({error})") from error


def _wrong(function: Any, expected: str, found: Any) -> ConfigError:
    return ConfigError(f"Pack: documents={name_of(function)} must {expected}, got {found}")
