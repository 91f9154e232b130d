"""Rows of a store that is far away: what row mode asks of the guest of far stores beside `ranges.Far`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from torch_table_loader.installed import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.contracts import PartStorage
    from torch_table_loader.ranges import OpenReader, PartsReader
    from torch_table_loader.records import DataFile
    from torch_table_loader.store.gather import Spans, StoredRows
    from torch_table_loader.store.manifest import Manifest
    from torch_table_loader.store.record_layout import Origin, RecordLayout, StoreSpec

    Ints: TypeAlias = NDArray[np.int64]

T = TypeVar("T")


class FilesOfRows(NamedTuple):
    """Files that are a store as they lie.

    `placed` is as in `ListValues`; `begins`, int64[chunks], has the byte of the first value of each chunk's file.
    """

    manifest: Manifest
    files: Mapping[str, DataFile]
    origin: Origin
    placed: Any
    begins: Ints


class FarRows(Protocol):
    """All rows of a store that is far away; only the rows of a window stay in memory. `StoredRows` has the same."""

    layout: RecordLayout
    num_rows: int

    @property
    def row_ids(self) -> Ints | None:
        """int64[rows], ascending; None if each row's id is its place."""
        ...

    @property
    def lengths(self) -> Any:
        """The lengths of the flat lists; None if there are none."""
        ...

    def ids(self, places: Ints) -> Ints:
        """Return the row id at each place."""
        ...

    def gather(self, places: Ints) -> list[pa.Array]:
        """Return the rows at some places, as one array a column."""
        ...

    def fetch(self, places: Ints, spans: Spans | None = None) -> tuple[StoredRows, Ints]:
        """Read the rows at some places into memory; return them, and the place of each among them."""
        ...

    def fetch_all(self) -> StoredRows:
        """Read all rows into memory, and compare their checksums."""
        ...

    def windows(
        self,
        blocks: Iterator[tuple[Ints, T]],
        most_blocks: int | None = None,
        reader: PartsReader | None = None,
        spans: Callable[[T], Spans] | None = None,
    ) -> Iterator[tuple[StoredRows, Ints, T]]:
        """Read the rows of blocks into memory, as `StoredRows.windows` does."""
        ...


class FarStores(Protocol):
    """What the door of far stores has for row stores."""

    def open_remote(
        self, storage: PartStorage, root: str, spec: StoreSpec, open_reader: OpenReader, window_bytes: int
    ) -> FarRows | None:
        """Open a store at a URL; None if there is none, or it is not complete yet.

        Raises:
            TableError: the store is damaged, or contains something else.
            StorageError: the storage refuses, or does not answer.
        """
        ...

    def upload_store(self, place: Path, storage: PartStorage, root: str, spec: StoreSpec) -> None:
        """Upload a complete store to a URL, unless it is there or another process is uploading it."""
        ...

    def rows_of_files(
        self, files: FilesOfRows, open_reader: OpenReader, window_bytes: int, lengths: Any = None, ids: Any = None
    ) -> FarRows:
        """Return what reads rows of files that lie far away as they are."""
        ...


def far_stores() -> FarStores:
    """Return the guest of far stores.

    Raises:
        MissingExtraError: this build does not have it.
    """
    return cast("FarStores", load("far"))
