"""The workflow of a public forge: it runs what .ci/run runs, and what it names is here."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def jobs_of(workflow: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / f".github/workflows/{workflow}.yml").read_text("utf-8"))["jobs"]
    return found


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    return jobs_of("ci")


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_linux_runs_what_must_pass_before_a_merge(jobs: dict[str, Any]) -> None:
    assert commands(jobs["linux"]) == [".ci/run"]
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
    asked = {target for line in (ROOT / ".ci/run").read_text("utf-8").splitlines() for target in _targets(line)}
    assert {"lint", "test-ci"} <= asked
    made = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert asked <= made


def _targets(line: str) -> list[str]:
    words = line.split()
    return words[1:] if words[:1] == ["make"] else []


def test_macos_and_windows_run_tests_that_need_little(jobs: dict[str, Any]) -> None:
    install, test = commands(jobs["imports"])
    assert set(jobs["imports"]["strategy"]["matrix"]["os"]) == {"macos-latest", "windows-latest"}
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    known = {re.split(r"[\[>=]", entry)[0] for entry in groups["test"] if isinstance(entry, str)}
    assert {".", "pytest", "pytest-timeout", "hypothesis"} == set(
        install.removeprefix("python -m pip install ").split()
    )
    assert {"pytest", "pytest-timeout", "hypothesis"} <= known
    assert all((ROOT / name).is_file() for name in test.removeprefix("python -m pytest ").split())


def test_jobs_run_the_lowest_python_and_the_wheel_is_tried_on_all(jobs: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lowest, named = project["requires-python"].removeprefix(">="), "Programming Language :: Python :: 3."
    versions = [step["with"]["python-version"] for job in jobs.values() for step in job["steps"] if "with" in step]
    assert versions == [lowest, lowest, "${{ matrix.python }}"]
    claimed = [line.rpartition(" ")[2] for line in project["classifiers"] if line.startswith(named)]
    assert jobs["wheel"]["strategy"]["matrix"]["python"] == claimed
    assert commands(jobs["wheel"])[-1] == "python -m tools.release"


def pythons(job: dict[str, Any]) -> set[str]:
    """Give the versions of Python that a job runs on."""
    [version] = [step["with"]["python-version"] for step in job["steps"] if "with" in step]
    return set(job["strategy"]["matrix"]["python"]) if "matrix" in version else {version}


def test_every_python_that_is_claimed_runs_the_suite(jobs: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    claimed = {line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r":: 3\.\d+$", line)}
    daily = jobs_of("versions")["pythons"]
    assert commands(daily) == ["make test PYTHON=python"]
    assert pythons(jobs["linux"]) | pythons(daily) == claimed


def test_every_lowest_version_that_is_claimed_is_run() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    makefile = (ROOT / "Makefile").read_text("utf-8")
    lowest = jobs_of("versions")["lowest"]
    assert (commands(lowest), pythons(lowest)) == (["make test-lowest PYTHON=python"], {project["requires-python"][2:]})
    rule = makefile.partition("\n$(LOWEST)/.ready:")[2].partition("\n\n")[0]
    installed = re.search(r'--resolution lowest-direct.*"\.\[all\]".*torch==\$\(LOWEST_TORCH\)', rule, re.DOTALL)
    assert installed, "uv installs the lowest version of each dependency, of all extras, and torch"
    needs = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    assert all(re.search(r">=|^torch-table-loader\[", each) for each in needs), "a bound says what is claimed"
    claimed = next(each.removeprefix("torch>=") for each in needs if each.startswith("torch>="))
    assert re.search(rf"^LOWEST_TORCH \?= {re.escape(claimed)}\.0$", makefile, re.MULTILINE)
    assert "\n\t$(MAKE) test-lowest\n" in makefile.partition("\ntest-all:")[2].partition("\n\n")[0] + "\n"


def test_the_newest_versions_run_every_week() -> None:
    newest = jobs_of("versions")["newest"]
    assert commands(newest) == ["make test PYTHON=python CONSTRAINTS=/dev/null"]
    assert "-c $(CONSTRAINTS)" in (ROOT / "Makefile").read_text("utf-8")
