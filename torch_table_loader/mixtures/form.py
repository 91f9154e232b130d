"""What the sources of a mixture must have in common: columns, the form of their rows, and names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow import compute as pc
from torch_table_loader.batching.codec import make_codec
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.engine.jobs.job import with_padding
from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.mixtures.mixture import BLOCK_ROWS, NaturalShares, ShareUnit, smallest
from torch_table_loader.mixtures.stop import Stop, as_stop
from torch_table_loader.option_values import Pad
from torch_table_loader.options import ABOUT
from torch_table_loader.records import SOURCE_COLUMN
from torch_table_loader.samples import Samples, SamplesOption
from torch_table_loader.schedules import Schedule, as_schedule

if TYPE_CHECKING:
    from torch_table_loader.engine.items import TableItems
    from torch_table_loader.engine.jobs.job import Job
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.ranks import Topology

FORM_OPTIONS = tuple(name for name, about in ABOUT.items() if about.form)
"""Options that say in what form rows come: sources have them in common, and the mixture takes them from there."""


def common_columns(sources: Mapping[str, Job | TableItems], options: LoaderOptions) -> pa.Schema:
    """Return the columns that come out of a mixture: those of its sources, in the first one's order, and `source`.

    Where samples are made of rows, `source` is a column of these.

    Raises:
        ConfigError: sources differ, or have a column of ours; names the column and both types.
    """
    first, *others = sources
    delivered = {name: source.columns for name, source in sources.items()}
    samples = options.samples
    flat = delivered
    if not samples.are_rows:
        flat = {name: samples.parts.flat_columns(own) for name, own in delivered.items()}
    schema = flat[first]
    for name in others:
        _compare(first, schema, name, flat[name])
    if SOURCE_COLUMN in schema.names:
        raise ConfigError(
            f"the mixture adds a column {SOURCE_COLUMN!r}, but the sources have one of that name; leave it out of "
            "columns="
        )
    nullable = [any(other.field(field.name).nullable for other in flat.values()) for field in schema]
    typed = [pa.field(field.name, field.type, nullable=some) for field, some in zip(schema, nullable, strict=True)]
    source = pa.field(SOURCE_COLUMN, pa.int64(), nullable=False)
    if samples.are_rows:
        return pa.schema([*typed, source])
    columns: pa.Schema = samples.parts.columns_of_mixture(samples, typed, source)
    return columns


def common_form(sources: Mapping[str, LoaderOptions]) -> dict[str, Any]:
    """Return the options that say in what form rows come: the `FORM_OPTIONS`.

    Raises:
        ConfigError: sources differ; names the option and both values.
    """
    (first, options), *others = sources.items()
    for own in sources.values():
        own.samples.check_mixed()
    for name, other in others:
        keyed = any(isinstance(own.columns, Mapping) for own in (options, other))
        for option in (*FORM_OPTIONS, *(["columns"] if keyed else [])):
            one, two, called = getattr(options, option), getattr(other, option), option
            if isinstance(one, SamplesOption) and isinstance(two, SamplesOption):
                called, one, two = one.difference(two) or (called, None, None)
            if not same(one, two):
                raise ConfigError(
                    f"the sources of a mixture must come in one form, but {called} is {one!r} in {first!r} and "
                    f"{two!r} in {name!r}; pass the same to both"
                )
    TypePolicy.of(options)
    keys = {"columns": options.columns} if isinstance(options.columns, Mapping) else {}
    return {option: getattr(options, option) for option in FORM_OPTIONS} | keys


def same(one: Any, two: Any) -> bool:
    """Compare what two options say: lists are equal to tuples and arrays of the same, and NaN is to NaN."""
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        return one.keys() == two.keys() and all(same(one[name], two[name]) for name in one)
    if isinstance(one, pc.Expression) or isinstance(two, pc.Expression):
        return isinstance(one, pc.Expression) and isinstance(two, pc.Expression) and bool(one.equals(two))
    if isinstance(one, Pad) and isinstance(two, Pad):
        one, two = astuple(one), astuple(two)
    if all(isinstance(each, (Sequence, np.ndarray)) and not isinstance(each, (str, bytes)) for each in (one, two)):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two or (one != one and two != two))  # noqa: PLR0124 as NaN alone is


def places_of(columns: pa.Schema, own: pa.Schema) -> tuple[int, ...]:
    """Return where a source has each column of the mixture but `source`."""
    return tuple(own.get_field_index(name) for name in columns.names if name != SOURCE_COLUMN)


def checked_columns(sources: Mapping[str, Job | TableItems], options: LoaderOptions, topology: Topology) -> pa.Schema:
    """Return the columns that come out of a mixture; refuse those that its batches cannot have.

    Raises:
        ConfigError: see `common_columns`; or the output cannot hold a column.
    """
    columns = common_columns(sources, options)
    make_codec(with_padding(columns, topology), TypePolicy.of(options))
    return columns


def _compare(first: str, schema: pa.Schema, name: str, other: pa.Schema) -> None:
    for one, two, has, lacks in ((schema, other, first, name), (other, schema, name, first)):
        if missing := [field for field in one if two.get_field_index(field.name) < 0]:
            raise ConfigError(
                f"the sources of a mixture must have the same columns, but {missing[0].name!r} ({missing[0].type}) of "
                f"{has!r} is not in {lacks!r}; choose with columns= in both"
            )
    for entry in schema:
        if entry.type != (found := other.field(entry.name).type):
            raise ConfigError(
                f"the sources of a mixture must have the same types, but column {entry.name!r} is {entry.type} in "
                f"{first!r} and {found} in {name!r}; pass schema= to one of them, or leave the column out"
            )


def scheduled_weights(weights: Any, sources: Mapping[str, Job]) -> Schedule:
    """Return the weights by the step or sample from which they hold.

    Raises:
        ConfigError: a schedule does not begin at step 0, has a step below, or counts tokens where rows differ in them.
    """
    found, samples = as_schedule(weights), next(iter(sources.values())).samples
    samples.check_unit(found)
    if samples.lengths is None:
        return found.in_samples(samples.width)
    return found


def checked_weights(
    weights: Mapping[str, float] | NaturalShares, sources: Mapping[str, object]
) -> dict[str, int] | NaturalShares:
    """Return weights as the smallest integers, or the word for natural shares.

    Raises:
        ConfigError: they do not name the sources, all of them and no other, or one is wrong.
    """
    if isinstance(weights, str):
        if weights not in get_args(NaturalShares):
            raise ConfigTypeError(
                f'weights must be numbers by source name, or "rows" or "tokens" to take all that the sources have, '
                f"got {weights!r}"
            )
        return weights
    _check_source_names(weights, sources)
    return smallest(weights)


def resolve_block(
    weights: Mapping[str, float] | NaturalShares, unit: ShareUnit, block: int | None, samples: Samples
) -> int:
    """Return the least rows of a block; 0: every prefix has the shares.

    Raises:
        ConfigError: what is asked for has no tokens to count, or a block beside it.
    """
    if unit not in get_args(ShareUnit):
        raise ConfigError(f'unit must be "rows" or "tokens", got {unit!r}')
    asked = 'unit="tokens"' if unit == "tokens" else f'weights="{weights}"' if isinstance(weights, str) else ""
    if "tokens" in asked:
        samples.check_tokens(asked, _shares_of_rows(unit))
    if block is None:
        if asked:
            return 0
        return BLOCK_ROWS
    if asked and block:
        raise ConfigError(f"{asked} holds after every row and needs no block, got block={block}; leave it out")
    return block


def _shares_of_rows(unit: ShareUnit) -> str:
    """Say what comes near to shares of tokens where rows are mixed whose tokens differ in number."""
    if unit == "tokens":
        return 'unit="rows" and each weight divided by the mean tokens of its source\'s rows: shares on average'
    return 'weights="rows", which delivers each row once, and so each token'


def stream_weights(
    weights: Mapping[str, float] | NaturalShares,
    sources: Mapping[str, object],
    unit: ShareUnit,
    block: int | None,
    samples: Samples,
) -> dict[str, int] | NaturalShares:
    """Return the weights of a mixture of streams; see `checked_weights`.

    Raises:
        ConfigError: they do not fit the sources, or what is asked for does not work for streams.
    """
    given = checked_weights(weights, sources)
    resolve_block(given, unit, None, samples)
    if block is not None:
        raise ConfigError(
            f'block={block} is for sources with shuffle="rows": a mixture of streams has its shares after every step '
            "in which each source has a row; leave block out"
        )
    return given


def share_notes(
    names: Sequence[str],
    items: Mapping[str, int],
    shares: Mapping[str, float],
    delivered: Mapping[str, int] | None,
    what: str = "row",
) -> list[str]:
    """Return what `explain()` says of each source of a mixture.

    Args:
        delivered: items that an epoch delivers, by name; None if it has no end.
    """
    notes = []
    for number, name in enumerate(names):
        note = f"source {number} is {name!r}: {items[name]:,} {what}s, a share of {shares[name]:.4g}"
        if delivered is not None and items[name]:
            times = delivered[name] / items[name]
            note += f"; the epoch delivers {delivered[name]:,}, {times:.3g} times the source"
        notes.append(note)
    return notes


def checked_stop(stop: Any, sources: Mapping[str, Any]) -> Stop:
    """Return when an epoch ends, counted in rows or sequences; in tokens, where sequences change their length.

    Raises:
        ConfigError: it is no rule, names no source, or counts tokens where rows have none, or differ in them.
    """
    rule = as_stop(stop)
    if not rule.at:
        raise ConfigError('stop names no source, so the epoch would not end; pass stop="forever" if that is meant')
    times = {**rule.named, **rule.drop}
    if unknown := [name for name in times if name not in sources]:
        raise ConfigError(f"stop names {unknown[0]!r}, and the sources are {', '.join(map(repr, sources))}")
    for name, most in times.items():
        if most > 1 and sources[name].samples.changes_by_round:
            raise ConfigError(
                f"stop[{name!r}] counts rounds of as many sequences, and best fit of rows packs each round anew; pass "
                'stop="forever", or another strategy'
            )
    if rule.tokens is None:
        return rule
    samples = next(iter(sources.values())).samples
    samples.check_tokens("tokens= of Stop", "samples=, which counts rows or sequences")
    counted = rule.in_samples(samples.width)
    if samples.lengths is None:
        return counted
    return rule


def _check_source_names(weights: Mapping[str, float], sources: Mapping[str, object]) -> None:
    """Refuse weights that do not name the sources, all of them and no other."""
    if not isinstance(weights, Mapping):
        raise ConfigTypeError(f"weights must be numbers by source name, got {weights!r}")
    if missing := [name for name in sources if name not in weights]:
        raise ConfigError(f"weights must name every source, and {missing[0]!r} is not in it; 0 leaves a source out")
    if unknown := [name for name in weights if name not in sources]:
        raise ConfigError(f"weights names {unknown[0]!r}, and the sources are {', '.join(map(repr, sources))}")
