"""Choice of a rank's executor, and of how worker processes start."""

from __future__ import annotations

from io import BytesIO
from multiprocessing import get_all_start_methods, get_start_method
from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError
from typing import TYPE_CHECKING, Any

from torch_table_loader.engine.workers.executor import CallerExecutor, LaneExecutor
from torch_table_loader.engine.workers.threads import ThreadExecutor, ThreadPool
from torch_table_loader.errors import ConfigError

if TYPE_CHECKING:
    from torch_table_loader.engine.jobs.job import Job
    from torch_table_loader.engine.work.lane_work import LaneWork


def executor_of(job: Job, work: LaneWork, start: int, pool: ThreadPool) -> LaneExecutor:
    """Return the executor that makes the batches of a rank's work."""
    options = job.options
    if options.num_workers == 0:
        return CallerExecutor(work, start, options.prefetch_batches)
    if not options.processes:
        return ThreadExecutor(work, start, pool, options.prefetch_batches)
    job.close_clients()
    from torch_table_loader.engine.workers.processes import ProcessExecutor

    return ProcessExecutor(work, start, _context(job))


def _context(job: Job) -> Any:
    """Choose how worker processes start: never by fork if planning started threads that a fork breaks."""
    given = job.options.start_method
    if job.fork_safe:
        return given
    method = given if isinstance(given, str) or given is None else given.get_start_method()
    if method == "fork":
        raise ConfigError(
            'worker_type="fork" breaks the threads that this store\'s client has started; '
            'pass "process" (forkserver is then used) or "spawn"'
        )
    return given or "forkserver"


def check_processes(job: Job) -> None:
    """Refuse a start method that the store does not support, and functions that cannot be pickled."""
    given, options = _context(job), job.options
    given = given if given is not None else get_start_method(allow_none=True) or get_all_start_methods()[0]
    method = given if isinstance(given, str) else given.get_start_method()
    if method == "fork":
        return
    functions: dict[str, Any] = {} if options.collate_fn is None else {"collate_fn": options.collate_fn}
    functions |= {f"transforms[{name!r}]": function for name, function in (options.transforms or {}).items()}
    functions |= {f"decode[{name!r}]": function for name, function in (options.decode or {}).items()}
    functions |= options.samples.functions
    for label, function in functions.items():
        _check_pickles(label, function, method)


def _check_pickles(label: str, function: Any, method: str) -> None:
    try:
        ForkingPickler(BytesIO()).dump(function)
    except RuntimeError:  # a lock or queue of multiprocessing, which pickles only while a process starts
        return
    except (PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"{label} must pickle to reach worker processes that start by {method}, and {function!r} does not: "
            f'{error}; make it a function of a module, or pass worker_type="thread"'
        ) from error
