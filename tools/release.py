"""Builds and checks what is published: a source distribution, and a wheel that is tried in empty environments.

Run it where `build` and `twine` are installed: ``python -m tools.release --repository https://host/owner/name``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "build" / "dist"
LINK = re.compile(r"(?P<head>!?\[[^\]]*\]\()(?P<target>(?!\w+://|#)[^)\s]+)(?=\))")

TRY = """
import importlib.util, subprocess, sys
from importlib.metadata import version
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
import torch_table_loader
from torch_table_loader import MissingExtraError, StructuredDataset
assert Path(torch_table_loader.__file__).is_relative_to(sys.prefix), torch_table_loader.__file__
assert torch_table_loader.__version__ == version("torch-table-loader")
pq.write_table(pa.table({"x": range(1000), "name": ["a", "b"] * 500}), "table.parquet", row_group_size=100)
for more in ({"shuffle": "splits"}, {"shuffle": "rows", "row_store": "memory"}, {"worker_type": "process"}):
    with StructuredDataset.create_dataloader("table.parquet", batch_size=64, num_workers=2, **more)[0] as loader:
        assert sorted(row for batch in loader for row in batch["x"].tolist()) == [*range(1000)], more
assert [name for name in ("botocore", "obstore", "s3fs") if importlib.util.find_spec(name)] == []
try:
    StructuredDataset("s3://bucket/table")
except MissingExtraError as error:
    assert "torch-table-loader[s3]" in str(error)
else:
    raise AssertionError("s3:// was read without its packages")
"""
"""What an installed wheel must do with its own dependencies alone."""


def tracked(folder: Path) -> Path:
    """Copy the files that git knows into a folder."""
    listed = ["git", "ls-files", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    return folder


def with_links(text: str, repository: str, version: str) -> str:
    """Return Markdown whose links and pictures work anywhere.

    >>> with_links("[a](docs/a.md), ![b](b.svg), [c](#c)", "https://host/o/n", "1.0")
    '[a](https://host/o/n/blob/v1.0/docs/a.md), ![b](https://host/o/n/raw/v1.0/b.svg), [c](#c)'
    """

    def absolute(found: re.Match[str]) -> str:
        kind = "raw" if found["head"].startswith("!") else "blob"
        return f"{found['head']}{repository}/{kind}/v{version}/{found['target']}"

    return LINK.sub(absolute, text)


def name_repository(tree: Path, repository: str) -> None:
    """Write the URL of the repository into the metadata of a copy, and into the links of its README."""
    version = re.search(r'^__version__ = "(.+)"$', (tree / "torch_table_loader/__init__.py").read_text(), re.MULTILINE)
    if version is None:
        raise ValueError("torch_table_loader/__init__.py must have a line with __version__")
    readme, settings = tree / "README.md", tree / "pyproject.toml"
    readme.write_text(with_links(readme.read_text(), repository, version[1]))
    pages = {"Repository": "", "Issues": "/issues", "Changelog": f"/blob/v{version[1]}/CHANGELOG.md"}
    lines = [f'{name} = "{repository}{path}"' for name, path in pages.items()]
    settings.write_text("\n".join((settings.read_text(), "[project.urls]", *lines, "")))
    tomllib.loads(settings.read_text())


def build(tree: Path, dist: Path, *more: str) -> None:
    """Build both distributions of a copy, and check what an index would refuse or show wrongly."""
    shutil.rmtree(dist, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(dist), *more, str(tree)], check=True)
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, dist.iterdir())], check=True)


def try_wheel(wheel: Path, python: str, *more: str) -> None:
    """Install a wheel into an empty environment of a Python, and read a table there.

    Args:
        more: arguments of ``pip install``, such as constraints.
    """
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", f"{folder}/env"], check=True)
        own = next(path for path in (Path(folder, "env", name) for name in ("bin", "Scripts")) if path.is_dir())
        subprocess.run([own / "python", "-m", "pip", "install", "--quiet", *more, str(wheel)], check=True)
        run_in(own, folder)


def run_in(scripts: Path, folder: str) -> None:
    """Read a table and ask for the version with what is installed beside a Python, and nothing else."""
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([scripts / "python", "-c", TRY], check=True, cwd=folder, env=alone)
    subprocess.run([scripts / "torch-table-loader", "--version"], check=True, cwd=folder, env=alone)


def main(arguments: Sequence[str] | None = None) -> None:
    """Build, check and try."""
    parser = argparse.ArgumentParser(description="Build and check what is published, under build/dist.")
    parser.add_argument("--repository", help="URL of the repository, for the links that an index shows")
    parser.add_argument("--python", action="append", help="Pythons to try the wheel in; by default the one that runs")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        tree = tracked(Path(folder))
        if asked.repository:
            name_repository(tree, asked.repository.rstrip("/"))
        build(tree, DIST)
    [wheel] = DIST.glob("*.whl")
    for python in asked.python or [sys.executable]:
        try_wheel(wheel, python)


if __name__ == "__main__":
    main()
