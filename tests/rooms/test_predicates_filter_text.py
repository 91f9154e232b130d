"""Filters as text and as tuples keep the right rows; DuckDB gives the same text the same meaning."""

from __future__ import annotations

from datetime import date, datetime
from functools import reduce
from typing import Any, cast

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_table_loader import ConfigError, StructuredDataset

ROWS = pa.table(
    {
        "x": range(5),
        "s": ["0", None, "2", "3", "it's"],
        "day": [date(2026, 1, day) for day in range(1, 6)],
        "at": [datetime.fromisoformat(f"2026-01-0{day}T10:30:00") for day in range(1, 6)],
        "ok": [True, False, None, False, True],
        "my col": [0.5, 1.5, 2.5, None, -4.5],
        "p": [{"q": at} for at in range(5)],
    }
)


def kept_of(table: pa.Table, filters: Any) -> list[int]:
    """Return the numbers in the first column of the rows that a filter keeps."""
    name = table.column_names[0]
    options: dict[str, Any] = {"filters": filters, "columns": [name], "num_workers": 0, "output_format": "dict"}
    loader, _ = StructuredDataset.create_dataloader(source=table, **options)
    return [number for batch in loader for number in batch[name]]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("x == 3", [3]),
        ("x = 3", [3]),
        ("x != 3", [0, 1, 2, 4]),
        ("x<>3", [0, 1, 2, 4]),
        ("x<2", [0, 1]),
        ("x >= 2.5", [3, 4]),
        ("s is null", [1]),
        ("s IS NOT null", [0, 2, 3, 4]),
        ("s == '2'", [2]),
        ('s == "2"', [2]),
        ("s = 'it''s'", [4]),
        ("day > 2026-01-03", [3, 4]),
        ("at == 2026-01-02T10:30:00", [1]),
        ("at >= 2026-01-04 10:30", [3, 4]),
        ("ok == true", [0, 4]),
        ("ok", [0, 4]),
        ("not ok", [1, 3]),
        ("x in (1, 3, 7)", [1, 3]),
        ("s not in ('0', '2')", [3, 4]),
        ("not (s in ('0', '2'))", [3, 4]),
        ("x between 1 and 2 or x = 4", [1, 2, 4]),
        ("x not between 1 and 2", [0, 3, 4]),
        ("s like 'it%'", [4]),
        ("s not like 'it%'", [0, 2, 3]),
        ("`my col` > -5 and `my col` < 1", [0, 4]),
        ("'my col' = -4.5", [4]),
        ("p.q >= 4", [4]),
        ("x = 0 or x = 1 and x = 2", [0]),
        ("(x = 0 or x = 1) and not x = 0", [1]),
    ],
)
def test_text_filters_keep_the_right_rows(text: str, kept: list[int]) -> None:
    assert kept_of(ROWS, text) == kept


@pytest.mark.parametrize(
    ("tuples", "kept"),
    [
        (("x", ">", 3), [4]),
        ([("x", ">", 1), ("s", "in", ["2", "3"])], [2, 3]),
        ([[("x", "=", 1)], [("day", ">=", date(2026, 1, 5))]], [1, 4]),
    ],
)
def test_tuples_have_the_meaning_that_pyarrow_gives_them(tuples: Any, kept: list[int]) -> None:
    assert kept_of(ROWS, tuples) == kept


def test_expressions_keep_the_rows_that_pyarrow_keeps() -> None:
    given = (pc.field("x") > 1) & ~pc.field("ok").is_null()
    assert kept_of(ROWS, given) == ROWS.filter(given)["x"].to_pylist() == [3, 4]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected a column, got the end"),
        ("x >", "expected a value, got the end"),
        ("(x = 3", r"expected \), got the end"),
        ("x = 3)", r"expected and, or, or the end, got '\)'"),
        ("x = 3 4", "expected and, or, or the end, got '4'"),
        ("x > y", "a string in quotes, got 'y'"),
        ("and", "expected a column, got 'and'"),
        ("x not 3", "expected in, between or like after not, got '3'"),
        ("x like 3", "expected a string in quotes after like, got 3"),
        ("x in ()", r"got '\)'"),
        ("x in 3", r"expected \(, got '3'"),
        ("x between 1", "expected and, got the end"),
        ("x is 3", "expected null, got '3'"),
        ("x !! 3", "cannot be read from '!! 3' on"),
        ("s = 'open", "cannot be read from .*'open"),
    ],
)
def test_text_that_does_not_parse_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        kept_of(ROWS, text)


# ---- the same as DuckDB ----------------------------------------------------------------------------------

VALUES = [None, -2, -1, 0, 1, 2]
SMALL = pa.table({"id": range(36), "a": [x for x in VALUES for _ in VALUES], "b": VALUES * len(VALUES)})
numbers = st.integers(-3, 3).map(str)
columns = st.sampled_from(["a", "b"])
tests = st.one_of(
    st.builds("{} {} {}".format, columns, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), numbers),
    st.builds("{} is {}null".format, columns, st.sampled_from(["", "not "])),
    st.builds(
        "{} {}in ({})".format,
        columns,
        st.sampled_from(["", "not "]),
        st.lists(numbers, min_size=1, max_size=4).map(", ".join),
    ),
    st.builds("{} {}between {} and {}".format, columns, st.sampled_from(["", "not "]), numbers, numbers),
)
texts = st.recursive(
    tests,
    lambda inner: st.one_of(
        st.builds("not ({})".format, inner),
        st.builds("({}) {} {}".format, inner, st.sampled_from(["and", "or"]), inner),
        st.builds("{} {} ({})".format, inner, st.sampled_from(["and", "or"]), inner),
    ),
    max_leaves=6,
)


@given(texts)
def test_text_has_the_same_meaning_as_in_sql(text: str) -> None:
    small = SMALL
    wanted = duckdb.sql(f"select id from small where {text} order by id").fetchall()  # noqa: S608 made above
    assert [(row,) for row in kept_of(small, text)] == wanted


@pytest.mark.parametrize(
    "deep",
    [
        "(" * 30_000 + "a > 3" + ")" * 30_000,
        "not " * 30_000 + "a > 3",
        "(" * 30_000,
        reduce(lambda inner, _: [inner], range(5000), cast("Any", ("a", ">", 3))),
        reduce(lambda terms, at: terms | (pc.field("a") == at), range(1000), pc.field("a") == 0),
        " or ".join(f"a = {at}" for at in range(4500)),
        [("a", "!=", at) for at in range(4500)],
        f"a in ({', '.join(map(str, range(4500)))})",
    ],
    ids=["()", "not", "torn", "tuples", "expression", "terms", "many tuples", "in"],
)
def test_a_filter_that_nests_too_deep_is_refused(deep: Any) -> None:
    with pytest.raises(ConfigError):
        kept_of(pa.table({"a": [1]}), deep)


@pytest.mark.parametrize("count", [90, 300])
def test_many_terms_say_what_few_do(count: int) -> None:
    table = pa.table({"a": list(range(2000))})
    numbers = range(3, 3 + count)
    either, neither = list(numbers), [at for at in range(2000) if at not in numbers]
    for written, expected in (
        (" or ".join(f"a = {at}" for at in numbers), either),
        ([[("a", "=", at)] for at in numbers], either),
        (" and ".join(f"a != {at}" for at in numbers), neither),
        ([("a", "!=", at) for at in numbers], neither),
    ):
        assert kept_of(table, written) == expected
