"""What the log of a Delta Lake table says of one version; the only module that talks to deltalake.

deltalake replays the checkpoint and the commits that a version is made of. It takes a commit without actions as one,
and decodes deletion vectors into a value for each position. So commits are looked at here, and what vectors there are
is read here.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from torch_table_loader.delta.delta_options import DeltaAddress
from torch_table_loader.delta.log_decimals import Padding, is_uneven, scales_of, schema_in
from torch_table_loader.delta.log_nesting import check_part
from torch_table_loader.delta.vectors import Vector, vector_of
from torch_table_loader.errors import (
    ConfigError,
    MissingPathError,
    StorageError,
    TableError,
    TableLoaderError,
)
from torch_table_loader.table_formats import (
    FileVersion,
    TableRequest,
    TableStorage,
    interruptibly,
    load_json,
    shown_url,
)

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
        """Return what the log says of a version: a given one, the newest one at a time, or the newest."""
        try:
            return self._read(self.at.root, version, timestamp)
        except (ConfigError, TableError) as error:
            if not is_uneven(error):
                raise
        with TemporaryDirectory(prefix="table-loader-log-") as folder:
            self.files.copy_padded(Path(folder), version, every=timestamp is not None)
            return self._read(folder, version, timestamp)

    def _read(self, root: str, version: int | None, timestamp: dt.datetime | None) -> Log:
        table = self._opened(root, version)
        if timestamp is not None:
            newest = table

            def as_of() -> None:
                wanted = self._version_at(newest, timestamp)
                # Of files' times only deltalake knows which version is meant: then all of the log is looked at.
                self.files.check_nesting(wanted if isinstance(wanted, int) else None, every=True)
                newest.load_as_version(wanted)

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
        begun = "no commit has one"
        if timed:
            first = min(entry["inCommitTimestamp"] for entry in timed)
            begun = f"the first is from {TableRequest.shown_time(first)}"
        raise ConfigError(
            f"{self.at.root}: no commit of the table is known to be from {timestamp.isoformat()} or before; "
            f"{begun}: pass version="
        )

    def _opened(self, root: str, version: int | None) -> DeltaTable:
        options = what = None
        if root == self.at.root:
            options = self.at.for_deltalake(self.retry_seconds)
        if version is not None:
            what = f"version {version}"
        try:
            found = self._asking(lambda: self.files.check_nesting(version), what)
        except StorageError as error:
            raise type(error)(_failed(self.at.root, error)) from error
        return self._asking(lambda: DeltaTable(root, version=found, storage_options=options), what)

    def _log(self, table: DeltaTable) -> Log:
        protocol, metadata = table.protocol(), table.metadata()
        features = protocol.reader_features or ()
        check_protocol(protocol.min_reader_version, features, self.at.root)
        mode = mapping_mode(protocol.min_reader_version, features, metadata.configuration, self.at.root)
        self.files.check(table.version())
        vectors: Mapping[str, Vector] = {}
        if _VECTORS in features:
            vectors = self.files.vectors(table.version())
        adds = pa.table(table.get_add_actions())
        if not self.statistics:
            adds = without_statistics(adds)
        return Log(
            table.version(),
            str(metadata.id),
            json.loads(table.schema().to_json())["fields"],
            mode,
            tuple(metadata.partition_columns),
            in_order(adds),
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
            raise StorageError(_failed(root, self.at.scrubbed(error))) from None
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


def _failed(root: str, reason: Any) -> str:
    return (
        f"{root}: the request to the store failed: {reason}; check the path, the network, and endpoint and credentials "
        "in storage_options"
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
    """Refuse a table that needs a newer reader, or reader features that are not known here."""
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

    >>> mapping_mode(2, (), {"delta.columnMapping.mode": "name"}, "t"), mapping_mode(1, (), {}, "t")
    ('name', 'none')
    """
    mode = settings.get(_MODE, "none")
    if mode not in _MODES:
        raise TableError(f"{_MODE} of {where} must be one of {', '.join(_MODES)}, got {mode!r}; fix the table")
    if reader == 2 or "columnMapping" in features:
        return mode
    return "none"


_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|(\.[0-9A-Za-z-]{36}))?\.(?:parquet|json)")
_PART_OF_LOG = re.compile(r"(\d{20})\.(?:json$|checkpoint\..*(?:parquet|json)$|\d{20}\.compacted\.json$)")
_HEAD_BYTES = 64 * 1024
"""Of a commit: a longer one is looked at so far. It holds many actions, and deltalake parses all of it."""

_WHOLE_BYTES = 8 << 20
"""A file of the log that is not larger is read with one request."""

_REQUESTS = 16


def commit_path(root: str, version: int) -> str:
    """Return where the commit of a version is."""
    return f"{root.rstrip('/')}/_delta_log/{version:020}.json"


def actions_of(content: bytes, path: str) -> list[dict[str, Any]]:
    """Return the actions of a commit."""
    try:
        found = [load_json(line, shown_url(path)) for line in content.splitlines() if line.strip()]
        actions = [each for each in found if any(isinstance(value, dict) for value in each.values())]
    except (ValueError, AttributeError) as error:
        raise torn_commit(path, f"it does not parse ({error})") from error
    if not actions:
        raise torn_commit(path, f"its {len(content)} bytes hold none")
    return actions


