"""A mixture of sources: which source, and which of its rows, comes at each place. A look-up costs one block.

Places are cut into blocks. With ``block=0``, every prefix has the shares (`mixtures/quotas.py`). Otherwise, after n
places that make whole blocks, source i has had ``floor(n * W_i) - floor(n * W_(i-1))`` of them, where W are the
cumulative shares: always within one of its share ``n * w_i``. Inside a block the places of the sources are shuffled.
A block is long enough for each source to have a place in it: with shorter ones the floors would sometimes have to take
a row back. Either way, the order depends only on seed, epoch, weights and the places where the weights changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm
from numbers import Rational, Real
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from torch_table_loader.errors import ConfigError
from torch_table_loader.mixtures.lacks import Dues
from torch_table_loader.mixtures.quotas import Quotas
from torch_table_loader.mixtures.stop import Stop, StopRule, StopWord, as_stop
from torch_table_loader.planning.global_batches import ENDLESS
from torch_table_loader.planning.keys import derive_key, hashes_of, u64
from torch_table_loader.planning.permutation import Permutation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.orders import Selects

    Ints: TypeAlias = NDArray[np.int64]

ShareUnit = Literal["rows", "tokens"]
NaturalShares = Literal["rows", "tokens"]
"""Weights in proportion to what is left of each source, so that every remaining row comes once."""

BLOCK_ROWS = 256
_MOST_BLOCK_ROWS = 1 << 16
_SLOTS_AT_ONCE = 1 << 18
"""Places that are shuffled together, which bounds memory if places are far from each other."""
_LONG_BLOCK = 1 << 14
"""Number of rows from which on a block is kept for the next batches that need it."""
_FEW_BLOCKS = 2
"""Blocks without shuffling take longer, so that those of small batches are kept too."""
LEAST_SHARE = 1 << 20
"""A source with a weight has at least one row in this many."""


class Place(NamedTuple):
    """What comes at given places of a mixture.

    Args:
        source: int16[n] the source, by its number among the names.
        turn: int64[n] how many rows of that source came earlier in the epoch.
    """

    source: NDArray[np.int16]
    turn: Ints


@dataclass(frozen=True, slots=True)
class Shares:
    """The weights that apply from a place on.

    Args:
        weights: one for each source, as the smallest integers; 0 leaves a source out.
        before: rows of each source that came before.
        lacks: what each source lacks of its share there, if rows of other widths came before; see `mixtures/lacks.py`.
        width: that of the rows to come, where there are lacks.
    """

    start: int
    weights: tuple[int, ...]
    before: tuple[int, ...]
    lacks: tuple[int, ...] = ()
    width: int = 1

    def __post_init__(self) -> None:
        """Leave out lacks that are none."""
        if not any(self.lacks):
            object.__setattr__(self, "lacks", ())
            object.__setattr__(self, "width", 1)

    @property
    def dues(self) -> Dues:
        """What is due to the sources."""
        return Dues(self.weights, self.lacks, self.width)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Sources and their shares in an epoch, from the last change of weights on.

    Args:
        names: names of the sources, sorted; part of the keys of the orders.
        shares: the newest weights.
        block: the least rows of a block; 0: every prefix has the shares.
        natural: whether the weights are what was left of the sources, so that every remaining row comes once.
        caps: rows of each source after which the others go on without it; 0: it stays. Empty: all stay.

    >>> mixture = Mixture.of({"a": 3, "b": 1}, seed=0, epoch=0)
    >>> np.bincount(mixture.places(0, 256).source).tolist()
    [192, 64]
    """

    names: tuple[str, ...]
    shares: Shares
    seed: int
    epoch: int
    block: int = BLOCK_ROWS
    natural: bool = False
    caps: tuple[int, ...] = ()
    block_rows: int = field(init=False, compare=False, repr=False)
    """Rows of a block: `block`, or more if a source is rarer than that."""

    def __post_init__(self) -> None:
        """Refuse an invalid block, and compute its rows."""
        if isinstance(self.block, bool) or not isinstance(self.block, int) or not 0 <= self.block <= _MOST_BLOCK_ROWS:
            raise ConfigError(f"block must be an int in [0, {_MOST_BLOCK_ROWS}], got {self.block!r}")
        rows = self._rows_of_a_block()
        object.__setattr__(self, "block_rows", rows)
        lacks = self.shares.dues.made_up_in(rows)
        if lacks != self.shares.lacks:
            object.__setattr__(self, "shares", replace(self.shares, lacks=lacks))

    def _rows_of_a_block(self) -> int:
        if not any(self.shares.weights):
            return 1  # all sources were dropped
        if not self.block:
            return self._quotas.block_turns
        dues = self.shares.dues
        return max(self.block, dues.turns_of_all, dues.turns_to_make_up)

    @classmethod
    def of(
        cls, weights: Mapping[str, float], seed: int, epoch: int, block: int = BLOCK_ROWS, *, natural: bool = False
    ) -> Mixture:
        """Mix sources by weights, which need not sum to one; the order of the names has no effect.

        Raises:
            ConfigError: there is no source, or a weight is negative, not finite or too small compared to the others.
        """
        shares = smallest(weights)
        start = Shares(0, tuple(shares.values()), (0,) * len(shares))
        return cls(tuple(shares), start, seed, epoch, block, natural)

    @property
    def weights(self) -> dict[str, int]:
        """The newest weights by name."""
        return dict(zip(self.names, self.shares.weights, strict=True))

    def has(self, weights: Mapping[str, float] | str, names: Collection[str]) -> bool:
        """Return whether the sources and their newest weights are these; a word stands for natural shares."""
        if self.names != tuple(sorted(names)):
            return False
        if isinstance(weights, str):
            return self.natural
        return not self.natural and self.weights == weights

    def reweighted(self, place: int, weights: Mapping[str, float]) -> Mixture:
        """Change the weights from a place on; return the same mixture if the weights do not change.

        Args:
            weights: by name. A new name begins at its source's start; a missing one is forgotten.

        Raises:
            ConfigError: the place is before the newest change, or a weight is invalid.
        """
        if place < self.shares.start:
            raise ConfigError(f"weights were changed at place {self.shares.start}, which is after {place}")
        shares = smallest(weights)
        if self.has(shares, shares):
            return self
        return self._with(place, shares, self._had_by_name(place))

    def of_what_is_left(self, place: int, rows: Mapping[str, int]) -> Mixture:
        """Take the weights from what is left of each source, so that every remaining row comes once.

        Return the same mixture if it has such weights already. If nothing is left, each source begins another round.

        Args:
            rows: rows of each source in the epoch, by name; names come and go as in `reweighted`.

        Raises:
            ConfigError: no source has a row, or one has too few compared to the others.
        """
        if self.has("rows", rows):
            return self
        return self._of_left(place, self._had_by_name(place), rows)

    def _of_left(self, place: int, had: Mapping[str, int], rows: Mapping[str, int]) -> Mixture:
        left = {name: max(0, count - had.get(name, 0)) for name, count in rows.items()}
        return self._with(place, natural_shares(left if any(left.values()) else rows), had, natural=True)

    def recounted(
        self, place: int, before: Mapping[str, int], rows: Mapping[str, int], widths: tuple[int, int]
    ) -> Mixture:
        """Count the rows of sources otherwise from a place on: sequences of another length. Shares go on.

        Args:
            before: rows of each source that came before the place, by name.
            rows: rows of each source in the epoch.
            widths: tokens of a row before the place, and from there on.
        """
        if self.natural:
            return self._of_left(place, before, rows)
        mixture, (was, width) = self._with(place, self.weights, before), widths
        part = next(part for part in reversed(_parts(self)) if part.shares.start <= place)
        own = part.shares
        had = [now - then for now, then in zip(part.rows_before(place), own.before, strict=True)]
        lacks = Dues(own.weights, own.lacks, was).lacks_after(had)
        return replace(mixture, shares=replace(mixture.shares, lacks=lacks, width=width))

    def _had_by_name(self, place: int) -> dict[str, int]:
        return dict(zip(self.names, self.rows_before(place), strict=True))

    def _with(self, place: int, shares: dict[str, int], had: Mapping[str, int], *, natural: bool = False) -> Mixture:
        counts = tuple(had.get(name, 0) for name in shares)
        newest = Shares(place, tuple(shares.values()), counts)
        return replace(self, names=tuple(shares), shares=newest, natural=natural, caps=())

    def rows_before(self, place: int) -> tuple[int, ...]:
        """Count the rows of each source that come before a place at or after the shares' start."""
        if place == self.shares.start:
            return self.shares.before
        if self.caps:
            return next(part for part in reversed(_parts(self)) if part.shares.start < place).rows_before(place)
        blocks, rest = divmod(place - self.shares.start, self.block_rows)
        counts = np.array(self.shares.before) + self._had(np.array([blocks]))[0]
        if rest:
            counts += np.bincount(self.places(place - rest, place).source, minlength=len(counts))
        return tuple(counts.tolist())

    def places(self, start: int, stop: int) -> Place:
        """Return what comes at the places [start, stop)."""
        return self.take(np.arange(start, stop, dtype=np.int64))

    def take(self, places: Ints) -> Place:
        """Return what comes at each place (int64[n], none before the shares' start)."""
        if self.caps:
            return self._take_of_parts(places)
        blocks, slots = np.divmod(places - self.shares.start, self.block_rows)
        touched, which = _distinct(blocks)
        source, turn = np.empty(len(places), dtype=np.int16), np.empty_like(places)
        alone = self.block_rows >= _LONG_BLOCK or (not self.block and len(touched) <= _FEW_BLOCKS)
        step = 1 if alone else _SLOTS_AT_ONCE // self.block_rows
        for first in range(0, len(touched), step):
            inside = np.flatnonzero((which >= first) & (which < first + step))
            found = touched[first : first + step]
            shuffled = _long_block(self, int(found[0])) if step == 1 else self.shuffled(found)
            at = (which[inside] - first, slots[inside])
            source[inside], turn[inside] = shuffled.source[at], shuffled.turn[at]
        return Place(source, turn)

    def _take_of_parts(self, places: Ints) -> Place:
        parts = _parts(self)
        number = np.searchsorted(np.array([part.shares.start for part in parts[1:]]), places, side="right")
        if len(places) and number[0] == number[-1] and (number == number[0]).all():
            return parts[int(number[0])].take(places)
        source, turn = np.empty(len(places), dtype=np.int16), np.empty_like(places)
        for each in np.flatnonzero(np.bincount(number, minlength=1)).tolist():
            inside = number == each
            source[inside], turn[inside] = parts[each].take(places[inside])
        return Place(source, turn)

    def length(self, rows: Sequence[int], rule: StopRule, coming: Collection[str] = ()) -> int:
        """Count the places of the epoch: at least the shares' start; `ENDLESS` for "forever".

        Args:
            rule: "first_exhausted": until a source with a weight would repeat a row; "all_exhausted": until each source
                has delivered all its rows; "forever"; or until a source would come oftener than the times by its name;
                or a `Stop` of those.
            coming: sources that have a weight later in the epoch, from a place that is not known here: the epoch goes
                on until then where one of them has rows to deliver, or alone may end it.

        Raises:
            ConfigError: a source with a weight has no row, or no source that ends the epoch has a weight.
        """
        stop, by_name = as_stop(rule), dict(zip(self.names, rows, strict=True))
        wanted = [name for name, weight in self.weights.items() if weight]
        if empty := [name for name in wanted if not by_name[name]]:
            raise ConfigError(
                f"source {empty[0]!r} has no row in this epoch; leave it out of the mixture, or give it the weight 0"
            )
        refuse_no_end(stop, {*wanted, *coming})
        limits = stop.limits(by_name)
        return max(self.shares.start, stop.within(self._end(limits, coming, all_of_them=stop.at == "all_exhausted")))

    def _end(self, limits: Mapping[str, int], coming: Collection[str], *, all_of_them: bool) -> int:
        """Return the place where sources reach their limits, or where none is left; `ENDLESS` where there is none."""
        parts, had = _parts(self), dict(zip(self.names, self.shares.before, strict=True))
        idle = [name for name in coming if not self.weights.get(name) and had.get(name, 0) < limits.get(name, 0)]
        if all_of_them and idle:
            limits = {}
        for part, following in zip(parts, (*parts[1:], None), strict=True):
            own = {number: limits[name] for number, name in enumerate(part.names) if name in limits}
            own = {number: most for number, most in own.items() if part.shares.weights[number]}
            ends = ENDLESS if following is None else following.shares.start
            if own and (found := part.place_of_limits(own, all_of_them=all_of_them)) <= ends:
                return found
        if any(parts[-1].shares.weights):
            return ENDLESS
        return parts[-1].shares.start

    def place_of_limits(self, limits: Mapping[int, int], *, all_of_them: bool = False) -> int:
        """Return the place before which no source comes oftener than its limit; at the earliest, the shares' start.

        Args:
            limits: rows by number of a source that has a weight.
            all_of_them: the place before which each has come as often, instead.
        """
        wanted, most = list(limits), np.array(list(limits.values()))
        every = np.full(len(self.names), -1 if all_of_them else 1 << 62)
        every[wanted] = most

        def over(blocks: int) -> bool:
            had = (np.array(self.shares.before) + self._had(np.array([blocks]))[0])[wanted]
            return bool((had >= most).all() if all_of_them else (had > most).any())

        blocks = _first(over)
        if not blocks:
            return self.shares.start
        first = self.shares.start + (blocks - 1) * self.block_rows
        source, turn = (each[0] for each in self.shuffled(np.array([blocks - 1])))
        if all_of_them:
            return first + int(np.flatnonzero(turn == every[source] - 1)[-1]) + 1
        return first + int(np.argmax(turn >= every[source]))

    def _had(self, blocks: Ints) -> Ints:
        """Count the rows of each source in the first blocks (int64[n]) of the shares: int64[n, sources]."""
        if not self.block:
            return self._quotas.had(blocks)
        counts: Ints = np.diff(self.shares.dues.edges(blocks * self.block_rows), axis=1)
        return counts

    @property
    def _quotas(self) -> Quotas:
        return Quotas(self.shares.weights, self.shares.lacks, self.shares.width)

    def shuffled(self, blocks: Ints) -> Place:
        """Shuffle some blocks: source and turn of each slot, [n, block_rows]."""
        before, number = self._had(blocks), len(self.names)
        counts = (self._had(blocks + 1) - before).reshape(-1)
        slots = np.arange(self.block_rows)
        source = self._sources(blocks, counts, slots)
        # Among a block's slots of one source, the first has the source's first turn in that block, and so on.
        starts = np.cumsum(counts.reshape(-1, number), axis=1) - counts.reshape(-1, number)
        first = (np.array(self.shares.before) + before - starts).reshape(-1)
        turn = np.empty(source.shape, dtype=np.int64)
        by_source = np.argsort(source, axis=1, kind="stable")
        np.put_along_axis(turn, by_source, np.repeat(first, counts).reshape(source.shape) + slots, axis=1)
        return Place(source, turn)

    def _sources(self, blocks: Ints, counts: Ints, slots: Ints) -> NDArray[np.int16]:
        """Return the source of each slot of some blocks, in which each source has its count of slots."""
        if not self.block:
            key = derive_key(self.seed, self.epoch, f"mixture by quotas from {self.shares.start}")
            return self._quotas.arranged(blocks, key)
        key = derive_key(self.seed, self.epoch, f"mixture from {self.shares.start}")
        hashes = hashes_of((blocks[:, None] * self.block_rows + slots).astype(np.uint64), key)
        # Each hash's low bits become its slot: this makes all hashes distinct, and sorting needs no second array.
        low = u64((1 << self.block_rows.bit_length()) - 1)
        hashes |= low
        hashes ^= low ^ slots.astype(np.uint64)
        hashes.sort(axis=1)
        order = (hashes & low).view(np.int64)
        kinds = np.tile(np.arange(len(self.names), dtype=np.int16), len(blocks))
        return np.take_along_axis(np.repeat(kinds, counts).reshape(order.shape), order, axis=1)


