"""Runs of rows in output-ready form: the codec that makes, joins and ships them, and how they are cut.

Chunks of rows become batches of one size, or windows in which rows are permuted.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, repeat
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import torch
from typing_extensions import override

from torch_table_loader.arrow.buffers import aligned, new_array

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.batching.policy import ColumnFunction
    from torch_table_loader.planning.window_sizes import WindowSizes
    from torch_table_loader.planning.windows import Dealing
    from torch_table_loader.samples import SampleCounts


Allocate = Callable[[int], torch.Tensor]
"""Makes a flat uint8 tensor of so many bytes, for example in shared memory."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows as one flat piece of memory, fit to cross a process.

    Args:
        data: flat uint8; the pieces begin at multiples of 64 bytes, in the codec's order.
        sizes: bytes of each piece.
    """

    data: torch.Tensor
    num_rows: int
    sizes: tuple[int, ...]


def taken(values: list[Any]) -> Iterator[Any]:
    """Return the values of a list, which keeps none that was returned.

    >>> values = [1, 2, 3]
    >>> next(taken(values)), values
    (1, [3, 2])
    """
    values.reverse()
    return map(list.pop, repeat(values, len(values)))


class Batches(list[Any]):
    """Finished batches; `counts` is what was counted of each, and is empty where samples are rows."""

    __slots__ = ("counts",)

    def __init__(self, batches: Iterable[Any] = (), counts: Sequence[SampleCounts] = ()) -> None:
        super().__init__(batches)
        self.counts = counts

    @classmethod
    def joined(cls, runs: Sequence[list[Any]]) -> Batches:
        """Return the batches of several runs."""
        counts = [count for run in runs if isinstance(run, Batches) for count in run.counts]
        return cls(chain.from_iterable(runs), counts)

    def taken(self) -> Iterator[Any]:
        """Return them, and keep none that was returned."""
        return taken(self)


class LateBatches:
    """Batches that are views of rows, cut a few at a time when they are taken.

    What is cut is still in the cache of the CPU then, and Python's collector has less to look through.

    Args:
        runs: consecutive runs of at least one row; all but the last have whole batches.
        at_once: how many are cut at a time.
    """

    __slots__ = ("_at", "_at_once", "_batch_size", "_number", "_runs")
    counts: Sequence[SampleCounts] = ()

    def __init__(self, runs: Sequence[Rows], batch_size: int, at_once: int) -> None:
        self._runs = deque(runs)
        self._at = 0
        """Rows of the first run that are cut."""
        self._batch_size = batch_size
        self._at_once = at_once
        self._number = sum([-(-rows.num_rows // batch_size) for rows in runs])

    def __len__(self) -> int:
        """How many."""
        return self._number

    def taken(self) -> Iterator[Any]:
        """Return them, each without a step in Python of its own, and keep none that was returned."""
        return chain.from_iterable(iter(self._few, None))

    __iter__ = taken

    def _few(self) -> Iterator[Any] | None:
        """Cut the next ones; None after the last."""
        if not self._runs:
            return None
        size, rows, start = self._batch_size, self._runs[0], self._at
        self._at = stop = min(start + self._at_once * size, rows.num_rows)
        if stop == rows.num_rows:
            self._runs.popleft()
            self._at = 0
        if stop - start < rows.num_rows:
            rows = rows.slice(start, stop)
        return taken(rows.batches(size))


SizedBatches: TypeAlias = Batches | LateBatches
"""Finished batches, or what makes them when they are taken."""


def each_alone(batches: SizedBatches) -> Iterator[Batches]:
    """Yield batches one by one."""
    for batch, count in counted(batches):
        yield Batches([batch], () if count is None else (count,))


def counted(batches: SizedBatches) -> Iterator[tuple[Any, SampleCounts | None]]:
    """Yield batches, each with what was counted of it; None where samples are rows."""
    return zip(batches, batches.counts or repeat(None), strict=False)


def sized(batches: list[Any]) -> Batches:
    """Return batches as rows cut them, of which some know what was counted of them."""
    if isinstance(batches, Batches):
        return batches
    return Batches(batches)


class Rows(ABC):
    """A run of rows in output-ready form."""

    __slots__ = ()

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """How many."""

    @property
    def num_samples(self) -> int:
        """How many samples they are: one each, unless each is a whole batch."""
        return self.num_rows

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes of their values, as they lie in memory."""

    @abstractmethod
    def slice(self, start: int, stop: int) -> Self:
        """View rows `start` to `stop` (exclusive); both in [0, num_rows]."""

    @abstractmethod
    def take(self, indices: NDArray[np.int64]) -> Self:
        """Copy the rows at `indices`, in that order."""

    def batches(self, batch_size: int) -> list[Any]:
        """Cut into final outputs of `batch_size` rows; the last may be short."""
        return self.cut([*range(0, self.num_rows, batch_size), self.num_rows])

    def cut(self, bounds: Sequence[int]) -> list[Any]:
        """Cut into final outputs, given where each begins and the end; a subclass has this method, or `batches`."""
        return list(chain.from_iterable(self.slice(a, b).batches(b - a) for a, b in pairwise(bounds)))


