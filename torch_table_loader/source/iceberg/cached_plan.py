"""The files of a snapshot that a filter leaves, kept in a plan cache, so that manifests are read once."""

from __future__ import annotations

import datetime as dt
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from uuid import UUID

from torch_table_loader.scrubbing import shown_url
from torch_table_loader.source.iceberg.manifests import DeletesInfo, Entry, Span, partition_key

if TYPE_CHECKING:
    from torch_table_loader.source.plan_cache import PlanCache

Plan = tuple[list[Entry], tuple[str, ...]]
"""The files of a snapshot that a filter leaves, and notes about them."""

_values_of = attrgetter(*(name for name in Entry.__dataclass_fields__ if name != "partition"))
_TAGS: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "datetime": (dt.datetime, dt.datetime.isoformat, dt.datetime.fromisoformat),  # before its base class
    "date": (dt.date, dt.date.isoformat, dt.date.fromisoformat),
    "time": (dt.time, dt.time.isoformat, dt.time.fromisoformat),
    "decimal": (Decimal, str, Decimal),
    "uuid": (UUID, str, UUID),
}
"""Types of partition values that JSON lacks, and how to write and read them."""


def cached_plan(cache: PlanCache | None, key: str, make: Callable[[], Plan]) -> Plan:
    """Return the plan of a snapshot, which never changes, under one filter; make it if it is not cached.

    A plan whose files are URLs with a login or a signature is not kept: a cache must not hold these.
    """
    if cache is None:
        return make()
    if (data := cache.get_note(key)) is not None:
        return read_plan(data)
    plan = make()
    if all(shown_url(entry.path) == entry.path for entry in plan[0]):
        cache.put_note(key, write_plan(*plan))
    return plan


def write_plan(entries: Sequence[Entry], notes: Sequence[str]) -> bytes:
    """Write the files of a snapshot, compressed; of equal partition values one copy."""
    partitions = {partition_key(entry.partition): entry.partition for entry in entries}
    numbers = {key: number for number, key in enumerate(partitions)}
    rows = [(numbers[partition_key(entry.partition)], *_values_of(entry)) for entry in entries]
    return zlib.compress(json.dumps([notes, list(partitions.values()), rows], default=_tagged).encode(), 1)


def read_plan(data: bytes) -> Plan:
    """Read what `write_plan` wrote."""
    notes, partitions, rows = json.loads(zlib.decompress(data), object_hook=_untagged)
    values = [_tuples(each) for each in partitions]
    entries: list[Entry] = []
    for number, path, content, form, spec_id, sequence, first, num_rows, num_bytes, splits, deletes, spans in rows:
        info = None if deletes is None else DeletesInfo(*_tuples(deletes))
        known = (values[number], sequence, first, num_rows, num_bytes, tuple(splits), info)
        entries.append(Entry(path, content, form, spec_id, *known, tuple([Span(*span) for span in spans])))
    return entries, tuple(notes)


def _tuples(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([_tuples(value) if isinstance(value, list) else value for value in values])


def _tagged(value: Any) -> dict[str, str]:
    for tag, (kind, say, _) in _TAGS.items():
        if isinstance(value, kind):
            return {tag: say(value)}
    raise TypeError(f"a partition value of the type {type(value).__name__} cannot be kept")


def _untagged(found: Mapping[str, str]) -> Any:
    [(tag, text)] = found.items()
    return _TAGS[tag][2](text)
