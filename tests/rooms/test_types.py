"""What a type checker says of scripts of users: pyright's strict mode finds nothing in them."""

from __future__ import annotations

import ast
import doctest
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.rooms.test_docs import PAGES, blocks_of
from tests.rooms.test_notebooks import NOTEBOOKS

ROOT = Path(__file__).parents[2]

OF_OTHERS = {"backward", "step"}
"""Members that torch leaves without types."""

COMMON = """
from torch_table_loader import Batch, LoaderKeywords, StructuredDataset, TableLoader, Vocabulary

common: LoaderKeywords = {"batch_size": 256, "columns": ["label", "price", "ad"], "strings": "codes"}
seen = StructuredDataset("clicks", **common)
stats = seen.statistics(["price"])
words = Vocabulary(seen.fit_vocabulary("ad", max_size=100))
fitted: LoaderKeywords = {**common, "transforms": {"price": stats["price"].standardize}, "strings": {"ad": words}}
train, dataset = StructuredDataset.create_dataloader("clicks", **{**fitted, "shuffle": "splits"})
parts = seen.with_options(**fitted).split({"train": 0.8, "val": 0.2}, by="ad")
val: TableLoader = parts["val"].loader()


def rows(batch: Batch) -> int:
    return len(batch["label"])


for epoch in range(dataset.epoch, 2):
    train.set_epoch(epoch)
    print(sum(rows(batch) for batch in train), sum(rows(batch) for batch in val), len(train), train.remaining)
print(train.metrics().advice(), dataset.explain().memory_bound, train.state_dict())
print(train.dataset.left_out, parts["val"].loader().dataset.fit_vocabulary("ad"))
"""


TYPED = """
from typing import Any, assert_type

import torch

from torch_table_loader import Batch, IcebergDataset, LoaderKeywords, StructuredDataset, TableLoader


def prices(batch: Batch) -> torch.Tensor:
    return torch.stack([batch["price"], batch["label"]])


plain, _ = StructuredDataset.create_dataloader("clicks", batch_size=512, shuffle=True)
lake, _ = IcebergDataset.create_dataloader("shop.clicks", {"type": "sql"}, output_format="numpy")
collated, _ = StructuredDataset.create_dataloader("clicks", collate_fn=prices)
rows, _ = StructuredDataset.create_dataloader("clicks", output_format="arrow")
both, _ = StructuredDataset.create_dataloader("clicks", output_format="arrow", collate_fn=prices)
options: LoaderKeywords = {"batch_size": 512, "columns": ["price"]}
open_to_all, _ = StructuredDataset.create_dataloader("clicks", **options)
others: dict[str, Any] = {"output_format": "arrow"}
unknown, _ = StructuredDataset.create_dataloader("clicks", **others)
for number, batch in enumerate(plain):
    assert_type(batch, Batch)
assert_type(next(iter(lake)), Batch)
for tensor in collated:
    assert_type(tensor, torch.Tensor)
for a, b, c, d in zip(rows, both, open_to_all, unknown):
    assert_type((a, b, c, d), tuple[Any, Any, Any, Any])
loaders: list[TableLoader] = [plain, lake, collated, rows]
print(plain.dataset.head())
iter(plain).close()
"""
"""Batches have a type where the call says what they are, and any where it does not."""


def scripts() -> Iterator[tuple[str, str]]:
    """Give the scripts by name: a page is one session, but for blocks that import the dataset themselves."""
    yield "common", COMMON
    yield "typed", TYPED
    for page in (ROOT / "README.md", ROOT / "docs" / "quickstart.md"):
        blocks = [block for block in blocks_of(page) if block.tag == "python"]
        whole = [block for block in blocks if "\nfrom torch_table_loader import StructuredDataset" in f"\n{block.text}"]
        for block in whole:
            yield f"{page.stem}_{block.line}", block.text
        yield page.stem, "\n".join(plain(block.text) for block in blocks if block not in whole)


def plain(text: str) -> str:
    """Give a block as a script, in which shown values are printed."""
    if not text.startswith(">>> "):
        return text
    sources = [example.source for example in doctest.DocTestParser().get_examples(text)]
    shown = [isinstance(ast.parse(source).body[-1], ast.Expr) for source in sources]
    return "".join(
        f"print({source})\n" if is_shown else source for source, is_shown in zip(sources, shown, strict=True)
    )


def annotated(text: str) -> str:
    """Give a page's script with Any where a function of the page leaves out a type: pages teach other things."""
    tree = ast.parse(text)
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        own = function.args
        for each in filter(None, (*own.posonlyargs, *own.args, *own.kwonlyargs, own.vararg, own.kwarg)):
            if each.annotation is None and each.arg != "self":
                each.annotation = ast.Name("Any")
        if function.returns is None and function.name != "__init__":
            function.returns = ast.Name("Any")
    if ast.unparse(tree) != ast.unparse(ast.parse(text)):
        tree.body[:0] = ast.parse("from typing import Any").body
    return ast.unparse(ast.fix_missing_locations(tree))


