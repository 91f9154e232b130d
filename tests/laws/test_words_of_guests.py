"""What a guest calls its own is not named elsewhere, but where it is declared, or in the contract that it serves.

Words that also mean something else are not looked for: `pack` is a block of memory, `packed` are bits, `tokens` a unit
that schedules and budgets count, `mixed` are splits and hashes, `grown` are extents, `weight` is the work of a lane.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import torch_table_loader
from torch_table_loader.installed import GUESTS

PACKAGE = Path(torch_table_loader.__file__).parent

WORDS = {
    "text": r"packing|_?Pack(s|er|ing|ed)?|Pack[A-Z].*|.*(seq_len|[Tt]okeni[zs]|doc_ids|joins_documents|long_docs).*",
    "mixtures": r".*([Mm]ixture|check_mixed|stop_rule|StopRule).*|Mixed[A-Z].*",
    "order": r".*(on_growth|[Ww]eighted_?[Rr]ows|row_weights).*|Weights|as_weights",
}
"""Words that mean one guest alone."""

FRONT = (
    "options.py",
    "keywords.py",
    "option_checks.py",
    "option_values.py",
    "__init__.py",
    "extend.py",
    "installed.py",
)
"""Where options, what they take and what is installed are declared."""

AROUND = ("cli/", "integrations/", "testing/", "report.py")
"""What stands around all of them."""

ELSEWHERE = {
    ("text", "samples.py"): "the contract: the length of samples that schedules change, and a public name of counts",
    ("mixtures", "samples.py"): "the contract: what samples of a source may not be",
    ("mixtures", "text/pack.py"): "answers that contract",
    ("mixtures", "text/__init__.py"): "the door of packs: `samples.parts`, which mixtures ask for columns",
    ("mixtures", "text/sequence_form.py"): "what that door leads to",
}
"""Who names a guest all the same, and why. None comes here but with a contract."""

_OWN = {("order", "mixtures/"): "sources of a mixture have weights of their own"}


def _names(tree: ast.AST) -> Iterator[str]:
    """Yield names, and texts that are one, such as those that `getattr` takes."""
    for node in ast.walk(tree):
        found = (getattr(node, field, None) for field in ("id", "attr", "arg", "name", "value"))
        yield from (each for each in found if isinstance(each, str) and each.isidentifier())


@functools.cache
def _names_of_files() -> dict[str, frozenset[str]]:
    return {
        path.relative_to(PACKAGE).as_posix(): frozenset(_names(ast.parse(path.read_text())))
        for path in PACKAGE.rglob("*.py")
    }


def _naming(guest: str) -> set[str]:
    """Return the files that name a guest from outside."""
    own = [*(module.replace(".", "/") for module in GUESTS[guest].modules), "engine/upgrades.py", *FRONT, *AROUND]
    own += [folder for other, folder in _OWN if other == guest]
    is_meant = re.compile(WORDS[guest]).fullmatch
    outside = {name: names for name, names in _names_of_files().items() if not name.startswith(tuple(own))}
    return {name for name, names in outside.items() if any(map(is_meant, names))}


@pytest.mark.parametrize("guest", WORDS)
def test_a_guest_is_named_in_its_room_alone(guest: str) -> None:
    expected = {name for other, name in ELSEWHERE if other == guest}
    assert _naming(guest) == expected & _names_of_files().keys()  # a build may lack a guest
