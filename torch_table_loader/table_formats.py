"""The contract of table formats: a request becomes a snapshot, which is files with their deletes, facts and columns.

A table format, ours or somebody else's, imports this module and the errors, and nothing else of the package. It gives

* a **request** (`TableRequest`): the caller's table, and which part of it to read. Its `open` returns a snapshot
  (`SnapshotFiles`), which `made` makes; its `commits` say what happened between two snapshots.
* **files** (`DataFile`, `ListedFiles`), each with deletes (`DeleteFile`: positions, equality keys, vectors), constants,
  and columns by field id or name (`FileColumns`, `TableColumns`, `NamedIds`), with defaults and the base of row ids.
  `Types` and `arrow_schema` make columns of a schema's fields.
* **facts** (`Facts`), by which `predicate_of` a filter leaves files, or whole lists of them, out.
* a **history** (`History`): the files that commits touched; the core makes what was appended, or a changelog, of it.
* a **dataset** (`SnapshotDataset`): its arguments. The core runs the plan cache, the comparison of ranks, and the rest.

It is given a storage (`TableStorage`), which opens only what the caller allowed, the address and login of a store
(`StoreAddress`), and a way to ask another service, such as a catalog (`Service`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch_table_loader.cancellation import cancellable, interruptibly
from torch_table_loader.dataset import TableDataset
from torch_table_loader.errors import ConfigError
from torch_table_loader.keywords import LoaderKeywords, make_options
from torch_table_loader.messages import did_you_mean, the_nearest, warn_caller
from torch_table_loader.nesting import check_nesting, load_json
from torch_table_loader.opening import Opening, last_snapshot, open_snapshot
from torch_table_loader.option_values import of_the_store
from torch_table_loader.planning.listed_files import ListedFiles
from torch_table_loader.predicates.facts import Facts, predicate_of
from torch_table_loader.ranges import far
from torch_table_loader.records import Column, DataFile, DeleteFile, FileColumns, FileVersion, NamedIds, TableColumns
from torch_table_loader.scrubbing import shown_url
from torch_table_loader.sizes import sizes
from torch_table_loader.source.address import AZURE_PROTOCOLS, parse_address
from torch_table_loader.source.services import Service
from torch_table_loader.source.snapshot_files import (
    Commit,
    History,
    SnapshotFiles,
    TableRequest,
    Types,
    UnreadableTypeError,
    arrow_schema,
)
from torch_table_loader.source.table_storage import TableStorage

if TYPE_CHECKING:
    import os

    from torch_table_loader.engine.plan_check import PlanCheck
    from torch_table_loader.options import LoaderOptions

__all__ = [
    "Column",
    "Commit",
    "DataFile",
    "DeleteFile",
    "Facts",
    "FileColumns",
    "FileVersion",
    "History",
    "ListedFiles",
    "LoaderKeywords",
    "NamedIds",
    "Service",
    "SnapshotDataset",
    "SnapshotFiles",
    "StoreAddress",
    "TableColumns",
    "TableRequest",
    "TableStorage",
    "Types",
    "UnreadableTypeError",
    "arrow_schema",
    "cancellable",
    "check_nesting",
    "did_you_mean",
    "interruptibly",
    "load_json",
    "predicate_of",
    "shown_url",
    "sizes",
    "the_nearest",
    "warn_caller",
]


class SnapshotDataset(TableDataset):
    """The base of the datasets of one table format; a subclass has the format's arguments."""

    title: ClassVar[str]
    """What kind of table it is, for messages: "a Delta Lake table"."""

    pin: ClassVar[str]
    """The argument that chooses a snapshot."""

    def _understood(
        self, options: LoaderKeywords, interval: tuple[Any, Any, Any], *, changelog: Any, footers: str
    ) -> tuple[LoaderOptions, int | None]:
        """Return the caller's options, checked, and the snapshot that is named as the last to be read, or None.

        Args:
            interval: the snapshot after which rows are read, the last one beside it, and the one of which all is read;
                each may be None.
        """
        asked = make_options(options, type(self))
        last = last_snapshot(asked, self.title, self.pin, interval, changelog=changelog, footers=footers)
        return asked, last

    def _open(
        self,
        asked: LoaderOptions,
        options: LoaderKeywords,
        request: Callable[..., TableRequest],
        chosen: Mapping[str, Any],
        *,
        footers: str,
        split_deletes: bool,
    ) -> None:
        """Find the table, plan its files, and plan the first epoch.

        Args:
            request: makes the request, given the keywords `columns`, `filters`, `plan_cache` and `storage_options`.
            chosen: the arguments that choose a snapshot.
        """

        def find(asked: LoaderOptions, plan_check: PlanCheck) -> SnapshotFiles:
            table = request(
                columns=asked.column_names,
                filters=asked.filters,
                plan_cache=asked.plan_cache,
                storage_options=asked.storage_options,
            )
            return table.open(chosen, plan_check.common_value)

        open_source = partial(open_snapshot, split_deletes=split_deletes, lazy=footers == "lazy")
        pinned = any(value is not None for value in chosen.values())
        self._plan(asked, find, Opening(options, open_source, pinned))


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A table's folder, and the options of its store, for a format whose own library asks the store as well.

    Args:
        root: as paths of the table begin: a local path, or a URL without login.
        options: under this library's names; may hold secrets; never shown.
        protocol: "file", "s3", "gs" or "az".
    """

    root: str
    options: Mapping[str, Any] = field(repr=False)
    protocol: str = "file"

    @classmethod
    def of(cls, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None, title: str) -> Self:
        """Parse a path or URL. Connects to nothing.

        Raises:
            ConfigError: it is on another kind of store, or the options contradict each other.
            MissingExtraError: the store's packages are not installed, or this build has no far stores.
        """
        address = parse_address(url)
        if address.protocol == "file":
            return cls(address.path, {})
        protocol = "az" if address.protocol in AZURE_PROTOCOLS else address.protocol
        if protocol not in ("s3", "gs", "az"):
            raise ConfigError(
                f"{title} must be a local folder, or on s3://, gs:// or Azure (abfss://), got {address.shown}"
            )
        options = far().store_options(protocol, address.login, of_the_store(storage_options))
        return cls(f"{protocol}://{address.path}", options, protocol)

    def scrubbed(self, error: BaseException) -> str:
        """Return the first line of what another library raised, without secrets."""
        return Service.scrubbed(str(error).strip().split("\n", 1)[0], self.options)

    def proxy_options(self) -> dict[str, str]:
        """Return proxies as the Rust crate object_store takes them; see `ranges.Far`."""
        return far().proxy_options(self.protocol, self.options)

    def s3_login(self) -> dict[str, str] | None:
        """Return the credentials that S3 takes now; None for anonymous access. Raises AccessRefusedError."""
        return far().s3_login(self.options, self.root)
