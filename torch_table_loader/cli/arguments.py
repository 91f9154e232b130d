"""The options of the command line that are options of the loader: one table, from which parsers are made."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from torch_table_loader.dataset import StructuredDataset
from torch_table_loader.errors import ConfigError
from torch_table_loader.options import EvenRanks, OnError, OutputFormat, StringLayout, WorkerType
from torch_table_loader.ragged import RaggedLayout
from torch_table_loader.read.filter_text import all_of
from torch_table_loader.read.formats import format_names

if TYPE_CHECKING:
    from torch_table_loader.loader import TableLoader


@dataclass(frozen=True, slots=True)
class Argument:
    """One command line option and the loader's keyword that it gives.

    Args:
        flag: as it is typed; without dashes it is a positional argument.
        keyword: of `StructuredDataset`.
        text: what it does.
        settings: for `add_argument`.
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
    """Read ``name=text`` or ``name:=json``. Errors do not show the value.

    >>> storage_option("region=eu-west-1"), storage_option("request_timeout:=10")
    (('region', 'eu-west-1'), ('request_timeout', 10))
    """
    name, equals, value = text.partition("=")
    if not equals or not name.rstrip(":"):
        raise argparse.ArgumentTypeError("must read NAME=TEXT or NAME:=JSON (the value is not shown)")
    if not name.endswith(":"):
        return name, value
    try:
        return name[:-1], json.loads(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{name[:-1]} must be JSON behind := (the value is not shown)") from error


def null_fill(text: str) -> tuple[str, Any]:
    """Read ``mask`` or ``column=value``; a value that is no JSON is text.

    >>> null_fill("age=-1"), null_fill("city=none"), null_fill("mask")
    (('age', -1), ('city', 'none'), ('', 'mask'))
    """
    name, equals, value = text.partition("=")
    if not equals and text == "mask":
        return "", text
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"must read mask or COLUMN=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


_WHOLE = {"type": int, "metavar": "N"}
_TEXT = {"metavar": "NAME"}
_SWITCH = {"action": "store_true"}
_LIST = {"action": "extend", "type": comma_separated, "metavar": "A,B"}
_MANY = {"action": "append", "metavar": "TEXT"}

TABLE = (
    Argument("path", "path", "a directory, glob or file, or several of them", {"nargs": "+", "metavar": "PATH"}),
    Argument("--format", "format", "of the files (default: what their names end with)"),
    Argument("--columns", "columns", "what to deliver, in this order (default: all)", _LIST),
    Argument("--filter", "filters", 'such as "day >= 2026-01-03"; given more than once, all must hold', _MANY),
    Argument("--partitioning", "partitioning", "how paths carry columns: key=value", {"choices": ["hive"]}),
    Argument(
        "--storage-option",
        "storage_options",
        "for the file system: NAME=TEXT or NAME:=JSON; never printed",
        {"action": "append", "type": storage_option, "metavar": "NAME=TEXT"},
    ),
    Argument(
        "--retry-seconds",
        "retry_seconds",
        "how long to try a request that the store does not serve (default: 120)",
        {"type": float, "metavar": "S"},
    ),
    Argument("--raw-files", "raw_files", "read an Iceberg, Delta Lake or Hudi table's files as they are", _SWITCH),
    Argument("--on-error", "on_error", "skip: leave out what is damaged, and say so", {"choices": get_args(OnError)}),
    Argument("--plan-cache", "plan_cache", "a directory that keeps footers and counts", {"metavar": "DIR"}),
    Argument("--batch-size", "batch_size", "rows of a batch (default: 1024)", _WHOLE),
    Argument("--workers", "num_workers", "workers (lanes) of a rank", _WHOLE),
    Argument("--worker-type", "worker_type", "threads or processes", {"choices": get_args(WorkerType)}),
    Argument("--ranks", "num_ranks", "ranks of the job (default: 1)", _WHOLE),
    Argument("--shuffle", "shuffle", "permute the splits each epoch", _SWITCH),
    Argument("--seed", "shuffle_seed", "key of the permutations (default: 42)", _WHOLE),
    Argument("--split-bytes", "split_bytes", "target size of a split, such as 128MiB", {"metavar": "SIZE"}),
    Argument("--split-rows", "split_rows", "target rows of a split", _WHOLE),
    Argument("--strategy", "split_strategy", "name of an installed split strategy", _TEXT),
    Argument("--even-ranks", "even_ranks", "how ranks take equally many steps", {"choices": get_args(EvenRanks)}),
    Argument("--drop-last", "drop_last", "drop a short last batch", _SWITCH),
    Argument("--no-count", "count_filtered", "do not count the rows that pass a filter", {"action": "store_false"}),
    Argument(
        "--output-format", "output_format", "what batches are (default: torch)", {"choices": get_args(OutputFormat)}
    ),
    Argument(
        "--nulls",
        "nulls",
        "what a null becomes: COLUMN=VALUE, as often as needed; or mask, for a validity tensor of each nullable column",
        {"action": "append", "type": null_fill, "metavar": "COLUMN=VALUE"},
    ),
    Argument("--ragged", "ragged", "how lists come (default: nested)", {"choices": get_args(RaggedLayout)}),
    Argument("--strings", "strings", "how strings come (default: list)", {"choices": get_args(StringLayout)}),
    Argument("--decimals", "decimals", "take decimals as doubles", {"choices": ["float64"]}),
)


OF_FILES = ("path", "format", "filters", "partitioning", "storage_options", "retry_seconds", "plan_cache", "raw_files")
"""The keywords of commands that read a table's files."""


def add_arguments(parser: argparse.ArgumentParser, keywords: Iterable[str]) -> None:
    """Add the options that give some keywords; what is not typed leaves the library's own default.

    Args:
        parser: of a command.
        keywords: of `StructuredDataset`.
    """
    wanted = set(keywords)
    for argument in TABLE:
        if argument.keyword in wanted:
            settings: dict[str, Any] = {"help": argument.text, **argument.settings}
            if argument.keyword == "format":
                settings["choices"] = format_names()
            if argument.flag.startswith("-"):
                settings |= {"dest": argument.keyword, "default": argparse.SUPPRESS}
            parser.add_argument(argument.flag, **settings)


def loader_keywords(typed: argparse.Namespace) -> dict[str, Any]:
    """Turn what was typed into keyword arguments of `StructuredDataset`.

    Args:
        typed: what a parser with `add_arguments` gave.

    Raises:
        ConfigError: a filter that cannot be read.
    """
    given = {argument.keyword: getattr(typed, argument.keyword, None) for argument in TABLE}
    keywords = {name: value for name, value in given.items() if value is not None}
    if len(keywords["path"]) == 1:
        keywords["path"] = keywords["path"][0]
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


def open_loader(typed: argparse.Namespace, **own: Any) -> tuple[TableLoader, StructuredDataset]:
    """Open the table that was named.

    Args:
        typed: what a parser with `add_arguments` gave.
        own: keywords that the command sets by itself, and that win.
    """
    return StructuredDataset.create_dataloader(**{**loader_keywords(typed), "check_plan": False, **own})
