"""A zoo of tables: every shape that has broken a split strategy before."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from torch_table_loader.records import DataFileInfo, RowGroupInfo

_WORDS = ("plain", "with space", "ünïcode-文", "k=v", "percent%2Fname")


def data_file(
    path: str,
    rows: Sequence[int],
    *,
    partition: dict[str, object] | None = None,
    pruned: Sequence[int] = (),
    row_bytes: int = 100,
) -> DataFileInfo:
    """Describe a file that need not exist.

    Args:
        path: relative to the table's root.
        rows: rows of each row group.
        partition: partition values by column.
        pruned: the row groups that statistics prune.
        row_bytes: bytes of a row, before compression.

    >>> data_file("a.parquet", [3, 4]).record_count
    7
    """
    groups = tuple(RowGroupInfo(count, count * row_bytes, at not in pruned) for at, count in enumerate(rows))
    return DataFileInfo(path, sum(rows) * row_bytes // 2 + 4, sum(rows), partition or {}, groups)


def zoo() -> dict[str, list[DataFileInfo]]:
    """Return fresh tables by name, from the fewest possible files, rows and row groups to many.

    >>> ", ".join(sorted(zoo())[:3])
    'empty files, empty row groups, hive partitions'
    """
    return {
        "no files": [],
        "one row": [data_file("only.parquet", [1])],
        "empty files": [data_file("0.parquet", []), data_file("1.parquet", [5]), data_file("2.parquet", [])],
        "nothing but empty files": [data_file(f"{at}.parquet", []) for at in range(3)],
        "empty row groups": [data_file("0.parquet", [0, 4, 0, 0, 3, 0]), data_file("1.parquet", [0])],
        "one-row files": [data_file(f"{at:02}.parquet", [1]) for at in range(13)],
        "one big file": [data_file("big.parquet", [1000] * 7)],
        "uneven files": [data_file(f"{at}.parquet", [3**at, 1]) for at in range(9)],
        "pruned row groups": [data_file(f"{at}.parquet", [10, 20, 30], pruned=[at % 3, 1]) for at in range(6)],
        "hive partitions": _partitioned(),
        "odd names": [data_file(f"dir/{word}/{word}.parquet", [at, 7]) for at, word in enumerate(_WORDS)],
        "many files": [data_file(f"part-{at * 37 % 101:05}.parquet", [at % 5, 40 - at % 7]) for at in range(101)],
    }


def _partitioned() -> list[DataFileInfo]:
    """Return files partitioned by two columns, interleaved, with nulls."""
    first = dt.date(2024, 2, 27)
    days = [None if at == 3 else first + dt.timedelta(days=at) for at in range(5)]
    regions = ("eu", None, "us")
    return [
        data_file(
            f"day={day or '__HIVE_DEFAULT_PARTITION__'}/region={region or '__HIVE_DEFAULT_PARTITION__'}/{part}.parquet",
            [part + at, 6],
            partition={"day": day, "region": region},
        )
        for part in range(2)
        for at, day in enumerate(reversed(days))
        for region in regions
    ]
