"""What runs in the sandbox: a table is read while somebody changes its files. It imports all that a case needs."""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.orc
import pyarrow.parquet as pq
import torch.utils.data  # noqa: F401 - imported here, once, and not in each case

from tests.tables.token_files import datatrove_bytes, fms_bytes, lists_bytes, megatron_bytes
from torch_table_loader import Pack, StructuredDataset
from torch_table_loader.errors import TableLoaderError
from torch_table_loader.testing import small_sizes

pa.array([1]).to_pylist()  # it imports pandas, if that is there

ROWS, GROUP, BATCH = 1_000, 100, 50
TIME = 1_700_000_000_000_000_000


def _table(first: int) -> pa.Table:
    """Rows whose text takes as many bytes whatever `first` is."""
    numbers = range(first, first + ROWS)
    return pa.table({"i": pa.array(numbers, pa.int64()), "s": [f"value {number}" for number in numbers]})


def _parquet(table: pa.Table) -> bytes:
    target = io.BytesIO()
    pq.write_table(table, target, row_group_size=GROUP, compression="none", use_dictionary=False)
    return target.getvalue()


def _orc(table: pa.Table) -> bytes:
    target = io.BytesIO()
    with pa.orc.ORCWriter(target, stripe_size=1 << 14, compression="uncompressed") as writer:
        for first in range(0, ROWS, GROUP):
            writer.write(table.slice(first, GROUP))
    return target.getvalue()


def _csv(table: pa.Table) -> bytes:
    target = io.BytesIO()
    pa.csv.write_csv(table, target)
    return target.getvalue()


def _json(table: pa.Table) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()


def _avro(table: pa.Table) -> bytes:
    fields = [{"name": "i", "type": "long"}, {"name": "s", "type": "string"}]
    target = io.BytesIO()
    schema = {"type": "record", "name": "row", "fields": fields}
    fastavro.writer(target, schema, table.to_pylist(), codec="null", sync_interval=1 << 11)
    return target.getvalue()


def _ipc(make: Callable[..., Any]) -> Callable[[pa.Table], bytes]:
    def write(table: pa.Table) -> bytes:
        target = io.BytesIO()
        with make(target, table.schema) as writer:
            writer.write_table(table, max_chunksize=GROUP)
        return target.getvalue()

    return write


def _documents(first: int) -> list[list[int]]:
    """Documents of the same lengths whatever `first` is."""
    return [[first % 1_000 + (number + place) % 999 for place in range(40 + number % 50)] for number in range(300)]


def _megatron(first: int) -> dict[str, bytes]:
    data, index = megatron_bytes([[document] for document in _documents(first)])
    return {".bin": data, ".idx": index}


def _datatrove(first: int) -> dict[str, bytes]:
    data, index = datatrove_bytes(_documents(first))
    return {".ds": data, ".ds.index": index}


class Form(NamedTuple):
    """A format: what the caller passes as ``format=``, and the bytes of a file and of those beside it, by suffix."""

    name: str
    files: Callable[[int], Mapping[str, bytes]]
    packs: bool = False


FORMS = {
    "parquet": Form("parquet", lambda first: {".parquet": _parquet(_table(first))}),
    "orc": Form("orc", lambda first: {".orc": _orc(_table(first))}),
    "csv": Form("csv", lambda first: {".csv": _csv(_table(first))}),
    "json": Form("jsonl", lambda first: {".jsonl": _json(_table(first))}),
    "avro": Form("avro", lambda first: {".avro": _avro(_table(first))}),
    "arrow": Form("arrow", lambda first: {".arrow": _ipc(pa.ipc.new_file)(_table(first))}),
    "arrow stream": Form("arrow", lambda first: {".arrow": _ipc(pa.ipc.new_stream)(_table(first))}),
    "megatron": Form("megatron", _megatron, packs=True),
    "datatrove": Form("datatrove", _datatrove, packs=True),
    "fms-fsdp": Form("fms-fsdp", lambda first: {".arrow": fms_bytes(_documents(first))}, packs=True),
    "flat": Form("flat:dtype=uint16,document_tokens=50", lambda first: {".npy": _megatron(first)[".bin"]}, packs=True),
    "arrow lists": Form("arrow", lambda first: {".arrow": lists_bytes(_documents(first))}, packs=True),
}


def _cut(path: Path, _: bytes) -> None:
    os.truncate(path, path.stat().st_size // 3)


def _emptied(path: Path, _: bytes) -> None:
    path.write_bytes(b"")


def _overwritten(path: Path, other: bytes) -> None:
    with path.open("r+b") as file:
        file.write(other[: path.stat().st_size])


def _rewritten(path: Path, other: bytes) -> None:
    path.write_bytes(other)


def _appended(path: Path, other: bytes) -> None:
    with path.open("ab") as file:
        file.write(other)


def _replaced(path: Path, other: bytes) -> None:
    beside = path.with_name(".beside")
    beside.write_bytes(other)
    os.utime(beside, ns=(TIME, TIME))
    beside.replace(path)


def _removed(path: Path, _: bytes) -> None:
    path.unlink()


CHANGES: dict[str, Callable[[Path, bytes], None]] = {
    "cut": _cut,
    "emptied": _emptied,
    "overwritten": _overwritten,
    "rewritten": _rewritten,
    "appended": _appended,
    "replaced": _replaced,
    "removed": _removed,
}
"""What somebody does to a file, given other bytes for it."""


class Read(NamedTuple):
    """The batches that came, each as text, and the error that ended them; "" where the epoch ended."""

    batches: tuple[str, ...]
    error: str = ""


def read_changed(folder: str, form: str, options: dict[str, Any], how: str, after: int) -> Read:
    """Read an epoch of two files, and change the second one after some batches; any data file, and nothing beside it.

    Args:
        how: one of `CHANGES`; "" leaves the files alone.
        after: how many batches come before; 0: the epoch has not begun.
    """
    root, kind, path = Path(folder), FORMS[form], None
    root.mkdir()
    for number in range(2):
        for suffix, data in kind.files(200_000 + number * ROWS).items():
            (root / f"{number}{suffix}").write_bytes(data)
            os.utime(root / f"{number}{suffix}", ns=(TIME, TIME))
    suffix, other = next(iter(kind.files(700_000).items()))
    path = root / f"1{suffix}"
    asked: dict[str, Any] = {"batch_size": BATCH, "output_format": "dict", "check_plan": False, **options}
    if kind.packs:
        asked |= {"pack": Pack(seq_len=48), "batch_size": 8, "output_format": "torch"}
    found: list[str] = []
    with warnings.catch_warnings(), small_sizes(gather_rows=24):
        warnings.simplefilter("ignore")
        try:
            loader, _ = StructuredDataset.create_dataloader(folder, kind.name, **asked)
            if how and not after:
                CHANGES[how](path, other)
            batches = iter(loader)
            while True:
                if how and len(found) == after > 0:
                    CHANGES[how](path, other)
                    how = ""
                batch = next(batches, None)
                if batch is None:
                    return Read(tuple(found))
                found.append(repr(batch["input_ids"].tolist() if kind.packs else batch))
        except TableLoaderError as error:
            return Read(tuple(found), f"{type(error).__name__}: {error}")
