"""The command line options that name a table, and those that are options of the loader, made from its own."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, get_args, get_origin, get_type_hints

from torch_table_loader.dataset import StructuredDataset, TableDataset
from torch_table_loader.delta import DeltaDataset
from torch_table_loader.engine.ray_cluster import RayCluster, ray_cluster
from torch_table_loader.errors import ConfigError
from torch_table_loader.iceberg import IcebergDataset
from torch_table_loader.options import LoaderOptions, defaults, meanings
from torch_table_loader.predicates.filter_text import all_of
from torch_table_loader.read.formats import format_names
from torch_table_loader.source.table_formats import format_of_folder


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


def rows_or_size(text: str) -> int | str:
    """Parse a number, or a size with a unit, which stays text.

    >>> rows_or_size("500"), rows_or_size("64MiB")
    (500, '64MiB')
    """
    return int(text) if text.isdecimal() else text


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


TABLE_FORMATS = ("iceberg", "delta")
"""Values of --format besides the formats of files."""

SNAPSHOTS = ("catalog", "table", "snapshot_id", "branch", "tag", "as_of")
"""The keywords that name a table of Iceberg or Delta Lake, and the snapshot to read."""

GROUPS = {
    "which table": ("path", "format", *SNAPSHOTS),
    "what is read of it": (
        *("columns", "filters", "storage_options", "on_error"),
        "plan_cache",
    ),
    "batches": (
        *("batch_size", "num_workers", "worker_type", "num_ranks", "even_ranks", "drop_last", "count_filtered"),
        *("shuffle", "shuffle_seed", "split_size", "split_strategy"),
    ),
    "form of columns": ("output_format", "nulls", "ragged", "strings", "unsupported"),
}
"""The keywords that commands take, under the titles of the help."""

OPTIONS = tuple(name for names in GROUPS.values() for name in names if name not in SNAPSHOTS)
"""The keywords of a dataset of files."""

OF_FILES = ("path", "format", "filters", "storage_options", "plan_cache")
"""The keywords of commands that read a table's files."""

_OWN: dict[str, dict[str, Any]] = {
    "path": {
        "flag": "path",
        "nargs": "*",
        "metavar": "PATH",
        "help": "a directory, glob or file, or several; a table's folder or metadata.json; with --catalog a table's "
        "name",
    },
    "format": {"metavar": "NAME", "help": "format of the files (default: from their names)"},
    "catalog": {"help": "the catalog of an Iceberg table: its name in .pyiceberg.yaml or the environment"},
    "table": {"help": "the Iceberg table's name in the catalog, such as db.t, in place of PATH"},
    "snapshot_id": {
        "type": int,
        "metavar": "N",
        "help": "snapshot of an Iceberg table, or version of a Delta Lake table (default: newest)",
    },
    "branch": {"help": "the newest snapshot of a branch of an Iceberg table"},
    "tag": {"help": "the snapshot that a tag of an Iceberg table names"},
    "as_of": {
        "metavar": "TIME",
        "help": "the snapshot that was current at a time, such as 2026-01-31T12:00:00+00:00",
    },
    "columns": {"action": "extend", "type": comma_separated, "metavar": "A,B"},
    "filters": {
        "flag": "--filter",
        "action": "append",
        "metavar": "TEXT",
        "help": 'such as "day >= 2026-01-03"; given more than once, all must hold',
    },
    "storage_options": {
        "flag": "--storage-option",
        "action": "append",
        "type": storage_option,
        "metavar": "NAME=TEXT",
        "help": "option of the file system: NAME=TEXT or NAME:=JSON; never printed",
    },
    "plan_cache": {"metavar": "DIR"},
    "num_workers": {"flag": "--workers", "help": "workers (lanes) of a rank"},
    "worker_type": {"choices": ["thread", "process"]},
    "num_ranks": {"flag": "--ranks", "choices": None, "metavar": "N", "help": "ranks of the job (default: 1)"},
    "even_ranks": {"help": "how to make ranks take equally many steps"},
    "count_filtered": {
        "flag": "--no-count",
        "action": "store_false",
        "help": "do not count the rows that pass a filter",
    },
    "shuffle": {"action": "store_true", "help": "permute the splits in each epoch"},
    "shuffle_seed": {"flag": "--seed"},
    "split_strategy": {"flag": "--strategy", "help": "name of an installed split strategy"},
    "nulls": {
        "action": "append",
        "type": null_fill,
        "metavar": "COLUMN=VALUE",
        "help": "what replaces a null: COLUMN=VALUE, once per column; or mask, for a validity tensor of each nullable "
        "column",
    },
    "ragged": {"help": "form of lists (default: nested)"},
    "strings": {"help": "form of strings"},
}
"""By keyword, what its type and its docstring do not say as a command line needs it."""


