"""``torch-table-loader store``: build, list, verify and prune row stores.

A store is built by one process, by the ranks of a launcher, or on a Ray cluster.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_table_loader.cli.named_table import asked_for, cluster_of
from torch_table_loader.cli.terminal import number_of, show, width_of_output
from torch_table_loader.dataset import StructuredDataset, live_rows
from torch_table_loader.engine.machine import usable_cpus
from torch_table_loader.engine.rank_info import resolve_ranks
from torch_table_loader.engine.ray_cluster import RayCluster, build_over_ray
from torch_table_loader.engine.row_store import default_folder
from torch_table_loader.errors import ConfigError, StorageError, TableError
from torch_table_loader.fact_tables import Table, wrapped
from torch_table_loader.options import LoaderOptions
from torch_table_loader.read.formats import reader_by_suffix, reader_for
from torch_table_loader.source.listing import PathSource
from torch_table_loader.store.manifest import Manifest, check_store, read_manifest
from torch_table_loader.units import Size

if TYPE_CHECKING:
    from torch_table_loader.engine.row_store import RowStoreHandle

Keywords = Mapping[str, Any]

_PREFIX = "rows-"


def _is_url(typed: argparse.Namespace) -> bool:
    return typed.store is not None and "://" in typed.store


def _folder(typed: argparse.Namespace) -> Path:
    if _is_url(typed):
        raise ConfigError(
            f"list, verify and prune need a directory, got {typed.store!r}; run them on a local copy of it"
        )
    if typed.store is None:
        return default_folder()
    return Path(typed.store).expanduser().absolute()


def list_stores(typed: argparse.Namespace) -> None:
    """Print the stores of a folder."""
    rows: list[tuple[object, ...]] = []
    for place, manifest, fault in _stores(_folder(typed)):
        if manifest is None:
            rows.append((place.name, None, None, None, "damaged" if fault else "unfinished"))
        else:
            made = time.strftime("%Y-%m-%d %H:%M", time.localtime(manifest.made))
            rows.append((place.name, manifest.num_rows, Size(manifest.num_bytes), len(manifest.schema), made))
    header = {"store": "store", "rows": "rows", "bytes": "size", "columns": "columns", "made": "made"}
    table = Table(str(_folder(typed)), header, rows)
    show(typed, {"folder": str(_folder(typed)), "stores": table.records()}, table)


def verify(typed: argparse.Namespace) -> None:
    """Compare the checksums of whole stores."""
    faults, states = [], {}
    for place, manifest, fault in _stores(_folder(typed)):
        states[place.name] = state = _state_of(place, manifest, fault)
        if not typed.json:
            print(wrapped(f"{place.name}: {state}", width_of_output()), flush=True)
        if state.startswith("damaged"):
            faults.append(place.name)
    if typed.json:
        listed = [{"store": name, "state": state} for name, state in states.items()]
        show(typed, {"folder": str(_folder(typed)), "stores": listed})
    if faults:
        raise TableError(
            f"{number_of(len(faults), 'damaged row store')}: {', '.join(faults)}; `store prune --damaged` removes them"
        )


def prune(typed: argparse.Namespace) -> None:
    """Remove the stores that were named."""
    if not (typed.damaged or typed.unfinished or typed.older_than is not None or typed.name):
        raise ConfigError("prune needs --damaged, --unfinished, --older-than DAYS or --name NAME")
    removed = []
    for place, manifest, fault in _stores(_folder(typed)):
        damaged = typed.damaged and (fault or (manifest is not None and _fault_of(place, manifest)))
        left = typed.unfinished and manifest is None and not fault and not _is_going_on(place)
        old = typed.older_than is not None and manifest and time.time() - manifest.made > 86_400 * typed.older_than
        if damaged or left or old or place.name in typed.name:
            if place.is_symlink():
                place.unlink()
            else:
                shutil.rmtree(place)
            removed.append(place.name)
    parts = []
    if removed:
        parts.append("\n".join(f"removed {name}" for name in removed))
    show(typed, {"folder": str(_folder(typed)), "removed": removed}, *parts)


def _stores(folder: Path) -> Iterator[tuple[Path, Manifest | None, str]]:
    """Return each store, its manifest, and the error in the manifest, if any."""
    if not folder.is_dir():
        return
    for place in filter(Path.is_dir, sorted(folder.glob(f"{_PREFIX}*"))):
        try:
            yield place, read_manifest(place), ""
        except (TableError, StorageError) as error:
            yield place, None, str(error)


def _state_of(place: Path, manifest: Manifest | None, fault: str) -> str:
    if not fault:
        if manifest is None:
            return "unfinished"
        fault = _fault_of(place, manifest)
    if fault:
        return f"damaged: {fault}"
    return "whole"


def _fault_of(place: Path, manifest: Manifest) -> str:
    try:
        check_store(place, manifest, contents=True, threads=usable_cpus())
    except (TableError, StorageError) as error:
        return str(error)
    return ""


def _is_going_on(place: Path) -> bool:
    """Return whether a builder showed a sign of life in the last minutes."""
    newest = max((path.stat().st_mtime for path in (place / "leases").glob("*")), default=0.0)
    return time.time() - newest < 300


def build(typed: argparse.Namespace) -> None:
    """Build a store, and report how much of it each builder built."""
    # The rows of a rank are not part of a store; with drop_last no rank is warned of unequal steps.
    own = {"shuffle": "rows", "num_ranks": "auto", "drop_last": True, "check_plan": False, "output_format": "arrow"}
    own |= {"row_store": typed.store if _is_url(typed) else str(_folder(typed)), "show_progress": typed.progress}
    began, builders = time.perf_counter(), []
    with cluster_of(typed) as cluster:
        kind, keywords = asked_for(typed, **own)
        names = _names(keywords) if kind is StructuredDataset and "plan_cache" in keywords else []
        if cluster is None:
            _plan_share(keywords, _of_this_rank(names))
        else:
            builders = _plan_over(cluster, keywords, names)
        store = live_rows(kind(**keywords), "store build").store
        if cluster is not None:
            builders += _build_over(cluster, store)
    store.rows()
    assert store.place is not None  # noqa: S101 a folder was named
    manifest, seconds = read_manifest(store.place), time.perf_counter() - began
    value = dict.fromkeys(("rows", "bytes", "seconds", "chunks")) | {"store": store.spec.name, "builders": builders}
    if manifest is None:  # this machine keeps no copy of a store that another one built
        show(typed, value, f"{store.spec.name}: already exists")
        return
    value |= {"rows": manifest.num_rows, "bytes": manifest.num_bytes, "seconds": seconds, "chunks": len(manifest.parts)}
    if cluster is None:
        builders.append(f"this process built {len(store.built)} of {number_of(len(manifest.parts), 'chunk')}")
    first = f"{store.spec.name}: {number_of(manifest.num_rows, 'row')}, {Size(manifest.num_bytes)}, {seconds:.1f} s"
    show(typed, value, "\n  ".join([first, *builders]))


def _plan_share(keywords: Keywords, names: Sequence[str]) -> int:
    """Fill the plan cache with some of a table's files; return the number of files."""
    if names:
        StructuredDataset(**{**keywords, "files": names})
    return len(names)