@lru_cache(maxsize=64)
def ending(
    mixture: Mixture, rows: tuple[int, ...], rule: Stop | StopWord, coming: frozenset[str] = frozenset()
) -> tuple[Mixture, int]:
    """Return a mixture without the sources that a rule drops from where it drops them, and its length.

    What was found last is kept: an epoch that runs is asked for again by its states.

    Args:
        rows: rows of each source in the epoch.
        coming: sources that have a weight later; see `Mixture.length`.

    Raises:
        ConfigError: a source with a weight has no row, or nothing ends the epoch; see `Mixture.length`.
    """
    stop = as_stop(rule)
    caps = stop.caps(dict(zip(mixture.names, rows, strict=True)))
    mixture = replace(mixture, caps=tuple(caps.get(name, 0) for name in mixture.names) if caps else ())
    return mixture, mixture.length(rows, stop, coming)


@lru_cache(maxsize=16)
def _parts(mixture: Mixture) -> tuple[Mixture, ...]:
    """Divide a mixture where sources are dropped, into mixtures that drop none; the last may have no weight left."""
    part, parts = replace(mixture, caps=()), []
    caps = mixture.caps or (0,) * len(mixture.names)
    while True:
        weights, before = part.shares.weights, part.shares.before
        left = tuple(
            0 if cap and had >= cap else weight for weight, had, cap in zip(weights, before, caps, strict=True)
        )
        if left != weights:
            shrunk = smallest(dict(zip(part.names, left, strict=True))) if any(left) else {}
            left = tuple(shrunk.get(name, 0) for name in part.names)
            part = replace(part, shares=_shares_without_dropped(part.shares, left), natural=False)
        parts.append(part)
        limits = {number: cap for number, (weight, cap) in enumerate(zip(left, caps, strict=True)) if weight and cap}
        if not limits:
            return tuple(parts)
        place = part.place_of_limits(limits)
        part = replace(part, shares=Shares(place, left, part.rows_before(place)))


