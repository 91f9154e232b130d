"""One adapter for every form of split strategy: cutter, three-argument and five-argument generator."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from torch_table_loader.contracts import load_installed
from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.planning.cutting import TargetSizeStrategy
from torch_table_loader.planning.keys import as_int
from torch_table_loader.planning.splits import SplitTable, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.layout import TableLayout
    from torch_table_loader.records import DataFileInfo, Shard

ENTRY_POINT_GROUP = "torch_table_loader.strategies"

Form = Literal["cutter", "generator", "generator_with_ranks"]
Coverage = Literal["once", "any"]


@dataclass(frozen=True, slots=True)
class Strategy:
    """A split strategy whose form is known.

    Args:
        took: the caller's options that it was constructed with.
        coverage: "once", or "any" if splits may leave rows out or contain them several times.
    """

    target: Any
    form: Form
    name: str
    took: frozenset[str] = frozenset()
    coverage: Coverage = "once"
    cuts: bool = field(init=False)
    """Whether the library shuffles, slices and assigns splits."""

    def __post_init__(self) -> None:
        """Note what the form says."""
        object.__setattr__(self, "cuts", self.form == "cutter")

    def told_coverage(self, layout: TableLayout) -> str:
        """Say what a strategy of "any" coverage leaves out of a table, and what it gives several times."""
        declared = f"{self.name} declares coverage='any'"
        if not self.cuts:
            return f"{declared}: an epoch has the rows that it deals for it"
        splits = self.cut(layout)
        cover = splits.cover(np.arange(len(layout)))
        starts, own = layout.file_starts, layout.file_starts[splits.file]
        held = np.zeros(len(cover) + 1, dtype=np.int64)
        places = starts[cover.file] + cover.row_start
        np.add.at(held, np.searchsorted(places, own + splits.row_start), 1)
        np.add.at(held, np.searchsorted(places, own + splits.row_stop), -1)
        times, rows = np.cumsum(held)[:-1], cover.num_rows
        again = int(((times - 1) * rows)[times > 1].sum())
        missing = int(rows[times == 0].sum())
        return f"{declared}: {missing:,} of {layout.num_rows:,} rows are left out, and {again:,} come again"

    def cut(self, layout: TableLayout) -> SplitTable:
        """Run a cutter, and return its splits.

        The splits are checked to cover each row once, and files that must not be cut are put together again. Splits of
        "any" coverage are taken unchanged.
        """
        answer = self.target(layout)
        if not isinstance(answer, SplitTable):
            answer = _listed(answer, self.name, "a list of splits")
        splits = SplitTable.of(layout, answer, self.name)
        if self.coverage == "any":
            return replace(splits, loose=True)
        splits.check_coverage(self.name)
        return splits.joined()

    def shards(
        self, files: Sequence[DataFileInfo], lanes: int, epoch: int, num_ranks: int, rank: int
    ) -> Sequence[Shard]:
        """Call a generator for one rank, as its signature requires; see `contracts.SplitStrategy`."""
        values = {"num_workers": lanes, "epoch": epoch, "num_ranks": num_ranks, "rank": rank}
        by_place, by_name = _calling(inspect.signature(self.target.generate)) or ((), ())
        placed, named = [values[name] for name in by_place], {name: values[name] for name in by_name}
        who = f"{self.name}.generate"
        answer = self.target.generate(files, *placed, **named)
        shards = _listed(answer, who, "a list of shards")
        for shard in shards:
            if not hasattr(shard, "id") or not hasattr(shard, "splits"):
                raise ConfigTypeError(
                    f"{who} must return shards, got {type(shard).__name__} {shown(shard)}; a shard is "
                    "Shard(worker, splits), one for each worker"
                )
        return shards

    def deal(
        self,
        layout: TableLayout,
        lanes: int,
        epoch: int,
        num_ranks: int,
        rank: int,
        files: Sequence[DataFileInfo] | None = None,
    ) -> tuple[SplitTable, NDArray[np.int64]]:
        """Run a generator for one rank; see `contracts.SplitStrategy`.

        Returns:
            Its splits, shard by shard in reading order, and int64[S]: the lane of each.
        """
        if files is None:
            files = layout
        shards = self.shards(list(files), lanes, epoch, num_ranks, rank)
        lane_of = self._lanes(shards, lanes)
        parts = [
            _listed(shard.splits, f"{self.name}.generate", f"a list of splits in shard {shard.id}") for shard in shards
        ]
        splits = SplitTable.of(layout, [split for part in parts for split in part], self.name)
        splits = replace(splits, loose=self.coverage == "any")
        return splits, np.repeat(lane_of, [len(part) for part in parts])

    def check_coverage(self, parts: Sequence[SplitTable]) -> None:
        """Refuse a generator whose ranks together leave a row out or read one twice, unless it declares that.

        Args:
            parts: one table for each rank; for a three-argument generator, each covers all rows on its own.
        """
        if self.coverage == "any":
            return
        if self.form == "generator":
            for part in parts:
                part.check_coverage(self.name)
            return
        joined = (np.concatenate([getattr(p, name) for p in parts]) for name in ("file", "row_start", "row_stop"))
        SplitTable(parts[0].layout, *joined).check_coverage(f"{self.name}, over its {len(parts)} ranks,")

    def _lanes(self, shards: Sequence[Shard], lanes: int) -> NDArray[np.int64]:
        ids = [as_int(f"the id of a shard of {self.name}.generate", shard.id) for shard in shards]
        if len(set(ids)) != len(ids) or not set(ids) <= set(range(lanes)):
            raise ConfigError(
                f"{self.name}.generate must return at most one shard for each of {lanes} workers, with ids in "
                f"[0, {lanes}), got ids {ids}"
            )
        return np.array(ids, dtype=np.int64)


def resolve_strategy(given: Any, arguments: Mapping[str, Any]) -> Strategy:
    """Find the strategy that the caller asks for.

    Args:
        given: an object, the name of an installed entry point, or None for the default.
        arguments: arguments for a factory found by name: shuffle, seed, target_bytes, target_rows.

    Raises:
        ConfigError: no entry point has that name (the message names the nearest), one cannot be loaded, or the coverage
            is unknown.
        ConfigTypeError: the object has neither form.
    """
    accepted: dict[str, Any] = {}
    if given is None:
        accepted = _accepted(TargetSizeStrategy, arguments)
        given = TargetSizeStrategy(**accepted)
    elif isinstance(given, str):
        given = load_installed(ENTRY_POINT_GROUP, given, "split strategy")
        if _is_factory(given):
            accepted = _accepted(given, arguments)
            given = given(**accepted)
    named = given
    if isinstance(given, functools.partial):
        named = given.func
    name = getattr(named, "__name__", type(named).__name__)
    return Strategy(given, _form(given), name, frozenset(accepted), _coverage(given, named, name))


def _coverage(given: Any, named: Any, name: str) -> Coverage:
    coverage: Coverage = getattr(given, "coverage", getattr(named, "coverage", "once"))
    if coverage not in get_args(Coverage):
        raise ConfigError(
            f"coverage of {name} must be 'once', or 'any' where splits may leave rows out or hold them several times, "
            f"got {coverage!r}"
        )
    return coverage


def _is_factory(loaded: Any) -> bool:
    """Return whether an entry point is a factory of strategies (a class, a function without required parameters)."""
    if isinstance(loaded, type):
        return True
    return not hasattr(loaded, "generate") and callable(loaded) and _binds(inspect.signature(loaded))


def _accepted(factory: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the arguments that the caller set and the factory has a parameter for."""
    names = _named(inspect.signature(factory))
    return {name: value for name, value in arguments.items() if value is not None and name in names}


