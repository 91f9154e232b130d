"""torch's iterator over worker processes, extended to report at once that a worker ended too early.

torch itself reports that by a RuntimeError that its handler of SIGCHLD raises wherever the main thread is, or only
after some seconds. If a worker is killed while it writes, torch waits for the rest of its message forever.
"""

from __future__ import annotations

import io
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pickle import PicklingError
from typing import Any

import torch
from torch.utils.data import _utils
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from torch_table_loader.cancellation import SLICE_S
from torch_table_loader.engine.workers.shared_memory import shared_memory_named
from torch_table_loader.errors import ConfigError, OutOfMemoryError, WorkerError

_GRACE_S = 1.0
"""How long workers have to end when they are told to; one that begins, or is in a caller's function, may need more."""

_HINTS: dict[int, str] = {
    signal.SIGKILL: "if the kernel killed it for lack of memory, use fewer workers, a smaller batch_size, "
    'shuffle_buffer_size or prefetch_batches, or worker_type="thread"',
    signal.SIGBUS: "shared memory may be full: make /dev/shm larger (docker run --shm-size=...), use fewer workers or "
    'a smaller prefetch_batches, or worker_type="thread"',
}
_STARTING = (
    "its own message is on stderr; a script that starts workers by spawn or forkserver needs "
    'if __name__ == "__main__": around what it does'
)


class WatchedWorkers(_MultiProcessingDataLoaderIter):
    """The results of a DataLoader's workers, in torch's order."""

    def __init__(self, loader: Any) -> None:
        """Start the workers.

        Raises:
            WorkerError: they cannot be started.
            OutOfMemoryError: there is too little shared memory.
        """
        try:
            with shared_memory_named():
                super().__init__(loader)
        except OutOfMemoryError:
            self._end_what_began()
            raise
        except (OSError, EOFError, RuntimeError, AssertionError) as error:
            death = self.death()
            self._end_what_began()
            raise death or WorkerError(f"worker processes could not be started: {error!r}") from error
        except (PicklingError, AttributeError, TypeError) as error:
            self._end_what_began()
            raise ConfigError(
                f"what worker processes work on must pickle where they do not start by fork: {error}; "
                'pass worker_type="thread", or functions of a module instead of lambdas'
            ) from error
        except BaseException:
            self._end_what_began()
            raise
        torch._C._remove_worker_pids(id(self))  # torch's handler of SIGCHLD would raise wherever the main thread is
        self._worker_pids_set = False
        self._watch: _Watch | None = None
        if os.name == "posix":
            reader = self._data_queue._reader  # type: ignore[attr-defined]
            self._watch = _Watch(reader.fileno(), self._workers, self._workers_status)
            reader._recv = self._watch.read

    def _try_get_data(self, timeout: float = 5.0) -> Any:
        if self._watch is not None:
            self._watch.wait()
        return super()._try_get_data(timeout)  # type: ignore[no-untyped-call]

    def death(self) -> WorkerError | None:
        """Return how a worker ended too early, if one did; its error message may arrive a moment before its end."""
        workers = getattr(self, "_workers", [])
        working = getattr(self, "_workers_status", [True for _ in workers])
        ended = wait([worker.sentinel for worker, works in zip(workers, working, strict=False) if works], timeout=1)
        for worker in workers:
            if worker.sentinel in ended or worker.exitcode:
                return death_of(worker)
        return None

    def _shutdown_workers(self) -> None:
        """End the workers; torch would wait up to 5 seconds for each one that cannot end by itself."""
        if not self._shutdown and _utils.python_exit_status is False:
            self._shutdown = True
            self._workers_done_event.set()
            for number, works in enumerate(self._workers_status):
                if works:
                    self._mark_worker_as_unavailable(number, shutdown=True)
            deadline = time.monotonic() + _GRACE_S
            for worker in self._workers:
                worker.join(max(0.0, deadline - time.monotonic()))
            for worker in self._workers:
                if worker.is_alive():
                    worker.kill()
                    worker.join()
            for queue in self._index_queues:
                queue.cancel_join_thread()
                queue.close()
        super()._shutdown_workers()

    def _end_what_began(self) -> None:
        """End the workers after a failed start; torch itself would fail on attributes that are not set yet."""
        self._shutdown = True
        if getattr(self, "_worker_pids_set", False):
            torch._C._remove_worker_pids(id(self))
            self._worker_pids_set = False
        for worker in getattr(self, "_workers", []):
            worker.kill()
            worker.join()


class _Watch:
    """Waits for data from workers, and notices if one ended too early."""

    def __init__(self, pipe: int, workers: Sequence[Any], working: Sequence[bool]) -> None:
        self._pipe = pipe
        self._workers = {worker.sentinel: number for number, worker in enumerate(workers)}
        self._processes = workers
        self._working = working
        self._poll = select.poll()
        for handle in (pipe, *self._workers):
            self._poll.register(handle, select.POLLIN)

    def wait(self) -> None:
        """Return when there is something to read; raise WorkerError if a worker ended early, EOFError if all ended."""
        while True:
            ready = [handle for handle, _ in self._poll.poll(SLICE_S * 1000)]
            if self._pipe in ready:
                return
            for handle in ready:
                number = self._workers.pop(handle)
                if self._working[number]:
                    raise death_of(self._processes[number])
                self._poll.unregister(handle)
            if not self._workers:
                raise EOFError("every worker has ended")

    def read(self, size: int, read: Callable[[int, int], bytes] = os.read) -> io.BytesIO:
        """Read so many bytes, as `multiprocessing.connection.Connection` does."""
        data = io.BytesIO()
        while (left := size - data.tell()) > 0:
            self.wait()
            chunk = read(self._pipe, left)
            if not chunk:
                raise EOFError("the workers' pipe was closed")
            data.write(chunk)
        return data


def death_of(worker: Any) -> WorkerError:
    """Return how a worker ended.

    Args:
        worker: a process whose sentinel says that it has ended; its exit code is known a moment later.
    """
    worker.join(1)
    code = worker.exitcode or 0
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        how, hint = f"was killed by {name}", _HINTS.get(-code, "")
    else:
        how, hint = f"ended with code {code}", _STARTING if code == 1 else ""
    message = f"worker process {worker.pid} {how} in the middle of the epoch"
    return WorkerError(f"{message}; {hint}" if hint else message)
