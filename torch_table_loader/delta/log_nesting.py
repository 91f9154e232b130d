"""How deep the JSON of a log nests, which deltalake parses without a limit: deep statistics would end the process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from torch_table_loader.table_formats import check_nesting, shown_url, sizes

_BRACKETS = (b"{", b"[", b"\\u00")
"""In text inside of JSON, brackets may be escaped."""


def check_part(source: BinaryIO, path: str) -> list[dict[str, Any]]:
    """Refuse a file of the log whose JSON nests too deep; returns the sidecars that it names."""
    if path.endswith(".json"):
        return _check_commit(source.read(), path)
    return _check_checkpoint(source, path)


def _check_commit(content: bytes, path: str) -> list[dict[str, Any]]:
    """Refuse a commit whose JSON nests too deep, or that in the texts inside of it."""
    check_nesting(content, shown_url(path))
    sidecars = []
    for line in content.splitlines():
        if sum(map(line.count, _BRACKETS)) <= sizes().json_levels and b'"sidecar"' not in line:
            continue
        try:
            action = json.loads(line)
        except ValueError:
            continue  # deltalake says so
        for text in _texts(action):
            check_nesting(text, f"a text in {shown_url(path)}")
        if isinstance(action, dict) and isinstance(action.get("sidecar"), dict):
            sidecars.append(action["sidecar"])
    return sidecars


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _check_checkpoint(source: BinaryIO, path: str) -> list[dict[str, Any]]:
    """Refuse a checkpoint, or a sidecar of one, whose statistics nest too deep."""
    file = pq.ParquetFile(source)
    schema = file.schema_arrow
    has_stats = "add" in schema.names and pa.types.is_struct(kind := schema.field("add").type) and "stats" in kind.names
    names = ["add.stats"] * has_stats + ["sidecar"] * ("sidecar" in schema.names)
    sidecars: list[dict[str, Any]] = []
    if not names:
        return sidecars
    for batch in file.iter_batches(columns=names):
        if has_stats:
            texts = pc.struct_field(batch["add"], "stats")
            brackets = pc.add(pc.count_substring(texts, "["), pc.count_substring(texts, "{"))
            for text in texts.filter(pc.greater(brackets, sizes().json_levels)).to_pylist():
                check_nesting(text or "", f"the statistics in {shown_url(path)}")
        if "sidecar" in batch.schema.names:
            sidecars += batch["sidecar"].drop_null().to_pylist()
    return sidecars
