"""Manifest lists and manifests (https://iceberg.apache.org/spec/#manifests), read with fastavro and in parallel."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import fastavro

from torch_table_loader.errors import TableError
from torch_table_loader.source.clients import STAT_THREADS

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.source.iceberg.metadata import Snapshot

DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
_DELETED = 2

_LOST = "; restore it, or read a snapshot that does not need it"


@dataclass(frozen=True, slots=True, eq=False)
class Manifest:
    """A manifest, as its list says.

    Args:
        path: where it is.
        spec_id: the partition spec of its files.
        deletes: whether it lists delete files.
        sequence_number: of the commit that added it.
        partitions: what its partition values lie between, one summary a field of the spec; empty if not said.
        first_row_id: from which rows of its files are counted (v3).
        listed: False where nothing but its path is known (v1).
    """

    path: str
    spec_id: int
    deletes: bool = False
    sequence_number: int = 0
    partitions: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    first_row_id: int | None = None
    listed: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A data or delete file that is part of a snapshot.

    Args:
        raw: the manifest's ``data_file``.
        spec_id: its partition spec.
        partition: its partition values, in the order of the spec's fields.
        sequence_number: the data sequence number.
        first_row_id: of its first row, if rows are counted.
    """

    raw: Mapping[str, Any]
    spec_id: int
    partition: tuple[Any, ...]
    sequence_number: int
    first_row_id: int | None

    @property
    def path(self) -> str:
        """Its path, as the metadata writes it."""
        return str(self.raw["file_path"])

    @property
    def content(self) -> int:
        """`DATA`, `POSITION_DELETES` or `EQUALITY_DELETES`."""
        return int(self.raw.get("content") or 0)

    def by_id(self, name: str) -> dict[int, Any]:
        """Give one of the statistics, such as "lower_bounds", by column id."""
        pairs = self.raw.get(name) or ()
        return {pair["key"]: pair["value"] for pair in pairs if pair is not None}


def list_manifests(storage: Storage, snapshot: Snapshot) -> list[Manifest]:
    """Read the manifest list of a snapshot.

    Args:
        storage: where it is.
        snapshot: which.

    Raises:
        TableError: it is gone, or does not parse.
    """
    if snapshot.id is None:
        return []
    if snapshot.manifest_list is None:
        return [Manifest(path, spec_id=-1, listed=False) for path in snapshot.manifests]
    rows, _ = _read_avro(storage, snapshot.manifest_list, "manifest list")
    return [
        Manifest(
            path=row["manifest_path"],
            spec_id=row.get("partition_spec_id") or 0,
            deletes=row.get("content") == 1,
            sequence_number=row.get("sequence_number") or 0,
            partitions=tuple(row.get("partitions") or ()),
            first_row_id=row.get("first_row_id"),
        )
        for row in rows
    ]


def read_manifests(
    storage: Storage,
    manifests: Sequence[Manifest],
    keep: Callable[[Entry], bool] | None = None,
    seen: list[int] | None = None,
) -> list[list[Entry]]:
    """Read manifests, several at once.

    Args:
        storage: where they are.
        manifests: which.
        keep: what is not kept is not held in memory; None keeps all.
        seen: where to note how many files each manifest lists; or None.

    Returns:
        For each manifest the files that are live in it.

    Raises:
        TableError: one is gone, or does not parse.
    """

    def read(number: int) -> list[Entry]:
        entries = list(_entries(storage, manifests[number]))
        if seen is not None:
            seen[number] = len(entries)
        return entries if keep is None else [entry for entry in entries if keep(entry)]

    if len(manifests) <= 1:
        return [read(number) for number in range(len(manifests))]
    with ThreadPoolExecutor(min(len(manifests), STAT_THREADS), "table-loader-manifests") as pool:
        return list(pool.map(read, range(len(manifests))))


def _entries(storage: Storage, manifest: Manifest) -> Iterator[Entry]:
    rows, metadata = _read_avro(storage, manifest.path, "manifest")
    spec_id = manifest.spec_id if manifest.listed else int(metadata.get("partition-spec-id") or 0)
    next_row_id = manifest.first_row_id
    for row in rows:
        if row["status"] == _DELETED:
            continue
        raw = row["data_file"]
        sequence_number = row.get("sequence_number")
        first_row_id = raw.get("first_row_id")
        if first_row_id is None and next_row_id is not None and not manifest.deletes:
            first_row_id = next_row_id
            next_row_id += raw["record_count"]
        yield Entry(
            raw,
            spec_id,
            tuple((raw.get("partition") or {}).values()),
            manifest.sequence_number if sequence_number is None else sequence_number,
            first_row_id,
        )


def _read_avro(storage: Storage, path: str, what: str) -> tuple[Iterable[dict[str, Any]], Mapping[str, Any]]:
    try:
        with storage.open(path) as source:
            data = source.read()
    except TableError as error:
        raise TableError(f"the {what} {path} is gone{_LOST}") from error
    try:
        reader = fastavro.reader(io.BytesIO(data))
        return list(cast("Iterable[dict[str, Any]]", reader)), reader.metadata
    except (ValueError, KeyError, TypeError, EOFError, IndexError) as error:
        raise TableError(f"the {what} {path} must be an Avro file, and does not parse ({error}){_LOST}") from error


__all__ = [
    "DATA",
    "EQUALITY_DELETES",
    "POSITION_DELETES",
    "Entry",
    "Manifest",
    "list_manifests",
    "read_manifests",
]
