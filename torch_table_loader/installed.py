"""What this build has: its guests, which are parts that a build can leave out, and its file formats.

The core asks for a guest by name, and imports none. Whoever imports a module of one that is missing gets an error that
says what this build lacks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import NamedTuple

from torch_table_loader.errors import MissingExtraError

_PACKAGE = __package__


class Guest(NamedTuple):
    """A part of the library that the core does not import.

    Args:
        title: what a build without it lacks.
        modules: its modules and folders, relative to the package; the first one is its door.
    """

    title: str
    modules: tuple[str, ...]


class Format(NamedTuple):
    """A file format of this library.

    Args:
        module: where its reader is, relative to the package.
        reader: the class of the reader, which takes its name.
        suffixes: ends of the names of its files, those of sidecars included.
    """

    module: str
    reader: str
    suffixes: tuple[str, ...]


GUESTS = {
    "cli": Guest("command line", ("cli",)),
    "integrations": Guest("integrations of Lightning and transformers", ("integrations",)),
    "testing": Guest("checks of plug-ins", ("testing",)),
    "report": Guest("HTML pages", ("report",)),
    "delta": Guest("Delta Lake", ("delta",)),
    "iceberg": Guest("Iceberg", ("iceberg",)),
    "far": Guest("far stores", ("far",)),
    "avro": Guest("Avro", ("formats.avro",)),
    "csv_json": Guest("CSV and JSON", ("formats.csv_json",)),
    "ipc": Guest("Arrow files", ("formats.ipc",)),
    "orc": Guest("ORC", ("formats.orc",)),
    "tensorproto": Guest("tensor shards of ONNX", ("formats.tensorproto",)),
    "text": Guest("packing", ("text",)),
    "order": Guest("weights or growth of rows", ("order",)),
    "mixtures": Guest("mixtures", ("mixtures",)),
    "budgets": Guest("batches by budget in streams", ("budgets",)),
    "statistics": Guest("statistics of columns", ("engine.measuring", "planning.value_sums")),
}
"""All guests; `tools/guests.py` takes them off."""

_ARROW = (".arrow", ".ipc", ".feather")
_DATATROVE = (".ds", ".ds.index", ".ds.loss", ".ds.metadata")
_JSON = (".json", ".jsonl", ".ndjson")

FORMATS = {
    "parquet": Format("read.parquet", "ParquetReader", (".parquet", ".pq")),
    "orc": Format("formats.orc.orc", "OrcReader", (".orc",)),
    "csv": Format("formats.csv_json.csv_files", "CsvReader", (".csv", ".tsv")),
    "json": Format("formats.csv_json.json_files", "JsonReader", _JSON),
    "jsonl": Format("formats.csv_json.json_files", "JsonReader", _JSON),
    "arrow": Format("formats.ipc.ipc", "IpcReader", _ARROW),
    "ipc": Format("formats.ipc.ipc", "IpcReader", _ARROW),
    "feather": Format("formats.ipc.ipc", "IpcReader", _ARROW),
    "avro": Format("formats.avro.avro", "AvroReader", (".avro",)),
    "megatron": Format("text.token_formats", "MegatronReader", (".bin", ".idx")),
    "datatrove": Format("text.token_formats", "DatatroveReader", _DATATROVE),
    "nanotron": Format("text.token_formats", "DatatroveReader", _DATATROVE),
    "fms-fsdp": Format("formats.ipc.ipc", "FmsFsdpReader", (".arrow",)),
}
"""The file formats by name, of which a build may lack some; `read/formats.py` makes their readers."""

SPELT_OUT = {"flat": Format("text.flat_tokens", "FlatTokens", ())}
"""Formats whose names are followed by a colon and settings, which the class reads: no name alone says enough."""


RECORDS = {
    "exclusions": "engine.exclusion_record",
    "mixture": "mixtures.record",
    "packing": "text.packing_record",
}
"""Modules of what is added to states, by its key there, relative to the package; each has a `RECORD`."""


def guest_of(module: str) -> str | None:
    """Return the name of the guest that has a module, which is named relative to the package; None if none has it.

    >>> guest_of("delta.log"), guest_of("delta"), guest_of("deltas")
    ('delta', 'delta', None)
    """
    for name, guest in GUESTS.items():
        if any(module == own or module.startswith(f"{own}.") for own in guest.modules):
            return name
    return None


def has(name: str) -> bool:
    """Return whether this build has a guest."""
    try:
        found = find_spec(f"{_PACKAGE}.{GUESTS[name].modules[0]}")
    except MissingExtraError:
        return False
    return found is not None and found.origin is not None  # a folder of nothing but bytecode has no origin


def load(name: str) -> ModuleType:
    """Import the door of a guest.

    Raises:
        MissingExtraError: this build does not have it.
    """
    return load_module(GUESTS[name].modules[0])


def load_module(module: str) -> ModuleType:
    """Import a module that is named relative to the package.

    Raises:
        MissingExtraError: it is of a guest that this build does not have.
    """
    return import_module(f"{_PACKAGE}.{module}")


class _Refusing:
    """Refuses modules of guests; Python asks it last, when no other finder has found a module."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /) -> None:
        """Find nothing.

        Raises:
            MissingExtraError: the module is of a guest, which this build does not have then.
        """
        del path, target
        package, _, module = fullname.partition(".")
        name = guest_of(module) if package == _PACKAGE else None
        if name is not None:
            raise MissingExtraError(
                f"this build has no {GUESTS[name].title}: it was made without {_PACKAGE}.{module}; install all of "
                "torch-table-loader"
            )


def refuse_missing_guests() -> None:
    """Have Python refuse to import modules of guests that this build lacks, once in a process."""
    if not any(isinstance(finder, _Refusing) for finder in sys.meta_path):
        sys.meta_path.append(_Refusing())
