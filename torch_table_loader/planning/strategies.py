"""One adapter for every form of split strategy: cutter, three-argument and five-argument generator."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.planning.cutting import TargetSizeStrategy
from torch_table_loader.planning.splits import SplitTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.layout import TableLayout
    from torch_table_loader.records import Shard

ENTRY_POINT_GROUP = "torch_table_loader.strategies"

Form = Literal["cutter", "generator", "generator_with_ranks"]


@dataclass(frozen=True, slots=True)
class Strategy:
    """A split strategy whose form is known.

    Args:
        target: the caller's object.
        form: what its signature says.
        name: for messages, plans and states.
    """

    target: Any
    form: Form
    name: str

    @property
    def cuts(self) -> bool:
        """Whether the library shuffles, slices and assigns."""
        return self.form == "cutter"

    def cut(self, layout: TableLayout) -> SplitTable:
        """Run a cutter and check that it covers each row once."""
        splits = SplitTable.of(layout, self.target(layout), self.name)
        splits.check_coverage(self.name)
        return splits

    def deal(
        self, layout: TableLayout, lanes: int, epoch: int, num_ranks: int, rank: int
    ) -> tuple[SplitTable, NDArray[np.int64]]:
        """Run a generator for one rank.

        Returns:
            Its splits, shard by shard in reading order, and int64[S]: the lane of each.
        """
        files = list(layout)
        if self.form == "generator":
            shards = self.target.generate(files, lanes, epoch)
        else:
            shards = self.target.generate(files, lanes, epoch, num_ranks, rank)
        lane_of = self._lanes(shards, lanes)
        splits = SplitTable.of(layout, [split for shard in shards for split in shard.splits], self.name)
        return splits, np.repeat(lane_of, [len(shard.splits) for shard in shards])

    def check_coverage(self, parts: Sequence[SplitTable]) -> None:
        """Refuse a generator whose ranks together leave a row out or read one twice.

        Args:
            parts: one table a rank; of a three-argument generator, each covers all rows on its own.
        """
        if self.form == "generator":
            for part in parts:
                part.check_coverage(self.name)
            return
        joined = (np.concatenate([getattr(p, name) for p in parts]) for name in ("file", "row_start", "row_stop"))
        SplitTable(parts[0].layout, *joined).check_coverage(f"{self.name}, over its {len(parts)} ranks,")

    def _lanes(self, shards: Sequence[Shard], lanes: int) -> NDArray[np.int64]:
        ids = [shard.id for shard in shards]
        if len(set(ids)) != len(ids) or not set(ids) <= set(range(lanes)):
            raise ConfigError(
                f"{self.name}.generate must return at most one shard for each of {lanes} workers, with ids in "
                f"[0, {lanes}), got ids {ids}"
            )
        return np.array(ids, dtype=np.int64)


def resolve_strategy(given: Any, arguments: Mapping[str, Any]) -> Strategy:
    """Find the strategy that the caller means.

    Args:
        given: an object, the name of an installed entry point, or None for the default.
        arguments: what a factory found by name may take: shuffle, seed, target_bytes, target_rows.

    Raises:
        ConfigError: no entry point of that name (the nearest are named).
        ConfigTypeError: the object has neither form.
    """
    if given is None:
        given = TargetSizeStrategy(**_accepted(TargetSizeStrategy, arguments))
    elif isinstance(given, str):
        factory = _installed(given)
        given = factory(**_accepted(factory, arguments))
    return Strategy(given, _form(given), getattr(given, "__name__", type(given).__name__))


def _installed(name: str) -> Callable[..., Any]:
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        near = difflib.get_close_matches(name, found) or sorted(found)
        raise ConfigError(f"no split strategy is installed under the name {name!r}; did you mean {', '.join(near)}?")
    factory: Callable[..., Any] = found[name].load()
    return factory


def _accepted(factory: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the arguments that the caller chose and the factory has a parameter for."""
    parameters = inspect.signature(factory).parameters
    return {name: value for name, value in arguments.items() if value is not None and name in parameters}


def _form(given: Any) -> Form:
    generate = getattr(given, "generate", None)
    if callable(generate):
        parameters = inspect.signature(generate).parameters
        if any(p.kind is p.VAR_POSITIONAL for p in parameters.values()) or len(parameters) >= 5:
            return "generator_with_ranks"
        if len(parameters) == 3:
            return "generator"
        raise ConfigTypeError(
            f"generate must take (files, num_workers, epoch) or (files, num_workers, epoch, num_ranks, rank), "
            f"got {type(given).__name__}.generate{inspect.signature(generate)}"
        )
    if callable(given) and not isinstance(given, type):
        return "cutter"
    raise ConfigTypeError(
        f"split_strategy must be a callable that cuts files into splits, an object with generate(), or the name of "
        f"an entry point, got {given!r}" + ("; pass an instance, not the class" if isinstance(given, type) else "")
    )


__all__ = ["ENTRY_POINT_GROUP", "Strategy", "resolve_strategy"]
