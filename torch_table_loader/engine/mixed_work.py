"""Rows of several stores in the order of a mixture, and what these must have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import tee
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_table_loader.arrow.reserved import PADDING_COLUMN
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.errors import ConfigError, ConfigTypeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.engine.row_job import RowJob
    from torch_table_loader.engine.row_work import RowFeed
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.mixture import Mixture, Place

    Ints: TypeAlias = NDArray[np.int64]

T = TypeVar("T")

SOURCE_COLUMN = "source"

_BLOCKS_AHEAD = 8
"""Blocks for which a store that is not in memory reads ahead: it must not run far ahead for a source that is rare."""

FORM_OPTIONS = ("output_format", "nulls", "ragged", "strings", "vocabulary", "decimals", "row_id")
"""Options that say in what form rows come: sources have them in common, and the mixture takes them from there."""


@dataclass(frozen=True, slots=True)
class SourceFeed:
    """One source of a mixture.

    Args:
        number: what the column `source` says.
        feed: its rows, by how many of them came before in the epoch.
        columns: for each column of the mixture, its place among the source's.
    """

    number: int
    feed: RowFeed
    columns: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class MixedFeed:
    """The rows of a mixture by their place in its order.

    Args:
        mixture: of the epoch.
        sources: in the order of the mixture's names.
    """

    mixture: Mixture
    sources: tuple[SourceFeed, ...]

    def columns(self, blocks: Iterator[tuple[Ints, T]]) -> Iterator[tuple[list[pa.Array], T]]:
        """Return the rows of blocks that come after each other, each as one array a column, `source` among them.

        A source without weight is never opened.
        """
        wanted = [number for number, weight in enumerate(self.mixture.shares.weights) if weight]
        own, *others = tee(((self.mixture.take(places), note) for places, note in blocks), 1 + len(wanted))
        streams = {number: self._of(number, found) for number, found in zip(wanted, others, strict=True)}
        numbers = np.array([entry.number for entry in self.sources], dtype=np.int64)
        for (source, _), note in own:
            each = {number: next(stream) for number, stream in streams.items()}
            parts = [each[number] for number in np.flatnonzero(np.bincount(source)).tolist()]
            yield [*_joined(parts, source), pa.array(numbers[source])], note

    def _of(self, number: int, found: Iterator[tuple[Place, Any]]) -> Iterator[list[pa.Array]]:
        """Yield the rows that each block has of one source; blocks without any count too, lest one look too far."""
        entry = self.sources[number]
        turns = ((place.turn[place.source == number], None) for place, _ in found)
        for columns, _ in entry.feed.columns(turns, _BLOCKS_AHEAD):
            yield [columns[column] for column in entry.columns]


def _joined(parts: list[list[pa.Array]], source: NDArray[np.int16]) -> list[pa.Array]:
    """Bring the rows of several sources into the order in which they come."""
    if len(parts) == 1:
        return parts[0]
    back = np.empty(len(source), dtype=np.int64)
    back[np.argsort(source, kind="stable")] = np.arange(len(source))
    indices = pa.array(back)
    return [pc.take(pa.concat_arrays(column), indices, boundscheck=False) for column in zip(*parts, strict=True)]


def common_columns(sources: Mapping[str, RowJob], options: LoaderOptions) -> pa.Schema:
    """Find the columns that come out of a mixture: those of its sources, in the first one's order, and `source`.

    Args:
        sources: by name.
        options: the mixture's.

    Raises:
        ConfigError: sources differ, or have a column of ours; names the column and both types.
    """
    (first, job), *others = sources.items()
    schema = job.columns
    for name, other in others:
        _compare(first, schema, name, other.columns)
    pads = options.even_ranks == "pad"
    if taken := [name for name in (SOURCE_COLUMN, *([PADDING_COLUMN] if pads else [])) if name in schema.names]:
        raise ConfigError(
            f"the mixture adds a column {taken[0]!r}, but the sources have one of that name; leave it out of columns="
        )
    nullable = [any(other.columns.field(field.name).nullable for other in sources.values()) for field in schema]
    fields = [pa.field(field.name, field.type, nullable=some) for field, some in zip(schema, nullable, strict=True)]
    return pa.schema([*fields, pa.field(SOURCE_COLUMN, pa.int64(), nullable=False)])


def common_form(sources: Mapping[str, LoaderOptions]) -> dict[str, Any]:
    """Find in what form rows come.

    Args:
        sources: the options of each, by name.

    Returns:
        The `FORM_OPTIONS`.

    Raises:
        ConfigError: sources differ; names the option and both values.
    """
    (first, options), *others = sources.items()
    for name, other in others:
        for option in FORM_OPTIONS:
            one, two = getattr(options, option), getattr(other, option)
            if not _same(one, two):
                raise ConfigError(
                    f"the sources of a mixture must come in one form, but {option} is {one!r} in {first!r} and "
                    f"{two!r} in {name!r}; pass the same to both"
                )
    TypePolicy.of(options)
    return {option: getattr(options, option) for option in FORM_OPTIONS}


def _same(one: Any, two: Any) -> bool:
    """Compare what two options say: lists are equal to tuples and arrays of the same, and NaN is to NaN."""
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        return one.keys() == two.keys() and all(_same(one[name], two[name]) for name in one)
    if all(isinstance(each, (Sequence, np.ndarray)) and not isinstance(each, (str, bytes)) for each in (one, two)):
        return len(one) == len(two) and all(map(_same, one, two))
    return bool(one == two or (one != one and two != two))  # noqa: PLR0124 as NaN alone is


def places_of(columns: pa.Schema, own: pa.Schema) -> tuple[int, ...]:
    """Return where a source has each column of the mixture but `source`."""
    return tuple(own.get_field_index(name) for name in columns.names[:-1])


def _compare(first: str, schema: pa.Schema, name: str, other: pa.Schema) -> None:
    for one, two, has, lacks in ((schema, other, first, name), (other, schema, name, first)):
        if missing := [field for field in one if field.name not in two.names]:
            raise ConfigError(
                f"the sources of a mixture must have the same columns, but {missing[0].name!r} ({missing[0].type}) of "
                f"{has!r} is not in {lacks!r}; choose with columns= in both"
            )
    for field in schema:
        if field.type != (found := other.field(field.name).type):
            raise ConfigError(
                f"the sources of a mixture must have the same types, but column {field.name!r} is {field.type} in "
                f"{first!r} and {found} in {name!r}; pass schema= to one of them, or leave the column out"
            )


def check_names(weights: Mapping[str, float], sources: Mapping[str, object]) -> None:
    """Refuse weights that do not name the sources, all of them and no other."""
    if not isinstance(weights, Mapping):
        raise ConfigTypeError(f"weights must be numbers by name of their source, got {weights!r}")
    if missing := [name for name in sources if name not in weights]:
        raise ConfigError(f"weights must name every source, and {missing[0]!r} is not in it; 0 leaves a source out")
    if unknown := [name for name in weights if name not in sources]:
        raise ConfigError(f"weights names {unknown[0]!r}, and the sources are {', '.join(map(repr, sources))}")
