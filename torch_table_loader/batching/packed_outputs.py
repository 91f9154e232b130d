"""What a batch of sequences is made of: token ids, labels, positions, and where documents begin and end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from torch_table_loader.arrow.buffers import new_array
from torch_table_loader.batching.rows import Batches
from torch_table_loader.errors import TableError
from torch_table_loader.pack import IGNORED
from torch_table_loader.planning.pack_counts import PackCounts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.arrow.token_rows import Parts
    from torch_table_loader.pack import Pack

    Ints = NDArray[np.int64]


_LONG_PART = 64
"""Tokens of a part from which on it costs less to fill parts one by one than all tokens at once."""

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

    @property
    def full(self) -> bool:
        """Whether there is no padding."""
        return int(self.length.sum()) == self.num_tokens

    def spread(self, values: Ints, padding: int, dtype: Any) -> NDArray[Any]:
        """Return each part's value at each of its tokens, and another where there is padding."""
        if len(values) * _LONG_PART > self.num_tokens:
            runs = self._beside(values, padding).astype(dtype)
            return np.repeat(runs, self._runs())
        found = new_array((self.num_tokens,), dtype)
        if not self.full:
            found[:] = padding
        for start, stop, value in zip(self.at.tolist(), self.ends.tolist(), values.tolist(), strict=True):
            found[start:stop] = value
        return found

    def positions(self) -> Ints:
        """Return the place of each token in its part; 0 where there is padding."""
        if len(self.at) * _LONG_PART > self.num_tokens:
            places = np.arange(self.num_tokens)
            places -= self.spread(self.at, 0, np.int64)
            if not self.full:
                places[self.padding()] = 0
            return places
        found: Ints = new_array((self.num_tokens,), np.int64)
        if not self.full:
            found[:] = 0
        rising = np.arange(int(self.length.max(initial=0)))
        for start, stop in zip(self.at.tolist(), self.ends.tolist(), strict=True):
            found[start:stop] = rising[: stop - start]
        return found

    def padding(self) -> NDArray[np.bool_]:
        """Return which tokens are padding."""
        return np.repeat(np.arange(2 * len(self.at) + 1) % 2 == 0, self._runs())

    def edges(self) -> Ints:
        """Return where parts and runs of padding begin, sequences never sharing one, and the number of tokens."""
        rows = np.arange(0, self.num_tokens + 1, self.seq_len)
        found: Ints = np.concatenate([self.at, self.ends, rows])
        found.sort()  # np.unique hashes, which takes longer
        return found[np.diff(found, prepend=-1) > 0]

    def _runs(self) -> Ints:
        """Return the tokens of the padding before each part, the part, and the padding at the end, alternating."""
        gaps = np.diff(self.at, prepend=0)
        gaps[1:] -= self.length[:-1]
        runs = self._beside(self.length, 0)
        runs[0::2] = [*gaps, self.num_tokens - (int(self.ends[-1]) if len(self.ends) else 0)]
        return runs

    @staticmethod
    def _beside(values: Ints, between: int) -> Ints:
        found = np.full(2 * len(values) + 1, between, dtype=np.int64)
        found[1::2] = values
        return found


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
        flat = self._flat(tokens, layout)
        starts = range(0, num_tokens, batch_tokens)
        bounds = np.searchsorted(layout.at, [*starts, num_tokens]).tolist()
        has_edges = not {"cu_seqlens", "max_seqlen"}.isdisjoint(self._pack.tensors)
        edges = self._edges(layout, [*starts, num_tokens]) if has_edges else [(None, 0)] * len(starts)
        if "doc_ids" in self._pack.tensors:
            before = np.repeat(bounds[:-1], np.diff(bounds))
            flat["doc_ids"] = layout.spread(np.arange(len(layout.at)) - before, -1, np.int32)
        found = []
        for place, start in enumerate(starts):
            stop = min(start + batch_tokens, num_tokens)
            own = {name: values[start:stop] for name, values in flat.items()}
            batch = {name: self._out(value) for name, value in self._named(own, *edges[place]).items()}
            if parts.columns is not None:
                batch |= self._of_documents(parts.columns, layout, bounds[place], bounds[place + 1], start, stop)
            found.append(batch)
        return Batches(found, _counts(layout, bounds, starts))

    def _flat(self, tokens: Sequence[NDArray[Any]], layout: Layout) -> dict[str, NDArray[Any]]:
        """Return what each token has, by the names of this library; `doc_ids` depend on the batch."""
        pack, wanted = self._pack, self._pack.tensors
        ids = self._filled(tokens[0], layout, pack.pad_id, np.int64)
        flat = {"input_ids": ids}
        if "labels" in wanted:
            flat["labels"] = self._labels(tokens, ids, layout)
        if "position_ids" in wanted:
            flat["position_ids"] = layout.positions()
        if "segment_ids" in wanted:
            sequence = layout.at // layout.seq_len
            first = np.searchsorted(sequence, sequence)
            flat["segment_ids"] = layout.spread(np.arange(1, len(layout.at) + 1) - first, 0, np.int32)
        for name, values in zip(self._names[1:], tokens[1:], strict=True):
            if name != pack.loss_mask:
                flat[name] = self._filled(values, layout, 0, values.dtype)
        return flat

    def _named(self, flat: Mapping[str, NDArray[Any]], edges: NDArray[Any] | None, longest: int) -> dict[str, Any]:
        """Return what the output has of a batch, by the names that it has for it."""
        output = self._pack.output
        if output == "flash":
            found: dict[str, Any] = {name: values[None] for name, values in flat.items()}
            for side in ("q", "k"):
                found[f"cu_seq_lens_{side}"], found[f"max_length_{side}"] = edges, longest
            return found
        found = {name: values.reshape(-1, self._pack.seq_len) for name, values in flat.items()}
        if output == "megatron":
            found = {"tokens": found.pop("input_ids"), **found}
            if "labels" in found:
                trained = found["labels"] != IGNORED
                found["labels"] = np.where(trained, found["labels"], 0)
                found["loss_mask"] = trained.astype(np.float32)
        if "cu_seqlens" in self._pack.tensors:
            found["cu_seqlens"] = edges
        if "max_seqlen" in self._pack.tensors:
            found["max_seqlen"] = longest
        return found

    def _labels(self, tokens: Sequence[NDArray[Any]], ids: Ints, layout: Layout) -> Ints:
        """Return the label of each token, −100 where the loss leaves it out."""
        labels: Ints = new_array(ids.shape, np.int64)
        labels[:] = ids
        if self._loss is not None:
            mask = tokens[self._loss]
            labels[: len(mask)][mask == 0] = IGNORED
        if not layout.full:
            labels[layout.padding()] = IGNORED
        if self._pack.labels == "hf":
            labels[layout.at] = IGNORED
            return labels
        labels[:-1] = labels[1:].copy()
        labels[layout.ends - 1] = layout.behind
        if not layout.full:
            labels[layout.padding()] = IGNORED
        return labels

    def _edges(self, layout: Layout, bounds: Sequence[int]) -> list[tuple[NDArray[Any], int]]:
        """Return for each batch where documents begin, as attention over a flat batch takes it, and the longest."""
        found, most = layout.edges(), self._pack.max_docs_per_row
        if most is not None:
            rows = layout.num_tokens // layout.seq_len
            counts = np.bincount(layout.at // layout.seq_len, minlength=rows)
            if counts.max(initial=0) > most:
                raise TableError(
                    f"max_docs_per_row={most}, but a sequence has {int(counts.max())} documents; make it larger, or "
                    'take strategy="best_fit", which heeds it'
                )
        batches = []
        for (start, stop), (first, last) in zip(
            pairwise(bounds), pairwise(np.searchsorted(found, bounds).tolist()), strict=True
        ):
            own = found[first : last + 1] - start
            longest = int(np.diff(own).max())
            if most is not None:  # padding may stand behind the documents of each sequence
                size = (stop - start) // layout.seq_len * (most + 1) + 1
                own = np.concatenate([own, np.full(size - len(own), stop - start)])
            batches.append((own.astype(np.int32), longest))
        return batches

    def _filled(self, values: NDArray[Any], layout: Layout, padding: int, dtype: Any) -> NDArray[Any]:
        """Return the values of all tokens, with padding."""
        found = new_array((layout.num_tokens,), dtype)
        found[: len(values)] = values
        if not layout.full:
            found[layout.padding()] = padding
        return found

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


def _counts(layout: Layout, bounds: Sequence[int], starts: range) -> list[PackCounts]:
    """Return what each batch is made of; what became of documents beyond it nobody knows here."""
    tokens = np.diff(np.concatenate(([0], np.cumsum(layout.length)))[bounds]).tolist()
    seq_len, unknown = layout.seq_len, (None, None, None)
    return [
        PackCounts(seq_len, (min(start + starts.step, layout.num_tokens) - start) // seq_len, own, parts, *unknown)
        for start, own, parts in zip(starts, tokens, np.diff(bounds).tolist(), strict=True)
    ]
