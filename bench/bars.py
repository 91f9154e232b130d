"""What must be reached: every duel with its bar."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Duel:
    """Two contenders on a table.

    Args:
        table: a key of `bench.tables.TABLES`.
        batch_size: rows of a batch.
        left: a contender.
        right: a contender, or "rival:best" for the best setting of a sweep.
        bar: the least median ratio, left over right; None where it is only reported.
    """

    table: str
    batch_size: int
    left: str
    right: str
    bar: float | None = None


TENSORS_OVER_ONNX = 0.6
"""Tensor shards against two bare threads that parse them with onnx and make numpy arrays."""

_THEIRS = "torch-dataloader-utils"

DUELS = (
    *(Duel(table, 8192, "ours:thread", "floor", 0.88) for table in ("A-zstd", "A-snappy", "B", "C")),
    *(Duel(table, 1024, "ours:thread", "floor", 0.70) for table in ("A-zstd", "A-snappy")),
    *(Duel(table, 128, "ours:thread", "floor", 0.45) for table in ("A-zstd", "A-snappy")),
    Duel("D", 8192, "ours:thread", "floor", 0.80),
    *(
        Duel(table, size, "one tensor:columns", "floor", bar)
        for table, size, bar in (("A-zstd", 128, 0.7), ("A-zstd", 1024, 0.95), ("C", 8192, 1.0))
    ),
    *(Duel(table, 8192, "ours:process", "ours:thread", 0.40) for table in ("A-zstd", "B")),
    Duel("A-zstd, 8 times", 8192, "ours:process", "ours:thread", 0.75),
    Duel("A-zstd", 8192, "ours:thread", f"{_THEIRS}:best", 2.2),
    Duel("B", 8192, "ours:thread", f"{_THEIRS}:best", 1.8),
    Duel("A-zstd", 1024, "ours:thread", f"{_THEIRS}:best", 4.0),
    Duel("A-zstd", 8192, "ours:thread", f"{_THEIRS}:num_workers=2", 8.0),
    Duel("D", 8192, "ours:thread", f"{_THEIRS}:best", 40.0),
    *(
        Duel(table, 8192, "ours:thread", f"{rival}:best")
        for rival in ("datasets", "polars", "lance")
        for table in ("A-zstd", "B", "D")
    ),
)

QUICK_DUELS = (
    *(Duel(table, 8192, "ours:thread", "floor", 0.8) for table in ("A-zstd", "B", "D", "strings")),
    Duel("A-zstd", 1024, "ours:thread", "floor", 0.7),
    Duel("A-zstd", 8192, "ours:thread", "torch-dataloader-utils:num_workers=0", 2.0),
)
"""What a change is looked at with, in less than three minutes once the tables are there."""

VALUE_DUELS = tuple(
    Duel(table, 8192, "ours:thread", "floor", 0.8) for table in ("strings", "nullable", "nested", "decimals")
)
"""Values that are no plain numbers: strings as codes, nulls with masks, structs, decimals as doubles."""

_CHART_READERS = ("floor", f"{_THEIRS}:best", "datasets:best", "polars:best", "lance:best")

BATCH_SIZE_DUELS = tuple(
    Duel("A-zstd", size, "ours:thread", reader) for size in (128, 1024, 8192, 65_536) for reader in _CHART_READERS
)
"""Speed over the size of a batch, for the chart."""

COLUMN_DUELS = tuple(
    Duel(f"{columns} columns", 8192, "ours:thread", reader)
    for columns in (1, 10, 100, 500)
    for reader in _CHART_READERS
)
"""Speed over the number of columns, for the chart; each table has equally many values."""

PACKED_DUELS = (
    Duel("D", 8, "packed:concat", "tokens", 0.8),
    Duel("D", 8, "packed:concat, ids and labels", "tokens"),
    Duel("D", 8, "packed:concat, ids", "tokens"),
    Duel("D", 8, "widened tokens", "tokens"),
    Duel("D", 8, "packed:concat, windows of documents", "packed:concat, ids and labels", 0.95),
    Duel("D", 8, "packed:best fit", "tokens", 0.5),
    Duel("D", 8, "packed:windows", "tokens", 1.0),
    Duel("D", 8, "packed:windows, ids and labels", "tokens"),
    Duel("D-tenth", 8, "packed:concat", f"{_THEIRS}, packed by hand:best", 40.0),
)
"""Documents that become sequences of 4,096 tokens against decoding their tokens; tokens per second."""

ICEBERG_DUELS = (
    *(Duel(table, 8192, "iceberg:plain", "ours:thread", 0.97) for table in ("A-zstd", "B")),
    *(
        Duel(table, 8192, f"iceberg:{deletes}", "iceberg:plain", bar)
        for table in ("A-zstd", "B")
        for deletes, bar in (("position", 0.85), ("vector", 0.85), ("equality", 0.60))
    ),
    Duel("A-zstd", 8192, "iceberg:keys", "iceberg:plain"),
    *(Duel(table, 8192, "bare:position", "floor") for table in ("A-zstd", "B")),
    Duel("E", 8192, "iceberg:plain", "pyiceberg:plain", 1.5),
    *(
        Duel("A-snappy", 8192, "iceberg:plain", f"datasets, Iceberg:{setting}")
        for setting in (
            'with_format("torch")',
            'with_format("arrow"), tensors by hand',
            'with_format("arrow"), its own batches',
        )
    ),
)
"""The same files as an Iceberg table; rows per second count live rows, of which deletes leave 95 in 100."""

DELTA_DUELS = tuple(
    Duel(table, 8192, left, right, bar)
    for table in ("A-zstd", "B")
    for left, right, bar in (("delta:plain", "ours:thread", 0.97), ("delta:vector", "delta:plain", 0.90))
)
"""The same files as a Delta Lake table; rows per second count live rows, of which deletes leave 95 in 100."""

FILTER_DUELS = tuple(
    Duel(table, 8192, f"filtered:{order}", f"polars filtered:{order}")
    for table, order in (("A-zstd", "sorted"), ("A-zstd", "unsorted"), ("B", "unsorted"))
)
"""A row filter that keeps one row in a hundred, of a column that sorts the table or not; rows that pass per second.

