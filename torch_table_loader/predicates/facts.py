"""Whether rows of which some facts are known can pass a filter: one answer for row groups, files and manifests.

Callers state what they know of rows as `Facts` of columns. A `Predicate` asks each part of a filter whether it can be
true of such rows, and whether it can be false. Nulls and NaN follow pyarrow: ``~(x < 3)`` passes NaN, which bounds
leave out, and ``~x.isin([1])`` passes null.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import reduce
from operator import and_
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.types as pt

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.arrays import number_type
from torch_table_loader.arrow.datatypes import is_string, plain_type
from torch_table_loader.predicates.filter_form import Call, Field, Literal, Node, UnknownFormError, parse
from torch_table_loader.predicates.fitting import SWAPPED, fitted
from torch_table_loader.predicates.hash_parts import make_known

_EXACT = 2**53
"""Integers up to this are exact as doubles."""

_MATCH_NULLS = 0
_MISFITS = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, NotImplementedError)
"""Errors of a part that does not fit the schema, which is refused elsewhere, or of facts that do not fit it."""

_TICKS = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}

Path = tuple[str, ...]
"""The name of a column; or the names on the way to a field inside one."""


class Facts(NamedTuple):
    """What is known of a column in some rows.

    Args:
        low, high: bounds of its values, as `ordinal` gives them, NaN left out; None if unknown.
        nulls, nans, values: whether there may be nulls, NaN, and anything else.
        holds: says whether a value may be among them; None if unknown.
    """

    low: Any = None
    high: Any = None
    nulls: bool = True
    nans: bool = True
    values: bool = True
    holds: Callable[[Any], bool] | None = None

    @classmethod
    def of_value(cls, value: pa.Scalar, kind: pa.DataType) -> Facts:
        """Return the facts of a column of a type that has one value in all rows.

        >>> Facts.of_value(pa.scalar(3), pa.int64())[:3], Facts.of_value(pa.scalar(None), pa.int64()) is NULL
        ((3, 3, False), True)
        """
        if not value.is_valid:
            return NULL
        if pt.is_floating(value.type) and math.isnan(value.as_py()):
            return cls(nulls=False, values=False)
        try:
            found = ordinal(value, kind)
        except UndecidedError:
            return cls(nulls=False, nans=False)
        return cls(found, found, nulls=False, nans=False)

    @classmethod
    def of_statistics(
        cls,
        kind: pa.DataType,
        rows: int | None,
        nulls: int | None,
        low: pa.Scalar | None,
        high: pa.Scalar | None,
        *,
        spare: int = 0,
    ) -> Facts:
        """Return what the statistics of a file say of a column of a type; None where they say nothing.

        Args:
            spare: how far the greatest value may lie above `high`, in the numbers of `ordinal`.

        >>> known = Facts.of_statistics(pa.int64(), 3, 0, pa.scalar(1), pa.scalar(5))
        >>> known[:3], Facts.of_statistics(pa.int64(), 3, 3, None, None) is NULL
        ((1, 5, False), True)
        """
        bounds = [bound for bound in (low, high) if bound is not None and bound.is_valid]
        if rows is not None and nulls == rows and not bounds:
            return NULL
        if len(bounds) < 2:
            return cls(nulls=nulls != 0)
        try:
            least, most = (ordinal(bound.cast(kind), kind) for bound in bounds)
        except (UndecidedError, pa.ArrowException):  # of another type than the column is now
            return cls(nulls=nulls != 0)
        found = cls(least, most, nulls=nulls != 0).sound()
        if spare and found.high is not None:
            return found._replace(high=most + spare)
        return found

    def sound(self) -> Facts:
        """Return what is known if bounds that contradict each other are left out: a writer broke the format.

        >>> Facts(5, 3, nulls=False).sound()[:3], Facts(3, 5).sound()[:2]
        ((None, None, False), (3, 5))
        """
        if self.low is None or self.high is None or self.low <= self.high:
            return self
        return self._replace(low=None, high=None, holds=None)

    def may_be(self, value: Any) -> bool:
        """Return whether a row may have a value."""
        above, below = self.low is None or self.low <= value, self.high is None or value <= self.high
        return self.values and above and below and (self.holds is None or self.holds(value))

    def also(self, other: Facts) -> Facts:
        """Return what is known if both hold."""
        lows, highs = ([each for each in pair if each is not None] for pair in zip(self[:2], other[:2], strict=True))
        holds = [each for each in (self.holds, other.holds) if each is not None]
        return Facts(
            max(lows, default=None),
            min(highs, default=None),
            self.nulls and other.nulls,
            self.nans and other.nans,
            self.values and other.values,
            (lambda value: all(each(value) for each in holds)) if holds else None,
        )


NULL = Facts(nans=False, values=False)
"""All rows have null."""


_UNKNOWN = Facts()
_Outcomes = tuple[bool, bool]
_ANY: _Outcomes = (True, True)
_Asked = Callable[[Mapping[Path, Facts]], _Outcomes]
"""Takes what is known; returns whether a part of a filter can be true, and whether it can be false."""


class UndecidedError(Exception):
    """No facts decide a part of a filter; the message says why."""


class Predicate:
    """A filter over a schema, to be asked about rows of which some facts are known. Threads share it."""

    def __init__(self, filters: pc.Expression, schema: pa.Schema) -> None:
        self.paths: set[Path] = set()
        """The columns of which facts are asked."""
        self.undecided: list[str] = []
        """The parts of the filter that no facts decide."""
        self._filters = filters
        self._schema = schema
        self._outcomes: _Asked = lambda _: _ANY
        self.columns = frozenset[str](schema.names)
        """The top-level columns that the filter names."""
        try:
            tree = parse(filters)
        except UnknownFormError as error:
            self.undecided.append(f"{filters} ({error})")
        else:
            self.columns &= set(_names(tree))
            self._outcomes = self._asked(tree)

    def can_pass(self, facts: Mapping[Path, Facts], values: Mapping[str, pa.Scalar | None] | None = None) -> bool:
        """Return whether the filter can be true of a row of which facts are known; True where nothing decides.

        `values` has top-level columns that have one value in all rows, as the schema's types; None if it is not known.

        >>> predicate = Predicate(pc.field("a") < 3, pa.schema([("a", pa.int64())]))
        >>> predicate.can_pass({("a",): Facts(low=3)}), predicate.can_pass({}, {"a": pa.scalar(2)})
        (False, True)
        """
        values = {name: value for name, value in (values or {}).items() if value is not None}
        known: dict[Path, Facts] = {
            (name,): Facts.of_value(value, self._schema.field(name).type) for name, value in values.items()
        }
        try:
            if not self._outcomes({**facts, **known})[0]:
                return False
        except (*_MISFITS, struct.error):  # facts of another type than the column's
            return True
        return not (values and self.undecided) or self._holds_with(values)

    def _holds_with(self, values: Mapping[str, pa.Scalar]) -> bool:
        """Return whether the filter can be true where columns have these values; pyarrow computes what it can."""
        import pyarrow.dataset as ds  # about 40 MB of libraries, for those who filter

        make_known()
        facts = (
            pc.field(name) == value if value.is_valid else pc.field(name).is_null() for name, value in values.items()
        )
        # No file is opened: the dataset looks at what is known of its fragment alone.
        form = ds.IpcFileFormat()
        fragment = form.make_fragment(pa.BufferReader(b""), partition_expression=reduce(and_, facts))
        try:
            dataset = ds.FileSystemDataset([fragment], self._schema, form)
            return bool(list(dataset.get_fragments(filter=self._filters)))
        except pa.ArrowException:
            return True

    def _asked(self, node: Node) -> _Asked:
        if isinstance(node, Call) and node.function == "invert":
            inner = self._asked(node.arguments[0])
            return lambda facts: inner(facts)[::-1]
        if isinstance(node, Call) and node.function in ("and_kleene", "and", "or_kleene", "or"):
            left, right = map(self._asked, node.arguments)
            if node.function.startswith("and"):
                return lambda facts: _both(left(facts), right(facts))
            return lambda facts: _both(left(facts)[::-1], right(facts)[::-1])[::-1]
        try:
            return self._leaf(node)
        except (UndecidedError, *_MISFITS) as error:
            self.undecided.append(f"{_shown(node)} ({error})")
            return lambda _: _ANY

    def _leaf(self, node: Node) -> _Asked:
        if isinstance(node, Literal):
            value = node.value.as_py() if pt.is_boolean(node.value.type) else None
            return lambda _: (value is True, value is False)
        if isinstance(node, Field):
            path, kind = self._column(node)
            if not pt.is_boolean(kind):
                raise UndecidedError("no truth value")
            return self._of(path, lambda known: (known.may_be(True), known.may_be(False)))
        if node.function in SWAPPED:
            return self._comparison(node)
        if node.function == "is_in":
            return self._is_in(node)
        return self._test(node)

    def _of(self, path: Path, outcomes: Callable[[Facts], _Outcomes]) -> _Asked:
        self.paths.add(path)
        return lambda facts: outcomes(facts.get(path, _UNKNOWN).sound())

    def _comparison(self, node: Call) -> _Asked:
        left, right = node.arguments
        function = node.function
        if not isinstance(left, Field):
            left, right, function = right, left, SWAPPED[function]
        path, kind = self._column(left)
        literal = _folded(right)
        if not literal.is_valid:
            return lambda _: (False, False)  # null compares to nothing
        compare, value, floats = _COMPARISONS[function], ordinal(literal, kind), pt.is_floating(kind)

        def outcomes(known: Facts) -> _Outcomes:
            true, false = compare(known, value) if known.values else (False, False)
            nan = floats and known.nans
            return true or (nan and function == "not_equal"), false or (nan and function != "not_equal")

        return self._of(path, outcomes)

    def _is_in(self, node: Call) -> _Asked:
        path, kind = self._column(node.arguments[0])
        options = _options(node)
        if options["null_matching_behavior"].as_py() != _MATCH_NULLS:
            raise UndecidedError("is_in with another way to match nulls")
        members = list(options["value_set"].values)
        with_null = not all(member.is_valid for member in members)
        known_members = [member for member in members if member.is_valid]
        nan = [member for member in known_members if pt.is_floating(member.type) and math.isnan(member.as_py())]
        values = [ordinal(member, kind) for member in known_members if member not in nan]

        def outcomes(known: Facts) -> _Outcomes:
            nans = known.nans and pt.is_floating(kind)
            true = any(map(known.may_be, values)) or (with_null and known.nulls) or (bool(nan) and nans)
            one = known.low is not None and known.low == known.high and known.low in values
            one = one and not (pt.is_floating(kind) and known.low == 0)  # is_in tells −0 from 0, which are equal
            return true, (known.values and not one) or (known.nulls and not with_null) or nans

        return self._of(path, outcomes)

    def _test(self, node: Call) -> _Asked:
        """Read a function that asks something of a column."""
        if node.function not in ("is_null", "is_valid", "is_nan", "starts_with"):
            raise UndecidedError(f"the function {node.function}")
        path, kind = self._column(node.arguments[0])
        floats = pt.is_floating(kind)
        if node.function == "is_valid":
            return self._of(path, lambda known: (known.values or (floats and known.nans), known.nulls))
        if node.function == "is_null":
            as_null = floats and node.options is not None and node.options["nan_is_null"].as_py()
            return self._of(
                path,
                lambda known: (
                    known.nulls or (as_null and known.nans),
                    known.values or (floats and not as_null and known.nans),
                ),
            )
        if node.function == "is_nan":
            if not floats:
                raise UndecidedError("no float column")
            return self._of(path, lambda known: (known.nans, known.values))
        options = _options(node)
        if options["ignore_case"].as_py() or not is_string(kind):
            raise UndecidedError("a prefix in any case")
        prefix = options["pattern"].as_py()
        return self._of(path, lambda known: _begins(known, prefix))

    def _column(self, node: Node) -> tuple[Path, pa.DataType]:
        if isinstance(node, Call) and node.function == "cast":
            path, kind = self._column(node.arguments[0])
            plain = plain_type(kind)
            if plain == _options(node).type.field("to_type").type != kind:  # it only decodes: see `fitted`
                return path, plain
        if not isinstance(node, Field):
            raise UndecidedError("not a column alone")
        kind = self._schema.field(node.path[0]).type
        for part in node.path[1:]:
            kind = kind.field(part).type
        return node.path, kind


def _names(node: Node) -> Iterator[str]:
    if isinstance(node, Field):
        yield node.path[0]
    elif isinstance(node, Call):
        for argument in node.arguments:
            yield from _names(argument)


def _both(left: _Outcomes, right: _Outcomes) -> _Outcomes:
    return left[0] and right[0], left[1] or right[1]


def _equal(known: Facts, value: Any) -> _Outcomes:
    return known.may_be(value), known.low is None or not known.low == known.high == value


def _less(known: Facts, value: Any) -> _Outcomes:
    return known.low is None or known.low < value, known.high is None or known.high >= value


def _less_equal(known: Facts, value: Any) -> _Outcomes:
    return known.low is None or known.low <= value, known.high is None or known.high > value


_COMPARISONS: Mapping[str, Callable[[Facts, Any], _Outcomes]] = {
    "equal": _equal,
    "not_equal": lambda known, value: _equal(known, value)[::-1],
    "less": _less,
    "less_equal": _less_equal,
    "greater": lambda known, value: _less_equal(known, value)[::-1],
    "greater_equal": lambda known, value: _less(known, value)[::-1],
}


def _begins(known: Facts, prefix: str) -> _Outcomes:
    low, high, length = known.low, known.high, len(prefix)
    true = known.values and (low is None or low[:length] <= prefix) and (high is None or high >= prefix)
    all_begin = low is not None and high is not None and low.startswith(prefix) and high.startswith(prefix)
    return true, known.values and not all_begin


def _options(node: Call) -> pa.StructScalar:
    if node.options is None:
        raise UndecidedError(f"{node.function} without options")
    return node.options


def _folded(node: Node) -> pa.Scalar:
    """Return the value of a literal, or of a cast of a literal."""
    if isinstance(node, Literal):
        return node.value
    if isinstance(node, Call) and node.function == "cast":
        try:
            return _folded(node.arguments[0]).cast(_options(node).type.field("to_type").type)
        except pa.ArrowException as error:
            raise UndecidedError(f"a cast that fails ({error})") from error
    raise UndecidedError("not a column and a value")


def ordinal(value: pa.Scalar, kind: pa.DataType) -> Any:
    """Return a value as what compares like the values of a column's type, if that is exact.

    Times are numbers in the column's unit, dates are days, and decimals are numbers of their last place.

    Raises:
        UndecidedError: a rounded one would leave out rows.

    >>> ordinal(pa.scalar(3), pa.float32()), ordinal(pa.scalar(1, pa.timestamp("ms")), pa.timestamp("us"))
    (3.0, 1000)
    """
    own = value.type
    if pt.is_integer(kind) or pt.is_floating(kind):
        return _number(value, kind)
    if pt.is_decimal(kind) and (pt.is_integer(own) or pt.is_decimal(own)):
        return _whole(
            Fraction(value.as_py()) * Fraction(10) ** kind.scale, "a decimal of more places than the column's"
        )
    alike = (pt.is_timestamp, pt.is_time, pt.is_duration)
    zoned = [getattr(each, "tz", None) is not None for each in (own, kind)]
    if any(test(kind) and test(own) for test in alike) and zoned[0] == zoned[1]:
        return _whole(Fraction(value.value * _TICKS[kind.unit], _TICKS[own.unit]), "a time finer than the column's")
    if pt.is_date32(kind) and pt.is_date32(own):
        return value.value
    if any(test(kind) and test(own) for test in (pt.is_boolean, is_string, _is_bytes)):
        return value.as_py()
    raise UndecidedError(f"a {own} for a column of {kind}")


def _whole(number: Fraction, otherwise: str) -> int:
    if number.denominator != 1:
        raise UndecidedError(otherwise)
    return int(number)


def _number(literal: pa.Scalar, kind: pa.DataType) -> int | float:
    if not pt.is_integer(literal.type) and not pt.is_floating(literal.type):
        raise UndecidedError(f"a {literal.type} for a column of {kind}")
    value = literal.as_py()
    unlike = pt.is_integer(literal.type) != pt.is_integer(kind)
    if math.isnan(value) or (unlike and not -_EXACT <= value <= _EXACT):
        raise UndecidedError(f"{value} for a column of {kind}")
    if pt.is_integer(kind):
        if value != int(value):
            raise UndecidedError(f"{value} for a column of {kind}")
        return int(value)
    if not pt.is_float64(kind) and float(number_type(kind).type(value)) != value:
        raise UndecidedError(f"{value}, which no {kind} is")
    return float(value)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))


def _shown(node: Node) -> str:
    if isinstance(node, Field):
        return ".".join(node.path)
    if isinstance(node, Literal):
        return str(pc.scalar(node.value))
    return f"{node.function}({', '.join(map(_shown, node.arguments))})"


_newest: tuple[Any, pa.Schema, Predicate] | None = None


def predicate_of(filters: pc.Expression, schema: pa.Schema) -> Predicate:
    """Return a filter, fitted to a schema, as a predicate.

    The newest is kept, since one filter is asked about for every file of a table.
    """
    global _newest  # noqa: PLW0603
    newest = _newest
    if newest is None or newest[0] is not filters or newest[1] is not schema:
        newest = _newest = (filters, schema, Predicate(fitted(filters, schema), schema))
    return newest[2]
