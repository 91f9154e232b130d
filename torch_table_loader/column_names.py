"""What ``in`` asks of a dataset and of its loader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_table_loader.errors import ConfigTypeError

if TYPE_CHECKING:
    from torch_table_loader.position import JobPosition


class NamedColumns:
    """A table whose columns ``in`` asks for: ``"price" in dataset`` reads nothing."""

    _position: JobPosition

    def __contains__(self, name: object) -> bool:
        """Return whether a column of this name comes out; see `schema` of the dataset.

        Raises:
            ConfigTypeError: it is not a name. Python would read the whole epoch and compare it with each batch.
        """
        if not isinstance(name, str):
            raise ConfigTypeError(
                f"`in` asks for the name of a column, got {type(name).__name__}; iterate to look for rows or batches"
            )
        return name in self._position.job.schema(self._position.next).names
