"""Options in groups: a group holds options that are chosen together, and only fills the flat ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from torch_table_loader.column_options import ColumnFunctions, StringsOption
from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.options import (
    DEFAULT_CACHE_BYTES,
    DEFAULT_READ_AHEAD,
    DEFAULT_RETRY_SECONDS,
    DEFAULT_ROW_STORE_MEMORY,
    BatchBy,
    EvenRanks,
    OnError,
)
from torch_table_loader.ragged import RaggedOption
from torch_table_loader.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionGroup:
    """What all groups are: the names of the fields that the caller gave, beside the fields.

    The fields of a group have names, types and defaults of those of `LoaderOptions`, which checks their values. A
    test holds the two together.
    """

    given: frozenset[str] = field(init=False, repr=False, compare=False)

    def __new__(cls, **given: Any) -> Self:
        """Note what is given, which a default that is written out is too."""
        group = object.__new__(cls)
        object.__setattr__(group, "given", frozenset(given))
        return group


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMode(OptionGroup):
    """The options for ``shuffle="rows"`` only; see docs/options.md."""

    global_batch_size: int | None = None
    micro_batches: int = 1
    row_store: str | None = field(default=None, repr=False)
    row_store_memory: int | str = DEFAULT_ROW_STORE_MEMORY
    weights: Weights | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitMode(OptionGroup):
    """The options for splits, which ``shuffle="rows"`` does not have; see docs/options.md."""

    split_bytes: int | str | None = None
    split_rows: int | None = None
    split_strategy: Any = None
    shuffle_buffer_size: int | None = None
    count_filtered: bool = True
    batch_by: BatchBy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Distributed(OptionGroup):
    """The options of ranks and of equal steps; see docs/options.md."""

    num_ranks: int | Literal["auto"] | None = None
    rank: int | None = None
    mesh: Any = None
    even_ranks: EvenRanks | None = None
    check_plan: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(OptionGroup):
    """The options of memory, read-ahead and the local disk cache; see docs/options.md."""

    prefetch_batches: int | None = None
    pin_memory: bool = False
    read_ahead_bytes: int | str = DEFAULT_READ_AHEAD
    cache_dir: str | None = field(default=None, repr=False)
    cache_bytes: int | str = DEFAULT_CACHE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Types(OptionGroup):
    """The options of column types; see docs/options.md."""

    nulls: Mapping[str, Any] | Literal["mask"] | None = None
    ragged: RaggedOption | None = None
    strings: StringsOption = "list"
    vocabulary: Mapping[str, Sequence[str]] | None = None
    decimals: Literal["float64"] | None = None
    unsupported: Literal["list"] | None = None
    transforms: ColumnFunctions | None = field(default=None, repr=False)
    decode: ColumnFunctions | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(OptionGroup):
    """The options of finding and reading the table's files; see docs/options.md."""

    partitioning: Literal["hive"] | None = None
    schema: Any = None
    files: Sequence[str] | str | None = field(default=None, repr=False)
    raw_files: bool = False
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    retry_seconds: float = DEFAULT_RETRY_SECONDS
    verify_checksums: bool | Literal["all"] = True
    plan_cache: str | None = field(default=None, repr=False)
    on_error: OnError = "raise"
    on_growth: Literal["continue"] | None = None


GROUPS: tuple[type[OptionGroup], ...] = (Distributed, RowMode, SplitMode, Types, Memory, Reading)
"""All groups; an option is in one of them at most."""


def options_of(group: type[OptionGroup]) -> tuple[str, ...]:
    """Return the names of the options that a group has.

    >>> options_of(RowMode)[:2]
    ('global_batch_size', 'micro_batches')
    """
    return tuple(entry.name for entry in fields(group) if entry.init)


def flattened(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments with the fields that their groups give in the place of the groups.

    Args:
        keywords: flat options, and groups under "options".

    Raises:
        ConfigTypeError: an entry is not a group.
        ConfigError: an option is given twice.

    >>> flattened({"batch_size": 8, "options": [RowMode(micro_batches=2), Distributed(num_ranks=4, rank=1)]})
    {'batch_size': 8, 'micro_batches': 2, 'num_ranks': 4, 'rank': 1}
    """
    flat = {name: value for name, value in keywords.items() if name != "options"}
    said = dict.fromkeys(flat, "a keyword argument")
    for group in _groups(keywords.get("options", ())):
        here = type(group).__name__
        for name in options_of(type(group)):
            if name not in group.given:
                continue
            if name in said:
                raise ConfigError(f"{name} is given twice, by {said[name]} and by {here}({name}=...); give it once")
            flat[name], said[name] = getattr(group, name), f"{here}({name}=...)"
    return flat


def _groups(given: Any) -> Sequence[OptionGroup]:
    if isinstance(given, Sequence) and all(isinstance(group, OptionGroup) for group in given):
        return given
    wrong: Any = given
    if isinstance(given, Sequence) and not isinstance(given, str):
        wrong = next(group for group in given if not isinstance(group, OptionGroup))
    names = ", ".join(group.__name__ for group in GROUPS)
    remedy = "options=[it]" if isinstance(given, OptionGroup) else "other options as keyword arguments"
    raise ConfigTypeError(
        f"options must be a list of groups ({names}), such as options=[Distributed(num_ranks='auto')], got "
        f"{type(wrong).__name__}; pass {remedy}"
    )
