"""Numbers that Arrow lacks: whatever holds them, they come as torch's own, as ml_dtypes', or as Python's."""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.effort import daily
from tests.tables.plain import meant_warnings
from torch_table_loader import ConfigError, Pack, StructuredDataset, TableError
from torch_table_loader.arrow.datatypes import ELEMENTS, ElementType
from torch_table_loader.errors import MissingExtraError

ROWS = 6
OFFSETS = [0, 3, 3, 8, 12, 13, 24]
SOURCES = ["memory", "parquet", "arrow"]
BITS = {1: torch.uint8, 2: torch.uint16}

Rows = list[Any]
"""What each row is to be, as tensors."""


def numbers(element: str, count: int = 24) -> tuple[torch.Tensor, pa.Array]:
    """Make numbers of an element, as torch and as Arrow have them."""
    reals = torch.from_numpy(np.random.default_rng(3).normal(size=(2, count)).astype(np.float32))
    kind = ElementType(element)
    if element.startswith("complex"):
        made = torch.complex(*reals).to(getattr(torch, element))
        stored = pa.array([number.tobytes() for number in made.numpy()], kind.storage_type)
    else:
        made = reals[0].abs().to(getattr(torch, element))
        stored = pa.array(made.view(BITS[made.itemsize]).numpy(), kind.storage_type)
    return made, pa.ExtensionArray.from_storage(kind, stored)


def forms(element: str) -> dict[str, tuple[pa.Array, Rows]]:
    """Nest numbers in each way that has a form as tensors."""
    flat, stored = numbers(element)
    lists = [flat[start:stop] for start, stop in pairwise(OFFSETS)]
    pairs = pa.FixedSizeListArray.from_arrays(stored, 2)
    views = [pa.array(OFFSETS[:-1], pa.int32()), pa.array(np.diff(OFFSETS), pa.int32())]
    return {
        "numbers": (stored.slice(0, ROWS), list(flat[:ROWS])),
        "lists": (pa.ListArray.from_arrays(OFFSETS, stored), lists),
        "large lists": (pa.LargeListArray.from_arrays(OFFSETS, stored), lists),
        "list views": (pa.ListViewArray.from_arrays(*views, stored), lists),
        "vectors": (pa.FixedSizeListArray.from_arrays(stored, 4), list(flat.reshape(ROWS, 4))),
        "matrices": (pa.FixedSizeListArray.from_arrays(pairs, 2), list(flat.reshape(ROWS, 2, 2))),
        "lists of vectors": (
            pa.ListArray.from_arrays([0, 1, 3, 6, 7, 10, 12], pairs),
            list(torch.split(flat.reshape(-1, 2), [1, 2, 3, 1, 3, 2])),
        ),
    }


def source_of(table: pa.Table, source: str, root: Path) -> dict[str, Any]:
    """Hold a table in one of the ways, unless nobody can write it so."""
    if source == "memory":
        return {"source": table}
    path = root / f"x.{source}"
    try:
        if source == "parquet":
            pq.write_table(table, path)
        else:
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table)
    except pa.ArrowNotImplementedError:
        pytest.skip(f"pyarrow {pa.__version__} does not write it")
    return {"path": path}


def batches(place: dict[str, Any], **options: Any) -> list[Any]:
    with meant_warnings():
        chosen: dict[str, Any] = {"batch_size": 4, "num_workers": 1, "check_plan": False} | options
        return list(StructuredDataset.create_dataloader(**place, **chosen)[0])


def listed(values: Any) -> Rows:
    """List the rows of a column of a batch."""
    if isinstance(values, torch.Tensor):
        return list(values.unbind())
    if hasattr(values, "lengths"):
        return [row[:length] for row, length in zip(values.values, values.lengths.tolist(), strict=True)]
    if hasattr(values, "offsets"):
        offsets = values.offsets.tolist()
        return [values.values[start:stop] for start, stop in pairwise(offsets)]
    return list(values)