def _form(given: Any) -> Form:
    if isinstance(given, type):
        raise ConfigTypeError(f"split_strategy must be an instance, got the class {given.__name__}; call it first")
    generate = getattr(given, "generate", None)
    if callable(generate):
        calling = _calling(signature := inspect.signature(generate))
        if calling is None:
            raise ConfigTypeError(
                f"generate must take (files, num_workers, epoch) or (files, num_workers, epoch, num_ranks, rank), "
                f"got {type(given).__name__}.generate{signature}"
            )
        if "rank" in calling[0] + calling[1]:
            return "generator_with_ranks"
        return "generator"
    if not callable(given):
        raise ConfigTypeError(
            f"split_strategy must be a callable that cuts files into splits, an object with generate(), or the name "
            f"of an entry point, got {given!r}"
        )
    if not _binds(signature := inspect.signature(given), "files"):
        raise ConfigTypeError(f"a strategy that cuts must take the files alone, got a callable with {signature}")
    return "cutter"


def _calling(signature: inspect.Signature) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return which arguments after the files `generate` takes by position and by name; None if it is not callable.

    Parameters named as in the contract are passed by name, so that their order and defaults do not matter. Others
    with a default are the strategy's own: ``generate(files, num_workers, epoch, seed=0, salt=0)`` takes no ranks.
    """
    names = _named(signature)
    variadic = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in signature.parameters.values())
    base, ranks = ("num_workers", "epoch"), ("num_ranks", "rank")
    candidates: list[tuple[tuple[str, ...], tuple[str, ...]]]
    if names.issuperset(ranks):
        candidates = [((), base + ranks), (base, ranks)]
    elif names.intersection(ranks):
        candidates = []
    elif variadic or not _binds(signature, "files", *base):
        candidates = [(base + ranks, ()), ((), base)]
    else:
        candidates = [((), base), (base, ())]
    for by_place, by_name in candidates:
        known = names.issuperset(by_name)
        if known and _binds(signature, "files", *by_place, **dict.fromkeys(by_name)):
            return by_place, by_name
    return None


def _named(signature: inspect.Signature) -> set[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name for name, parameter in signature.parameters.items() if parameter.kind in kinds}


def _binds(signature: inspect.Signature, *args: Any, **kwargs: Any) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _listed(answer: Any, who: str, what: str) -> Sequence[Any]:
    if isinstance(answer, str | bytes | Mapping) or not isinstance(answer, Iterable):
        raise ConfigTypeError(f"{who} must return {what}, got {type(answer).__name__}")
    return list(answer)
