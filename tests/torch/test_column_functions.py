"""`transforms=` and `decode=`: functions over single columns, in every mode, in the workers, before `collate_fn`."""

from __future__ import annotations

import os
import pickle
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from tests.conversions import value_of
from tests.effort import daily
from tests.tables.plain import meant_warnings
from tests.torch.modes import TABLE_MODES, Mode, write_tables
from torch_table_loader import (
    ConfigError,
    ConfigTypeError,
    Hash,
    MixedDataset,
    Pack,
    StructuredDataset,
    Vocabulary,
)

ROWS = 40
FORKED: dict[str, Any] = {"worker_type": "fork", "num_workers": 2}
SPAWNED: dict[str, Any] = {"worker_type": "forkserver", "num_workers": 1}
SERVED: dict[str, dict[str, Any]] = {"threads": {}, "caller": {"num_workers": 0}, "processes": FORKED}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("functions")
    whole = pa.table(
        {
            "x": pa.array(range(ROWS), pa.int64()),
            "age": pa.array([None if row % 7 == 3 else row for row in range(ROWS)], pa.int32()),
            "image": [bytes([row, row + 1, row + 2]) for row in range(ROWS)],
            "blob": [None if row == 11 else b"." * (row % 3) for row in range(ROWS)],
            "ids": pa.array([list(range(row % 4)) for row in range(ROWS)], pa.list_(pa.int32())),
            "home": [{"lat": float(row), "floor": row} for row in range(ROWS)],
        }
    )
    pq.write_table(whole, root / "0.parquet", row_group_size=9)
    return str(root)


def make(table: str, **options: Any) -> Any:
    keywords = {"batch_size": 8, "check_plan": False, "num_workers": 2, **options}
    return StructuredDataset.create_dataloader(table, **keywords)[0]


