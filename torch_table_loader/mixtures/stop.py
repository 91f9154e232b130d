"""When an epoch of a mixture ends, as requested by the caller: validated once, then frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast, get_args

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.schedules import MOST_PLACES, Done
from torch_table_loader.units import integer

StopWord = Literal["first_exhausted", "all_exhausted", "forever"]


@dataclass(frozen=True, slots=True)
class Stop:
    """When an epoch of a mixture ends, and how often its sources may come.

    Args:
        at: a word of `stop=`, or the most times that sources may come, by name, where the epoch ends before one of them
            came oftener.
        drop: the most times that other sources may come, by name, such as ``{"books": 4}``: before a row of theirs
            would come a fifth time, the others go on without them, in the same proportions. They do not end the epoch,
            unless no source is left.
        samples: rows (with `pack`, sequences) after which the epoch ends in any case.
        tokens: the same in tokens of packed sequences, each of which counts the length that it has; the last one that
            fits is delivered.

    Raises:
        ConfigError: a number is not an integer of at least 1, or a source is named twice.

    >>> Stop("forever", drop={"books": 4}, tokens=1_000_000_000).limits({"books": 10, "web": 90})
    {}
    """

    at: StopWord | Mapping[str, int] = field(default="first_exhausted", hash=False)
    drop: Mapping[str, int] = field(default_factory=dict, hash=False)
    samples: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        """Check the arguments."""
        if not isinstance(self.at, Mapping) and self.at not in get_args(StopWord):
            known = ", ".join(map(repr, get_args(StopWord)))
            raise ConfigError(f"stop must be one of {known}, or the most times of sources by name, got {self.at!r}")
        if not isinstance(self.drop, Mapping):
            raise ConfigTypeError(f"drop of Stop must be the most times of sources by name, got {self.drop!r}")
        if isinstance(self.at, Mapping):
            object.__setattr__(self, "at", _times("stop", self.at))
        object.__setattr__(self, "drop", _times("drop", self.drop))
        if twice := [name for name in self.drop if name in self.named]:
            raise ConfigError(f"stop ends the epoch by {twice[0]!r}, and drop leaves it out; name it in one of them")
        for name in ("samples", "tokens"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, integer(f"{name} of Stop", getattr(self, name), 1, MOST_PLACES))

    @property
    def named(self) -> Mapping[str, int]:
        """The sources that end the epoch, and how often they may come; empty where a word says it."""
        if isinstance(self.at, str):
            return {}
        return self.at

    def limits(self, rows: Mapping[str, int]) -> dict[str, int]:
        """Return how many rows of each source decide where an epoch ends, by name."""
        if isinstance(self.at, str):
            if self.at == "forever":
                return {}
            if self.at != "first_exhausted":
                return dict(rows)
            return {name: own for name, own in rows.items() if name not in self.drop}
        return {name: times * rows[name] for name, times in self.at.items() if name in rows}

    def caps(self, rows: Mapping[str, int]) -> dict[str, int]:
        """Return after how many rows sources are dropped, by name."""
        return {name: times * rows[name] for name, times in self.drop.items() if name in rows}

    def within(self, total: int) -> int:
        """Return the samples of an epoch that would have `total` without `samples`."""
        if self.samples is None:
            return total
        return min(total, self.samples)

    def in_samples(self, width: int, done: Done = Done()) -> Stop:  # noqa: B008 it is frozen
        """Return the same with `tokens` counted as `samples`: what is done, and the sequences that fit after it.

        Args:
            width: tokens of each of these sequences.

        Raises:
            ConfigError: no sequence fits, and none came before.
        """
        if self.tokens is None:
            return self
        if not done.samples and self.tokens < width:
            raise ConfigError(f"tokens of Stop must be at least those of one sequence, {width}, got {self.tokens}")
        fit = done.samples + max(0, self.tokens - done.tokens) // width
        if self.samples is not None:
            fit = min(fit, self.samples)
        return replace(self, tokens=None, samples=fit)

    def in_words(self, what: str = "row") -> str:
        """Return when an epoch ends, in words."""
        ends: dict[str, str] = {
            "first_exhausted": f"before any source repeats a {what}",
            "all_exhausted": f"when each source has delivered all its {what}s",
            "forever": "never",
        }
        if isinstance(self.at, str):
            all_ends = [ends[self.at]]
        else:
            oftener = (f"{name!r} comes more than {times} times" for name, times in self.at.items())
            all_ends = [f"before {' or '.join(oftener)}"]
        for most, unit in ((self.samples, f"{what}s"), (self.tokens, "tokens")):
            if most is not None:
                all_ends.append(f"after {most:,} {unit}")
        if len(all_ends) > 1 and all_ends[0] == "never":
            del all_ends[0]
        end = ", or ".join(all_ends)
        dropped = " and ".join(f"{name!r} after it came {times} times" for name, times in self.drop.items())
        if dropped:
            return f"{end}; the others go on without {dropped}"
        return end

    @property
    def as_dict(self) -> dict[str, Any]:
        """The arguments that change the order, as plain data for a state."""
        found: dict[str, Any] = {"stop": self.at}
        if not isinstance(self.at, str):
            found["stop"] = dict(self.at)
        if self.drop:
            found["drop"] = dict(self.drop)
        most = {"samples": self.samples, "tokens": self.tokens}
        return found | {name: number for name, number in most.items() if number is not None}


StopRule: TypeAlias = StopWord | Mapping[str, int] | Stop
"""When an epoch ends; or how often some sources may come at most, the epoch ending before one of them came oftener."""


def as_stop(rule: StopRule) -> Stop:
    """Return what ends an epoch as a `Stop`.

    Raises:
        ConfigError: the rule is unknown.
    """
    if isinstance(rule, Stop):
        return rule
    return Stop(cast("Any", rule))


def _times(name: str, given: Mapping[str, Any]) -> dict[str, int]:
    """Return times by name, sorted."""
    return {source: integer(f"{name}[{source!r}]", given[source], 1) for source in sorted(given)}
