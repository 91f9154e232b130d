"""Write what is made of the declarations of options: ``docs/options.md``, `LoaderKeywords`, and a docstring.

Run it where the library can be imported: ``python -m tools.options_table``.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch_table_loader import ConfigError
from torch_table_loader.opening import last_snapshot
from torch_table_loader.options import ABOUT, ROWS, SPLITS, LoaderOptions, defaults, meanings

ROOT = Path(__file__).parents[1]
PAGE, MODULE = ROOT / "docs/options.md", ROOT / "torch_table_loader/keywords.py"
CALL = ROOT / "torch_table_loader/rank_dataset.py"

BEGIN, END = "<!-- made by tools/options_table.py -->", "<!-- made until here -->"
HEAD = ("| option | default | meaning |", "|---|---|---|")
_ONLY = {ROWS: ("", 'Only with `shuffle="rows"`.'), SPLITS: ("", 'Not with `shuffle="rows"`.')}
FIRST = (
    *("batch_size", "columns", "filters", "shuffle", "drop_last", "num_workers", "device", "even_ranks"),
    *("nulls", "strings", "collate_fn", "storage_options"),
)
"""The options that most calls need, which `create_dataloader` explains."""

OF_BATCHES = {"output_format", "collate_fn"}
"""The options that say what a batch is."""

LINK = re.compile(r"docs/([\w-]+)\.md(#[\w-]+)?")


def _markdown(words: str) -> str:
    """Link pages, and mark code.

    >>> _markdown('with shuffle="rows", as ``{a: b}``; see docs/engines.md.')
    'with `shuffle="rows"`, as `{a: b}`; see [engines](engines.md)'
    """
    words = words.removesuffix(".").replace("|", "\\|").replace("``", "`")
    parts = re.split(r"(`[^`]+`)", words)
    parts[::2] = [re.sub(r'(\w+=)?"[^"]+"', r"`\g<0>`", LINK.sub(_link, part)) for part in parts[::2]]
    return "".join(parts)


def _link(page: re.Match[str]) -> str:
    return f"[{page[1].replace('-', ' ')}]({page[1]}.md{page[2] or ''})"


def limits(name: str) -> str:
    """Say where an option may not be given, beyond what the title of its section says."""
    where = [] if ABOUT[name].mixture else ["mixtures"]
    where += ["Iceberg and Delta Lake tables"] if _is_of_plain_files(name) else []
    return f" *(not for {' or '.join(where)})*" if where else ""


def _is_of_plain_files(name: str) -> bool:
    asked: Any = SimpleNamespace(**{**defaults(), name: object()})
    try:
        last_snapshot(asked, "a table", "snapshot_id", (None, None, None), changelog=False, footers="eager")
    except ConfigError:
        return True
    return False


def table() -> str:
    """Give the tables, section by section."""
    said, default = {name: _markdown(words) for name, words in meanings().items()}, defaults()
    lines = [BEGIN]
    for section, names in groupby(ABOUT, lambda name: ABOUT[name].group):
        lines += ["", f"## {section}", *_ONLY.get(section, ()), "", *HEAD]
        for name in names:
            lines.append(f"| `{name}` | `{default[name]!r}` | {said[name]}{limits(name)} |")
    return "\n".join((*lines, "", END))


def written(page: str) -> str:
    """Give a page with its tables as they should be.

    Args:
        page: Markdown, with the two marks between which the tables stand.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page must have the lines {BEGIN!r} and {END!r}")
    return before + table() + after


def typed(module: str) -> str:
    """Give a module with the options in the place of the fields of its TypedDicts."""
    kinds = {entry.name: str(entry.type).replace("'", '"') for entry in fields(LoaderOptions)}
    for name, of_mixtures, of_batches in (
        ("OtherMixedKeywords", True, False),
        ("MixedKeywords", True, True),
        ("OtherKeywords", False, False),
    ):
        takes = [
            option
            for option in kinds
            if bool(ABOUT[option].mixture) == of_mixtures and (option in OF_BATCHES) == of_batches
        ]
        head, opening, rest = re.split(rf"(class {name}\(\w+, total=False\):\n)", module)
        docstring, _, rest = rest.partition("\n\n")
        _, _, after = rest.partition("\n\n\n")
        options = "\n".join(f"    {option}: {kinds[option]}" for option in takes)
        module = f"{head}{opening}{docstring}\n\n{options}\n\n\n{after}"
    return module


def explained(module: str) -> str:
    """Give a module with the options in the docstring of `create_dataloader`: those of most calls, then the others."""
    before, head, rest = re.split(r"(\n +Most calls need a few of these options:)", module)
    _, foot, after = re.split(r"(\n\n +Returns:\n)", rest, maxsplit=1)
    said, indent = meanings(), " " * 8
    lines = [_item(f"`{name}`: {said[name].replace('``', '`')}", indent) for name in FIRST]
    lines = ["", *lines, "", f"{indent}``help(LoaderOptions)`` explains the others, too:", ""]
    for group, names in groupby(ABOUT, lambda name: ABOUT[name].group):
        if others := [f"`{name}`" for name in names if name not in FIRST]:
            lines.append(_item(f"{group}: {', '.join(others)}", indent))
    return "\n".join((before + head, *lines)) + foot + after


def _item(words: str, indent: str) -> str:
    return textwrap.fill(
        f"* {words}", 120, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False
    )


def main() -> None:
    """Write the tables into their page, and what editors and help() show into its modules."""
    for path, make in ((PAGE, written), (MODULE, typed), (CALL, explained)):
        path.write_text(make(path.read_text()))


if __name__ == "__main__":
    main()