def same(came: Any, expected: torch.Tensor) -> bool:
    """Compare types and bits."""
    held = came if isinstance(came, torch.Tensor) else np.asarray(came)
    raw = held.contiguous().reshape(-1).view(torch.uint8).numpy() if isinstance(held, torch.Tensor) else held
    wanted = expected.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return str(held.dtype).removeprefix("torch.") == str(expected.dtype).removeprefix("torch.") and (
        tuple(held.shape) == tuple(expected.shape) and raw.tobytes() == wanted
    )


OUTPUTS: dict[str, dict[str, Any]] = {
    "nested": {},
    "pad": {"ragged": "pad"},
    "offsets": {"ragged": "offsets"},
    "numpy": {"output_format": "numpy"},
    "values": {"output_format": "dict"},
    "arrow": {"output_format": "arrow"},
}
OF_EVERY_DAY = [("bfloat16", "memory"), ("float8_e4m3fn", "parquet"), ("complex64", "arrow")]


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("shuffle", [False, "rows"])
@daily(
    lambda element, source, shuffle: (element, source) in OF_EVERY_DAY and (shuffle == "rows") is (element[0] == "b")
)
def test_they_come_as_their_own_type(tmp_path: Path, element: str, source: str, shuffle: Any) -> None:
    made = {name: form for name, form in forms(element).items() if source != "parquet" or name != "list views"}
    columns = {name: array for name, (array, _) in made.items()}
    inside = pa.StructArray.from_arrays([columns["numbers"], columns["lists"]], ["number", "list"])
    table = pa.table({"k": range(ROWS), **columns, "struct": inside})
    place = source_of(table, source, tmp_path)
    for name, options in OUTPUTS.items():
        for batch in batches(place, shuffle=shuffle, **options):
            found = dict(zip(batch.schema.names, batch.columns, strict=True)) if name == "arrow" else dict(batch)
            keys = [int(key) for key in (found.pop("k").to_pylist() if name == "arrow" else found.pop("k"))]
            struct = found.pop("struct")
            if name == "arrow":
                assert {field.type for field in struct.type} >= {ElementType(element)}
                found = {key: column.to_pylist() for key, column in found.items()}
            elif name != "values":
                found |= {"numbers": struct["number"], "lists": struct["list"]}
            for column, values in found.items():
                for key, came in zip(keys, listed(values), strict=True):
                    expected = made[column][1][key]
                    if name in ("values", "arrow"):
                        assert came == expected.tolist()
                    else:
                        assert same(came, expected), (column, name)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("strategy", ["concat", "pad", "best_fit", "windows"])
@daily(
    lambda element, source, strategy: (element, source) in OF_EVERY_DAY and (strategy == "pad") is (element[0] == "f")
)
def test_they_come_beside_tokens_and_of_documents(tmp_path: Path, element: str, source: str, strategy: Any) -> None:
    flat, stored = numbers(element)
    made = forms(element)
    ids = pa.ListArray.from_arrays(OFFSETS, pa.array(range(100, 124), pa.int32()))
    pairs = pa.ListArray.from_arrays(OFFSETS, pa.FixedSizeListArray.from_arrays(pa.concat_arrays([stored, stored]), 2))
    table = pa.table({"input_ids": ids, "w": made["lists"][0], "pair": pairs, "d": made["numbers"][0]})
    place = source_of(table.append_column("k", pa.array(range(ROWS))), source, tmp_path)
    pack = Pack(seq_len=5, strategy=strategy, aligned=["w", "pair"], bos_id=1)
    for shuffle in ["rows"] if strategy == "windows" else [False, "rows"]:
        for form in ("torch", "numpy"):
            seen = []
            options: dict[str, Any] = {"shuffle": shuffle, "output_format": form, "columns": ["k", "d"]}
            for batch in batches(place, pack=pack, **options):
                tokens = np.asarray(batch["input_ids"]).reshape(-1).tolist()
                for at, token in enumerate(tokens):
                    row, column = divmod(at, 5)
                    expected = flat[token - 100] if token >= 100 else torch.zeros((), dtype=flat.dtype)
                    if token >= 100:
                        seen.append(token)
                        both = torch.cat([flat, flat])[2 * (token - 100) : 2 * (token - 99)]
                        assert same(batch["pair"][row, column], both)
                    if token >= 100 or element != "float8_e8m0fnu":  # which has no zero
                        assert same(batch["w"][row, column], expected)
                documents = batch["documents"]
                for key, value in zip(np.asarray(documents["k"]).tolist(), documents["d"], strict=True):
                    assert same(value, flat[key])
            assert sorted(seen) == list(range(100, 124))


