"""The tool that takes guests off finds a core that needs one; two of them come off here, and all in make test-all."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tools import guests
from tools.guests import BESIDE, CORE, MODULES, Beside, check, files_of, take_off
from tools.plant import ROOT
from torch_table_loader.installed import GUESTS

TESTS = "from torch_table_loader.core import answer\n\n\ndef test_answer():\n    assert answer() == 42\n"
FILES = {
    "torch_table_loader/__init__.py": "from torch_table_loader.installed import refuse_missing_guests\n"
    "refuse_missing_guests()\n",
    "torch_table_loader/delta/__init__.py": "class DeltaDataset: ...\n",
    "torch_table_loader/delta/log.py": "ANSWER = 42\n",
    "tests/test_core.py": TESTS,
    "tests/rooms/test_delta_tables.py": "from torch_table_loader import delta\n",
    "docs/delta.md": "",
}
ALONE = "def answer():\n    return 42\n"
NEEDY = "def answer():\n    from torch_table_loader.delta.log import ANSWER\n    return ANSWER\n"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small package whose one guest is Delta Lake, without its core."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    for name in ("installed", "errors"):
        shutil.copyfile(ROOT / "torch_table_loader" / f"{name}.py", tmp_path / "torch_table_loader" / f"{name}.py")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)  # noqa: S607
    beside = Beside("import torch_table_loader.delta", (), BESIDE["delta"].tests, ("delta",))
    monkeypatch.setattr(guests, "BESIDE", {"delta": beside})
    monkeypatch.setattr(guests, "CORE", ("tests/test_core.py",))
    return tmp_path


@pytest.mark.parametrize("core", [ALONE, NEEDY])
def test_a_guest_comes_off_unless_the_core_needs_it(
    checkout: Path, capsys: pytest.CaptureFixture[str], core: str
) -> None:
    (checkout / "torch_table_loader" / "core.py").write_text(core, "utf-8")
    assert check(["delta"], checkout) is (core == ALONE)
    said = capsys.readouterr().out
    assert said.startswith("off   delta: 3 lines" if core == ALONE else "STAYS delta: 3 lines")
    assert (core == ALONE) is ("this build has no Delta Lake" not in said)
    assert (checkout / "torch_table_loader" / "delta").exists(), "only a copy changes"


def test_a_guest_goes_with_its_tests_and_pages(checkout: Path) -> None:
    assert take_off("delta", checkout) == 3
    left = {path.relative_to(checkout).as_posix() for path in checkout.rglob("*.*") if ".git/" not in path.as_posix()}
    assert left & FILES.keys() == {name for name in FILES if "delta" not in name}


@pytest.mark.parametrize("name", GUESTS)
def test_the_table_names_files_that_exist(name: str) -> None:
    assert [path for path in files_of(name, ROOT) if not path.exists()] == []
    tests = [set(ROOT.glob(pattern)) for pattern in BESIDE[name].tests]
    assert all(tests)
    assert {ROOT / test.partition("::")[0] for test in BESIDE[name].chosen} <= set().union(*tests)
    for test in (*CORE, *BESIDE[name].chosen):
        file, _, function = test.partition("::")
        assert f"def {function}" in (ROOT / file).read_text("utf-8")


def test_each_module_is_of_one_guest() -> None:
    modules = [module for own in MODULES.values() for module in own]
    assert len(set(modules)) == len(modules)
    assert BESIDE.keys() == GUESTS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iceberg", "report"])
def test_a_guest_of_ours_comes_off(name: str) -> None:
    assert check([name], ROOT)
