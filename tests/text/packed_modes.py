"""The modes of the loader that read documents as sequences of tokens, over small tables of documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tests.guests import is_here
from tests.states import State, samples_of, steps_of
from tests.tables.plain import key
from tests.text.packing_reference import (
    EOS,
    MOST_TOKENS,
    SEP,
    PackStrategy,
    Place,
    Whole,
    check_batch,
    documents_of,
    full_pack,
    places_of,
    token,
    write_documents,
)
from tests.torch.modes import APART, Mode, RowMode, TwoTables
from torch_table_loader import FlatTokens, Pack, StructuredDataset, TableLoader

DOCUMENTS: dict[str, list[list[int | None]]] = {
    "documents": [[5, 0, 17, 1], [None, 40, 3], [9, 9, 2, 2, 30], [1], [12, 33, 4, 6], [20, 20], [20, 20, 20]],
    "more documents": [[7, 8, 9], [3, 3, 3, 50], [16, 16]],
}
FLAT: list[list[int]] = [[9] * 12 + [4], [3], [9] * 13]
"""Files of flat tokens without ends, of which nine make a document."""
FIRST = {"documents": 0, "more documents": 100}
"""Tables number their documents apart, so that a token says which it is of."""


def write_token_tables(root: Path) -> None:
    """Write the tables of documents that the modes read."""
    for name, documents in DOCUMENTS.items():
        write_documents(root / name, documents, first=FIRST[name])
    _write_flat(root / "flat")


def _write_flat(root: Path) -> None:
    """Write flat arrays, of which every other one has a header."""
    root.mkdir()
    document = 0
    for number, lengths in enumerate(FLAT):
        tokens = [token(document + at, place) for at, length in enumerate(lengths) for place in range(length)]
        document += len(lengths)
        if number % 2:
            np.save(root / f"{number}.npy", np.array(tokens, np.uint16))
        else:
            np.array(tokens, np.uint16).tofile(root / f"{number}.npy")


class Packed(Mode):
    """Reads documents as sequences of tokens; a token is named by its document and its place there."""

    tables: ClassVar[Sequence[str]] = ("documents",)

    def __init__(self, pack: Pack) -> None:
        self.pack = pack
        self.name = f"{self.kind} by {pack.strategy}"

    kind: ClassVar[str]
    streamed: ClassVar[bool]

    def parts(self, root: Path, options: dict[str, Any]) -> tuple[Any, list[Any], dict[str, Any]]:
        """Shuffle splits of few documents, or sequences, unless told otherwise."""
        shuffled: dict[str, Any] = {"shuffle": "splits", "split_size": 3} if self.streamed else {"shuffle": "rows"}
        return StructuredDataset, [str(root / self.tables[0])], shuffled | self._packing(options)

    def _packing(self, options: dict[str, Any]) -> dict[str, Any]:
        """Ask for packs whose documents have their numbers."""
        return {"pack": self.pack} | options | {"columns": ["id", *options.get("columns", [])]}

    @cached_property
    def wholes(self) -> dict[int, Whole]:
        """The documents of all tables as they are to come out."""
        return {
            number: whole
            for name in self.tables
            for number, whole in documents_of(DOCUMENTS[name], self.pack, FIRST[name]).items()
        }

    def ids(self, batch: Any) -> list[Any]:
        """List the sequences of a batch, each by its tokens."""
        pack = replace(self.pack, seq_len=batch["input_ids"].shape[1])
        return [tuple(map(_token, sequence)) for sequence in check_batch(batch, self.wholes, pack)]

    def rows(self, batch: Any) -> list[Any]:
        """List the sequences that are not padding."""
        return [row for row in self.ids(batch) if row]

    def pads(self, batch: Any) -> list[bool]:
        """Say of each sequence whether it is padding."""
        return [not row for row in self.ids(batch)]

    def sources(self, batch: Any) -> list[Any]:
        """List the documents of a batch, one that lies in two sequences twice."""
        documents: list[int] = batch["documents"]["row_id"].tolist() if batch["documents"] else []
        return documents

    def _starts(self, root: Path) -> dict[str, int]:
        groups = DOCUMENTS[self.tables[0]]
        return {"0.parquet": 0, "1.parquet": sum(map(len, groups[: len(groups) // 2]))}

    def live(self, root: Path, *, filtered: bool = False) -> set[int]:
        """List the tokens of all documents."""
        return {_token(place) for place in places_of(self.wholes) if not filtered or key(place[0]) < 7}

    def check_once(self, seen: Iterable[Any], live: set[int]) -> None:
        """Each token came once."""
        assert sorted(token for sequence in seen for token in sequence) == sorted(live)

    def table_of(self, token: int) -> int:
        """Give the place of a token's table."""
        return sum(token // MOST_TOKENS >= FIRST[name] for name in self.tables) - 1

    def steps(self, state: State, batch_size: int = 5) -> int:
        """Read the steps of the newest stage, or count those that took its samples."""
        return steps_of(state) if self.streamed else -(-samples_of(state) // batch_size)


class PackedSplits(Packed):
    """Packs the documents of splits."""

    kind, streamed = "packs", True


class PackedWindows(PackedSplits):
    """Packs the documents of splits, some of which are shuffled together first."""

    kind = "packs in windows"

    def parts(self, root: Path, options: dict[str, Any]) -> tuple[Any, list[Any], dict[str, Any]]:
        """Shuffle splits of several documents, and three documents together."""
        return super().parts(root, {"split_size": 10, "shuffle_buffer_size": 3} | options)


class PackedMixed(PackedSplits):
    """Mixes the documents of splits, and packs them."""

    kind = "mixed packs"

    def parts(self, root: Path, options: dict[str, Any]) -> tuple[Any, list[Any], dict[str, Any]]:
        """Read splits of few documents side by side."""
        return super().parts(root, {"shuffle": True} | options)


class PackedItems(Packed):
    """Packs the documents of a row store."""

    kind, streamed = "packed items", False


class PackedRows(PackedItems, RowMode):
    """Packs the documents of a row store so that some can be excluded."""

    def change(self, dataset: Any, what: str, rows: Iterable[Any]) -> None:
        """Exclude or include the documents of some tokens."""
        super().change(dataset, what, {token // MOST_TOKENS for token in rows})

    def beside(self, rows: Iterable[Any]) -> set[int]:
        """List all tokens of the documents of some."""
        documents = {token // MOST_TOKENS for token in rows}
        return {_token(place) for place in places_of(self.wholes) if place[0] in documents}


class FlatTokenFiles(Packed):
    """Packs pieces of flat arrays, which have no columns but the tokens."""

    tables = ("flat",)

    def parts(self, root: Path, options: dict[str, Any]) -> tuple[Any, list[Any], dict[str, Any]]:
        """Read pieces of nine tokens."""
        shuffled: dict[str, Any] = {"shuffle": "splits", "split_size": 3} if self.streamed else {"shuffle": "rows"}
        arguments = [str(root / "flat"), FlatTokens("uint16", document_tokens=9)]
        return StructuredDataset, arguments, {"pack": self.pack} | shuffled | options

    @cached_property
    def wholes(self) -> dict[int, Whole]:
        """The pieces, by number."""
        return documents_of(FLAT, self.pack)

    def ids(self, batch: Any) -> list[Any]:
        """List the sequences of a batch, whose pieces are known by their rows."""
        documents = batch["documents"] and {"id": batch["documents"]["row_id"]}
        return super().ids(batch | {"documents": documents})


class FlatSplits(FlatTokenFiles):
    """Packs the pieces of splits."""

    kind, streamed = "flat splits", True


class FlatItems(FlatTokenFiles):
    """Packs pieces where they lie."""

    kind, streamed = "flat items", False


class PackedTables(Packed, TwoTables):
    """Packs the documents of two tables, each table's in sequences of their own."""

    tables = ("documents", "more documents")

    def parts(self, root: Path, options: dict[str, Any]) -> tuple[Any, list[Any], dict[str, Any]]:
        """Mix two parts of the first table with one of the second, unless told otherwise."""
        weights = {"weights": {"documents": 2, "more documents": 1}}
        return TwoTables.parts(self, root, weights | self._packing(options))

    def ids(self, batch: Any) -> list[Any]:
        """List the sequences of a batch, whose documents are of one table."""
        found = super().ids(batch)
        if batch["documents"]:
            tables = [number >= FIRST[self.tables[1]] for number in batch["documents"]["id"].tolist()]
            assert batch["documents"]["source"].tolist() == tables
        assert all(len({self.table_of(token) for token in row}) == 1 for row in found if row)
        return found

    def sources(self, batch: Any) -> list[Any]:
        """List the documents of a batch by their tables."""
        found = super().sources(batch)
        tables = batch["documents"]["source"].tolist() if found else []
        return [APART * at + row for at, row in zip(tables, found, strict=True)]

    def check_whole(self, seen: Iterable[Any], live: set[int]) -> None:
        """Each token came, and none of a table twice more than another."""
        times = Counter(token for sequence in seen for token in sequence)
        assert set(times) == live
        for at in range(len(self.tables)):
            own = [count for token, count in times.items() if self.table_of(token) == at]
            assert max(own, default=0) - min(own, default=0) <= 1

    def rows_of(self, root: Path, loader: TableLoader, step: int) -> list[int]:
        """List the documents that `loader.rows_of` names."""
        return TwoTables.rows_of(self, root, loader, step)


class PackedMixture(PackedTables):
    """Mixes sequences of two row stores."""

    kind, streamed = "packed mixture", False
    shuffle: ClassVar[dict[str, Any]] = {"shuffle": "rows"}


class PackedStreams(PackedTables):
    """Mixes sequences of two streams."""

    kind, streamed = "packed streams", True
    shuffle: ClassVar[dict[str, Any]] = {"shuffle": "splits", "split_size": 3}


class WindowedStreams(PackedStreams):
    """Mixes sequences of two streams, documents of which are shuffled together first."""

    kind = "packed streams in windows"
    shuffle: ClassVar[dict[str, Any]] = {"shuffle": "splits", "split_size": 10, "shuffle_buffer_size": 3}


def _token(place: Place) -> int:
    document, at = place
    return MOST_TOKENS * document + at


PACKED_SPLITS = PackedSplits(full_pack(seq_len=5, sep_id=SEP))
PACKED_ROWS = PackedRows(full_pack(seq_len=5, strategy="best_fit", eos_id=EOS, block_docs=8))
PACKED_MIXTURE = PackedMixture(full_pack(seq_len=5, strategy="windows"))
PACKED_STREAMS = PackedStreams(full_pack(seq_len=6, strategy="pad"))
PACKED_MODES: list[Packed] = [
    PACKED_SPLITS,
    PACKED_ROWS,
    *([PACKED_MIXTURE, PACKED_STREAMS] if is_here("mixtures") else []),
]
STRATEGIES: tuple[PackStrategy, ...] = ("concat", "pad", "best_fit", "windows")
EVERY_PACK: list[Packed] = [
    mode(
        full_pack(
            seq_len=7, strategy=strategy, labels="shifted", loss_mask="trained", aligned=["weight"], spans=["spans"]
        )
    )
    for mode in (PackedSplits, PackedItems, PackedMixture, PackedStreams)
    for strategy in STRATEGIES[: 3 if mode.streamed else 4]
]
WINDOWED = full_pack(seq_len=7, labels="shifted", loss_mask="trained")
EVERY_PACK += [PackedWindows(WINDOWED), WindowedStreams(WINDOWED)]
"""Each way to read documents with each strategy, and all that is cut as their tokens are."""
FLAT_MODES: list[Packed] = [
    mode(full_pack(seq_len=7, strategy=strategy, labels="shifted"))
    for mode in (FlatSplits, FlatItems)
    for strategy in STRATEGIES[: 3 if mode.streamed else 4]
]
"""Flat arrays of tokens with each strategy."""