def pixels(data: bytes) -> torch.Tensor:
    """Decode what stands for an image."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def halved(values: Any) -> Any:
    """Scale a column."""
    return values / 2


# ---- what functions are given, and what becomes of what they return ------------------------------------------


@pytest.mark.parametrize("served", SERVED)
@pytest.mark.parametrize("order", [{}, {"shuffle": "splits", "split_size": 5}, {"shuffle": "rows"}], ids=str)
@daily(3)
def test_batches_are_those_without_functions_with_the_functions_called(
    table: str, served: str, order: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"columns": ["x", "age", "image"], "nulls": {"age": -1}, **order, **SERVED[served]}
    plain = list(make(table, **options))
    found = list(make(table, transforms={"age": halved}, decode={"image": pixels}, **options))
    assert len(found) == len(plain) == 5
    for own, came in zip(found, plain, strict=True):
        assert list(own) == list(came)
        assert torch.equal(own["x"], came["x"])
        assert torch.equal(own["age"], came["age"] / 2)
        assert torch.equal(own["image"], torch.stack(list(map(pixels, came["image"]))))


@pytest.mark.parametrize("mode", TABLE_MODES, ids=str)
@pytest.mark.parametrize("served", ["threads", "processes"])
@daily(4)
def test_every_mode_calls_them(tmp_path: Path, mode: Mode, served: str) -> None:
    write_tables(tmp_path)
    options = {"transforms": {"f": halved}, "decode": {"s": len}, **SERVED[served]}
    changed = list(mode.make(tmp_path, **options))
    for batch, plain in zip(changed, mode.make(tmp_path), strict=True):
        assert torch.equal(batch["row_id"], plain["row_id"])
        assert torch.equal(batch["f"], plain["f"] / 2)
        assert batch["s"].tolist() == list(map(len, plain["s"]))


def test_a_delta_table_calls_them(tmp_path: Path) -> None:
    from torch_table_loader import DeltaDataset

    path = delta_table(tmp_path)
    loader, _ = DeltaDataset.create_dataloader(path, transforms={"x": halved}, check_plan=False)
    assert sorted(value for batch in loader for value in batch["x"].tolist()) == [0.0, 0.5, 1.0]


def delta_table(root: Path) -> str:
    """Write a Delta Lake table of three rows."""
    import deltalake

    deltalake.write_deltalake(str(root / "lake"), pa.table({"x": pa.array(range(3), pa.int64())}))
    return str(root / "lake")


def test_a_function_is_given_a_column_as_the_output_format_has_it(table: str) -> None:
    def kinds(output: str, **options: Any) -> dict[str, type]:
        found: dict[str, type] = {}

        def note(name: str, values: Any) -> Any:
            found[name] = type(values)
            return values

        names = ["x", "image", "ids", "home", "home.lat"]
        functions = {name: partial(note, name) for name in names}
        list(make(table, output_format=output, columns=names[:4], transforms=functions, **options))
        return found

    ragged = type(value_of(pa.array([[1]]), ragged="offsets"))
    assert kinds("numpy") == {"x": np.ndarray, "image": list, "ids": ragged, "home": dict, "home.lat": np.ndarray}
    offsets = kinds("torch", ragged="offsets")
    assert offsets == {"x": torch.Tensor, "image": list, "ids": ragged, "home": dict, "home.lat": torch.Tensor}
    nested = kinds("torch", ragged="nested")
    assert issubclass(nested["ids"], torch.Tensor)


def test_masks_stay_beside_what_a_function_makes(table: str) -> None:
    masked = {"columns": ["x", "age"], "nulls": "mask", "transforms": {"age": halved}}
    for batch in make(table, **masked):
        assert list(batch) == ["x", "age", "age_valid"]
        assert batch["age_valid"].tolist() == [row % 7 != 3 for row in batch["x"].tolist()]
        assert batch["age"].dtype == torch.float32


def test_decode_comes_before_transforms_and_these_before_collate_fn(table: str) -> None:
    def scaled(images: torch.Tensor) -> torch.Tensor:
        assert images.shape[1:] == (3,)
        return images.float() / 255

    def largest(batch: dict[str, Any]) -> float:
        assert batch["image"].dtype == torch.float32
        return float(batch["image"].max())

    options: dict[str, Any] = {"columns": ["image"], "decode": {"image": pixels}, "transforms": {"image": scaled}}
    found = list(make(table, **options, collate_fn=largest, batch_size=ROWS, num_workers=0))
    assert found == [pytest.approx((ROWS + 1) / 255)]


@pytest.mark.parametrize(
    ("function", "torch_type", "numpy_type"),
    [
        (len, torch.Tensor, np.ndarray),
        (lambda data: len(data) / 3, torch.Tensor, np.ndarray),
        (lambda data: data[0] > 5, torch.Tensor, np.ndarray),
        (lambda data: np.frombuffer(data, np.uint8).astype(np.float32), torch.Tensor, np.ndarray),
        (lambda data: np.float32(data[0]), torch.Tensor, np.ndarray),
        (pixels, torch.Tensor, torch.Tensor),
        (lambda data: pixels(data)[: data[0] % 3], list, list),
        (lambda data: data[0] if data[0] % 2 else float(data[0]), list, list),
        (lambda data: 1 << (60 + data[0] % 7), list, list),
        (lambda data: {"size": len(data)}, list, list),
        (lambda data: np.array(["text"]), list, list),
    ],
)
def test_what_decode_returns_is_stacked_where_shapes_and_types_agree(
    table: str, function: Any, torch_type: type, numpy_type: type
) -> None:
    kinds: list[tuple[Any, type]] = [("torch", torch_type), ("numpy", numpy_type)]
    for output, kind in kinds:
        (batch,) = make(table, columns=["image"], decode={"image": function}, batch_size=ROWS, output_format=output)
        assert issubclass(type(batch["image"]), kind)
        wanted = [function(bytes([row, row + 1, row + 2])) for row in range(ROWS)]
        for own, one in zip(batch["image"], wanted, strict=True):
            assert np.array_equal(np.asarray(own), np.asarray(one))


def test_a_null_is_not_decoded(table: str) -> None:
    (batch,) = make(table, columns=["blob"], decode={"blob": len}, batch_size=ROWS)
    assert batch["blob"] == [None if row == 11 else row % 3 for row in range(ROWS)]
    (filled,) = make(table, columns=["blob"], decode={"blob": len}, nulls={"blob": b"...."}, batch_size=ROWS)
    assert filled["blob"].tolist() == [4 if row == 11 else row % 3 for row in range(ROWS)]


def test_what_is_decoded_comes_as_strings_whatever_the_others_do(table: str) -> None:
    (batch,) = make(
        table, columns=["image", "blob"], strings="codes", decode={"image": pixels}, batch_size=ROWS, num_workers=0
    )
    assert batch["image"].shape == (ROWS, 3)
    assert batch["blob"].codes.shape == (ROWS,)


def test_results_are_placed(table: str) -> None:
    (batch,) = make(table, columns=["image"], decode={"image": pixels}, device="meta", batch_size=ROWS, num_workers=0)
    assert batch["image"].device.type == "meta"


def test_they_run_where_batches_are_made(table: str) -> None:
    def where(values: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.full((len(values),), os.getpid()), values], 1)

    for batch in make(table, columns=["x"], transforms={"x": where}, **FORKED):
        assert (batch["x"][:, 0] != os.getpid()).all()
    seen: set[int] = set()

    def note(values: torch.Tensor) -> torch.Tensor:
        seen.add(threading.get_ident())
        return values

    list(make(table, columns=["x"], transforms={"x": note}))
    assert seen
    assert threading.get_ident() not in seen


@pytest.mark.slow
def test_worker_processes_that_start_anew_call_them(table: str) -> None:
    loader = make(table, columns=["x", "image"], decode={"image": pixels}, transforms={"x": halved}, **SPAWNED)
    assert sorted(value for batch in loader for value in batch["x"].tolist()) == [row / 2 for row in range(ROWS)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_of_ones_own_calls_them(table: str, workers: int) -> None:
    options: dict[str, Any] = {"columns": ["x"], "transforms": {"x": halved}, "check_plan": False}
    with meant_warnings():
        batches = list(DataLoader(StructuredDataset(table, **options), batch_size=None, num_workers=workers))
    assert sorted(value for batch in batches for value in batch["x"].tolist()) == [row / 2 for row in range(ROWS)]


def test_a_state_goes_on_with_them(table: str) -> None:
    options: dict[str, Any] = {"columns": ["x"], "transforms": {"x": halved}, "shuffle": "splits", "split_size": 5}
    loader = make(table, **options)
    batches = iter(loader)
    found = [next(batches)["x"] for _ in range(2)]
    again = make(table, **options)
    again.load_state_dict(loader.state_dict())
    found += [batch["x"] for batch in again]
    assert sorted(torch.cat(found).tolist()) == [row / 2 for row in range(ROWS)]


# ---- as_map() ------------------------------------------------------------------------------------------------


def test_a_map_calls_them_with_batches_and_with_rows(table: str, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    options: dict[str, Any] = {"columns": ["x", "image"], "transforms": {"x": halved}, "decode": {"image": pixels}}
    view = StructuredDataset(table, shuffle="rows", row_store=store, check_plan=False, **options).as_map()
    batch = view.batch([3, 1])
    assert batch["x"].tolist() == [1.5, 0.5]
    assert batch["image"].tolist() == [[3, 4, 5], [1, 2, 3]]
    assert view[3]["x"] == 1.5
    assert view[3]["image"].tolist() == [3, 4, 5]
    for batch in DataLoader(pickle.loads(pickle.dumps(view)), batch_size=10):  # noqa: S301
        assert batch["image"].shape == (10, 3)


@pytest.mark.parametrize("output", ["torch", "numpy"])
@pytest.mark.parametrize("ragged", [None, "offsets", "pad"])
def test_a_row_of_a_map_has_lists_as_plain_vectors(table: str, output: str, ragged: Any) -> None:
    options: dict[str, Any] = {"columns": ["ids"], "ragged": ragged, "output_format": output, "check_plan": False}
    view = StructuredDataset(table, shuffle="rows", **options).as_map()
    for row in (0, 1, 7):
        found = view[row]["ids"]
        assert type(found) is (torch.Tensor if output == "torch" else np.ndarray)
        assert found.tolist() == list(range(row % 4))


def test_an_error_in_a_map_names_the_column(table: str) -> None:
    view = StructuredDataset(
        table, shuffle="rows", columns=["blob"], decode={"blob": lambda data: 1 // len(data)}, check_plan=False
    ).as_map()
    with pytest.raises(ZeroDivisionError) as caught:
        view.batch([1, 3])
    notes = caught.value.__notes__
    assert notes == ["of the value at row 1 of the batch", "raised by decode['blob']; as_map()"]


# ---- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"transforms": {"agee": halved}}, "transforms names 'agee', which is not a column of the batches; .*'age'"),
        ({"decode": {"imag": len}}, "decode names 'imag', which is not a column here; the nearest are 'image'"),
        ({"decode": {"x": len}}, "decode names 'x', which is a number; it is for: 'image', 'blob'"),
        ({"transforms": {"x": halved}, "output_format": "arrow"}, "transforms=.* delivers every column as it is"),
        ({"decode": {"image": len}, "output_format": "dict"}, "decode=.* delivers every column as it is"),
        (
            {"decode": {"image": len}, "strings": {"image": Hash(7)}},
            r"decode\['image'\] is called with strings or bytes, and strings=",
        ),
        (
            {"decode": {"image": len}, "strings": {"image": Vocabulary([b"a"])}},
            r"decode\['image'\] is called with strings or bytes, and strings=",
        ),
    ],
)
def test_it_is_refused_at_construction(table: str, options: dict[str, Any], said: str) -> None:
    for mode in ({}, {"shuffle": "rows"}):
        with pytest.raises(ConfigError, match=said):
            make(table, **mode, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"transforms": halved}, r"transforms must be \{column: function\}, got function"),
        ({"decode": {"image": "png"}}, r"decode\['image'\] must be callable, got str 'png'"),
        ({"transforms": {3: halved}}, "transforms must name columns by str, got int 3"),
    ],
)
def test_what_is_no_function_is_refused(table: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigTypeError, match=said):
        make(table, **options)


@pytest.mark.parametrize("served", SERVED)
@daily(1)
def test_another_number_of_rows_is_refused(table: str, served: str) -> None:
    for function, said in (
        (lambda values: values[1:], "8 rows, got Tensor of 7 rows"),
        (lambda values: values.sum(), r"8 rows, got Tensor tensor\(28\)"),
        (lambda values: None, "8 rows, got NoneType None"),
        (lambda values: "12345678", "8 rows, got str '12345678'"),
    ):
        with pytest.raises(ConfigError, match=rf"transforms\['x'\] must return one entry for each .*{said}") as caught:
            list(make(table, columns=["x"], transforms={"x": function}, **SERVED[served]))
        assert any("batch 0 of worker 0, which is step 0" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("served", SERVED)
def test_an_error_names_column_row_and_batch(table: str, served: str) -> None:
    def refuse(data: bytes) -> int:
        if data[0] == 21:
            raise ValueError("no image")
        return 1

    options: dict[str, Any] = {"columns": ["x", "image"], "num_workers": 1, "decode": {"image": refuse}}
    with pytest.raises(ValueError, match="no image") as caught:
        list(make(table, **options | SERVED[served] | {"num_workers": 1 if served != "caller" else 0}))
    told = "\n".join(caught.value.__notes__)
    assert "of the value at row 5 of the batch" in told
    assert "raised by decode['image']; rank 0, epoch 0, batch 2 of worker 0, which is step 2" in told


@pytest.mark.parametrize("option", ["transforms", "decode"])
def test_a_function_that_cannot_reach_a_process_is_refused(table: str, option: str) -> None:
    with pytest.raises(ConfigError, match=rf"{option}\['image'\] must pickle to reach worker processes that start by"):
        make(table, columns=["image"], **{option: {"image": lambda values: values}}, **SPAWNED)


def test_a_result_that_cannot_come_back_is_refused(table: str) -> None:
    with pytest.raises(ConfigError, match="what collate_fn, transforms and decode return must pickle"):
        list(make(table, columns=["image"], decode={"image": lambda data: lambda: data}, **FORKED))


@pytest.mark.parametrize("served", SERVED)
@pytest.mark.parametrize("shuffle", [True, "rows"])
@pytest.mark.parametrize("strategy", ["concat", "best_fit"])
@daily(4)
def test_columns_of_documents_take_them(table: str, served: str, shuffle: Any, strategy: Any) -> None:
    pack = Pack(seq_len=4, tokens="ids", strategy=strategy, labels=None)
    options = {"columns": ["x", "image"], "pack": pack, "shuffle": shuffle, **SERVED[served]}
    plain = make(table, **options)
    changed = make(table, **options, transforms={"x": halved}, decode={"image": pixels})
    for batch, base in zip(changed, plain, strict=True):
        assert torch.equal(batch["input_ids"], base["input_ids"])
        assert torch.equal(batch["documents"]["x"], base["documents"]["x"] / 2)
        assert batch["documents"]["image"].tolist() == [list(data) for data in base["documents"]["image"]]
    for columns in (["x"], None):
        with pytest.raises(ConfigError, match="transforms names 'ids', which is not a column of the batches"):
            make(table, **options | {"columns": columns}, transforms={"ids": halved})


def test_sources_of_a_mixture_have_them_in_common(table: str) -> None:
    def source(**options: Any) -> StructuredDataset:
        return StructuredDataset(table, columns=["x"], shuffle="rows", check_plan=False, **options)

    with pytest.raises(ConfigError, match="must come in one form, but transforms is"):
        MixedDataset({"a": source(), "b": source(transforms={"x": halved})}, {"a": 1, "b": 1})
    loader, _ = MixedDataset.create_dataloader(
        {"a": partial(StructuredDataset, table), "b": source(transforms={"x": halved})},
        {"a": 1, "b": 1},
        transforms={"x": halved},
        columns=["x"],
        batch_size=10,
    )
    assert all(batch["x"].dtype == torch.float32 for batch in loader)


def test_the_stream_of_arrow_says_what_is_in_its_way(table: str) -> None:
    loader = make(table, columns=["x"], transforms={"x": halved})
    with pytest.raises(ConfigError, match='pass output_format="arrow" and no collate_fn'):
        loader.__arrow_c_stream__()
