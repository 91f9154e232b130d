"""The type table: what each Arrow type becomes, and what is refused."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch

from tests.conversions import convert, value_of
from torch_table_loader import StructuredDataset, Vocabulary
from torch_table_loader.batching.codec import make_codec
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.errors import ConfigError, ConfigTypeError, TableError


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (pa.int8(), torch.int8),
        (pa.int16(), torch.int16),
        (pa.int32(), torch.int32),
        (pa.int64(), torch.int64),
        (pa.uint8(), torch.uint8),
        (pa.uint16(), torch.uint16),
        (pa.uint32(), torch.uint32),
        (pa.uint64(), torch.uint64),
        (pa.float16(), torch.float16),
        (pa.float32(), torch.float32),
        (pa.float64(), torch.float64),
        (pa.bool_(), torch.bool),
        (pa.date32(), torch.int64),
        (pa.date64(), torch.int64),
        (pa.time32("s"), torch.int64),
        (pa.time64("ns"), torch.int64),
        (pa.timestamp("ns", "Europe/Berlin"), torch.int64),
        (pa.duration("us"), torch.int64),
    ],
)
def test_fixed_width_types_keep_their_width(kind: pa.DataType, dtype: torch.dtype) -> None:
    day = 86_400_000 if kind == pa.date64() else 1
    array = pa.array(np.array([0, day], np.int64)).cast(pa.int32() if kind.bit_width <= 32 else pa.int64()).cast(kind)
    assert value_of(array).dtype == dtype
    for output in ("torch", "numpy"):
        rows = pa.record_batch({"x": array.slice(2)})
        assert convert(rows, output_format=output, batch_size=2) is None


def test_points_in_time_are_int64_in_their_unit() -> None:
    day = dt.date(1970, 1, 11)
    assert value_of(pa.array([day])).tolist() == [10]
    assert value_of(pa.array([day], pa.date64())).tolist() == [10 * 86_400_000]
    moment = dt.datetime(1970, 1, 1, 0, 0, 2, tzinfo=dt.UTC)
    assert value_of(pa.array([moment], pa.timestamp("ms", "UTC"))).tolist() == [2000]


def test_decimals_are_doubles_only_if_asked() -> None:
    for kind in (pa.decimal128(9, 2), pa.decimal256(50, 2)):
        prices = pa.array([Decimal("1.25"), None], kind)
        with pytest.raises(ConfigError, match=r"'x' is of type decimal.*unsupported=\"float64\""):
            value_of(prices)
        came = value_of(prices, unsupported="float64")
        assert came.dtype == torch.float64
        assert came[0] == 1.25
        assert math.isnan(came[1])
        assert value_of(prices, unsupported="float64", nulls={"x": 0.5}).tolist() == [1.25, 0.5]


def test_lists_come_in_three_layouts() -> None:
    lists = pa.array([[1, 2], [], [3, 4, 5]], pa.list_(pa.int32()))
    nested = value_of(lists)
    assert nested.layout == torch.jagged
    assert nested.dtype == torch.int32
    padded = value_of(lists, ragged="pad")
    assert padded.values.tolist() == [[1, 2, 0], [0, 0, 0], [3, 4, 5]]
    assert padded.lengths.tolist() == [2, 0, 3]
    ragged = value_of(lists, ragged="offsets")
    assert ragged.values.tolist() == [1, 2, 3, 4, 5]
    assert (ragged.offsets.tolist(), ragged.offsets.dtype) == ([0, 2, 2, 5], torch.int64)
    assert isinstance(value_of(lists, output_format="numpy").values, np.ndarray)
    with pytest.raises(ConfigError, match=r'ragged="nested" is a torch layout'):
        value_of(lists, output_format="numpy", ragged="nested")


def test_offsets_begin_at_0_in_every_batch() -> None:
    lists = pa.array([[row] * row for row in range(9)], pa.large_list(pa.int8()))
    rows = pa.Table.from_batches([pa.record_batch({"x": lists}).slice(2)])
    loader, _ = StructuredDataset.create_dataloader(source=rows, batch_size=3, num_workers=0, ragged="offsets")
    for batch in loader:
        assert batch["x"].offsets[0] == 0
        assert batch["x"].offsets[-1] == len(batch["x"].values)


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["a", None, "b"], pa.string()),
        pa.array(["a", None, "b"], pa.large_string()),
        pa.array(["a", None, "b"], pa.string_view()),
        pa.array(["a", None, "b"]).dictionary_encode(),
        pc.run_end_encode(pa.array(["a", None, "b"])),
        pa.array([b"a", None, b"b"], pa.binary()),
        pa.array([b"a", None, b"b"], pa.binary_view()),
        pa.array([b"a", None, b"b"], pa.binary(1)),
        pa.array([["a", None], None, []], pa.list_(pa.string())),
        pa.array([["a", None], None, []], pa.list_view(pa.string())),
        pa.array([["a", "a"], None, ["b", None]], pa.list_(pa.string(), 2)),
        pa.array([[b"a"], None, []], pa.large_list(pa.binary(1))),
        pa.array([["a", "b"], None, []], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        pa.array([b"1" * 16, None, b"2" * 16], pa.uuid()),
        pa.array(["{}", None, "[]"], pa.json_()),
    ],
    ids=lambda array: str(array.type),
)
def test_strings_are_python_lists_with_none(array: pa.Array) -> None:
    plain = array.storage if isinstance(array, pa.ExtensionArray) else array
    assert value_of(array) == plain.to_pylist()
    assert value_of(array.slice(1)) == plain.slice(1).to_pylist()


@pytest.mark.parametrize(
    "array",
    [
        pa.array([5, 6, 5], pa.int16()).dictionary_encode(),
        pc.run_end_encode(pa.array([5, 6, 5], pa.int16())),
        pa.ExtensionArray.from_storage(pa.opaque(pa.int16(), "t", "v"), pa.array([5, 6, 5], pa.int16())),
    ],
    ids=lambda array: str(array.type)[:20],
)
def test_wrapped_numbers_are_what_is_inside(array: pa.Array) -> None:
    came = value_of(array)
    assert (came.tolist(), came.dtype) == ([5, 6, 5], torch.int16)


def test_structs_are_nested_dicts_and_hand_their_nulls_down() -> None:
    kind = pa.struct([pa.field("a", pa.int8(), nullable=False), ("f", pa.float32()), ("e", pa.struct([]))])
    records = pa.array([{"a": 1, "f": 0.5, "e": {}}, None], kind)
    with pytest.raises(TableError, match=r"column 'x\.a' has a null at row 1.*nulls=\{'x\.a': fill\}"):
        value_of(records)
    came = value_of(records, nulls="mask")
    assert came["a"].tolist() == [1, 0]
    assert came["a_valid"].tolist() == [True, False]
    assert math.isnan(came["f"][1])
    assert came["e"] == {}
    assert value_of(records, nulls={"x.a": -1})["a"].tolist() == [1, -1]


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (pa.null(), "schema="),
        (pa.map_(pa.string(), pa.int8()), "columns="),
        (pa.dense_union([pa.field("a", pa.int8())]), 'output_format="arrow"'),
        (pa.month_day_nano_interval(), "columns="),
        (pa.list_(pa.list_(pa.int8())), "columns="),
        (pa.list_(pa.struct([("a", pa.int8())])), "columns="),
        (pa.list_(pa.map_(pa.string(), pa.int8())), "columns="),
        (pa.list_(pa.list_(pa.int8()), 2), "columns="),
        (pa.list_(pa.list_(pa.string(), 2)), "columns="),
        (pa.list_(pa.null()), "schema="),
        (pa.struct([("a", pa.map_(pa.string(), pa.int8()))]), "columns="),
    ],
    ids=str,
)
def test_other_types_are_refused_at_construction(kind: pa.DataType, remedy: str) -> None:
    schema = pa.schema({"good": pa.int8(), "bad": kind})
    batch = pa.record_batch([pa.array([1], pa.int8()), pa.nulls(1, kind)], schema=schema)
    for output in ("torch", "numpy"):
        with pytest.raises(ConfigError, match=r"column 'bad") as caught:
            convert(batch, output_format=output)
        assert remedy in str(caught.value)
    assert convert(batch, output_format="arrow").num_rows == 1
    assert convert(batch, output_format="dict")["good"] == [1]


def test_keys_must_differ() -> None:
    clash = pa.schema({"a": pa.int8(), "a_valid": pa.bool_()})
    assert set(convert(pa.record_batch([[1], [True]], schema=clash))) == {"a", "a_valid"}
    with pytest.raises(ConfigError, match=r"'a_valid'.*mask of another column"):
        convert(pa.record_batch([[1], [True]], schema=clash), nulls="mask")
    with pytest.raises(ConfigError, match="columns of different names"):
        convert(pa.record_batch([[1], [1]], names=["a", "a"]))


def test_codes_with_and_without_vocabulary() -> None:
    words = pa.array(["b", "a", None, "zzz", "b"])
    codes = value_of(words, strings={"x": Vocabulary(["a", "b"])})
    assert (codes.tolist(), codes.dtype) == ([1, 0, -1, -1, 1], torch.int64)
    wide = [f"w{number}" for number in range(100)] + ["b"]
    assert value_of(words, strings={"x": Vocabulary(wide)}).tolist() == [100, -1, -1, -1, 100]
    assert value_of(words, strings={"x": Vocabulary(["a"])}, nulls={"x": "a"}).tolist() == [
        -1,
        0,
        0,
        -1,
        -1,
    ]
    own = value_of(words, strings="codes")
    assert (own.codes.tolist(), own.values) == ([0, 1, -1, 2, 0], ["b", "a", "zzz"])


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.list_(pa.string(), 2)])
def test_lists_of_strings_become_lists_of_codes(kind: pa.DataType) -> None:
    lists = pa.array([["a", "q"], None, ["b", None]], kind)
    with pytest.raises(ConfigError, match="need a vocabulary"):
        value_of(lists, strings="codes")
    policy: dict[str, Any] = {"strings": {"x": Vocabulary(["a", "b"])}, "ragged": "offsets"}
    assert value_of(lists.slice(2), **policy).values.tolist() == [1, -1]
    with pytest.raises(TableError, match="column 'x' has a null at row 1"):
        value_of(lists, **policy)
    came = convert(pa.record_batch({"x": lists}), nulls="mask", **policy)
    assert came["x"].values.tolist() == [0, -1, 1, -1]
    assert came["x"].offsets.tolist() == [0, 2, 2, 4]
    assert came["x_valid"].tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("strings", "message"),
    [
        ({"y": Vocabulary(["a"])}, "not a column here; the nearest are 'x'"),
        ({"n": Vocabulary(["a"])}, "'n', which is a number"),
        ({"x": Vocabulary(["a", "a"])}, "must not repeat a value"),
        ({"x": Vocabulary(["a", None])}, "or contain None"),
        ({"x": Vocabulary([1])}, "does not fit"),
    ],
)
def test_vocabularies_are_checked_at_construction(strings: dict[str, Any], message: str) -> None:
    batch = pa.record_batch([["a"], [1]], schema=pa.schema({"x": pa.string(), "n": pa.int8()}))
    with pytest.raises(ConfigError, match=message):
        convert(batch, strings=strings)


@pytest.mark.parametrize("given", [None, "abc", b"abc", {"a": 1}, 5])
def test_a_vocabulary_is_a_list(given: Any) -> None:
    with pytest.raises(ConfigTypeError, match=r"Vocabulary\(values=\) must be a list of values, got"):
        Vocabulary(given)


def test_arrow_and_dict_refuse_options_for_tensors() -> None:
    for name, value in (("nulls", "mask"), ("ragged", "pad"), ("unsupported", "float64"), ("strings", "codes")):
        with pytest.raises(ConfigError, match=f"{name}=.*leave {name} out"):
            value_of(pa.array([1]), output_format="arrow", **{name: value})


def test_a_batch_with_other_columns_is_refused() -> None:
    schema = pa.schema({"a": pa.int32()})
    for output in ("torch", "arrow"):
        codec = make_codec(schema, TypePolicy(output_format=output))
        with pytest.raises(TableError, match="expected type int32, got int64"):
            codec.decode(pa.record_batch({"a": pa.array([1], pa.int64())}))
        with pytest.raises(TableError, match=r"expected the columns \['a'\], got \['b'\]"):
            codec.decode(pa.record_batch({"b": pa.array([1], pa.int32())}))


@pytest.mark.parametrize("output", ["torch", "numpy", "arrow", "dict"])
def test_rows_without_columns_keep_their_number(output: Any) -> None:
    batch = pa.table({"a": range(5)}).select([]).to_batches()[0]
    if batch.num_rows != 5:
        batch = pa.RecordBatch.from_struct_array(pa.array([{}] * 5, pa.struct([])))
    codec = make_codec(batch.schema, TypePolicy(output_format=output))
    rows = codec.unpack(codec.pack(codec.decode(batch), codec.decode(batch)))
    assert rows.num_rows == 10
    assert rows.take(np.arange(10)[::-1]).num_rows == 10
    assert codec.concat([rows, rows]).num_rows == 20
    assert len(rows.batches(4)) == 3


_LISTS = pa.list_(pa.list_(pa.int32()))
_UNION = pa.UnionArray.from_sparse(pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])])


@pytest.mark.parametrize(
    "array",
    [
        pa.nulls(3),
        pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        pa.array([[[1], None], None, []], _LISTS),
        pa.array([[[1], None], None, []], pa.list_view(pa.list_(pa.int32()))),
        pa.array([[{"a": 1}], None, [None]]),
        pa.array([[[1], [2]], None, [None, []]], pa.list_(pa.list_(pa.int32()), 2)),
        pa.array([[["a"], ["b"]], None, []], pa.list_(pa.list_(pa.string(), 1))),
        pa.array([[Decimal("1.5")], None, [None]]),
        pa.array([Decimal("1.5"), None, Decimal("2.5")]),
        pa.array([(1, 2, 3), None, (0, 0, 1)], pa.month_day_nano_interval()),
        _UNION,
    ],
    ids=lambda array: str(array.type),
)
@pytest.mark.parametrize("form", ["torch", "numpy"])
def test_what_has_no_form_comes_as_python_values_if_asked(array: pa.Array, form: str) -> None:
    with pytest.raises(ConfigError, match=r"'x.*cannot become a tensor.*unsupported="):
        value_of(array, output_format=form)
    assert value_of(array, output_format=form, unsupported="list") == array.to_pylist()
    inside = pa.StructArray.from_arrays([array, pa.array([1, 2, 3])], ["v", "n"])
    child = value_of(inside, output_format=form, unsupported="list")
    assert (child["v"], child["n"].tolist()) == (array.to_pylist(), [1, 2, 3])


def test_what_has_a_form_is_the_same_beside_them() -> None:
    columns = {
        "n": pa.array([1, 2]),
        "f": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        "g": pa.array([[[1], [2]], [[3], [4]]], pa.list_(pa.list_(pa.int8(), 1), 2)),
        "l": pa.array([[1], [2, 3]]),
        "s": pa.array(["a", None]).dictionary_encode(),
        "t": pa.array([["a"], None]),
        "c": pa.array([["a", "b"], ["c", None]], pa.list_(pa.string(), 2)),
        "d": pa.array([dt.date(2026, 1, 1)] * 2),
    }
    batch = pa.record_batch(columns)
    plain, asked = (convert(batch, unsupported=form) for form in (None, "list"))
    assert list(plain) == list(asked) == list(columns)
    for name, value in plain.items():
        assert type(value) is type(asked[name])
        one, other = (each.unbind() if isinstance(each, torch.Tensor) else each for each in (value, asked[name]))
        assert str(one) == str(other)
