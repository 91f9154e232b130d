"""Put known faults into a copy of the package, one at a time, and count the tests that see each.

    python -m tools.plant [NAME ...] [--list]

Each fault must be seen by two tests at least, of which one needs no private name of the package (`tools.coupling`):
users would notice it there. The command fails where a fault is seen by fewer, or no longer has its place in the code.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.coupling import FileOfTests, needed, read_tests
from tools.faults import FAULTS, Fault

ROOT = Path(__file__).parents[1]
LEAST_TESTS, LEAST_PUBLIC = 2, 1
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+\.py)::(\w+)(\S*)", re.MULTILINE)


def copied(folder: Path) -> Path:
    """Copy what git knows of, and return the copy's root."""
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def seen_by(fault: Fault, copy: Path) -> set[tuple[str, str]]:
    """Return file and function of the tests that fail with a fault.

    Raises:
        ValueError: the fault's place is not there exactly once.
    """
    path = copy / "torch_table_loader" / fault.file
    text = path.read_text("utf-8")
    if text.count(fault.old) != 1:
        raise ValueError(f"{fault.name}: {fault.file} must have its line once, got {text.count(fault.old)}")
    path.write_text(text.replace(fault.old, fault.new), "utf-8")
    try:
        command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", *fault.tests]
        paths = os.pathsep.join([str(copy), str(copy / "strategies")])
        done = subprocess.run(
            [*command, "-m", "not slow and not kills and not heavy", "--maxfail", "40"],
            cwd=copy,
            env=os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            check=False,
            text=True,
        )
    finally:
        path.write_text(text, "utf-8")
    return {(file, function) for file, function, _ in _FAILED.findall(done.stdout)}


def is_public(file: str, function: str, files: dict[str, FileOfTests]) -> bool:
    """Whether a test function needs no private name of the package."""
    name = file.removesuffix(".py").replace("/", ".")
    return not needed(files, files[name].reached(function))


def main() -> None:
    """Print a line for each fault; exit with 1 if one is seen by too few tests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults to put in; all without")
    parser.add_argument("--list", action="store_true", help="list the faults")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - {fault.name for fault in FAULTS}:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}; see --list")
    chosen = [fault for fault in FAULTS if not arguments.names or fault.name in arguments.names]
    if arguments.list:
        print("\n".join(f"promise {fault.promise}: {fault.name} ({fault.file})" for fault in chosen))
        return
    files, missed = read_tests(ROOT), 0
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        for fault in chosen:
            began = time.monotonic()
            found = seen_by(fault, copy)
            public = sum(is_public(*test, files) for test in found)
            enough = len(found) >= LEAST_TESTS and public >= LEAST_PUBLIC
            missed += not enough
            verdict = "seen" if enough else "MISSED"
            seconds = time.monotonic() - began
            print(f"{verdict:6} {fault.name}: {len(found)} tests, {public} public ({seconds:.0f} s)", flush=True)
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
