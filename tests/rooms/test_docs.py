"""Every example in the README and docs is run, and its output is compared."""

from __future__ import annotations

import doctest
import io
import logging
import re
import shlex
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import torch_table_loader
from tests.effort import daily
from tests.tables.catalogs import load_catalog
from tests.tables.plain import DEFAULTS
from tools.options_table import written
from torch_table_loader import StructuredDataset, errors, extend
from torch_table_loader.cli.main import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOKS = [path.with_suffix(".md").name for path in (ROOT / "docs" / "notebooks").glob("*.ipynb")]
HIDDEN = {"build", "dist"}
INTERNAL = ["design.md", "evidence.md", "state-format.md"]
"""For those who change the code: in no tab, and not found by the search of the site."""

MARKDOWN = sorted(
    page
    for page in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part in HIDDEN for part in page.relative_to(ROOT).parts)
)
FENCE = re.compile(r"^(?P<indent> *)```(?P<tag>\S*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
"""A fenced block; in a tab it is indented."""

LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<target>[^)\s]+)\)")
PICTURE = re.compile(r"!\[[^\]]*\]\((?P<target>[^)\s]+)\)")
NUMBER = re.compile(r"\d[\d,.]*")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Args:
        tag: its language.
        text: what is inside.
        line: where it begins.
    """

    tag: str
    text: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    """Return a page's fenced blocks in order."""
    text = page.read_text()
    found = FENCE.finditer(text)
    return [Block(m["tag"], textwrap.dedent(m["text"]), text.count("\n", 0, m.start()) + 2) for m in found]


@pytest.fixture
def clicks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change to a folder with the table that the pages assume: ``clicks/day=2026-01-0?/part-0.parquet``."""
    assert main(["sample", str(tmp_path / "clicks")]) == 0
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    logging.getLogger("torch_table_loader").setLevel(logging.NOTSET)  # a page turns it on
    if "accelerate" in sys.modules:  # an accelerator lives on in its classes
        state = sys.modules["accelerate.state"]
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@daily(17)
def test_examples_on_a_page_do_what_it_shows(page: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert clicks.is_dir()
    monkeypatch.setattr("pyiceberg.catalog.load_catalog", load_catalog)  # it is closed in the end
    module = ModuleType(f"page_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # pickle looks for classes of the page there
    names: dict[str, Any] = vars(module)
    for block in blocks_of(page):
        where = f"{page.name}:{block.line}"
        if block.tag == "console":
            for command, shown in commands_of(block.text):
                assert tidy(ran(command)) == tidy(shown), f"{where}: {command}"
        elif block.tag == "python" and block.text.startswith(">>> "):
            run_doctest(block, names, where)
        elif block.tag == "python":
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            exec(code, names)  # noqa: S102 the pages are ours


def run_doctest(block: Block, names: dict[str, Any], where: str) -> None:
    """Run a block that shows what its lines print."""
    example = doctest.DocTestParser().get_doctest(block.text, names, where, where, block.line - 1)
    said = io.StringIO()
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(optionflags=flags, verbose=False)
    failed = runner.run(example, out=said.write, clear_globs=False).failed
    names.update(example.globs)
    assert not failed, said.getvalue()


def commands_of(text: str) -> list[tuple[str, str]]:
    """Split a console block into commands and what each prints."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
    assert not parts[0].strip(), f"a console block begins with '$ ', got {parts[0]!r}"
    split = [part.replace("\\\n", " ").partition("\n") for part in parts[1:]]
    return [(command, shown) for command, _, shown in split]


def ran(command: str) -> str:
    """Run one command line of ours; give all that it prints."""
    program, *arguments = shlex.split(command)
    assert program == "torch-table-loader", f"tag a block with text if it shows another program: {command}"
    said, complained = io.StringIO(), io.StringIO()
    with redirect_stdout(said), redirect_stderr(complained), suppress(SystemExit):
        main(arguments)
    return complained.getvalue() + said.getvalue()


