"""What the log of a Delta Lake table says of one version; the only module that talks to deltalake."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from torch_table_loader.cancellation import interruptibly
from torch_table_loader.errors import (
    ConfigError,
    MissingPathError,
    StorageError,
    TableError,
    TableLoaderError,
)
from torch_table_loader.source.delta.delta_options import DeltaAddress
from torch_table_loader.source.snapshot_files import shown_time

if TYPE_CHECKING:
    from torch_table_loader.source.delta.log_files import LogFiles, Vector


T = TypeVar("T")

_STATISTICS = ("null_count", "min", "max")
_VECTORS = "deletionVectors"
_COMMIT_TIMES = "delta.enableInCommitTimestamps"


@dataclass(frozen=True, slots=True, eq=False)
class Log:
    """A table at one version.

    Args:
        fields: the schema's, as its JSON has them.
        mode: how columns are found: see `mapping_mode`.
        adds: the live files, as `DeltaTable.get_add_actions` gives them, ordered by time, then path.
        vectors: what is deleted from files, by their paths as the log writes them.
        tells_time: whether commits hold their times, so that those of the log's files mean nothing.
    """

    version: int
    table_id: str
    fields: Sequence[Mapping[str, Any]]
    mode: str
    partition_columns: tuple[str, ...]
    adds: pa.Table
    vectors: Mapping[str, Vector]
    tells_time: bool


@dataclass(frozen=True, slots=True, eq=False)
class LogReader:
    """Reads a table's log.

    Args:
        retry_seconds: how long to try a request that the store does not serve.
        statistics: whether the files' statistics are wanted, beside their rows.
    """

    at: DeltaAddress
    retry_seconds: float
    files: LogFiles
    statistics: bool = True

    def read(self, version: int | None = None, timestamp: dt.datetime | None = None) -> Log:
        """Return what the log says of a version: a given one, the newest one at a time, or the newest.

        Raises:
            ConfigError: there is no table here, or no such version.
            TableError: the log is torn, or the table takes more than this library reads.
            StorageError: the store failed.
        """
        table = self._opened(version)
        if timestamp is not None:
            newest = table

            def as_of() -> None:
                newest.load_as_version(self._version_at(newest, timestamp))

            self._asking(as_of, f"the version of {timestamp.isoformat()}")
        return self._asking(lambda: self._log(table), None)

    def _version_at(self, table: DeltaTable, timestamp: dt.datetime) -> int | dt.datetime:
        """Return what to ask deltalake for: it compares a time with those of files, whatever commits say."""
        if not _tells_time(table):
            return timestamp
        timed = [entry for entry in table.history() if "inCommitTimestamp" in entry]
        wanted = timestamp.timestamp() * 1000
        passed = [entry["version"] for entry in timed if entry["inCommitTimestamp"] <= wanted]
        if passed:
            return int(max(passed))
        first = min((entry["inCommitTimestamp"] for entry in timed), default=None)
        begun = "no commit has one" if first is None else f"the first is from {shown_time(first)}"
        raise ConfigError(
            f"{self.at.root}: no commit of the table is known to be from {timestamp.isoformat()} or before; "
            f"{begun}: pass version="
        )

    def _opened(self, version: int | None) -> DeltaTable:
        options = self.at.for_deltalake(self.retry_seconds)
        what = None if version is None else f"version {version}"
        return self._asking(lambda: DeltaTable(self.at.root, version=version, storage_options=options), what)

    def _log(self, table: DeltaTable) -> Log:
        protocol, metadata = table.protocol(), table.metadata()
        features = protocol.reader_features or ()
        check_protocol(protocol.min_reader_version, features, self.at.root)
        mode = mapping_mode(protocol.min_reader_version, features, metadata.configuration, self.at.root)
        self.files.check(table.version())
        vectors = self.files.vectors(table.version()) if _VECTORS in features else {}
        adds = pa.table(table.get_add_actions())
        adds = in_order(adds if self.statistics else without_statistics(adds))
        return Log(
            table.version(),
            str(metadata.id),
            json.loads(table.schema().to_json())["fields"],
            mode,
            tuple(metadata.partition_columns),
            adds,
            vectors,
            _tells_time(table),
        )

    def _asking(self, ask: Callable[[], T], what: str | None) -> T:
        """Return what deltalake answers, or raise the error of this library that fits.

        `what` is what the caller chose; None for the table as it is.
        """
        root = self.at.root
        try:
            return interruptibly(ask)
        except TableNotFoundError as error:
            if what is not None:
                raise self._no_version(what, error) from None
            raise MissingPathError(
                f"{root} must be the folder of a Delta Lake table, but has no log ({self.at.scrubbed(error)}); "
                "name the folder that holds _delta_log",
                root,
            ) from None
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"{root}: the request to the store failed: {self.at.scrubbed(error)}; check the path, the "
                "network, and endpoint and credentials in storage_options"
            ) from None
        except BaseException as error:
            # Of deltalake's own code a panic is an error of the log; its class is no Exception, and has no public name.
            panicked = type(error).__module__ == "pyo3_runtime"
            theirs = panicked or isinstance(error, DeltaError | OverflowError | ValueError)
            if not theirs or isinstance(error, TableLoaderError):
                raise
            if what is not None:
                raise self._no_version(what, error) from None
            raise TableError(
                f"{root} cannot be read as a Delta Lake table: {self.at.scrubbed(error)}; repair the table's log, drop "
                "what is not supported from the table, or update deltalake"
            ) from None

    def _no_version(self, what: str, error: BaseException) -> ConfigError:
        return ConfigError(
            f"{self.at.root}: {what} cannot be read ({self.at.scrubbed(error)}); it is not a version of the table, "
            "or its log was cleaned up since: DeltaTable(...).history() lists those that exist"
        )


def in_order(adds: pa.Table) -> pa.Table:
    """Return files by time, then path."""
    return adds.sort_by([("modification_time", "ascending"), ("path", "ascending")])


def without_statistics(adds: pa.Table) -> pa.Table:
    """Return files without their statistics, which take most of the time of sorting."""
    return adds.select([name for name in adds.schema.names if name not in _STATISTICS])


def _tells_time(table: DeltaTable) -> bool:
    return str(table.metadata().configuration.get(_COMMIT_TIMES, "false")).lower() == "true"


_NEWEST_READER = 3
_FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    }
)
"""Those of variants say that there may be columns of a type that is refused where it is met; deltalake names them in
tables that have none."""

_MODE = "delta.columnMapping.mode"
_MODES = ("none", "name", "id")


def check_protocol(reader: int, features: Sequence[str], where: str) -> None:
    """Refuse a table that needs a newer reader, or reader features that are not known here.

    Raises:
        TableError: names the version or the features.
    """
    if reader > _NEWEST_READER:
        raise TableError(
            f"{where} needs reader version {reader} of the Delta Lake protocol, and {_NEWEST_READER} is the newest "
            "that this library reads; update it, or write the table's rows into another table"
        )
    if unknown := sorted(set(features) - _FEATURES):
        raise TableError(
            f"{where} needs the reader feature{'s' if len(unknown) > 1 else ''} {', '.join(unknown)} of Delta Lake, "
            f"which this library does not read (it reads {', '.join(sorted(_FEATURES))}); drop the feature from the "
            "table (ALTER TABLE … DROP FEATURE), or write its rows into another table"
        )


def mapping_mode(reader: int, features: Sequence[str], settings: Mapping[str, str], where: str) -> str:
    """Return how columns are found: "none" and "name" by names, "id" by the ids in Parquet files.

    Raises:
        TableError: a mode that the protocol does not have.

    >>> mapping_mode(2, (), {"delta.columnMapping.mode": "name"}, "t"), mapping_mode(1, (), {}, "t")
    ('name', 'none')
    """
    mode = settings.get(_MODE, "none")
    if mode not in _MODES:
        raise TableError(f"{_MODE} of {where} must be one of {', '.join(_MODES)}, got {mode!r}; fix the table")
    return mode if reader == 2 or "columnMapping" in features else "none"