def flag_of(name: str) -> str:
    """Return the flag that sets a keyword.

    >>> flag_of("num_ranks"), flag_of("batch_size")
    ('--ranks', '--batch-size')
    """
    return str(_OWN.get(name, {}).get("flag", f"--{name.replace('_', '-')}"))


def _choices(kind: Any) -> list[str]:
    """Return the texts that a type allows, among others."""
    if get_origin(kind) is Literal:
        return [text for text in get_args(kind) if isinstance(text, str)]
    return list(dict.fromkeys(text for each in get_args(kind) for text in _choices(each)))


def _settings(name: str, kind: Any, meaning: str) -> dict[str, Any]:
    """Return what `argparse` must know of an option."""
    own, default = _OWN.get(name, {}), defaults().get(name)
    text = own.get("help") or re.split(r"; |\. ", meaning)[0].rstrip(".").replace("`", "")
    text = text[:1].lower() + text[1:] if text[1:2].islower() else text
    known = {kind, *get_args(kind)}
    settings: dict[str, Any] = {"help": text.replace("%", "%%")}
    if bool in known:
        settings["action"] = "store_true"
    elif "action" not in own:
        if isinstance(default, int | float | str) and "(default" not in text:
            settings["help"] += f" (default: {default})"
        number = next((each for each in (int, float) if each in known and str not in known), None)
        settings["metavar"] = "SIZE" if int in known and not number else "N" if number else "NAME"
        settings |= {"type": number or (rows_or_size if int in known else str)}
        settings |= {"choices": choices, "metavar": None} if (choices := _choices(kind)) else {}
    settings |= {key: value for key, value in own.items() if key not in ("flag", "help")}
    return settings | ({"dest": name, "default": argparse.SUPPRESS} if flag_of(name) != "path" else {})


def add_arguments(parser: argparse.ArgumentParser, keywords: Collection[str], *, beside: bool = False) -> None:
    """Add the options that name a table and set some keywords; options not given keep the library's defaults.

    Args:
        beside: whether another positional argument follows PATH, which is then required.
    """
    kinds, said = get_type_hints(LoaderOptions), meanings()
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        for name in names:
            if name in keywords or (name in SNAPSHOTS and not (beside and name == "table")):
                settings = _settings(name, kinds.get(name), said.get(name, ""))
                if name == "path" and beside:
                    settings["nargs"] = "+"
                if name == "format":  # installed ones too
                    formats = [*format_names(), *TABLE_FORMATS]
                    settings |= {"choices": formats, "help": f"{settings['help']}: {', '.join(formats)}"}
                group.add_argument(flag_of(name), **settings)


def loader_keywords(typed: argparse.Namespace) -> dict[str, Any]:
    """Turn parsed options into keyword arguments of `StructuredDataset`.

    Args:
        typed: the options, from a parser with `add_arguments`.

    Raises:
        ConfigError: a filter cannot be parsed.
    """
    given = {name: getattr(typed, name, None) for name in OPTIONS}
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