def tidy(text: str) -> list[str]:
    """Remove numbers, widths and empty lines from output."""
    lines = [" ".join(NUMBER.sub("#", line).split()) for line in text.splitlines()]
    return [line for line in lines if line]


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_markdown_lines_fit_in_100_characters(page: Path) -> None:
    assert [f"{page.name}:{number}: {line}" for number, line in own_lines(page) if len(line) > 100] == []


def own_lines(page: Path) -> Iterator[tuple[int, str]]:
    """Yield each numbered line that its author can break: not of a table, not what a command printed."""
    tag: str | None = None  # of the block that is open
    for number, line in enumerate(page.read_text("utf-8").splitlines(), start=1):
        is_output = tag == "console" and not line.startswith("$ ")
        if line.lstrip().startswith("```"):
            tag = line.lstrip().removeprefix("```") if tag is None else None
        elif not line.startswith("|") and not is_output:
            yield number, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_headings_and_pictures_stand_apart(page: Path) -> None:
    lines = PICTURE.sub("![", FENCE.sub("```", page.read_text("utf-8"))).splitlines()
    joined = [below for above, below in pairwise(lines) if len({"", kind_of(above), kind_of(below)}) == 3]
    assert joined == [], "without an empty line above, it becomes part of what is there"


def kind_of(line: str) -> str:
    """Tell tables, headings and pictures from text; a comment may stand beside anything."""
    if not line.strip() or line.startswith("<!--"):
        return ""
    return line[0] if line.startswith(("|", "#", "![")) else "text"


def test_the_documentation_stays_short() -> None:
    assert sum(len(page.read_text("utf-8").split()) for page in PAGES) <= 36_000, "say each thing on one page"


def test_every_block_is_run_or_marked_as_not_run() -> None:
    for page in PAGES:
        for block in blocks_of(page):
            assert block.tag in {"python", "console", "text"}, f"{page.name}:{block.line}: {block.tag!r}"
        assert page.read_text().count("```") == 2 * len(blocks_of(page)), f"{page.name}: a fence is not closed"


def test_the_table_of_options_agrees_with_the_code() -> None:
    page = (ROOT / "docs" / "options.md").read_text()
    assert page == written(page), "run: python -m tools.options_table"
    told = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", page, re.MULTILINE))
    assert {name: repr(value) for name, value in DEFAULTS.items()} == told
    elsewhere = "".join(page.read_text() for page in PAGES if page.name != "options.md")
    assert [name for name in DEFAULTS if not re.search(rf"`{name}[`=]", elsewhere)] == []


def test_every_error_is_documented() -> None:
    told = (ROOT / "docs" / "errors.md").read_text()
    raised = [name for name in errors.__all__ if name != "TableLoaderError"]
    assert [name for name in raised if f"| `{name}` |" not in told] == []


