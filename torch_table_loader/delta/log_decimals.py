"""Partition values of decimals in a log, written with as many digits as their type has: deltalake parses no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

_REFUSED = re.compile(r"Failed to parse value '.*' as 'decimal\(\d+, ?\d+\)'")
_DECIMAL = re.compile(r"decimal\(\d+, ?(\d+)\)")
_MOST_DIGITS = 76
_CHANGES = {"add": "partitionValues", "remove": "partitionValues", "sidecar": "sizeInBytes"}
_CHANGED = re.compile(b"partitionValues|sidecar")
_PHYSICAL = "delta.columnMapping.physicalName"


def is_uneven(error: Exception) -> bool:
    """Return whether deltalake refused a decimal as it is written.

    >>> is_uneven(ValueError("Kernel error: Failed to parse value '1.5' as 'decimal(10,2)'"))
    True
    """
    return _REFUSED.search(str(error)) is not None


def scales_of(fields: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many digits after the point decimals have, by the columns' names, and those in files.

    >>> scales_of([{"name": "p", "type": "decimal(10,2)", "metadata": {}}, {"name": "x", "type": "long"}])
    {'p': 2}
    """
    scales: dict[str, int] = {}
    for each in fields:
        kind = each["type"]
        if isinstance(kind, str) and (match := _DECIMAL.fullmatch(kind)):
            written = (each.get("metadata") or {}).get(_PHYSICAL, each["name"])
            scales |= {each["name"]: int(match[1]), written: int(match[1])}
    return scales


def schema_in(source: BinaryIO, *, is_json: bool) -> list[dict[str, Any]] | None:
    """Return the columns that a file of the log describes last, as its JSON has them; None if it describes none."""
    if is_json:
        lines = [json.loads(line) for line in source if b'"metaData"' in line]
        found = [action["metaData"] for action in lines if isinstance(action.get("metaData"), dict)]
    else:
        found, file = [], pq.ParquetFile(source)
        if "metaData" in file.schema_arrow.names:
            found = file.read(columns=["metaData.schemaString"])["metaData"].drop_null().to_pylist()
    if found:
        return list(json.loads(found[-1]["schemaString"])["fields"])
    return None


def padded(text: str | None, scale: int) -> str | None:
    """Return a decimal with so many digits after its point; text that is none, or that has more, as it is.

    >>> [padded(text, 2) for text in ("1.5", "-2", "1.500", "15e-1", "1.505", "1e-999999", None)]
    ['1.50', '-2.00', '1.50', '1.50', '1.505', '1e-999999', None]
    """
    try:
        sign, digits, exponent = Decimal(text or "x").as_tuple()
    except InvalidOperation:
        return text
    if not isinstance(exponent, int):  # no number
        return text
    shift = exponent + scale
    if max(len(digits), abs(shift)) > _MOST_DIGITS:
        return text
    number = int("".join(map(str, digits)))
    number, rest = divmod(number * 10 ** max(shift, 0), 10 ** max(-shift, 0))
    if rest:
        return text
    whole = f"{number:0{scale + 1}}"
    point = len(whole) - scale
    return f"{'-' * sign}{whole[:point]}{'.' * bool(scale)}{whole[point:]}"


@dataclass(frozen=True, slots=True)
class Padding:
    """Writes files of a log anew, with padded decimals.

    Args:
        scales: of the columns that are decimals, by their names in the log.
        sidecars: how large the sidecars of checkpoints have become, by their paths in the log.
    """

    scales: Mapping[str, int]
    sidecars: dict[str, int] = field(default_factory=dict)

    def of_json(self, content: bytes) -> bytes:
        """Return a commit, or a checkpoint as JSON."""
        return b"".join(self._line(line) + b"\n" for line in content.splitlines())

    def of_parquet(self, source: BinaryIO, target: Path) -> None:
        """Write a checkpoint, a part of one, or a sidecar."""
        file = pq.ParquetFile(source)
        with pq.ParquetWriter(target, file.schema_arrow) as writer:
            for batch in file.iter_batches():
                columns = [self._column(*each) for each in zip(batch.schema.names, batch.columns, strict=True)]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=batch.schema))

    def _line(self, line: bytes) -> bytes:
        if not _CHANGED.search(line):
            return line
        actions = json.loads(line)
        for kind, action in actions.items():
            if kind in _CHANGES and isinstance(action, dict):
                name = _CHANGES[kind]
                action[name] = self._value(kind, action.get(name), action.get("path"))
        return json.dumps(actions).encode()

    def _column(self, kind: str, actions: pa.Array) -> pa.Array:
        name = _CHANGES.get(kind)
        if name is None or actions.type.get_field_index(name) < 0:
            return actions
        place = actions.type.get_field_index(name)
        parts = [actions.field(index) for index in range(actions.type.num_fields)]
        paths = parts[actions.type.get_field_index("path")].to_pylist()
        values = [self._value(kind, each, path) for each, path in zip(parts[place].to_pylist(), paths, strict=True)]
        parts[place] = pa.array(values, parts[place].type)
        return pa.StructArray.from_arrays(parts, fields=list(actions.type), mask=actions.is_null())

    def _value(self, kind: str, value: Any, path: Any) -> Any:
        if kind == "sidecar":
            return self.sidecars.get(path, value)
        if value is None:
            return None
        if isinstance(value, dict):
            return dict(self._padded(value.items()))
        return self._padded(value)

    def _padded(self, pairs: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
        return [(name, padded(text, self.scales[name]) if name in self.scales else text) for name, text in pairs]
