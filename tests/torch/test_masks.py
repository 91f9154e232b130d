"""`nulls="mask"` adds a mask where a null is possible, and nowhere else: by the schema and by statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.tables.iceberg import IcebergWriter, column
from torch_table_loader import IcebergDataset, MixedDataset, StructuredDataset, TableError

ROWS = 24
SCHEMA = pa.schema([("some", pa.int32()), ("none", pa.int32()), ("late", pa.int64()), ("f", pa.float32())])


def write(root: Path, number: int, *, late: bool, **settings: Any) -> None:
    """Write a file in which `some` has nulls, `late` has some if it is said, and `none` has none."""
    values = {
        "some": [None if row % 3 == 0 else row for row in range(ROWS)],
        "none": list(range(ROWS)),
        "late": [None if late and row == 5 else row for row in range(ROWS)],
        "f": [None] * ROWS,
    }
    root.mkdir(exist_ok=True)
    pq.write_table(pa.table(values, SCHEMA), root / f"{number}.parquet", row_group_size=8, **settings)


def masks(batches: Any) -> set[str]:
    """Return the keys that are masks, the same in every batch; each says which values are null."""
    found = [{key for key in batch if key.endswith("_valid")} for batch in batches]
    assert all(each == found[0] for each in found)
    assert all(key.isidentifier() for key in found[0])
    return found[0]


@pytest.mark.parametrize("mode", [{}, {"shuffle": "rows"}], ids=str)
def test_a_mask_comes_where_statistics_cannot_rule_a_null_out(tmp_path: Path, mode: dict[str, Any]) -> None:
    def found(root: Path, **options: Any) -> set[str]:
        loader, _ = StructuredDataset.create_dataloader(
            root, nulls="mask", batch_size=7, check_plan=False, **mode, **options
        )
        return masks(loader)

    write(tmp_path / "a", 0, late=False)
    assert found(tmp_path / "a") == {"some_valid"}
    write(tmp_path / "a", 1, late=True)
    assert found(tmp_path / "a") == {"some_valid", "late_valid"}
    assert found(tmp_path / "a", filters=pc.field("none") >= 8) == {"some_valid"}
    write(tmp_path / "b", 0, late=False, write_statistics=False)
    assert found(tmp_path / "b") == {"some_valid", "none_valid", "late_valid"}


def test_a_column_that_a_file_lacks_has_a_mask(tmp_path: Path) -> None:
    write(tmp_path / "a", 0, late=False)
    pq.write_table(pa.table({"some": pa.array([1], pa.int32())}), tmp_path / "a" / "1.parquet")
    loader, _ = StructuredDataset.create_dataloader(tmp_path / "a", nulls="mask", check_plan=False)
    assert masks(loader) == {"some_valid", "none_valid", "late_valid"}


def test_a_mixture_has_the_masks_of_all_its_sources(tmp_path: Path) -> None:
    sources = {}
    for name, late in (("a", False), ("b", True)):
        write(tmp_path / name, 0, late=late)
        sources[name] = StructuredDataset(tmp_path / name, nulls="mask", shuffle="rows", check_plan=False)
    loader, _ = MixedDataset.create_dataloader(sources, {"a": 1, "b": 1}, batch_size=8)
    batches = list(loader)
    assert masks(batches) == {"some_valid", "late_valid"}
    for batch in batches:
        valid = batch["late_valid"] | (batch["source"] == 0)
        assert (batch["late"][valid] == batch["none"][valid]).all()


@pytest.mark.parametrize("footers", ["eager", "lazy"])
def test_an_iceberg_table_has_masks_where_its_footers_were_not_asked(tmp_path: Path, footers: Any) -> None:
    lake = IcebergWriter(tmp_path / "lake", columns=[column(1, "x", "long"), column(2, "y", "long")])
    lake.append([{"x": row, "y": None if row == 3 else row} for row in range(9)], "parquet", group=4)
    lake.commit()
    loader, _ = IcebergDataset.create_dataloader(
        metadata_location=lake.metadata, nulls="mask", footers=footers, check_plan=False
    )
    assert masks(loader) == ({"y_valid"} if footers == "eager" else {"x_valid", "y_valid"})


@pytest.mark.parametrize("mode", [{}, {"shuffle": "rows"}], ids=str)
def test_a_null_without_a_mask_or_a_fill_is_an_error(tmp_path: Path, mode: dict[str, Any]) -> None:
    write(tmp_path / "a", 0, late=True, write_statistics=False)
    loader, _ = StructuredDataset.create_dataloader(tmp_path / "a", columns=["none", "late"], **mode)
    with pytest.raises(TableError, match="'late' has a null at row"):
        list(loader)