def anchors_of(page: Path) -> set[str]:
    """Give the anchors of a page's headings, as Markdown renderers make them."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    named = re.findall(r"^::: (\S+)$", text, re.MULTILINE)  # what mkdocstrings puts there
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings} | {*named}


def test_every_internal_link_has_a_target() -> None:
    for page in PAGES:
        for match in LINK.finditer(FENCE.sub("", page.read_text())):
            target, _, anchor = match["target"].partition("#")
            if "://" in target:
                continue
            aim = (page.parent / target).resolve() if target else page
            assert aim.exists(), f"{page.name} links to {target}, which is not there"
            if page.parent.name == "docs":
                assert page.parent in aim.parents, f"{page.name} links to {target}, which is not part of the site"
            if anchor:
                assert anchor in anchors_of(aim), f"{page.name} links to {match['target']}, which has no such heading"


def test_every_picture_exists() -> None:
    shown = {page: PICTURE.findall(FENCE.sub("", page.read_text())) for page in PAGES}
    assert sum(map(len, shown.values())) >= 5
    missing = [(page.name, target) for page in PAGES for target in shown[page] if not (page.parent / target).is_file()]
    assert missing == []


def test_the_site_has_every_page() -> None:
    listed = re.findall(r"^ +- .*?([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted([*listed, *INTERNAL]) == sorted(["changelog.md", *NOTEBOOKS, *(page.name for page in PAGES[1:])])


def reference() -> str:
    """Give the pages of the API as one text."""
    return "\n".join(page.read_text() for page in PAGES if page.name.startswith("api-"))


def test_every_public_name_has_its_place_in_the_reference() -> None:
    told = re.findall(r"^::: torch_table_loader\.(\w+)$", reference(), re.MULTILINE)
    names = {*torch_table_loader.__all__, "extend", "testing"} - {"__version__"}
    assert len(told) == len(set(told))
    assert set(told) == names, "write '::: torch_table_loader.Name' in docs/api-….md for each public name, and no other"


def test_every_part_for_plug_ins_is_in_the_reference() -> None:
    section = (ROOT / "docs" / "api-plugins.md").read_text().partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    shown = re.findall(r"^::: torch_table_loader\.extend\.(\w+)$", reference(), re.MULTILINE)
    assert sorted([*shown, *re.findall(r"`(\w+)`", " ".join(cells))]) == sorted(extend.__all__)


def test_every_extra_for_users_is_documented() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    told = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    assert sorted(told) == sorted(extras.keys() - {"dev", "docs", "bench", "writers"})


@pytest.mark.parametrize(
    "word",
    [
        *("pin_memory", "OOM", "slow", "hangs", "null", "worker_init_fn", "DistributedSampler", "deterministic"),
        *("StatefulDataLoader", "Subset", "random_split", "ConcatDataset", "k-fold"),
    ],
)
def test_what_people_search_for_is_a_heading(word: str) -> None:
    pages = [(ROOT / "docs" / name).read_text() for name in ("troubleshooting.md", "dataloader.md", "types.md")]
    headings = re.findall(r"^## (.+)$", "\n".join(pages), re.MULTILINE)
    assert any(word.lower() in heading.lower() for heading in headings)


def test_the_site_makes_no_requests_to_other_hosts() -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    assert re.search(r"^  font: false\b", config, re.MULTILINE), "Material loads fonts from Google otherwise"
    assert "://" not in config
    assert "://" not in (ROOT / "docs" / "stylesheets" / "site.css").read_text()


def test_every_test_named_in_the_evidence_exists() -> None:
    named = re.findall(r"`((?:tests|bench)/[^`]+)`", (ROOT / "docs" / "evidence.md").read_text())
    assert len(named) > 30
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    "folder", ["torch_table_loader/engine", "torch_table_loader/planning", "torch_table_loader/read", "tests"]
)
def test_what_the_readme_of_a_folder_names_is_there(folder: str) -> None:
    root = ROOT / folder
    named = re.findall(r"`([\w/*]+(?:\.py|/))`", (root / "README.md").read_text())
    assert len(named) > 5
    places = (root, root.parent, ROOT, ROOT / "torch_table_loader", ROOT / "tests")
    assert [name for name in named if not any(list(place.glob(name)) for place in places)] == []


@pytest.mark.usefixtures("clicks")
def test_the_loss_of_the_quick_start_falls(capsys: pytest.CaptureFixture[str]) -> None:
    [script] = [block for block in blocks_of(ROOT / "docs" / "quickstart.md") if "validation loss" in block.text]
    torch.manual_seed(0)
    exec(script.text, {"StructuredDataset": StructuredDataset})  # noqa: S102 the page is ours
    losses = [float(loss) for loss in re.findall(r"validation loss ([\d.]+)", capsys.readouterr().out)]
    assert len(losses) == 3
    assert losses[-1] < losses[0] - 0.005
    assert losses[-1] < 0.68, "0.693 is a coin"
