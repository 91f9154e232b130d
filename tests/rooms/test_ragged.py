"""`ragged=`: what a Pad refuses, the layout of each column, and layouts that do not fit a column."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.conversions import convert
from torch_table_loader import ConfigError, LoaderOptions, Pad, TableError, Vocabulary
from torch_table_loader.errors import ConfigTypeError

LISTS = pa.array([[1, 2], [], [3, 4, 5]], pa.list_(pa.uint8()))


def read(columns: dict[str, pa.Array], **policy: Any) -> dict[str, Any]:
    found: dict[str, Any] = convert(pa.record_batch(columns), **policy)
    return found


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"value": "x"}, ConfigTypeError, r"Pad\(value=\) must be a number or a bool, got str 'x'"),
        ({"value": None}, ConfigTypeError, "must be a number or a bool, got NoneType None"),
        ({"value": 1j}, ConfigTypeError, "must be a number or a bool, got complex"),
        ({"value": np.zeros(2)}, ConfigTypeError, "must be a number or a bool, got ndarray"),
        ({"length": 0}, ConfigError, r"Pad\(length=\) must be at least 1, got 0"),
        ({"length": 2.5}, ConfigTypeError, r"Pad\(length=\) must be an int, got float 2.5"),
        ({"multiple_of": -8}, ConfigError, r"Pad\(multiple_of=\) must be at least 1, got -8"),
        ({"length": 20, "multiple_of": 8}, ConfigError, "not a multiple of multiple_of=8; the nearest is 16 or 24"),
        ({"length": 5, "multiple_of": 8}, ConfigError, "not a multiple of multiple_of=8; the nearest is 8, or"),
        ({"truncate": "right"}, ConfigError, "not at what length; pass length= too"),
        ({"length": 4, "truncate": "middle"}, ConfigError, "must be one of None, 'left', 'right', got 'middle'"),
        ({"length": 4, "truncate": True}, ConfigError, "must be one of None, 'left', 'right', got True"),
        ({"side": "up"}, ConfigError, r"Pad\(side=\) must be one of 'left', 'right', got 'up'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Pad(**settings)


def test_a_pad_is_a_value() -> None:
    pad = Pad(value=np.float32(0.5), length=np.int64(16), multiple_of=8)  # type: ignore[arg-type]
    assert pad == Pad(value=0.5, length=16, multiple_of=8)
    assert (type(pad.value), type(pad.length)) == (float, int)
    assert pickle.loads(pickle.dumps(pad)) == pad  # noqa: S301
    assert len({pad, Pad(value=0.5, length=16, multiple_of=8), Pad()}) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": "square"}, r"ragged\['x'\] must be one of 'nested', 'pad', 'offsets' or a Pad\(...\), got 'square'"),
        ({"x": None}, r"ragged\['x'\] must be one of .* got None"),
        ({3: "pad"}, "ragged must name columns by str, got int 3"),
        (Pad, r"a Pad\(...\), or {column: one of these}, got <class"),
    ],
)
def test_layouts_that_are_none_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoaderOptions(ragged=given)


def test_pad_in_words_is_a_pad_without_settings() -> None:
    for layout in ("pad", Pad(), {"x": "pad"}, {"x": Pad()}):
        came = read({"x": LISTS}, ragged=layout)["x"]
        assert came.values.tolist() == [[1, 2, 0], [0, 0, 0], [3, 4, 5]]


def test_each_column_has_its_own_layout_and_the_others_the_default() -> None:
    home = pa.StructArray.from_arrays([LISTS], ["walls"])
    columns = {"a": LISTS, "b": LISTS, "c": LISTS, "home": home}
    layouts = {"a": Pad(value=7, length=4, side="left"), "b": "offsets", "home.walls": "pad"}
    batch = read(columns, ragged=layouts)
    assert batch["a"].values.tolist() == [[7, 7, 1, 2], [7, 7, 7, 7], [7, 3, 4, 5]]
    assert batch["b"]._fields == ("values", "offsets")
    assert batch["c"].layout == torch.jagged
    assert batch["home"]["walls"]._fields == ("values", "lengths")
    assert read(columns, ragged={"a": "pad"}, output_format="numpy")["c"]._fields == ("values", "offsets")
    with pytest.raises(ConfigError, match='ragged="nested" is a torch layout'):
        read(columns, ragged={"a": "nested"}, output_format="numpy")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("y", "ragged names 'y', which is not a column here; the nearest are 'x'"),
        ("n", "ragged names 'n', which is a number; it is for: 'x'"),
        ("s", "ragged names 's', which is a list of strings, where null comes as None"),
    ],
)
def test_names_that_no_list_has_are_refused(name: str, message: str) -> None:
    columns = {"x": LISTS, "n": pa.array([1, 2, 3]), "s": pa.array([["a"], [], ["b"]])}
    with pytest.raises(ConfigError, match=message):
        read(columns, ragged={name: Pad()})


NUMBERS: list[tuple[pa.DataType, Any, Any]] = [
    (pa.uint8(), 255, -1),
    (pa.int8(), -128, 128),
    (pa.int64(), -(2**63), 2**63),
    (pa.int32(), 3.0, 0.5),
    (pa.int16(), 0, math.nan),
    (pa.bool_(), True, 2),
    (pa.float16(), -math.inf, 1e6),
    (pa.float32(), 0.1, 10**300),
    (pa.float64(), math.nan, 10**400),
    (pa.timestamp("us"), -1, 0.5),
]


@pytest.mark.parametrize(("kind", "fits", "does_not"), NUMBERS, ids=[str(kind) for kind, _, _ in NUMBERS])
def test_a_value_must_be_one_that_the_column_can_have(kind: pa.DataType, fits: Any, does_not: Any) -> None:
    column = pa.array([[], [None]], pa.list_(kind))
    nulls = None if pa.types.is_floating(kind) else {"x.item": False if kind == pa.bool_() else 0}
    values = read({"x": column}, ragged=Pad(value=fits, length=2), nulls=nulls)["x"].values
    wanted = torch.tensor([fits, fits], dtype=values.dtype)
    assert torch.equal(values[0].nan_to_num(), wanted.nan_to_num())
    with pytest.raises(ConfigError, match=r"Pad\(value=.*\) does not fit column 'x', whose values are"):
        read({"x": column}, ragged=Pad(value=does_not, length=2), nulls=nulls)


def test_codes_are_padded_with_what_no_word_has() -> None:
    words = pa.array([["a", "b"], ["?"], []])
    pad = Pad(value=-2, multiple_of=4)
    batch = read({"x": words}, strings={"x": Vocabulary(["a", "b"])}, ragged={"x": pad})
    assert batch["x"].values.tolist() == [[0, 1, -2, -2], [-1, -2, -2, -2], [-2] * 4]


def test_what_lies_under_a_null_list_is_not_counted() -> None:
    """A null list may hide values; its replacement is counted instead."""
    hidden = pa.ListArray.from_arrays(pa.array([0, 1, 9], pa.int32()), pa.array(range(9)), mask=pa.array([False, True]))
    batch = read({"x": hidden}, ragged=Pad(length=2), nulls={"x": [7, 8]})
    assert batch["x"].values.tolist() == [[0, 0], [7, 8]]
    assert batch["x"].lengths.tolist() == [1, 2]
    assert read({"x": hidden}, ragged=Pad(length=2), nulls="mask")["x"].lengths.tolist() == [1, 0]
    with pytest.raises(ConfigError, match=r"nulls fills column 'x' with 3 values, and Pad\(length=2\) takes no more"):
        read({"x": hidden}, ragged=Pad(length=2), nulls={"x": [7, 8, 9]})


def test_lists_that_are_too_long_are_refused_with_the_remedy() -> None:
    with pytest.raises(
        TableError, match=r"column 'x' has a list of 3 values at row 2 of this batch.*truncate=\"right\""
    ):
        read({"x": LISTS}, ragged=Pad(length=2))
    assert read({"x": LISTS}, ragged=Pad(length=2, truncate="left"))["x"].values.tolist() == [[1, 2], [0, 0], [4, 5]]
