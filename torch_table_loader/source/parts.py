"""Parts of files, several requests at once; and whole files, put there."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch_table_loader.source.clients import ArrowS3Client, Client, FsspecClient, LocalClient

PART_THREADS = 16
"""Requests in flight: object stores answer in tens of milliseconds."""

_COPY_BYTES = 1 << 24


def read_parts(client: Client, path: str, parts: Sequence[tuple[int, int]]) -> list[Any]:
    """Read parts of a file.

    Args:
        client: of the store.
        path: which file.
        parts: first byte of each, and the byte after its last.

    Raises:
        OSError: a part came with another length; a server that ignores ranges sends the whole file.
    """
    if isinstance(client, LocalClient):
        found = _local_parts(path, parts)
    elif isinstance(client, FsspecClient):
        starts, stops = zip(*parts, strict=True) if parts else ((), ())
        found = client.native.cat_ranges(
            [path] * len(parts), list(starts), list(stops), on_error="raise", batch_size=PART_THREADS
        )
    else:
        with client.open(path) as file, ThreadPoolExecutor(min(PART_THREADS, len(parts) or 1)) as pool:
            found = list(pool.map(lambda part: file.read_at(part[1] - part[0], part[0]), parts))
    for data, (start, stop) in zip(found, parts, strict=True):
        if len(data) != stop - start:
            raise OSError(
                f"bytes {start} to {stop} were asked for, and {len(data)} bytes came; the server must answer requests "
                "for ranges, and the file must be as long as it was"
            )
    return found


def put_file(client: Client, local: str, path: str) -> None:
    """Copy a file of this machine to a store.

    Args:
        client: of the store.
        local: the file.
        path: what the store is to call it.
    """
    if isinstance(client, LocalClient):
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            shutil.copyfile(local, beside)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    elif isinstance(client, ArrowS3Client):
        with Path(local).open("rb") as source, client.native.open_output_stream(path) as stream:
            while data := source.read(_COPY_BYTES):
                stream.write(data)
    elif isinstance(client, FsspecClient):
        try:
            client.native.put_file(local, path)
        except FileNotFoundError:
            client.native.makedirs(path.rpartition("/")[0], exist_ok=True)
            client.native.put_file(local, path)


def _local_parts(path: str, parts: Sequence[tuple[int, int]]) -> list[bytes]:
    file = os.open(path, os.O_RDONLY)
    try:
        return [os.pread(file, stop - start, start) for start, stop in parts]
    finally:
        os.close(file)