R = TypeVar("R", bound=Rows)


class Part(NamedTuple, Generic[R]):
    """Some rows of a chunk that was read at once, of which other parts come before and after it."""

    chunk: R
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        """How many."""
        return self.stop - self.start

    @property
    def rows(self) -> R:
        """View them."""
        if self.num_rows == self.chunk.num_rows:
            return self.chunk
        return self.chunk.slice(self.start, self.stop)

    def kept(self, codec: RowsCodec[R]) -> R:
        """Return them to be kept until their window is full.

        What ends a chunk is copied where it is small, since a view would keep the whole chunk in memory. A chunk of
        which more is to come stays anyway.
        """
        small = self.stop == self.chunk.num_rows and 2 * self.num_rows <= self.stop
        if small:
            return codec.concat([self.rows])
        return self.rows


class KeptRuns(Protocol[R]):
    """Runs of rows that belong together, such as documents of tokens: only decoded rows tell where they are."""

    def permuted_runs(self, parts: Sequence[R], order_of: Callable[[int], NDArray[np.int64]]) -> R:
        """Copy consecutive rows, run by run in another order; padding comes last.

        Args:
            order_of: returns the run at each place, given how many there are.
        """
        ...

    def padded(self, rows: R, padding: NDArray[np.bool_]) -> R:
        """View rows of which some are padding."""
        ...


class RowsCodec(ABC, Generic[R]):
    """Turns record batches of one schema into rows, and rows into outputs. Pickles; holds no data."""

    null_sensitive: frozenset[str] = frozenset()
    """The plain columns in which a null is an error, so that statistics can refuse it beforehand."""

    functions: tuple[ColumnFunction, ...] = ()
    """The caller's functions over single columns, to be called with each batch in this order."""

    views_at_once: int = 0
    """How many batches are cut at a time when they are taken, where cutting only makes views; 0 where it does more."""

    @abstractmethod
    def decode(self, batch: pa.RecordBatch) -> R:
        """View a record batch as rows.

        Raises:
            TableError: a null in a column that may have none, or columns that are not the schema's.
        """

    @property
    def runs(self) -> KeptRuns[R] | None:
        """What windows permute instead of each row: runs of rows that belong together; None where there are none."""
        return None

    @abstractmethod
    def concat(self, parts: Sequence[R]) -> R:
        """Copy one or more runs into one, in this order."""

    def as_one(self, parts: Sequence[R]) -> R:
        """Return one or more consecutive runs as one; a single one is not copied."""
        if len(parts) == 1:
            return parts[0]
        return self.concat(parts)

    def collected(self, most: int) -> Collected[R]:  # noqa: ARG002 other codecs make room for rows
        """Return what collects chunks of at most so many rows together, and likely of as many."""
        return CollectedParts(self)

    def taken(self, parts: Sequence[R], order: NDArray[np.int64]) -> R:
        """Copy the rows of one or more consecutive runs in the given order."""
        return self.as_one(parts).take(order)

    def dealt(self, dealing: Dealing) -> Collected[R]:
        """Return what collects the rows of a window of whole batches, and gives them as they are dealt to these."""
        return DealtWhole(self, dealing)

    def dealing_copies(self, length: int) -> int:  # noqa: ARG002 others put rows where they are dealt to
        """Return how many copies of a window of so many rows are held while it is dealt."""
        return DealtWhole.copies

    def batches_of(self, runs: Sequence[Sequence[R]], batch_size: int) -> SizedBatches:
        """Cut rows into batches, now or when they are taken.

        Args:
            runs: one or more consecutive runs, each in consecutive parts; all but the last have whole batches.
            batch_size: rows of a batch; the last may be short.
        """
        rows = [self.as_one(parts) for parts in runs]
        if self.views_at_once:
            return LateBatches(rows, batch_size, self.views_at_once)
        return Batches.joined([each.batches(batch_size) for each in rows])

    @abstractmethod
    def pack(self, *parts: R, out: Allocate | None = None) -> Block:
        """Copy one or more runs, in this order, into one flat block; without `out`, its memory is from Arrow's pool."""

    @abstractmethod
    def unpack(self, block: Block) -> R:
        """View a block as rows."""


