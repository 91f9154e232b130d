"""Where the caller wants a row store, and how much of it in memory: validated once, then frozen."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from torch_table_loader.errors import ConfigTypeError
from torch_table_loader.units import parse_bytes


@dataclass(frozen=True, slots=True)
class RowStore:
    """Where a row store is kept, and how much of it each rank may hold in memory.

    Args:
        place: "memory", a directory or a URL; None: memory if the store fits into `memory` and the free memory, else a
            cache directory.
        memory: the most bytes that a rank holds in memory, as an int or such as "4GiB". Of a larger store behind a URL,
            these many are fetched at a time.

    Raises:
        ConfigTypeError: `place` is something else.
        ConfigError: `memory` is no size.

    >>> RowStore(memory="4GiB").memory_bytes
    4294967296
    """

    place: str | os.PathLike[str] | None = field(default=None, repr=False)
    memory: int | str = "1GiB"

    def __post_init__(self) -> None:
        """Check the arguments."""
        if self.place is not None and (not self.place or not isinstance(self.place, str | os.PathLike)):
            raise ConfigTypeError(f'row_store must be "memory", a directory, or a URL, got {self.place!r}')
        parse_bytes(self.memory, "RowStore(memory=)")

    @property
    def memory_bytes(self) -> int:
        """The most bytes that a rank holds in memory."""
        return parse_bytes(self.memory)


def as_row_store(given: object) -> RowStore:
    """Return what an option says of a row store: a `RowStore`, or its place."""
    return given if isinstance(given, RowStore) else RowStore("" if given is None else given)  # type: ignore[arg-type]
