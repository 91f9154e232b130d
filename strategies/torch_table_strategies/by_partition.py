"""A cutter: partition by partition, in the order of the partition values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch_table_loader import ConfigError
from torch_table_loader.extend import DataFileInfo, RowRange, Split


@dataclass(frozen=True, slots=True)
class ByPartition:
    """Orders files by their partition values and cuts each at row groups, so that no split holds two partitions.

    The order holds as it is with ``shuffle=False``; with ``shuffle="splits"`` the library permutes the splits.

    Args:
        columns: partition columns to order by, the first one first; None for all, as the files have them.
        descending: the greatest value first. Null comes after all values, and here before them.
        target_bytes: bytes of a split, before compression, where row groups allow it.
        target_rows: rows of a split; wins over `target_bytes`.
    """

    columns: tuple[str, ...] | None = None
    descending: bool = False
    target_bytes: int = 128 * 1024 * 1024
    target_rows: int | None = None

    def __post_init__(self) -> None:
        """Refuse targets below one."""
        for name in ("target_bytes", "target_rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"ByPartition wants {name} >= 1, got {value}")

    def __call__(self, files: Sequence[DataFileInfo]) -> list[Split]:
        """Order and cut.

        Raises:
            ConfigError: `columns` names one that no file is partitioned by.
        """
        columns = self._known_columns(files)
        ordered = sorted(files, key=lambda file: _sort_key(file, columns), reverse=self.descending)
        return [split for file in ordered for split in self._cut(file)]

    def _known_columns(self, files: Sequence[DataFileInfo]) -> list[str]:
        known = list(dict.fromkeys(column for file in files for column in file.partition))
        if self.columns is None:
            return known
        if files and (unknown := sorted(set(self.columns) - set(known))):
            raise ConfigError(
                f"ByPartition(columns={self.columns!r}) must name partition columns, but the table is partitioned by "
                f"{', '.join(known) or 'none'}, not by {', '.join(unknown)}; those of files are key=value folders"
            )
        return list(self.columns)

    def _cut(self, file: DataFileInfo) -> Iterator[Split]:
        start = stop = weight = 0
        for group in file.row_groups:
            added = group.num_bytes if self.target_rows is None else group.num_rows
            if weight and weight + added > (self.target_rows or self.target_bytes):
                yield Split(file, RowRange(start, stop - start))
                start, weight = stop, 0
            stop += group.num_rows
            weight += added
        if stop > start:
            yield Split(file, RowRange(start, stop - start))


def _sort_key(file: DataFileInfo, columns: Sequence[str]) -> list[tuple[bool, Any]]:
    values = [file.partition.get(column) for column in columns]
    return [(value is None, 0 if value is None else value) for value in values]


__all__ = ["ByPartition"]
