"""What a batch of sequences is made of: token ids, labels, positions, and where documents begin and end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from torch_table_loader.arrow.buffers import new_array
from torch_table_loader.batching.rows import Batches
from torch_table_loader.errors import TableError
from torch_table_loader.pack import FLASH_EDGES, IGNORED
from torch_table_loader.planning.pack_counts import PackCounts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.arrow.token_rows import Parts
    from torch_table_loader.pack import Pack

    Ints = NDArray[np.int64]


_BLOCK_TOKENS = 1 << 15
"""Tokens that are worked on at a time, at least: what is made of them on the way stays in the processor's cache."""

Documents = Callable[[pa.RecordBatch], dict[str, Any]]
"""Makes tensors of columns of documents, by name."""


class Spans(NamedTuple):
    """The spans of one column that lie under a batch, clipped to its sequences.

    Args:
        index: int64 [sequences, seq_len]; which span a token is in, the last that begins before it; −1 for none.
        start: int64 [spans], the first token of each in the flat batch.
        end: int64 [spans], the token behind its last.
        document: int64 [spans], what `doc_ids` says of its tokens.
        columns: the other fields of the struct, by name.
    """

    index: Any
    start: Any
    end: Any
    document: Any
    columns: dict[str, Any]


_OF_EDGES = frozenset({"cu_seqlens", "max_seqlen", *FLASH_EDGES})


