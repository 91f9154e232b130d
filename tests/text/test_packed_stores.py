"""A row store keeps tokens in the smallest integers that have them, and nobody who reads it notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.effort import daily
from tests.tables.parquet_reader import PARQUET_READER
from tests.tables.plain import meant_warnings
from torch_table_loader import Pack, StructuredDataset, TableError, TableLoader

DOCUMENTS: list[list[int] | None] = [[5, 7], [], [9], None, [1, 2, 3, 4]]


def write(root: Path, kind: pa.DataType, most: int = 40, *, statistics: bool = True) -> Path:
    root.mkdir(exist_ok=True)
    lists = pa.array([*DOCUMENTS, [most]], pa.list_(kind))
    pq.write_table(pa.table({"input_ids": lists}), root / "0.parquet", row_group_size=2, write_statistics=statistics)
    return root


def opened(root: Path, pack: Pack, **options: Any) -> tuple[TableLoader, StructuredDataset]:
    with meant_warnings():
        return StructuredDataset.create_dataloader(
            str(root), "parquet", pack=pack, shuffle="rows", num_workers=0, batch_size=2, check_plan=False, **options
        )


def kept(dataset: StructuredDataset) -> pa.DataType:
    job: Any = dataset.job
    kind: pa.DataType = job.live_rows[""].store.spec.schema.field("input_ids").type.value_type
    return kind


@pytest.mark.parametrize(
    ("stored", "most", "options", "expected"),
    [
        (pa.int64(), 40, {}, pa.uint8()),
        (pa.int64(), 255, {}, pa.uint8()),
        (pa.int64(), 256, {}, pa.uint16()),
        (pa.int32(), 65_535, {}, pa.uint16()),
        (pa.int32(), 65_536, {}, pa.int32()),
        (pa.int64(), 65_536, {}, pa.uint32()),
        (pa.uint32(), 65_535, {}, pa.uint16()),
        (pa.uint16(), 40, {}, pa.uint8()),
        (pa.int64(), -1, {}, pa.int64()),
        (pa.int32(), 40, {"eos_id": 300}, pa.uint16()),
        (pa.int32(), 40, {"sep_id": 2**32 - 1}, pa.uint32()),
        (pa.uint16(), 40, {"bos_id": 70_000}, pa.uint32()),
    ],
)
@daily(4)
def test_tokens_are_kept_small_and_come_out_as_ever(
    tmp_path: Path, stored: pa.DataType, most: int, options: dict[str, int], expected: pa.DataType
) -> None:
    pack = Pack(seq_len=3, **options)  # type: ignore[arg-type]
    loader, dataset = opened(write(tmp_path / "a", stored, most), pack)
    assert kept(dataset) == expected
    other, untold = opened(write(tmp_path / "b", stored, most, statistics=False), pack)
    assert kept(untold) in (stored, pa.int64())
    for batch, same in zip(loader, other, strict=True):
        assert batch["input_ids"].dtype == torch.int64
        assert batch.keys() == same.keys()
        assert all(torch.equal(torch.as_tensor(batch[name]), torch.as_tensor(same[name])) for name in batch)


def test_a_state_does_not_say_how_tokens_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path / "a", pa.int64())
    loader, _ = opened(root, Pack(seq_len=3))
    batches = list(loader)
    loader.set_epoch(0)
    with meant_warnings():
        running = iter(loader)
        next(running)
    state = loader.state_dict()
    monkeypatch.setattr(PARQUET_READER, "list_bounds", lambda *_: None)
    other, dataset = opened(root, Pack(seq_len=3))
    assert kept(dataset) == pa.int64()
    other.load_state_dict(state)
    assert [batch["input_ids"].tolist() for batch in other] == [batch["input_ids"].tolist() for batch in batches[1:]]


@pytest.mark.parametrize("most", [256, -1])
def test_tokens_beyond_their_statistics_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    root = write(tmp_path / "a", pa.int32(), most)
    monkeypatch.setattr(PARQUET_READER, "list_bounds", lambda *_: (0, 255))
    with pytest.raises(TableError, match=r"0\.parquet.*by the statistics of its files all are below 256"):
        list(opened(root, Pack(seq_len=3))[0])
