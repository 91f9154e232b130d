"""The command line options that name a table, and those that are options of the loader, made from its own."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin, get_type_hints

from torch_table_loader.errors import ConfigError
from torch_table_loader.options import EvenRanks, LoaderOptions, defaults


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
    if text.isdecimal():
        return int(text)
    return text


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


ORDERS = ("splits", "mixed", "rows")
"""What --shuffle takes; without one it is True."""


def order(text: str) -> bool | str:
    """Parse what follows ``--shuffle``.

    >>> order("rows"), order("true")
    ('rows', True)
    """
    if text == "true":
        return True
    if text not in ORDERS:
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(ORDERS)}, got {text!r}")
    return text


def with_order(words: Sequence[str]) -> list[str]:
    """Return the words of a command line so that what follows ``--shuffle``, and is no order, is not its value.

    >>> with_order(["plan", "--shuffle", "clicks"]), with_order(["plan", "clicks", "--shuffle", "rows"])
    (['plan', '--shuffle=true', 'clicks'], ['plan', 'clicks', '--shuffle', 'rows'])
    """
    pairs = pairwise([*words, ""])
    return ["--shuffle=true" if word == "--shuffle" and after not in ORDERS else word for word, after in pairs]


def evening(text: str) -> bool | str:
    """Parse what follows ``--even-ranks``.

    >>> evening("balance"), evening("no")
    ('balance', False)
    """
    if text != "no":
        return text
    return False


SNAPSHOTS = ("catalog", "table", "snapshot_id", "branch", "tag", "as_of")
"""The keywords that name a table of Iceberg or Delta Lake, and the snapshot to read."""

GROUPS: dict[str, dict[str, dict[str, Any]]] = {
    "which table": {
        "path": {
            "flag": "path",
            "nargs": "*",
            "metavar": "PATH",
            "help": "files, folder or metadata.json; or name in --catalog",
        },
        "format": {"metavar": "NAME", "help": "iceberg, delta, or of files (default: by their names)"},
        "catalog": {"metavar": "NAME", "help": "Iceberg catalog, as pyiceberg is configured"},
        "table": {"metavar": "NAME", "help": "in the catalog, such as db.t, in place of PATH"},
        "snapshot_id": {"type": int, "metavar": "N", "help": "Iceberg snapshot or Delta version (default: newest)"},
        "branch": {"metavar": "NAME", "help": "newest snapshot of an Iceberg branch"},
        "tag": {"metavar": "NAME", "help": "snapshot of an Iceberg tag"},
        "as_of": {"metavar": "TIME", "help": "snapshot of a time: 2026-01-31T12:00:00+00:00"},
    },
    "what is read of it": {
        "columns": {"action": "extend", "type": comma_separated, "metavar": "A,B", "help": "columns, in this order"},
        "filters": {
            "flag": "--filter",
            "action": "append",
            "metavar": "TEXT",
            "help": 'such as "day >= 2026-01-03"; of several, all hold',
        },
        "storage_options": {
            "flag": "--storage-option",
            "action": "append",
            "type": storage_option,
            "metavar": "NAME=TEXT",
            "help": "for the file system; or NAME:=JSON; never printed",
        },
        "on_error": {"metavar": "HOW", "help": "raise, or skip to leave damage out"},
        "plan_cache": {"metavar": "DIR", "help": "folder that keeps footers, counts and plans"},
    },
    "order and batches": {
        "batch_size": {"help": "rows per batch of a rank"},
        "shuffle": {
            "action": "store",
            "nargs": "?",
            "const": True,
            "type": order,
            "metavar": "ORDER",
            "help": "in each epoch: splits (without a word too), mixed or rows",
        },
        "shuffle_seed": {"help": "key of every permutation"},
        "drop_last": {"help": "leave out a rank's last batch if it is short"},
        "split_size": {"help": "of a split: rows, or bytes such as 128MiB"},
        "split_strategy": {"help": "name of an installed split strategy"},
        "count_filtered": {
            "action": argparse.BooleanOptionalAction,
            "help": "whether to count the rows that pass a filter (default: yes)",
        },
        "num_workers": {"help": "workers (lanes) of a rank (default: 4)"},
        "worker_type": {"metavar": "KIND", "choices": ["thread", "process"], "help": "thread or process"},
        "num_ranks": {"choices": None, "metavar": "N", "help": "ranks of the job (default: 1)"},
        "even_ranks": {
            "type": evening,
            "choices": [*get_args(EvenRanks), False],
            "metavar": "HOW",
            "help": "to equally many steps: balance (the default), drop or pad; or no",
        },
    },
    "form of columns": {
        "output_format": {"metavar": "NAME", "help": "torch, numpy, arrow or dict"},
        "nulls": {
            "action": "append",
            "type": null_fill,
            "metavar": "COLUMN=VALUE",
            "help": "value for a column's nulls; or mask",
        },
        "ragged": {"metavar": "FORM", "help": "of lists: nested, pad or offsets"},
        "strings": {"metavar": "FORM", "help": "of strings: list or codes"},
        "unsupported": {"metavar": "FORM", "help": "of columns without tensor form: list or float64"},
    },
}
"""By the titles of the help, the keywords that commands take, and how a command line takes each."""

_OWN = {name: own for group in GROUPS.values() for name, own in group.items()}

OPTIONS = tuple(name for name in _OWN if name not in SNAPSHOTS)
"""The keywords of a dataset of files."""

OF_FILES = ("path", "format", "filters", "storage_options", "plan_cache")
"""The keywords of commands that read a table's files."""


