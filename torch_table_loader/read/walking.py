"""Reads the runs of a file, and opens it anew where the store refuses the credentials that it was opened with."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from torch_table_loader.contracts import RenewingStorage, ThinningFile
from torch_table_loader.read.formats import reader_for
from torch_table_loader.read.live import LivePlaces
from torch_table_loader.read.runs import Piece, Run, Walk, group_at

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_table_loader.contracts import OpenFile, Storage
    from torch_table_loader.read.file_plan import FilePlan


class FileWalk:
    """Walks the runs of a file, which it opens."""

    def __init__(
        self, storage: Storage, plan: FilePlan, max_rows: int, *, may_thin: bool = False, verify_checksums: bool = True
    ) -> None:
        """Stand before the file, which is not open yet.

        Args:
            storage: where it is.
            plan: how it is read.
            max_rows: no batch has more rows.
            may_thin: whether deleted rows may be left out already, where the file can do that.
            verify_checksums: whether stored checksums are compared with the data.
        """
        self._may_thin = may_thin and plan.knows_places and bool(plan.conformer.reads)
        self._live = LivePlaces(plan)
        self.handle: OpenFile | None = None
        self._walk: Walk | None = None
        self._storage = storage
        self._plan = plan
        self._max_rows = max_rows
        self._reader = reader_for(plan.file.format, verify_checksums=verify_checksums)

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
        if self.handle is None:
            self.handle = self._reader.open(self._storage, plan.file, plan.meta)
        thinner = self.handle if self._may_thin and isinstance(self.handle, ThinningFile) else None
        if thinner is None:
            yield from self._unthinned(self.handle, run)
            return
        for part in self._parts(thinner, run):
            if self._thins(thinner, part):
                yield self._thinned(thinner, part)
            else:
                yield from self._unthinned(self.handle, part)

    def _unthinned(self, handle: OpenFile, run: Run) -> Iterator[tuple[Piece, int, pa.RecordBatch, bool]]:
        self._walk = Walk(run, self._plan.group_starts)
        for found in self._walk.batches(handle, self._plan.conformer.reads, self._max_rows):
            yield *found, False

    def _parts(self, thinner: ThinningFile, run: Run) -> Iterator[Run]:
        """Divide a run into row groups that are read without their deleted rows, and runs that are read as they are."""
        # Deletes keep pieces apart, so that each lies in one row group.
        by_group = groupby(run.pieces, key=lambda piece: group_at(piece.row_start, self._plan.group_starts))
        apart = [Run(range(group, group + 1), tuple(pieces)) for group, pieces in by_group]
        for thins, parts in groupby(apart, key=lambda part: self._thins(thinner, part)):
            if thins:
                yield from parts
                continue
            others = list(parts)
            groups = range(others[0].groups.start, others[-1].groups.stop)
            yield Run(groups, tuple(piece for part in others for piece in part.pieces))

    def _thins(self, thinner: ThinningFile, part: Run) -> bool:
        """Whether a part is one row group, wanted whole and read in one go."""
        if len(part.groups) > 1 or len(part.pieces) > 1:
            return False
        (group,), starts = part.groups, self._plan.group_starts
        return part.pieces[0][:2] == (starts[group], starts[group + 1]) and thinner.thins(group, self._max_rows)

    def _thinned(self, thinner: ThinningFile, part: Run) -> tuple[Piece, int, pa.RecordBatch, bool]:
        (group,), (piece,) = part
        self._walk = Walk(part, self._plan.group_starts)
        kept = self._live.among(piece.row_start, piece.row_stop)
        num_rows = piece.row_stop - piece.row_start
        batch = thinner.thinned(group, self._plan.conformer.reads, num_rows, kept)
        self._walk.row = piece.row_stop
        return piece, piece.row_start, batch, True

    def _rest(self, run: Run) -> Run:
        """Leave out of a run what was read."""
        pieces = (piece._replace(row_start=max(piece.row_start, self.row)) for piece in run.pieces)
        groups = range(max(group_at(self.row, self._plan.group_starts), run.groups.start), run.groups.stop)
        return Run(groups, tuple(piece for piece in pieces if piece.row_start < piece.row_stop))
