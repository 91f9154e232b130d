"""The environment that the Makefile creates: editors see the packages, and pins agree with the claimed versions."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.slow
def test_an_editable_install_is_a_plain_path(tmp_path: Path) -> None:
    for package, folder in (("torch_table_loader", ROOT), ("torch_table_strategies", ROOT / "strategies")):
        source = tmp_path / "source" / package
        shutil.copytree(folder / package, source / package)
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(folder / name, source / name)
        found = re.search(r"^EDITABLE := (.*)$", MAKEFILE, re.MULTILINE)
        flags = found[1].split() if found else ["-e"]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
        command += ["--prefix", str(tmp_path / "made"), "--ignore-installed", *flags, str(source)]
        subprocess.run(command, check=True, capture_output=True, timeout=100)
        (made,) = (tmp_path / "made").rglob(f"__editable__.{package}*.pth")
        assert (Path(made.read_text().strip()) / package / "__init__.py").is_file(), made.read_text()


def test_every_editable_install_uses_plain_paths() -> None:
    lines = [
        line for line in MAKEFILE.replace("\\\n", " ").splitlines() if "install" in line.lower() and " -e " in line
    ]
    lines += [line for line in MAKEFILE.splitlines() if "$(EDITABLE)" in line]
    assert len(lines) >= 4
    assert all("$(EDITABLE)" in line for line in lines)


def claims() -> list[Requirement]:
    said = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, groups = said["project"], said["dependency-groups"]
    listed = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
        *(each for group in groups.values() for each in group if isinstance(each, str)),
    ]
    return [claim for claim in map(Requirement, listed) if claim.name != project["name"]]


def test_the_pins_match_the_claimed_versions() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    folded = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins.items()}
    for claim in claims():
        name = re.sub(r"[-_.]+", "-", claim.name).lower()
        assert claim.specifier.contains(folded[name]), f"{claim} and {folded[name]}"


@pytest.mark.parametrize("name", sorted({claim.name for claim in claims()}))
def test_one_dependency_has_one_lower_bound(name: str) -> None:
    bounds = {str(claim.specifier) for claim in claims() if claim.name == name}
    assert len({bound for bound in bounds if bound.startswith(">=")}) <= 1, bounds
