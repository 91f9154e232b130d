"""The command line options that are options of the loader: one table, from which parsers are built."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from torch_table_loader.column_options import StringLayout
from torch_table_loader.dataset import StructuredDataset, TableDataset
from torch_table_loader.delta import DeltaDataset
from torch_table_loader.errors import ConfigError
from torch_table_loader.iceberg import IcebergDataset
from torch_table_loader.options import DEFAULT_RETRY_SECONDS, EvenRanks, OnError, OutputFormat, WorkerType
from torch_table_loader.predicates.filter_text import all_of
from torch_table_loader.ragged import RaggedLayout
from torch_table_loader.read.formats import format_names
from torch_table_loader.source.table_formats import format_of_folder

if TYPE_CHECKING:
    from torch_table_loader.loader import TableLoader


@dataclass(frozen=True, slots=True)
class Argument:
    """A command line option, and the loader's keyword that it sets.

    Args:
        flag: the flag as typed; without dashes it is a positional argument.
    """

    flag: str
    keyword: str
    text: str
    settings: Mapping[str, Any] = field(default_factory=dict)


def comma_separated(text: str) -> list[str]:
    """Split a list of names.

    >>> comma_separated("label, day")
    ['label', 'day']
    """
    return [name.strip() for name in text.split(",") if name.strip()]


def storage_option(text: str) -> tuple[str, Any]:
    """Parse ``name=text`` or ``name:=json``. Errors do not show the value.

    >>> storage_option("region=eu-west-1"), storage_option("request_timeout:=10")
    (('region', 'eu-west-1'), ('request_timeout', 10))
    """
    name, equals, value = text.partition("=")
    if not equals or not name.rstrip(":"):
        raise argparse.ArgumentTypeError("expected NAME=TEXT or NAME:=JSON (the value is not shown)")
    if not name.endswith(":"):
        return name, value
    try:
        return name[:-1], json.loads(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{name[:-1]} must be JSON after := (the value is not shown)") from error


def null_fill(text: str) -> tuple[str, Any]:
    """Parse ``mask`` or ``column=value``; a value that is not JSON is text.

    >>> null_fill("age=-1"), null_fill("city=none"), null_fill("mask")
    (('age', -1), ('city', 'none'), ('', 'mask'))
    """
    name, equals, value = text.partition("=")
    if not equals and text == "mask":
        return "", text
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"expected mask or COLUMN=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


_EXAMPLES = "examples:"
_AT_SPACES: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
_WHOLE = {"type": int, "metavar": "N"}
_TEXT = {"metavar": "NAME"}
_SWITCH = {"action": "store_true"}
_LIST = {"action": "extend", "type": comma_separated, "metavar": "A,B"}
_MANY = {"action": "append", "metavar": "TEXT"}

TABLE = (
    Argument(
        "path",
        "path",
        "a directory, glob or file, or several; a table's folder or metadata.json; with --catalog a table's name",
        {"nargs": "+", "metavar": "PATH"},
    ),
    Argument("--format", "format", "format of the files (default: from their names)"),
    Argument("--columns", "columns", "what to deliver, in this order (default: all)", _LIST),
    Argument("--filter", "filters", 'such as "day >= 2026-01-03"; given more than once, all must hold', _MANY),
    Argument("--partitioning", "partitioning", "how paths hold columns: key=value folders", {"choices": ["hive"]}),
    Argument(
        "--storage-option",
        "storage_options",
        "option of the file system: NAME=TEXT or NAME:=JSON; never printed",
        {"action": "append", "type": storage_option, "metavar": "NAME=TEXT"},
    ),
    Argument(
        "--retry-seconds",
        "retry_seconds",
        "how long to retry a request that fails (default: 120)",
        {"type": float, "metavar": "S"},
    ),
    Argument("--raw-files", "raw_files", "read an Iceberg, Delta Lake or Hudi table's files as they are", _SWITCH),
    Argument("--on-error", "on_error", "skip: leave damaged parts out, and warn", {"choices": get_args(OnError)}),
    Argument("--plan-cache", "plan_cache", "a directory that keeps footers and counts", {"metavar": "DIR"}),
    Argument("--batch-size", "batch_size", "rows per batch (default: 1024)", _WHOLE),
    Argument("--workers", "num_workers", "workers (lanes) per rank", _WHOLE),
    Argument("--worker-type", "worker_type", "threads or processes", {"choices": get_args(WorkerType)}),
    Argument("--ranks", "num_ranks", "ranks in the job (default: 1)", _WHOLE),
    Argument("--shuffle", "shuffle", "permute the splits each epoch", _SWITCH),
    Argument("--seed", "shuffle_seed", "key of the permutations (default: 42)", _WHOLE),
    Argument("--split-bytes", "split_bytes", "target size of a split, such as 128MiB", {"metavar": "SIZE"}),
    Argument("--split-rows", "split_rows", "target rows of a split", _WHOLE),
    Argument("--strategy", "split_strategy", "name of an installed split strategy", _TEXT),
    Argument(
        "--even-ranks", "even_ranks", "how to give all ranks equally many steps", {"choices": get_args(EvenRanks)}
    ),
    Argument("--drop-last", "drop_last", "drop a short last batch", _SWITCH),
    Argument("--no-count", "count_filtered", "do not count the rows that pass a filter", {"action": "store_false"}),
    Argument(
        "--output-format", "output_format", "what batches are (default: torch)", {"choices": get_args(OutputFormat)}
    ),
    Argument(
        "--nulls",
        "nulls",
        "what replaces a null: COLUMN=VALUE, once per column; or mask, for a validity tensor of each nullable column",
        {"action": "append", "type": null_fill, "metavar": "COLUMN=VALUE"},
    ),
    Argument("--ragged", "ragged", "how lists are delivered (default: nested)", {"choices": get_args(RaggedLayout)}),
    Argument("--strings", "strings", "how strings are delivered (default: list)", {"choices": get_args(StringLayout)}),
    Argument("--decimals", "decimals", "deliver decimals as doubles", {"choices": ["float64"]}),
    Argument(
        "--unsupported", "unsupported", "deliver types without a tensor form as Python values", {"choices": ["list"]}
    ),
)


CHOSEN = (
    Argument(
        "--catalog", "catalog", "the catalog of an Iceberg table: its name in .pyiceberg.yaml or the environment", _TEXT
    ),
    Argument("--table", "table", "the Iceberg table's name in the catalog, such as db.t, in place of PATH", _TEXT),
    Argument(
        "--snapshot-id",
        "snapshot_id",
        "snapshot of an Iceberg table, or version of a Delta Lake table (default: newest)",
        _WHOLE,
    ),
    Argument("--branch", "branch", "the newest snapshot of a branch of an Iceberg table", _TEXT),
    Argument("--tag", "tag", "the snapshot that a tag of an Iceberg table names", _TEXT),
    Argument(
        "--as-of",
        "as_of",
        "the snapshot that was current at a time, such as 2026-01-31T12:00:00+00:00",
        {"metavar": "TIME"},
    ),
)
"""Options that name a table of Iceberg or Delta Lake, and the snapshot to read."""

TABLE_FORMATS = ("iceberg", "delta")
"""Values of --format besides the formats of files."""

OF_FILES = ("path", "format", "filters", "partitioning", "storage_options", "retry_seconds", "plan_cache", "raw_files")
"""The keywords of commands that read a table's files."""


