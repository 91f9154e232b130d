"""How record batches become outputs: bare arrays for torch and numpy; for arrow and dict see `ArrowCodec`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from math import prod
from operator import getitem, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.arrow.arrays import plain
from torch_table_loader.arrow.buffers import CACHE_LINE, Arena, aligned, new_array
from torch_table_loader.batching import outputs
from torch_table_loader.batching.arrow_codec import ArrowCodec, check_columns
from torch_table_loader.batching.decoders import Branch, Leaf, Shape, Stack
from torch_table_loader.batching.flat_views import FlatViews
from torch_table_loader.batching.outputs import DenseKind, mark_of
from torch_table_loader.batching.policy import column_functions
from torch_table_loader.batching.rows import (
    Collected,
    CollectedParts,
    DealtWhole,
    PlainCodec,
    Rows,
    RowsCodec,
    new_block,
    pieces_of,
)
from torch_table_loader.batching.types import choose, keyed
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from torch_table_loader.arrow.buffers import NewArray
    from torch_table_loader.batching.jagged import Room
    from torch_table_loader.batching.policy import TypePolicy
    from torch_table_loader.batching.rows import Allocate, Block
    from torch_table_loader.planning.windows import Dealing


_NEAR_BYTES = 1 << 20
"""Up to here the rows of a window are collected and then dealt: any place of a column is near."""

_HOT_BYTES = 1 << 18
"""Bytes of columns that are dealt together: a core's second cache must hold them, and their copy."""


_FEW = 8
"""Room is made once one of so many rows came, so that it is at most so many times what comes."""


def make_codec(schema: pa.Schema, policy: TypePolicy) -> RowsCodec[Any]:
    """Choose how record batches whose columns come out in the schema's order become outputs."""
    if not policy.samples.are_rows:
        codec: RowsCodec[Any] = policy.samples.parts.codec_of(schema, policy)
        return codec
    if policy.output_format in ("arrow", "dict"):
        return ArrowCodec(schema, python=policy.output_format == "dict")
    return TensorCodec(schema, policy)


class TensorRows(Rows):
    """A run of rows, with one entry of data for each leaf of the codec."""

    __slots__ = ("_codec", "data", "num_rows")

    num_rows: int

    def __init__(self, codec: TensorCodec, num_rows: int, data: Sequence[Any]) -> None:
        self._codec = codec
        self.num_rows = num_rows
        self.data = data
        """One entry a leaf of the codec, in its kind's form."""

    @property
    def num_bytes(self) -> int:
        """Bytes of their values."""
        leaves, data = self._codec.leaves, self.data
        varying = sum(leaves[index].kind.num_bytes(data[index]) for index in self._codec.varying)
        return self.num_rows * self._codec.row_bytes + varying

    def slice(self, start: int, stop: int) -> Self:
        """View rows `start` to `stop`."""
        codec = self._codec
        if not codec.varying:
            return type(self)(codec, stop - start, list(map(getitem, self.data, repeat(slice(start, stop)))))
        data = [leaf.kind.slice(data, start, stop) for leaf, data in zip(codec.leaves, self.data, strict=True)]
        return type(self)(codec, stop - start, data)

    def take(self, indices: NDArray[np.int64]) -> Self:
        """Copy the rows at `indices`."""
        return cast("Self", self._codec.taken([self], indices))

    @override
    def cut(self, bounds: Sequence[int]) -> list[dict[str, Any]]:
        """Cut into dicts of name to tensor or array."""
        if not self.num_rows:
            return []
        return self._codec.dicts(self._codec.cut(self.data, bounds), len(bounds) - 1)


def _columns(shapes: Sequence[Shape], cuts: Iterator[Sequence[Any]], num_batches: int) -> Iterator[Sequence[Any]]:
    """Yield the batches of each column; a struct takes those of its leaves."""
    for shape in shapes:
        if isinstance(shape, Branch):
            names = [node.name for node in shape.nodes]
            yield _dicts(names, _columns(shape.nodes, cuts, num_batches), num_batches)
        else:
            yield next(cuts)


def _dicts(names: Sequence[str], columns: Iterator[Sequence[Any]], num_batches: int) -> list[dict[str, Any]]:
    if not names:
        return [{} for _ in range(num_batches)]
    if len(names) == 1:
        return [{names[0]: values} for values in next(columns)]
    if num_batches == 1:  # a list of each of many columns would make Python collect garbage at every batch
        return [dict(zip(names, chain.from_iterable(columns), strict=True))]
    return list(map(dict, map(zip, repeat(names), zip(*columns, strict=True))))  # twice as fast as a comprehension


