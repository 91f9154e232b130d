"""``torch-table-loader formats``: the available formats and sources, their origin, and their features."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from torch_table_loader.cli.terminal import PROGRAM, show
from torch_table_loader.contracts import origins
from torch_table_loader.errors import ConfigError
from torch_table_loader.fact_tables import Table
from torch_table_loader.format_contracts import ListCountingReader, RangedReader, Traits
from torch_table_loader.installed import GUESTS, has
from torch_table_loader.read.compression import CODECS
from torch_table_loader.read.formats import ENTRY_POINT_GROUP, FORMATS, TEXT_FORMATS, reader_for, suffixes_of

_SOURCES = (
    ("files of a path or URL", "StructuredDataset(path)", "", ""),
    ("rows in memory", "StructuredDataset.from_arrow(data)", "", ""),
    ("Iceberg tables", "IcebergDataset(table, catalog_config)", "pyiceberg", "iceberg"),
    ("Delta Lake tables", "DeltaDataset(table_uri)", "deltalake", "delta"),
    ("a Source of your own", "StructuredDataset.from_source(source)", "", ""),
)
"""What each reads, how it is opened, and the package and the guest that this needs."""


def run(typed: argparse.Namespace) -> None:
    """Print the formats and sources."""
    formats, own = format_entries(), f"{PROGRAM} {version(PROGRAM)}"
    sources = [
        {"name": name, "origin": own, "call": call, "needs": _missing(needs, guest)}
        for name, call, needs, guest in _SOURCES
    ]
    rows = [
        (
            *(each["name"], " ".join(each["suffixes"]), each["cut"] or "nothing", each["pruning"] or "nothing"),
            *("yes" if each["ranges"] else "no", each["counting"]),
        )
        for each in formats
        if not each["error"]
    ]
    header = ("format", "names end with", "a file is cut into", "pruned by", "ranges", "rows known from")
    where = [(each["name"], each["origin"], each["error"] or _state(each["needs"])) for each in formats]
    opened = [(each["name"], each["origin"], each["call"], _state(each["needs"])) for each in sources]
    show(
        typed,
        {"formats": formats, "sources": sources},
        _table("formats", header, rows),
        f"text ({', '.join(TEXT_FORMATS)}) may be compressed: {' '.join(CODECS)}",
        _table("where formats come from", ("format", "distribution", "state"), where),
        _table("sources", ("source", "distribution", "opened by", "state"), opened),
    )


def _table(title: str, header: tuple[str, ...], rows: Sequence[Sequence[object]]) -> Table:
    return Table(title, {name: name for name in header}, rows)


def format_entries() -> list[dict[str, Any]]:
    """Return what is known of each format: those of this library, then installed ones, by name.

    The entry ``origin`` is the distribution that provides it; ``cut`` is the unit that files are cut into, None if they
    are read whole; ``ranges`` says whether the bytes that it reads are known before, so that only these are fetched.
    """
    own = f"{PROGRAM} {version(PROGRAM)}"
    installed = {name: origin for name, origin in origins(ENTRY_POINT_GROUP).items() if name not in FORMATS}
    return [_entry(name, own) for name in FORMATS] + [_entry(name, origin) for name, origin in installed.items()]


def _entry(name: str, origin: str) -> dict[str, Any]:
    known: dict[str, Any] = {"name": name, "origin": origin, "suffixes": (), "cut": None, "pruning": None}
    known |= {"ranges": False, "counting": "", "needs": "", "error": ""}
    try:
        reader = reader_for(name)
    except ConfigError as error:  # the others can still be used
        return known | {"error": str(error)}
    traits = getattr(reader, "traits", Traits("?", "?", "?"))
    counting = traits.counted
    if isinstance(reader, ListCountingReader):
        counting += ", lists too"
    return known | {
        "suffixes": suffixes_of(reader),
        "cut": traits.cut,
        "pruning": traits.pruned,
        "ranges": isinstance(reader, RangedReader),
        "counting": counting,
        "needs": _missing(traits.needs),
    }


def _missing(package: str, guest: str = "") -> str:
    if guest and not has(guest):
        return f"a build with {GUESTS[guest].title}"
    if package and find_spec(package) is None:
        return package
    return ""


def _state(needs: str) -> str:
    if needs:
        return f"needs {needs}"
    return "ready"
