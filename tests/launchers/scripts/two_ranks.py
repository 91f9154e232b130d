"""What two gloo ranks see of Iceberg tables that are written to while they construct their loaders. Run by torchrun."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import torch.distributed as dist
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.types import StringType

from tests.launchers.scripts.stage import play_all, scene
from torch_table_loader import IcebergDataset
from torch_table_loader.iceberg.catalog import open_table


def config(root: Path) -> dict[str, str]:
    """Say where the catalog is."""
    return {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}/warehouse"}


def rows(start: int, stop: int) -> pa.Table:
    """Make rows of which `x` is the ordinal."""
    return pa.table({"x": pa.array(range(start, stop), "int64")})


def opened(root: Path) -> Catalog:
    """Open the catalog, rank 0 first: it makes its tables, and two ranks that make them at once fail."""
    if dist.get_rank() > 0:
        dist.barrier()
    catalog = load_catalog("default", **config(root))
    if dist.get_rank() == 0:
        dist.barrier()
    return catalog


def created(root: Path, name: str) -> Catalog:
    """Have rank 0 make a table of 40 rows in two commits; both wait for it."""
    catalog = opened(root)
    if dist.get_rank() == 0:
        catalog.create_namespace_if_not_exists("db")
        table = catalog.create_table(f"db.{name}", rows(0, 0).schema)
        table.append(rows(0, 20))
        table.append(rows(20, 40))
    dist.barrier()
    return catalog


def epoch(root: Path, table: Any) -> dict[str, Any]:
    """Deliver an epoch of this rank."""
    options: dict[str, Any] = {"batch_size": 3, "num_workers": 2, "num_ranks": "auto", "even_ranks": "balance"}
    loader, dataset = IcebergDataset.create_dataloader(table, config(root), shuffle="splits", **options)
    batches = list(loader)
    return {
        "rows": [row for batch in batches for row in batch["x"].tolist()],
        "padding": [pads for batch in batches for pads in batch["padding"].tolist()] if "padding" in batches[0] else [],
        "columns": sorted(set(batches[0]) - {"padding"}),
        "snapshot": dataset.snapshot_id,
        "steps": len(batches),
    }


def between(root: Path, early: int, table: Any, write: Callable[[], Any]) -> dict[str, Any]:
    """Have one rank open the table, then the other write to it and open it, and deliver an epoch of both."""
    store = dist.distributed_c10d._get_default_store()

    def open_and_say_so(*args: Any, **kwargs: Any) -> Any:
        found = open_table(*args, **kwargs)
        store.set(f"{table} is open", "")
        return found

    if dist.get_rank() == early:
        with patch("torch_table_loader.iceberg.source.open_table", open_and_say_so):
            return epoch(root, table)
    store.wait([f"{table} is open"])
    write()
    return epoch(root, table)


def append(catalog: Catalog, name: str) -> Callable[[], Any]:
    """Give a function that commits 10 rows."""
    return lambda: catalog.load_table(name).append(rows(40, 50))


@scene
def rank_1_sees_a_newer_snapshot(root: Path) -> Any:
    catalog = created(root, "newer")
    return between(root, 0, "db.newer", append(catalog, "db.newer"))


@scene
def rank_0_sees_a_newer_snapshot(root: Path) -> Any:
    catalog = created(root, "older")
    return between(root, 1, "db.older", append(catalog, "db.older"))


@scene
def rank_0_has_a_newer_table_object(root: Path) -> Any:
    table = created(root, "object").load_table("db.object")
    dist.barrier()
    if dist.get_rank() == 0:
        table.append(rows(40, 50))  # its own object then stands at the new snapshot
    dist.barrier()
    return epoch(root, table)


@scene
def rank_1_sees_a_new_column(root: Path) -> Any:
    catalog = created(root, "evolved")

    def evolve() -> None:
        with catalog.load_table("db.evolved").update_schema() as update:
            update.add_column("word", StringType())

    return between(root, 0, "db.evolved", evolve)


@scene
def rank_0_sees_the_first_rows(root: Path) -> Any:
    """Rank 1 opens the table before it has any snapshot."""
    catalog = opened(root)
    if dist.get_rank() == 0:
        catalog.create_table("db.empty", rows(0, 0).schema)
    dist.barrier()
    return between(root, 1, "db.empty", lambda: catalog.load_table("db.empty").append(rows(0, 30)))


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # pyiceberg's own
    play_all()
