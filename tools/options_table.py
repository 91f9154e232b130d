"""Write the table of all options, as the code has them: ``docs/options.md``.

Run it where the library can be imported: ``python -m tools.options_table docs/options.md``.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch_table_loader import ConfigError, LoaderOptions, MixedDataset
from torch_table_loader.opening import refuse_plain
from torch_table_loader.option_groups import GROUPS, RowMode, SplitMode, options_of
from torch_table_loader.options import defaults

BEGIN, END = "<!-- made by tools/options_table.py -->", "<!-- made until here -->"
HEAD = (
    "| option | default | group | splits | rows | mixture | Iceberg, Delta | meaning |",
    "|---|---|---|---|---|---|---|---|",
)
ENTRY = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)
LINK = re.compile(r"docs/([\w-]+)\.md(#[\w-]+)?")


def meanings() -> dict[str, str]:
    """Give what the docstring of `LoaderOptions` says of each option, as Markdown."""
    text = inspect.getdoc(LoaderOptions) or ""
    said = {name: " ".join(words.split()) for name, words in ENTRY.findall(text.partition("Args:")[2])}
    return {name: _markdown(words) for name, words in said.items()}


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


def in_mode(name: str) -> dict[str, bool]:
    """Say in which modes, and of which tables, an option may be given."""
    return {
        "splits": name not in options_of(RowMode),
        "rows": name not in options_of(SplitMode),
        "mixture": name in (MixedDataset._takes or ()),
        "Iceberg, Delta": not _is_of_plain_files(name),
    }


def _is_of_plain_files(name: str) -> bool:
    asked: Any = SimpleNamespace(**{**defaults(), name: object()})
    try:
        refuse_plain(asked, "eager", "a table", "snapshot_id=")
    except ConfigError:
        return True
    return False


def table() -> str:
    """Give the table: first the options without a group, then group by group."""
    group_of = {name: group.__name__ for group in GROUPS for name in options_of(group)}
    places = [None, *(group.__name__ for group in GROUPS)]
    said = meanings()
    rows = []
    for name, default in sorted(defaults().items(), key=lambda option: places.index(group_of.get(option[0]))):
        group = f"`{group_of[name]}`" if name in group_of else ""
        modes = " | ".join("✓" if valid else "–" for valid in in_mode(name).values())
        rows.append(f"| `{name}` | `{default!r}` | {group} | {modes} | {said[name]} |")
    return "\n".join((BEGIN, *HEAD, *rows, END))


def written(page: str) -> str:
    """Give a page with its table as it should be.

    Args:
        page: Markdown, with the two marks between which the table stands.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page must have the lines {BEGIN!r} and {END!r}")
    return before + table() + after


def main() -> None:
    """Write the table into the page that is named."""
    page = Path(sys.argv[1])
    page.write_text(written(page.read_text()))


if __name__ == "__main__":
    main()
