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
from collections.abc import Callable, Sequence
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
        """Run ``function(*args)`` in a process of its own: see `run_all`."""
        return self.run_all(function, [args])[0]

    def run_all(self, function: Callable[..., Any], cases: Sequence[tuple[Any, ...]]) -> list[Outcome]:
        """Run ``function(*args)`` for each args of `cases`.

        They share a process until one ends it; the next case then gets a new one. Most of a case's time goes into
        starting a process.

        Args:
            function: module-level, in a module that can be imported.
            cases: they pickle.

        Returns:
            How each ended; what they returned must pickle.
        """
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        _write_frame(self._child.stdin, pickle.dumps((function.__module__, function.__qualname__, cases)))
        answer = _read_frame(self._child.stdout)
        if answer is None:
            raise RuntimeError("the process that forks the cases has ended")
        outcomes: list[Outcome] = pickle.loads(answer)  # noqa: S301 - our own child wrote it
        return outcomes


def _serve() -> None:
    """Run what comes on standard input, and answer on standard output."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # else each process walks, and so copies, all that was imported
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    while (request := _read_frame(requests)) is not None:
        module, name, cases = pickle.loads(request)  # noqa: S301 - our own parent wrote it
        function = getattr(importlib.import_module(module), name)
        outcomes: list[Outcome] = []
        while len(outcomes) < len(cases):
            outcomes += _run_forked(function, cases[len(outcomes) :])
        _write_frame(answers, pickle.dumps(outcomes))


def _run_forked(function: Callable[..., Any], cases: Sequence[tuple[Any, ...]]) -> list[Outcome]:
    """Fork a process, and give the outcomes of the cases that it comes to; of one at least."""
    with tempfile.TemporaryFile() as stderr:
        receiving, sending = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(receiving)
            os.dup2(stderr.fileno(), 2)
            _run_and_exit(function, cases, sending)
        os.close(sending)
        outcomes: list[Outcome] = []
        in_time = True
        # Unbuffered: what a buffer held already, `select` would wait for.
        with os.fdopen(receiving, "rb", buffering=0) as pipe:
            while in_time and len(outcomes) < len(cases):
                in_time = bool(select.select([pipe], [], [], WALL_SECONDS)[0])
                frame = _read_frame(pipe) if in_time else None
                if frame is None:
                    break
                outcomes.append(pickle.loads(frame))  # noqa: S301 - our own child wrote it
        if not in_time:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # worker processes that outlived it
        if len(outcomes) < len(cases):
            stderr.seek(0)
            trace = stderr.read().decode(errors="replace")[-4000:]
            outcomes.append(
                _ended(status, trace) if in_time else Outcome("hang", text=f"{WALL_SECONDS} s", trace=trace)
            )
    return outcomes


def _ended(status: int, trace: str) -> Outcome:
    """Say how a process ended that gave no outcome."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number == signal.SIGXCPU:
        return Outcome("hang", text=f"{CPU_SECONDS} s of computing", trace=trace)
    text = signal.Signals(number).name if number else f"exit status {os.WEXITSTATUS(status)}"
    return Outcome("killed", text=text, trace=trace)


def _run_and_exit(function: Callable[..., Any], cases: Sequence[tuple[Any, ...]], sending: int) -> None:
    """Run cases in their process, and write how each ended."""
    status = 1
    try:
        os.setpgid(0, 0)
        limit(resource.RLIMIT_CORE, 0)
        with os.fdopen(sending, "wb") as pipe:
            for args in cases:
                used = resource.getrusage(resource.RUSAGE_SELF)
                limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + CPU_SECONDS)
                limit(resource.RLIMIT_DATA, _data_bytes() + MEMORY_BYTES)
                _write_frame(pipe, pickle.dumps(outcome_of(function, args)))
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
    """Read what `_write_frame` wrote; None if the other end closed before all of it came."""
    length = _read_exactly(pipe, 8)
    return None if length is None else _read_exactly(pipe, int.from_bytes(length, "little"))


def _read_exactly(pipe: IO[bytes], length: int) -> bytes | None:
    data = b""
    while len(data) < length:
        part = pipe.read(length - len(data))
        if not part:
            return None
        data += part
    return data


if __name__ == "__main__":
    # The functions that run import this module by its name: only then are outcomes of one class.
    importlib.import_module("tests.launchers.sandbox")._serve()
