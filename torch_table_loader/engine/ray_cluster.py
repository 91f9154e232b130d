"""Spreads work over a Ray cluster: planning by files, and building a row store by its chunks."""

from __future__ import annotations

import logging
import socket
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch_table_loader.errors import ConfigError, MissingExtraError, StorageError, WorkerError
from torch_table_loader.store.builder import done_chunks

if TYPE_CHECKING:
    from torch_table_loader.engine.row_store import RowStoreHandle

R = TypeVar("R")

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_FOR_AN_ANSWER = 10.0


class RayCluster:
    """A cluster that this process is connected to."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    @property
    def cpus(self) -> int:
        """CPUs of all nodes."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def share(self, value: Any) -> Any:
        """Send a value to the cluster once, for all tasks that take it."""
        return self._ray.put(value)

    def run(
        self, work: Callable[..., R], calls: Sequence[tuple[Any, ...]], look: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[str, R]]:
        """Run a function as tasks of one CPU each, spread over the nodes; a task whose node is lost is run again.

        As tasks end, the node of each and its result come out.

        Args:
            work: a function of a module that the nodes have, too.
            look: called now and then while tasks run.

        Raises:
            WorkerError: Ray lost a task for good.
        """
        task = self._ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(_on_node)
        waiting = [task.remote(work, *arguments) for arguments in calls]
        while waiting:
            ready, waiting = self._ray.wait(waiting, timeout=_SECONDS_BETWEEN_LOOKS)
            look()
            try:
                yield from self._ray.get(ready)
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from error
            except self._ray.exceptions.RayError as error:
                raise WorkerError(
                    f"Ray lost a task for good: {error}; run again to continue where it stopped"
                ) from error


@contextmanager
def ray_cluster(address: str | None = None) -> Iterator[RayCluster]:
    """Connect to a cluster, unless this process is connected.

    Args:
        address: of the cluster; None for the one that Ray finds, or a new one on this machine.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: there is no cluster at the address.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError(
            f"spreading work over a Ray cluster needs Ray ({error}); pip install 'ray[train]'"
        ) from error
    if ray.is_initialized():
        yield RayCluster(ray)
        return
    try:
        if address is not None and address != "auto" and "://" not in address:
            _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except (OSError, ValueError) as error:
        raise ConfigError(f"there is no Ray cluster at {address or 'the address that Ray knows'}: {error}") from error
    try:
        yield RayCluster(ray)
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Fail soon where nothing listens; Ray itself tries for many minutes."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=_SECONDS_FOR_AN_ANSWER).close()


def build_over_ray(cluster: RayCluster, store: RowStoreHandle, place: Path) -> dict[str, int]:
    """Build a row store with a task on each CPU of a cluster, or on as many as there are chunks.

    The result is the number of chunks that each node built, by its host name and id. Every node must see
    the folder.

    The table was planned here, once; the plan goes to the tasks, which take chunks that nobody is at until all are
    there.

    Raises:
        StorageError: a node does not see the folder, or the disk is full.
    """
    built: Counter[str] = Counter()
    with shared_mark(place.parent) as mark, store.progress() as report:

        def look() -> None:
            if report is not None:
                report(len(done_chunks(place)))

        shared = cluster.share(store)
        tasks = max(1, min(cluster.cpus, len(store.spec.chunk_rows)))
        for node, count in cluster.run(_build_share, [(shared, str(place), str(mark))] * tasks, look):
            built[node] += count
    return dict(built)


def _on_node(work: Callable[..., R], *arguments: Any) -> tuple[str, R]:
    """Run on a node of the cluster; say which that is."""
    import ray

    node = f"{socket.gethostname()} ({ray.get_runtime_context().get_node_id()[:8]})"
    return node, work(*arguments)


def _build_share(store: RowStoreHandle, place: str, mark: str) -> int:
    """Build with one thread until the store is whole; return the number of chunks that were built here."""
    check_mark(mark)
    return len(store.build_share(Path(place), threads=1))


def check_mark(mark: str) -> None:
    """Refuse to work on a node that does not see the folder of a mark.

    Raises:
        StorageError: names the node.
    """
    if not Path(mark).exists():
        raise StorageError(
            f"the Ray node on {socket.gethostname()} does not see {Path(mark).parent}; pass a folder that all nodes "
            "share"
        )


@contextmanager
def shared_mark(folder: Path) -> Iterator[Path]:
    """Keep a file in a folder, by which others tell that they see the same one."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / f".shared-{uuid.uuid4().hex}"
    mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)
