"""What a batch of sequences is made of: token ids, labels, positions, and where documents begin and end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from torch_table_loader.errors import TableError
from torch_table_loader.pack import IGNORED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.arrow.token_rows import Parts
    from torch_table_loader.pack import Pack

    Ints = NDArray[np.int64]


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
    """Where the parts of documents lie in a batch, no part crossing the end of a sequence.

    Args:
        parts: of the batch, each with the row of `documents` that it came of.
        seq_len: tokens of a sequence.
        num_tokens: of the batch, padding included.
        tokens: the ids, as stored.
        target: the label that a token is, by its place.
    """

    __slots__ = ("at", "behind", "length", "num_tokens", "owner", "seq_len", "start")

    def __init__(self, parts: Parts, seq_len: int, num_tokens: int, target: Callable[[Ints], Ints]) -> None:
        """Cut the parts that cross the end of a sequence."""
        first, last = parts.at // seq_len, (parts.at + parts.length - 1) // seq_len
        pieces = last - first + 1
        self.seq_len = seq_len
        self.num_tokens = num_tokens
        self.owner: Ints = np.repeat(np.arange(len(pieces)), pieces)
        """Which of the given parts each is a piece of."""
        if len(self.owner) == len(pieces):
            self.at, self.length, self.start, self.behind = parts[:4]
            return
        number = np.arange(len(self.owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        sequence = first[self.owner] + number
        end = parts.at + parts.length
        self.at = np.maximum(parts.at[self.owner], sequence * seq_len)
        self.length = np.minimum(end[self.owner], (sequence + 1) * seq_len) - self.at
        self.start = parts.start[self.owner] + self.at - parts.at[self.owner]
        self.behind = parts.next[self.owner]
        cut = np.flatnonzero(number < pieces[self.owner] - 1)
        self.behind[cut] = target(self.at[cut] + self.length[cut])

    @property
    def full(self) -> bool:
        """Whether there is no padding."""
        return int(self.length.sum()) == self.num_tokens

    def spread(self, values: Ints, padding: int, dtype: Any) -> NDArray[Any]:
        """Return each part's value at each of its tokens, and another where there is padding."""
        if self.full:
            return np.repeat(values.astype(dtype), self.length)
        return np.repeat(self._beside(values, padding).astype(dtype), self._runs())

    def padding(self) -> NDArray[np.bool_]:
        """Return which tokens are padding."""
        return np.repeat(np.arange(2 * len(self.at) + 1) % 2 == 0, self._runs())

    def edges(self) -> Ints:
        """Return where parts and runs of padding begin, sequences never sharing one, and the number of tokens."""
        ends = self.at + self.length
        rows = np.arange(0, self.num_tokens + 1, self.seq_len)
        found: Ints = np.unique(np.concatenate([self.at, ends, rows]))
        return found

    def _runs(self) -> Ints:
        """Return the tokens of the padding before each part, the part, and the padding at the end, alternating."""
        ends = self.at + self.length
        gaps = np.diff(self.at, prepend=0)
        gaps[1:] -= self.length[:-1]
        runs = self._beside(self.length, 0)
        runs[0::2] = [*gaps, self.num_tokens - (int(ends[-1]) if len(ends) else 0)]
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

    def batch(self, tokens: Sequence[NDArray[Any]], parts: Parts) -> dict[str, Any]:
        """Return a batch by name.

        Args:
            tokens: of each column that is cut, flat; the last sequence may be short.
            parts: cover all of it that is not padding.

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
        return self._named(tokens, parts, layout)

    def _named(self, tokens: Sequence[NDArray[Any]], parts: Parts, layout: Layout) -> dict[str, Any]:
        """Return the tensors that the output has, by the names that it has for them."""
        pack, shape = self._pack, (-1, self._pack.seq_len)
        make = {
            "hf": self._hf,
            "flash": self._flash,
            "flex": self._flex,
            "megatron": self._megatron,
            "segment_ids": self._segments,
            None: self._all,
        }[pack.output]
        ids = self._filled(tokens[0], layout, pack.pad_id, np.int64)
        labels = self._labels(tokens, ids, layout)
        found = make(ids, labels, layout)
        for name, values in zip(self._names[1:], tokens[1:], strict=True):
            if name != pack.loss_mask:
                found[name] = self._filled(values, layout, 0, values.dtype).reshape(shape)
        batch = {name: self._out(value) for name, value in found.items()}
        columns = parts.columns
        if columns is not None:
            owned = columns if len(layout.owner) == len(columns) else columns.take(pa.array(layout.owner))
            batch |= self._of_documents(owned, layout)
        return batch

    def _all(self, ids: Ints, labels: Ints | None, layout: Layout) -> dict[str, Any]:
        shape = (-1, self._pack.seq_len)
        return {
            "input_ids": ids.reshape(shape),
            **({} if labels is None else {"labels": labels.reshape(shape)}),
            "position_ids": self._positions(layout).reshape(shape),
            "doc_ids": layout.spread(np.arange(len(layout.at)), -1, np.int32).reshape(shape),
            **self._edges(layout, "cu_seqlens", "max_seqlen"),
        }

    def _hf(self, ids: Ints, labels: Ints | None, layout: Layout) -> dict[str, Any]:
        shape = (-1, self._pack.seq_len)
        return {
            "input_ids": ids.reshape(shape),
            **({} if labels is None else {"labels": labels.reshape(shape)}),
            "position_ids": self._positions(layout).reshape(shape),
        }

    def _flash(self, ids: Ints, labels: Ints | None, layout: Layout) -> dict[str, Any]:
        edges = self._edges(layout, "cu_seq_lens_q", "max_length_q")
        return {
            "input_ids": ids[None],
            **({} if labels is None else {"labels": labels[None]}),
            "position_ids": self._positions(layout)[None],
            **edges,
            "cu_seq_lens_k": edges["cu_seq_lens_q"],
            "max_length_k": edges["max_length_q"],
        }

    def _flex(self, ids: Ints, labels: Ints | None, layout: Layout) -> dict[str, Any]:
        found = self._hf(ids, labels, layout)
        numbers = layout.spread(np.arange(len(layout.at)), -1, np.int32)
        return {**found, "doc_ids": numbers.reshape(-1, self._pack.seq_len)}

    def _megatron(self, ids: Ints, labels: Ints | None, layout: Layout) -> dict[str, Any]:
        shape = (-1, self._pack.seq_len)
        found = {"tokens": ids.reshape(shape), "position_ids": self._positions(layout).reshape(shape)}
        if labels is not None:
            trained = labels != IGNORED
            found["labels"] = np.where(trained, labels, 0).reshape(shape)
            found["loss_mask"] = trained.astype(np.float32).reshape(shape)
        return {**found, **self._edges(layout, "cu_seqlens", "max_seqlen")}

    def _segments(self, ids: Ints, labels: Ints | None, layout: Layout) -> dict[str, Any]:
        sequence = layout.at // layout.seq_len
        first = np.searchsorted(sequence, sequence)
        numbers = layout.spread(np.arange(1, len(layout.at) + 1) - first, 0, np.int32)
        return {**self._hf(ids, labels, layout), "segment_ids": numbers.reshape(-1, self._pack.seq_len)}

    def _labels(self, tokens: Sequence[NDArray[Any]], ids: Ints, layout: Layout) -> Ints | None:
        """Return the label of each token, −100 where the loss leaves it out."""
        pack = self._pack
        if pack.labels is None:
            return None
        labels = ids.copy()
        if self._loss is not None:
            mask = tokens[self._loss]
            labels[: len(mask)][mask == 0] = IGNORED
        if not layout.full:
            labels[layout.padding()] = IGNORED
        if pack.labels == "hf":
            labels[layout.at] = IGNORED
            return labels
        shifted = np.full_like(labels, IGNORED)
        shifted[:-1] = labels[1:]
        shifted[layout.at + layout.length - 1] = layout.behind
        if not layout.full:
            shifted[layout.padding()] = IGNORED
        return shifted

    @staticmethod
    def _positions(layout: Layout) -> Ints:
        places = np.arange(layout.num_tokens)
        places -= layout.spread(layout.at, 0, np.int64)
        if not layout.full:
            places[layout.padding()] = 0
        return places

    def _edges(self, layout: Layout, edges: str, longest: str) -> dict[str, Any]:
        """Return where documents begin, for attention over a flat batch, and the longest of them."""
        found = layout.edges()
        most = self._pack.max_docs_per_row
        longest_part = int(np.diff(found).max(initial=0))
        if most is not None:
            rows = layout.num_tokens // layout.seq_len
            counts = np.bincount(layout.at // layout.seq_len, minlength=rows)
            if counts.max(initial=0) > most:
                raise TableError(
                    f"max_docs_per_row={most}, but a sequence has {int(counts.max())} documents; make it larger, or "
                    'take strategy="best_fit", which heeds it'
                )
            # Padding may stand behind the documents of each sequence.
            found = np.concatenate([found, np.full(rows * (most + 1) + 1 - len(found), layout.num_tokens)])
        return {edges: found.astype(np.int32), longest: longest_part}

    def _filled(self, values: NDArray[Any], layout: Layout, padding: int, dtype: Any) -> NDArray[Any]:
        """Return the values of all tokens, with padding."""
        if len(values) < layout.num_tokens:
            values = np.concatenate([values, np.zeros(layout.num_tokens - len(values), dtype=values.dtype)])
        found = values.astype(dtype)
        if not layout.full:
            found[layout.padding()] = padding
        return found

    def _of_documents(self, columns: pa.StructArray, layout: Layout) -> dict[str, Any]:
        """Return the columns of documents, one row a part, and the spans."""
        found: dict[str, Any] = {}
        if self._documents is not None:
            names = [field.name for field in columns.type if field.name not in self._pack.spans]
            batch = pa.RecordBatch.from_arrays([columns.field(name) for name in names], names=names)
            found["documents"] = self._documents(batch)
        if self._pack.spans:
            found["spans"] = {name: self._spans(columns.field(name), layout) for name in self._pack.spans}
        return found

    def _spans(self, lists: pa.Array, layout: Layout) -> Spans:
        """Clip the spans of the documents to the parts under the batch."""
        counts = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        inside = lists.flatten()
        owner = np.repeat(np.arange(len(counts)), counts)
        start = inside.field("start").to_numpy(zero_copy_only=False).astype(np.int64)
        end = inside.field("end").to_numpy(zero_copy_only=False).astype(np.int64)
        begun = layout.start[owner]
        low = np.maximum(start, begun)
        high = np.minimum(end, begun + layout.length[owner])
        kept = np.flatnonzero(low < high)
        owner, shift = owner[kept], (layout.at[owner] - begun)[kept]
        low, high = low[kept] + shift, high[kept] + shift
        index = np.full(layout.num_tokens, -1, dtype=np.int64)
        for number, (first, stop) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            index[first:stop] = number
        names = [field.name for field in inside.type if field.name not in ("start", "end")]
        rest = {name: inside.field(name).take(pa.array(kept)) for name in names}
        return Spans(
            index=self._out(index.reshape(-1, layout.seq_len)),
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
