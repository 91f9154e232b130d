"""Write the table of all options, as the code has them: ``docs/options.md``.

Run it where the library can be imported: ``python -m tools.options_table docs/options.md``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch_table_loader import ConfigError, MixedDataset
from torch_table_loader.cli.arguments import meanings
from torch_table_loader.opening import refuse_plain
from torch_table_loader.options import ROWS_ONLY, SPLITS_ONLY, defaults

BEGIN, END = "<!-- made by tools/options_table.py -->", "<!-- made until here -->"
HEAD = (
    "| option | default | splits | rows | mixture | Iceberg, Delta | meaning |",
    "|---|---|---|---|---|---|---|",
)
SECTIONS = {
    "Batches and their order": (
        *("batch_size", "columns", "filters", "shuffle", "shuffle_seed", "drop_last", "epochs", "output_format"),
        *("collate_fn", "row_id", "pack"),
    ),
    "Workers and progress": (
        *("num_workers", "worker_type", "device", "pin_memory", "prefetch_batches"),
        "show_progress",
    ),
    "Ranks": ("num_ranks", "rank", "even_ranks", "check_plan"),
    "Rows in any order": tuple(ROWS_ONLY),
    "Splits": tuple(SPLITS_ONLY),
    "Types of columns": (*("nulls", "ragged", "strings", "decimals", "unsupported", "transforms", "decode"),),
    "Files and stores": (
        *("partitioning", "schema", "files", "raw_files", "storage_options"),
        *("verify_checksums", "plan_cache", "on_error", "on_growth"),
    ),
}
"""Where each option is explained."""
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


def in_mode(name: str) -> dict[str, bool]:
    """Say in which modes, and of which tables, an option may be given."""
    return {
        "splits": name not in ROWS_ONLY,
        "rows": name not in SPLITS_ONLY,
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
    """Give the tables, section by section."""
    if sorted(name for names in SECTIONS.values() for name in names) != sorted(defaults()):
        raise ValueError("each option must be in one of SECTIONS")
    said, default = {name: _markdown(words) for name, words in meanings().items()}, defaults()
    lines = [BEGIN]
    for section, names in SECTIONS.items():
        lines += ["", f"## {section}", "", *HEAD]
        for name in names:
            modes = " | ".join("✓" if valid else "–" for valid in in_mode(name).values())
            lines.append(f"| `{name}` | `{default[name]!r}` | {modes} | {said[name]} |")
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


def main() -> None:
    """Write the table into the page that is named."""
    page = Path(sys.argv[1])
    page.write_text(written(page.read_text()))


if __name__ == "__main__":
    main()
