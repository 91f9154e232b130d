"""Writers of the layouts that token files have, byte by byte as their projects define them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

MEGATRON_CODES = {
    "uint8": 1,
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "float64": 6,
    "float32": 7,
    "uint16": 8,
}

Document = Sequence[int]


def megatron_bytes(
    documents: Sequence[Sequence[Document]], dtype: str = "uint16", modes: Sequence[int] | None = None
) -> tuple[bytes, bytes]:
    """Return ``.bin`` and ``.idx`` of documents, each of some sequences."""
    sequences = [sequence for document in documents for sequence in document]
    data = b"".join(np.array(sequence, dtype).tobytes() for sequence in sequences)
    lengths = np.array([len(sequence) for sequence in sequences], "<i4")
    ends = np.cumsum(lengths, dtype="<i8")
    firsts = np.cumsum([0, *map(len, documents)], dtype="<i8")
    index = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, MEGATRON_CODES[dtype], len(sequences), len(firsts))
    index += lengths.tobytes() + ((ends - lengths) * np.dtype(dtype).itemsize).tobytes() + firsts.tobytes()
    return data, index + (b"" if modes is None else np.array(modes, np.int8).tobytes())


def datatrove_bytes(documents: Sequence[Document], dtype: str = "uint16") -> tuple[bytes, bytes]:
    """Return ``.ds`` and ``.ds.index``."""
    ends = np.cumsum([len(document) for document in documents], dtype="<u8")
    return b"".join(np.array(document, dtype).tobytes() for document in documents), ends.tobytes()


def write_megatron(path: Path, documents: Sequence[Document], dtype: str = "uint16") -> None:
    """Write ``path`` and its index, each document one sequence."""
    data, index = megatron_bytes([[document] for document in documents], dtype)
    path.write_bytes(data)
    path.with_suffix(".idx").write_bytes(index)


def write_datatrove(
    path: Path, documents: Sequence[Document], dtype: str = "uint16", *, loss: bool = True, note: bool = True
) -> None:
    """Write ``path`` and what stands beside it; the loss mask marks odd tokens."""
    data, index = datatrove_bytes(documents, dtype)
    tokens = sum(map(len, documents))
    path.write_bytes(data)
    Path(f"{path}.index").write_bytes(index)
    if loss:
        Path(f"{path}.loss").write_bytes(bytes(mask for document in documents for mask in loss_of(document)))
    if note:
        width = np.dtype(dtype).itemsize
        Path(f"{path}.metadata").write_text(f"some|tokenizer|{width}\n{tokens}\n{tokens} T")


def loss_of(document: Document) -> list[int]:
    """Return the mask that `write_datatrove` writes."""
    return [token % 2 for token in document]


def fms_bytes(documents: Sequence[Document], kind: pa.DataType | None = None, **options: Any) -> bytes:
    """Return an Arrow file with a document in each record batch."""
    schema = pa.schema([("tokens", kind or pa.uint32())])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for document in documents:
            writer.write_batch(pa.record_batch([pa.array(document, schema.types[0])], schema=schema))
    return bytes(sink.getvalue())


def write_fms(path: Path, documents: Sequence[Document]) -> None:
    """Write an Arrow file with a document in each record batch."""
    path.write_bytes(fms_bytes(documents))


def lists_bytes(documents: Sequence[Document | None], *, stream: bool = False, **options: Any) -> bytes:
    """Return an Arrow file of a list a row, seven rows a record batch, or a stream of large lists.

    What comes before the lists takes many buffers, and a dictionary comes again and again.
    """
    kind = pa.large_list(pa.uint16()) if stream else pa.list_(pa.uint16())
    rows = len(documents)
    columns = {
        "name": pa.array([f"document {number}" for number in range(rows)]),
        "kind": pa.array(["ab"[number % 2] for number in range(rows)]).dictionary_encode(),
        "sizes": pa.array([{"bytes": [number]} for number in range(rows)]),
        "tokens": pa.array(documents, kind),
        "score": pa.array(range(rows), pa.float32()),
    }
    table, sink = pa.table(columns), pa.BufferOutputStream()
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=7)
    return bytes(sink.getvalue())


def write_lists(path: Path, documents: Sequence[Document]) -> None:
    """Write an Arrow file with a list in each row, or a stream if its name says so; some empty ones are null."""
    some = [document or (None if number % 2 else []) for number, document in enumerate(documents)]
    path.write_bytes(lists_bytes(some, stream=path.suffix == ".ipc"))


LISTS = {"arrow": (".arrow", write_lists), "ipc": (".ipc", write_lists)}
"""As `LAYOUTS`, of Arrow files that are no token files."""

LAYOUTS = {
    "megatron": (".bin", write_megatron),
    "datatrove": (".ds", write_datatrove),
    "nanotron": (".ds", write_datatrove),
    "fms-fsdp": (".arrow", write_fms),
}
"""By format, how its data files end, and what writes one."""


def some_documents(seed: int, count: int, longest: int = 40) -> list[list[int]]:
    """Return documents of a seed, some of them empty."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 60_000, rng.integers(0, longest)).tolist() for _ in range(count)]
