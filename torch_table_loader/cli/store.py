"""``torch-table-loader store``: build, list, verify and prune row stores."""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_table_loader.cli.arguments import add_arguments
from torch_table_loader.cli.build import add_builder_arguments, build_store
from torch_table_loader.cli.tables import render
from torch_table_loader.engine.machine import usable_cpus
from torch_table_loader.engine.row_store import default_folder
from torch_table_loader.errors import ConfigError, StorageError, TableError
from torch_table_loader.store.manifest import Manifest, check_store, read_manifest

_KEYWORDS = ("path", "format", "columns", "filters", "partitioning", "storage_options", "plan_cache", "raw_files")
_PREFIX = "rows-"


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser("store", help="build, list, verify and prune row stores")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    build = actions.add_parser("build", help="build the store of a table, which later runs then open")
    add_arguments(build, _KEYWORDS)
    add_builder_arguments(build)
    listing = actions.add_parser("list", help="list the stores of a folder")
    verify = actions.add_parser("verify", help="read whole stores and compare their checksums")
    prune = actions.add_parser("prune", help="remove stores")
    prune.add_argument("--damaged", action="store_true", help="those that are damaged")
    prune.add_argument("--unfinished", action="store_true", help="those whose build was left, and is not going on")
    prune.add_argument("--older-than", type=float, metavar="DAYS", help="those that were finished so long ago")
    prune.add_argument("--name", action="append", default=[], metavar="NAME", help="those of this name")
    for action, run in ((build, _build), (listing, _list), (verify, _verify), (prune, _prune)):
        action.add_argument(
            "--store", metavar="DIR", help="the folder of stores, for build also a URL (default: the cache directory)"
        )
        action.set_defaults(run=run)
    return parser


def _is_url(typed: argparse.Namespace) -> bool:
    return typed.store is not None and "://" in typed.store


def _folder(typed: argparse.Namespace) -> Path:
    if _is_url(typed):
        raise ConfigError(f"list, verify and prune read a directory, got {typed.store!r}; run them where it is one")
    return default_folder() if typed.store is None else Path(typed.store).expanduser().absolute()


def _build(typed: argparse.Namespace) -> None:
    build_store(typed, typed.store if _is_url(typed) else str(_folder(typed)))


def _list(typed: argparse.Namespace) -> None:
    rows = []
    for place, manifest, fault in _stores(_folder(typed)):
        if manifest is None:
            rows.append([place.name, None, None, 0, "damaged" if fault else "unfinished"])
        else:
            made = time.strftime("%Y-%m-%d %H:%M", time.localtime(manifest.made))
            rows.append([place.name, manifest.num_rows, manifest.num_bytes, len(manifest.schema), made])
    print(render(str(_folder(typed)), ["store", "rows", "bytes", "columns", "made"], rows))


def _verify(typed: argparse.Namespace) -> None:
    faults = []
    for place, manifest, fault in _stores(_folder(typed)):
        found = fault or (None if manifest is None else _fault_of(place, manifest))
        state = f"damaged: {found}" if found else "unfinished" if manifest is None else "whole"
        print(f"{place.name}: {state}")
        faults += [place.name] if found else []
    if faults:
        raise TableError(f"{len(faults)} damaged row stores: {', '.join(faults)}; `store prune --damaged` removes them")


def _prune(typed: argparse.Namespace) -> None:
    if not (typed.damaged or typed.unfinished or typed.older_than is not None or typed.name):
        raise ConfigError("prune wants --damaged, --unfinished, --older-than DAYS or --name NAME")
    for place, manifest, fault in _stores(_folder(typed)):
        damaged = typed.damaged and (fault or (manifest is not None and _fault_of(place, manifest)))
        left = typed.unfinished and manifest is None and not fault and not _is_going_on(place)
        old = typed.older_than is not None and manifest and time.time() - manifest.made > 86_400 * typed.older_than
        if damaged or left or old or place.name in typed.name:
            if place.is_symlink():
                place.unlink()
            else:
                shutil.rmtree(place)
            print(f"removed {place.name}")


def _stores(folder: Path) -> Iterator[tuple[Path, Manifest | None, str]]:
    """Return each store, its manifest, and what is wrong with that."""
    places = sorted(folder.glob(f"{_PREFIX}*")) if folder.is_dir() else []
    for place in filter(Path.is_dir, places):
        try:
            yield place, read_manifest(place), ""
        except (TableError, StorageError) as error:
            yield place, None, str(error)


def _fault_of(place: Path, manifest: Manifest) -> str:
    try:
        check_store(place, manifest, contents=True, threads=usable_cpus())
    except (TableError, StorageError) as error:
        return str(error)
    return ""


def _is_going_on(place: Path) -> bool:
    """Return whether a builder gave a sign of life in the last minutes."""
    newest = max((path.stat().st_mtime for path in (place / "leases").glob("*")), default=0.0)
    return time.time() - newest < 300
