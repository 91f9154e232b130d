"""What is published: both distributions are whole, an index takes them, and the wheel reads a table by itself."""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from tools.release import LINK, build, name_repository, tracked, try_wheel, with_links

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://forge.example/owner/name"

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="which files are ours, git says")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy, with what is installed here, and let twine check it."""
    root = tmp_path_factory.mktemp("release")
    tree = tracked(root / "tree")
    name_repository(tree, REPOSITORY)
    build(tree, root / "dist", "--no-isolation")
    return root / "dist"


def test_links_of_the_readme_work_outside_of_the_repository() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    targets = [found["target"] for found in LINK.finditer(text)]
    assert "docs/quickstart.md" in targets
    told = with_links(text, REPOSITORY, "0.1.0")
    assert not LINK.search(told)
    assert [target for target in targets if f"/v0.1.0/{target})" not in told] == []


@pytest.mark.slow
def test_the_source_distribution_contains_the_tests(dist: Path) -> None:
    [archive] = dist.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        held = {name.partition("/")[2] for name in packed.getnames()}
    tree = dist.parent / "tree"
    wanted = {
        path for path in tree.rglob("*") if path.relative_to(tree).parts[0] in {"docs", "tests", "torch_table_loader"}
    }
    assert {str(path.relative_to(tree)) for path in wanted} - held == set()
    assert {"LICENSE", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "pyproject.toml", "constraints.txt"} <= held


@pytest.mark.slow
def test_the_wheel_holds_the_package_alone_and_says_what_it_needs(dist: Path) -> None:
    [wheel] = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        [told] = [message_from_bytes(packed.read(name)) for name in names if name.endswith("/METADATA")]
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"torch_table_loader"}
    assert "torch_table_loader/py.typed" in names
    assert told["Author"] == "The torch-table-loader developers"
    assert f"Repository, {REPOSITORY}" in told.get_all("Project-URL", [])
    needed = [need for need in told.get_all("Requires-Dist", []) if "extra ==" not in need]
    packages = [re.split(r"[>=<\[]", need)[0].replace("-", "_") for need in needed]
    assert sorted(packages) == ["fsspec", "numpy", "pyarrow", "torch", "typing_extensions", "xxhash"]


@pytest.mark.heavy
def test_the_wheel_alone_reads_a_local_table_in_an_empty_environment(dist: Path) -> None:
    [wheel] = dist.glob("*.whl")
    try_wheel(wheel, sys.executable, "-c", str(ROOT / "constraints.txt"))
