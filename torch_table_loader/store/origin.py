"""Where the bytes of a store come from, for messages about damage."""

from __future__ import annotations

from dataclasses import dataclass

from torch_table_loader.errors import TableError

REMEDY = "remove it with `torch-table-loader store prune --damaged`, and it is built again"
REMOVE_FOLDER = "remove that folder, and it is built again"


@dataclass(frozen=True, slots=True)
class Origin:
    """A store in files.

    Args:
        remedy: what to do if it is damaged.
    """

    name: str
    remedy: str = REMEDY

    def damaged(self, what: str, why: str = "is not what was written") -> TableError:
        """Return the error for damage.

        Args:
            what: the file, and the chunk if the file holds several.
        """
        return TableError(f"the row store {self.name!r} is damaged: {what} {why}; {self.remedy}")