No bar: polars decodes single values of a page, pyarrow whole row groups.
"""

SATURATION: dict[tuple[str, int], float | None] = {
    ("A-zstd", 8192): 16.0,
    ("A-zstd", 1024): 10.0,
    ("A-zstd", 128): None,
    ("B", 8192): 12.0,
    ("B", 1024): 6.0,
}
"""By table and rows of a batch, the cores that an epoch can use at the least before Python's lock keeps others out."""

MIXED_OVER_PLAIN: dict[int | None, float] = {None: 0.6, 50_000: 0.75}
"""Speed by CPU of `shuffle=True`, over that of the plain stream, by rows of a window; None: as it comes."""


@dataclass(frozen=True, slots=True)
class MixBar:
    """How well an order must mix; see `bench.mixing.Measures`.

    Args:
        spread: at least.
        drift: at most.
        near: at most.
    """

    spread: float
    drift: float
    near: float


def mix_bar(table: str, *, windows: bool) -> MixBar:
    """Say what `shuffle=True` must reach, as it comes or with windows of a 20th of the table."""
    drift, near = 1.5, 0.10
    if table == "large":
        drift = 2.6
    if windows:
        near = 0.35
    return MixBar(0.98, drift, near)


LOSS_OVER_ROWS = 1.01
"""The loss of a network after an epoch of `shuffle=True`, over that after a uniformly shuffled one."""

RANKS_OVER_ONE = 0.97
STALL_MS = 1.0
ICEBERG_MEMORY = 0.25
ICEBERG_PLANNING = 1.2
DELTA_PLANNING = 1.2
PLANNING_SECONDS = 2.0
PLANNING_FILES_SECONDS = 3.0
PLANNING_FILE_BYTES = 200.0
NEXT_EPOCH_SECONDS = 0.5
PACKING_MICROS = 3.0
PACKING_FILL = {"1000": 0.995, "4096": 0.999}
FIRST_BATCH_SECONDS = 0.5
START_OVER_TORCH = 1.15
START_BESIDE_TORCH = 0.05
"""A process may take so many times what `import torch` takes, and so many seconds more, until its first batch."""
MEMORY_GROWTH = 1.05
MEMORY_OVER_FLOOR = 1.2
IDLE_BOUNDS = 0
BOUND_OVER_USED = 2.0
STATE_MICROS = 50.0
RESUMED_OVER_FRESH = 1.2
RESCALED_OVER_FRESH = 1.5
CONSUMED_FILES_OPENED = 0


@dataclass(frozen=True, slots=True)
class RowsDuel:
    """An epoch in row mode against another way to read or shuffle.

    Args:
        table: a key of `bench.tables.TABLES`.
        place: where the store is: "memory" or "files".
        against: "floor", or a key of `bench.shuffled.SHUFFLED`.
        bar: the least median ratio; None where it is only reported.
    """

    table: str
    place: str
    against: str
    bar: float | None = None