def _shares_without_dropped(shares: Shares, left: tuple[int, ...]) -> Shares:
    """Return shares with the weights of the sources that are left, which lack what they did if only these lack it."""
    if any(lack for lack, weight in zip(shares.lacks, left, strict=False) if not weight):
        return Shares(shares.start, left, shares.before)
    return replace(shares, weights=left)


@lru_cache(maxsize=4)
def _long_block(mixture: Mixture, block: int) -> Place:
    return mixture.shuffled(np.array([block]))


@dataclass(frozen=True, slots=True, eq=False)
class SourceOrder:
    """The order of a source's rows in an epoch: it repeats no row until all came, then starts over in another order.

    Args:
        remaining: the rows of the store that are left, or are drawn by weight; at least one.
    """

    remaining: Selects
    seed: int
    name: str
    epoch: int

    def take(self, turns: Ints) -> Ints:
        """Return the row of the store at each turn (int64[n], none negative) of the source."""
        rows = self.remaining.num_rows
        wraps, places = np.divmod(turns, rows)
        taken = np.empty_like(turns)
        order = np.argsort(wraps, kind="stable")
        borders = np.flatnonzero(np.diff(wraps[order])) + 1
        for inside in np.split(order, borders) if len(order) else []:
            wrap = int(wraps[inside[0]])
            taken[inside] = _permutation(rows, self.seed, self.epoch, self.name, wrap).take(places[inside])
        return self.remaining.select(taken, wraps)


