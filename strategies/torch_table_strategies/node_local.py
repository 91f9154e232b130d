"""A generator of the five-argument form: every node reads the same files in every epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from torch_table_loader import ConfigError
from torch_table_loader.extend import DataFileInfo, RowRange, Shard, Split

_PERSON = b"node_local v1"
_FILES_AT_ONCE = 1024

U64: TypeAlias = NDArray[np.uint64]


class Piece(NamedTuple):
    """A row group: rows [offset, offset + length) of a file."""

    file: DataFileInfo
    offset: int
    length: int
    number: int
    kept: bool


@dataclass(frozen=True, slots=True)
class NodeLocal:
    """Gives each file to one node for all epochs, so that a node's page cache or local copy serves it again.

    Nodes win files by highest random weight (Thaler and Ravishankar 1998) within a bound on their rows (Mirrokni,
    Thorup and Zadimoghaddam 2018): where nodes come or go, few files move. The ranks of a node share its files: their
    row groups, in an order of their own each epoch, laid in a line and cut into equal parts, a part for each worker.
    Ranks of one node thus read equally many rows, within one; those of different nodes do not.

    Args:
        ranks_per_node: ranks r with equal ``r // ranks_per_node`` are on one node, as torchrun numbers them.
        shuffle: whether row groups are permuted each epoch.
        seed: the key of the permutation.
        slack_percent: how many more rows than its share a node may hold before files go to their next choice.
    """

    ranks_per_node: int = 8
    shuffle: bool = True
    seed: int = 42
    slack_percent: int = 5

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if self.ranks_per_node < 1 or self.slack_percent < 0:
            raise ConfigError(
                f"NodeLocal needs ranks_per_node >= 1 and slack_percent >= 0, got "
                f"ranks_per_node={self.ranks_per_node} slack_percent={self.slack_percent}"
            )

    def generate(
        self, files: Sequence[DataFileInfo], num_workers: int, epoch: int, num_ranks: int = 1, rank: int = 0
    ) -> list[Shard]:
        """Return the rank its parts of its node's files."""
        node, local_rank = divmod(rank, self.ranks_per_node)
        ranks_here = min(self.ranks_per_node, num_ranks - node * self.ranks_per_node)
        sizes = tuple((file.path, _rows_to_read(file)) for file in files)
        homes = home_nodes(sizes, num_ranks, self.ranks_per_node, self.slack_percent)
        own = [file for file, home in zip(files, homes, strict=True) if home == node]
        line = self._line(own, epoch)
        ends = np.cumsum([0, *(piece.length for piece in line)], dtype=np.int64)
        total, parts = int(ends[-1]), ranks_here * num_workers
        shards = []
        for worker in range(num_workers):
            part = local_rank * num_workers + worker
            shards.append(Shard(worker, _cut(line, ends, part * total // parts, (part + 1) * total // parts)))
        if local_rank == 0:
            # Statistics rule these out and nobody will read them, but each row has to be somewhere.
            shards[0].splits += [_split(piece) for piece in _pieces(own) if not piece.kept]
        return shards

    def _line(self, files: Sequence[DataFileInfo], epoch: int) -> list[Piece]:
        """The row groups that will be read, in the epoch's order."""
        pieces = [piece for piece in _pieces(files) if piece.kept]
        if not self.shuffle:
            return pieces
        key = np.array(_hash(f"{self.seed} {epoch}"), dtype=np.uint64)
        names = {file.path: _hash(file.path) for file in files}
        hashes = np.array([names[piece.file.path] for piece in pieces], dtype=np.uint64)
        numbers = np.array([piece.number for piece in pieces], dtype=np.uint64)
        order = np.argsort(_mix(hashes ^ _mix(numbers ^ key)), kind="stable")
        return [pieces[at] for at in order.tolist()]


@lru_cache(maxsize=8)
def home_nodes(
    sizes: tuple[tuple[str, int], ...], num_ranks: int, ranks_per_node: int, slack_percent: int
) -> tuple[int, ...]:
    """Return each file's node.

    Args:
        sizes: ``(path, rows)`` of each file.
        num_ranks: of the job. Every rank bids for every file, so a node that has fewer ranks wins fewer.
        ranks_per_node: consecutive ranks that are on one node; the last node may have fewer.
        slack_percent: a node's rows stay below its share and so many percent, as far as whole files allow.

    >>> home_nodes((("a", 10), ("b", 10), ("c", 10), ("d", 10)), 2, 1, 0)
    (0, 0, 1, 1)
    """
    firsts = np.arange(0, num_ranks, ranks_per_node)
    ranks_of = np.diff(np.append(firsts, num_ranks)).tolist()
    total = sum(rows for _, rows in sizes)
    room = [-(-total * ranks * (100 + slack_percent) // (100 * num_ranks)) for ranks in ranks_of]
    wishes = _wishes([path for path, _ in sizes], num_ranks, firsts)
    homes = [0] * len(sizes)
    for at in sorted(range(len(sizes)), key=lambda at: (-sizes[at][1], sizes[at][0])):
        rows, wish = sizes[at][1], wishes[at].tolist()
        fitting = [node for node in wish if room[node] >= rows]
        homes[at] = fitting[0] if fitting else max(wish, key=room.__getitem__)
        room[homes[at]] -= rows
    return tuple(homes)


def _wishes(paths: Sequence[str], num_ranks: int, firsts: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[F, nodes]: the nodes in the order of their best rank's weight, the heaviest first."""
    bids = _mix(np.arange(num_ranks, dtype=np.uint64))
    names = np.array([_hash(path) for path in paths], dtype=np.uint64)
    wishes = np.empty((len(paths), len(firsts)), dtype=np.int64)
    for at in range(0, len(paths), _FILES_AT_ONCE):
        part = slice(at, at + _FILES_AT_ONCE)
        best = np.maximum.reduceat(_mix(names[part, None] ^ bids), firsts, axis=1)
        wishes[part] = np.argsort(~best, axis=1, kind="stable")
    return wishes


def _pieces(files: Sequence[DataFileInfo]) -> Iterator[Piece]:
    for file in files:
        start = 0
        for number, group in enumerate(file.row_groups):
            if group.num_rows:
                yield Piece(file, start, group.num_rows, number, group.kept)
            start += group.num_rows


def _split(piece: Piece, skip: int = 0, take: int | None = None) -> Split:
    return Split(piece.file, RowRange(piece.offset + skip, piece.length - skip if take is None else take))


def _cut(line: Sequence[Piece], ends: NDArray[np.int64], start: int, stop: int) -> list[Split]:
    """Return the rows [start, stop) of pieces laid end to end; piece i begins at ``ends[i]``."""
    splits = []
    at = int(np.searchsorted(ends, start, side="right")) - 1
    while start < stop:
        taken = min(stop, int(ends[at + 1])) - start
        splits.append(_split(line[at], start - int(ends[at]), taken))
        start += taken
        at += 1
    return splits


def _rows_to_read(file: DataFileInfo) -> int:
    return sum(group.num_rows for group in file.row_groups if group.kept)


def _hash(text: str) -> int:
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, person=_PERSON).digest()
    return int.from_bytes(digest, "little")


def _mix(values: U64) -> U64:
    """Hash 64-bit words: the finaliser of SplitMix64 (Steele, Lea and Flood 2014), the same on every machine."""
    mixed = values + np.array(0x9E3779B97F4A7C15, dtype=np.uint64)
    for shift, multiplier in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.array(shift, dtype=np.uint64))) * np.array(multiplier, dtype=np.uint64)
    return mixed ^ (mixed >> np.array(31, dtype=np.uint64))


__all__ = ["NodeLocal", "home_nodes"]
