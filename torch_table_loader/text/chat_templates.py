"""Jinja as chat templates are written in: a sandbox with what transformers gives templates, but the day."""

from __future__ import annotations

import json
import re
import secrets
from functools import cache
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from typing_extensions import override

from torch_table_loader.errors import ConfigError

FAULTS = (jinja2.TemplateError, TypeError, ArithmeticError, LookupError, RecursionError)
"""What rendering raises for templates and messages that do not fit."""

_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")
_NONCE = secrets.token_hex(8)
_OPEN, _CLOSE = f"\0{_NONCE}(", f"\0{_NONCE})"
"""What stands around generated text until its places are taken; no text of a table can know it."""


class _Generation(Extension):
    """Marks the text between ``{% generation %}`` and ``{% endgeneration %}``."""

    tags = {"generation"}  # noqa: RUF012 as Jinja has it

    @override
    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Any) -> str:
        return f"{_OPEN}{caller()}{_CLOSE}"


class _Names(Namespace):
    """Holds no name that begins with an underscore, such as those of Python's own."""

    @override
    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a name must not begin with an underscore, got {name!r}")
        super().__setitem__(name, value)


def _fail(message: str) -> None:
    raise jinja2.TemplateError(message)


def _as_dict(*given: Any, **named: Any) -> dict[Any, Any]:
    return dict(*given, **named)


def _as_json(value: Any, ensure_ascii: bool = False, **how: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **how)


@cache
def compiled(text: str) -> Any:
    """Compile a template.

    Raises:
        ConfigError: it cannot be parsed.
    """
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    made.filters["tojson"] = _as_json
    own = {"namespace": _Names, "dict": _as_dict, "raise_exception": _fail}
    made.globals = {"range": made.globals["range"], **own}
    try:
        return made.from_string(text)
    except jinja2.TemplateError as error:
        raise ConfigError(f"the chat template cannot be parsed: {error}") from error


def has_marks(text: str) -> bool:
    """Return whether a template says by itself what the assistant writes."""
    return _MARKS.search(text) is not None


def ranges_of(marked: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a rendered text without marks, and from where to where text was marked.

    >>> ranges_of(f"a{_OPEN}bc{_CLOSE}d")
    ('abcd', [(1, 3)])
    """
    parts = re.split(f"({re.escape(_OPEN)}|{re.escape(_CLOSE)})", marked)
    at, found, begins = 0, [], list[int]()
    for part in parts:
        if part == _OPEN:
            begins.append(at)
        elif part == _CLOSE:
            found.append((begins.pop(), at))
        else:
            at += len(part)
    return "".join(parts[::2]), found