def asked_for(typed: argparse.Namespace, **own: Any) -> tuple[type[TableDataset], dict[str, Any]]:
    """Return the class of the dataset that was named, of files, of Iceberg or of Delta Lake, and its keywords.

    The kind is detected from a catalog or a table name, a metadata.json, or a folder with a table's own log.
    ``--format`` overrides it.

    Args:
        typed: the options, from a parser with `add_arguments`.
        own: keywords that the command itself sets, and that take precedence.

    Raises:
        ConfigError: no table was named, or two; or an option is for another kind of table.
    """
    keywords = {**loader_keywords(typed), **own}
    chosen = {name: getattr(typed, name) for name in SNAPSHOTS if hasattr(typed, name)}
    path = keywords.get("path")
    if (path is None) == ("table" not in chosen):
        raise ConfigError("name one table: PATH, or --table with the --catalog that has it")
    kind = _kind(keywords, chosen)
    if kind not in TABLE_FORMATS:
        if chosen:
            raise ConfigError(
                f"{flag_of(next(iter(chosen)))} is for Iceberg and Delta Lake tables, but this is a table of plain "
                "files; pass --catalog or --format, or leave it out"
            )
        return StructuredDataset, keywords
    for name in ("path", "format"):
        keywords.pop(name, None)
    if path is not None and not isinstance(path, str):
        raise ConfigError(f"expected the path of one table, got {len(path)} paths; name one")
    if kind == "iceberg":
        return IcebergDataset, keywords | _iceberg(path, chosen)
    return DeltaDataset, keywords | _delta(path, chosen)


def _kind(keywords: Mapping[str, Any], chosen: Mapping[str, Any]) -> str | None:
    """Return the format that was named, or that the path shows; None for the format of its files."""
    named, path = keywords.get("format"), keywords.get("path")
    if "catalog" in chosen or "table" in chosen:
        if named not in (None, "iceberg"):
            raise ConfigError(f"--catalog and --table name an Iceberg table, got --format {named}; leave --format out")
        return "iceberg"
    if named is not None or not isinstance(path, str):
        return named
    if path.endswith(".metadata.json"):
        return "iceberg"
    return format_of_folder(path, keywords.get("storage_options"))


def _iceberg(path: str | None, chosen: Mapping[str, Any]) -> dict[str, Any]:
    if "catalog" in chosen and "table" not in chosen:
        return {**chosen, "table": path}
    return dict(chosen) if path is None else {**chosen, "metadata_location": path}


def _delta(path: str | None, chosen: Mapping[str, Any]) -> dict[str, Any]:
    names = {"snapshot_id": "version", "as_of": "timestamp"}
    for name in chosen:
        if name not in names:
            raise ConfigError(f"{flag_of(name)} is for Iceberg tables, but this is a Delta Lake table; leave it out")
    return {"table_uri": path, **{names[name]: value for name, value in chosen.items()}}


def open_table(typed: argparse.Namespace, **own: Any) -> TableDataset:
    """Open the table that was named; see `asked_for`."""
    kind, keywords = asked_for(typed, **{"check_plan": False, **own})
    return kind(**keywords)


def add_cluster(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the options that name a cluster on which a command does its work."""
    parser.add_argument("--engine", choices=["ray"], help=what)
    address = "address of the Ray cluster (default: the one that Ray finds)"
    parser.add_argument("--address", metavar="HOST:PORT", help=address)


@contextmanager
def cluster_of(typed: argparse.Namespace) -> Iterator[RayCluster | None]:
    """Connect to the cluster that was asked for, if any.

    Raises:
        ConfigError: an address without an engine.
    """
    if typed.engine is not None:
        with ray_cluster(typed.address) as cluster:
            yield cluster
    elif typed.address is not None:
        raise ConfigError("--address names a Ray cluster; also pass --engine ray, or leave it out")
    else:
        yield None
