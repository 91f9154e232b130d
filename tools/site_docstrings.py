"""Shows the sessions of docstrings as code: mkdocstrings takes their prompts for quotations."""

from __future__ import annotations

import inspect
import re
from typing import Any

from griffe import Extension, Object

SESSION = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class SessionsAsCode(Extension):
    """Puts a fence around each Python session of a docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change what is shown of an object."""
        if obj.docstring is not None:
            obj.docstring.value = SESSION.sub(r"```pycon\n\g<0>\n```", inspect.cleandoc(obj.docstring.value))
