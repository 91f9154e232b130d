"""The metadata of the package."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import metadata, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import torch_table_loader
from torch_table_loader.cli.main import main

ROOT = Path(__file__).parents[2]


def test_the_version_is_defined_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"torch-table-loader {torch_table_loader.__version__}\n"
    assert version("torch-table-loader") == torch_table_loader.__version__
    assert f"## {torch_table_loader.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_license_is_included() -> None:
    said = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert metadata("torch-table-loader")["License-Expression"] == said["license"] == "Apache-2.0"
    assert [(ROOT / name).read_text("utf-8").split()[:2] for name in said["license-files"]] == [["Apache", "License"]]


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_of_top_level_pages_have_targets(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    links = [part.partition(")")[0].partition("#")[0] for part in text.split("](")[1:]]
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert missing == []


USERS = {"azure", "delta", "gcs", "http", "iceberg", "onnx", "progress", "s3", "text"}


def test_extras_are_for_users_and_all_has_every_one() -> None:
    said = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras, groups = said["project"]["optional-dependencies"], said["dependency-groups"]
    assert set(extras) == {*USERS, "all"}
    [every] = map(Requirement, extras["all"])
    assert (every.name, every.extras) == ("torch-table-loader", USERS)
    assert {
        "bench",
        "dev",
        "docs",
        "engines",
        "frameworks",
        "lint",
        "peers",
        "release",
        "site",
        "test",
        "writers",
    } == set(groups)
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    assert {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")} == set(extras)


def test_extras_named_in_messages_and_pages_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    places = [*(ROOT / "torch_table_loader").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    texts = {path: path.read_text("utf-8") for path in places}
    named = {
        (path.name, extra)
        for path, text in texts.items()
        for listed in re.findall(r"(?:torch-table-loader\[|\bextra `)([a-z0-9,]+)[\]`]", text)
        for extra in listed.split(",")
    }
    assert len(named) > 5
    assert [each for each in named if each[1] not in extras] == []


def test_the_makefile_installs_existing_extras_and_groups() -> None:
    said = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    makefile = (ROOT / "Makefile").read_text("utf-8")
    used = re.findall(r"--group ([a-z]+)", makefile)
    assert {"bench", "dev", "docs", "engines", "frameworks", "peers", "site", "writers"} == set(used)
    [extras] = re.findall(r"^EXTRAS := (.*)$", makefile, re.MULTILINE)
    assert set(extras.split(",")) <= set(said["project"]["optional-dependencies"])