def one_sequence(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the one sequence of a batch. What has a row for each document or span stays as it is."""
    found = {}
    for name, value in batch.items():
        if name == "spans":
            found[name] = {column: spans._replace(index=spans.index[0]) for column, spans in value.items()}
        elif name == "documents" or name in _OF_EDGES:
            found[name] = value
        else:
            found[name] = value[0]
    return found


class Layout:
    """Where the parts of documents lie in some batches, no part crossing the end of a sequence.

    Args:
        parts: of the batches.
        seq_len: tokens of a sequence.
        num_tokens: of the batches, padding included; a multiple of `seq_len`.
        target: the labels that the tokens at some places are.
    """

    __slots__ = ("at", "behind", "ends", "length", "num_tokens", "owner", "seq_len", "start")

    def __init__(self, parts: Parts, seq_len: int, num_tokens: int, target: Callable[[Ints], Ints]) -> None:
        """Cut the parts that cross the end of a sequence."""
        first, last = parts.at // seq_len, (parts.at + parts.length - 1) // seq_len
        pieces = last - first + 1
        self.seq_len = seq_len
        self.num_tokens = num_tokens
        self.owner: Ints = np.repeat(np.arange(len(pieces)), pieces)
        """Which of the given parts each is a piece of."""
        self.at, self.length, self.start, self.behind = parts[:4]
        if len(self.owner) > len(pieces):
            number = np.arange(len(self.owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
            sequence = first[self.owner] + number
            end = parts.at + parts.length
            self.at = np.maximum(parts.at[self.owner], sequence * seq_len)
            self.length = np.minimum(end[self.owner], (sequence + 1) * seq_len) - self.at
            self.start = parts.start[self.owner] + self.at - parts.at[self.owner]
            self.behind = parts.next[self.owner]
            cut = np.flatnonzero(number < pieces[self.owner] - 1)
            self.behind[cut] = target(self.at[cut] + self.length[cut])
        self.ends = self.at + self.length

    def blocks(self) -> Iterator[tuple[int, int, slice]]:
        """Yield runs of whole sequences: the first token, the token behind the last, and the parts."""
        size = -(-_BLOCK_TOKENS // self.seq_len) * self.seq_len
        bounds = [*range(0, self.num_tokens, size), self.num_tokens]
        for (start, stop), (first, last) in zip(
            pairwise(bounds), pairwise(np.searchsorted(self.at, bounds).tolist()), strict=True
        ):
            yield start, stop, slice(first, last)

    def padding(self) -> Ints:
        """Return the places of padding."""
        begins = np.concatenate(([0], self.ends))
        sizes = np.append(self.at, self.num_tokens) - begins
        gaps = np.flatnonzero(sizes)
        begins, sizes = begins[gaps], sizes[gaps]
        ends = np.cumsum(sizes)
        found: Ints = np.arange(int(sizes.sum()))
        found += (begins - ends + sizes).repeat(sizes)
        return found

    def edges(self) -> Ints:
        """Return where parts and runs of padding begin, sequences never sharing one, and the number of tokens."""
        rows = np.arange(0, self.num_tokens + 1, self.seq_len)
        found: Ints = np.concatenate([self.at, self.ends, rows])
        found.sort()  # np.unique hashes, which takes longer
        return found[np.diff(found, prepend=-1) > 0]


class Sequences:
    """Makes batches of sequences.

    Args:
        pack: what the caller asked for.
        names: the columns that are cut, the tokens first.
        documents: makes tensors of the other columns of documents, by name; None where there are none.
        numpy: whether arrays come out instead of tensors.
    """

    def __init__(self, pack: Pack, names: Sequence[str], documents: Documents | None, *, numpy: bool) -> None:
        """Keep them."""
        self._pack = pack
        self._names = names
        self._documents = documents
        self._numpy = numpy
        self._wanted = frozenset(pack.tensors)
        self._loss = names.index(pack.loss_mask) if pack.loss_mask is not None else None

    def batches(self, tokens: Sequence[NDArray[Any]], parts: Parts, batch_tokens: int) -> Batches:
        """Return batches by name. Their tensors view arrays of all of them, as other batches of a read do.

        Args:
            tokens: of each column that is cut, flat; the last sequence may be short.
            parts: cover all of it that is not padding.
            batch_tokens: of a batch, a multiple of `seq_len`; the last may have fewer.

        Raises:
            TableError: a sequence has more documents than `max_docs_per_row`.
        """
        seq_len = self._pack.seq_len
        num_tokens = -(-len(tokens[0]) // seq_len) * seq_len

        def target(places: Ints) -> Ints:
            found = tokens[0][places].astype(np.int64)
            if self._loss is not None:
                found[tokens[self._loss][places] == 0] = IGNORED
            return found

        layout = Layout(parts, seq_len, num_tokens, target)
        bounds = [*range(0, num_tokens, batch_tokens), num_tokens]
        firsts = np.searchsorted(layout.at, bounds)
        cut: dict[str, Sequence[Any]] = {
            name: self._cut(values, batch_tokens)
            for name, values in self._named(self._flat(tokens, layout, firsts)).items()
        }
        if not {"cu_seqlens", "max_seqlen"}.isdisjoint(self._wanted):
            cut |= self._edges(layout, bounds)
        batches = [dict(zip(cut, batch, strict=True)) for batch in zip(*cut.values(), strict=True)]
        if parts.columns is not None:
            for batch, (first, last), (start, stop) in zip(
                batches, pairwise(firsts.tolist()), pairwise(bounds), strict=True
            ):
                batch.update(self._of_documents(parts.columns, layout, first, last, start, stop))
        return Batches(batches, _counts(layout, firsts.tolist(), range(0, num_tokens, batch_tokens)))

    def _flat(self, tokens: Sequence[NDArray[Any]], layout: Layout, firsts: Ints) -> dict[str, NDArray[Any]]:
        """Return what each token has, by the names of this library.

        Args:
            tokens: of each column that is cut.
            layout: of all batches.
            firsts: the first part of each batch, and the number of parts.
        """
        wanted, number = self._wanted, np.arange(len(layout.at))
        flat: dict[str, NDArray[Any]] = {}
        fills: dict[str, int] = {"input_ids": self._pack.pad_id, "labels": IGNORED, "doc_ids": -1}
        copied: list[tuple[NDArray[Any], NDArray[Any], int]] = []
        spread: list[tuple[NDArray[Any], NDArray[Any]]] = []

        def new(name: str, dtype: Any) -> NDArray[Any]:
            flat[name] = new_array((layout.num_tokens,), dtype)
            return flat[name]

        copied.append((new("input_ids", np.int64), tokens[0], 0))
        if "labels" in wanted:
            copied.append((new("labels", np.int64), tokens[0], self._shift))
        positions = new("position_ids", np.int64) if "position_ids" in wanted else None
        if "segment_ids" in wanted:
            sequence = layout.at // layout.seq_len
            segments = number + 1 - np.searchsorted(sequence, sequence)
            spread.append((new("segment_ids", np.int32), segments.astype(np.int32)))
        for name, values in zip(self._names[1:], tokens[1:], strict=True):
            if name != self._pack.loss_mask:
                copied.append((new(name, values.dtype), values, 0))
        if "doc_ids" in wanted:
            of_batch = number - np.repeat(firsts[:-1], np.diff(firsts))
            spread.append((new("doc_ids", np.int32), of_batch.astype(np.int32)))
        _fill(layout, copied, spread, positions)
        if "labels" in wanted:
            self._mask(flat["labels"], tokens, layout)
        if int(layout.length.sum()) < layout.num_tokens:
            padding = layout.padding()
            for name, values in flat.items():
                values[padding] = fills.get(name, 0)
        return flat

    @property
    def _shift(self) -> int:
        """How many tokens behind a token its label is."""
        return 0 if self._pack.labels == "hf" else 1

    def _mask(self, labels: NDArray[Any], tokens: Sequence[NDArray[Any]], layout: Layout) -> None:
        """Put −100 where the loss leaves a token out, and see to the labels at the edges of parts."""
        if self._loss is not None:
            mask = tokens[self._loss][self._shift :]
            labels[: len(mask)][mask == 0] = IGNORED
        if self._shift:
            labels[layout.ends - 1] = layout.behind
        else:
            labels[layout.at] = IGNORED

    def _named(self, flat: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return what the output has of all tokens, by the names that it has for it."""
        if self._pack.output == "megatron":
            flat = {"tokens": flat.pop("input_ids"), **flat}
            if "labels" in flat:
                trained = flat["labels"] != IGNORED
                flat["labels"] = np.where(trained, flat["labels"], 0)
                flat["loss_mask"] = trained.astype(np.float32)
        return flat

    def _cut(self, values: NDArray[Any], batch_tokens: int) -> Sequence[Any]:
        """Return one array or tensor a batch: a row a sequence, or one row where attention takes a flat batch."""
        flat = self._pack.output == "flash"
        width, rows = (None, batch_tokens) if flat else (self._pack.seq_len, batch_tokens // self._pack.seq_len)
        if width is not None:
            values = values.reshape(-1, width)
        cut: Sequence[Any]
        if self._numpy:
            cut = [values[start : start + rows] for start in range(0, len(values), rows)]
        else:
            cut = torch.unsafe_split(torch.from_numpy(values), rows)
        return [batch[None] for batch in cut] if flat else cut

    def _edges(self, layout: Layout, bounds: Sequence[int]) -> dict[str, Sequence[Any]]:
        """Return for each batch where documents begin, as attention over a flat batch takes it, and the longest."""
        found, most = layout.edges(), self._pack.max_docs_per_row
        if most is not None:
            rows = layout.num_tokens // layout.seq_len
            counts = np.bincount(layout.at // layout.seq_len, minlength=rows)
            if counts.max(initial=0) > most:
                raise TableError(
                    f"max_docs_per_row={most}, but a sequence has {int(counts.max())} documents; increase it, or "
                    'use strategy="best_fit", which respects it'
                )
        firsts = np.searchsorted(found, bounds)
        longest = np.maximum.reduceat(np.diff(found), firsts[:-1]).tolist()
        edges = []
        for (start, stop), (first, last) in zip(pairwise(bounds), pairwise(firsts.tolist()), strict=True):
            size = last - first + 1
            if most is not None:  # padding may stand behind the documents of each sequence
                size = (stop - start) // layout.seq_len * (most + 1) + 1
            own = np.empty(size, dtype=np.int32)
            own[: last - first] = found[first:last] - start
            own[last - first :] = stop - start
            edges.append(self._out(own))
        if self._pack.output == "flash":
            return dict(zip(FLASH_EDGES, (edges, longest, [edge[:] for edge in edges], longest), strict=True))
        both: dict[str, Sequence[Any]] = {"cu_seqlens": edges, "max_seqlen": longest}
        return {name: values for name, values in both.items() if name in self._wanted}

    def _of_documents(
        self, columns: pa.StructArray, layout: Layout, first: int, last: int, start: int, stop: int
    ) -> dict[str, Any]:
        """Return the columns of the documents of a batch, one row a part, and the spans.

        Args:
            columns: of the documents that parts are of.
            layout: of all batches.
            first: the batch's first part.
            last: the part behind its last.
            start: its first token.
            stop: the token behind its last.
        """
        found: dict[str, Any] = {}
        owned = columns.take(pa.array(layout.owner[first:last]))
        if self._documents is not None:
            names = [field.name for field in columns.type if field.name not in self._pack.spans]
            batch = pa.RecordBatch.from_arrays([owned.field(name) for name in names], names=names)
            found["documents"] = self._documents(batch)
        if self._pack.spans:
            parts = slice(first, last)
            at, begun, length = layout.at[parts] - start, layout.start[parts], layout.length[parts]
            found["spans"] = {
                name: self._spans(owned.field(name), at, begun, length, stop - start) for name in self._pack.spans
            }
        return found

    def _spans(self, lists: pa.Array, at: Ints, begun: Ints, length: Ints, num_tokens: int) -> Spans:
        """Clip the spans of documents to their parts under a batch."""
        counts = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        inside = lists.flatten()
        owner = np.repeat(np.arange(len(counts)), counts)
        low = np.maximum(inside.field("start").to_numpy(zero_copy_only=False).astype(np.int64), begun[owner])
        high = inside.field("end").to_numpy(zero_copy_only=False).astype(np.int64)
        high = np.minimum(high, (begun + length)[owner])
        kept = np.flatnonzero(low < high)
        owner = owner[kept]
        shift = (at - begun)[owner]
        low, high = low[kept] + shift, high[kept] + shift
        index = np.full(num_tokens, -1, dtype=np.int64)
        for number, (first, stop) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            index[first:stop] = number
        names = [field.name for field in inside.type if field.name not in ("start", "end")]
        rest = {name: inside.field(name).take(pa.array(kept)) for name in names}
        return Spans(
            index=self._out(index.reshape(-1, self._pack.seq_len)),
            start=self._out(low),
            end=self._out(high),
            document=self._out(owner),
            columns={name: self._plain(column) for name, column in rest.items()},
        )

    def _plain(self, column: pa.Array) -> Any:
        numbers = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        if column.null_count or not numbers:
            return column.to_pylist()
        return self._out(column.to_numpy(zero_copy_only=False).copy())

    def _out(self, value: Any) -> Any:
        if self._numpy or not isinstance(value, np.ndarray):
            return value
        return torch.from_numpy(value)


def _fill(
    layout: Layout,
    copied: Sequence[tuple[NDArray[Any], NDArray[Any], int]],
    spread: Sequence[tuple[NDArray[Any], NDArray[Any]]],
    positions: NDArray[Any] | None,
) -> None:
    """Write what tokens have, block by block; what stands in padding is undefined.

    Args:
        layout: of all batches.
        copied: arrays, the values of which tokens they take, and how many tokens behind.
        spread: arrays, and what each part has at each of its tokens.
        positions: takes the place of each token in its part.
    """
    rising = np.arange(0)
    for start, stop, parts in layout.blocks():
        for out, values, shift in copied:
            given = values[start + shift : stop + shift]
            out[start : start + len(given)] = given
        at = layout.at[parts]
        if not len(at):
            continue
        begin = int(at[0])  # what is before it is padding, and a part is taken to continue until the next one begins
        counts = np.empty_like(at)
        np.subtract(at[1:], at[:-1], out=counts[:-1])
        counts[-1] = stop - at[-1]
        for out, of_parts in spread:
            out[begin:stop] = of_parts[parts].repeat(counts)
        if positions is not None:
            if len(rising) < stop - begin:
                rising = np.arange(stop - start)
            np.subtract(rising[: stop - begin], (at - begin).repeat(counts), out=positions[begin:stop])


def _counts(layout: Layout, bounds: Sequence[int], starts: range) -> list[PackCounts]:
    """Return what each batch is made of; what became of documents beyond it nobody knows here."""
    tokens = np.diff(np.concatenate(([0], np.cumsum(layout.length)))[bounds]).tolist()
    seq_len, unknown = layout.seq_len, (None, None, None)
    return [
        PackCounts(seq_len, (min(start + starts.step, layout.num_tokens) - start) // seq_len, own, parts, *unknown)
        for start, own, parts in zip(starts, tokens, np.diff(bounds).tolist(), strict=True)
    ]
