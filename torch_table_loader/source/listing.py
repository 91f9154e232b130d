"""Turn a directory, a glob, a file, or a list of them into a table's files in canonical order, with sidecars."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from torch_table_loader.cancellation import Threads, result_of
from torch_table_loader.errors import ConfigError, ConfigTypeError, MissingFileError, MissingPathError, TableError
from torch_table_loader.format_contracts import SidecarReader
from torch_table_loader.nesting import load_json
from torch_table_loader.ranges import STAT_THREADS, Found
from torch_table_loader.records import DataFile
from torch_table_loader.source.address import (
    FAMILIES,
    HTTP_PROTOCOLS,
    has_magic,
    is_shallow,
    parse_address,
    prefixes_of,
    seems_folder,
    static_root,
)
from torch_table_loader.source.folders import columns_of_folders, look_around, refuse_table_formats
from torch_table_loader.source.storage import FileStorage, open_storage

if TYPE_CHECKING:
    from concurrent.futures import Future

    from torch_table_loader.contracts import Storage
    from torch_table_loader.format_contracts import FormatReader, Sidecar
    from torch_table_loader.records import FileVersion, LocalVersion
    from torch_table_loader.source.folders import PartitionValues

_ONE_PAGE = 1000
"""Files that stores list with one request."""

_LIST_VERSION = 1
"""Of the files that `write_files` writes."""

PathLike = str | os.PathLike[str]

ByNames = Callable[[Sequence[str]], "FormatReader"]
"""Returns the format reader for files, from their names."""


@dataclass(frozen=True, slots=True)
class PathSource:
    """A table that is a set of files (implements `contracts.Source`).

    Args:
        storage: where the files are.
        files: the data files: of a directory or glob, sorted by the UTF-8 bytes of their names; of a list, in its
            order.
        partition_schema: the columns that come from the paths.
        unread_keys: keys of ``key=value`` folders of which no columns are made, since not all files have them.
        folder: a folder with all files, if one request lists it; None if there is none.
    """

    storage: Storage
    files: tuple[DataFile, ...]
    partition_schema: pa.Schema
    unread_keys: tuple[str, ...] = ()
    folder: str | None = field(default=None, compare=False)

    @classmethod
    def open(
        cls,
        path: PathLike | Sequence[PathLike] | None,
        reader: str | FormatReader | None,
        *,
        by_name: bool = False,
        choose: ByNames | None = None,
        storage_options: Mapping[str, Any] | None = None,
        schema: pa.Schema | None = None,
        files: Sequence[str] | str | None = None,
    ) -> PathSource:
        """List the files of a table.

        Hidden files (a segment below the root begins with ``.``, or with ``_`` without containing ``=``), ``*.crc`` and
        empty files are left out. A directory or glob with nothing else is a table without files. If the format defines
        how its data files are named (see `SidecarReader`), others are left out too.

        Args:
            path: a directory (recursive), a glob (``*``, ``**``, ``?``, ``[…]``), a file, or a list of these on one
                file system. If a name with glob characters exists, it takes precedence over the glob.
            reader: the format reader; or its name alone, which does not say how data files are named; None lets
                `choose` find it.
            by_name: whether the reader's name identifies it, so that files need not keep the reader itself.
            choose: finds an installed format reader from the names of the files.
            storage_options: for the file system.
            schema: the caller's types for partition columns.
            files: names relative to the root, or full paths below it, used unchanged instead of listing; or the path of
                a list that `write_files` wrote.

        Raises:
            MissingPathError: nothing exists at a path.
            ConfigError: a file occurs twice; there are several file systems; a pinned name is not below the root; or
                the files belong to an Iceberg, Delta Lake or Hudi table.
            MissingFileError: a pinned file is missing.
            StorageError: the store refuses, or does not answer.
        """
        if isinstance(files, str):
            files = read_files(files, storage_options)
        storage, paths = _one_storage(_entries(path), storage_options)
        root, listings = _listed(storage, paths, files)
        source = _source(storage, root, listings, reader, by_name, choose, schema)
        is_folder = not has_magic(storage.protocol, paths[0]) and len(listings) == 1
        if is_folder and 0 < len(listings[0][1]) <= _ONE_PAGE:
            source = replace(source, folder=root)
        return source


def named_files(
    storage: Storage,
    path: PathLike | Sequence[PathLike] | None,
    files: Sequence[str] | str | None,
    reader: str | FormatReader | None,
    *,
    by_name: bool = False,
    choose: ByNames | None = None,
    schema: pa.Schema | None = None,
) -> PathSource:
    """Return files by name in the caller's own storage, which cannot list.

    With `files`, `path` is their folder. The other arguments are those of `PathSource.open`.
    """
    paths = [os.fspath(entry) for entry in _entries(path)]
    if not all(isinstance(entry, str) and entry for entry in paths):
        raise ConfigTypeError(f"path must name files of the storage by strings that are not empty, got {paths!r}")
    if files is None:
        root = common_root([parent_of(entry) for entry in paths])
    else:
        root = common_root([entry.rstrip("/") for entry in paths])
        if isinstance(files, str):
            files = read_files(files)
        paths = [f"{root}/{name}" if root else name for name in files]
    listings: list[_Listing] = [(_versions(storage, paths), ())]
    return _source(storage, root, listings, reader, by_name, choose, schema)


def write_files(path: str, files: Sequence[DataFile], storage_options: Mapping[str, Any] | None) -> None:
    """Write the names of files, relative to the table's root and in its order, with their sizes for human readers."""
    storage, place = open_storage(path, storage_options)
    listed = [{"name": file.name, "num_bytes": file.version.num_bytes} for file in files]
    storage.write_bytes(place, json.dumps({"version": _LIST_VERSION, "files": listed}, indent=1).encode())


