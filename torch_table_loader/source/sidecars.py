"""Which files of a listing are data files and which are sidecars, for formats whose data files have them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch_table_loader.cancellation import Threads
from torch_table_loader.errors import MissingFileError, TableError
from torch_table_loader.format_contracts import SidecarReader
from torch_table_loader.source.address import HTTP_PROTOCOLS
from torch_table_loader.source.clients import STAT_THREADS, Found

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.format_contracts import FormatReader, Sidecar


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

    Raises:
        MissingFileError: a required sidecar is missing, or the data file of a sidecar.
        TableError: there are files, but none of them is named like a data file.
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
        return name[: -len(ending)] if name.endswith(ending) else None

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
        return path if show is None else str(show(path))

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