def _names(keywords: Keywords) -> list[str]:
    """Return the names of a plain table's files."""
    name = keywords.get("format")
    source = PathSource.open(
        keywords["path"],
        None if name is None else reader_for(name),
        choose=reader_by_suffix,
        storage_options=keywords.get("storage_options"),
    )
    source.storage.close()
    return [file.name for file in source.files]


def _of_this_rank(names: list[str]) -> list[str]:
    """Return the names of the files that this rank plans first, while other ranks plan the others."""
    ranks = resolve_ranks(LoaderOptions(num_ranks="auto"))
    if ranks.num_ranks > 1:
        return names[ranks.rank :: ranks.num_ranks]
    return []


def _plan_over(cluster: RayCluster, keywords: Keywords, names: list[str]) -> list[str]:
    """Fill the plan cache on all nodes, if there is one; what it already has costs them little."""
    if not names:
        return []
    planned, tasks = Counter[str](), min(cluster.cpus, len(names))
    for node, count in cluster.run(_plan_share, [(keywords, names[part::tasks]) for part in range(tasks)]):
        planned[node] += count
    return [f"{node} planned {count} of {len(names)} files" for node, count in sorted(planned.items())]


def _build_over(cluster: RayCluster, store: RowStoreHandle) -> list[str]:
    if store.url is not None or store.place is None:
        raise ConfigError(
            f"--engine ray builds in a folder that all nodes share, got --store {store.url and store.url.shown!r}; "
            "pass --store DIR, and copy that folder to the URL"
        )
    if read_manifest(store.place) is not None:
        return ["it already existed"]
    built = build_over_ray(cluster, store, store.place)
    return [f"{node} built {count} of {len(store.spec.chunk_rows)} chunks" for node, count in sorted(built.items())]
