"""What runs in the sandbox: an epoch is read from a row store. It imports all that a case needs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch.utils.data  # noqa: F401 - imported here, once, and not in each case

import torch_table_loader.engine.jobs.table_rows
import torch_table_loader.far.remote
import torch_table_loader.order.row_weights
import torch_table_loader.text.packed_items
import torch_table_loader.text.packed_work  # noqa: F401
from tests.fuzz.cases import Rows
from torch_table_loader import Pack, RowStore, StructuredDataset
from torch_table_loader.engine import row_store
from torch_table_loader.store import manifest
from torch_table_loader.store.record_layout import MANIFEST
from torch_table_loader.testing import small_sizes

ROWS = 900
URL = "memory://stores"
Where = Literal["touched", "rotten", "rotten and larger than memory", "at a URL", "at a URL, by ranges"]
WHERES: tuple[Where, ...] = Where.__args__  # type: ignore[attr-defined]
"""How a store was changed, and where it is: written to with its mtime set back; changed beneath the file system, so
that all its times are as they were; the same, with too little memory for it; fetched whole; fetched in windows."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of row store.

    Args:
        columns: of its table.
        options: of the loader.
    """

    columns: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)


def _some(values: list[Any], every: int) -> list[Any]:
    return [None if number % every == 0 else value for number, value in enumerate(values)]


_PLACES = range(ROWS)
KINDS = {
    "numbers": Kind(
        {"x": np.arange(ROWS), "f": np.arange(ROWS, dtype="f4"), "b": [number % 3 == 0 for number in _PLACES]},
    ),
    "weighted": Kind({"x": np.arange(ROWS)}, {"weights": "x"}),
    "nulls under a filter": Kind(
        {
            "x": np.arange(ROWS),
            "n": pa.array(_some(list(_PLACES), 5)),
            "grid": pa.array(_some([[number, None] for number in _PLACES], 7), pa.list_(pa.float32(), 2)),
        },
        {"filters": pc.field("x") >= 60, "row_id": True},
    ),
    "strings that repeat": Kind(
        {"s": _some([f"größe {number % 9}" for number in _PLACES], 11), "t": [f"t{number % 4}" for number in _PLACES]}
    ),
    "strings that differ": Kind({"s": _some([f"zähler {number}" for number in _PLACES], 11), "x": np.arange(ROWS)}),
    "lists and structs": Kind(
        {
            "list": pa.array(_some([[number] * (number % 4) for number in _PLACES], 13), pa.list_(pa.int32())),
            "texts": pa.array([[str(number)] * (number % 3) for number in _PLACES]),
            "struct": pa.array(_some([{"a": number, "b": str(number)} for number in _PLACES], 6)),
            "blob": pa.array([bytes([number % 256]) * (number % 5) for number in _PLACES], pa.large_binary()),
        }
    ),
    "tokens": Kind(
        {"ids": pa.array([[number % 250] * (number % 40) for number in _PLACES], pa.list_(pa.int32()))},
        {"pack": Pack(tokens="ids", seq_len=64, eos_id=251), "output_format": "torch"},
    ),
}


def prepare(root: str, kind: str) -> None:
    """Write a table of a kind, and its row store."""
    (Path(root) / "table").mkdir()
    pq.write_table(pa.table(dict(KINDS[kind].columns)), f"{root}/table/0.parquet", row_group_size=100)
    _read(root, kind, {"row_store": f"{root}/stores"})


def read_store(root: str, kind: str, damaged: tuple[str, bytes] | None, where: Where) -> Rows:
    """Put a store as it was, damage one of its files, and read an epoch.

    Args:
        root: a folder that `prepare` filled, with a copy of its stores in `sound`.
        kind: a key of `KINDS`.
        damaged: the path of a file in the folder of stores, and its new bytes; or None.
        where: see `WHERES`.
    """
    stores, sound = Path(root, "stores"), Path(root, "sound")
    shutil.rmtree(stores)
    shutil.copytree(sound, stores)
    if where.startswith("rotten"):
        _forget(stores)
    if damaged is not None:
        path = stores / damaged[0]
        before = path.stat()
        path.write_bytes(damaged[1])
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        if where.startswith("rotten") and path.name != MANIFEST and path.stat().st_size == before.st_size:
            _forget(stores)
    free = 1 if where.endswith("larger than memory") else 1 << 34
    vars(row_store)["available_memory"] = lambda: free
    if not where.startswith("at a URL"):
        return _read(root, kind, {"row_store": str(stores)})
    os.environ[row_store.CACHE_VARIABLE] = f"{root}/cache"
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    for path in filter(Path.is_file, stores.rglob("*")):
        memory.pipe_file(f"/stores/{path.relative_to(stores)}", path.read_bytes())
    return _read(root, kind, {"row_store": RowStore(URL, memory=1 if where.endswith("ranges") else "1GiB")})


def _forget(stores: Path) -> None:
    """Let manifests have the times that their files have now, as if these were never written to."""
    for path in stores.glob(f"*/{MANIFEST}"):
        content = json.loads(path.read_bytes())["store"]
        for name, (length, *times) in content["files"].items():
            now = (path.parent / name).stat()
            content["files"][name] = [length, now.st_mtime_ns, now.st_ctime_ns][: 1 + len(times)]
        path.write_text(json.dumps({"crc": manifest._crc(content), "store": content}))


@small_sizes(store_chunk_bytes=1 << 13, far_gap_bytes=64)
def _read(root: str, kind: str, options: Mapping[str, Any]) -> Rows:
    given: dict[str, Any] = {
        "output_format": "dict",
        "shuffle": "rows",
        "batch_size": 50,
        "num_workers": 0,
        "check_plan": False,
    }
    loader, _ = StructuredDataset.create_dataloader(
        f"{root}/table", **given | dict(KINDS[kind].options) | dict(options)
    )
    count, digest = 0, hashlib.sha256()
    for batch in loader:
        values = {
            name: value.tolist() if hasattr(value, "tolist") else value
            for name, value in sorted(batch.items())
            if isinstance(value, list) or hasattr(value, "tolist")
        }
        count += len(next(iter(values.values())))
        digest.update(repr(values).encode("utf-8", "surrogatepass"))
    return Rows(count, digest.hexdigest())