def _distinct(numbers: Ints) -> tuple[Ints, Ints]:
    """Return the distinct numbers, ascending, and each number's index among them; sorts only if they are far apart."""
    low = int(numbers.min(initial=1 << 62))
    if int(numbers.max(initial=0)) - low >= 4 * len(numbers):
        return np.unique(numbers, return_inverse=True)
    found = np.bincount(numbers - low) > 0
    return np.flatnonzero(found) + low, (np.cumsum(found) - 1)[numbers - low]


@lru_cache(maxsize=16)
def _permutation(rows: int, seed: int, epoch: int, name: str, wrap: int) -> Permutation:
    return Permutation(rows, derive_key(seed, epoch, f"mixture source {wrap} {name}"))


def _first(over: Any) -> int:
    """Find the smallest number for which a condition holds, if it then holds for all larger ones."""
    low, high = 0, 1
    while not over(high):
        high *= 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if over(middle) else (middle + 1, high)
    return low


def smallest(weights: Mapping[str, float]) -> dict[str, int]:
    """Write weights as the smallest integers, by name, sorted; a float counts as the decimal that it prints.

    Raises:
        ConfigError: there is no source, or a weight is negative, not finite or too small compared to the others.

    >>> smallest({"b": 0.3, "a": 0.7})
    {'a': 7, 'b': 3}
    """
    names = sorted(weights)
    shares = [_exact(weights[name]) for name in names]
    if shares and not any(share is None or share for share in shares):
        raise ConfigError(
            f"weights are all 0, so no source gives a row, got {dict(weights)!r}; give at least one a weight above 0"
        )
    if None in shares or not any(shares) or min(shares, default=0) < 0:  # type: ignore[operator, type-var]
        raise ConfigError(
            f"weights must be numbers by source name, at least 0, and one of them above it, got {dict(weights)!r}"
        )
    exact = [share for share in shares if share is not None]
    if sum(exact) / min(share for share in exact if share) > LEAST_SHARE:
        raise ConfigError(
            f"the smallest weight must be at least 1/{LEAST_SHARE} of their sum, got {dict(weights)!r}; "
            "leave that source out"
        )
    common = lcm(*(share.denominator for share in exact))
    whole = [int(share * common) for share in exact]
    return dict(zip(names, (number // gcd(*whole) for number in whole), strict=True))


def refuse_no_end(stop: Stop, wanted: Collection[str]) -> None:
    """Refuse a rule by which an epoch would not end, where it should.

    Args:
        wanted: the sources that have a weight, or get one later.

    Raises:
        ConfigError: names the rule.
    """
    ends = stop.named or (wanted if isinstance(stop.at, str) else ())
    if stop.samples is not None or any(name in ends for name in wanted) or all(name in stop.drop for name in wanted):
        return
    raise ConfigError(f"no source of stop={stop.at!r} has a weight, so the epoch would not end; name another one")


def natural_shares(rows: Mapping[str, int]) -> dict[str, int]:
    """Write the sources' row counts as weights, which are the smallest integers; see `smallest`.

    Raises:
        ConfigError: no source has a row, or one has too few compared to the others.

    >>> natural_shares({"b": 30, "a": 70})
    {'a': 7, 'b': 3}
    """
    if not any(rows.values()):
        raise ConfigError(f"no source has a row in this epoch, so nothing can be mixed, got {dict(rows)!r}")
    return smallest(rows)


def _exact(weight: object) -> Fraction | None:
    if isinstance(weight, bool) or not isinstance(weight, Real):
        return None
    try:
        return Fraction(weight) if isinstance(weight, Rational) else Fraction(str(weight))
    except ValueError:
        return None
