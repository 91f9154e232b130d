"""Flat arrays of tokens without an index: NumPy's ``.npy`` files, and raw numbers as `numpy.memmap` writes them.

A file that begins with NumPy's magic has a header, which says the type; any other is numbers from its first byte on,
whatever its name. Where documents end is found in the tokens, once: `FileMeta.footer` keeps it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.cancellation import Threads
from torch_table_loader.contracts import is_far
from torch_table_loader.errors import ConfigError, ConfigTypeError, TableError
from torch_table_loader.forks import OfProcess
from torch_table_loader.format_contracts import Traits
from torch_table_loader.read.list_groups import GROUP_BYTES
from torch_table_loader.sizes import sizes
from torch_table_loader.text.token_files import MOST_TOKENS, Index, TokenReader, Values, narrow
from torch_table_loader.units import integer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile

NAME = "flat"
"""What the format is called; after a colon may stand its settings."""

DOCUMENT_TOKENS = 1 << 20
"""Tokens of a document where nothing says where documents end."""

_MAGIC = b"\x93NUMPY"
_HEADER_BYTES = 1 << 14
"""More than the longest header that is read."""

Read = Callable[[int, int], Any]
"""Returns bytes of a file, from one to before another."""

_KIND = re.compile(r"""["']descr["']:\s*["']([<|]?[iu][1248])["']""")
_SHAPE = re.compile(r"""["']shape["']:\s*\(\s*(\d{1,18})L?\s*,\s*\)""")
"""The type and the only length in a header, which is a dict as Python writes it; others are not read."""

_THREADS = 4
_ROOM = OfProcess(partial(threading.BoundedSemaphore, 16))
"""Blocks that are looked through at a time, of all files together."""