@pytest.mark.parametrize("element", [name for name in ELEMENTS if not name.startswith("complex")])
def test_every_number_is_the_same_one_in_python(element: str) -> None:
    kind = ElementType(element)
    count = 1 << kind.storage_type.bit_width
    bits = torch.arange(count, dtype=torch.int32).to(BITS[kind.storage_type.bit_width // 8])
    stored = pa.ExtensionArray.from_storage(kind, pa.array(bits.numpy(), kind.storage_type))
    expected = bits.view(getattr(torch, element)).to(torch.float64).tolist()
    step = 97 if count > 256 else 1
    for came, number in zip(stored[::step].to_pylist(), expected[::step], strict=True):
        assert (came == number and math.copysign(1, came) == math.copysign(1, number)) or (
            math.isnan(came) and math.isnan(number)
        )


@pytest.mark.parametrize("nested", [False, True])
def test_a_schema_does_not_take_numbers_for_bits(tmp_path: Path, nested: bool) -> None:
    half, eighth = ElementType("bfloat16"), ElementType("float8_e5m2")
    _, stored = numbers("bfloat16", ROWS)
    whole = pa.array(range(ROWS))
    refused = [(whole.cast(pa.float32()), half), (whole, half), (stored, pa.float32()), (stored, eighth)]
    for array, kind in [*refused, (stored.storage, half), (stored, pa.uint16())]:
        column = pa.ListArray.from_arrays(list(range(ROWS + 1)), array) if nested else array
        pq.write_table(pa.table({"x": column}), tmp_path / "x.parquet")
        asked = pa.schema([("x", pa.list_(kind) if nested else kind)])
        if (array, kind) in refused:
            with pytest.raises(TableError, match=r"schema= says that column 'x' is .*take numbers for the bits"):
                batches({"path": tmp_path}, schema=asked)
            continue
        [batch, _] = batches({"path": tmp_path}, schema=asked, output_format="arrow")
        values = batch.column("x").flatten() if nested else batch.column("x")
        assert values.type == kind
        assert (values if kind == pa.uint16() else values.storage).equals(stored.storage[:4])


@pytest.mark.parametrize("columns", [{"tokens": "w"}, {"tokens": "input_ids", "loss_mask": "w"}])
def test_they_are_no_tokens(columns: dict[str, Any]) -> None:
    array, _ = forms("bfloat16")["lists"]
    ids = pa.ListArray.from_arrays(OFFSETS, pa.array(range(24)))
    with pytest.raises(ConfigError, match="Pack: "):
        batches({"source": pa.table({"input_ids": ids, "w": array})}, pack=Pack(seq_len=4, **columns))


@pytest.mark.parametrize("shuffle", [False, "rows"])
@pytest.mark.parametrize("pack", [None, Pack(seq_len=4, aligned=["w"])], ids=["rows", "packs"])
def test_who_cannot_make_them_says_so_at_once(monkeypatch: pytest.MonkeyPatch, pack: Pack | None, shuffle: Any) -> None:
    array, _ = forms("float8_e5m2")["lists"]
    table = pa.table({"input_ids": pa.ListArray.from_arrays(OFFSETS, pa.array(range(24))), "w": array})
    options: dict[str, Any] = {"source": table, "pack": pack, "shuffle": shuffle, "check_plan": False}
    with meant_warnings():
        monkeypatch.delattr(torch, "float8_e5m2")
        with pytest.raises(ConfigError, match=r"'w.*' is of type float8_e5m2, which cannot become a tensor; torch"):
            StructuredDataset.create_dataloader(**options)
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
        with pytest.raises(MissingExtraError, match="numpy has no float8_e5m2, and ml_dtypes"):
            StructuredDataset.create_dataloader(**options, output_format="numpy")
