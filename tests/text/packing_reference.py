"""What packed batches must be, written out token by token, with nothing of the library's code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.tables.plain import key
from torch_table_loader import Pack, Schedule

IGNORED = -100
MOST_TOKENS = 64
GROUPS: list[list[int | None]] = [[5, 0, 17, 1], [None, 40, 3], [9, 9, 2, 2, 30], [1], [12, 33, 4, 6]]
"""Row groups of documents of so many tokens, fewer than `MOST_TOKENS`; None is a null list."""
LENGTHS = [length for group in GROUPS for length in group]
BOS, EOS, SEP = 1, 2, 3
TENSORS = ("input_ids", "labels", "position_ids", "doc_ids", "cu_seqlens", "max_seqlen")

PackStrategy = Literal["concat", "pad", "best_fit", "windows"]

Place = tuple[int, int]
"""A document, and a token's place in it."""


def full_pack(**options: Any) -> Pack:
    """Return a pack whose batches have all tensors, unless it asks for others."""
    return Pack(**{"output": TENSORS, **options})


def length_of_step(pack: Pack, epoch: int, step: int) -> int:
    """Give the length of the sequences of a step, written out."""
    if isinstance(pack.seq_len, int):
        return pack.seq_len
    lengths = pack.seq_len.values if isinstance(pack.seq_len, Schedule) else pack.seq_len
    return lengths[max(begin for begin in lengths if epoch or step >= begin)]


def token(document: int, place: int) -> int:
    """Give a token id that no other place has."""
    return 1000 + document * MOST_TOKENS + place


def weight(document: int, place: int) -> float:
    """Give the value of the aligned column at a token."""
    return document + place / 128


def trained(document: int, place: int) -> bool:
    """Say whether the loss takes a token."""
    return (document + place) % 3 > 0


