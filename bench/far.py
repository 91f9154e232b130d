"""One reader of a distant table in a process of its own: constructs, reads epochs, prints JSON.

A reader is "ours", "ours:local", "ours:cached", "ours:rows", "package:setting" of a rival. All read the same columns
and count rows; ours delivers tensors of 8,192 rows as a user gets them without setting anything, the others what costs
them least. "ours:rows" reads the beginning of a shuffled epoch from a row store behind the endpoint.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from bench.endpoint import Endpoint
from bench.pairing import cpu_seconds, peak_mib

BATCH = 8192
BUCKET = "s3://bench"

ROW_STORES = "row-stores"
"""The folder of row stores in the bucket."""

LANES = 2
WINDOW_ROWS = 65_536
SHUFFLED_ROWS = 8 * WINDOW_ROWS
"""Rows of an epoch that are read from a row store: some windows of each lane."""

Epoch = Callable[[], Iterator[int]]


@dataclass(frozen=True, slots=True)
class Far:
    """A table behind an endpoint.

    Args:
        path: below the bucket, or of an Iceberg table's metadata file.
        endpoint: URL of the endpoint.
        columns: what is read; None for all.
    """

    path: str
    endpoint: str
    columns: list[str] | None

    @property
    def url(self) -> str:
        """The table's URL."""
        return f"{BUCKET}/{self.path}"


@dataclass(frozen=True, slots=True)
class Told:
    """What a process measured.

    Args:
        construct: seconds until there was something to iterate over.
        constructing: what the endpoint counted meanwhile.
        first: seconds from an epoch's begin to its first batch, by epoch.
        seconds: of each epoch.
        cpu: seconds of this process in each epoch.
        rows: of each epoch.
        served: what the endpoint counted in each epoch.
        peak: MiB that were resident at most.
    """

    construct: float
    constructing: dict[str, Any]
    first: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    served: list[dict[str, Any]] = field(default_factory=list)
    peak: float = 0.0


def ours(far: Far, path: str | None = None, cache: str | None = None, **options: Any) -> Epoch:
    """Read with this library, or with the one of another checkout that comes first on the path."""
    from bench.ours import rows_of
    from torch_table_loader import IcebergDataset, StructuredDataset, TableLoader

    loader: TableLoader
    remote = {} if cache is None else {"cache_dir": cache}
    store = {"endpoint_url": far.endpoint, "key": "k", "secret": "s", "region": "us-east-1", **remote}
    options |= {"batch_size": BATCH, "num_workers": LANES, "columns": far.columns, "storage_options": store}
    if far.path.endswith(".metadata.json"):
        loader, _ = IcebergDataset.create_dataloader(metadata_location=far.url, **options)
    elif path is not None:
        loader, _ = StructuredDataset.create_dataloader(path, **options | {"storage_options": remote})
    else:
        loader, _ = StructuredDataset.create_dataloader(far.url, **options)
    return lambda: map(rows_of, loader)


def shuffled(far: Far, local: str, cache: str) -> Epoch:
    """Read windows of a row store behind the endpoint, of which this machine has no copy; the table is local."""
    import pyarrow.parquet as pq

    from bench.ours import rows_of
    from torch_table_loader import RowStore, StructuredDataset
    from torch_table_loader.store.record_layout import RecordLayout

    os.environ["TORCH_TABLE_LOADER_CACHE"] = cache
    layout = RecordLayout(pq.read_schema(next(Path(local).glob("*.parquet"))).remove_metadata())
    loader, _ = StructuredDataset.create_dataloader(
        local,
        batch_size=BATCH,
        num_workers=LANES,
        shuffle="rows",
        row_store=RowStore(f"{BUCKET}/{ROW_STORES}", 2 * LANES * WINDOW_ROWS * (layout.width + layout.null_width + 8)),
        storage_options={"endpoint_url": far.endpoint, "key": "k", "secret": "s", "region": "us-east-1"},
    )
    return lambda: islice(map(rows_of, loader), SHUFFLED_ROWS // BATCH)


def build_store(table: Path, root: Path) -> None:
    """Build a table's row store below the folder that is served, unless it is there."""
    from torch_table_loader import StructuredDataset

    loader, _ = StructuredDataset.create_dataloader(
        table, batch_size=BATCH, num_workers=LANES, shuffle="rows", row_store=str(root / ROW_STORES)
    )
    next(iter(loader))


def polars(far: Far, setting: str) -> Epoch:
    """Scan with polars: collected by its streaming engine at once, or in batches."""
    import polars as pl

    options = {
        "aws_endpoint_url": far.endpoint,
        "aws_access_key_id": "k",
        "aws_secret_access_key": "s",
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
    }
    scan = pl.scan_parquet(f"{far.url}/*.parquet", storage_options=options)
    scan = scan if far.columns is None else scan.select(far.columns)
    if setting == "batches":
        return lambda: (frame.height for frame in scan.collect_batches(chunk_size=BATCH))
    return lambda: iter([scan.collect(engine="streaming").height])


SCANNER: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "fragment_readahead=16": {"fragment_readahead": 16},
    "fragment_readahead=64": {"fragment_readahead": 64, "batch_readahead": 64},
    "fragment_readahead=16, ranges of 8 MiB": {"fragment_readahead": 16, "batch_readahead": 64, "ranges": True},
    "fragment_readahead=64, ranges of 8 MiB": {"fragment_readahead": 64, "batch_readahead": 64, "ranges": True},
}
"""Settings of pyarrow's scanner; all but the first with 64 threads for I/O."""


