"""The contract of storages: places that hold files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa

from torch_table_loader.records import FileVersion
from torch_table_loader.testing.rules import contract_errors, expecting_table_error, pickled, require

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage

_THREADS = 4


def check_storage(storage: Storage, path: str) -> None:
    """Check a storage with one of its files.

    It must be picklable, open files for random access (several at once, from several threads), report a stable size and
    version, raise TableError for a missing file, and open again after `close`.

    Args:
        path: a file of at least two bytes, which does not change meanwhile.

    Raises:
        ContractError: a rule is broken; the message names the rule and the path.
    """
    who = f"{type(storage).__name__} at {path!r}"
    require(isinstance(storage.is_local, bool), f"{who} must say is_local as a bool, got {storage.is_local!r}")
    content = _content(storage, path, who)
    require(len(content) >= 2, f"{who} must be checked by a file of at least two bytes, got {len(content)}")
    _check_random_access(storage, path, who, content)
    _check_version(storage, path, who, len(content))
    missing = f"{path}.is-not-there"
    for name in ("open", "version"):
        with expecting_table_error(who, f"{name} of a file that is not there", naming="is-not-there"):
            getattr(storage, name)(missing)
    with contract_errors(who, "must serve several threads at once, but raised"), ThreadPoolExecutor(_THREADS) as pool:
        read = list(pool.map(lambda _: _content(storage, path, who), range(2 * _THREADS)))
    require(read == [content] * len(read), f"{who} must give each of several threads the file, but bytes differ")
    require(
        _content(pickled(storage, who), path, who) == content, f"{who} must open the same file after it was pickled"
    )
    for turn in ("close", "a second close"):
        with contract_errors(who, f"must open again after {turn}, but raised"):
            storage.close()
    require(_content(storage, path, who) == content, f"{who} must open the same file after close")


def _content(storage: Storage, path: str, who: str) -> bytes:
    with contract_errors(who, "must open and read the file, but raised"), storage.open(path) as handle:
        require(
            isinstance(handle, pa.NativeFile),
            f"{who} must open a pyarrow.NativeFile, got {type(handle).__name__}; wrap it: pa.PythonFile(it, mode='r')",
        )
        return bytes(handle.read())


def _check_random_access(storage: Storage, path: str, who: str, content: bytes) -> None:
    half = len(content) // 2
    with (
        contract_errors(who, "must open for random access, but raised"),
        storage.open(path) as one,
        storage.open(path) as other,
    ):
        require(one.size() == len(content), f"{who}: size() says {one.size()}, but it has {len(content)} bytes")
        tail = bytes(one.read_at(len(content), half))
        require(tail == content[half:], f"{who}: read_at(…, {half}) must give the bytes from {half} to the end")
        one.seek(half)
        first, second = bytes(other.read(1)), bytes(one.read(1))
        require(
            (first, second) == (content[:1], content[half : half + 1]),
            f"{who}: two open handles must each have a position of their own",
        )


def _check_version(storage: Storage, path: str, who: str, size: int) -> None:
    with contract_errors(who, "must say the file's version, but raised"):
        version, again = storage.version(path), storage.version(path)
    require(isinstance(version, FileVersion), f"{who} must say a FileVersion, got {type(version).__name__}")
    require(version.num_bytes == size, f"{who}: version says {version.num_bytes} bytes, but it has {size}")
    require(version == again, f"{who}: the version must stay while the file does, got {version}, then {again}")
