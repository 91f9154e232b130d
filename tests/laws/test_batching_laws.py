"""Laws of the batching room, for random schemas, values, chunkings and batch sizes."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Iterable
from itertools import pairwise
from types import FrameType
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conversions import batches_of
from tests.effort import examples
from torch_table_loader import StructuredDataset, Vocabulary
from torch_table_loader.batching import codec as codec_module
from torch_table_loader.batching.codec import make_codec
from torch_table_loader.batching.outputs import Codes, Padded, Ragged
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.batching.rows import ExactBatches, Part, WindowDeal, WindowShuffle
from torch_table_loader.planning.window_sizes import WindowSizes
from torch_table_loader.planning.windows import Dealing
from torch_table_loader.testing import small_sizes

Make = Callable[[np.random.Generator], Any]


def _ints(low: int, high: int) -> Make:
    return lambda rng: int(rng.integers(low, high))


def _some(make: Make, longest: int = 4) -> Make:
    return lambda rng: [make(rng) for _ in range(rng.integers(0, longest + 1))]


def _just(make: Make, size: int) -> Make:
    return lambda rng: [make(rng) for _ in range(size)]


def _word(rng: np.random.Generator) -> str:
    return str(rng.choice(["", "a", "ä", "bcd", "日本", "long " * 9]))


def _float(rng: np.random.Generator) -> float:
    return float(np.float16(rng.normal()))


def _gappy(rng: np.random.Generator) -> float | None:
    return None if rng.random() < 0.2 else _float(rng)


def _record(rng: np.random.Generator) -> dict[str, Any]:
    inner = {"n": int(rng.integers(0, 9)), "l": [1] * int(rng.integers(3))} if rng.random() < 0.9 else None
    return {"x": _float(rng), "s": _word(rng), "in": inner}


_RECORD = pa.struct(
    [("x", pa.float32()), ("s", pa.string()), ("in", pa.struct([("n", pa.int16()), ("l", pa.list_(pa.int8()))]))]
)

TYPES: dict[str, tuple[pa.DataType, Make]] = {
    "bool": (pa.bool_(), lambda rng: bool(rng.integers(2))),
    "i8": (pa.int8(), _ints(-128, 128)),
    "i64": (pa.int64(), _ints(-(2**63), 2**63 - 1)),
    "u16": (pa.uint16(), _ints(0, 2**16)),
    "u32": (pa.uint32(), _ints(0, 2**32)),
    "u64": (pa.uint64(), _ints(0, 2**62)),
    "f16": (pa.float16(), lambda rng: np.float16(rng.normal())),
    "f32": (pa.float32(), _float),
    "f64": (pa.float64(), _float),
    "date32": (pa.date32(), _ints(0, 20000)),
    "time32": (pa.time32("ms"), _ints(0, 86_400_000)),
    "time64": (pa.time64("us"), _ints(0, 86_400_000_000)),
    "ts": (pa.timestamp("us", "UTC"), _ints(-(10**12), 10**15)),
    "dur": (pa.duration("ms"), _ints(-1000, 1000)),
    "dict": (pa.dictionary(pa.int8(), pa.int32()), _ints(0, 5)),
    "fsl": (pa.list_(pa.int16(), 3), _just(_ints(0, 99), 3)),
    "fslb": (pa.list_(pa.bool_(), 2), _just(lambda rng: bool(rng.integers(2)), 2)),
    "grid": (pa.list_(pa.list_(pa.float32(), 2), 3), _just(_just(_gappy, 2), 3)),
    "list": (pa.list_(pa.int32()), _some(_ints(0, 999))),
    "biglist": (pa.large_list(pa.float64()), _some(_gappy, 80)),
    "boollist": (pa.list_(pa.bool_()), _some(lambda rng: bool(rng.integers(2)))),
    "pairs": (pa.list_(pa.list_(pa.int8(), 2)), _some(_just(_ints(0, 9), 2))),
    "str": (pa.string(), _word),
    "bin": (pa.binary(), lambda rng: rng.bytes(3)),
    "fsb": (pa.binary(3), lambda rng: rng.bytes(3)),
    "view": (pa.string_view(), _word),
    "dstr": (pa.dictionary(pa.int32(), pa.string()), _word),
    "lstr": (pa.list_(pa.string()), _some(_word)),
    "rec": (_RECORD, _record),
}


def _array(kind: pa.DataType, make: Make, rng: np.random.Generator, length: int, nulls: float) -> pa.Array:
    values = [None if rng.random() < nulls else make(rng) for _ in range(length)]
    if pt.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    return pa.array(values, kind)


def _table(names: list[str], seed: int, length: int, nulls: float) -> pa.RecordBatch:
    rng = np.random.default_rng(seed)
    schema = pa.schema([(name, TYPES[name][0]) for name in names])
    return pa.RecordBatch.from_arrays([_array(*TYPES[name], rng, length, nulls) for name in names], schema=schema)


def _wanted(kind: pa.DataType, value: Any, default: Callable[[pa.DataType], Any]) -> Any:
    """What a value must become, from its Python form alone; `default` stands for null."""
    if pt.is_dictionary(kind):
        return _wanted(kind.value_type, value, default)
    if pt.is_struct(kind):
        return {
            field.name: _wanted(field.type, None if value is None else value[field.name], default)
            for field in (kind.field(index) for index in range(kind.num_fields))
        }
    if value is None:
        return default(kind)
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return [_wanted(kind.value_type, item, default) for item in value]
    if pt.is_temporal(kind):
        wide = pa.scalar(value, kind).cast(pa.int32() if kind.bit_width == 32 else pa.int64())
        return wide.as_py()
    return float(value) if pt.is_floating(kind) else value


def _null_value(kind: pa.DataType) -> Any:
    if pt.is_floating(kind):
        return math.nan
    if pt.is_fixed_size_list(kind):
        return [_zero(kind.value_type)] * kind.list_size
    if pt.is_list(kind) or pt.is_large_list(kind):
        return None if pt.is_string(kind.value_type) else []
    return _zero(kind) if pt.is_primitive(kind) else None


def _zero(kind: pa.DataType) -> Any:
    if pt.is_fixed_size_list(kind):
        return [_zero(kind.value_type)] * kind.list_size
    return False if pt.is_boolean(kind) else 0.0 if pt.is_floating(kind) else 0


def _values(output: Any) -> list[Any]:
    """The rows of one key of a batch, as Python values."""
    if isinstance(output, dict):
        columns = {name: _values(value) for name, value in output.items() if not name.endswith("_valid")}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if isinstance(output, Ragged):
        bounds, items = output.offsets.tolist(), output.values.tolist()
        assert bounds[0] == 0
        assert bounds[-1] == len(items)
        return [items[start:stop] for start, stop in pairwise(bounds)]
    if isinstance(output, Padded):
        rows = zip(output.values.tolist(), output.lengths.tolist(), strict=True)
        return [row[:length] for row, length in rows]
    if isinstance(output, Codes):
        return [None if code < 0 else output.values[code] for code in output.codes.tolist()]
    if isinstance(output, torch.Tensor) and output.is_nested:
        return [row.tolist() for row in output.unbind()]
    return list(output if isinstance(output, list) else output.tolist())


def _same(left: Any, right: Any) -> bool:
    return repr(left) == repr(right)


tables = st.builds(
    _table,
    names=st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=5, unique=True),
    seed=st.integers(0, 2**32),
    length=st.integers(0, 70),
    nulls=st.sampled_from([0.0, 0.3, 1.0]),
)
policies = st.one_of(
    st.builds(
        TypePolicy,
        output_format=st.just("torch"),
        ragged=st.sampled_from([None, "nested", "pad", "offsets"]),
        strings=st.just("list"),
        nulls=st.just("mask"),
    ),
    st.builds(
        TypePolicy,
        output_format=st.just("numpy"),
        ragged=st.sampled_from([None, "pad", "offsets"]),
        strings=st.just("list"),
        nulls=st.just("mask"),
    ),
)


def _chunks(batch: pa.RecordBatch, cuts: list[int]) -> list[pa.RecordBatch]:
    bounds = [0, *sorted(min(cut, batch.num_rows) for cut in cuts), batch.num_rows]
    return [batch.slice(start, stop - start) for start, stop in pairwise(bounds)]


def _parts(codec: Any, batch: pa.RecordBatch, cuts: list[int], *, whole: bool) -> list[Part[Any]]:
    """Parts of chunks that were decoded each alone, or as a whole."""
    chunks = _chunks(batch, cuts)
    ends = np.cumsum([chunk.num_rows for chunk in chunks]).tolist()
    if whole:
        rows = codec.decode(batch)
        return [Part(rows, end - chunk.num_rows, end) for chunk, end in zip(chunks, ends, strict=True)]
    return [Part(codec.decode(chunk), 0, chunk.num_rows) for chunk in chunks]


chunkings = st.lists(st.integers(0, 70), max_size=5)


def _rest(exact: ExactBatches[Any], codec: Any, batch_size: int) -> list[Any]:
    """Make the short last batch, if there is one."""
    rest = exact.rest()
    return codec.as_one(rest).batches(batch_size) if rest else []


@settings(max_examples=examples(120), deadline=None)
@given(table=tables, policy=policies, cuts=chunkings, batch_size=st.integers(1, 40), packed=st.booleans())
def test_all_batches_together_are_the_table(
    table: pa.RecordBatch, policy: TypePolicy, cuts: list[int], batch_size: int, packed: bool
) -> None:
    codec = make_codec(table.schema, policy)
    exact = ExactBatches(codec, batch_size)
    batches = []
    for chunk in _chunks(table, cuts):
        rows = codec.decode(chunk)
        for parts in exact.push(codec.unpack(codec.pack(rows)) if packed else rows):
            batches += codec.as_one(parts).batches(batch_size)
    batches += _rest(exact, codec, batch_size)
    sizes = [len(_values(next(iter(batch.values())))) for batch in batches]
    assert sum(sizes) == table.num_rows
    assert all(size == batch_size for size in sizes[:-1])
    assert all(0 < size <= batch_size for size in sizes)
    for field, column in zip(table.schema, table.columns, strict=True):
        came = [value for batch in batches for value in _values(batch[field.name])]
        wanted = [_wanted(field.type, value, _null_value) for value in column.to_pylist()] if sizes else []
        assert _same(came, wanted), field
        if f"{field.name}_valid" in (batches[0] if batches else {}):
            mask = [value for batch in batches for value in _values(batch[f"{field.name}_valid"])]
            assert mask == column.is_valid().to_pylist()


@settings(max_examples=examples(60), deadline=None)
@given(table=tables, cuts=chunkings, batch_size=st.integers(1, 40), python=st.booleans())
def test_arrow_and_dict_batches_are_the_table(
    table: pa.RecordBatch, cuts: list[int], batch_size: int, python: bool
) -> None:
    source = pa.Table.from_batches(_chunks(table, cuts), table.schema)
    options: Any = {"output_format": "dict" if python else "arrow", "batch_size": batch_size}
    batches = list(StructuredDataset.create_dataloader(source=source, num_workers=0, **options)[0])
    plain = batches if python else [batch.to_pydict() for batch in batches]
    assert all(python or batch.schema.equals(table.schema) for batch in batches)
    sizes = [len(batch[table.schema.names[0]]) for batch in plain]
    assert all(size == batch_size for size in sizes[:-1])
    for name in table.schema.names:
        assert _same([value for batch in plain for value in batch[name]], table[name].to_pylist())


@settings(max_examples=examples(80), deadline=None)
@given(
    table=tables,
    output=st.sampled_from(["torch", "numpy", "arrow", "dict"]),
    cuts=chunkings,
    batch_size=st.integers(1, 9),
    few=st.integers(1, 40),
)
def test_batches_that_are_cut_late_are_those_that_are_cut_at_once(
    table: pa.RecordBatch, output: Any, cuts: list[int], batch_size: int, few: int
) -> None:
    nulls: Any = "mask" if output in ("torch", "numpy") else None
    with small_sizes(cut_objects=few):
        codec = make_codec(table.schema, TypePolicy(output_format=output, nulls=nulls, ragged=None))
    runs = [rows for chunk in _chunks(table, cuts) if (rows := codec.decode(chunk)).num_rows]
    if not runs:
        return
    at_once = [batch for rows in runs for batch in rows.batches(batch_size)]
    late = codec.batches_of([[run] for run in runs], batch_size)
    assert len(late) == len(at_once)
    came = list(late)
    assert [_plain(batch) for batch in came] == [_plain(batch) for batch in at_once]


def _plain(batch: Any) -> Any:
    """Return a batch as text, in which each NaN is equal to itself."""
    entries = batch.to_pydict() if isinstance(batch, pa.RecordBatch) else batch
    return str({name: (getattr(entry, "dtype", None), _values(entry)) for name, entry in entries.items()})


@small_sizes(cut_objects=12)  # a batch is three: a dict and two tensors
def test_only_a_few_batches_are_cut_before_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.record_batch({"x": np.arange(1000), "y": np.arange(1000.0)})
    codec = make_codec(table.schema, TypePolicy())
    rows = codec.decode(table)
    cut: list[int] = []
    at_once = type(rows).batches

    def noted(part: Any, batch_size: int) -> Any:
        cut.append(part.num_rows)
        return at_once(part, batch_size)

    monkeypatch.setattr(type(rows), "batches", noted)
    batches = iter(codec.batches_of([[rows]], 10))
    assert cut == []
    assert torch.equal(next(batches)["x"], torch.arange(10))
    assert cut == [40]
    assert sum(len(batch["x"]) for batch in batches) == 990
    assert cut == [40] * 25


def test_wide_batches_that_are_let_go_make_python_collect_no_garbage() -> None:
    """A collection looks at all that lives: with a list for each column there was one at every batch."""
    table = pa.record_batch({f"x{column}": np.arange(1000) for column in range(500)})
    codec = make_codec(table.schema, TypePolicy())
    rows = codec.decode(table)
    limits, collections = gc.get_threshold(), []
    gc.collect()
    gc.set_threshold(700, 10, 10)
    gc.callbacks.append(lambda phase, _: collections.append(phase) if phase == "start" else None)
    try:
        for batch in codec.batches_of([[rows]], 10):
            assert len(batch) == 500
    finally:
        gc.callbacks.pop()
        gc.set_threshold(*limits)
    assert len(collections) < 20


def _taken(table: pa.RecordBatch, rows: Iterable[int]) -> pa.RecordBatch:
    """Rows of a table by way of Python values."""
    arrays = []
    for column in table.columns:
        kind = column.type
        values = [column[row].as_py() for row in rows]
        plain = pa.array(values, kind.value_type if pt.is_dictionary(kind) else kind)
        arrays.append(plain.dictionary_encode().cast(kind) if pt.is_dictionary(kind) else plain)
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)


@settings(max_examples=examples(80), deadline=None)
@given(
    table=tables,
    output=st.sampled_from(["torch", "numpy", "arrow"]),
    cuts=chunkings,
    data=st.data(),
)
def test_slice_take_and_concat_agree_with_arrow(
    table: pa.RecordBatch, output: Any, cuts: list[int], data: st.DataObject
) -> None:
    nulls: Any = None if output == "arrow" else "mask"
    codec = make_codec(table.schema, TypePolicy(output_format=output, nulls=nulls, ragged=None))

    def plain(rows: Any) -> Any:
        batches = rows.batches(max(1, rows.num_rows))
        if output == "arrow":
            return [batch.to_pydict() for batch in batches]
        return [{name: _values(value) for name, value in batch.items()} for batch in batches]

    start = data.draw(st.integers(0, table.num_rows))
    stop = data.draw(st.integers(start, table.num_rows))
    rows = codec.decode(table)
    assert _same(plain(rows.slice(start, stop)), plain(codec.decode(_taken(table, range(start, stop)))))
    order = data.draw(st.permutations(range(stop - start)))
    indices = np.array(order, np.int64)
    arrow = _taken(table.slice(start, stop - start), order)
    assert _same(plain(rows.slice(start, stop).take(indices)), plain(codec.decode(arrow)))
    parts = [codec.decode(chunk) for chunk in _chunks(table, cuts)]
    assert _same(plain(codec.concat(parts)), plain(rows))
    whole = np.roll(np.arange(rows.num_rows)[::-1], start)
    waiting = codec.collected(rows.num_rows)
    for part in parts:
        waiting.add(part, 0, part.num_rows)
    taken = codec.taken(waiting.taken(), whole)
    assert _same(plain(taken), plain(codec.decode(_taken(table, whole.tolist()))))
    assert _same(plain(codec.unpack(codec.pack(*parts))), plain(rows))


@settings(max_examples=examples(60), deadline=None)
@given(
    length=st.integers(0, 90),
    window=st.integers(1, 40),
    grown=st.lists(st.integers(1, 20), max_size=2),
    first=st.integers(0, 5),
    cuts=st.lists(st.integers(0, 90), max_size=6),
    whole=st.booleans(),
)
def test_a_window_is_permuted_whatever_the_chunks(
    length: int, window: int, grown: list[int], first: int, cuts: list[int], whole: bool
) -> None:
    def permutation_of(index: int, size: int) -> Any:
        return np.random.default_rng([index, size]).permutation(size)

    batch = pa.record_batch({"x": np.arange(length), "t": pa.array([f"{i}" for i in range(length)], pa.string())})
    codec = make_codec(batch.schema, TypePolicy())

    def permute(index: int, parts: Any) -> Any:
        return codec.taken(parts, permutation_of(index, sum(part.num_rows for part in parts)))

    sizes = WindowSizes(window, tuple(grown))
    begins = [
        begin for begin in map(sizes.begin, range(first, first + length + 1)) if begin < sizes.begin(first) + length
    ]
    shuffle = WindowShuffle(codec, sizes, permute, first)
    runs = [run for part in _parts(codec, batch, cuts, whole=whole) for run in shuffle.push(part)]
    runs += shuffle.finish()
    came = [row for run in runs for out in run.batches(7) for row in out["x"].tolist()]
    texts = [row for run in runs for out in run.batches(7) for row in out["t"]]
    wanted = []
    for index, begin in enumerate(begins, start=first):
        start = begin - begins[0]
        rows = np.arange(start, min(start + sizes.size(index), length))
        wanted += rows[permutation_of(index, len(rows))].tolist()
    assert came == wanted
    assert texts == [str(row) for row in wanted]
    assert len(runs) == len(begins)


@settings(max_examples=examples(80), deadline=None)
@given(
    batches=st.integers(0, 30),
    size=st.integers(1, 40),
    windows=st.builds(WindowSizes, st.integers(1, 12), st.lists(st.integers(1, 6), max_size=2).map(tuple)),
    first=st.integers(0, 5),
    cuts=st.lists(st.integers(0, 1200), max_size=6),
    near=st.sampled_from([0, 64, 1 << 19]),
    form=st.sampled_from(["torch", "arrow"]),
    whole=st.booleans(),
)
def test_a_window_is_dealt_whatever_the_chunks(
    batches: int,
    size: int,
    windows: WindowSizes,
    first: int,
    cuts: list[int],
    near: int,
    form: Any,
    whole: bool,
) -> None:
    def dealing_of(index: int, length: int) -> Dealing:
        return Dealing.of(length, size, 3, index, "window")

    length = batches * size
    columns = {"x": np.arange(length), "y": np.arange(length), "b": np.arange(length) % 2 == 0}
    columns |= {"f": np.arange(length, dtype=np.float32), "t": pa.array([f"{i}" for i in range(length)], pa.string())}
    columns |= {"v": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(np.arange(length), 3)), 3)}
    batch = pa.record_batch(columns)
    codec = make_codec(batch.schema, TypePolicy(output_format=form))
    sizes = WindowSizes(windows.rows * size, tuple(each * size for each in windows.first))
    begins = [
        begin for begin in map(sizes.begin, range(first, first + batches + 1)) if begin < sizes.begin(first) + length
    ]
    starts = [begin - begins[0] for begin in begins]
    deal = WindowDeal(codec, sizes, length, dealing_of, first)
    with patch.object(codec_module, "_NEAR_BYTES", near), patch.object(codec_module, "_HOT_BYTES", 512):
        runs = [run for part in _parts(codec, batch, cuts, whole=whole) for run in deal.push(part)]
    stops = [*starts, length][1:]
    assert [run.num_rows for run in runs] == [stop - start for start, stop in zip(starts, stops, strict=True)]
    came = [out for run in runs for out in run.batches(size)]
    wanted: list[int] = []
    for index, (start, stop) in enumerate(zip(starts, stops, strict=True), start=first):
        rows = np.arange(start, stop)
        wanted += rows[dealing_of(index, len(rows)).order].tolist()
    found = {name: [row for out in came for row in _listed(out, name)] for name in columns}
    assert found["x"] == found["y"] == found["f"] == wanted
    assert found["t"] == [str(row) for row in wanted]
    assert found["b"] == [row % 2 == 0 for row in wanted]
    assert found["v"] == [[row] * 3 for row in wanted]


def _listed(batch: Any, name: str) -> list[Any]:
    values = batch[name]
    return list(values if isinstance(values, list) else values.tolist())


_DENSE = ["bool", "i8", "u16", "f32", "ts", "date32", "fsl", "grid", "list", "pairs", "rec"]


def _tensors(output: Any) -> list[torch.Tensor]:
    if isinstance(output, dict):
        return [tensor for value in output.values() for tensor in _tensors(value)]
    if isinstance(output, Ragged | Padded):
        return [output[0], output[1]]
    if isinstance(output, torch.Tensor):
        whole: Any = output  # a nested tensor's `offsets` is not in torch's stubs
        return [output.values(), whole.offsets()] if output.is_nested else [output]
    return []


@settings(max_examples=examples(10), deadline=None)
@given(
    names=st.lists(st.sampled_from(_DENSE), min_size=1, max_size=4, unique=True),
    cuts=chunkings,
    batch_size=st.integers(1, 20),
    ragged=st.sampled_from(["nested", "pad", "offsets"]),
    packed=st.booleans(),
)
def test_writing_into_one_batch_changes_no_other(
    names: list[str], cuts: list[int], batch_size: int, ragged: Any, packed: bool
) -> None:
    table = _table(names, 1, 50, 0.2)
    codec = make_codec(table.schema, TypePolicy(ragged=ragged, nulls="mask"))
    exact = ExactBatches(codec, batch_size)
    batches = []
    for chunk in _chunks(table, cuts):
        # A deep copy: the reader hands over memory that nobody else has.
        rows = codec.decode(_taken(chunk, range(chunk.num_rows)))
        for parts in exact.push(codec.unpack(codec.pack(rows)) if packed else rows):
            batches += codec.as_one(parts).batches(batch_size)
    batches += _rest(exact, codec, batch_size)
    before = [[tensor.clone() for tensor in _tensors(batch)] for batch in batches]
    for index, batch in enumerate(batches):
        for tensor in _tensors(batch):
            tensor.zero_()
        for later in range(index + 1, len(batches)):
            for tensor, old in zip(_tensors(batches[later]), before[later], strict=True):
                torch.testing.assert_close(tensor, old, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("output", ["torch", "numpy"])
@settings(max_examples=examples(30), deadline=None)
@given(
    words=st.lists(st.one_of(st.none(), st.sampled_from("abcdef")), max_size=40),
    known=st.lists(st.sampled_from("abcdefgh"), unique=True),
    batch_size=st.integers(1, 20),
)
def test_codes_are_places_in_the_vocabulary(
    output: Any, words: list[str | None], known: list[str], batch_size: int
) -> None:
    batch = pa.record_batch({"w": pa.array(words, pa.string()), "own": pa.array(words, pa.string())})
    strings: Any = {"w": Vocabulary(known), "own": "codes"}
    batches = batches_of(batch, output_format=output, strings=strings, batch_size=batch_size)
    codes = [code for each in batches for code in each["w"].tolist()]
    assert codes == [known.index(word) if word in known else -1 for word in words]
    own = [None if code < 0 else each["own"].values[code] for each in batches for code in each["own"].codes.tolist()]
    assert own == words
    assert all(len(set(each["own"].values)) == len(each["own"].values) for each in batches)


def test_plain_columns_are_cut_without_a_step_in_python_for_each() -> None:
    """Whoever runs Python holds its lock, for which all other threads wait."""
    assert _calls_to_cut(columns=64) == _calls_to_cut(columns=4)


def _calls_to_cut(columns: int) -> int:
    table = pa.record_batch({f"x{column}": np.arange(1000) for column in range(columns)})
    with small_sizes(cut_objects=10 * (1 + columns)):  # so many batches are cut at a time
        codec = make_codec(table.schema, TypePolicy())
    batches = codec.batches_of([[codec.decode(table)]], 10)
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.disable()  # a collection calls what others have registered
    sys.setprofile(count)
    try:
        found = list(batches)
    finally:
        sys.setprofile(None)
        gc.enable()
    assert len(found) == 100
    return calls
