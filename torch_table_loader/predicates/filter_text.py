"""Filters as people write them: as text, and as the lists of tuples of pyarrow's and pandas' readers."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import reduce
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from torch_table_loader.arrow import compute as pc
from torch_table_loader.errors import ConfigError, ConfigTypeError

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<quoted>'(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*`)
      | (?P<time>\d{4}-\d\d-\d\d[T\ ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?)
      | (?P<sign><=|>=|==|!=|<>|=|<|>|\(|\)|,)
      | (?P<word>[^\s'"`()<>=!,]+)
    )""",
    re.VERBOSE,
)
_SIGNS = frozenset({*_OPERATORS, "(", ")", ","})
_WORDS = frozenset({"and", "or", "not", "is", "in", "null", "between", "like", "true", "false"})
_TERMS_IN_ORDER = 100
"""Terms that and, or or join one after the other; more are joined in a tree. Names of filters depend on the form."""

_WRITTEN_DIGITS = 76
"""Digits of the type that holds a number of a filter's text that no float is: the most that a decimal has."""

_MOST_LEVELS = 32
"""Levels of not and of parentheses."""

_REMEDY = (
    "write comparisons such as day >= 2026-01-03, city in ('Oslo', 'Bergen'), price between 1 and 2, name like 'A%' or "
    "ad is not null, joined by and, or, not and (); strings stand in quotes, odd names of columns in `backquotes`"
)


def filter_of(given: Any) -> pc.Expression:
    """Return a filter as an expression.

    Args:
        given: a pyarrow compute Expression; text such as ``"day >= 2026-01-03 and city in ('Oslo', 'Bergen')"``, in
            which null is neither true nor false, as in SQL; or tuples as `pyarrow.parquet.read_table` takes them: a
            list of ``(column, operator, value)``, all of which must hold, or a list of such lists, one of which must
            hold.

    Raises:
        ConfigTypeError: it is nothing of this.
        ConfigError: the text or a tuple cannot be read.

    >>> print(filter_of("day >= 2026-01-03 and not (ad < 4 or city is null)"))
    ((day >= 2026-01-03) and invert(((ad < 4) or is_null(city, {nan_is_null=false}))))
    >>> print(filter_of([("ad", ">", 3), ("city", "==", "Oslo")]))
    ((ad > 3) and (city == "Oslo"))
    """
    if isinstance(given, pc.Expression):
        return given
    if isinstance(given, str):
        return _Text(given).read()
    if isinstance(given, list | tuple) and given:
        try:
            return _of_tuples(given)
        except (ValueError, TypeError, pa.ArrowException) as error:
            with suppress(RecursionError):
                raise ConfigError(
                    f"filters as tuples must be (column, operator, value), or lists of them, got {given!r} ({error})"
                ) from error
            raise ConfigError("filters as tuples must be at most two lists deep, got deeper ones") from None
    hint = "; what Python must decide row by row belongs into collate_fn=" if callable(given) else ""
    raise ConfigTypeError(
        "filters must be a pyarrow compute Expression such as pc.field('x') > 3, text such as 'x > 3', or tuples such "
        f"as [('x', '>', 3)], got {type(given).__name__} {_shortened(repr(given))}{hint}"
    )


