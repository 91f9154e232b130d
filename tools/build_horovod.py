"""Builds Horovod for the Python and torch that run this, and installs it: Gloo alone, for tests on one machine.

Horovod 0.28.1, the newest there is, asks for C++14, and the headers of torch need C++17: its two CMake files are
changed before it is built. Run it with ``make horovod``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "horovod"
CONSTRAINTS = ROOT / "constraints.txt"
VERSION = "0.28.1"
TOOLS = ("setuptools", "wheel", "cmake", "packaging", "cloudpickle", "psutil", "pyyaml")
"""What Horovod's setup.py wants while it builds; the versions stand in constraints.txt."""

SETTINGS = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
}

CHANGES = (
    ("CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)"),
    ("horovod/torch/CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)"),
    # Half the time to build: what is tested is who reads which row, not how fast gradients are summed.
    ("CMakeLists.txt", '"-O2" "-O3" CMAKE_CXX', '"-O2 -g" "-O1" CMAKE_CXX'),
)
"""File, what stands there, and what is to stand there."""


def main() -> None:
    """Install the wheel; build it before, if it is not there."""
    wheels = BUILD / f"torch-{version('torch')}"
    name = f"horovod-{VERSION}-cp{sys.version_info.major}{sys.version_info.minor}-*.whl"
    if not list(wheels.glob(name)):
        build(wheels)
    found = [str(wheel) for wheel in wheels.glob(name)]
    pip("install", "--quiet", "--no-deps", "--force-reinstall", *found)  # what is there may be of another torch
    pip("install", "--quiet", "-c", str(CONSTRAINTS), *found)


def build(wheels: Path) -> None:
    """Build the wheel into a folder."""
    tools, downloads, source = BUILD / "tools", BUILD / "sdist", BUILD / f"horovod-{VERSION}"
    shutil.rmtree(source, ignore_errors=True)
    pip("install", "--quiet", "--upgrade", "--target", str(tools), "-c", str(CONSTRAINTS), *TOOLS)
    environment = os.environ | SETTINGS
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(tools), os.environ.get("PYTHONPATH"))))
    environment["PATH"] = f"{tools / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment.setdefault("MAKEFLAGS", f"-j{len(os.sched_getaffinity(0))}")
    alone = ("--no-deps", "--no-build-isolation")
    wanted = ("--no-binary", "horovod", f"horovod=={VERSION}")
    pip("download", "--quiet", *alone, "--dest", str(downloads), *wanted, env=environment)
    with tarfile.open(downloads / f"horovod-{VERSION}.tar.gz") as archive:
        archive.extractall(BUILD, filter="data")
    change(source)
    pip("wheel", *alone, "--wheel-dir", str(wheels), str(source), env=environment)
    shutil.rmtree(source)


def change(source: Path) -> None:
    """Change the CMake files; what is not found is an error, since another release would need another change."""
    for name, old, new in CHANGES:
        file = source / name
        text = file.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise SystemExit(f"{name} of Horovod {VERSION} must have {old!r} once, got {text.count(old)} times")
        file.write_text(text.replace(old, new), encoding="utf-8")


def pip(*arguments: str, env: dict[str, str] | None = None) -> None:
    """Run pip of this Python; its failure is ours."""
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], env=env, check=True)


if __name__ == "__main__":
    main()
