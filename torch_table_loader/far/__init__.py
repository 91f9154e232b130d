"""Far stores: the door of this guest. `ranges.Far` and `store.far_rows.FarStores` say what the core asks of it.

Each function imports what it needs when it is called: a job that reads one kind of store loads no other's client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from torch_table_loader.far.store_options import (
    OPTION_NAMES,
    choose_client,
    login_may_change,
    s3_properties,
    store_options,
)
from torch_table_loader.source.address import FAMILIES, filesystem_class

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    import pyarrow as pa

    from torch_table_loader.contracts import PartStorage, RangeStorage, Storage
    from torch_table_loader.far.disk_cache import DiskCache
    from torch_table_loader.far.fetcher import Fetcher, PartsAhead
    from torch_table_loader.far.remote import RemoteRows
    from torch_table_loader.far.small_files import SmallFiles
    from torch_table_loader.ranges import Client, FetchSettings, OpenReader, PlannedRead
    from torch_table_loader.records import DataFile, FileNeeds
    from torch_table_loader.store.far_rows import FilesOfRows
    from torch_table_loader.store.record_layout import StoreSpec

__all__ = ["login_may_change", "s3_properties", "store_options"]


def option_names() -> frozenset[str]:
    """Return all names that an option of some store has."""
    return OPTION_NAMES


def client_name(protocol: str, options: Mapping[str, Any]) -> str:
    """Return who reads a store."""
    return choose_client(protocol, options)[0]


def check_client(protocol: str, options: Mapping[str, Any]) -> None:
    """Refuse options whose client is a package of fsspec that is not installed."""
    if client_name(protocol, options) in ("s3fs", "gcsfs", "adlfs"):
        filesystem_class(FAMILIES[protocol])


def proxy_options(protocol: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return proxies, as the Rust crate object_store takes them, for another client that is built on it."""
    from torch_table_loader.far import object_store

    found = {}
    if "proxy_url" in options:
        found["proxy_url"] = object_store.proxy_url(options["proxy_url"])
    family = FAMILIES[protocol]
    if family != "gs" and "endpoint" in options:  # such a client knows the hosts of the clouds themselves
        others = object_store.hosts_of_azure(options) if family == "abfs" else ()
        found |= cast("dict[str, str]", object_store.staying_at({}, options, options["endpoint"], others))
    return found


def s3_login(options: Mapping[str, Any], shown: str) -> dict[str, str] | None:
    """Return the credentials that S3 takes now; None for anonymous access."""
    from torch_table_loader.far.aws_login import login_now

    return login_now(options, shown)


def connect(protocol: str, options: Mapping[str, Any]) -> Client:
    """Open a client in this process."""
    chosen, theirs = choose_client(protocol, options)
    if chosen != "obstore":
        from torch_table_loader.far.fsspec_client import FsspecClient

        return FsspecClient(FAMILIES.get(protocol, protocol), theirs)
    # Imported here, since clients of object stores take time to import.
    if FAMILIES[protocol] == "s3":
        from torch_table_loader.far.s3_client import S3Client

        return S3Client(theirs)
    from torch_table_loader.far.object_store import azure_client, google_client

    if FAMILIES[protocol] == "gs":
        return google_client(theirs)
    return azure_client(theirs)


def open_cache(folder: str, most_bytes: int) -> DiskCache:
    """Open a cache of ranges on a local disk."""
    from torch_table_loader.far.disk_cache import DiskCache

    return DiskCache(folder, most_bytes)


def cost_of(needs: FileNeeds) -> tuple[int, int]:
    """Return how many requests fetch what is needed of a file, and their bytes."""
    from torch_table_loader.far.requests import plan_file

    pieces = plan_file(needs.groups, needs.file.version.num_bytes)
    return sum(len(piece.requests) for piece in pieces), sum(piece.num_bytes for piece in pieces)


def begin_fetching(storage: RangeStorage, plan: Iterator[PlannedRead], settings: FetchSettings) -> Fetcher:
    """Begin to fetch what reads need."""
    from torch_table_loader.far.fetcher import Fetcher
    from torch_table_loader.far.small_files import SmallFiles

    if isinstance(storage, SmallFiles):
        settings = storage.handed_to(settings)
    return Fetcher(storage, plan, settings)


def parts_ahead(fetcher: Fetcher, storage: RangeStorage) -> PartsAhead:
    """Return what requests parts of a store's files of an epoch's fetcher."""
    from torch_table_loader.far.fetcher import PartsAhead

    return PartsAhead(fetcher, storage)


def reading_parts(storage: RangeStorage, settings: FetchSettings) -> AbstractContextManager[PartsAhead]:
    """Open a reader of parts of a store's files."""
    from torch_table_loader.far import fetcher

    return fetcher.reading_parts(storage, settings)


def with_small_files(storage: RangeStorage, folder: str, most_bytes: int) -> SmallFiles:
    """Return a storage whose small files come whole with their ends."""
    from torch_table_loader.far.small_files import SmallFiles

    return SmallFiles(storage, folder, most_bytes)


def open_at_end(storage: RangeStorage, file: DataFile, least: int) -> AbstractContextManager[pa.NativeFile]:
    """Open a file whose end is read first."""
    from torch_table_loader.far import far_files

    return far_files.open_at_end(storage, file, least)


def open_at_start(storage: RangeStorage, file: DataFile) -> pa.NativeFile:
    """Open a file that is read from its start."""
    from torch_table_loader.far import far_files

    return far_files.open_at_start(storage, file)


def fetched(storage: RangeStorage, file: DataFile) -> Storage:
    """Return a storage for reading a whole file."""
    from torch_table_loader.far import far_files

    return far_files.fetched(storage, file)


def open_remote(
    storage: PartStorage, root: str, spec: StoreSpec, open_reader: OpenReader, window_bytes: int
) -> RemoteRows | None:
    """Open a row store at a URL."""
    from torch_table_loader.far import remote

    return remote.open_remote(storage, root, spec, open_reader, window_bytes)


def upload_store(place: Path, storage: PartStorage, root: str, spec: StoreSpec) -> None:
    """Upload a complete row store to a URL."""
    from torch_table_loader.far import remote

    remote.upload_store(place, storage, root, spec)


def rows_of_files(
    files: FilesOfRows, open_reader: OpenReader, window_bytes: int, lengths: Any = None, ids: Any = None
) -> RemoteRows:
    """Return what reads rows of files that lie far away as they are."""
    from torch_table_loader.far.remote import RemoteFiles, RemoteRows

    return RemoteRows(RemoteFiles(*files), open_reader, window_bytes, lengths, ids)
