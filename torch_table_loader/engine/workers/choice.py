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
    from torch_table_loader.engine.workers.processes import IdleProcesses


class Servers:
    """What waits between the epochs of a loader: its threads, or its worker processes."""

    def __init__(self) -> None:
        self.threads = ThreadPool()
        self.processes: IdleProcesses | None = None
        """None until the first epoch on processes."""

    def shut_down(self) -> None:
        """End those that are idle."""
        self.threads.shut_down()
        if self.processes is not None:
            self.processes.shut_down()


def executor_of(job: Job, work: LaneWork, start: int, servers: Servers) -> LaneExecutor:
    """Return the executor that makes the batches of a rank's work.

    Processes in which functions of the caller's run start anew for each epoch: they find these, and all that they
    refer to, as they are then.
    """
    options = job.options
    if options.num_workers == 0:
        return CallerExecutor(work, start, options.prefetch_batches)
    if not options.processes:
        return ThreadExecutor(work, start, servers.threads, options.prefetch_batches)
    job.close_clients()
    from torch_table_loader.engine.workers.processes import IdleProcesses, ProcessExecutor

    if work.calls_functions or options.samples.functions:
        return ProcessExecutor(work, start, _context(job), None)
    if servers.processes is None:
        servers.processes = IdleProcesses()
    return ProcessExecutor(work, start, _context(job), servers.processes)


def _context(job: Job) -> Any:
    """Choose how worker processes start: never by fork if planning started threads that a fork breaks."""
    given = job.options.start_method
    if job.fork_safe:
        return given
    if _method(given) == "fork":
        raise ConfigError(
            'worker_type="fork" breaks the threads that this store\'s client has started; '
            'pass "process" (forkserver is then used) or "spawn"'
        )
    return given or "forkserver"


def _method(given: Any) -> str | None:
    """Return how processes start: by name, or as a context of multiprocessing says; None: as multiprocessing does."""
    if given is None or isinstance(given, str):
        return given
    return str(given.get_start_method())


def check_processes(job: Job) -> None:
    """Refuse a start method that the store does not support, and functions that cannot be pickled."""
    given, options = _context(job), job.options
    method = _method(given) or get_start_method(allow_none=True) or get_all_start_methods()[0]
    if method == "fork":
        return
    functions: dict[str, Any] = {}
    if options.collate_fn is not None:
        functions["collate_fn"] = options.collate_fn
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