def read_files(path: str, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Read the names that `write_files` wrote."""
    storage, place = open_storage(path, storage_options)
    try:
        content = load_json(storage.read_bytes(place), f"files={storage.shown(place)!r}")
        if (version := content["version"]) != _LIST_VERSION:
            raise ConfigError(f"files={storage.shown(place)!r} has version {version!r}, expected {_LIST_VERSION}")
        return [entry["name"] for entry in content["files"]]
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"files={storage.shown(place)!r} must be a list that dataset.save_files(path) wrote; pass names as a list"
        ) from error


def _source(
    storage: Storage,
    root: str,
    listings: Sequence[_Listing],
    reader: str | FormatReader | None,
    by_name: bool,
    choose: ByNames | None,
    schema: pa.Schema | None,
) -> PathSource:
    """Return the source of the files that were found; see `PathSource.open`."""
    if reader is None and choose is not None:
        known = (entry for found, _ in listings for entry in filter(has_bytes, found))
        reader, by_name = choose([_relative(storage, root, entry.path) for entry in known]), True
    naming, format_name = None, ""
    if isinstance(reader, str):
        format_name = reader
    elif reader is not None:
        naming, format_name = reader, reader.name
    pairs = [entry for found, seen in listings for entry in pair(storage, found, seen, naming)]
    names = _names(storage, root, [entry.data for entry in pairs])
    partition_schema, partitions, unread_keys = columns_of_folders(_decoded(storage, root), names, schema)
    _refuse_links(storage, [entry.data for entry in pairs], partitions)
    kept = None if by_name else naming

    def beside(entry: Found) -> DataFile:
        return DataFile(entry.path, _relative(storage, root, entry.path), entry.file_version(), format_name)

    versions = [entry.data.file_version() for entry in pairs]
    sidecars = [tuple(map(beside, entry.sidecars)) for entry in pairs]
    data_files = tuple(
        DataFile(entry.data.path, name, version, format_name, values, reader=kept, sidecars=near)
        for entry, name, version, values, near in zip(pairs, names, versions, partitions, sidecars, strict=True)
    )
    return PathSource(storage, data_files, partition_schema, unread_keys)


@dataclass(frozen=True, slots=True)
class _Start:
    """What one of the caller's paths refers to: a file or a directory, or a glob, which has no `found`.

    Names are relative to `root`. If `deep`, everything below it will be listed.
    """

    path: str
    root: str
    found: Found | None
    deep: bool


_Listing = tuple[list[Found], Sequence[Found]]
"""What is below a path, and everything that the listing saw, including hidden files."""


def is_hidden(name: str, allowed: str = "") -> bool:
    """Return whether readers of tables leave out a name below the listed root, as Hive and Spark do.

    The leading characters in `allowed` do not hide, because the caller's glob contains them.

    >>> [is_hidden(name) for name in ("a/_temporary/x", ".x.crc", "_day=1/x", "a.parquet")]
    [True, True, False, False]
    """
    for segment in name.split("/"):
        if segment.startswith(".") and "." not in allowed:
            return True
        if segment.startswith("_") and "=" not in segment and "_" not in allowed:
            return True
    return name.endswith((".crc", "/_SUCCESS")) or name == "_SUCCESS"


def _entries(path: PathLike | Sequence[PathLike] | None) -> Sequence[PathLike]:
    if isinstance(path, str | os.PathLike):
        return [path]
    if not isinstance(path, Sequence):
        in_memory = hasattr(path, "__arrow_c_stream__") or hasattr(path, "to_records")  # such as pandas' frames
        raise ConfigTypeError(
            f"path must be a string, an os.PathLike, or a list of them, got {type(path).__name__}"
            + ("; pass source= for rows in memory" if in_memory else "")
        )
    if not path:
        raise ConfigError("path is an empty list; name at least one directory, glob or file")
    return path


def _listed(
    storage: FileStorage,
    paths: Sequence[str],
    files: Sequence[str] | None,
) -> tuple[str, list[_Listing]]:
    """Return the folder that names are relative to, and the files."""
    with Threads(STAT_THREADS, "table-loader-ask") as pool:
        at_once = map if storage.is_local else pool.map  # a local look-up costs less than a thread
        walks: dict[str, Future[list[Found]]] = {}
        looks: list[Future[list[Found]]] = []
        if files is None and all(map(partial(seems_folder, storage.protocol), paths)):
            walks = {path: pool.submit(storage.walk, path) for path in paths}
            looks = look_around(pool, storage, walks, walks)
        starts = list(at_once(partial(_start, storage, listed=files is None), paths))
        root = common_root([start.root for start in starts])
        begun: Iterable[_Listing] = ()
        if files is None:
            begun = at_once(partial(_expand, storage, walks), starts)
        roots, walked = {start.root for start in starts}, {start.root for start in starts if start.deep}
        if roots != set(walks):
            looks = look_around(pool, storage, roots, walked)
        if files is None:
            listings: list[_Listing] = list(begun)
        else:
            listings = [(_versions(storage, [_below(storage, root, name) for name in files]), ())]
        around = list(map(result_of, looks))
    everything = chain(*(seen for _, seen in listings), *around)
    files_to_read = {entry.path for found, _ in listings for entry in filter(has_bytes, found)}
    refuse_table_formats(storage, everything, files_to_read)
    return root, listings


def _one_storage(
    entries: Sequence[PathLike], storage_options: Mapping[str, Any] | None
) -> tuple[FileStorage, list[str]]:
    opened = [open_storage(entry, storage_options) for entry in entries]
    storage = opened[0][0]
    for other, where in opened:
        if other != storage:
            raise ConfigError(
                f"all paths of a table must be on one file system with one login; {storage.shown(opened[0][1])} "
                f"and {other.shown(where)} are not; make a loader for each"
            )
    return storage, [where for _, where in opened]


def _start(storage: FileStorage, path: str, *, listed: bool) -> _Start:
    """Find out what a path refers to; if it will be listed, that reveals whether it is a directory."""
    magic = has_magic(storage.protocol, path)
    found = storage.probe(path) if listed and not magic else storage.stat(path)
    if found is not None:
        return _Start(path, path.rstrip("/") if found.is_dir else parent_of(path), found, listed and found.is_dir)
    if not magic:
        raise _nothing(storage, path)
    root = static_root(path)
    return _Start(path, root, None, listed and not is_shallow(path[len(root) + 1 :]))


def _expand(storage: FileStorage, walks: Mapping[str, Future[list[Found]]], start: _Start) -> _Listing:
    """Return what is below a path; `walks` are those of folders that have begun."""
    found = start.found
    if found is None:
        return _glob(storage, start)
    if not start.deep:
        found.file_version()
        return [found], ()
    begun = walks.get(start.path)
    everything = storage.walk(start.path) if begun is None else result_of(begun)
    if not everything:
        raise _nothing(storage, start.path)
    return _kept(storage, start.root, everything, allowed=""), everything


def _glob(storage: FileStorage, start: _Start) -> _Listing:
    """List below the pattern's fixed part once, and match there; a matching directory contributes its files."""
    from fsspec.utils import glob_translate

    pattern, root = start.path, start.root
    relative = pattern[len(root) + 1 :]
    # "**" takes empty parts too, which keys of object stores may have.
    matches = re.compile(glob_translate(relative).replace("(?:.+/)?", "(?:.*/)?")).match
    found = storage.probe(f"{root}/")
    if found is None or not found.is_dir:
        raise _nothing(storage, pattern)
    folder = f"{root}/" if storage.protocol in HTTP_PROTOCOLS else root or "/"
    matched: list[Found] = []
    listed: list[Found] = []
    if not start.deep:
        listed = storage.walk(folder, recursive=False)
        matched = [entry for entry in listed if matches(_relative(storage, root, entry.path))]
    if start.deep or any(entry.is_dir for entry in matched):
        listed = storage.walk(folder)
        matched = [
            entry
            for entry in listed
            if any(matches(prefix) for prefix in prefixes_of(_relative(storage, root, entry.path)))
        ]
    if not matched:
        raise _nothing(storage, pattern)
    spelled = "".join({segment[0] for segment in relative.split("/") if segment[:1] in {".", "_"}})
    return _kept(storage, root, matched, allowed=spelled), listed


def _kept(storage: FileStorage, root: str, found: Iterable[Found], allowed: str) -> list[Found]:
    kept = [
        entry
        for entry in found
        if (entry.special or entry.version is not None) and not is_hidden(_relative(storage, root, entry.path), allowed)
    ]
    return sorted(kept, key=lambda entry: _utf8(_relative(storage, root, entry.path)))


def _versions(storage: Storage, paths: Sequence[str]) -> list[Found]:
    """Return the named files with their versions, in the same order."""
    with Threads(STAT_THREADS, "table-loader-ask") as pool:
        versions: list[FileVersion] = list(pool.map(storage.version, paths))
    return [Found(path, version) for path, version in zip(paths, versions, strict=True)]


def _below(storage: FileStorage, root: str, name: str) -> str:
    shown, path = name, ""
    if "://" in name or (storage.is_local and name.startswith("file:")):
        address = parse_address(name)
        shown = address.shown
        if address.protocol == storage.protocol:
            path = address.path
    elif name.startswith("/") and (not root or root.startswith("/")):
        path = name
    elif name:
        path = f"{root}/{name}"
    path = _spelled(storage, path)
    if path.startswith(f"{root}/") and ".." not in path.split("/"):
        return path
    raise ConfigError(
        f"files must name files below {storage.shown(root)}, relative to it or in full, got {shown!r}; "
        "correct the name, or pass their common directory as path"
    )


def _names(storage: Storage, root: str, found: Sequence[Found]) -> list[str]:
    names: dict[str, str] = {}
    for entry in found:
        name = _relative(storage, root, entry.path)
        _utf8(name)
        key = _spelled(storage, name)
        if key in names:
            raise ConfigError(f"path and files must name each file once, got {_shown(storage, entry.path)} twice")
        names[key] = name
    return list(names.values())


def _refuse_links(storage: Storage, found: Sequence[Found], partitions: Sequence[PartitionValues]) -> None:
    """Refuse one file under two names, which links and letter case make, unless folders say other values of its rows.

    The file system of this machine knows that; some know no inodes.
    """
    known: dict[tuple[LocalVersion, PartitionValues], str] = {}
    for entry, values in zip(found, partitions, strict=True):
        version = entry.version
        if version is None or version.local is None or not version.local.inode:
            continue
        other = known.setdefault((version.local, values), entry.path)
        if other != entry.path:
            raise ConfigError(
                f"path and files must name each file once, got {_shown(storage, entry.path)} twice: "
                f"{_shown(storage, other)} is the same file by another name; leave one of them out, or copy the file"
            )


def _spelled(storage: Storage, path: str) -> str:
    """Return a path without parts that name no folder; keys of object stores and of the caller's may have any parts."""
    protocol = getattr(storage, "protocol", "")
    if not protocol or FAMILIES.get(protocol, "file") != "file":
        return path
    bare, *query = path.split("?", 1) if protocol in HTTP_PROTOCOLS else [path]
    no_folders = {".", ""} if protocol == "file" else {"."}
    parts = bare.split("/")
    inside = [part for part in parts[1:-1] if part not in no_folders]
    kept = [*(part for part in parts[:1] if part != "."), *inside, *parts[1:][-1:]]
    return "?".join(["/".join(kept), *query])


def _relative(storage: Storage, root: str, path: str) -> str:
    inner = path.removeprefix(root)
    if getattr(storage, "protocol", "") in HTTP_PROTOCOLS:  # servers of files squeeze slashes
        return _decoded(storage, inner.lstrip("/"))
    return inner.removeprefix("/")


def _decoded(storage: Storage, path: str) -> str:
    """Return a path as its writer named it: URLs are percent-encoded, and may have a query."""
    is_url = getattr(storage, "protocol", "") in HTTP_PROTOCOLS
    if is_url:
        return unquote(path.partition("?")[0])
    return path


def _shown(storage: Storage, path: str) -> str:
    if isinstance(storage, FileStorage):
        return storage.shown(path)
    return path


def _utf8(name: str) -> bytes:
    try:
        return name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TableError(f"{name!a}: a file's name must be UTF-8; rename it") from error


def _nothing(storage: FileStorage, path: str) -> ConfigError:
    magic = has_magic(storage.protocol, path)
    what = "a glob that matches no file" if magic else "neither a file nor a directory with files"
    shown = storage.shown(path)
    return MissingPathError(
        f"path matches nothing: {shown} is {what}; check the spelling, and that this machine can see it", shown
    )


def parent_of(path: str) -> str:
    """Return the folder of a path; for a URL, without its query."""
    if "://" in path:
        return path.partition("?")[0].rpartition("/")[0]
    return path.rpartition("/")[0]


def common_root(roots: Sequence[str]) -> str:
    """Return the deepest directory that contains all roots.

    >>> common_root(["/t/day=1", "/t/day=2"]), common_root(["/t", "/t/x"]), common_root(["/t/ab", "/t/a"])
    ('/t', '/t', '/t')
    """
    shared = [root.split("/") for root in roots]
    depth = 0
    while all(depth < len(parts) for parts in shared) and len({parts[depth] for parts in shared}) == 1:
        depth += 1
    return "/".join(shared[0][:depth])


class Paired(NamedTuple):
    """A data file and its sidecars."""

    data: Found
    sidecars: tuple[Found, ...] = ()


def pair(
    storage: Storage, found: Sequence[Found], listed: Collection[Found], reader: FormatReader | None
) -> list[Paired]:
    """Return the data files among some files, each with its sidecars.

    If the reader identifies its data files by name, others are left out. Otherwise, and where the caller named each
    file of a format without sidecars, all non-empty files are data files;
    an empty one is ignored, unless a sidecar describes it.

    Args:
        listed: all files of the folders that contain the given ones; empty if no folder was listed.
    """
    if not isinstance(reader, SidecarReader) or not (listed or reader.sidecars):
        return [Paired(file) for file in found if has_bytes(file)]
    names = _Names(storage, reader.data_suffix)
    known = {file.path: file for file in listed}
    data = [file for file in found if names.stem(file.path) is not None and (reader.sidecars or has_bytes(file))]
    chosen = {file.path for file in data}
    for file in found:
        names.refuse_orphan(file.path, reader, chosen)
    if found and not data and any(map(has_bytes, found)):
        raise TableError(
            f"files of format={reader.name!r} must have names that end with {reader.data_suffix!r}, got "
            f"{len(found)} others, such as {names.shown(found[0].path)}; correct path or format, or rename them"
        )

    def beside(file: Found) -> Paired:
        looked = ((sidecar, names.beside(file.path, sidecar)) for sidecar in reader.sidecars)
        places = [(sidecar, path, known.get(path) if listed else _look(storage, path)) for sidecar, path in looked]
        for sidecar, path, there in places:
            if there is None and sidecar.required:
                raise MissingFileError(
                    f"{names.shown(file.path)} cannot be read without {names.shown(path)}, which is missing; restore "
                    "it, or write both again",
                    names.shown(path),
                )
        return Paired(file, tuple(there for _, _, there in places if there is not None))

    with Threads(STAT_THREADS, "table-loader-ask") as pool:
        return list(pool.map(beside, data))


class _Names:
    """How data files and sidecars are named in a storage: a URL may have a query."""

    def __init__(self, storage: Storage, suffix: str) -> None:
        self._storage = storage
        self._suffix = suffix
        self._is_url = getattr(storage, "protocol", "") in HTTP_PROTOCOLS

    def stem(self, path: str, suffix: str | None = None) -> str | None:
        """Return a path without its suffix, that of data files by default; None if it has another suffix."""
        name, ending = self._split(path)[0], suffix or self._suffix
        if name.endswith(ending):
            return name[: -len(ending)]
        return None

    def beside(self, path: str, sidecar: Sidecar) -> str:
        """Return the path of a data file's sidecar."""
        return f"{self.stem(path)}{sidecar.suffix}{self._split(path)[1]}"

    def refuse_orphan(self, path: str, reader: SidecarReader, data: Collection[str]) -> None:
        """Refuse a sidecar whose data file is not among the chosen ones."""
        for sidecar in reader.sidecars:
            stem = self.stem(path, sidecar.suffix)
            if stem is not None and sidecar.required:
                wanted = f"{stem}{self._suffix}{self._split(path)[1]}"
                if wanted not in data:
                    raise MissingFileError(
                        f"{self.shown(path)} stands beside {self.shown(wanted)}, which is not among the files; "
                        f"restore it, or name the file that ends with {self._suffix!r} as path",
                        self.shown(wanted),
                    )

    def shown(self, path: str) -> str:
        """Format a path as messages may show it."""
        show = getattr(self._storage, "shown", None)
        if show is None:
            return path
        return str(show(path))

    def _split(self, path: str) -> tuple[str, str]:
        name, mark, query = path.partition("?") if self._is_url else (path, "", "")
        return name, mark + query


def has_bytes(file: Found) -> bool:
    """Return whether a file is not empty, or is not a file, which is refused later."""
    return bool(file.special) or (file.version is not None and file.version.num_bytes > 0)


def _look(storage: Storage, path: str) -> Found | None:
    """Look up a file that may not exist."""
    try:
        return Found(path, storage.version(path))
    except TableError:
        return None
