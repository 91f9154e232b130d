"""What a checked state says, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from torch_table_loader.planning.stages import Extent

Kind: TypeAlias = Literal["splits", "items"]
"""What a job takes, and what its history counts."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A table, and the options that decide which rows come, in which form and order: what a state is bound to.

    This is plain data, without paths or secrets.
    """

    table: Mapping[str, Any]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SavedState:
    """A checked state.

    Args:
        tables: by name of their source; a single table has the name "".
        taken: what the job has done in the epoch, with all that its records say of that.
        records: what each record says beside that, by its key; see `StateRecord.read`.
        files_of: which files the table had at earlier extents, in their order then, as far as that is known.
        grown: what the table was, if it is known to have grown since.
    """

    kind: Kind
    tables: Mapping[str, Bound]
    taken: Any
    records: Mapping[str, Any] = field(default_factory=dict)
    files_of: Mapping[Extent, NDArray[np.int64]] = field(default_factory=dict)
    grown: Extent | None = None

    def is_of(self, tables: Mapping[str, Bound]) -> bool:
        """Return whether the epoch was read of some tables as they are now, those by other names left out."""
        common = (name for name in self.tables if name in tables)
        same = (self.tables[name].table["fingerprint"] == tables[name].table["fingerprint"] for name in common)
        return all(same) and not self.taken.extents