def add_arguments(parser: argparse.ArgumentParser, keywords: Iterable[str], *, beside: bool = False) -> None:
    """Add the options that name a table and set some keywords; options not given keep the library's defaults.

    Args:
        beside: whether another positional argument follows PATH, which is then required.
    """
    wanted = set(keywords) | {argument.keyword for argument in CHOSEN if not (beside and argument.keyword == "table")}
    for argument in (*TABLE, *CHOSEN):
        if argument.keyword in wanted:
            settings: dict[str, Any] = {"help": argument.text, **argument.settings}
            if argument.keyword == "format":
                names = [*format_names(), *TABLE_FORMATS]
                settings |= {"choices": names, "metavar": "NAME", "help": f"{argument.text}: {', '.join(names)}"}
            if argument.keyword == "path" and not beside:
                settings["nargs"] = "*"
            if argument.flag.startswith("-"):
                settings |= {"dest": argument.keyword, "default": argparse.SUPPRESS}
            parser.add_argument(argument.flag, **settings)


def examples(*lines: str) -> str:
    """Return the end of a command's help, which `Help` does not wrap; long lines continue as in a shell."""
    return "\n  ".join([_EXAMPLES, *(" \\\n      ".join(textwrap.wrap(line, 72, **_AT_SPACES)) for line in lines)])


