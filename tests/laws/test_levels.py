"""Allowed imports: the design's table of rooms, checked against the source."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.laws.borders import BORDERS
from tests.laws.imports import Import, Sources
from tools.guests import FRONT, MODULES
from torch_table_loader.installed import GUESTS, has

ROOT = Path(__file__).parents[2] / "torch_table_loader"

LEVELS = {
    "cancellation": 0,
    "causes": 0,
    "errors": 0,
    "forks": 0,
    "installed": 0,
    "local_files": 0,
    "cached": 0,
    "messages": 0,
    "nesting": 0,
    "option_values": 0,
    "records": 0,
    "scrubbing": 0,
    "sizes": 0,
    "system": 0,
    "translating": 0,
    "units": 0,
    "contracts": 1,
    "format_contracts": 1,
    "option_checks": 1,
    "options": 1,
    "ranges": 1,
    "samples": 1,
    "schedules": 1,
    "arrow": 2,
    "fact_tables": 2,
    "planning": 2,
    "predicates": 3,
    "report": 3,
    "source": 4,
    "read": 4,
    "store": 4,
    "batching": 4,
    "engine": 5,
    "far": 5,
    "formats": 5,
    "testing": 6,
    "budgets": 7,
    "delta": 7,
    "iceberg": 7,
    "integrations": 7,
    "mixtures": 7,
    "order": 7,
    "text": 7,
    "cli": 8,
    "extend": 8,
    "": 9,
}
FACADE = 6
"""Any other module beside the rooms: dataset, loader, explain, …"""

WITH_TORCH = ("batching", "budgets", "engine", "integrations", "text")
"""The rooms that import torch, beside the facade."""

MOST_LINES_OF_A_FILE = 600
MOST_LINES_OF_A_FUNCTION = 45
MOST_NAMES_OF_THE_CONTRACT = 30
"""Of that of table formats, which a format of ours imports."""


def room_of(module: str) -> str:
    """Return the folder of a module; "" for modules beside the folders, which form one room."""
    first = module.partition(".")[0]
    return first if first in LEVELS and LEVELS[first] > 1 else ""


def level_of(module: str) -> int:
    return LEVELS.get(module.partition(".")[0], FACADE)


def is_facade(module: str) -> bool:
    return level_of(module) == FACADE and room_of(module) == ""


def guest_at(module: str) -> str | None:
    """Return the guest that has a module; None for the core."""
    owners = [(own, name) for name, modules in MODULES.items() for own in modules]
    return next((name for own, name in owners if module == own or module.startswith(f"{own}.")), None)


def crosses(entry: Import) -> bool:
    """Return whether the core, or another guest, imports a module of a guest."""
    return entry.importer not in FRONT and guest_at(entry.importer) != guest_at(entry.target)


def is_excepted(entry: Import) -> bool:
    return (entry.importer, entry.target) in BORDERS


parsed = functools.cache(Sources.of)


@functools.cache
def imports_of(root: Path) -> list[Import]:
    return list(parsed(root).imports())


def violations(root: Path) -> list[str]:
    """Return every violation of the table, with module and line."""
    sources = parsed(root)
    imports = imports_of(root)
    found = [f"{entry.importer}:{entry.line} {fault}" for entry in imports for fault in faults(entry)]
    found += [f"circle: {' -> '.join(circle)}" for circle in circles(imports)]
    found += [f"{name} has {lines} lines" for name, lines in sources.long_files(MOST_LINES_OF_A_FILE)]
    long = sources.long_functions(MOST_LINES_OF_A_FUNCTION)
    return found + [f"{name}.{function} has {lines} lines" for name, function, lines in long]


def faults(entry: Import) -> Iterator[str]:
    if entry.inside:
        yield from inner_faults(entry)
    else:
        yield from outer_faults(entry)


def inner_faults(entry: Import) -> Iterator[str]:
    own, other = level_of(entry.importer), level_of(entry.target)
    if other > own:
        yield f"imports {entry.target or 'the package'} of level {other}, and is of level {own} itself"
    elif other == own and room_of(entry.importer) != room_of(entry.target):
        yield f"imports {entry.target}, which is of its own level {own} but of another room"
    if (guest := guest_at(entry.target)) and crosses(entry) and not is_excepted(entry):
        yield f"imports {entry.target}, which is of the guest {guest!r}"


def outer_faults(entry: Import) -> Iterator[str]:
    module, name = entry.importer, entry.target.partition(".")[0]
    room = room_of(module)
    if name in ("torch", "torchvision") and not (is_facade(module) or room in WITH_TORCH):
        yield f"imports {name}"
    if name in ("lightning", "transformers", "accelerate", "torchdata") and room != "integrations":
        yield f"imports {name}"
    if name == "onnx" and guest_at(module) != "tensorproto":
        yield "imports onnx"
    if name == "pyiceberg" and guest_at(module) != "iceberg":
        yield "imports pyiceberg"
    if name == "deltalake" and guest_at(module) != "delta":
        yield "imports deltalake"
    if name in ("fsspec", "s3fs", "boto3", "botocore", "obstore") and room not in ("far", "source"):
        yield f"imports {name}"
    if name == "pyarrow" and level_of(module) < 3 and room != "arrow" and not entry.typing_only:
        yield "imports pyarrow at run time"


def circles(imports: list[Import]) -> list[list[str]]:
    """Find import cycles inside rooms; a cycle across levels contains an upward import."""
    edges: dict[str, set[str]] = {}
    for entry in imports:
        if entry.inside and level_of(entry.importer) == level_of(entry.target):
            edges.setdefault(entry.importer, set()).add(entry.target)
    return circles_in(edges)


def circles_in(edges: dict[str, set[str]]) -> list[list[str]]:
    """Find the cycles of a graph, depth first."""
    found: list[list[str]] = []
    done: set[str] = set()

    def walk(node: str, path: list[str]) -> None:
        if node in path:
            found.append([*path[path.index(node) :], node])
            return
        if node in done:
            return
        for target in sorted(edges.get(node, ())):
            walk(target, [*path, node])
        done.add(node)

    for node in sorted(edges):
        walk(node, [])
    return found


def is_gone(name: str) -> bool:
    """Return whether a module, folder or file is of a guest that this build lacks."""
    guest = guest_at(name.removesuffix(".py").strip("/").replace("/", "."))
    return guest in GUESTS and not has(guest)


def test_the_package_follows_the_table_of_rooms() -> None:
    assert violations(ROOT) == []


def test_no_exception_from_the_borders_is_left_that_is_not_needed() -> None:
    needed = {(entry.importer, entry.target) for entry in imports_of(ROOT) if entry.inside and crosses(entry)}
    assert [pair for pair in sorted(BORDERS - needed) if not any(map(is_gone, pair))] == []


def test_guests_do_not_import_each_other_in_circles() -> None:
    beside: dict[str, set[str]] = {}
    for importer, target in BORDERS:
        if (guest := guest_at(importer)) and (other := guest_at(target)):
            beside.setdefault(guest, set()).add(other)
    assert circles_in(beside) == []


@pytest.mark.parametrize("name", ["delta", "iceberg"])
def test_table_formats_are_written_on_their_contract_alone(name: str) -> None:
    outside = {entry.target for entry in imports_of(ROOT) if entry.inside and guest_at(entry.importer) == name}
    assert {target for target in outside if guest_at(target) != name} <= {"errors", "table_formats"}
    assert len(names_from("table_formats", name)) <= MOST_NAMES_OF_THE_CONTRACT


def names_from(module: str, guest: str) -> set[str]:
    """Return the names of a module that a guest imports."""
    full, trees = f"{ROOT.name}.{module}", parsed(ROOT).modules
    nodes = [node for own, (tree, _) in trees.items() if guest_at(own) == guest for node in ast.walk(tree)]
    return {
        alias.name for each in nodes if isinstance(each, ast.ImportFrom) and each.module == full for alias in each.names
    }


def test_every_module_of_a_guest_exists() -> None:
    known = set(parsed(ROOT).modules)
    assert [module for own in MODULES.values() for module in own if module not in known and not is_gone(module)] == []


def test_public_names_are_sorted_and_exist() -> None:
    import torch_table_loader

    names = torch_table_loader.__all__
    assert names == sorted(names)
    homes = torch_table_loader._HOMES
    assert all(hasattr(torch_table_loader, name) for name in names if not is_gone(homes.get(name, "")))


def test_every_room_that_exists_has_a_level() -> None:
    assert {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()} <= set(LEVELS)


def rooms_of(root: Path) -> dict[str, int]:
    """Return the rooms that exist, by the name that the design gives them: modules beside the folders, and folders."""
    modules = {path.stem: level_of(path.stem) for path in root.glob("*.py") if path.stem != "__init__"}
    folders = [path.parent.relative_to(root).as_posix() for path in root.glob("*/**/__init__.py")]
    return modules | {f"{folder}/": level_of(folder.partition("/")[0]) for folder in folders}


def test_the_design_names_the_rooms_that_exist_and_no_others() -> None:
    page = (ROOT.parent / "docs" / "design.md").read_text(encoding="utf-8")
    checks = (ROOT.parent / "tests" / "fuzz" / "README.md").read_text(encoding="utf-8")
    named = {name: int(level) for name, level in re.findall(r"^\| `([a-z_/]+)` \| (\d) \|", page, flags=re.MULTILINE)}
    assert {room: level for room, level in named.items() if not is_gone(room)} == rooms_of(ROOT)
    files = set(re.findall(r"`((?!test_)[a-z_]+(?:/[a-z_]+)*\.py)`", page + checks)) - {"cases.py", "mutations.py"}
    assert files
    missing = [name for name in sorted(files) if not (ROOT / name).exists() and not (ROOT.parent / name).exists()]
    assert [name for name in missing if not is_gone(name)] == []


@pytest.mark.parametrize("root", [ROOT, ROOT.parent / "tests"], ids=lambda root: root.name)
def test_file_names_are_unique(root: Path) -> None:
    names = [path.name for path in root.glob("**/*.py") if path.name not in {"__init__.py", "conftest.py"}]
    assert sorted(names) == sorted(set(names))


def test_every_module_of_the_package_is_checked() -> None:
    sources = parsed(ROOT)
    assert {"", "errors", "planning", "planning.lanes", "source.storage"} <= set(sources.modules)
    targets = {entry.target for entry in imports_of(ROOT) if entry.importer == "planning.lanes"}
    assert {"planning.runs", "numpy", "heapq"} <= targets


SOUND = {
    "__init__.py": "from pkg.dataset import Dataset\n",
    "errors.py": "class E(Exception): ...\n",
    "records.py": "from pkg.errors import E\nif 'TYPE_CHECKING':\n    import pyarrow\n",
    "arrow/__init__.py": "",
    "arrow/buffers.py": "import pyarrow as pa\n",
    "planning/__init__.py": "",
    "planning/keys.py": "import numpy\n",
    "planning/runs.py": "from .keys import x\nfrom pkg.planning import keys\n",
    "read/__init__.py": "",
    "read/parquet.py": "import pyarrow.parquet as pq\nfrom pkg.planning.runs import Runs\n",
    "formats/tensorproto/__init__.py": "import onnx\nfrom pkg.planning.keys import x\n",
    "source/__init__.py": "",
    "source/storage.py": "import fsspec\n",
    "formats/__init__.py": "",
    "formats/avro/__init__.py": "",
    "iceberg/__init__.py": "import pyiceberg\nfrom pkg.dataset import Dataset\n",
    "engine/__init__.py": "",
    "engine/work.py": "import torch\nfrom pkg.read import parquet\n",
    "dataset.py": "import torch\nfrom pkg.engine.work import Work\n",
    "loader.py": "from pkg.dataset import Dataset\n",
}

PLANTED = {
    "an upper level": ("records.py", "from pkg.planning.keys import x", "imports planning.keys of level 2"),
    "the package itself": ("dataset.py", "import pkg", "imports the package of level 9"),
    "planning asks arrow": (
        "planning/keys.py",
        "from pkg.arrow import x",
        "imports arrow, which is of its own level 2",
    ),
    "arrow asks planning": ("arrow/buffers.py", "from pkg.planning import x", "imports planning, which is of its own"),
    "a guest": ("dataset.py", "import pkg.formats.tensorproto", "imports formats.tensorproto, which is of the guest"),
    "another guest": (
        "formats/avro/__init__.py",
        "def f():\n    import pkg.formats.orc.orc",
        "imports formats.orc.orc, which is of the guest 'orc'",
    ),
    "a guest for types": (
        "cli/main.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg.iceberg import D",
        "imports iceberg, which is of the guest 'iceberg'",
    ),
    "onnx": ("read/parquet.py", "import onnx", "imports onnx"),
    "another room": ("read/parquet.py", "from pkg.source.listing import x", "imports source.listing, which is of its"),
    "a lazy import": ("planning/keys.py", "def f():\n    import pkg.dataset", "imports dataset of level 6"),
    "an import for types": (
        "planning/keys.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg.engine import work",
        "imports engine.work of level 5",
    ),
    "a relative import": ("planning/keys.py", "from ..engine import work", "imports engine.work of level 5"),
    "an import by name": ("planning/keys.py", "import importlib\nimportlib.import_module('torch')", "imports torch"),
    "a circle in a room": (
        "planning/keys.py",
        "from pkg.planning.runs import Runs",
        "circle: planning.keys -> planning.r",
    ),
    "a circle of the facade": (
        "dataset.py",
        "def f():\n    from pkg.loader import L",
        "circle: dataset -> loader -> da",
    ),
    "a circle with itself": (
        "planning/keys.py",
        "from pkg.planning import keys",
        "circle: planning.keys -> planning.keys",
    ),
    "torch below": ("read/parquet.py", "import torch.utils.data", "imports torch"),
    "torch for types": ("read/parquet.py", "if TYPE_CHECKING:\n    import torch", "imports torch"),
    "pyiceberg elsewhere": ("source/storage.py", "from pyiceberg.catalog import load", "imports pyiceberg"),
    "deltalake elsewhere": ("iceberg/__init__.py", "import deltalake", "imports deltalake"),
    "fsspec elsewhere": ("read/parquet.py", "import fsspec", "imports fsspec"),
    "pyarrow at run time": ("records.py", "def f():\n    import pyarrow.compute", "imports pyarrow at run time"),
    "pyarrow in the else": (
        "records.py",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import pyarrow",
        "imports pyarrow at run time",
    ),
    "a long file": (
        "records.py",
        "x = 1\n" * (MOST_LINES_OF_A_FILE + 1),
        f"records has {MOST_LINES_OF_A_FILE + 5} lines",
    ),
    "a long function": ("records.py", "def f():\n    '''Doc.'''\n" + "    x = 1\n" * 46, "records.f has 46 lines"),
}


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / "pkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("'TYPE_CHECKING'", "TYPE_CHECKING"), encoding="utf-8")
    return root / "pkg"


def test_a_sound_package_passes(tmp_path: Path) -> None:
    assert violations(plant(tmp_path, SOUND)) == []


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(tmp_path: Path, fault: str) -> None:
    name, text, expected = PLANTED[fault]
    found = violations(plant(tmp_path, SOUND | {name: f"{SOUND.get(name, '')}{text}\n"}))
    assert len(found) == 1, found
    assert expected in found[0]


def test_the_docstring_of_a_function_does_not_count(tmp_path: Path) -> None:
    documented = "def f():\n    '''\n" + "    word\n" * 60 + "    '''\n    return 1\n"
    assert violations(plant(tmp_path, SOUND | {"records.py": documented})) == []