def torn_commit(path: str, got: str) -> TableError:
    """Return the error for a commit that is not what its writer meant to write."""
    return TableError(
        f"{shown_url(path)} must hold the actions of a commit, one JSON object per line, but {got}; repair the table's "
        "log: restore the file from a copy, or, where nothing was committed after it, delete it and write again"
    )


@dataclass(slots=True, eq=False)
class LogFiles:
    """The log of a table; what was read of a commit is kept, since versions share commits."""

    storage: TableStorage
    root: str
    _sizes: dict[str, int] = field(default_factory=dict)
    _times: dict[str, int | None] = field(default_factory=dict)
    _checked: set[int] = field(default_factory=set)
    _flat: set[str] = field(default_factory=set)
    _read: dict[str, dict[str, Vector | None]] = field(default_factory=dict)

    def check(self, version: int) -> None:
        """Check that each commit that a version is made of holds an action."""
        _, commits = self._made_of(version)
        unknown = [each for each in commits if each not in self._checked]
        self.storage.each(self._check, unknown, near=1, far=_REQUESTS)
        self._checked.update(unknown)

    def check_nesting(self, version: int | None, *, every: bool = False) -> int | None:
        """Refuse JSON that nests too deep in what deltalake reads of a version (None: the newest), or in `every` file.

        Returns:
            The version; None if the log has none.
        """
        try:
            self._list()
        except FileNotFoundError:
            return version
        version, names = self._parts(version, every=every)
        self.storage.each(
            self._check_nesting, [name for name in names if name not in self._flat], near=1, far=_REQUESTS
        )
        self._flat.update(names)
        return version

    def _parts(self, version: int | None, *, every: bool) -> tuple[int | None, list[str]]:
        """Return a version (None: the newest), and the files that deltalake reads of it, or `every` file."""
        known = {name: int(match[1]) for name in self._sizes if (match := _PART_OF_LOG.match(name))}
        if not known:
            return version, []
        if version is None:
            version = max(known.values())
        checkpoint, commits = self._newest_checkpoint(version)
        names = [
            name
            for name, number in known.items()
            if name in checkpoint or every or ("checkpoint" not in name and number in commits)
        ]
        return version, names

    def copy_padded(self, folder: Path, version: int | None, *, every: bool) -> None:
        """Write the log of a version, or all of it but compacted commits, with all digits of decimals."""
        names = [name for name in self._parts(version, every=every)[1] if not name.endswith(".compacted.json")]
        padding = Padding(self._scales(sorted(names, reverse=True)))
        (folder / "_delta_log" / "_sidecars").mkdir(parents=True)
        for name in names:
            target = folder / "_delta_log" / name
            self._copy(self._path(name), self._sizes[name], target, padding)
            if (time := self._times[name]) is not None:  # tells deltalake which version is meant by a time
                os.utime(target, ns=(time, time))

    def _copy(self, path: str, size: int, target: Path, padding: Padding) -> None:
        with self._opened(path, size) as source:
            for each in check_part(source, path):
                there, num_bytes = self._sidecar(each)
                copy = target.parent / "_sidecars" / there.rpartition("/")[2]
                self._copy(there, num_bytes, copy, padding)
                padding.sidecars[each["path"]] = copy.stat().st_size
            source.seek(0)
            if path.endswith(".json"):
                target.write_bytes(padding.of_json(source.read()))
            else:
                padding.of_parquet(source, target)

    def _scales(self, names: Iterable[str]) -> dict[str, int]:
        """Return the digits of decimals as the first of some files of the log says that describes columns."""
        for name in names:
            with self._opened(self._path(name), self._sizes[name]) as source:
                schema = schema_in(source, is_json=name.endswith(".json"))
            if schema is not None:
                return scales_of(schema)
        return {}

    def _check_nesting(self, name: str) -> None:
        self._check_nesting_of(self._path(name), self._sizes.get(name, 0))

    def _check_nesting_of(self, path: str, size: int) -> None:
        try:
            with self._opened(path, size) as source:
                sidecars = check_part(source, path)
        except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
            raise TableError(
                f"{shown_url(path)} must be a part of the table's log, and does not parse ({error}); restore the file "
                "from a copy, or read another version"
            ) from error
        for each in sidecars:
            self._check_nesting_of(*self._sidecar(each))

    def vectors(self, version: int) -> dict[str, Vector]:
        """Return the deletion vectors of the files of a version, by the files' paths as the log writes them.

        Files that left the table may be among them.
        """
        checkpoint, commits = self._made_of(version)
        names = [*checkpoint, *(_commit_name(each) for each in commits)]
        self.storage.each(self._keep, [name for name in names if name not in self._read], near=1, far=_REQUESTS)
        found: dict[str, Vector | None] = {}
        for name in names:  # the newest add of a path says what is deleted from it
            found |= self._read[name]
        return {path: vector for path, vector in found.items() if vector is not None}

    def _made_of(self, version: int) -> tuple[tuple[str, ...], range]:
        """Return the files of the newest checkpoint up to a version, and the commits after it."""
        if _commit_name(version) not in self._sizes:
            self._list()
        checkpoint, commits = self._newest_checkpoint(version)
        if missing := [each for each in commits if _commit_name(each) not in self._sizes]:
            raise TableError(
                f"{shown_url(commit_path(self.root, missing[0]))} must be there, since version {version} of the table "
                "is made of it, and is not; restore it, or read another version"
            )
        return checkpoint, commits

    def _newest_checkpoint(self, version: int) -> tuple[tuple[str, ...], range]:
        checkpoints: dict[tuple[int, str], list[str]] = {}
        for name in self._sizes:
            if (match := _CHECKPOINT.fullmatch(name)) and int(match[1]) <= version:
                checkpoints.setdefault((int(match[1]), match[3] or match[4] or ""), []).append(name)
        whole = [key for key, names in checkpoints.items() if not key[1].isdecimal() or len(names) == int(key[1])]
        if not whole:
            return (), range(version + 1)
        newest = max(whole)
        return tuple(sorted(checkpoints[newest])), range(newest[0] + 1, version + 1)

    def _list(self) -> None:
        listed = {
            found.path.rpartition("/")[2]: found.version
            for found in self.storage.walk(f"{self.root.rstrip('/')}/_delta_log")
            if found.version is not None
        }
        self._sizes = {name: version.num_bytes for name, version in listed.items()}
        self._times = {name: version.mtime_ns for name, version in listed.items()}

    def _path(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/_delta_log/{name}"

    def _check(self, version: int) -> None:
        path, size = commit_path(self.root, version), self._sizes[_commit_name(version)]
        stop = min(size, _HEAD_BYTES)
        if not stop:
            head = b""
        elif not self.storage.is_local:
            head = bytes(self.storage.read_range(path, 0, stop, FileVersion(size, immutable=True)))
        else:
            with self.storage.open(path) as source:
                head = source.read(stop)
        if size <= _HEAD_BYTES:
            actions_of(head, path)
        elif not head.strip():
            raise torn_commit(path, f"its first {stop} bytes are blank")

    def _keep(self, name: str) -> None:
        path = self._path(name)
        try:
            self._read[name] = dict(self._adds(path, self._sizes.get(name, 0)))
        except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
            if isinstance(error, TableLoaderError):
                raise
            raise TableError(
                f"{shown_url(path)} must say what is deleted from the table's files as the protocol says, but does "
                f"not ({error}); fix the table's log, or read another version"
            ) from error

    def _opened(self, path: str, size: int) -> BinaryIO:
        if size <= _WHOLE_BYTES:
            return io.BytesIO(self.storage.read_whole(path, size))
        return io.BufferedReader(self.storage.open(path), 1 << 20)

    def _adds(self, path: str, size: int) -> Iterator[tuple[str, Vector | None]]:
        """Yield the files that a file of the log adds, with what is deleted from them."""
        with self._opened(path, size) as source:
            for action in _actions(source, path):
                add, sidecar = action.get("add"), action.get("sidecar")
                if add is not None:
                    vector = add.get("deletionVector")
                    if vector is not None:
                        vector = vector_of(vector, self.root)
                    yield add["path"], vector
                if sidecar is not None:
                    yield from self._adds(*self._sidecar(sidecar))

    def _sidecar(self, entry: Mapping[str, Any]) -> tuple[str, int]:
        path = entry["path"]
        if "/" not in path:
            path = self._path(f"_sidecars/{path}")
        return path, entry.get("sizeInBytes") or 0


def _commit_name(version: int) -> str:
    return f"{version:020}.json"


def _actions(source: BinaryIO, path: str) -> Iterator[Mapping[str, Any]]:
    if path.endswith(".parquet"):
        return _parquet_actions(source)
    return _json_actions(source, path)


def _json_actions(source: BinaryIO, path: str) -> Iterator[Mapping[str, Any]]:
    for line in source:
        if b'"add"' in line or b'"sidecar"' in line:
            yield from actions_of(line, path)


def _parquet_actions(source: BinaryIO) -> Iterator[Mapping[str, Any]]:
    """Yield the adds with a deletion vector and the sidecars of a checkpoint; before it there is nothing."""
    file = pq.ParquetFile(source)
    schema = file.schema_arrow
    names = []
    if "add" in schema.names and schema.field("add").type.get_field_index("deletionVector") >= 0:
        names = ["add.path", "add.deletionVector"]
    if "sidecar" in schema.names:
        names.append("sidecar")
    if not names:
        return
    for batch in file.iter_batches(columns=names):
        wanted = []
        if "add" in batch.schema.names:
            wanted.append(pc.is_valid(pc.struct_field(batch["add"], "deletionVector")))
        if "sidecar" in batch.schema.names:
            wanted.append(batch["sidecar"].is_valid())
        yield from batch.filter(reduce(pc.or_, wanted)).to_pylist()
