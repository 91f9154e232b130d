"""pyarrow's Parquet files without a list for each column, of all of which Python's collector would take notice.

`_build_nested_paths` and `_get_column_indices` are hooks of pyarrow that it does not document. A version without them
reads the same, and slower.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from torch_table_loader.cached import cached_property


class WideParquet(pq.ParquetFile):  # type: ignore[misc]  # pyarrow has no types
    """A file of any number of columns, which are looked up when they are asked for."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Open a file, by the arguments of `pyarrow.parquet.ParquetFile`."""
        self._places: dict[tuple[str, ...], list[int]] = {}
        super().__init__(*arguments, **options)

    def _build_nested_paths(self) -> Leaves:
        """Return where pyarrow looks up columns."""
        return Leaves(self.reader)

    def group(self, number: int, columns: tuple[str, ...], *, use_threads: bool) -> pa.Table:
        """Read columns of a row group like `read_row_group`, in fewer steps where they were read before."""
        places = self._places.get(columns)
        if places is None:
            return self.read_row_group(number, columns, use_threads=use_threads)
        return self.reader.read_row_group(number, column_indices=places, use_threads=use_threads)

    def _get_column_indices(self, column_names: Sequence[str] | None, **options: Any) -> Any:
        """Look the columns of a read up once, since row groups are read with the same ones."""
        if column_names is None or any(options.values()):
            return super()._get_column_indices(column_names, **options)
        names = tuple(column_names)
        if (places := self._places.get(names)) is None:
            places = self._places[names] = Leaves(self.reader).places(names)
        return places


class Leaves:
    """The places of the leaves of a column, or of a field inside it, by its dotted name."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def __contains__(self, name: str) -> bool:
        """Whether there are any."""
        return bool(self[name])

    def __getitem__(self, name: str) -> list[int]:
        """Return the places; none of a name that the file lacks."""
        return self.places([name])

    def places(self, names: Sequence[str]) -> list[int]:
        """Return the places of the leaves of several columns or fields, in their order."""
        schema = self._reader.schema_arrow
        found = [-1]
        if len(schema) == self._reader.metadata.num_columns:  # each column is one leaf
            found = [schema.get_field_index(name) for name in names]
        if min(found, default=0) >= 0:
            return found
        return [place for name in names for place in self._by_name.get(name, ())]

    @cached_property
    def _by_name(self) -> dict[str, list[int]]:
        found = defaultdict(list)
        for place, path in enumerate(self._reader.column_paths):
            for depth in range(len(path)):
                found[".".join(path[: depth + 1])].append(place)
        return dict(found)