def flag_of(name: str) -> str:
    """Return the flag that sets a keyword.

    >>> flag_of("num_ranks"), flag_of("batch_size")
    ('--num-ranks', '--batch-size')
    """
    return str(_OWN.get(name, {}).get("flag", f"--{name.replace('_', '-')}"))


def _choices(kind: Any) -> list[str]:
    """Return the texts that a type allows, among others."""
    if get_origin(kind) is Literal:
        return [text for text in get_args(kind) if isinstance(text, str)]
    return list(dict.fromkeys(text for each in get_args(kind) for text in _choices(each)))


def _settings(name: str, kind: Any) -> dict[str, Any]:
    """Return what `argparse` must know of an option."""
    own, default, known = _OWN[name], defaults().get(name), {kind, *get_args(kind)}
    settings: dict[str, Any] = {"help": own["help"].replace("%", "%%")}
    if bool in known:
        settings["action"] = "store_true"
    elif "action" not in own:
        if isinstance(default, int | str) and "(default" not in own["help"]:
            settings["help"] += f" (default: {default})"
        settings["metavar"], settings["type"] = _taken_as(known)
        if choices := _choices(kind):
            settings["choices"] = choices
    settings |= {key: value for key, value in own.items() if key not in ("flag", "help")}
    if flag_of(name) != "path":
        settings |= {"dest": name, "default": argparse.SUPPRESS}
    return settings


def _taken_as(known: Collection[Any]) -> tuple[str, Callable[[str], Any]]:
    """Return what help calls the value of an option of some types, and what reads it."""
    if int not in known:
        return "NAME", str
    if str in known:
        return "SIZE", rows_or_size
    return "N", int


def add_arguments(parser: argparse.ArgumentParser, keywords: Collection[str], *, beside: bool = False) -> None:
    """Add the options that name a table and set some keywords; options not given keep the library's defaults.

    PATH is required where another positional argument follows it (`beside`).
    """
    kinds = get_type_hints(LoaderOptions)
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        for name in names:
            if name in keywords or (name in SNAPSHOTS and not (beside and name == "table")):
                settings = _settings(name, kinds.get(name))
                if name == "path" and beside:
                    settings["nargs"] = "+"
                group.add_argument(flag_of(name), **settings)


def loader_keywords(typed: argparse.Namespace) -> dict[str, Any]:
    """Turn parsed options into keyword arguments of `StructuredDataset`."""
    given = {name: getattr(typed, name, None) for name in OPTIONS}
    keywords = {name: value for name, value in given.items() if value is not None}
    if len(path := keywords.pop("path", [])):
        keywords["path"] = path[0] if len(path) == 1 else path
    if "storage_options" in keywords:
        keywords["storage_options"] = dict(keywords["storage_options"])
    if "nulls" in keywords:
        keywords["nulls"] = _nulls(keywords["nulls"])
    if "filters" in keywords:
        from torch_table_loader.predicates.filter_text import all_of

        keywords["filters"] = all_of(keywords["filters"])
    return keywords


def _nulls(given: list[tuple[str, Any]]) -> Any:
    fills = dict(given)
    if "" not in fills:
        return fills
    if len(fills) > 1:
        raise ConfigError("--nulls mask and --nulls COLUMN=VALUE exclude each other; leave one of them out")
    return fills[""]
