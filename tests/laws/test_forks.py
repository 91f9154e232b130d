"""What waits for a thread, and why a worker process that starts by fork never waits for it.

A lock that a thread of the parent holds while it forks is held for ever in the worker. Whoever adds a lock makes it
`OfProcess`, or says here why no forked process comes by.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import torch_table_loader
from torch_table_loader.installed import has

ROOT = Path(torch_table_loader.__file__).parent

PRIMITIVES = {
    "Barrier",
    "BoundedSemaphore",
    "Condition",
    "Event",
    "Future",
    "LifoQueue",
    "Lock",
    "PriorityQueue",
    "Queue",
    "RLock",
    "Semaphore",
    "SimpleQueue",
    "ThreadPoolExecutor",
    "allocate_lock",
    "local",
}

OF_A_CALL = "made, used and dropped by one call, whose frame a forked process never enters"
LEFT_ALONE = "belongs to threads of one process; a forked copy is left alone (`this_process`)"
LEASED = "lives while one builder runs; a forked process that builds makes its own"
INSIDE = "inside an `OfProcess`"

REASONS = {
    "cancellation interruptibly": OF_A_CALL,
    "cancellation Threads": LEFT_ALONE,
    "engine.row_store RowStoreHandle.progress": OF_A_CALL,
    "engine.work.split_reads SplitReads.side_by_side": "threads alone wait for it, and none is forked",
    "engine.workers.threads ThreadPool.begin": "a thread that a fork left behind is not waited for",
    "engine.workers.threads _Worker": "a forked process takes only threads that live, and starts its own",
    "engine.workers.threads ThreadExecutor": LEFT_ALONE,
    "engine.workers.threads _Bell": LEFT_ALONE,
    "far.fetcher Fetcher": LEFT_ALONE,
    "far.s3_client S3Client": "its `FileStorage` has a client inside an `OfProcess`",
    "order.row_weights _Column": "lives while weights are summed; a forked process that sums makes its own",
    "predicates.hash_parts": "has no lock",
    "read.lru_cache LRUCache.get": INSIDE,
    "source.retrying TrafficCounter": INSIDE,
    "source.storage _Process": INSIDE,
    "store.builder _built_in_memory": OF_A_CALL,
    "store.builder _Builder": LEASED,
    "store.leases Leases": LEASED,
    "testing.sources check_storage": OF_A_CALL,
    "testing.sources _check_ranges": OF_A_CALL,
}
"""By module and by the class or function that makes it."""


def name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        return name_of(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def made_in(node: ast.AST, scope: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], ast.Call]]:
    """Yield the calls of primitives, each with the classes and functions around it."""
    for child in ast.iter_child_nodes(node):
        inner = scope
        if isinstance(child, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            inner = (*scope, child.name)
        if isinstance(child, ast.Call) and name_of(child.func) in PRIMITIVES:
            yield scope, child
        yield from made_in(child, inner)


def places() -> set[str]:
    """Name what makes a primitive: a class if its `__init__` does, or the outermost method or function."""
    found = set()
    for path in ROOT.rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for scope, _ in made_in(ast.parse(path.read_text())):
            inner = ".".join(name for name in scope if name not in ("__init__", "submit"))
            found.add(f"{module} {inner}".rstrip())
    return found


def test_every_lock_is_the_processes_own_or_no_forked_process_comes_by() -> None:
    guests = {"far", "mixtures", "order", "text"}
    here = {place for place in REASONS if (room := place.partition(".")[0]) not in guests or has(room)}
    assert places() == here


def test_no_lock_is_made_when_a_module_is_imported_or_as_a_value_of_a_class() -> None:
    """Such a lock is met by every thread; `predicates.hash_parts` has what each thread has for itself."""
    found = []
    for path in ROOT.rglob("*.py"):
        for scope, call in made_in(ast.parse(path.read_text())):
            if not any(name.islower() for name in scope) and name_of(call.func) != "local":
                found.append(f"{path.relative_to(ROOT)} {name_of(call.func)}")
    assert not found
