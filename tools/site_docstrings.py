"""What is shown of the API: sessions of docstrings as code, and defaults of options in place of their declarations."""

from __future__ import annotations

import inspect
import re
from typing import Any

from griffe import Attribute, ExprCall, Extension, Object

SESSION = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
"""Its prompts would be taken for quotations."""


class ApiAsRead(Extension):
    """Puts a fence around each Python session of a docstring, and shows the default that an option is declared with."""

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        """Put its default in the place of an option's declaration, of which signatures are made later."""
        if isinstance(attr.value, ExprCall) and str(attr.value.function) == "_option":
            attr.value = attr.value.arguments[0]

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change what is shown of an object."""
        if obj.docstring is not None:
            obj.docstring.value = SESSION.sub(r"```pycon\n\g<0>\n```", inspect.cleandoc(obj.docstring.value))
