"""Functions that change documents by seed and epoch, and what they must give, written out with lists alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_table_loader.planning.keys import derive_key

PREFIX, MIDDLE, SUFFIX, END = 9_000_001, 9_000_002, 9_000_003, 9_000_004
SPANS = 9_100_000
IGNORED = -100
LENGTHS = [5, 0, 3, 8, 1, 12, 4, 4, 7, 2, 6, 9, 3, 1, 5, 10, 2, 4, 6, 11, 30, 2, 8, 13]
DOCUMENTS = [[1000 * (row + 1) + at for at in range(length)] for row, length in enumerate(LENGTHS)]

Place = tuple[int, int]
"""A document, and a token's place in what comes of it."""


def write_documents(root: Path) -> str:
    """Write three files of documents, with their rows and the places of their tokens beside them."""
    root.mkdir(parents=True, exist_ok=True)
    for file in range(3):
        mine = range(file * 8, file * 8 + 8)
        columns = {
            "tokens": [DOCUMENTS[row] for row in mine],
            "at": [list(range(LENGTHS[row])) for row in mine],
            "owner": [[row] * LENGTHS[row] for row in mine],
        }
        arrays = {name: pa.array(lists, pa.list_(pa.int32())) for name, lists in columns.items()}
        pq.write_table(pa.table(arrays | {"row": pa.array(list(mine))}), root / f"{file}.parquet", row_group_size=3)
    return str(root)


def seed_of(seed: int, epoch: int, row: int) -> int:
    """Give a document's seed: twice the finaliser of SplitMix64, in Python's integers."""
    most, hashed = 2**64 - 1, row * 0x9E3779B97F4A7C15
    for word in derive_key(seed, epoch, "packs").hashing:
        hashed = (hashed + word) & most
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            hashed = (hashed ^ hashed >> shift) * factor & most
    return hashed >> 1


def middle_filled(tokens: Sequence[int], seed: int, epoch: int) -> list[int]:
    """Give a document for fill in the middle, more of them in later epochs."""
    chance = np.random.default_rng(seed)
    if chance.random() >= 0.3 + 0.2 * epoch or len(tokens) < 2:
        return list(tokens)
    low, high = sorted(chance.integers(0, len(tokens) + 1, 2).tolist())
    return [PREFIX, *tokens[:low], SUFFIX, *tokens[high:], MIDDLE, *tokens[low:high]]


def spans_corrupted(tokens: Sequence[int], seed: int, epoch: int) -> list[int]:
    """Give a document without some spans, each with a mark in its place, and these spans behind it."""
    kept, targets, marks, hidden = [], [], 0, False
    for token, number in zip(tokens, np.random.default_rng([seed, epoch]).random(len(tokens)), strict=True):
        begins = number < 0.25
        if begins and not hidden:
            kept.append(SPANS + marks)
            targets.append(SPANS + marks)
            marks += 1
        hidden = begins
        (targets if hidden else kept).append(token)
    return [*kept, *targets, END] if kept else []


def fim(batch: pa.RecordBatch, *, epoch: int) -> pa.RecordBatch:
    """Move a random part of a document to its end, with numpy, document by document."""
    lists, found = batch.column("tokens"), []
    ends = np.cumsum(lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))
    values = lists.flatten().to_numpy()
    for seed, stop, start in zip(batch.column("seed").to_pylist(), ends, np.concatenate(([0], ends[:-1])), strict=True):
        tokens, chance = values[start:stop], np.random.default_rng(seed)
        if chance.random() < 0.3 + 0.2 * epoch and len(tokens) >= 2:
            cuts = np.sort(chance.integers(0, len(tokens) + 1, 2))
            prefix, middle, suffix = np.split(tokens, cuts)
            tokens = np.concatenate(([PREFIX], prefix, [SUFFIX], suffix, [MIDDLE], middle))
        found.append(tokens)
    return placed(batch, found)


def corrupted(batch: pa.RecordBatch, *, epoch: int) -> pa.RecordBatch:
    """Take spans out of documents, with numpy."""
    found = []
    for given, seed in zip(batch.column("tokens").to_pylist(), batch.column("seed").to_pylist(), strict=True):
        tokens = np.array(given or [], np.int64)
        hidden = np.random.default_rng([seed, epoch]).random(len(tokens)) < 0.25
        begins = hidden & ~np.concatenate(([False], hidden[:-1]))
        marks = SPANS + np.arange(np.count_nonzero(begins))
        at = np.flatnonzero(begins)
        kept = np.insert(tokens, at, marks)[~np.insert(hidden, at, False)]
        targets = np.insert(tokens, at, marks)[np.insert(hidden, at, True)]
        found.append(np.concatenate((kept, targets, [END])) if len(kept) else kept)
    return placed(batch, found)


def placed(batch: pa.RecordBatch, found: Iterable[Any]) -> pa.RecordBatch:
    """Return documents with the place of each token, and their rows, which any token of the table says."""
    lists = [np.asarray(tokens).tolist() for tokens in found]
    owners = [(given or [0])[0] // 1000 - 1 for given in batch.column("tokens").to_pylist()]
    columns = {
        "tokens": lists,
        "at": [list(range(len(tokens))) for tokens in lists],
        "owner": [[row] * len(tokens) for row, tokens in zip(owners, lists, strict=True)],
    }
    kind, names = pa.list_(pa.int64()), [name for name in batch.schema.names if name != "seed"]
    return pa.RecordBatch.from_pydict({name: pa.array(columns[name], kind) for name in names})


def expected(
    change: Callable[[Sequence[int], int, int], list[int]], seed: int, epoch: int, **ends: int
) -> dict[int, list[int]]:
    """Give the documents of an epoch, by row, with the tokens that are put in at their ends."""
    found = {row: change(tokens, seed_of(seed, epoch, row), epoch) for row, tokens in enumerate(DOCUMENTS)}
    for name, token in ends.items():
        at = slice(0, 0) if name == "bos_id" else slice(2**31, None)
        for tokens in found.values():
            if tokens:
                tokens[at] = [token]
    return {row: tokens for row, tokens in found.items() if tokens}


def places_of(batch: Mapping[str, Any], documents: Mapping[int, list[int]]) -> list[Place]:
    """Check every token and label of a batch, and give the places of its tokens."""
    names = ("input_ids", "labels", "doc_ids", "owner", "at")
    ids, labels, parts, owners, places = (np.asarray(batch[name]).reshape(-1).tolist() for name in names)
    found = []
    for number, part in enumerate(parts):
        if part < 0:
            assert labels[number] == IGNORED
            continue
        row, at = owners[number], places[number]
        assert ids[number] == documents[row][at]
        assert labels[number] == [*documents[row], IGNORED][at + 1]
        if number and parts[number - 1] == part:
            assert (owners[number - 1], places[number - 1]) == (row, at - 1)
        found.append((row, at))
    return found


def all_places(documents: Mapping[int, list[int]]) -> Counter[Place]:
    """Give every token, once."""
    return Counter((row, at) for row, tokens in documents.items() for at in range(len(tokens)))
