"""Pieces of splits, read in order; a split of which more pieces come stays open until its last."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from torch_table_loader.cancellation import Threads, result_of

if TYPE_CHECKING:
    from concurrent.futures import Future

    import pyarrow as pa

    from torch_table_loader.planning.runs import Chains, Runs

    Begin = Callable[[int, int], Iterator[pa.RecordBatch]]


class _SplitRead:
    """A split that is read a piece at a time."""

    __slots__ = ("_batches", "_rest")

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rest: pa.RecordBatch | None = None

    def take(self, rows: int | None) -> Iterator[pa.RecordBatch]:
        """Yield the next rows; None for all that are left."""
        while rows is None or rows:
            batch, self._rest = self._rest, None
            if batch is None:
                batch = next(self._batches, None)
            if batch is None:
                return
            if rows is not None and batch.num_rows > rows:
                batch, self._rest = batch.slice(0, rows), batch.slice(rows)
            rows = None if rows is None else rows - batch.num_rows
            yield batch

    def close(self) -> None:
        """Close the file."""
        self._batches.close()  # type: ignore[attr-defined]


class SplitReads:
    """What reads the pieces of runs.

    Args:
        begin: opens the split of a chain's first piece, given the number of the piece and the chain's slot.
        counted: False if a piece is all that its split has, whatever the runs say.
    """

    def __init__(self, runs: Runs, chains: Chains, begin: Begin, *, counted: bool) -> None:
        self._runs = runs
        self._chains = chains
        self._begin = begin
        self._counted = counted
        self._lasts = frozenset(chains.last[chains.last >= 0].tolist())
        """The last piece of each chain, which takes all that is left: what ends with it is checked then."""
        self._open: dict[int, _SplitRead] = {}
        """The split that each slot has open."""

    def in_turn(self) -> Generator[Iterator[pa.RecordBatch]]:
        """Yield the batches of each piece; they are read when they are taken."""
        try:
            for number in range(len(self._runs)):
                yield self._take(number)
        finally:
            self._close()

    def side_by_side(self, threads: int, rows_ahead: int) -> Generator[Iterator[pa.RecordBatch]]:
        """Yield the batches of each piece, which threads have read.

        Args:
            rows_ahead: rows that are read, or being read, and not taken yet, beside those of the first such piece.
        """
        ends = self._runs.ends
        with ExitStack() as stack:
            stack.callback(self._close)  # after the threads
            pool = stack.enter_context(Threads(threads, "table-loader-splits", joined=True))
            waiting: deque[Future[list[pa.RecordBatch]]] = deque()
            newest: dict[int, Future[list[pa.RecordBatch]]] = {}
            number = 0
            for taken in range(len(self._runs)):
                before = int(ends[taken - 1]) if taken else 0
                while number < len(self._runs) and (number == taken or ends[number] - before <= rows_ahead):
                    slot = int(self._chains.slot[number])
                    newest[slot] = pool.submit(self._take_after, newest.get(slot), number)
                    waiting.append(newest[slot])
                    number += 1
                batches = result_of(waiting.popleft())
                yield iter(batches)

    def _take_after(self, before: Future[list[pa.RecordBatch]] | None, number: int) -> list[pa.RecordBatch]:
        """Read a piece, after the one before it in its slot, which began before."""
        if before is not None:
            before.result()
        return list(self._take(number))

    def _take(self, number: int) -> Iterator[pa.RecordBatch]:
        slot = int(self._chains.slot[number])
        if self._chains.last[number] >= 0:
            if (left := self._open.get(slot)) is not None:
                left.close()
            self._open[slot] = _SplitRead(self._begin(number, slot))
        rows = int(self._runs.stop[number] - self._runs.start[number])
        return self._open[slot].take(rows if self._counted and number not in self._lasts else None)

    def _close(self) -> None:
        for each in self._open.values():
            each.close()
