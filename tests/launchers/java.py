"""Programs of Java that tests run, with jars that come in wheels of PyPI."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent


def jars_of(package: str, folder: str) -> str:
    """Give the class path of the jars in a package's folder."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{package} is not installed; make test-all installs what its tests need")
    return str(Path(spec.origin).parent / folder / "*")


def java() -> str:
    """Find Java."""
    found = shutil.which("java")
    if found is None:
        raise FileNotFoundError("these tests need Java 17 or newer (apt-get install openjdk-17-jdk-headless)")
    return found


def run(source: str, class_path: str, *arguments: str) -> str:
    """Compile and run a program of one file that lies beside this one; returns what it printed."""
    done = subprocess.run(
        [java(), "-cp", class_path, str(HERE / source), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


__all__ = ["jars_of", "java", "run"]
