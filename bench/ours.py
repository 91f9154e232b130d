"""This library as a contender."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import pyarrow.parquet as pq
import torch

from bench.tables import BenchTable


def values(table: str) -> dict[str, Any]:
    """Say how the values of a table come out that are no plain numbers."""
    if table == "strings":
        from torch_table_loader import Vocabulary  # which other checkouts may lack

        words = {f"s{i}": [f"word {n} of {i}" for n in range(10 ** (1 + i % 4))] for i in range(8)}
        return {"strings": {name: Vocabulary(known) for name, known in words.items()}}
    return {"nullable": {"nulls": "mask"}, "decimals": {"decimals": "float64"}}.get(table, {})


def epochs(
    table: BenchTable,
    batch_size: int,
    worker_type: Literal["thread", "process"] = "thread",
    num_workers: int = 2,
    **options: Any,
) -> Callable[[], int]:
    """Open a table once; each call of what comes back is one epoch and returns its rows.

    Args:
        table: what to read; lists come as values and offsets.
        batch_size: rows of a batch.
        worker_type: "thread" or "process".
        num_workers: lanes.
        options: of the loader.
    """
    from torch_table_loader import StructuredDataset

    loader, _ = StructuredDataset.create_dataloader(
        str(table.folder),
        "parquet",
        batch_size=batch_size,
        num_workers=num_workers,
        worker_type=worker_type,
        ragged="offsets",
        **values(table.name),
        **options,
    )
    return lambda: sum(rows_of(batch) for batch in loader)


def one_tensor(table: BenchTable, batch_size: int) -> Callable[[], int]:
    """Open a table once, whose columns become one float32 tensor [batch, columns]; see `epochs`."""
    return epochs(table, batch_size, columns={"x": pq.read_schema(table.files[0]).names})


_ALL = {"output": ["input_ids", "labels", "position_ids", "doc_ids", "cu_seqlens", "max_seqlen"]}

PACKED: dict[str, dict[str, Any]] = {
    "concat": _ALL,
    "concat, ids and labels": {"output": ["input_ids", "labels"]},
    "concat, ids": {"output": ["input_ids"]},
    "concat, int32 ids and labels": {"dtype": "int32"},
    "concat, windows of documents": {"shuffle_buffer_size": 10_000},
    "best fit": {"strategy": "best_fit", **_ALL},
    "windows": {"strategy": "windows", **_ALL},
    "windows, ids and labels": {"strategy": "windows", "output": ["input_ids", "labels"]},
}
"""How documents become sequences of 4,096 tokens; windows come from a row store in memory.

`shuffle_buffer_size` is an option of the loader, the others are those of `Pack`.
"""


def packed(table: BenchTable, batch_size: int, setting: str, num_workers: int = 2) -> Callable[[], int]:
    """Open a table of documents once; each call of what comes back is one epoch and returns its tokens.

    Args:
        table: has a list column `tokens`.
        batch_size: sequences of a batch.
        setting: a key of `PACKED`.
        num_workers: lanes.
    """
    from torch_table_loader import Pack, StructuredDataset

    options = dict(PACKED[setting])
    own: dict[str, Any] = {"shuffle": "rows", "row_store": "memory"} if options.get("strategy") == "windows" else {}
    if (size := options.pop("shuffle_buffer_size", None)) is not None:
        own["shuffle_buffer_size"] = size
    loader, _ = StructuredDataset.create_dataloader(
        str(table.folder),
        "parquet",
        batch_size=batch_size,
        num_workers=num_workers,
        pack=Pack(seq_len=4096, tokens="tokens", **options),
        **own,
    )
    tokens = tokens_of(table)

    def epoch() -> int:
        steps = sum(1 for _ in loader)
        assert steps == len(loader)  # noqa: S101 what is timed is whole
        return tokens

    return epoch


def tokens_of(table: BenchTable) -> int:
    """Add up the values of the list column `tokens`."""
    footers = [pq.read_metadata(file) for file in table.files]
    return sum(
        footer.row_group(group).column(0).num_values for footer in footers for group in range(footer.num_row_groups)
    )


def rows_of(batch: Any) -> int:
    """Count a batch's rows by its last column, which is a plain one or a mask in every bench table.

    Of a table of one column some readers hand out the column itself.
    """
    if type(batch) is dict:  # what small batches cost must not be what counting them costs
        column = batch[next(reversed(batch))]
        return column.shape[0] if isinstance(column, torch.Tensor) else len(column)
    return len(batch[next(reversed(batch.keys()))] if isinstance(batch, Mapping) else batch)  # type: ignore[call-overload]


__all__ = ["PACKED", "epochs", "one_tensor", "packed", "rows_of", "tokens_of"]
