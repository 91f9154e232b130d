"""Pieces of splits, read in order; a split of which more pieces come stays open until its last."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from threading import Event
from typing import TYPE_CHECKING

import numpy as np

from torch_table_loader.batching.rows import Part
from torch_table_loader.cancellation import SLICE_S, Threads, check_wanted, result_of
from torch_table_loader.engine.sizing import reads_ahead

if TYPE_CHECKING:
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from torch_table_loader.batching.rows import Rows
    from torch_table_loader.planning.runs import Chains, Runs

    Begin = Callable[[int, int], Iterator[Rows]]


class _SplitRead:
    """A split that is read a piece at a time."""

    __slots__ = ("_at", "_chunk", "_chunks")

    def __init__(self, chunks: Iterator[Rows]) -> None:
        self._chunks = chunks
        self._chunk: Rows | None = None
        """What was read last, of which rows from `_at` on are left."""
        self._at = 0

    def take(self, rows: int | None) -> Iterator[Part[Rows]]:
        """Yield the next rows; None for all that are left."""
        while rows is None or rows:
            if self._chunk is None:
                self._chunk, self._at = next(self._chunks, None), 0
            if self._chunk is None:
                return
            stop = self._chunk.num_rows if rows is None else min(self._chunk.num_rows, self._at + rows)
            part = Part(self._chunk, self._at, stop)
            self._at = stop
            if stop == self._chunk.num_rows:
                self._chunk = None
            rows = None if rows is None else rows - part.num_rows
            yield part

    def close(self) -> None:
        """Close the file."""
        self._chunks.close()  # type: ignore[attr-defined]


class SplitReads:
    """What reads the pieces of runs.

    Args:
        begin: reads and decodes the chain that a piece begins, given the number of the piece and the chain's slot.
        counted: False if a piece is all that its split has, whatever the runs say.
    """

    def __init__(self, runs: Runs, chains: Chains, begin: Begin, *, counted: bool) -> None:
        self._runs = runs
        self._chains = chains
        self._begin = begin
        self._counted = counted
        self._is_last = np.zeros(len(runs), dtype=np.bool_)
        """Of each piece, whether it ends a chain, and takes all that is left: what ends with it is checked then."""
        self._is_last[chains.last[chains.last >= 0]] = True
        self._open: dict[int, _SplitRead] = {}
        """The split that each slot has open."""

    def in_turn(self) -> Generator[Iterator[Part[Rows]]]:
        """Yield the rows of each piece; they are read when they are taken."""
        try:
            for number in range(len(self._runs)):
                yield self._take(number)
        finally:
            self._close()

    def side_by_side(self, threads: int, read_rows: int) -> Generator[Iterator[Part[Rows]]]:
        """Yield the rows of each piece, which threads have read.

        One call to a thread takes all pieces that view the same read: a call costs more than many views.

        Args:
            read_rows: about the rows that are decoded at once.
        """
        reads = _reads_before(self._runs.stop, read_rows) - _reads_before(self._runs.start, read_rows)
        begins = (reads > 0) | (self._chains.last >= 0)
        call_of = self._call_of(begins)
        by_call, first = np.argsort(call_of, kind="stable"), np.flatnonzero(begins)
        bounds = np.searchsorted(call_of[by_call], np.arange(len(first) + 1))
        ends = np.cumsum(np.maximum(reads[first], 1))
        most = reads_ahead(threads)
        with ExitStack() as stack:
            stack.callback(self._close)  # after the threads
            pool = stack.enter_context(Threads(threads, "table-loader-splits", joined=True))
            begun: dict[int, Future[deque[list[Part[Rows]]]]] = {}
            newest: dict[int, Event] = {}
            """Of each slot, whether its newest read is over; a future would keep what was read."""
            number = newest_taken = 0
            for call in call_of.tolist():
                newest_taken = max(newest_taken, call)
                while number < len(first) and (number <= newest_taken or ends[number] - ends[newest_taken] <= most):
                    pieces = by_call[bounds[number] : bounds[number + 1]].tolist()
                    slot = int(self._chains.slot[pieces[0]])
                    before, newest[slot] = newest.get(slot), Event()
                    begun[number] = pool.submit(self._take_after, before, newest[slot], pieces)
                    number += 1
                taken = result_of(begun[call])
                parts = taken.popleft()
                if not taken:
                    del begun[call]
                yield iter(parts)

    def _call_of(self, begins: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the call of each piece; calls are numbered in the order of their first pieces.

        Args:
            begins: whether a piece begins a call; else it belongs to the call of the piece before it in its slot.
        """
        by_slot = np.argsort(self._chains.slot, kind="stable")
        first = np.maximum.accumulate(np.where(begins[by_slot], np.arange(len(by_slot)), 0))
        call_of = np.empty(len(by_slot), dtype=np.int64)
        call_of[by_slot] = (np.cumsum(begins) - 1)[by_slot[first]]
        return call_of

    def _take_after(self, before: Event | None, over: Event, pieces: list[int]) -> deque[list[Part[Rows]]]:
        """Take pieces of a split, after those before them in its slot, which began before."""
        try:
            while before is not None and not before.wait(SLICE_S):
                check_wanted()  # a call that had not begun when the block was left never ends
            return deque(list(self._take(number)) for number in pieces)
        finally:
            over.set()

    def _take(self, number: int) -> Iterator[Part[Rows]]:
        slot = int(self._chains.slot[number])
        if self._chains.last[number] >= 0:
            if (left := self._open.get(slot)) is not None:
                left.close()
            self._open[slot] = _SplitRead(self._begin(number, slot))
        rows = int(self._runs.stop[number] - self._runs.start[number])
        return self._open[slot].take(rows if self._counted and not self._is_last[number] else None)

    def _close(self) -> None:
        for each in self._open.values():
            each.close()


def _reads_before(row: NDArray[np.int64], read_rows: int) -> NDArray[np.int64]:
    """Return how many reads of so many rows begin before some rows of a split."""
    return -(-row // read_rows)
