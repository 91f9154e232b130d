"""What a batch of sequences is made of: token ids, labels, positions, and where documents begin and end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from torch_table_loader.arrow.buffers import new_array
from torch_table_loader.arrow.python_values import python_values
from torch_table_loader.batching.outputs import bounds_of, cut_arrays, cut_tensors
from torch_table_loader.batching.rows import Batches
from torch_table_loader.errors import TableError
from torch_table_loader.sizes import sizes
from torch_table_loader.text.document_cuts import DocumentCuts
from torch_table_loader.text.pack import FLASH_EDGES, IGNORED
from torch_table_loader.text.pack_counts import PackCounts
from torch_table_loader.text.token_rows import repeated

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.text.pack import Pack
    from torch_table_loader.text.token_rows import Parts

    Ints = NDArray[np.int64]


Chunks = Sequence["NDArray[Any]"]
"""Flat arrays that follow one another."""

Documents = Callable[[pa.RecordBatch], dict[str, Any]]
"""Makes tensors of columns of documents, by name."""


class Spans(NamedTuple):
    """The spans of one column that lie under a batch, clipped to its sequences.

    Args:
        index: int64 [sequences, seq_len]; which span a token is in, the last that begins before it; −1 for none.
        start: int64 [spans], the first token of each in the flat batch.
        end: int64 [spans], the token after its last.
        document: int64 [spans], what `doc_ids` says of its tokens.
        columns: the other fields of the struct, by name.
    """

    index: Any
    start: Any
    end: Any
    document: Any
    columns: dict[str, Any]


_OF_EDGES = frozenset({"cu_seqlens", "cu_seqlens_padded", "max_seqlen", *FLASH_EDGES})


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
    """Where the parts of documents lie in some batches; no part crosses the end of a sequence.

    Args:
        num_tokens: tokens of the batches with padding; a multiple of `seq_len`.
    """

    __slots__ = ("at", "ends", "length", "num_tokens", "owner", "padded", "seq_len", "start")

    def __init__(self, parts: Parts, seq_len: int, num_tokens: int) -> None:
        """Cut the parts that cross the end of a sequence."""
        ends = parts.at + parts.length
        first, last = parts.at // seq_len, (ends - 1) // seq_len
        pieces = last - first + 1
        self.seq_len = seq_len
        self.num_tokens = num_tokens
        self.owner: Ints = np.arange(len(pieces)).repeat(pieces)
        """Which of the given parts each is a piece of."""
        self.at, self.length, self.start = parts[:3]
        if len(self.owner) > len(pieces):
            owner = self.owner
            sequence = np.arange(len(owner)) + (first + pieces - pieces.cumsum())[owner]
            self.at = np.maximum(parts.at[owner], sequence * seq_len)
            self.length = np.minimum(ends[owner], (sequence + 1) * seq_len) - self.at
            self.start = (parts.start - parts.at)[owner] + self.at
        self.ends = self.at + self.length
        self.padded = int(self.length.sum()) < num_tokens
        """Whether there is padding."""

    def repeated(self, of_parts: NDArray[Any]) -> NDArray[Any]:
        """Return what the part of each token has; what stands in padding is undefined."""
        if not len(self.at):
            return new_array((self.num_tokens,), of_parts.dtype)
        ends = np.empty_like(self.at)  # a part is taken to continue until the next one begins
        ends[:-1], ends[-1] = self.at[1:], self.num_tokens
        return repeated(of_parts, ends)

    def positions(self) -> NDArray[Any]:
        """Return the place of each token in its part; what stands in padding is undefined."""
        found = self.repeated(self.at)
        np.subtract(_rising(self.num_tokens), found, out=found)
        return found

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
        if not self.padded:
            return np.append(self.at, self.num_tokens)
        rows = np.arange(0, self.num_tokens + 1, self.seq_len)
        found: Ints = np.concatenate([self.at, self.ends, rows])
        found.sort()  # np.unique hashes, which takes longer
        return found[np.diff(found, prepend=-1) > 0]


class Sequences:
    """Makes batches of sequences.

    Args:
        names: the columns that are cut, the tokens first.
        documents: makes tensors of the other columns of documents, by name; None if there are none.
    """

    def __init__(self, pack: Pack, names: Sequence[str], documents: Documents | None, *, numpy: bool) -> None:
        self._pack = pack
        self._names = names
        self._documents = documents
        self._numpy = numpy
        linked = pack.output is None and (documents is not None or pack.spans)  # to columns of their documents
        self._wanted = frozenset((*pack.tensors, *(["doc_ids"] if linked else [])))
        self._loss = names.index(pack.loss_mask) if pack.loss_mask is not None else None

    def batches(self, tokens: Sequence[Chunks], parts: Parts, batch_tokens: int) -> Batches:
        """Return batches by name. Their tensors view arrays of all of them, as other batches of a read do.

        Args:
            tokens: of each column that is cut, flat arrays that follow one another; the last sequence may be short.
            parts: cover all of it that is not padding.
            batch_tokens: tokens of a batch, a multiple of `seq_len`; the last may have fewer.

        Raises:
            TableError: a sequence has more documents than `max_docs_per_row`.
        """
        seq_len = self._pack.width
        layout = Layout(parts, seq_len, -(-sum(map(len, tokens[0])) // seq_len) * seq_len)
        self._check_documents(layout)
        bounds = [*range(0, layout.num_tokens, batch_tokens), layout.num_tokens]
        firsts = layout.at.searchsorted(bounds)
        flat = self._flat(tokens, parts, layout, firsts)
        if self._pack.cuts_documents:
            cut = self._by_document(flat, DocumentCuts.of(layout.at, layout.length, firsts, self._pack.context), bounds)
        else:
            cut = {name: self._cut(values, batch_tokens) for name, values in self._named(flat).items()}
            if not {"cu_seqlens", "max_seqlen"}.isdisjoint(self._wanted):
                cut |= self._edges(layout, bounds)
        batches = [dict(zip(cut, batch, strict=True)) for batch in zip(*cut.values(), strict=True)]
        if parts.columns is not None:
            for batch, (first, last), (start, stop) in zip(
                batches, pairwise(firsts.tolist()), pairwise(bounds), strict=True
            ):
                batch.update(self._of_documents(parts.columns, layout, first, last, start, stop))
        return Batches(batches, _counts(layout, firsts, bounds))

    def _check_documents(self, layout: Layout) -> None:
        """Refuse sequences of more documents than the caller allows."""
        most = self._pack.max_docs_per_row
        if most is None:
            return
        counts = np.bincount(layout.at // layout.seq_len)
        if counts.max(initial=0) > most:
            raise TableError(
                f"max_docs_per_row={most}, but a sequence has {int(counts.max())} documents; increase it, or "
                'use strategy="best_fit", which respects it'
            )

    def _flat(self, tokens: Sequence[Chunks], parts: Parts, layout: Layout, firsts: Ints) -> dict[str, NDArray[Any]]:
        """Return the fields that each token has, by the names of this library.

        Each array is made in few calls, all without Python's lock: lanes wait for each other otherwise.

        Args:
            firsts: the first part of each batch, then the number of parts.
        """
        wanted, number = self._wanted, np.arange(len(layout.at), dtype=np.int32)
        flat: dict[str, NDArray[Any]] = {"input_ids": self._ids(tokens[0], layout.num_tokens)}
        if "labels" in wanted:
            flat["labels"] = self._labels(tokens, parts, layout)
        if "position_ids" in wanted:
            flat["position_ids"] = layout.positions()
        if "segment_ids" in wanted:
            sequence = layout.at // layout.seq_len
            flat["segment_ids"] = layout.repeated(number + 1 - sequence.searchsorted(sequence).astype(np.int32))
        for name, chunks in zip(self._names[1:], tokens[1:], strict=True):
            if name != self._pack.loss_mask:
                flat[name] = _copied(chunks, chunks[0].dtype, layout.num_tokens)
        if "doc_ids" in wanted:
            flat["doc_ids"] = layout.repeated(number - firsts[:-1].astype(np.int32).repeat(np.diff(firsts)))
        if layout.padded:
            padding, fills = layout.padding(), self._fills
            for name, values in flat.items():
                values[padding] = fills.get(name, 0)
        return flat

    @property
    def _fills(self) -> dict[str, int]:
        """What padding has, where that is not 0."""
        return {"input_ids": self._pack.pad_id, "labels": IGNORED, "doc_ids": -1}

    def _by_document(
        self, flat: dict[str, NDArray[Any]], cuts: DocumentCuts, bounds: Sequence[int]
    ) -> dict[str, Sequence[Any]]:
        """Return this rank's slices of each document: for each batch one row, and the edges of whole documents."""
        fills = self._fills
        own = {name: cuts.taken(values, fills.get(name, 0)) for name, values in flat.items()}
        if "position_ids" in own:
            own["position_ids"] = cuts.inside
        cut: dict[str, Sequence[Any]] = {
            name: [batch[None] for batch in self._split(values, cuts.sizes)]
            for name, values in self._named(own).items()
        }
        room, most = None, self._pack.max_docs_per_row
        if most is not None:
            room = np.diff(bounds) // self._pack.width * most
        if {"cu_seqlens", "max_seqlen"}.isdisjoint(self._wanted):
            return cut
        edges = cuts.edges(self._split, room)
        return cut | {name: each for name, each in edges.items() if name.removesuffix("_padded") in self._wanted}

    def _ids(self, chunks: Chunks, num_tokens: int) -> NDArray[Any]:
        """Return the token ids in the type that the caller chose.

        Raises:
            TableError: an id does not fit into it.
        """
        kind = np.dtype(self._pack.dtype)
        for values in chunks:
            if not np.can_cast(values.dtype, kind) and len(values) and int(values.max()) > np.iinfo(kind).max:
                raise TableError(
                    f"the token id {int(values.max())} does not fit into {kind}; leave dtype out of Pack, or fix the "
                    "table"
                )
        return _copied(chunks, kind, num_tokens)

    def _labels(self, tokens: Sequence[Chunks], parts: Parts, layout: Layout) -> NDArray[Any]:
        """Return labels: −100 where the loss leaves a token out, and where a label would be of another document."""
        shift = 0 if self._pack.labels == "hf" else 1
        labels = _copied(tokens[0], np.int64, layout.num_tokens, shift)
        if self._loss is not None:
            for place, mask in _placed(tokens[self._loss], shift):
                labels[place][mask == 0] = IGNORED
        if shift:  # where a sequence's end cuts a part, the token after it is there already
            labels[parts.at + parts.length - 1] = parts.next
        else:
            labels[layout.at] = IGNORED
        return labels

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
        width, rows = (None, batch_tokens) if flat else (self._pack.width, batch_tokens // self._pack.width)
        if width is not None:
            values = _own_slices(self._pack, values.reshape(-1, width, *values.shape[1:]))
        bounds = bounds_of(len(values), rows)
        cut = cut_arrays(values, bounds) if self._numpy else cut_tensors(values, bounds)
        if flat:
            return [batch[None] for batch in cut]
        return cut

    def _split(self, values: NDArray[Any], sizes: Ints) -> Sequence[Any]:
        """Return one array or tensor a batch, of so many values each."""
        if self._numpy:
            return np.split(values, sizes.cumsum()[:-1])
        return torch.unsafe_split_with_sizes(torch.from_numpy(values), sizes.tolist())

    def _edges(self, layout: Layout, bounds: Sequence[int]) -> dict[str, Sequence[Any]]:
        """Return for each batch where documents begin, as attention over a flat batch takes it, and the longest."""
        found, most = layout.edges(), self._pack.max_docs_per_row
        firsts, starts = found.searchsorted(bounds), np.array(bounds)
        longest = np.maximum.reduceat(np.diff(found), firsts[:-1]).tolist()
        widths, counts = np.diff(starts), np.diff(firsts)
        sizes = counts + 1
        if most is not None:  # padding may stand after the documents of each sequence
            sizes = widths // layout.seq_len * (most + 1) + 1
        own = widths.astype(np.int32).repeat(sizes)
        places = np.arange(len(found) - 1) + (sizes.cumsum() - sizes - firsts[:-1]).repeat(counts)
        own[places] = found[:-1] - starts[:-1].repeat(counts)
        edges = self._split(own, sizes)
        if self._pack.output == "flash":
            return dict(zip(FLASH_EDGES, (edges, longest, [edge[:] for edge in edges], longest), strict=True))
        both: dict[str, Sequence[Any]] = {"cu_seqlens": edges, "max_seqlen": longest}
        return {name: values for name, values in both.items() if name in self._wanted}

    def _of_documents(
        self, columns: pa.StructArray, layout: Layout, first: int, last: int, start: int, stop: int
    ) -> dict[str, Any]:
        """Return the columns of the documents of a batch, one row for each part, and the spans."""
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
            index=self._out(index.reshape(-1, self._pack.width)),
            start=self._out(low),
            end=self._out(high),
            document=self._out(owner),
            columns={name: self._plain(column) for name, column in rest.items()},
        )

    def _plain(self, column: pa.Array) -> Any:
        numbers = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        if column.null_count or not numbers:
            return python_values(column)
        return self._out(column.to_numpy(zero_copy_only=False).copy())

    def _out(self, value: Any) -> Any:
        if self._numpy or not isinstance(value, np.ndarray):
            return value
        return torch.from_numpy(value)


