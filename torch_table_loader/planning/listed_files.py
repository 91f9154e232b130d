"""The files of a table as columns, since a plan needs few of a table's files as values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from torch_table_loader.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from torch_table_loader.records import DataFile


@dataclass(frozen=True, slots=True, eq=False)
class ListedFiles(Sequence["DataFile"]):
    """Files in canonical order, each made when it is asked for.

    Args:
        num_bytes: int64[F] the size of each file in the store.
        num_rows: int64[F] its rows, before deletes, as the table's metadata says; −1 where it does not.
        deleted: int64[D] the files that have deletes, ascending.
        make: returns a file by its number, the same each time; must pickle.
    """

    num_bytes: NDArray[np.int64]
    num_rows: NDArray[np.int64]
    deleted: NDArray[np.int64]
    make: Callable[[int], DataFile]

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
        return self.make(places) if isinstance(places, int) else tuple(map(self.make, places))
