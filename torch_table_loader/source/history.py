"""What the commits between two snapshots of a table did: the rows that were appended, or all that came and went.

A table format lists its commits, and the files that each touched. The rest is the same for all formats.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from torch_table_loader.errors import ConfigError, TableError

if TYPE_CHECKING:
    from torch_table_loader.records import Column, DataFile, DeleteFile, FileColumns
    from torch_table_loader.source.table_storage import TableStorage


class Commit(NamedTuple):
    """What made the snapshot `id` from its parent, which is None for the first.

    Args:
        operation: as the commit says; "unknown" if it says none.
        does: whether it only appends files; or replaces files by others with the same rows; or changes rows.
        added: the paths of files whose rows it says are new; empty if only the snapshot's listing tells.
        removed: the paths of files with which it says that rows left, or were changed; empty likewise.
    """

    id: int
    parent: int | None
    operation: str
    does: Literal["append", "replace", "change"]
    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False, kw_only=True)
class History(ABC):
    """The commits after one snapshot, up to and with another, oldest first."""

    storage: TableStorage
    place: str
    start: int
    end: int | None
    commits: Sequence[Commit]
    filtered: bool
    pruned: set[str] = field(default_factory=set, init=False)
    """The paths of files that a filter leaves out, whatever happened to their rows."""

    pin: ClassVar[str]
    """The argument that chooses a snapshot."""

    columns: ClassVar[tuple[Column, ...]]
    """What a changelog says of its rows. No file has columns of these ids."""

    went: ClassVar[str]
    came: ClassVar[str]

    @abstractmethod
    def touched(self, commits: Sequence[Commit], last: Commit) -> tuple[Sequence[DataFile], Sequence[DataFile]]:
        """Return the files of which commits may have changed rows, as they were before and after them, in order.

        They are one commit, or a run (see `_runs`). Each file has the deletes that applied then. `pruned` gets those
        that a filter leaves out. `last` is the last of the commits after them that only append.
        """

    def files(self, *, changelog: bool) -> tuple[tuple[DataFile, ...], tuple[str, ...]]:
        """Return the files whose rows were appended or, for a changelog, came or went, and notes."""
        changes = list(self._changes() if changelog else self._appended())
        kept = [(file, values) for file, values in changes if file.path not in self.pruned]
        self.storage.require(file.path for file, _ in kept)
        self.storage.require(delete.file.path for file, _ in kept for delete in file.deletes)
        notes = []
        replaced = [str(commit.id) for commit in self.commits if commit.does == "replace"]
        if replaced and not changelog:
            notes.append(f"nothing is read from {self._noun}s {', '.join(replaced)}, which replace files")
        if self.filtered:
            what = "changed files" if changelog else "files"
            pruned = len(changes) - len(kept)
            notes.append(f"the filter prunes {pruned:,} of {len(changes):,} {what} by partition values and statistics")
        return _marked(kept, self.columns if changelog else ()), tuple(notes)

    def _appended(self) -> Iterator[tuple[DataFile, tuple[Any, ...]]]:
        """Yield each file whose rows were appended.

        A commit that replaces files by others with the same rows is skipped: rows appended before it are read from the
        files with which they were appended.
        """
        for commit in self.commits:
            if commit.does == "change":
                raise ConfigError(
                    f"{self._noun} {commit.id} of {self.place}, between {self.start} and {self.end}, removes or "
                    f"changes rows ({commit.operation}), and only rows that were appended can be read by themselves; "
                    f"{self._around(commit)}, or what came and what went (changelog=True), or the whole table"
                )
        for run in _runs(self.commits):
            before, after = self.touched(run, run[-1])
            if before:
                gone = {file.path for file in before} - {file.path for file in after}
                was, now = ({_identity(each) for file in files for each in file.deletes} for files in (before, after))
                did = f"{len(gone)} files are gone" if gone else f"{len(now - was)} delete files were added"
                raise TableError(
                    f"the {self._noun}s after {run[0].parent} up to {run[-1].id} say that they append, but {did}; the "
                    "writer broke the format: read the whole table instead"
                )
            yield from ((file, ()) for file in after)

    def _changes(self) -> Iterator[tuple[DataFile, tuple[Any, ...]]]:
        """Yield each file whose rows came or went, with what the changelog says of them, commit by commit.

        A file comes once for each change of its rows. Of one commit come the rows that went, then those that came. A
        commit that replaces files by others with the same rows changes none.
        """
        ordinal = 0
        for run in _runs(self.commits):
            for commit in run:
                before, after = self.touched([commit], run[-1])
                self._refuse_keys(commit, before, after)
                for kind, here, there in ((self.went, before, after), (self.came, after, before)):
                    known = {"_change_type": kind, "_change_ordinal": ordinal}
                    values = tuple(known.get(column.name, commit.id) for column in self.columns)
                    yield from ((file, values) for file in _rows_without(here, there))
                ordinal += commit.does != "replace"

    def _refuse_keys(self, commit: Commit, before: Sequence[DataFile], after: Sequence[DataFile]) -> None:
        """Refuse a commit by which other keys are deleted from a file than before."""
        was = {file.path: _keys(file) for file in before}
        for file in after:
            if was.get(file.path, now := _keys(file)) != now:
                raise ConfigError(
                    f"{self._noun} {commit.id} deletes rows of {file.name}, and maybe of others, by equality deletes, "
                    "which say keys and not rows: a changelog cannot tell which rows went without reading all that "
                    f"were there; {self._around(commit)}, or the whole table"
                )

    def _around(self, commit: Commit) -> str:
        """Say how to read what happened before and after a commit."""
        return (
            f"read up to the {self._noun} before it (end_{self.pin}={commit.parent}) and from it on "
            f"(start_{self.pin}={commit.id})"
        )

    @property
    def _noun(self) -> str:
        return self.pin.removesuffix("_id")


def _runs(commits: Sequence[Commit]) -> list[list[Commit]]:
    """Return runs of commits in which no file leaves after it was appended: only the first may do more than append."""
    runs: list[list[Commit]] = []
    for commit in commits:
        if runs and commit.does == "append":
            runs[-1].append(commit)
        else:
            runs.append([commit])
    return runs


def _rows_without(files: Sequence[DataFile], others: Sequence[DataFile]) -> Iterator[DataFile]:
    """Yield files with those of their live rows that do not live in the other files."""
    there = {file.path: file for file in others}
    for file in files:
        if (other := there.get(file.path)) is None:
            yield file
            continue
        known = set(map(_identity, file.deletes))
        only = [replace(each, keeps=True) for each in other.deletes if _identity(each) not in known]
        if only:
            yield replace(file, deletes=(*file.deletes, *only))


def _identity(delete: DeleteFile) -> Hashable:
    return delete.file.path, delete.blob, delete.inline


def _keys(file: DataFile) -> frozenset[str]:
    return frozenset(delete.file.path for delete in file.deletes if delete.kind == "equality")


def _marked(changed: Iterable[tuple[DataFile, tuple[Any, ...]]], columns: Sequence[Column]) -> tuple[DataFile, ...]:
    """Return files, each with the changelog's values for all its rows.

    A file that comes several times gets another name each time, since plans and states know files by their names.
    """
    files: list[DataFile] = []
    times: dict[str, int] = {}
    shared: dict[tuple[FileColumns, tuple[Any, ...]], FileColumns] = {}
    for file, values in changed:
        assert file.columns is not None  # noqa: S101 tables with changelogs find columns by ids
        times[file.name] = nth = times.get(file.name, 0) + 1
        key = (file.columns, values)
        if key not in shared:
            constants = {column.field_id: value for column, value in zip(columns, values, strict=True)}
            shared[key] = replace(file.columns, constants={**file.columns.constants, **constants})
        pairs = tuple((column.name, value) for column, value in zip(columns, values, strict=True))
        name = file.name if nth == 1 else f"{file.name}#{nth}"
        files.append(replace(file, name=name, columns=shared[key], partition=(*file.partition, *pairs)))
    return tuple(files)
