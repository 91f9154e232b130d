"""Rows with nulls, NaN and both zeros, and filters over them, as strategies: the same for every table format."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

numbers = st.one_of(st.none(), st.integers(-3, 3))
floats = st.one_of(st.none(), st.sampled_from([math.nan, -0.0, 0.0, 1.5, -2.0, math.inf]))
texts = st.one_of(st.none(), st.sampled_from(["", "a", "ab", "b", "ba"]))
rows = st.fixed_dictionaries({"x": numbers, "k": numbers, "f": floats, "s": texts})


def leaves() -> st.SearchStrategy[pc.Expression]:
    number = st.sampled_from([pc.field("x"), pc.field("k")])
    compare = st.sampled_from(["__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"])
    return st.one_of(
        st.builds(lambda f, c, v: getattr(f, c)(v), number, compare, st.sampled_from([-2, 0, 1, 2.5, 3.0])),
        st.builds(lambda c, v: getattr(pc.field("f"), c)(v), compare, st.sampled_from([0.0, -0.0, 1.5, 2, math.inf])),
        st.builds(lambda c, v: getattr(pc.field("s"), c)(v), compare, st.sampled_from(["", "a", "b"])),
        st.builds(lambda f, v: f.isin(v), number, st.sampled_from([[0], [1, None], [-3, 3], [2, 1]])),
        st.builds(lambda v: pc.field("f").isin(v), st.sampled_from([[0.0], [math.nan, 1.5], [1.5]])),
        st.builds(
            lambda f, n: f.is_null(nan_is_null=n), st.sampled_from([pc.field("f"), pc.field("x")]), st.booleans()
        ),
        st.builds(lambda f: f.is_valid(), st.sampled_from([pc.field("f"), pc.field("s")])),
        st.just(pc.is_nan(pc.field("f"))),
        st.builds(lambda p: pc.starts_with(pc.field("s"), p), st.sampled_from(["a", "b", ""])),
        st.just(pc.field("x") + 1 > 2),
        st.just(pc.field("x").cast(pa.float64()) < 1.0),
    )


filters = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        inner.map(lambda a: ~a),
    ),
    max_leaves=5,
)


def canonical(found: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in found)