class PlainCodec(RowsCodec[R]):
    """Also takes columns as a row store gathers them."""

    together: Sequence[Mapping[int, np.dtype[Any]]] = ()
    """Columns that `decode_plain` may be given as one array, of lists of float32: their places, and their types."""

    @abstractmethod
    def decode_plain(self, columns: Sequence[pa.Array]) -> R:
        """View columns in their plain types (`arrow.datatypes.plain_type`) as rows.

        Strings may come as dictionaries of their plain type, and columns together as `together` says.

        Raises:
            TableError: a null in a column that may have none.
        """


def piece_starts(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return the start of each piece, at a multiple of 64 bytes, and the bytes of the whole, for some sizes in bytes.

    >>> piece_starts([10, 64, 1])
    ([0, 64, 128], 129)
    """
    starts, end = [], 0
    for size in sizes:
        start = aligned(end)
        starts.append(start)
        end = start + size
    return starts, end


def new_block(sizes: Sequence[int], num_rows: int, out: Allocate | None) -> tuple[Block, list[NDArray[np.uint8]]]:
    """Allocate a block for pieces of given sizes in bytes, and view its pieces."""
    _, total = piece_starts(sizes)
    data = torch.from_numpy(new_array((total,), np.uint8)) if out is None else out(total)
    block = Block(data, num_rows, tuple(sizes))
    return block, pieces_of(block)


def pieces_of(block: Block) -> list[NDArray[np.uint8]]:
    """View the pieces of a block as flat arrays of bytes that keep it alive."""
    flat: NDArray[np.uint8] = block.data.numpy()
    starts, _ = piece_starts(block.sizes)
    return [flat[start : start + size] for start, size in zip(starts, block.sizes, strict=True)]


class Collected(ABC, Generic[R]):
    """Collects chunks of rows until they are taken."""

    num_rows: int = 0

    @abstractmethod
    def add(self, rows: R, start: int, stop: int) -> None:
        """Add some rows of a chunk to those before them; the room that was asked for holds them."""

    @abstractmethod
    def taken(self) -> Sequence[R]:
        """Return all rows that were added, at least one, as consecutive runs; none is left."""


class CollectedParts(Collected[R]):
    """Keeps chunks as they are until they are taken.

    Args:
        keeps_views: whether each part is a view; else see `Part.kept` for what is copied.
    """

    def __init__(self, codec: RowsCodec[R], *, keeps_views: bool = False) -> None:
        self._codec = codec
        self._keeps_views = keeps_views
        self._parts: list[R] = []

    @override
    def add(self, rows: R, start: int, stop: int) -> None:
        part = Part(rows, start, stop)
        self._parts.append(part.rows if self._keeps_views else part.kept(self._codec))
        self.num_rows += stop - start

    @override
    def taken(self) -> Sequence[R]:
        parts, self._parts, self.num_rows = self._parts, [], 0
        return parts


class DealtWhole(CollectedParts[R]):
    """Keeps the parts of a window in the order in which they come, and deals their rows when they are taken."""

    copies = 3
    """Of the rows: parts may keep twice as many while they are joined, and then they are dealt."""

    def __init__(self, codec: RowsCodec[R], dealing: Dealing) -> None:
        super().__init__(codec)
        self._dealing = dealing

    @override
    def taken(self) -> Sequence[R]:
        return [self._codec.taken(super().taken(), self._dealing.order_in(new_array))]


class ExactBatches(Generic[R]):
    """Cuts a run of chunks into exact batches; copies only the batches that span chunks.

    Args:
        copied: whether what is cut is copied anyway, so that nothing is before.
        rows: all that come; None where that is not known.
    """

    __slots__ = ("_batch_size", "_codec", "_copied", "_left", "_waiting")

    def __init__(self, codec: RowsCodec[R], batch_size: int, *, copied: bool = False, rows: int | None = None) -> None:
        self._batch_size = batch_size
        self._codec = codec
        self._copied = copied
        self._left = sys.maxsize if rows is None else rows
        """Rows that are still to come."""
        self._waiting: Collected[R] | None = None
        """What is left of chunks from which whole batches were cut off."""

    def push(self, rows: R) -> list[list[R]]:
        """Add a chunk; return what is ready, each as consecutive runs, together a multiple of `batch_size`.

        Returns:
            No, one or two of these: the batch that spans chunks, then the whole batches of this chunk, which view it.
        """
        size, ready, start = self._batch_size, [], 0
        self._left -= rows.num_rows
        if self._waiting is not None:
            start = min(size - self._waiting.num_rows, rows.num_rows)
            self._waiting.add(rows, 0, start)
            if self._waiting.num_rows < size:
                return []
            ready.append(self._taken(self._waiting))
        stop = rows.num_rows - (rows.num_rows - start) % size
        if stop > start:
            ready.append([rows if stop - start == rows.num_rows else rows.slice(start, stop)])
        if stop < rows.num_rows:
            self._waiting = self._collected(min(size, rows.num_rows - stop + self._left))
            self._waiting.add(rows, stop, rows.num_rows)
        return ready

    def rest(self) -> list[R]:
        """Return what remains as consecutive runs, of fewer rows than `batch_size`; none if nothing does."""
        if self._waiting is None:
            return []
        return self._taken(self._waiting)

    def _collected(self, most: int) -> Collected[R]:
        if self._copied:
            return CollectedParts(self._codec, keeps_views=True)
        return self._codec.collected(most)

    def _taken(self, waiting: Collected[R]) -> list[R]:
        """Return all that waits, as runs in order; nothing waits then."""
        self._waiting = None
        return [*waiting.taken()]


class PieceBatches(ExactBatches[R]):
    """Cuts a run of chunks into batches that end where its non-empty pieces do; the last of a piece may be short."""

    __slots__ = ("_pieces",)

    def __init__(self, codec: RowsCodec[R], batch_size: int, pieces: Iterator[int]) -> None:
        super().__init__(codec, batch_size, rows=next(pieces, 0))
        self._pieces = pieces

    def push(self, rows: R) -> list[list[R]]:
        """Add a chunk; return what is ready, each as consecutive runs, of which the last batch may be short."""
        ready: list[list[R]] = []
        while (left := self._left) and rows.num_rows >= left:
            ready += super().push(rows if rows.num_rows == left else rows.slice(0, left))
            if rest := self.rest():
                ready.append(rest)
            rows = rows.slice(left, rows.num_rows)
            self._left = next(self._pieces, 0)
        if rows.num_rows:
            ready += super().push(rows)
        return ready


class WindowShuffle(Generic[R]):
    """The shuffle buffer: permutes a run of chunks inside windows; only the last may be shorter than `sizes` says.

    Args:
        permute: returns a copy of the rows of a window, given its number and its parts, in their order.
    """

    __slots__ = ("_codec", "_index", "_permute", "_sizes", "_waiting")

    def __init__(
        self, codec: RowsCodec[R], sizes: WindowSizes, permute: Callable[[int, Sequence[R]], R], first_window: int = 0
    ) -> None:
        self._codec = codec
        self._sizes = sizes
        self._permute = permute
        self._index = first_window
        self._waiting: Collected[R] | None = None

    def push(self, part: Part[R]) -> Iterator[R]:
        """Add rows; yield the windows that are full, permuted, each as one run of its own memory.

        A run is made when it is taken, so that one is held at a time; all must be taken before the next call.
        """
        chunk, start, end = part
        while start < end:
            size = self._sizes.size(self._index)
            stop = min(end, start + size - (0 if self._waiting is None else self._waiting.num_rows))
            if stop - start == size:
                yield self._permuted([chunk.slice(start, stop)])
            else:
                if self._waiting is None:
                    self._waiting = self._codec.collected(size)
                self._waiting.add(chunk, start, stop)
                if self._waiting.num_rows == size:
                    yield from self.finish()
            start = stop

    def finish(self) -> Iterator[R]:
        """Yield the last window, permuted, if rows are left; it must be taken."""
        if self._waiting is not None:
            full, self._waiting = self._waiting, None
            yield self._permuted(full.taken())

    def _permuted(self, parts: Sequence[R]) -> R:
        found = self._permute(self._index, parts)
        self._index += 1
        return found


class WindowDeal(Generic[R]):
    """Deals the rows of a run of chunks to batches, window by window.

    Args:
        sizes: of the windows, whole batches; the last may be shorter.
        length: all rows, whole batches.
        dealing_of: ``(window_index, length)`` to how the rows of that window are dealt.
    """

    __slots__ = ("_codec", "_dealing_of", "_index", "_left", "_sizes", "_waiting")

    def __init__(
        self,
        codec: RowsCodec[R],
        sizes: WindowSizes,
        length: int,
        dealing_of: Callable[[int, int], Dealing],
        first_window: int = 0,
    ) -> None:
        self._codec = codec
        self._sizes = sizes
        self._left = length
        self._dealing_of = dealing_of
        self._index = first_window
        self._waiting: Collected[R] | None = None

    def push(self, part: Part[R]) -> Iterator[R]:
        """Add rows; yield the windows that are full, each as one run; all must be taken before the next call."""
        chunk, start, end = part
        while start < end:
            size = min(self._sizes.size(self._index), self._left)
            if self._waiting is None:
                self._waiting = self._codec.dealt(self._dealing_of(self._index, size))
            stop = min(end, start + size - self._waiting.num_rows)
            self._waiting.add(chunk, start, stop)
            if self._waiting.num_rows == size:
                full, self._waiting = self._waiting, None
                self._left -= size
                self._index += 1
                yield from full.taken()
            start = stop

    def finish(self) -> Iterator[R]:
        """Yield nothing: all rows are there, and the last window was full."""
        yield from ()