def _leaves(shapes: Sequence[Shape]) -> list[Leaf]:
    found: list[Leaf] = []
    for shape in shapes:
        if isinstance(shape, Branch):
            found += _leaves(shape.nodes)
        else:
            found.append(shape)
    return found


class _Alike(NamedTuple):
    """The leaves of single values of one type that fit whole cache lines: one call makes room for all, or copies all.

    Args:
        places: theirs.
        pick: returns the data at these places.
        line: a cache line of zeros.
        number: how many.
        in_line: values of a cache line.
    """

    places: list[int]
    pick: Callable[[Sequence[Any]], Sequence[Any]]
    line: NDArray[Any]
    number: int
    in_line: int
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, leaves: Sequence[Leaf]) -> list[_Alike]:
        """Return those of some leaves."""
        found: dict[np.dtype[Any], list[int]] = {}
        for place, leaf in enumerate(leaves):
            kind = leaf.kind
            if isinstance(kind, DenseKind) and not kind.inner and CACHE_LINE % kind.dtype.itemsize == 0:
                found.setdefault(kind.dtype, []).append(place)
        lines = {dtype: np.zeros(CACHE_LINE // dtype.itemsize, dtype) for dtype in found}
        return [
            cls(places, _picking(places), lines[dtype], len(places), len(lines[dtype]), dtype)
            for dtype, places in found.items()
        ]


def _picking(places: list[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return what picks the entries at some places, in their order."""
    first = min(places, default=0)
    if places == list(range(first, first + len(places))):
        return itemgetter(slice(first, first + len(places)))
    return itemgetter(*places)


class TensorCodec(PlainCodec[TensorRows]):
    """Makes, joins and ships rows of one schema; see `RowsCodec`."""

    def __init__(self, schema: pa.Schema, policy: TypePolicy) -> None:
        self._schema = schema
        chosen = choose(schema, policy)
        self.null_sensitive = chosen.sensitive
        self.refusing_nulls = chosen.refusing
        """The columns in which a null, at whatever depth, is an error."""
        self._coded, self._encoded = chosen.coded, chosen.encoded
        self._keyed = keyed(schema, chosen, policy)
        self.shapes = self._keyed.shapes
        keys = zip(self._keyed.makers, self._keyed.places, strict=True)
        found = [column.together(places) for column, places in keys if isinstance(column, Stack)]
        self.together = [some for some in found if some is not None]
        self._views = FlatViews.of(self._keyed.makers)
        self.functions = column_functions(self.shapes, policy)
        self.leaves = _leaves(self.shapes)
        widths = [leaf.kind.row_bytes for leaf in self.leaves]
        self._widths = list(Counter(widths).items())
        self._widest = max(widths, default=0)
        self.row_bytes = sum(widths)
        self.varying = [index for index, width in enumerate(widths) if not width]
        self.views_at_once = 0
        if all(leaf.cut in (outputs.cut_tensors, outputs.cut_arrays) for leaf in self.leaves):
            self.views_at_once = max(1, sizes().cut_objects // (1 + len(self.leaves)))
        self._alike = _Alike.of(self.leaves)
        self.unlike = sorted(set(range(len(self.leaves))).difference(*(alike.places for alike in self._alike)))
        """The places of the leaves for which `grids` makes no room."""
        places = [*chain.from_iterable(alike.places for alike in self._alike), *self.unlike]
        self._in_order = _picking(sorted(range(len(places)), key=places.__getitem__))
        """Returns what came of the leaves of `grids`, and then of the others, in the order of all."""
        self._nested = [index for index, leaf in enumerate(self.leaves) if leaf.cut is outputs.cut_nested]
        self._names = [shape.name for shape in self.shapes]
        self._has_structs = any(isinstance(shape, Branch) for shape in self.shapes)
        kinds = [leaf.kind for leaf in self.leaves if leaf.cut is outputs.cut_tensors]
        dtypes = [kind.dtype for kind in kinds if isinstance(kind, DenseKind)]
        self._are_tensors = len(dtypes) == len(self.leaves) and not any(map(mark_of, dtypes))
        """Whether all come out as tensors that numpy has the type of, so that no step in Python is due to each."""

    def decode(self, batch: pa.RecordBatch) -> TensorRows:
        """View a record batch as rows."""
        if batch.schema is not self._schema and not batch.schema.equals(self._schema):
            check_columns(batch.schema, self._schema, self._coded)
        columns = batch.columns
        for place in self._encoded:
            columns[place] = plain(columns[place])
        return self.decode_plain(columns, batch.num_rows)

    def output(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Return a record batch as one output; where it has no row, columns of variable width are empty lists."""
        rows = self.decode(batch)
        if rows.num_rows:
            return rows.cut([0, rows.num_rows])[0]
        leaves = zip(self.leaves, rows.data, strict=True)
        cuts = iter([leaf.cut(data, [0, 0]) if leaf.kind.row_bytes else [[]] for leaf, data in leaves])
        return self.dicts(cuts, 1)[0]

    def decode_plain(self, columns: Sequence[pa.Array], num_rows: int | None = None) -> TensorRows:
        """View columns in their plain types as rows; strings may come as dictionaries."""
        if num_rows is None:
            num_rows = len(columns[0]) if columns else 0
        if self._views is not None:
            return TensorRows(self, num_rows, self._views(columns, num_rows))
        data: list[Any] = []
        seen: set[int] = set()
        for column, places in zip(self._keyed.makers, self._keyed.places, strict=True):
            if isinstance(column, Stack):
                column.into([columns[place] for place in places], data, seen)
            else:
                column.into(columns[places[0]], data, seen)
        return TensorRows(self, num_rows, data)

    def dicts(self, cuts: Iterator[Sequence[Any]], num_batches: int) -> list[dict[str, Any]]:
        """Return batches as dicts, given those of each leaf."""
        if self._has_structs:
            cuts = _columns(self.shapes, cuts, num_batches)
        return _dicts(self._names, cuts, num_batches)

    def cut(self, data: Sequence[Any], bounds: Sequence[int]) -> Iterator[Sequence[Any]]:
        """Cut at least one row into batches: for each leaf, one output for each batch."""
        if self._are_tensors:
            return outputs.cut_all_tensors(data, bounds)
        return self._cut_each(data, bounds)

    def _cut_each(self, data: Sequence[Any], bounds: Sequence[int]) -> Iterator[Sequence[Any]]:
        """Cut leaf by leaf; nested tensors share offsets where they can."""
        nested: Iterator[Sequence[Any]] = iter(())
        if self._nested:
            nested = iter(outputs.cut_nested_together([data[index] for index in self._nested], bounds))
        for leaf, column in zip(self.leaves, data, strict=True):
            yield next(nested) if leaf.cut is outputs.cut_nested else leaf.cut(column, bounds)

    def arena(self, num_rows: int) -> Arena:
        """Make room for the values of so many rows, less those of varying width."""
        return Arena(sum([times * aligned(num_rows * each) for each, times in self._widths]))

    def grids(self, num_rows: int, new: NewArray) -> list[tuple[_Alike, NDArray[Any]]]:
        """Make room for so many single values of each type: the leaves, and a row of whole lines for each."""
        return [
            (alike, new((alike.number, -(-num_rows // alike.in_line) * alike.in_line), alike.dtype))
            for alike in self._alike
        ]

    def rooms(self, rows: TensorRows, length: int) -> list[tuple[list[int], NDArray[Any]]]:
        """Make room for `length` rows like `rows`, without leaves of varying width.

        Returns:
            Places of leaves, and an array with an entry for each of them.
        """
        new = self.arena(length).array
        found = [(alike.places, grid[:, :length]) for alike, grid in self.grids(length, new)]
        for place in self.unlike:
            if self.leaves[place].kind.row_bytes:
                data = rows.data[place]
                found.append(([place], new((1, length, *data.shape[1:]), data.dtype)))
        return found

    def concat(self, parts: Sequence[TensorRows]) -> TensorRows:
        """Copy runs into one."""
        num_rows = sum([part.num_rows for part in parts])
        runs, new = [part.data for part in parts], self.arena(num_rows).array
        found: list[Any] = []
        for alike, grid in self.grids(num_rows, new):
            gap = alike.line[: -num_rows % alike.in_line]
            pieces = chain.from_iterable(zip(*map(alike.pick, runs), repeat(gap)))
            np.concatenate(list(pieces), out=grid.reshape(-1))
            found.extend(grid[:, :num_rows])
        found += [self.leaves[place].kind.join([run[place] for run in runs], new) for place in self.unlike]
        return TensorRows(self, num_rows, self._in_order(found))

    @override
    def collected(self, most: int) -> Collected[TensorRows]:
        return _CollectedTensors(self, most)

    @override
    def dealt(self, dealing: Dealing) -> Collected[TensorRows]:
        if self._is_near(dealing.length):
            return DealtWhole(self, dealing)
        return _DealtTensors(self, dealing)

    @override
    def dealing_copies(self, length: int) -> int:
        if self.varying or self._is_near(length):
            return DealtWhole.copies
        return 1

    def _is_near(self, num_rows: int) -> bool:
        """Whether caches hold so many rows of any column, so that they are dealt best when all are there."""
        return num_rows * self._widest <= _NEAR_BYTES

    @override
    def taken(self, parts: Sequence[TensorRows], order: NDArray[np.int64]) -> TensorRows:
        num_rows = sum(part.num_rows for part in parts)
        columns = list(zip(*(part.data for part in parts), strict=True))
        data: list[Any] = [None] * len(columns)
        room: NDArray[np.uint8] | None = None

        def near(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
            nonlocal room
            if room is None:
                room = new_array((num_rows * self._widest,), np.uint8)
            kind = np.dtype(dtype)
            return room[: prod(shape) * kind.itemsize].view(kind).reshape(shape)

        new = self.arena(len(order)).array
        if len(parts) > 1:
            for alike, grid in self.grids(len(order), new):
                joined = near((num_rows,), grid.dtype)
                for place, out in zip(alike.places, grid[:, : len(order)], strict=True):
                    np.concatenate(columns[place], out=joined)
                    data[place] = joined.take(order, out=out, mode="clip")
        for place, leaf in enumerate(self.leaves):
            if data[place] is None:
                data[place] = leaf.kind.take(columns[place], order, new, near)
        return TensorRows(self, len(order), data)

    def pack(self, *parts: TensorRows, out: Allocate | None = None) -> Block:
        """Copy runs into one flat block."""
        prepared = [leaf.kind.prepare([part.data[index] for part in parts]) for index, leaf in enumerate(self.leaves)]
        all_sizes = [size for _, leaf_sizes in prepared for size in leaf_sizes]
        block, pieces = new_block(all_sizes, sum(part.num_rows for part in parts), out)
        start = 0
        for leaf, (form, leaf_sizes) in zip(self.leaves, prepared, strict=True):
            leaf.kind.write(form, pieces[start : start + len(leaf_sizes)])
            start += len(leaf_sizes)
        return block

    def unpack(self, block: Block) -> TensorRows:
        """View a block as rows."""
        pieces = pieces_of(block)
        data = []
        start = 0
        for leaf in self.leaves:
            stop = start + leaf.kind.num_pieces
            data.append(leaf.kind.read(pieces[start:stop], block.num_rows))
            start = stop
        return TensorRows(self, block.num_rows, data)


class _CollectedTensors(CollectedParts[TensorRows]):
    """Copies chunks into room for all of them as they come, so that each is released.

    The first chunks, or few rows, wait as they are: if they are all, they are joined once. If no more come, no room is
    made for nothing.
    """

    _codec: TensorCodec

    def __init__(self, codec: TensorCodec, most: int) -> None:
        super().__init__(codec)
        self._most = most
        self._rooms: list[tuple[list[int], NDArray[Any]]] = []
        """See `TensorCodec.rooms`."""
        self._varying: dict[int, Room] | None = None
        """Room for the other leaves, by their places; None while chunks wait as they are."""

    @override
    def add(self, rows: TensorRows, start: int, stop: int) -> None:
        if self._varying is not None:
            self._copy(rows, start, stop)
            for place, room in self._varying.items():
                part = self._codec.leaves[place].kind.slice(rows.data[place], start, stop)
                room.add(part, self._most - self.num_rows)
            return
        super().add(rows, start, stop)
        if len(self._parts) > 1 and self.num_rows < self._most <= _FEW * self.num_rows:
            self._varying = self._make_room(self._most - self.num_rows)

    def _make_room(self, to_come: int) -> dict[int, Room]:
        """Make room for all rows, and copy those that wait."""
        parts = super().taken()
        self._rooms = self._codec.rooms(parts[0], self._most)
        for part in parts:
            self._copy(part, 0, part.num_rows)
        places = self._codec.varying
        return {at: self._codec.leaves[at].kind.room([part.data[at] for part in parts], to_come) for at in places}

    def _copy(self, rows: TensorRows, start: int, stop: int) -> None:
        """Copy the leaves of fixed width."""
        end = self.num_rows + stop - start
        for places, room in self._rooms:
            np.concatenate([rows.data[at][None, start:stop] for at in places], out=room[:, self.num_rows : end])
        self.num_rows = end

    @override
    def taken(self) -> Sequence[TensorRows]:
        if self._varying is None:
            return super().taken()
        data: list[Any] = [None] * len(self._codec.leaves)
        for places, room in self._rooms:
            for place, each in zip(places, room, strict=True):
                data[place] = each[: self.num_rows]
        for place in self._codec.varying:
            data[place] = self._varying.pop(place).taken()
        return [TensorRows(self._codec, self.num_rows, data)]


class _DealtTensors(Collected[TensorRows]):
    """Puts rows where they are dealt to while caches hold them; those of varying width are dealt at the end.

    Of a chunk, the rows of whole runs are gathered batch by batch, and copied block by block; the few others one by
    one. Columns of one type go together, as far as caches hold them, since calls cost more than small copies.
    """

    def __init__(self, codec: TensorCodec, dealing: Dealing) -> None:
        self._codec = codec
        self._dealing = dealing
        self._rooms: list[tuple[list[int], NDArray[Any]]] = []
        """See `TensorCodec.rooms`; empty while nothing was added."""
        self._varying: dict[int, list[Any]] = {place: [] for place in codec.varying}
        """Chunks of the other leaves, by their places."""
        self._scratch = np.empty(0, dtype=np.uint8)

    @override
    def add(self, rows: TensorRows, start: int, stop: int) -> None:
        if not self._rooms:
            self._rooms = self._codec.rooms(rows, self._dealing.length)
        small = stop == rows.num_rows and 2 * (stop - start) <= stop  # see `Part.kept`
        for place, chunks in self._varying.items():
            kind = self._codec.leaves[place].kind
            part = kind.slice(rows.data[place], start, stop)
            chunks.append(kind.join([part], new_array) if small else part)
        begin, size = self.num_rows, self._dealing.batches
        self.num_rows = end = begin + stop - start
        first, last = -(-begin // size), max(-(-begin // size), end // size)
        chosen = np.ascontiguousarray(self._dealing.rows(first, last))
        chosen += start - begin
        blocks = [(at, low - first, high - first) for at, low, high in self._dealing.blocks(first, last)]
        head = np.arange(begin, min(end, first * size))
        others = np.concatenate((head, np.arange(max(begin + len(head), last * size), end)))
        places = self._dealing.places(others)
        others += start - begin
        for leaves, room in self._rooms:
            step = max(1, _HOT_BYTES // ((stop - start) * room[0, :1].nbytes))
            for at in range(0, len(leaves), step):
                some = [rows.data[place] for place in leaves[at : at + step]]
                if blocks:
                    self._copy(some, chosen, blocks, room[at : at + step])
                if len(others):
                    room[at : at + step, places] = [each[others] for each in some]

    def _copy(
        self,
        columns: list[NDArray[Any]],
        chosen: NDArray[np.int64],
        blocks: list[tuple[int, int, int]],
        room: NDArray[Any],
    ) -> None:
        """Copy the chosen rows of columns, int64[batches, runs], to the blocks' places."""
        inner, dtype = room.shape[2:], room.dtype
        shape = (len(columns), *chosen.shape, *inner)
        num_bytes = prod(shape) * dtype.itemsize
        if self._scratch.nbytes < num_bytes:
            self._scratch = new_array((num_bytes,), np.uint8)
        gathered = self._scratch[:num_bytes].view(dtype).reshape(shape)
        for column, out in zip(columns, gathered, strict=True):
            column.take(chosen, axis=0, out=out, mode="clip")
        dealt = room.reshape((len(columns), self._dealing.batches, self._dealing.runs, *inner))
        for at, low, high in blocks:
            dealt[:, :, at : at + high - low] = gathered[:, :, low:high]

    @override
    def taken(self) -> Sequence[TensorRows]:
        data: list[Any] = [None] * len(self._codec.leaves)
        for places, room in self._rooms:
            for place, each in zip(places, room, strict=True):
                data[place] = each
        for place in self._codec.varying:
            kind = self._codec.leaves[place].kind
            joined = kind.join(self._varying.pop(place), new_array)  # of one column at a time, there are two copies
            data[place] = kind.take([joined], self._dealing.order, new_array, new_array)
        return [TensorRows(self._codec, self.num_rows, data)]
