"""``torch-table-loader formats``: the available formats and sources, their origin, and their features."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from torch_table_loader.cli.arguments import examples
from torch_table_loader.cli.printing import Table, show
from torch_table_loader.errors import ConfigError
from torch_table_loader.format_contracts import ListCountingReader, RangedReader, Traits
from torch_table_loader.plugins import origins
from torch_table_loader.read.compressed import CODECS
from torch_table_loader.read.formats import ENTRY_POINT_GROUP, FORMATS, TEXT_FORMATS, reader_for, suffixes_of

DISTRIBUTION = "torch-table-loader"


@dataclass(frozen=True, slots=True)
class FormatEntry:
    """Information about a format.

    Args:
        name: the value for ``format=``.
        origin: the distribution that provides it, and its version.
        cut: the unit that files are cut into; None if files are read whole.
        pruning: what row groups are pruned by; None if they are not pruned.
        ranges: whether it knows which bytes it reads, so that only these are fetched from an object store.
        counting: where the number of rows comes from.
    """

    name: str
    origin: str
    suffixes: tuple[str, ...] = ()
    cut: str | None = None
    pruning: str | None = None
    ranges: bool = False
    counting: str = ""
    needs: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """Information about a source.

    Args:
        name: the name of what it reads.
        origin: the distribution that provides it, and its version.
    """

    name: str
    origin: str
    call: str
    needs: str = ""


_SOURCES = (
    ("files of a path or URL", "StructuredDataset(path)", ""),
    ("rows in memory", "StructuredDataset.from_arrow(data)", ""),
    ("Iceberg tables", "IcebergDataset(table, catalog_config)", "pyiceberg"),
    ("Delta Lake tables", "DeltaDataset(table_uri)", "deltalake"),
    ("a Source of your own", "StructuredDataset.from_source(source)", ""),
)


def add_parser(commands: Any) -> list[argparse.ArgumentParser]:
    """Add this command to the main parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "formats",
        help="list formats and sources, where each comes from and what it can do",
        description="Lists the formats and sources of this library, and the formats that other distributions install.",
        epilog=examples("torch-table-loader formats", "torch-table-loader formats --json"),
    )
    parser.set_defaults(run=run)
    return [parser]


def run(typed: argparse.Namespace) -> None:
    """Print the formats and sources."""
    formats, sources = format_entries(), source_entries()
    said = {"formats": list(map(asdict, formats)), "sources": list(map(asdict, sources))}
    rows = [
        (
            each.name,
            " ".join(each.suffixes),
            each.cut or "nothing",
            each.pruning or "nothing",
            _yes(each.ranges),
            each.counting,
        )
        for each in formats
        if not each.error
    ]
    header = ("format", "names end with", "a file is cut into", "pruned by", "ranges", "rows known from")
    compressed = f"text ({', '.join(TEXT_FORMATS)}) may be compressed: {' '.join(CODECS)}"
    where = [(each.name, each.origin, _state(each.needs, each.error)) for each in formats]
    opened = [(each.name, each.origin, each.call, _state(each.needs, "")) for each in sources]
    show(
        typed,
        said,
        _table("formats", header, rows),
        compressed,
        _table("where formats come from", ("format", "distribution", "state"), where),
        _table("sources", ("source", "distribution", "opened by", "state"), opened),
    )


def _table(title: str, header: tuple[str, ...], rows: Sequence[Sequence[object]]) -> Table:
    return Table(title, {name: name for name in header}, rows)


def format_entries() -> list[FormatEntry]:
    """Return information about each format: those of this library, then installed ones, by name."""
    own = f"{DISTRIBUTION} {version(DISTRIBUTION)}"
    installed = {name: origin for name, origin in origins(ENTRY_POINT_GROUP).items() if name not in FORMATS}
    return [_entry(name, own) for name in FORMATS] + [_entry(name, origin) for name, origin in installed.items()]


def source_entries() -> list[SourceEntry]:
    """Return information about each source."""
    own = f"{DISTRIBUTION} {version(DISTRIBUTION)}"
    return [SourceEntry(name, own, call, _missing(needs)) for name, call, needs in _SOURCES]


def _entry(name: str, origin: str) -> FormatEntry:
    try:
        reader = reader_for(name)
    except ConfigError as error:  # the others can still be used
        return FormatEntry(name, origin, error=str(error))
    traits = getattr(reader, "traits", Traits("?", "?", "?"))
    return FormatEntry(
        name,
        origin,
        suffixes_of(reader),
        traits.cut,
        traits.pruned,
        isinstance(reader, RangedReader),
        traits.counted + (", lists too" if isinstance(reader, ListCountingReader) else ""),
        _missing(traits.needs),
    )


def _missing(package: str) -> str:
    return package if package and find_spec(package) is None else ""


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _state(needs: str, error: str) -> str:
    return error or (f"needs {needs}" if needs else "ready")
