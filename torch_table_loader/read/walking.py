"""Reads the runs of a file, and opens it anew where the store refuses the credentials that it was opened with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch_table_loader.contracts import RenewingStorage
from torch_table_loader.read.formats import reader_for
from torch_table_loader.read.runs import Piece, Run, Walk, group_at

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_table_loader.contracts import OpenFile, Storage
    from torch_table_loader.read.file_plan import FilePlan


class FileWalk:
    """Walks the runs of a file, which it opens."""

    def __init__(self, storage: Storage, plan: FilePlan, max_rows: int) -> None:
        """Stand before the file, which is not open yet.

        Args:
            storage: where it is.
            plan: how it is read.
            max_rows: no batch has more rows.
        """
        self.handle: OpenFile | None = None
        self._walk: Walk | None = None
        self._storage = storage
        self._plan = plan
        self._max_rows = max_rows

    @property
    def row(self) -> int:
        """The first row not yet read, wherever the walk stands or fails."""
        return 0 if self._walk is None else self._walk.row

    def batches(self, run: Run) -> Iterator[tuple[Piece, int, pa.RecordBatch]]:
        """Yield the rows of a run: see `Walk.batches`.

        A file may stay open for longer than credentials last: where the store refuses them, it is opened anew with
        fresh ones, once at any row.
        """
        storage, refused_at = self._storage, -1
        while run.pieces:
            try:
                yield from self._once(run)
            except Exception as error:
                again = isinstance(storage, RenewingStorage) and self.row != refused_at and storage.renew(error)
                if not again:
                    raise
            else:
                return
            refused_at, run = self.row, self._rest(run)
            self.close()

    def close(self) -> None:
        """Close the file; the next run opens it again."""
        if self.handle is not None:
            self.handle.close()
            self.handle = None

    def _once(self, run: Run) -> Iterator[tuple[Piece, int, pa.RecordBatch]]:
        plan = self._plan
        self._walk = Walk(run, plan.group_starts)
        if self.handle is None:
            self.handle = reader_for(plan.file.format).open(self._storage, plan.file, plan.meta)
        yield from self._walk.batches(self.handle, plan.conformer.reads, self._max_rows)

    def _rest(self, run: Run) -> Run:
        """Leave out of a run what was read."""
        pieces = (piece._replace(row_start=max(piece.row_start, self.row)) for piece in run.pieces)
        groups = range(max(group_at(self.row, self._plan.group_starts), run.groups.start), run.groups.stop)
        return Run(groups, tuple(piece for piece in pieces if piece.row_start < piece.row_stop))


__all__ = ["FileWalk"]