def write_documents(
    root: Path,
    groups: Sequence[Sequence[int | None]],
    files: int = 2,
    first: int = 0,
    kind: pa.DataType = pa.list_(pa.int32()),  # noqa: B008 types are values
) -> None:
    """Write row groups of documents of so many tokens, some to each file; documents are numbered from `first` on."""
    root.mkdir(parents=True, exist_ok=True)
    numbered = []
    for lengths in groups:
        numbered.append((first, lengths))
        first += len(lengths)
    for file in range(files):
        mine = numbered[len(numbered) * file // files : len(numbered) * (file + 1) // files]
        tables = [_table(start, lengths, kind) for start, lengths in mine] or [_table(0, [], kind)]
        with pq.ParquetWriter(root / f"{file}.parquet", tables[0].schema) as writer:
            for table in tables:
                writer.write_table(table)


def _table(first: int, lengths: Sequence[int | None], kind: pa.DataType) -> pa.Table:
    rows = [(first + row, length) for row, length in enumerate(lengths)]

    def column(value: Any) -> list[Any]:
        return [None if n is None else [value(doc, at) for at in range(n)] for doc, n in rows]

    parts = [("start", pa.int32()), ("end", pa.int32()), ("number", pa.int64()), ("name", pa.string())]
    spans = [
        [{"start": 1, "end": min(n, 4), "number": doc, "name": f"s{doc}"}] if n is not None and n > 1 else []
        for doc, n in rows
    ]
    return pa.table(
        {
            "input_ids": pa.array(column(token), kind),
            "weight": pa.array(column(weight), pa.list_(pa.float32())),
            "trained": pa.array(column(trained), pa.list_(pa.bool_())),
            "id": pa.array([doc for doc, _ in rows], pa.int64()),
            "k": pa.array([key(doc) for doc, _ in rows], pa.int32()),
            "title": pa.array([f"document {doc}" for doc, _ in rows]).dictionary_encode(),
            "spans": pa.array(spans, pa.list_(pa.struct(parts))),
        }
    )


@dataclass(frozen=True)
class Whole:
    """A document as it is to come out: its tokens, what the loss takes of them, and which are stored."""

    tokens: list[int]
    trained: list[bool]
    stored: list[int | None]


def whole(document: int, length: int, pack: Pack) -> Whole:
    """Give a document with its begin and end tokens."""
    tokens = [token(document, at) for at in range(length)]
    takes = [trained(document, at) for at in range(length)]
    stored: list[int | None] = list(range(length))
    if pack.bos_id is not None and tokens[:1] != [pack.bos_id]:
        tokens, takes, stored = [pack.bos_id, *tokens], [False, *takes], [None, *stored]
    for added, takes_it in ((pack.eos_id, True), (pack.sep_id, False)):
        if added is not None and (added == pack.sep_id or tokens[-1:] != [added]):
            tokens, takes, stored = [*tokens, added], [*takes, takes_it], [*stored, None]
    if pack.loss_mask is None:
        takes = [True] * len(tokens)
    return Whole(tokens, takes, stored)


def documents_of(groups: Sequence[Sequence[int | None]], pack: Pack, first: int = 0) -> dict[int, Whole]:
    """Give the documents that come out, by number."""
    lengths = [length or 0 for group in groups for length in group]
    found = {
        number: whole(number, length, pack) for number, length in enumerate(lengths, first) if length >= pack.min_length
    }
    if pack.strategy in ("concat", "windows"):
        return found
    if pack.long_docs == "drop":
        return {number: each for number, each in found.items() if len(each.tokens) <= pack.width}
    if pack.long_docs == "truncate":
        cut = pack.width
        return {
            number: Whole(each.tokens[:cut], each.trained[:cut], each.stored[:cut]) for number, each in found.items()
        }
    return found


def places_of(wholes: Mapping[int, Whole]) -> set[Place]:
    """Give every token that must come out."""
    return {(number, at) for number, each in wholes.items() for at in range(len(each.tokens))}


def check_batch(batch: Mapping[str, Any], wholes: Mapping[int, Whole], pack: Pack) -> list[list[Place]]:
    """Check every value of a batch of the library's own names; give the tokens of each of its sequences, in order."""
    ids, numbers = np.asarray(batch["input_ids"]), np.asarray(batch["doc_ids"])
    assert ids.dtype == np.int64
    assert ids.shape == numbers.shape
    assert ids.shape[1] == pack.width
    owners = np.asarray(batch["documents"]["id"]).tolist() if batch.get("documents") else []
    delivered: list[list[Place]] = []
    edges, last = [], -1
    for row in range(len(ids)):
        delivered.append([])
        column = 0
        while column < pack.width:
            number = int(numbers[row, column])
            stop = column
            while stop < pack.width and numbers[row, stop] == number:
                stop += 1
            edges.append(row * pack.width + column)
            if number < 0:
                assert stop == pack.width, "padding is at the end"
                _check_padding(batch, pack, row, slice(column, stop))
            else:
                assert number == last + 1
                last = number
                found = _check_part(batch, wholes[owners[number]], pack, row, slice(column, stop))
                delivered[-1] += [(owners[number], place) for place in found]
                _check_aligned(batch, owners[number], wholes[owners[number]], row, column, found)
            column = stop
        if pack.strategy == "pad":
            assert len({document for document, _ in delivered[-1]}) <= 1
    assert last + 1 == len(owners)
    edges.append(ids.size)
    assert np.asarray(batch["cu_seqlens"]).tolist()[: len(edges)] == edges
    assert set(np.asarray(batch["cu_seqlens"]).tolist()[len(edges) :]) <= {ids.size}
    assert batch["max_seqlen"] == max(np.diff(edges))
    if pack.spans:
        _check_spans(batch, pack, wholes, [place for sequence in delivered for place in sequence])
    return delivered


def _check_padding(batch: Mapping[str, Any], pack: Pack, row: int, columns: slice) -> None:
    assert set(np.asarray(batch["input_ids"])[row, columns].tolist()) == {pack.pad_id}
    assert set(np.asarray(batch["position_ids"])[row, columns].tolist()) == {0}
    if pack.labels is not None:
        assert set(np.asarray(batch["labels"])[row, columns].tolist()) == {IGNORED}


def _check_part(batch: Mapping[str, Any], each: Whole, pack: Pack, row: int, columns: slice) -> range:
    ids = np.asarray(batch["input_ids"])[row, columns].tolist()
    start = each.tokens.index(ids[0])
    places = range(start, start + len(ids))
    assert ids == each.tokens[places.start : places.stop]
    if pack.strategy in ("pad", "best_fit"):  # what fits comes whole, and the rest in pieces of one length
        assert start % pack.width == 0
        assert len(ids) == min(pack.width, len(each.tokens) - start)
    assert np.asarray(batch["position_ids"])[row, columns].tolist() == list(range(len(ids)))
    if pack.labels == "hf":
        takes = zip(ids, each.trained[places.start : places.stop], strict=True)
        expected = [label if taken else IGNORED for label, taken in takes]
        expected[0] = IGNORED
    elif pack.labels == "shifted":
        behind = range(places.start + 1, places.stop + 1)
        known = [place < len(each.tokens) and each.trained[place] for place in behind]
        expected = [each.tokens[place] if some else IGNORED for place, some in zip(behind, known, strict=True)]
    if pack.labels is None:
        assert "labels" not in batch
    else:
        assert np.asarray(batch["labels"])[row, columns].tolist() == expected
    return places


def _check_aligned(batch: Mapping[str, Any], document: int, each: Whole, row: int, column: int, places: range) -> None:
    if "weight" in batch:
        stored = [each.stored[place] for place in places]
        expected = [0.0 if at is None else weight(document, at) for at in stored]
        assert np.asarray(batch["weight"])[row, column : column + len(places)].tolist() == expected


def _check_spans(batch: Mapping[str, Any], pack: Pack, wholes: Mapping[int, Whole], delivered: Sequence[Place]) -> None:
    """Spans cover the stored tokens 1 to 4 of each document."""
    spans = batch["spans"][pack.spans[0]]
    index = np.asarray(spans.index).reshape(-1)
    numbers = np.asarray(batch["doc_ids"]).reshape(-1)
    at = iter(delivered)
    for flat, number in enumerate(numbers.tolist()):
        if number < 0:
            assert index[flat] == -1
            continue
        document, place = next(at)
        stored = wholes[document].stored[place]
        inside = stored is not None and 1 <= stored < 4
        assert (index[flat] >= 0) == inside
        if inside:
            span = int(index[flat])
            assert int(spans.document[span]) == number
            assert int(spans.start[span]) <= flat < int(spans.end[span])
            assert (int(spans.columns["number"][span]), spans.columns["name"][span]) == (document, f"s{document}")


def delivered_by(batches: Iterable[Mapping[str, Any]], wholes: Mapping[int, Whole], pack: Pack) -> list[Place]:
    """Check batches; give the tokens that they deliver."""
    return [place for batch in batches for sequence in check_batch(batch, wholes, pack) for place in sequence]
