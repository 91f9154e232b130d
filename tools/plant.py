"""Put known faults into a copy of the code, one at a time, and count the test functions that see each.

    python -m tools.plant [NAME ...] [--list]

Each fault must be seen by two test functions, of which one needs no private name of the package (`tools.coupling`).
The command fails where a fault is seen by fewer, where its text is not found once in the code, or where a test fails
without a fault. `tools/faults.py` holds the faults.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import cache_from_source
from pathlib import Path

from tools.coupling import PACKAGE, FileOfTests, needed, read_tests
from tools.faults import FAULTS, Fault

ROOT = Path(__file__).parents[1]
LEAST_TESTS, LEAST_PUBLIC = 2, 1
_EVERY_DAY = ("-m", "not slow and not rare and not kills and not heavy")
# A test that hangs fails after 30 seconds, and the next one runs; what hangs otherwise ends with pytest as a whole.
_OPTIONS = ("-v", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-profile", "unshrunk")
_LIMITS = ("--timeout", "30", "-o", "timeout_method=signal")
_LONGEST = 900
_RAN = re.compile(r"^(\S+\.py::\w+)\S*(?:.* (PASSED|SKIPPED|XFAIL|FAILED|ERROR|XPASS)\b)?", re.MULTILINE)
_EFFORT = ("LAWS_EFFORT", "LAWS_EXPLORE")
"""What makes tests draw more examples: a fault must be seen by those of every day."""


def copied(root: Path, folder: Path) -> Path:
    """Copy the files of a checkout that git does not ignore; return the folder."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, folder / name)
    return folder


def place_of(fault: Fault, root: Path) -> Path:
    """Return the file of a fault.

    Raises:
        LookupError: the file does not have its text exactly once.
    """
    path = root / PACKAGE / fault.file
    found = path.read_text("utf-8").count(fault.old) if path.is_file() else 0
    if found != 1:
        raise LookupError(f"{PACKAGE}/{fault.file} must have its text once, has it {found} times: {fault.old!r}")
    return path


@contextmanager
def planted(fault: Fault, root: Path) -> Iterator[None]:
    """Change the code while the block runs."""
    path = place_of(fault, root)
    text = path.read_text("utf-8")
    bytecode = Path(cache_from_source(str(path)))
    path.write_text(text.replace(fault.old, fault.new), "utf-8")
    bytecode.unlink(missing_ok=True)  # it could be taken for that of the changed file
    try:
        yield
    finally:
        path.write_text(text, "utf-8")
        bytecode.unlink(missing_ok=True)


def failing(root: Path, tests: Sequence[str]) -> set[str]:
    """Run tests in a checkout; return the functions that fail, hang or end pytest, as ``file.py::name``.

    Raises:
        RuntimeError: pytest came to no result.
    """
    paths = {"PYTHONPATH": os.pathsep.join([str(root), str(root / "strategies")])}
    running = subprocess.Popen(
        [sys.executable, "-m", "pytest", *_OPTIONS, *_LIMITS, *_EVERY_DAY, *tests],
        cwd=root,
        env={name: value for name, value in os.environ.items() if name not in _EFFORT} | paths,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        shown, _ = running.communicate(timeout=_LONGEST)
    except BaseException as error:  # a fault may make tests run for ever: pytest must not outlive this command
        os.killpg(running.pid, signal.SIGKILL)
        shown, _ = running.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
    ran = _RAN.findall(shown)
    # pytest: 1 is for failed tests, 2 to 5 are for tests that it could not run. A test without a result was the last.
    if not ran or running.returncode in range(2, 6):
        raise RuntimeError(f"pytest ended with {running.returncode}:\n{shown[-2000:]}")
    return {test for test, result in ran if result in ("FAILED", "ERROR", "XPASS", "")}


def is_public(test: str, files: dict[str, FileOfTests]) -> bool:
    """Whether a test function needs no private name of the package.

    Args:
        test: its file and name, as pytest writes them.
        files: what `read_tests` found.
    """
    path, _, name = test.partition("::")
    file = files[path.removesuffix(".py").replace("/", ".")]
    return not needed(files, file.reached(name))


def check(faults: Sequence[Fault], root: Path, *, names: bool = False) -> bool:
    """Plant faults into a copy of a checkout, print a line for each, and return whether each was seen enough.

    Args:
        faults: which.
        root: the checkout.
        names: whether the functions that see a fault are printed too.
    """
    files = read_tests(root)
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(root, Path(folder))
        ill = failing(copy, sorted({test for fault in faults for test in fault.tests}))
        good = not ill
        for test in sorted(ill):
            print(f"ILL    {test} fails without a fault, and does not count", flush=True)
        for fault in faults:
            began = time.monotonic()
            try:
                with planted(fault, copy):
                    seen = failing(copy, fault.tests) - ill
            except LookupError as error:
                print(f"GONE   {fault.name}: {error}", flush=True)
                good = False
                continue
            public = {test for test in seen if is_public(test, files)}
            enough = len(seen) >= LEAST_TESTS and len(public) >= LEAST_PUBLIC
            good &= enough
            took = f"{time.monotonic() - began:.0f} s"
            counts = f"by {len(seen)} test functions, {len(public)} of them public ({took})"
            print(f"{'seen  ' if enough else 'MISSED'} {fault.name}: {counts}", flush=True)
            if names or not enough:
                for test in sorted(seen):
                    print(f"         {'public ' if test in public else 'private'} {test}", flush=True)
    return good


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit with 1 unless each fault was seen enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the faults to put in; without, all")
    parser.add_argument("--list", action="store_true", help="list the faults, by the promise that each breaks")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.names) - {fault.name for fault in FAULTS}:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}; see --list")
    chosen = [fault for fault in FAULTS if not asked.names or fault.name in asked.names]
    if asked.list:
        print("\n".join(f"{fault.promise:2} {fault.name} ({fault.file})" for fault in chosen))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    sys.exit(not check(chosen, ROOT, names=bool(asked.names)))


if __name__ == "__main__":
    main()