class _Text:
    """Reads a filter that was written as text, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._at = 0
        self._levels = 0

    def read(self) -> pc.Expression:
        """Return the whole as an expression."""
        found = self._any()
        if self._at < len(self._tokens):
            self._fail(f"expected and, or, or the end, got {self._tokens[self._at]!r}")
        return found

    def _any(self) -> pc.Expression:
        terms = [self._all()]
        while self._is("or"):
            terms.append(self._all())
        return _joined(operator.or_, terms)

    def _all(self) -> pc.Expression:
        terms = [self._one()]
        while self._is("and"):
            terms.append(self._one())
        return _joined(operator.and_, terms)

    def _one(self) -> pc.Expression:
        if (negated := self._is("not")) or self._is("("):
            self._levels += 1
            if self._levels > _MOST_LEVELS:
                self._fail(f"it nests more than {_MOST_LEVELS} levels of not and () deep")
            found = ~self._one() if negated else self._any()
            if not negated:
                self._want(")")
            self._levels -= 1
            return found
        return self._test(self._column())

    def _test(self, column: pc.Expression) -> pc.Expression:
        """Return what is asked of a column; a column alone must be true."""
        if self._is("is"):
            none = self._is("not")
            self._want("null")
            if none:
                return ~column.is_null()
            return column.is_null()
        if (sign := self._next()) in _OPERATORS:
            self._at += 1
            return _OPERATORS[sign](column, self._value())
        negated = self._is("not")
        if self._is("in"):
            found = _balanced(
                operator.or_, [column == value for value in self._values()]
            )  # of null, null: isin says false
        elif self._is("between"):
            low = self._value()
            self._want("and")
            found = (column >= low) & (column <= self._value())
        elif self._is("like"):
            found = pc.match_like(column, self._string())
        elif negated:
            self._fail(f"expected in, between or like after not, got {self._shown()}")
        else:
            return column
        if negated:
            return ~found
        return found

    def _column(self) -> pc.Expression:
        token = self._take("a column")
        if token[0] in "'\"`":
            return pc.field(_unquoted(token))
        if token.lower() in _WORDS or token in _SIGNS:
            self._fail(f"expected a column, got {token!r}")
        if "." in token:
            return pc.field(*token.split("."))
        return pc.field(token)

    def _value(self) -> Any:
        token = self._take("a value")
        if token[0] in "'\"":
            return _unquoted(token)
        if token.lower() in ("true", "false"):
            return token.lower() == "true"
        for read in (_whole, _broken, date.fromisoformat, _time):
            with suppress(ValueError):
                return read(token)
        return self._fail(f"expected a number, a date, a time, true, false or a string in quotes, got {token!r}")

    def _values(self) -> list[Any]:
        self._want("(")
        values = [self._value()]
        while self._is(","):
            values.append(self._value())
        self._want(")")
        return values

    def _string(self) -> str:
        value = self._value()
        if not isinstance(value, str):
            self._fail(f"expected a string in quotes after like, got {value!r}")
        return value

    def _next(self) -> str | None:
        if self._at < len(self._tokens):
            return self._tokens[self._at]
        return None

    def _shown(self) -> str:
        if (token := self._next()) is None:
            return "the end"
        return repr(token)

    def _take(self, what: str) -> str:
        if (token := self._next()) is None:
            self._fail(f"expected {what}, got the end")
        self._at += 1
        return token

    def _is(self, word: str) -> bool:
        """Whether a word comes next, which is then taken."""
        token = self._next()
        if token is None or token.lower() != word:
            return False
        self._at += 1
        return True

    def _want(self, word: str) -> None:
        if not self._is(word):
            self._fail(f"expected {word}, got {self._shown()}")

    def _fail(self, problem: str) -> NoReturn:
        raise ConfigError(f"the filter {self._text!r:.2000} cannot be read: {problem}; {_REMEDY}")


def _whole(number: str | int) -> Any:
    """Return a whole number as pyarrow takes it: beyond 64 bits as a decimal, and beyond 76 digits as a float.

    >>> _whole("7"), _whole(2**70)
    (7, <pyarrow.Decimal128Scalar: Decimal('1180591620717411303424')>)
    """
    found = int(number)
    if -(1 << 63) <= found < 1 << 63:
        return found
    if 0 <= found < 1 << 64:
        return pa.scalar(found, pa.uint64())
    if abs(found) >= 10**76:
        if abs(found) < 1 << 1023:
            return float(found)
        return math.copysign(math.inf, found)
    return pa.scalar(Decimal(found))


def _broken(number: str) -> Any:
    """Return a number with a point or an exponent: a float, or exactly what is written where no float is that.

    >>> _broken("2.5"), _broken("0.1")
    (2.5, <pyarrow.Decimal256Scalar: Decimal('0.1')>)
    """
    found = float(number)
    with suppress(InvalidOperation):
        written = Decimal(number)
        places = -int(written.as_tuple().exponent) if written.is_finite() else 0
        fits = len(written.as_tuple().digits) <= _WRITTEN_DIGITS and places <= _WRITTEN_DIGITS
        if fits and places > 0 and written != Decimal(found):
            return pa.scalar(written, pa.decimal256(_WRITTEN_DIGITS, places))
    return found


def is_written(kind: pa.DataType) -> bool:
    """Return whether a literal stands in a filter's text with a point, and is exact for decimals, else a float."""
    return bool(pa.types.is_decimal256(kind) and kind.precision == _WRITTEN_DIGITS and kind.scale > 0)


