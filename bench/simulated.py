"""A table of many files that exist nowhere: their footers are simulated, and one real file stands in for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_table_loader.dataset import StructuredDataset
from torch_table_loader.engine.jobs.modes import open_stream
from torch_table_loader.engine.jobs.stream_job import StreamJob
from torch_table_loader.engine.rank_info import RankInfo
from torch_table_loader.loader import TableLoader
from torch_table_loader.options import LoaderOptions
from torch_table_loader.read.formats import reader_for
from torch_table_loader.records import DataFile, FileMeta, FileVersion
from torch_table_loader.source.plan_cache import CacheEntry
from torch_table_loader.source.storage import FileStorage

GROUPS = 100
GROUP_ROWS = 512


@dataclass(frozen=True)
class SimulatedStorage:
    """Opens the one real file, whichever is asked for, and remembers which was.

    Args:
        real: the file.
        version: what every file's is.
        opened: names in the order in which they were opened.
    """

    real: str
    version_of_all: FileVersion
    opened: list[str] = field(default_factory=list)
    local: FileStorage = field(default_factory=lambda: FileStorage("file"))
    is_local: bool = True
    fork_safe: bool = True

    def open(self, path: str) -> pa.NativeFile:
        """Open the real file."""
        self.opened.append(path)
        return self.local.open(self.real)

    def version(self, path: str) -> FileVersion:  # noqa: ARG002 they are all alike
        """Say that nothing has changed."""
        return self.version_of_all

    def close(self) -> None:
        """Drop the client."""
        self.local.close()


@dataclass(frozen=True)
class SimulatedTable:
    """A source that is its own plan cache (see `Source`, `PlanCache`), so that no footer is read.

    Args:
        storage: of the files.
        files: their names.
        meta: what the footer of each says.
    """

    storage: SimulatedStorage
    files: tuple[DataFile, ...]
    meta: FileMeta
    partition_schema: pa.Schema = field(default_factory=lambda: pa.schema([]))

    @classmethod
    def write(cls, folder: Path, num_files: int) -> SimulatedTable:
        """Write the real file, of `GROUPS` row groups of `GROUP_ROWS` rows, and pretend that there are many."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "real.parquet"
        rows = GROUPS * GROUP_ROWS
        columns = {"id": np.arange(rows, dtype=np.int64), "x": np.linspace(0, 1, rows, dtype=np.float32)}
        pq.write_table(pa.table(columns), path, row_group_size=GROUP_ROWS)
        version = FileVersion(path.stat().st_size, mtime_ns=1)
        storage = SimulatedStorage(str(path), version)
        names = [f"{number:05d}.parquet" for number in range(num_files)]
        files = tuple(DataFile(name, name, version, "parquet") for name in names)
        return cls(storage, files, reader_for("parquet").inspect(storage, files[0], None))

    def get(self, file: DataFile) -> CacheEntry:  # noqa: ARG002
        """Give what is known of a file."""
        return CacheEntry(self.meta)

    def get_many(self, files: Sequence[DataFile]) -> list[CacheEntry]:
        """Give what is known of each file."""
        return [CacheEntry(self.meta)] * len(files)

    def put(self, file: DataFile, entry: CacheEntry) -> None:
        """Learn nothing new."""

    def open(self, **options: Any) -> tuple[TableLoader, StreamJob]:
        """Plan the table and make its loader, as `StructuredDataset.create_dataloader` does.

        Args:
            options: the fields of `LoaderOptions`.

        Returns:
            The loader, and what it serves.
        """
        defaults: dict[str, Any] = {"batch_size": 512, "num_workers": 2, "shuffle": "splits"}
        asked = LoaderOptions(**(defaults | options))
        ranks = RankInfo(asked.rank or 0, int(asked.num_ranks or 1), "here")
        job = open_stream(self, asked, ranks, self)  # type: ignore[arg-type]  # it stands in for a PlanCache
        dataset = StructuredDataset.__new__(StructuredDataset)
        super(StructuredDataset, dataset).__init__(job)
        return TableLoader(dataset), job


__all__ = ["GROUPS", "GROUP_ROWS", "SimulatedStorage", "SimulatedTable"]
