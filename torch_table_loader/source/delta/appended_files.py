"""What the commits between two versions of a Delta Lake table appended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from torch_table_loader.arrow import compute as pc
from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.source.delta.log_files import actions_of, commit_path, torn_commit
from torch_table_loader.source.table_storage import read_whole

if TYPE_CHECKING:
    from torch_table_loader.source.delta.log import Log, LogReader
    from torch_table_loader.source.table_storage import TableStorage


@dataclass(frozen=True, slots=True)
class Commit:
    """What made a version.

    Args:
        operation: as the commit says; "unknown" where it says none.
        appended: the paths of files whose rows are new.
        removes: whether files left the table, or got a deletion vector.
        removed: the paths of those of them with which rows left the table, or were changed.
    """

    version: int
    operation: str
    appended: frozenset[str]
    removes: bool
    removed: frozenset[str]


def read_commits(storage: TableStorage, root: str, start: int, end: int) -> list[Commit]:
    """Read the commits after one version, up to and with another, oldest first.

    Args:
        start: the older version, whose own commit is left out.

    Raises:
        ConfigError: the older version is none of those before the newer one, or a commit was cleaned up.
        TableError: a commit is torn.
    """
    if not 0 <= start <= end:
        raise ConfigError(f"version {start} of {root} must be one of 0 to {end}, the version that is read")
    return [_commit(storage, root, version) for version in range(start + 1, end + 1)]


def changes_since(storage: TableStorage, root: str, start: int, end: int) -> list[str]:
    """Return which commits between two versions did more than to append files, in words."""
    try:
        commits = read_commits(storage, root, start, end)
    except ConfigError as error:
        return [str(error)]
    return [f"version {each.version}: {each.operation}" for each in commits if each.removes]


def appended_parts(reader: LogReader, storage: TableStorage, start: int, log: Log) -> tuple[list[Log], tuple[str, ...]]:
    """Return the files whose rows came after one version, up to and with another.

    A commit that replaces files by others with the same rows is passed over: what was appended before it is read from
    the files that it was appended with.

    Returns:
        Versions of the table with those of their files alone, and what there is to say of them.

    Raises:
        ConfigError: a commit in between removed or changed rows, or was cleaned up.
        TableError: a commit is torn.
    """
    root, end = reader.at.root.rstrip("/"), log.version
    commits = read_commits(storage, root, start, end)
    for commit in commits:
        if commit.removed:
            raise ConfigError(
                f"version {commit.version} of {root}, between {start} and {end}, removes or changes rows "
                f"({commit.operation}), and only rows that were appended can be read by themselves; read up to the "
                f"version before it (end_version={commit.version - 1}) and from it on (start_version="
                f"{commit.version}), or what came and what went (changelog=True), or the whole table"
            )
    parts = [
        replace(version := log if last == end else reader.read(last), adds=only_paths(version, paths, root))
        for last, run in runs_of(commits)
        if (paths := frozenset[str]().union(*(commit.appended for commit in run)))
    ]
    replaced = [str(commit.version) for commit in commits if commit.removes]
    notes = (f"nothing is read from versions {', '.join(replaced)}, which replace files",) if replaced else ()
    return parts or [replace(log, adds=log.adds.slice(0, 0))], notes


def runs_of(commits: Sequence[Commit]) -> Iterator[tuple[int, list[Commit]]]:
    """Yield runs of commits in which no file is removed after it was appended: the last version, and the commits."""
    run: list[Commit] = []
    for at, commit in enumerate(commits):
        run.append(commit)
        if at + 1 == len(commits) or commits[at + 1].removes:
            yield commit.version, run
            run = []


def only_paths(log: Log, paths: frozenset[str], root: str) -> pa.Table:
    """Return some of the files of a version: see `Log.adds`."""
    adds = log.adds.filter(pc.is_in(log.adds["path"], pa.array(sorted(paths), log.adds["path"].type)))
    if adds.num_rows != len(paths):
        raise TableError(
            f"version {log.version} of {root} must have the {len(paths)} files that its commits appended, and has "
            f"{adds.num_rows} of them; the writer broke the format: read the whole table instead"
        )
    return adds


def _commit(storage: TableStorage, root: str, version: int) -> Commit:
    path = commit_path(root, version)
    try:
        content = read_whole(storage, path)
    except TableError:
        raise ConfigError(
            f"the commit of version {version} of {root} is not there: it was cleaned up, and what it appended cannot "
            "be told from the rest; choose a later start_version, or read the whole table"
        ) from None
    try:
        return _read(version, actions_of(content, path))
    except (KeyError, TypeError, AttributeError) as error:
        raise torn_commit(path, f"one is not as the protocol says ({error!r})") from error


def _read(version: int, actions: Sequence[dict[str, Any]]) -> Commit:
    adds = [each["add"] for each in actions if "add" in each]
    removes = [each["remove"] for each in actions if "remove" in each]
    told = [each["commitInfo"].get("operation") for each in actions if "commitInfo" in each]
    return Commit(
        version,
        str((told and told[0]) or "unknown"),
        frozenset(str(add["path"]) for add in adds if add.get("dataChange", True)),
        bool(removes),
        frozenset(str(remove["path"]) for remove in removes if remove.get("dataChange", True)),
    )
