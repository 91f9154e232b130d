"""Runs a function in a child process with limits on time and memory, and says how it ended.

A first child imports what the cases need, once, and forks one process for each case: a case that crashes, hangs or
takes all memory ends alone, and costs milliseconds. See `Sandbox`.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import resource
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self

CPU_SECONDS = 10
"""What a case may compute. A loop without end is found by it, however busy the machine is."""

WALL_SECONDS = 60
"""What a case may take in all. Threads that wait for each other are found by it."""

MEMORY_BYTES = 1 << 30
"""What a case may allocate beyond what the imports hold."""

Kind = Literal["value", "ours", "foreign", "killed", "hang"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a case ended.

    Args:
        kind: it returned a `value`; it raised an error of this library (`ours`) or another one (`foreign`); its process
            was `killed` by a signal; it did not end in time (`hang`).
        value: what it returned.
        error: the error's class.
        text: the error's message, or the signal's name.
        trace: the traceback, or what the process last wrote to its standard error.
    """

    kind: Kind
    value: Any = None
    error: str = ""
    text: str = ""
    trace: str = ""


class Sandbox:
    """Runs module-level functions, one at a time; a context manager.

    Forks are sound only of a process without threads: let the modules import what a case needs, and start nothing.
    """

    def __init__(self, *modules: str) -> None:
        """Start the first child.

        Args:
            modules: what it imports before the first case; those of the functions that will run, for a start.
        """
        environment = os.environ | {
            "ARROW_DEFAULT_MEMORY_POOL": "system",  # other pools reserve more than a case may have
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        self._child = subprocess.Popen(
            [sys.executable, "-m", __name__, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=Path(__file__).parents[2],
        )

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the first child."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        self._child.stdout.close()
        self._child.wait()

    def run(self, function: Callable[..., Any], *args: Any) -> Outcome:
        """Run ``function(*args)`` in a process of its own.

        Args:
            function: module-level, in a module that can be imported.
            args: they pickle.

        Returns:
            How it ended; what it returned must pickle.
        """
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        request = pickle.dumps((function.__module__, function.__qualname__, args))
        _write_frame(self._child.stdin, request)
        answer = _read_frame(self._child.stdout)
        if answer is None:
            raise RuntimeError("the process that forks the cases has ended")
        outcome: Outcome = pickle.loads(answer)  # noqa: S301 - our own child wrote it
        return outcome


def _serve() -> None:
    """Fork a process for each request that comes on standard input, and answer on standard output."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # else each case walks, and so copies, all that was imported
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    while (request := _read_frame(requests)) is not None:
        module, name, args = pickle.loads(request)  # noqa: S301 - our own parent wrote it
        _write_frame(answers, pickle.dumps(_run_forked(getattr(importlib.import_module(module), name), args)))


def _run_forked(function: Callable[..., Any], args: tuple[Any, ...]) -> Outcome:
    with tempfile.TemporaryFile() as stderr:
        receiving, sending = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(receiving)
            os.dup2(stderr.fileno(), 2)
            _run_and_exit(function, args, sending)
        os.close(sending)
        with os.fdopen(receiving, "rb") as pipe:
            answer = _answer(pipe)
        if answer is None:
            os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # worker processes that outlived it
        if answer:
            outcome: Outcome = pickle.loads(answer)  # noqa: S301 - our own child wrote it
            return outcome
        stderr.seek(0)
        trace = stderr.read().decode(errors="replace")[-4000:]
    if answer is None:
        return Outcome("hang", text=f"{WALL_SECONDS} s", trace=trace)
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number == signal.SIGXCPU:
        return Outcome("hang", text=f"{CPU_SECONDS} s of computing", trace=trace)
    ended = signal.Signals(number).name if number else f"exit status {os.WEXITSTATUS(status)}"
    return Outcome("killed", text=ended, trace=trace)


def _answer(pipe: IO[bytes]) -> bytes | None:
    """What a case's process wrote until it closed its end: nothing if it was killed, None if it did not end in time."""
    parts = []
    while select.select([pipe], [], [], WALL_SECONDS)[0]:
        part = os.read(pipe.fileno(), 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
    return None


def _run_and_exit(function: Callable[..., Any], args: tuple[Any, ...], sending: int) -> None:
    """Run a case in its process, and write how it ended."""
    status = 1
    try:
        os.setpgid(0, 0)
        limit(resource.RLIMIT_CPU, CPU_SECONDS)
        limit(resource.RLIMIT_CORE, 0)
        limit(resource.RLIMIT_DATA, _data_bytes() + MEMORY_BYTES)
        answer = pickle.dumps(outcome_of(function, args))
        with os.fdopen(sending, "wb") as pipe:
            pipe.write(answer)
        status = 0
    finally:
        if status:
            traceback.print_exc()
        os._exit(status)


def outcome_of(function: Callable[..., Any], args: tuple[Any, ...]) -> Outcome:
    """Call a function, and turn what it raises into a value."""
    from torch_table_loader.errors import TableLoaderError

    try:
        return Outcome("value", function(*args))
    except BaseException as error:  # noqa: BLE001 - each of them is an outcome
        kind: Kind = "ours" if isinstance(error, TableLoaderError) else "foreign"
        return Outcome(kind, None, type(error).__name__, str(error), traceback.format_exc())


def limit(what: int, most: int) -> None:
    """Set the soft limit of a resource."""
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _data_bytes() -> int:
    """Private memory that this process has mapped for writing, which RLIMIT_DATA bounds."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status does not say VmData")


def _write_frame(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(len(data).to_bytes(8, "little") + data)
    pipe.flush()


def _read_frame(pipe: IO[bytes]) -> bytes | None:
    length = pipe.read(8)
    return pipe.read(int.from_bytes(length, "little")) if length else None


if __name__ == "__main__":
    # The functions that run import this module by its name: only then are outcomes of one class.
    importlib.import_module("tests.fuzz.sandbox")._serve()
