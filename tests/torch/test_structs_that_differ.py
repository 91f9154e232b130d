"""Structs of which files have other fields are read as structs with the fields of all, held against Python's dicts."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.tables.chats import FOLDER, MARKED
from tests.tables.plain import meant_warnings
from torch_table_loader import Chat, Pack, StructuredDataset, TableError
from torch_table_loader.cli.main import main

KINDS: dict[str, list[pa.DataType]] = {
    "a": [pa.int8(), pa.int64()],
    "b": [pa.string()],
    "c": [pa.list_(pa.float32()), pa.list_(pa.float64())],
    "d": [pa.struct([("x", pa.int32())]), pa.struct([("y", pa.string()), ("x", pa.int16())])],
    "e": [pa.list_(pa.struct([("x", pa.int8())])), pa.list_(pa.struct([("z", pa.bool_())]))],
    "f": [pa.map_(pa.string(), pa.int8())],
}


def some_value(rng: random.Random, kind: pa.DataType) -> Any:
    if rng.random() < 0.2:
        return None
    if pa.types.is_struct(kind):
        return {field.name: some_value(rng, field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(f"k{number}", number) for number in range(rng.randrange(3))]
    if pa.types.is_list(kind):
        return [some_value(rng, kind.value_type) for _ in range(rng.randrange(3))]
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    return str(rng.randrange(9)) if pa.types.is_string(kind) else rng.randrange(9)


def filled(value: Any, kind: pa.DataType) -> Any:
    """Return a value with the fields that its struct lacks as null."""
    if value is None or pa.types.is_map(kind):
        return value
    if pa.types.is_struct(kind):
        return {field.name: filled(value.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind):
        return [filled(each, kind.value_type) for each in value]
    return value


def write(folder: Path, seed: int, *, as_list: bool) -> list[Any]:
    """Write files in which structs have other fields, types and orders; return the values of all rows."""
    rng, rows = random.Random(seed), []
    folder.mkdir()
    for number in range(4):
        names = rng.sample(sorted(KINDS), rng.randrange(1, len(KINDS)))
        kind: pa.DataType = pa.struct([(name, rng.choice(KINDS[name])) for name in names])
        kind = pa.list_(kind) if as_list else kind
        values = [some_value(rng, kind) for _ in range(6)]
        pq.write_table(pa.table({"s": pa.array(values, kind)}), folder / f"{number}.parquet", row_group_size=4)
        rows += values
    return rows


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("seed", range(12))
@daily(6)
def test_rows_have_the_fields_of_all_files(tmp_path: Path, seed: int, as_list: bool) -> None:
    rows = write(tmp_path / "t", seed, as_list=as_list)
    options: dict[str, Any] = {"output_format": "arrow", "batch_size": 5, "num_workers": 1}
    loader, dataset = StructuredDataset.create_dataloader(str(tmp_path / "t"), **options)
    kind = dataset.schema.field("s").type
    inner = kind.value_type if as_list else kind
    wanted = [filled(value, kind) for value in rows]
    stored = [pq.read_schema(path).field("s").type for path in sorted((tmp_path / "t").iterdir())]
    own = [each.value_type if as_list else each for each in stored]
    assert [field.name for field in inner] == list(dict.fromkeys(field.name for each in own for field in each))
    assert [row for batch in loader for row in batch["s"].to_pylist()] == wanted
    with meant_warnings():
        shuffled, _ = StructuredDataset.create_dataloader(str(tmp_path / "t"), shuffle="rows", row_id=True, **options)
    for batch in shuffled:
        for row, value in zip(batch["row_id"].to_pylist(), batch["s"].to_pylist(), strict=True):
            assert value == wanted[row]


def test_what_does_not_agree_is_the_error_that_there_was(tmp_path: Path) -> None:
    for number, kind in enumerate((pa.int32(), pa.string())):
        column = pa.array([None], pa.struct([("x", kind), (f"y{number}", pa.int8())]))
        pq.write_table(pa.table({"s": column}), tmp_path / f"{number}.parquet")
    with pytest.raises(TableError, match=r"column 's' must have types that unify in all files, .*pass schema="):
        StructuredDataset(str(tmp_path), output_format="arrow")


def test_dumps_of_chats_are_one_table_and_inspect_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "one"}]
    called = {"name": "add", "arguments": {"x": 1}}
    calls = [{"role": "user", "content": "sum"}, {"role": "assistant", "tool_calls": [{"function": called}]}]
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"messages": [plain]}), tmp_path / "t" / "0.parquet")
    pq.write_table(pa.table({"messages": [calls]}), tmp_path / "t" / "1.parquet")
    assert main(["inspect", str(tmp_path / "t"), "--json", "--output-format", "arrow"]) == 0
    assert "tool_calls" in json.dumps(json.loads(capsys.readouterr().out))
    pack = Pack(seq_len=200, strategy="pad", tokens="messages", tokenizer=Chat(str(FOLDER), MARKED))
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path / "t"), shuffle="rows", pack=pack, batch_size=2)
    [batch] = list(loader)
    assert int((batch["labels"] >= 0).any(dim=1).sum()) == 2
