"""A generator of the three-argument form: the newest file first, dealt to the workers in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch_table_loader.extend import DataFileInfo, Shard, Split


@dataclass(frozen=True, slots=True)
class NewestFirst:
    """Deals whole files in the order of time, newest first, to the workers in turn.

    It knows nothing of ranks: each rank reads the whole table. The worker that begins moves on by one each epoch, so
    that the newest file is not always the same worker's.

    Args:
        column: the partition column that says the time; None for the file's path, as where names begin with a date.
            Files without a value come last.
        oldest_first: the other way round.
    """

    column: str | None = None
    oldest_first: bool = False

    def generate(self, files: Sequence[DataFileInfo], num_workers: int, epoch: int) -> list[Shard]:
        """Deal the files."""
        known = [file for file in files if self._time(file) is not None]
        known.sort(key=self._time, reverse=not self.oldest_first)
        ordered = known + [file for file in files if self._time(file) is None]
        shards = [Shard(id=worker, row_count=0) for worker in range(num_workers)]
        for turn, file in enumerate(ordered):
            shard = shards[(turn + epoch) % num_workers]
            shard.splits.append(Split(file))
            shard.row_count = (shard.row_count or 0) + sum(group.num_rows for group in file.row_groups)
        return shards

    def _time(self, file: DataFileInfo) -> Any:
        return file.path if self.column is None else file.partition.get(self.column)


__all__ = ["NewestFirst"]