def _own_slices(pack: Pack, values: NDArray[Any]) -> NDArray[Any]:
    """Return this rank's slices of sequences, [sequences, seq_len, ...], under context parallelism.

    >>> from torch_table_loader.text.pack import Pack
    >>> _own_slices(Pack(seq_len=8, labels=None, context=(1, 2)), np.arange(8).reshape(1, 8)).tolist()
    [[2, 3, 4, 5]]
    """
    if pack.context is None:
        return values
    (rank, ranks), width = pack.context, values.shape[1]
    if pack.context_order == "contiguous":
        share = width // ranks
        return np.ascontiguousarray(values[:, rank * share : (rank + 1) * share])
    share = width // (2 * ranks)
    chunks = [values[:, number * share : (number + 1) * share] for number in (rank, 2 * ranks - 1 - rank)]
    return np.concatenate(chunks, axis=1)


def _placed(chunks: Chunks, shift: int) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield the places and the values of consecutive arrays when all of them move `shift` places to the front."""
    at = -shift
    for values in chunks:
        start = max(0, at)
        yield slice(start, at + len(values)), values[start - at :]
        at += len(values)


def _copied(chunks: Chunks, dtype: Any, num_tokens: int, shift: int = 0) -> NDArray[Any]:
    """Join consecutive arrays, moved `shift` places to the front; places that no value reaches are undefined."""
    found = new_array((num_tokens, *chunks[0].shape[1:]), dtype)
    for place, values in _placed(chunks, shift):
        found[place] = values
    return found


def _rising(count: int) -> Ints:
    """Return the integers from 0 on; not to be written, since most of them are kept."""
    if count > sizes().kept_integers:
        return np.arange(count)
    return _integers(1 << (count - 1).bit_length())[:count]


@cache
def _integers(count: int) -> Ints:
    return np.arange(count)


def _counts(layout: Layout, firsts: Ints, bounds: Sequence[int]) -> list[PackCounts]:
    """Return what each batch is made of; what became of documents beyond it nobody knows here."""
    tokens = np.diff(np.concatenate(([0], layout.length.cumsum()))[firsts]).tolist()
    seq_len, unknown = layout.seq_len, (None, None, None)
    return [
        PackCounts(seq_len, (stop - start) // seq_len, own, parts, *unknown)
        for (start, stop), own, parts in zip(pairwise(bounds), tokens, np.diff(firsts).tolist(), strict=True)
    ]
