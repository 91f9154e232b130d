"""The files of a table as columns, because a plan needs few of a table's files as objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from torch_table_loader.errors import ConfigError
from torch_table_loader.records import DataFile, FileVersion

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class ListedFiles(Sequence["DataFile"]):
    """Files in canonical order, each built on request.

    Args:
        num_bytes: int64[F] the stored size of each file.
        num_rows: int64[F] its rows before deletes, from the table's metadata; −1 if unknown.
        deleted: int64[D] the files that have deletes, ascending.
        make: returns a file by its number, the same each time; must be picklable.
        says_splits: whether any file lists the byte offsets of its row groups.
    """

    num_bytes: NDArray[np.int64]
    num_rows: NDArray[np.int64]
    deleted: NDArray[np.int64]
    make: Callable[[int], DataFile]
    says_splits: bool = False

    def __post_init__(self) -> None:
        """Refuse columns of different lengths."""
        if len(self.num_bytes) != len(self.num_rows):
            raise ConfigError(
                f"ListedFiles needs a size and a number of rows for each file, got {len(self.num_bytes)} and "
                f"{len(self.num_rows)}"
            )

    def __len__(self) -> int:
        """Count the files."""
        return len(self.num_bytes)

    @overload
    def __getitem__(self, index: int) -> DataFile: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[DataFile, ...]: ...
    def __getitem__(self, index: int | slice) -> DataFile | tuple[DataFile, ...]:
        """Return one file, or several."""
        places = range(len(self))[index]
        if isinstance(places, int):
            return self.make(places)
        return tuple(map(self.make, places))


def packed(files: Sequence[DataFile]) -> ListedFiles:
    """Return files in canonical order as columns; equal partitions, columns and deletes are shared if the same object.

    Files that differ only in name, size, rows and row groups share everything else.
    """
    known: dict[Any, int] = {}
    examples: list[DataFile] = []
    like = np.empty(len(files), dtype=np.int32)
    for at, file in enumerate(files):
        if (example := known.setdefault(_rest_of(file), len(examples))) == len(examples):
            # Keeps alive the objects whose ids are in the key.
            examples.append(replace(file, path="", name="", split_offsets=()))
        like[at] = example
    paths = [file.path.encode("utf-8", "surrogatepass") for file in files]
    names = [file.name.encode("utf-8", "surrogatepass") for file in files]
    sizes = _ints(file.version.num_bytes for file in files)
    rows = _ints(-1 if file.num_rows is None else file.num_rows for file in files)
    splits = [file.split_offsets for file in files]
    making = _Unpacking(
        tuple(examples),
        like,
        (sizes, rows),
        (b"".join(paths), _ends(paths)),
        _ints(len(name) for name in names).astype(np.int32),
        {at: file.name for at, file in enumerate(files) if not paths[at].endswith(names[at])},
        (_ints(offset for offsets in splits for offset in offsets), _ends(splits)) if any(splits) else None,
    )
    deleted = _ints(at for at, file in enumerate(files) if file.deletes)
    return ListedFiles(sizes, rows, deleted, making, says_splits=any(splits))


def _rest_of(file: DataFile) -> tuple[Any, ...]:
    """Return what two files must have in common to be built from one example; large values by their id."""
    version = file.version
    shared = (file.partition, file.columns, file.deletes, file.reader, file.sidecars)
    facts = (version.mtime_ns, version.etag, version.immutable, version.local)
    return (file.format, file.tail_bytes, *facts, *map(id, shared))


def _ints(numbers: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(numbers, dtype=np.int64)


def _ends(parts: Sequence[Sequence[Any]]) -> NDArray[np.int64]:
    """int64[P+1]: where each of several consecutive parts begins, and where the last one ends."""
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(_ints(map(len, parts)))))


@dataclass(frozen=True, slots=True, eq=False)
class _Unpacking:
    """Rebuilds the packed files.

    Args:
        examples: files that have everything in common but path, name, size, rows and row groups.
        like: int32[F] the example of each file.
        facts: int64[F] size and int64[F] rows; see `ListedFiles`.
        paths: the paths of all files, concatenated, and int64[F+1] where each begins.
        name_bytes: int32[F] how many of the last bytes of its path are a file's name.
        names: names of files whose path does not contain their name.
        splits: where row groups begin, for all files, and int64[F+1] where each file's begin; None if no file has them.
    """

    examples: tuple[DataFile, ...]
    like: NDArray[np.int32]
    facts: tuple[NDArray[np.int64], NDArray[np.int64]]
    paths: tuple[bytes, NDArray[np.int64]] = field(repr=False)  # a presigned URL is a credential
    name_bytes: NDArray[np.int32]
    names: dict[int, str]
    splits: tuple[NDArray[np.int64], NDArray[np.int64]] | None

    def __call__(self, place: int) -> DataFile:
        """Build a file by its number."""
        example = self.examples[self.like[place]]
        text, begins = self.paths
        path = text[begins[place] : begins[place + 1]]
        name = self.names.get(place)
        if name is None:
            name = path[len(path) - int(self.name_bytes[place]) :].decode("utf-8", "surrogatepass")
        offsets: tuple[int, ...] = ()
        if self.splits is not None:
            flat, starts = self.splits
            offsets = tuple(flat[starts[place] : starts[place + 1]].tolist())
        like, num_rows = example.version, int(self.facts[1][place])
        return DataFile(
            path.decode("utf-8", "surrogatepass"),
            name,
            FileVersion(int(self.facts[0][place]), like.mtime_ns, like.etag, like.immutable, like.local),
            example.format,
            example.partition,
            example.columns,
            example.deletes,
            None if num_rows < 0 else num_rows,
            offsets,
            example.reader,
            example.sidecars,
            example.tail_bytes,
        )
