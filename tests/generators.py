"""Split strategies that own the assignment, for laws of planning and of the loader alike."""

from __future__ import annotations

from collections.abc import Sequence

from torch_table_loader.records import DataFileInfo, RowRange, Shard, Split


class HalvesV1:
    """A three-argument generator that deals pieces of files over workers; where it cuts depends on their number."""

    def generate(self, files: Sequence[DataFileInfo], num_workers: int, epoch: int) -> list[Shard]:
        shards = [Shard(worker) for worker in range(num_workers)]
        for number, file in enumerate(files):
            rows = file.record_count or 0
            cut = rows * (1 + epoch % 2) // (1 + num_workers)
            for part, (start, stop) in enumerate(((0, cut), (cut, rows))):
                split = Split(file, RowRange(start, stop - start))
                shards[(number + part) % num_workers].splits.append(split)
        return shards


class HalvesV2:
    """The same, dealt over ranks too."""

    def generate(
        self, files: Sequence[DataFileInfo], num_workers: int, epoch: int, num_ranks: int, rank: int
    ) -> list[Shard]:
        shards = HalvesV1().generate(files, num_workers * num_ranks, epoch)[rank::num_ranks]
        return [Shard(worker, shard.splits) for worker, shard in enumerate(shards)]