def scanner(far: Far, setting: str) -> Epoch:
    """Scan with pyarrow.dataset."""
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyarrow.fs import S3FileSystem

    options = dict(SCANNER[setting])
    if options:
        pa.set_io_thread_count(64)
    if options.pop("ranges", False):
        cache = pa.CacheOptions(hole_size_limit=256 << 10, range_size_limit=8 << 20, lazy=False)
        options["fragment_scan_options"] = ds.ParquetFragmentScanOptions(pre_buffer=True, cache_options=cache)
    place = far.endpoint.removeprefix("http://")
    keys = {"access_key": "k", "secret_key": "s", "region": "us-east-1"}
    store = S3FileSystem(scheme="http", endpoint_override=place, **keys)
    table = ds.dataset(far.url.removeprefix("s3://"), filesystem=store, format="parquet")
    return lambda: (batch.num_rows for batch in table.scanner(columns=far.columns, **options).to_batches())


def torch_dataloader_utils(far: Far, setting: str) -> Epoch:
    """Read with torch-dataloader-utils 0.2.0."""
    from torch_dataloader_utils.dataset.structured import StructuredDataset

    from bench.ours import rows_of

    store = {"endpoint_url": far.endpoint, "key": "k", "secret": "s"}
    workers = int(setting.removeprefix("num_workers="))
    loader, _ = StructuredDataset.create_dataloader(
        far.url, "parquet", batch_size=BATCH, num_workers=workers, columns=far.columns, storage_options=store
    )
    return lambda: map(rows_of, loader)


RIVALS: Mapping[str, Callable[[Far, str], Epoch]] = {
    "polars": polars,
    "scanner": scanner,
    "torch-dataloader-utils": torch_dataloader_utils,
}
_MODULES = {
    "polars": "polars",
    "scanner": "pyarrow.dataset",
    "torch-dataloader-utils": "torch_dataloader_utils.dataset.structured",
}


def reader(name: str, far: Far, local: str, cache: str) -> Epoch:
    """Construct a reader by its name.

    Args:
        name: see above.
        far: the table.
        local: where its files are on this machine.
        cache: an empty folder.
    """
    kind, _, setting = name.partition(":")
    if kind != "ours":
        return RIVALS[kind](far, setting)
    if setting == "rows":
        return shuffled(far, local, cache)
    return ours(far, local if setting == "local" else None, cache if setting == "cached" else None)


def measure(construct: Callable[[], Epoch], endpoint: Endpoint, epochs: int) -> Told:
    """Construct, read, and ask the endpoint after each what it served."""
    endpoint.ask("reset")
    began = time.perf_counter()
    epoch = construct()
    told = Told(time.perf_counter() - began, endpoint.ask("stats"))
    for _ in range(epochs):
        endpoint.ask("reset")
        began, cpu = time.perf_counter(), cpu_seconds()
        batches = epoch()
        rows = next(batches)
        told.first.append(time.perf_counter() - began)
        told.rows.append(rows + sum(batches))
        told.seconds.append(time.perf_counter() - began)
        told.cpu.append(cpu_seconds() - cpu)
        told.served.append(endpoint.ask("stats"))
    return told


def _imported(name: str, checkout: Path | None) -> None:
    """Import what a reader needs before anything is timed, ours from a checkout if one is given."""
    kind = name.partition(":")[0]
    if kind != "ours":
        importlib.import_module(_MODULES[kind])
        return
    sys.path[:0] = [] if checkout is None else [str(checkout)]
    import torch_table_loader

    if checkout is not None and not Path(torch_table_loader.__file__).is_relative_to(checkout.resolve()):
        raise RuntimeError(f"the package must come from {checkout}, got {torch_table_loader.__file__}")
    for entrance in ("IcebergDataset", "StructuredDataset"):
        getattr(torch_table_loader, entrance)  # imports torch and pyarrow, which are imported when first used


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--who", required=True)
    parser.add_argument("--path", required=True, help="of the table in the bucket")
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--local", default="")
    parser.add_argument("--columns", nargs="*")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--checkout", type=Path, help="whose torch_table_loader is measured")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    _imported(options.who, options.checkout)
    far = Far(options.path, options.endpoint, options.columns or None)
    with tempfile.TemporaryDirectory() as cache:
        told = measure(lambda: reader(options.who, far, options.local, cache), Endpoint(far.endpoint), options.epochs)
    sys.stdout.write(json.dumps(asdict(replace(told, peak=peak_mib()))) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a rival's threads may abort a process that ends; what was measured is out


if __name__ == "__main__":
    main()
