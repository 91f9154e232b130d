"""Row mode on Iceberg tables alone: evolved schemas, and filters in the catalog's own language."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc

from tests.tables.iceberg import IcebergWriter, column
from tests.tables.kinds import ICEBERG, rows_of
from tests.torch.test_table_laws import ROWS, sample


def test_evolved_columns_come_as_the_snapshot_has_them(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path)
    table.append([{"x": x, "k": x % 3, "s": f"s{x}"} for x in range(20)])
    table.commit()
    table.evolve([column(1, "x", "long"), column(3, "label", "string"), column(4, "new", "double")])
    table.append([{"x": x, "label": f"s{x}", "new": x / 2} for x in range(20, 40)])
    table.commit()
    table.delete_keys([3], [{"label": "s7"}, {"label": "s33"}])
    table.commit()
    loader = ICEBERG.loader(table.metadata, output_format="dict", **ROWS)
    found = [dict(zip(batch, row, strict=True)) for batch in loader for row in zip(*batch.values(), strict=True)]
    assert sorted(found, key=lambda row: row["x"]) == [
        {"x": x, "label": f"s{x}", "new": None if x < 20 else x / 2} for x in range(40) if x not in (7, 33)
    ]


def test_a_table_without_snapshots_is_an_empty_epoch(tmp_path: Path) -> None:
    loader = ICEBERG.loader(IcebergWriter(tmp_path).metadata, **ROWS)
    assert (list(loader), len(loader)) == ([], 0)


def test_a_filter_of_the_catalogs_own_language(tmp_path: Path) -> None:
    table, stores = sample(ICEBERG, tmp_path / "table"), tmp_path / "stores"
    live = [row["x"] for row in table.live() if row["x"] > 20 and row["k"] is not None and row["k"] < 6]
    options = {"nulls": {"k": -1}, "row_store": str(stores), **ROWS}
    loader = ICEBERG.loader(table.where, scan_filter="x > 20", filters=pc.field("k") < 6, **options)
    assert sorted(rows_of(loader)) == sorted(live)
    assert rows_of(ICEBERG.loader(table.where, **options))
    assert rows_of(ICEBERG.loader(table.where, scan_filter="x > 20", **options))
    assert len(list(stores.iterdir())) == 3, "a store is of a filter of the catalog"