UNTYPED = ("accelerate", "fsspec", "pandas", "pyarrow", "torchdata")
"""Packages that say no types: everything in them is any."""


def found_by_pyright(folder: Path, *, silent: Sequence[str] = ()) -> dict[str, list[str]]:
    """Check the scripts of a folder in strict mode; give what is said of each line.

    Args:
        silent: rules that say nothing.
    """
    stubs = folder / "stubs"
    for package in UNTYPED:
        (stubs / package).mkdir(parents=True)
        for name in ("__init__", "compute", "dataset", "lib", "parquet", "stateful_dataloader"):
            (stubs / package / f"{name}.pyi").write_text(
                "from typing import Any\ndef __getattr__(name: str) -> Any: ...\n"
            )
    settings = {
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "extraPaths": [str(ROOT)],
        "stubPath": str(stubs),
        "ignore": [str(stubs)],
        **dict.fromkeys(silent, False),
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["summary"]["filesAnalyzed"] > 0, done.stderr
    found: dict[str, list[str]] = {}
    for each in answer["generalDiagnostics"]:
        line = f"{Path(each['file']).name}:{each['range']['start']['line'] + 1}"
        found.setdefault(line, []).append(each["message"])
    return found


@pytest.mark.slow
def test_strict_pyright_finds_nothing_in_scripts_of_users(tmp_path: Path) -> None:
    for name, text in scripts():
        (tmp_path / f"{name}.py").write_text(text)
    assert len([*tmp_path.iterdir()]) >= 5
    of_others = re.compile(rf'Type of "({"|".join(OF_OTHERS)})" is .*unknown')
    found = found_by_pyright(tmp_path)
    assert {line: said for line, said in found.items() if not any(map(of_others.match, said))} == {}


MEANT = re.compile(
    rf'Type of "({"|".join(OF_OTHERS)}|evaluate|load|manual_seed|save|to_padded_tensor|train)" is .*unknown|'
    r'"(save|load)" is not exported from module "torch\.|Class overlaps "Stateful"|Argument type is .*"type\[Unknown|'
    r'"snapshot_id" is not a known attribute of "None"|frozenset\[Unknown\]|Type of "file" is unknown|'
    r'No overloads for "create_dataloader" .*\(Literal\[\'clicks\'\], Literal\[4\]\)$',
    re.DOTALL,
)
"""What is said of others' types, of an empty set, of a lambda's argument, and of the page that shows a wrong call."""

AS_PAGES_DO = (
    "reportDuplicateImport",
    "reportPossiblyUnboundVariable",
    "reportUnknownArgumentType",
    "reportUnknownLambdaType",
    "reportUnusedExpression",
)
"""A block imports what it needs once more; a lambda for an option that takes any function says no types; a cell shows
its last value, and a loop sets a name."""


@pytest.mark.slow
def test_pyright_finds_nothing_in_the_code_of_any_page(tmp_path: Path) -> None:
    """A page is one session, in strict mode, but for types that its own functions leave out."""
    for page in PAGES:
        if texts := [plain(block.text) for block in blocks_of(page) if block.tag == "python"]:
            (tmp_path / f"{page.stem.replace('-', '_')}_page.py").write_text(annotated("\n".join(texts)))
    for path in NOTEBOOKS:
        cells = [cell["source"] for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        lines = "\n".join(map("".join, cells)).split("\n")
        code = "\n".join(line for line in lines if not line.startswith(("!", "%")))
        (tmp_path / f"{path.stem.replace('-', '_')}_notebook.py").write_text(annotated(code))
    assert len([*tmp_path.glob("*_page.py")]) >= 30
    found = found_by_pyright(tmp_path, silent=AS_PAGES_DO)
    assert {line: said for line, said in found.items() if not all(map(MEANT.search, said))} == {}


WRONG = {
    'common: LoaderKeywords = {"batchsize": 4}': "batchsize",
    'StructuredDataset.create_dataloader("clicks", shuffle="row")': "row",
    'StructuredDataset("clicks").split(["train"], by="ad")': "parts",
}


@pytest.mark.slow
def test_wrong_options_are_found_before_a_script_runs(tmp_path: Path) -> None:
    head = "from torch_table_loader import LoaderKeywords, StructuredDataset"
    (tmp_path / "wrong.py").write_text("\n".join((head, *WRONG)))
    found = found_by_pyright(tmp_path)
    assert [*found] == [f"wrong.py:{line}" for line in range(2, 2 + len(WRONG))]
    assert all(any(said in each for each in found[line]) for line, said in zip(found, WRONG.values(), strict=True))