class Help(argparse.HelpFormatter):
    """A help formatter that wraps all text except examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(_EXAMPLES) else super()._fill_text(text, width, indent)


def loader_keywords(typed: argparse.Namespace) -> dict[str, Any]:
    """Turn parsed options into keyword arguments of `StructuredDataset`.

    Args:
        typed: the options, from a parser with `add_arguments`.

    Raises:
        ConfigError: a filter cannot be parsed.
    """
    given = {argument.keyword: getattr(typed, argument.keyword, None) for argument in TABLE}
    keywords = {name: value for name, value in given.items() if value is not None}
    if len(path := keywords.pop("path", [])):
        keywords["path"] = path[0] if len(path) == 1 else path
    if "storage_options" in keywords:
        keywords["storage_options"] = dict(keywords["storage_options"])
    if "nulls" in keywords:
        keywords["nulls"] = _nulls(keywords["nulls"])
    if "filters" in keywords:
        keywords["filters"] = all_of(keywords["filters"])
    return keywords


def _nulls(given: list[tuple[str, Any]]) -> Any:
    fills = dict(given)
    if "" not in fills:
        return fills
    if len(fills) > 1:
        raise ConfigError("--nulls mask and --nulls COLUMN=VALUE exclude each other; leave one of them out")
    return fills[""]


@dataclass(frozen=True, slots=True)
class Asked:
    """The requested dataset and its options."""

    kind: type[TableDataset]
    keywords: dict[str, Any]

    @property
    def of_files(self) -> bool:
        """Whether it is a table of plain files."""
        return self.kind is StructuredDataset


def asked_for(typed: argparse.Namespace, **own: Any) -> Asked:
    """Return the dataset that was named: of files, of Iceberg or of Delta Lake.

    The kind is detected from a catalog or a table name, a metadata.json, or a folder with a table's own log.
    ``--format`` overrides it, and ``--raw-files`` reads the files.

    Args:
        typed: the options, from a parser with `add_arguments`.
        own: keywords that the command itself sets, and that take precedence.

    Raises:
        ConfigError: no table was named, or two; or an option is for another kind of table.
    """
    keywords = {**loader_keywords(typed), **own}
    chosen = {each.keyword: getattr(typed, each.keyword) for each in CHOSEN if hasattr(typed, each.keyword)}
    path = keywords.get("path")
    if (path is None) == ("table" not in chosen):
        raise ConfigError("name one table: PATH, or --table with the --catalog that has it")
    kind = _kind(keywords, chosen)
    if kind not in TABLE_FORMATS:
        if chosen:
            raise ConfigError(
                f"{_flag(next(iter(chosen)))} is for Iceberg and Delta Lake tables, but this is a table of plain "
                "files; pass --catalog or --format, or leave it out"
            )
        return Asked(StructuredDataset, keywords)
    for name in ("path", "format"):
        keywords.pop(name, None)
    if path is not None and not isinstance(path, str):
        raise ConfigError(f"expected the path of one table, got {len(path)} paths; name one")
    if kind == "iceberg":
        return Asked(IcebergDataset, keywords | _iceberg(path, chosen))
    return Asked(DeltaDataset, keywords | _delta(path, chosen))


def _kind(keywords: Mapping[str, Any], chosen: Mapping[str, Any]) -> str | None:
    """Return the format that was named, or that the path shows; None for the format of its files."""
    named, path = keywords.get("format"), keywords.get("path")
    if "catalog" in chosen or "table" in chosen:
        if named not in (None, "iceberg"):
            raise ConfigError(f"--catalog and --table name an Iceberg table, got --format {named}; leave --format out")
        return "iceberg"
    if named is not None or keywords.get("raw_files") or not isinstance(path, str):
        return named
    if path.endswith(".metadata.json"):
        return "iceberg"
    options, seconds = keywords.get("storage_options"), keywords.get("retry_seconds", DEFAULT_RETRY_SECONDS)
    return format_of_folder(path, options, seconds)


def _iceberg(path: str | None, chosen: Mapping[str, Any]) -> dict[str, Any]:
    if "catalog" in chosen and "table" not in chosen:
        return {**chosen, "table": path}
    return dict(chosen) if path is None else {**chosen, "metadata_location": path}


def _delta(path: str | None, chosen: Mapping[str, Any]) -> dict[str, Any]:
    names = {"snapshot_id": "version", "as_of": "timestamp"}
    for name in chosen:
        if name not in names:
            raise ConfigError(f"{_flag(name)} is for Iceberg tables, but this is a Delta Lake table; leave it out")
    return {"table_uri": path, **{names[name]: value for name, value in chosen.items()}}


def _flag(keyword: str) -> str:
    return next(argument.flag for argument in CHOSEN if argument.keyword == keyword)


def open_table(typed: argparse.Namespace, **own: Any) -> TableDataset:
    """Open the table that was named; see `asked_for`."""
    asked = asked_for(typed, **{"check_plan": False, **own})
    return asked.kind(**asked.keywords)


def open_loader(typed: argparse.Namespace, **own: Any) -> tuple[TableLoader, TableDataset]:
    """Open the table that was named, and create its loader; see `asked_for`."""
    asked = asked_for(typed, **{"check_plan": False, **own})
    return asked.kind.create_dataloader(**asked.keywords)
