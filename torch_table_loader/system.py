"""What the operating system gives a process: memory that forks share, and the end of the process's parent."""

from __future__ import annotations

import errno
import mmap
import os
import threading

from torch_table_loader.cancellation import start
from torch_table_loader.errors import OutOfMemoryError, TableLoaderError
from torch_table_loader.messages import first_line

_LOOK_S = 1.0
"""How long a worker process may outlive the process that began it, where only the number of its parent shows that."""


def as_out_of_memory(error: BaseException, what: str) -> OutOfMemoryError | None:
    """Return the error of this library for one that says that memory was refused; None for any other error.

    Args:
        what: the memory was for.
    """
    if isinstance(error, TableLoaderError):
        return None
    of_torch = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    of_system = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if isinstance(error, MemoryError) or of_torch or of_system:
        return OutOfMemoryError(
            f"there is too little memory for {what} ({type(error).__name__}: {first_line(error)}); use fewer workers, "
            "fewer columns=[...] or a smaller batch_size, or give the process more memory"
        )
    return None


def shared_bytes(size: int) -> mmap.mmap:
    """Return zeros that forked processes share, and that need no place in a file system of shared memory.

    Raises:
        OutOfMemoryError: the process may have no more memory.
    """
    try:
        return mmap.mmap(-1, size)
    except OSError as error:
        raise (as_out_of_memory(error, "what processes share") or error) from error


def end_with_parent() -> None:
    """Let a thread end this worker process when the process that began it has ended, also before this call."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is None:
        return
    began = os.getppid()  # the parent's, the fork server's, or already that of whoever takes orphans

    def wait_for_the_end() -> None:
        while parent.is_alive() and os.getppid() == began:
            parent.join(_LOOK_S)
        os._exit(1)

    start(threading.Thread(target=wait_for_the_end, name="table-loader-parent", daemon=True))
