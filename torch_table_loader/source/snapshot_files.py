"""Common base of the sources of tables with snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

if TYPE_CHECKING:
    from torch_table_loader.records import DataFile
    from torch_table_loader.source.plan_cache import PlanCache
    from torch_table_loader.source.table_storage import TableStorage


@dataclass(frozen=True, kw_only=True)
class SnapshotFiles:
    """A table at one snapshot, with its files planned (implements `contracts.SnapshotSource`).

    Args:
        files: the data files, oldest first, then by path.
        schema: the schema that the snapshot is read with.
        fingerprint: a hash of the table's id and the snapshot's.
        snapshot_id: None for a table without a snapshot, which is empty.
        partition_schema: the columns that the table's metadata gives.
        cache: keeps plans, footers and counts; or None.
        pinned: whether the caller chose the snapshot.
        request: how the table was found, to open it at another snapshot; None if it was not looked up.
        start_snapshot_id: if only appended rows are read, the snapshot after which they were appended; else None.
        changelog: whether rows deleted after it are read as well, with the kind of change of each row.
    """

    storage: TableStorage
    files: Sequence[DataFile]
    schema: pa.Schema
    fingerprint: str
    snapshot_id: int | None
    description: str
    notes: tuple[str, ...] = ()
    partition_schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    cache: PlanCache | None = field(default=None, repr=False, compare=False)
    pinned: bool = True
    request: Any = field(default=None, repr=False, compare=False)
    start_snapshot_id: int | None = None
    changelog: bool = False

    pin: ClassVar[str] = "snapshot_id"
    """The argument that chooses a snapshot, for messages."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what reopens the table: catalogs may not be picklable."""
        return {**self.__dict__, "request": None}
