"""What MkDocs does beyond its configuration: pages of the changelog, notebooks and options, and how code is copied."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
HEADER = re.compile(r"^\| option \| default \| meaning \|\n\|[-|]+\|\n", re.MULTILINE)
OPTION = re.compile(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", re.MULTILINE)
"""A row of the table of options, which becomes a heading: search finds headings, and links lead to them."""

BOOSTS = {"options": 2.0, "api": 0.1}
"""How much more the search makes of pages whose names begin so: who types an option wants its explanation first."""

INTERNAL = {"design.md", "evidence.md", "state-format.md"}
"""Pages for those who change the code: the search leaves them out."""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the changelog of the repository's root, and a page for each notebook."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=text))
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        page, pictures = rendered(json.loads(notebook.content_string), notebook.name)
        files.append(File.generated(config, notebook.src_uri.replace(".ipynb", ".md"), content=page))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Mark each Python session as one, so that its prompts are not copied, and link to the pages of notebooks."""
    for start, boost in BOOSTS.items():
        if page.file.src_uri.startswith(start):
            page.meta["search"] = {"boost": boost}
    if page.file.src_uri in INTERNAL:
        page.meta["search"] = {"exclude": True}
    if page.file.src_uri == "options.md":
        markdown = OPTION.sub(r"### `\1` {#\1}\n\nDefault: \2. \3.\n", HEADER.sub("", markdown))
    markdown = re.sub(r"^```python\n(?=>>> )", "```pycon\n", markdown, flags=re.MULTILINE)
    return re.sub(r"\]\((notebooks/[\w-]+)\.ipynb\)", r"](\1.md)", markdown)


def rendered(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and the pictures that it shows by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {"text/plain": output.get("text", [])})
            if "image/png" in data:
                picture = f"{name}-{len(pictures) + 1}.png"
                pictures[picture] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![output]({picture})")
            elif "text/html" in data:
                parts.append("".join(data["text/html"]))
            else:
                parts.append(f"```text\n{''.join(data['text/plain']).rstrip()}\n```")
    parts.append(f"[Download this notebook]({name}.ipynb)")
    return "\n\n".join(parts) + "\n", pictures
