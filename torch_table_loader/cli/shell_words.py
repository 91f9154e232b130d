"""The library's messages in the words of a shell: flags in place of keyword arguments."""

from __future__ import annotations

import re

_OTHERS = {
    "catalog_config": "--catalog",
    "metadata_location": "PATH",
    "path": "PATH",
    "rank": "--rank",
    "table_uri": "PATH",
    "timestamp": "--as-of",
    "version": "--snapshot-id",
}
"""Keywords that no flag is named after."""

_CALL = re.compile(r"\b\w+Dataset\.create_dataloader\((?:\w+=)?\"([^\"]*)\"\)")
_PYTHON = re.compile(r"; source=pyarrow\b[^;]*")
_VALUE = r"\[[^\]]*\]|\{[^}]*\}|\"[^\"]*\"|'[^']*'|[\w.]+"
_WORDS = {
    "leave it True": "leave --no-count out",
    "leave count_filtered=True": "leave --no-count out",
    "count_filtered=False": "--no-count",
    'shuffle="rows"': "row mode",
}
"""What is said of switches."""


def in_shell_words(message: str) -> str:
    """Return a message of the library with flags in place of keyword arguments.

    >>> in_shell_words('pass unsupported="list", or leave it out with columns=[...]')
    'pass --unsupported list, or leave it out with --columns A,B'
    >>> in_shell_words("pass nulls={'day': fill}")
    'pass --nulls day=fill'
    """
    from torch_table_loader.cli.arguments import OPTIONS, SNAPSHOTS, flag_of

    flags = {name: flag_of(name) for name in (*OPTIONS, *SNAPSHOTS)} | _OTHERS
    text = _CALL.sub(r"PATH \1", _PYTHON.sub("", message))
    for said, meant in _WORDS.items():
        text = text.replace(said, meant)
    keyword = re.compile(rf"(?<![\w/.-])({'|'.join(flags)})=(?:({_VALUE}))?")
    return keyword.sub(lambda match: " ".join(filter(None, (flags[match[1]], _typed(match[2] or "")))), text)


def _typed(value: str) -> str:
    """Return a Python value as one types it in a shell.

    >>> _typed("['a', 'b']"), _typed("{'a': 0}"), _typed('"x"'), _typed("None")
    ('a,b', 'a=0', 'x', '')
    """
    inner = re.sub(r"[\[\]{}\"']", "", value)
    if value.startswith("["):
        return "A,B" if inner == "..." else inner.replace(", ", ",")
    return inner.replace(": ", "=") if value.startswith("{") else "" if inner in ("None", "True") else inner