@dataclass(frozen=True, slots=True)
class FlatTokens(TokenReader):
    """Reads flat arrays of tokens: ``.npy`` files with and without a header, ``.bin`` files, memmaps.

    A row is a document. As text, for command lines: ``flat:dtype=uint16,eos_id=50256``.

    Args:
        dtype: of the tokens, such as "uint16"; None: all files have NumPy's header.
        eos_id: the token that ends a document. All files are read once to find it; `plan_cache` keeps what was found.
        document_tokens: without `eos_id`, tokens of a document, of which the last of a file may have fewer.
        suffix: how the names of data files end; "" takes all files.

    Raises:
        ConfigError: a setting is wrong, or two of them contradict each other.
    """

    dtype: Any = None
    eos_id: int | None = None
    document_tokens: int | None = None
    suffix: str = ""
    name: str = NAME
    group_bytes: int = GROUP_BYTES

    suffixes = ()
    sidecars = ()
    traits = Traits(cut="documents", pruned="partitions", counted="the tokens")

    def __post_init__(self) -> None:
        """Check every setting."""
        if self.dtype is not None:
            object.__setattr__(self, "dtype", _dtype(self.dtype).name)
        for name, least, most in (("eos_id", None, None), ("document_tokens", 1, MOST_TOKENS)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, integer(f"FlatTokens({name}=)", getattr(self, name), least, most))
        if not isinstance(self.suffix, str):
            raise ConfigTypeError(f"FlatTokens(suffix=) must be a string such as '.npy', got {self.suffix!r}")
        if self.eos_id is not None and self.document_tokens is not None:
            raise ConfigError(
                "FlatTokens takes eos_id= or document_tokens=, not both: one says which token ends documents, and the "
                f"other how long they are; got eos_id={self.eos_id} and document_tokens={self.document_tokens}"
            )
        if self.dtype is not None and not _holds(np.dtype(self.dtype), self.eos_id):
            raise ConfigError(f"FlatTokens(eos_id=) must be a {self.dtype}, as its dtype= says, got {self.eos_id}")

    @classmethod
    def parse(cls, text: str) -> FlatTokens:
        """Read settings as text.

        >>> FlatTokens.parse("flat:dtype=uint16,eos_id=2").eos_id
        2
        """
        known = [field.name for field in fields(cls)][:4]
        given: dict[str, Any] = {}
        for part in filter(None, text.partition(":")[2].split(",")):
            name, _, value = part.partition("=")
            if name not in known or name in given:
                raise ConfigError(
                    f"format must be {NAME!r}, or {NAME}: and settings such as dtype=uint16,eos_id=2 (of "
                    f"{', '.join(known)}, each once), got {text!r}"
                )
            given[name] = int(value) if value.removeprefix("-").isdecimal() else value
        return cls(**given, name=text)

    @property
    def data_suffix(self) -> str:
        """How the names of data files end."""
        return self.suffix

    @property
    def settings(self) -> str:
        """What makes other rows of the same files."""
        return f"{self.dtype} {self.eos_id} {self.document_tokens}"

    @override
    def read_index(self, storage: Storage, file: DataFile) -> Index:
        with _reading(storage, file) as read:
            dtype, begin = self._header(file, read)
            size = file.version.num_bytes - begin
            if size % dtype.itemsize:
                raise ValueError(f"it has {size} bytes, which is not a multiple of the {dtype.itemsize} of each token")
            total = size // dtype.itemsize
            if self.eos_id is None:
                each = self.document_tokens or DOCUMENT_TOKENS
                lengths = np.full(-(-total // each), each, np.min_scalar_type(each))
                lengths[-1:] = total - each * max(0, len(lengths) - 1)
            elif _holds(dtype, self.eos_id):
                find = partial(_found, read, begin, dtype, self.eos_id)
                lengths = _lengths(find, range(begin, file.version.num_bytes), total, joined=not is_far(storage))
            else:
                raise ValueError(f"its header says {dtype}, which cannot hold eos_id={self.eos_id}")
        return Index(pa.from_numpy_dtype(dtype), lengths, {}, begin=begin)

    @override
    def column(
        self, name: str, storage: Storage, file: DataFile, more: Sequence[NDArray[Any]], opened: ExitStack
    ) -> Values:
        raise TableError(f"{file.name} has tokens alone, got the column {name!r}; build the loader again")

    def _header(self, file: DataFile, read: Read) -> tuple[np.dtype[Any], int]:
        """Return the type of a file's tokens, and the byte at which they begin."""
        own = None if self.dtype is None else np.dtype(self.dtype)
        head = bytes(read(0, min(_HEADER_BYTES, file.version.num_bytes)))
        if not head.startswith(_MAGIC):
            if own is None:
                raise ValueError(
                    "it has no header of NumPy's, so that nothing says their type: pass FlatTokens('uint16'), or of "
                    "another dtype, as format"
                )
            return own, 0
        dtype, count, begin = _parse(head)
        if own is not None and own != dtype:
            raise ValueError(f"its header says {dtype}, and FlatTokens(dtype=) {own}")
        if begin + count * dtype.itemsize != file.version.num_bytes:
            raise ValueError(f"its header says {count} tokens of {dtype}, and it has {file.version.num_bytes} bytes")
        return dtype, begin


@contextmanager
def _reading(storage: Storage, file: DataFile) -> Iterator[Read]:
    """Return what reads bytes of a file; threads may share it."""
    if is_far(storage):
        yield partial(storage.read_range, file.path, version=file.version)
        return
    with storage.open(file.path) as source:

        def read(start: int, stop: int) -> Any:
            if len(found := source.read_at(stop - start, start)) != stop - start:
                raise TableError(f"{file.name} was cut while it was read: restore it, and build the loader again")
            return found

        yield read


def _dtype(given: Any) -> np.dtype[Any]:
    """Return the type of tokens that a caller means."""
    try:
        found: np.dtype[Any] = np.dtype(given)
    except TypeError:
        found = np.dtype("V1")
    if found.kind not in "iu" or found.newbyteorder("<") != found:
        raise ConfigError(f"FlatTokens(dtype=) must be little-endian integers such as 'uint16', got {given!r}")
    return found


def _holds(dtype: np.dtype[Any], token: int | None) -> bool:
    return token is None or np.iinfo(dtype).min <= token <= np.iinfo(dtype).max


def _parse(head: bytes) -> tuple[np.dtype[Any], int, int]:
    """Return what NumPy's header says: the type, the number of values, and where they begin."""
    width = 2 if head[6:7] == b"\1" else 4
    begin = 8 + width + int.from_bytes(head[8 : 8 + width], "little")
    text = head[8 + width : begin].decode("latin-1")
    kind, shape = _KIND.search(text), _SHAPE.search(text)
    if kind is None or shape is None or begin > len(head):
        raise ValueError(
            f"its header says {text[:100].strip()!r}, and an array of little-endian integers with one dimension is read"
        )
    return np.dtype(kind[1]), int(shape[1]), begin


def _lengths(
    find: Callable[[tuple[int, int]], NDArray[np.int64]], places: range, total: int, *, joined: bool
) -> NDArray[Any]:
    """Return the tokens of each document, which ends after an end token, or with the file.

    Threads look through some blocks of the file ahead; what they find is kept as lengths in narrow integers.

    Args:
        find: returns how many tokens of the file end with each end token of a block of bytes.
        places: all bytes of tokens.
        total: all tokens.
    """
    most = sizes().far_request_bytes & -8  # no token lies in two blocks
    blocks = list(pairwise([*places[::most], places.stop]))
    parts: list[NDArray[Any]] = [np.empty(0, np.uint8)]
    last = 0
    with Threads(min(_THREADS, len(blocks)), "table-loader-survey", joined=joined) as pool:
        for ends in pool.map(find, blocks):
            if len(ends):
                parts.append(narrow(np.diff(ends, prepend=last)))
                last = int(ends[-1])
    if last < total:
        parts.append(narrow(np.array([total - last])))
    return np.concatenate(parts)


def _found(read: Read, begin: int, dtype: np.dtype[Any], eos_id: int, block: tuple[int, int]) -> NDArray[np.int64]:
    """Return how many tokens of a file end with each end token of a block."""
    with _ROOM.own:
        tokens = np.frombuffer(read(*block), dtype)
        return np.flatnonzero(tokens == eos_id) + ((block[0] - begin) // dtype.itemsize + 1)
