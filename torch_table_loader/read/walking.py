"""Reads the runs of a file, and opens it anew where the store refuses the credentials that it was opened with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from torch_table_loader.contracts import RenewingStorage, ThinningFile
from torch_table_loader.read.formats import reader_for
from torch_table_loader.read.runs import Piece, Run, Walk, group_at

if TYPE_CHECKING:
    from torch_table_loader.contracts import OpenFile, Storage
    from torch_table_loader.read.file_plan import FilePlan


class FileWalk:
    """Walks the runs of a file, which it opens."""

    def __init__(self, storage: Storage, plan: FilePlan, max_rows: int, *, may_thin: bool = False) -> None:
        """Stand before the file, which is not open yet.

        Args:
            storage: where it is.
            plan: how it is read.
            max_rows: no batch has more rows.
            may_thin: whether deleted rows may be left out already, where the file can do that.
        """
        self._may_thin = may_thin and plan.knows_places and bool(plan.conformer.reads)
        self.handle: OpenFile | None = None
        self._walk: Walk | None = None
        self._storage = storage
        self._plan = plan
        self._max_rows = max_rows

    @property
    def row(self) -> int:
        """The first row not yet read, wherever the walk stands or fails."""
        return 0 if self._walk is None else self._walk.row

    def batches(self, run: Run) -> Iterator[tuple[Piece, int, pa.RecordBatch, bool]]:
        """Yield the rows of a run: see `Walk.batches`; and whether deleted rows were left out.

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

    def _once(self, run: Run) -> Iterator[tuple[Piece, int, pa.RecordBatch, bool]]:
        plan = self._plan
        self._walk = Walk(run, plan.group_starts)
        if self.handle is None:
            self.handle = reader_for(plan.file.format).open(self._storage, plan.file, plan.meta)
        if self._may_thin and isinstance(self.handle, ThinningFile) and self._is_in_groups(self.handle, run):
            yield from self._thinned(self.handle, self._walk, run)
            return
        for found in self._walk.batches(self.handle, plan.conformer.reads, self._max_rows):
            yield *found, False

    def _is_in_groups(self, handle: ThinningFile, run: Run) -> bool:
        """Whether each piece is one row group, read in one go."""
        starts = self._plan.group_starts
        return len(run.groups) == len(run.pieces) and all(
            (starts[group], starts[group + 1]) == piece[:2] and handle.thins(group, self._max_rows)
            for group, piece in zip(run.groups, run.pieces, strict=True)
        )

    def _thinned(self, handle: ThinningFile, walk: Walk, run: Run) -> Iterator[tuple[Piece, int, pa.RecordBatch, bool]]:
        for group, piece in zip(run.groups, run.pieces, strict=True):
            kept = pa.array(self._plan.live_places(piece.row_start, piece.row_stop))
            num_rows = piece.row_stop - piece.row_start
            batch = handle.thinned(group, self._plan.conformer.reads, num_rows, kept)
            walk.row = piece.row_stop
            yield piece, piece.row_start, batch, True

    def _rest(self, run: Run) -> Run:
        """Leave out of a run what was read."""
        pieces = (piece._replace(row_start=max(piece.row_start, self.row)) for piece in run.pieces)
        groups = range(max(group_at(self.row, self._plan.group_starts), run.groups.start), run.groups.stop)
        return Run(groups, tuple(piece for piece in pieces if piece.row_start < piece.row_stop))


__all__ = ["FileWalk"]
