"""What changes while a job runs, as requested by the caller: validated once, then frozen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.units import integer, one_of, whole

ScheduleUnit = Literal["steps", "samples", "tokens"]

MOST_PLACES = 1 << 61


class Done(NamedTuple):
    """How much of an epoch a job has done, or does in a step; samples and tokens are those of all ranks."""

    steps: int = 0
    samples: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """Values, each from a place of the first epoch on; later epochs have the last value.

    Args:
        values: by the step, sample or token from which they hold, the first from 0. A value holds from the first step
            on that begins there, or after it. A dict alone counts steps.
        unit: "steps": batches of a rank; "samples": rows (with `pack`, sequences) of all ranks; "tokens": those of
            packed sequences, each of which counts the length that it has.

    Raises:
        ConfigError: there is no value for 0, or a place is below it.

    >>> Schedule({0: 256, 100_000: 512}, unit="samples").at(0, Done(400, 102_400))
    512
    """

    values: Mapping[int, Any] = field(hash=False)
    unit: ScheduleUnit = "steps"

    def __post_init__(self) -> None:
        """Check the places, and sort them."""
        if not isinstance(self.values, Mapping) or not self.values:
            raise ConfigTypeError(f"a schedule must be values by the step from which they hold, got {self.values!r}")
        one_of(get_args(ScheduleUnit), "unit of Schedule", self.unit)
        given = {
            integer("a step of a schedule", place, None, MOST_PLACES): value for place, value in self.values.items()
        }
        if min(given) != 0:
            raise ConfigError(f"a schedule begins with the value of step 0, got {min(given)} as its first step")
        object.__setattr__(self, "values", {place: given[place] for place in sorted(given)})

    @property
    def last(self) -> Any:
        """The value with which it ends."""
        return self.values[max(self.values)]

    def at(self, epoch: int, done: Done) -> Any:
        """Return the value of the step that comes next."""
        if epoch:
            return self.last
        return self.values[self.begin(done)]

    def steps_left(self, epoch: int, done: Done, of_step: Done) -> int | None:
        """Return how many steps have the value of the step that comes next; None: all."""
        had, each = getattr(done, self.unit), getattr(of_step, self.unit)
        ahead = next((place for place in self.values if place > had), None)
        if epoch or ahead is None:
            return None
        left: int = -(-(ahead - had) // each)
        return left

    def begin(self, done: Done) -> int:
        """Return from where on the value of the step that comes next holds, in the first epoch."""
        return max(place for place in self.values if place <= getattr(done, self.unit))

    def ahead(self, epoch: int, done: Done) -> list[Any]:
        """Return the values that hold later in an epoch than the step that comes next."""
        if epoch:
            return []
        return [value for place, value in self.values.items() if place > getattr(done, self.unit)]

    def mapped(self, change: Callable[[Any], Any]) -> Schedule:
        """Return the same with other values, each where it is another than the one before."""
        values: dict[int, Any] = {}
        for place, value in self.values.items():
            if (new := change(value)) != next(reversed(values.values()), None):
                values[place] = new
        return replace(self, values=values)

    def in_samples(self, width: int) -> Schedule:
        """Return the same with tokens counted as the sequences of one width that have as many, or more."""
        if self.unit != "tokens":
            return self
        return Schedule({-(-place // width): value for place, value in self.values.items()}, "samples")

    def in_whole_batches(self, step: int = 0) -> Schedule:
        """Return the same global batch sizes, by samples from places where one of them ends.

        Args:
            step: the samples of a step, if all steps have as many; else a schedule by steps stays.
        """
        if self.unit == "steps":
            if step:
                return Schedule({place * step: v for place, v in self.values.items()}, "samples")
            return self
        values: dict[int, int] = {}
        at, size = 0, self.values[0]
        for place, following in self.values.items():
            at += max(0, -(-(place - at) // size) * size)
            values[at] = size = following
        return replace(self, values=values)

    @property
    def as_list(self) -> list[Any]:
        """The unit, then each place with its value, as plain data."""
        return [self.unit, *([place, value] for place, value in self.values.items())]


def as_schedule(given: Any) -> Schedule:
    """Return what an option says by step as a `Schedule`; any other value holds from 0 on."""
    if isinstance(given, Schedule):
        return given
    if isinstance(given, Mapping) and given and all(whole(place) is not None for place in given):
        return Schedule(given)
    return Schedule({0: given})