def _time(text: str) -> Any:
    """Return a time, in nanoseconds where it has more than six places of a second.

    >>> _time("2026-01-03 10:30:00.000000001")
    <pyarrow.TimestampScalar: '2026-01-03T10:30:00.000000001'>
    """
    found, places = datetime.fromisoformat(text), re.search(r"\.(\d+)", text)
    digits = "" if places is None else places[1].rstrip("0")
    if len(digits) <= 6:
        return found
    if len(digits) > 9:
        raise ValueError("a time finer than nanoseconds")
    zone: str | None = "UTC"
    if found.tzinfo is None:
        zone, found = None, found.replace(tzinfo=UTC)
    since = found.replace(microsecond=0) - datetime(1970, 1, 1, tzinfo=UTC)
    nanoseconds = (since.days * 86_400 + since.seconds) * 10**9 + int(digits.ljust(9, "0"))
    if abs(nanoseconds) >= 1 << 63:
        raise ValueError("a time that nanoseconds do not reach")
    return pa.scalar(nanoseconds, pa.timestamp("ns", zone))


def _joined(join: Callable[[Any, Any], Any], terms: Sequence[pc.Expression]) -> pc.Expression:
    """Join terms, from left to right where they are few: what reads an expression calls itself for each level."""
    if len(terms) <= _TERMS_IN_ORDER:
        return reduce(join, terms)
    return _balanced(join, terms)


def _balanced(join: Callable[[Any, Any], Any], terms: Sequence[pc.Expression]) -> pc.Expression:
    """Join terms in a tree that is as deep as the logarithm of their number."""
    half = len(terms) // 2
    if half:
        return join(_balanced(join, terms[:half]), _balanced(join, terms[half:]))
    return terms[0]


def _of_tuples(given: Sequence[Any]) -> pc.Expression:
    """Return tuples as an expression, as pyarrow does, whose form is as deep as they are many."""
    if isinstance(given[0], str):
        groups = [[tuple(given)]]
    elif isinstance(given[0], tuple):
        groups = [list(given)]
    else:
        groups = [list(group) for group in given]
    groups = [[_with_whole_numbers(term) for term in group] for group in groups]
    if max(len(groups), *map(len, groups)) <= _TERMS_IN_ORDER:
        return pq.filters_to_expression(groups)
    return _joined(
        operator.or_, [_joined(operator.and_, [pq.filters_to_expression([term]) for term in group]) for group in groups]
    )


def _with_whole_numbers(term: Any) -> Any:
    """Return a tuple whose value, or list of values, has whole numbers as pyarrow takes them."""
    if not isinstance(term, tuple) or len(term) != 3:
        return term
    column, sign, value = term
    if _is_beyond(value):
        return column, sign, _whole(value)
    if isinstance(value, list | tuple | set | frozenset) and any(map(_is_beyond, value)):
        return column, sign, pa.array([Decimal(each) if isinstance(each, int) else each for each in value])
    return term


def _is_beyond(value: Any) -> bool:
    return isinstance(value, int) and not -(1 << 63) <= value < 1 << 63


def _tokens(text: str) -> list[str]:
    """Cut a text into words, numbers, quoted strings and signs.

    >>> _tokens("day>=2026-01-03 10:30 and `my col` in ('it''s', 2)")
    ['day', '>=', '2026-01-03 10:30', 'and', '`my col`', 'in', '(', "'it''s'", ',', '2', ')']
    """
    found: list[str] = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise ConfigError(f"the filter {text!r} cannot be read from {text[at:].strip()!r} on; {_REMEDY}")
        token = match["quoted"]
        if token is None:
            token = match[0].strip()
        found.append(token)
        at = match.end()
    return found


def _unquoted(token: str) -> str:
    """Return what stands in quotes.

    >>> _unquoted("'it''s'")
    "it's"
    """
    return token[1:-1].replace(token[0] * 2, token[0])


def _shortened(text: str) -> str:
    if len(text) <= 60:
        return text
    return text[:57] + "..."


def all_of(given: Sequence[Any]) -> pc.Expression:
    """Return an expression that holds where all of some filters hold; there must be one, each as `filter_of` takes it.

    >>> print(all_of(["ad < 4", "day >= 2026-01-03"]))
    ((ad < 4) and (day >= 2026-01-03))
    """
    first, *others = map(filter_of, given)
    for other in others:
        first = first & other
    return first
