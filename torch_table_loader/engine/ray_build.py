"""Builds a row store over a Ray cluster: its tasks take chunks that nobody is at, as threads and ranks do elsewhere."""

from __future__ import annotations

import logging
import socket
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_table_loader.errors import ConfigError, MissingExtraError, StorageError, WorkerError
from torch_table_loader.store.build import done_chunks

if TYPE_CHECKING:
    from torch_table_loader.engine.row_store import StoreKeeper

_SECONDS_BETWEEN_LOOKS = 0.5


def build_over_ray(keeper: StoreKeeper, place: Path, address: str | None = None) -> dict[str, int]:
    """Build a store with a task on each CPU of a Ray cluster, or on as many as there are chunks.

    The table was planned here, once; the plan goes to the tasks. A task that is lost with its node is started again by
    Ray, and what it was at is taken over.

    Args:
        keeper: of the store.
        place: the store's folder; every node sees it.
        address: of the cluster; None for the one that Ray finds, or a new one on this machine.

    Returns:
        The number of chunks that each node built, by its host name and id.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: there is no cluster at the address.
        StorageError: a node does not see the folder, or the disk is full.
        WorkerError: Ray lost a task for good.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError(
            f"building over a Ray cluster needs Ray ({error}); pip install 'torch-table-loader[engines]'"
        ) from error
    built: Counter[str] = Counter()
    with _cluster(ray, address), _mark(place.parent) as mark, keeper.progress() as report:
        cpus = int(ray.cluster_resources().get("CPU", 1))
        share = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(_build_share)
        shared = ray.put(keeper)
        tasks = max(1, min(cpus, len(keeper.spec.chunk_rows)))
        waiting = [share.remote(shared, str(place), str(mark)) for _ in range(tasks)]
        while waiting:
            ready, waiting = ray.wait(waiting, timeout=_SECONDS_BETWEEN_LOOKS)
            if report is not None:
                report(len(done_chunks(place)))
            for node, count in _results(ray, ready):
                built[node] += count
    return dict(built)


def _build_share(keeper: StoreKeeper, place: str, mark: str) -> tuple[str, int]:
    """Build with one thread on a node of the cluster until the store is whole."""
    import ray

    node = f"{socket.gethostname()} ({ray.get_runtime_context().get_node_id()[:8]})"
    if not Path(mark).exists():
        raise StorageError(
            f"the Ray node {node} does not see {Path(mark).parent}; pass --store a folder that all nodes share"
        )
    return node, len(keeper.build_share(Path(place), threads=1))


def _results(ray: Any, ready: list[Any]) -> Iterator[tuple[str, int]]:
    """Fetch what tasks returned; what they raised is raised as it was there."""
    try:
        yield from ray.get(ready)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise WorkerError(
            f"Ray lost a task for good: {error}; run again, and the build goes on where it was"
        ) from error


@contextmanager
def _cluster(ray: Any, address: str | None) -> Iterator[None]:
    """Connect to a cluster, unless this process is part of one."""
    if ray.is_initialized():
        yield
        return
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except (ConnectionError, ValueError) as error:
        raise ConfigError(f"there is no Ray cluster at {address or 'the address that Ray knows'}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _mark(folder: Path) -> Iterator[Path]:
    """Keep a file in a folder, by which others tell that they see the same one."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / f".shared-{uuid.uuid4().hex}"
    mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


__all__ = ["build_over_ray"]