ROWS = (
    RowsDuel("A-zstd", "memory", "floor", 0.8),
    RowsDuel("A-zstd", "files", "floor", 0.8),
    RowsDuel("B", "memory", "floor", 1.0),
    RowsDuel("B", "files", "floor", 1.0),
    RowsDuel("strings", "memory", "floor", 0.5),
    RowsDuel("strings", "files", "floor", 0.5),
    RowsDuel("D", "memory", "floor", 0.5),
    RowsDuel("A-zstd", "memory", "DuckDB ORDER BY random()"),
    RowsDuel("A-zstd", "memory", "randperm + index_select in memory"),
    RowsDuel("A-zstd", "memory", "Lance random access"),
    RowsDuel("A-zstd", "memory", "Hugging Face map style"),
)
PERMUTATION_OVER_NUMPY = 3.5
EPOCH_START_MS = 1.0
BUILD_OVER_DECODING = 1.5
FIRST_EPOCH_OVER_DUCKDB = 1.0
COLD_OVER_FIO = 0.8
ROWS_RESUMED_OVER_FRESH = 1.05

SHARE_OF_LINE = 0.78
SHARE_OF_LINE_NOISE = 0.90
SHARE_OF_LINE_ROWS = 0.70
LINEITEM_OVER_POLARS = 1.05
FAR_OVER_NEAR = 1.4
COLUMNS_OVER_POLARS = 0.5
"""Of projections that cost requests; where row groups are large, both readers wait for the line."""
LARGE_GROUPS_OVER_POLARS = 1.0
BYTES_OVER_NEEDED = 1.2
SMALL_FILES_OVER_SCANNER = 1.0
REQUESTS_A_FILE = 1.05
CONSTRUCTING_SECONDS = 0.6
REQUESTS_OVER_MERGED = 1.1
HEADS = 0
TAIL_OVER_NONE = 1.2
FIRST_BATCH_OVER_TODAY = 1.2
MEMORY_OVER_BUDGET = 1.1
CACHED_OVER_LOCAL = 1.15
BYTES_WHEN_CACHED = 0
DELETES_OVER_PLAIN = 1.1
ENDPOINT_CPU = 0.2
"""Of a table that is read from an object store."""

__all__ = [
    "BATCH_SIZE_DUELS",
    "BOUND_OVER_USED",
    "BUILD_OVER_DECODING",
    "BYTES_OVER_NEEDED",
    "BYTES_WHEN_CACHED",
    "CACHED_OVER_LOCAL",
    "COLD_OVER_FIO",
    "COLUMNS_OVER_POLARS",
    "COLUMN_DUELS",
    "CONSTRUCTING_SECONDS",
    "CONSUMED_FILES_OPENED",
    "DELETES_OVER_PLAIN",
    "DUELS",
    "ENDPOINT_CPU",
    "EPOCH_START_MS",
    "FAR_OVER_NEAR",
    "FILTER_DUELS",
    "FIRST_BATCH_OVER_TODAY",
    "FIRST_BATCH_SECONDS",
    "FIRST_EPOCH_OVER_DUCKDB",
    "HEADS",
    "ICEBERG_DUELS",
    "ICEBERG_MEMORY",
    "ICEBERG_PLANNING",
    "IDLE_BOUNDS",
    "LARGE_GROUPS_OVER_POLARS",
    "LINEITEM_OVER_POLARS",
    "LOSS_OVER_ROWS",
    "MEMORY_GROWTH",
    "MEMORY_OVER_BUDGET",
    "MEMORY_OVER_FLOOR",
    "NEXT_EPOCH_SECONDS",
    "PACKED_DUELS",
    "PACKING_FILL",
    "PACKING_MICROS",
    "PERMUTATION_OVER_NUMPY",
    "PLANNING_FILES_SECONDS",
    "PLANNING_FILE_BYTES",
    "PLANNING_SECONDS",
    "QUICK_DUELS",
    "RANKS_OVER_ONE",
    "REQUESTS_A_FILE",
    "REQUESTS_OVER_MERGED",
    "RESCALED_OVER_FRESH",
    "RESUMED_OVER_FRESH",
    "ROWS",
    "ROWS_RESUMED_OVER_FRESH",
    "SATURATION",
    "SHARE_OF_LINE",
    "SHARE_OF_LINE_NOISE",
    "SHARE_OF_LINE_ROWS",
    "SMALL_FILES_OVER_SCANNER",
    "STALL_MS",
    "START_BESIDE_TORCH",
    "START_OVER_TORCH",
    "STATE_MICROS",
    "TAIL_OVER_NONE",
    "VALUE_DUELS",
    "Duel",
    "MixBar",
    "RowsDuel",
    "mix_bar",
]
