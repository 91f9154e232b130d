"""Which parts of URLs and options may be shown: the one place that knows what a secret is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import quote, unquote, urlsplit

_SECRET_NAMES = re.compile(
    r"key|secret|token|pass|auth|credential|sas|sig|ugi|connection|header|cookie|user|cert|service_account",
    re.IGNORECASE,
)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://([^/]*)")
_OPEN_LOGIN = re.compile(r"(?!\[)[^@:]*:(?!\d*$).*")
"""A login that a bare "/" in its password ends early: what comes after ":" is not a port."""

_WHOLE_KEYS = frozenset({"s3", "s3a", "s3n", "gs", "gcs", "az", "abfs", "abfss", "hdfs", "memory", "file", "local"})
"""Protocols of which a path may hold "?" and "#": they have no query and no fragment."""

_CONTAINERS = frozenset({"az", "abfs", "abfss", "wasb", "wasbs"})
"""Protocols that write a container before the "@", where others write a login."""

_LEAST = 4
"""Shorter strings occur in any text, and do not count as secrets."""

HIDDEN = "***"


def shown_url(path_or_url: str) -> str:
    """Return a path or URL as messages may show it: without login, query and fragment.

    >>> shown_url("https://me:pass@host/a.parquet?sig=abc#def"), shown_url("s3://key:secret@bucket/a#1")
    ('https://host/a.parquet', 's3://bucket/a#1')
    >>> shown_url("s3://key:se/cret@bucket/a"), shown_url("http://host:80/a@b"), shown_url("abfs://box@account/a")
    ('s3://bucket/a', 'http://host:80/a@b', 'abfs://box@account/a')
    """
    match = _URL.match(path_or_url)
    if match is None:
        return path_or_url
    protocol, authority, rest = match[1], match[2], path_or_url[match.end() :]
    if "@" in rest and _OPEN_LOGIN.fullmatch(authority):
        authority, _, rest = rest.rpartition("@")[2].partition("/")
        rest = f"/{rest}"
    if protocol.lower() not in _CONTAINERS or ":" in authority.rpartition("@")[0]:
        authority = authority.rpartition("@")[2]
    url = f"{protocol}://{authority}{rest}"
    if protocol.lower() in _WHOLE_KEYS:
        return url
    return re.split(r"[?#]", url, maxsplit=1)[0]


def secrets_of(options: Mapping[str, Any], *, inside_secret: bool = False) -> Iterator[str]:
    """Yield the strings in `options` that no message may show, also percent-encoded.

    These are the values of options with a telling name, and of any URL its login, query and fragment; of a catalog's
    ``uri`` its path as well, which may hold a token.

    >>> sorted(secrets_of({"key": "AKIA1", "client_kwargs": {"region_name": "eu", "password": "hunter2"}}))
    ['AKIA1', 'hunter2']
    >>> {"hunter2", "tok-1/api", "abcd"} <= set(secrets_of({"uri": "https://me:hunter2@host/tok-1/api?sig=abcd"}))
    True
    """
    for name, value in options.items():
        secret = inside_secret or _SECRET_NAMES.search(str(name)) is not None
        for each in value if isinstance(value, list | tuple | set) else [value]:
            if isinstance(each, Mapping):
                yield from secrets_of(each, inside_secret=secret)
            elif isinstance(each, bytes | str):
                text = each if isinstance(each, str) else each.decode("latin-1")
                yield from _spellings(_secret_parts(text, whole=secret, path=str(name).endswith("uri")))
                if secret and text.lstrip().startswith("{"):  # the key of a service account, as JSON
                    with suppress(ValueError):
                        yield from secrets_of(json.loads(text), inside_secret=True)


def _secret_parts(text: str, *, whole: bool, path: bool) -> Iterator[str]:
    if whole:
        yield text
        yield text.rsplit(maxsplit=1)[-1] if text.split() else ""  # "Bearer TOKEN"
        pairs = (pair.partition("=") for pair in re.split(r"[;&?]", text))  # of a connection string, or a signature
        yield from (value for name, _, value in pairs if _SECRET_NAMES.search(name))
    if _URL.match(text) is None:
        return
    authority = text.partition("://")[2].partition("/")[0]
    login = authority.rpartition("@")[0]
    yield from (login, login.partition(":")[2])
    try:
        parts = urlsplit(text)
    except ValueError:
        return
    yield from (parts.query, parts.fragment)
    yield from (pair.partition("=")[2] for pair in parts.query.split("&"))
    if path and parts.scheme in ("http", "https"):
        yield parts.path.strip("/")


def _spellings(parts: Iterable[str]) -> Iterator[str]:
    quoted = partial(quote, errors="surrogatepass")
    seen = {spelled for part in parts for spelled in (part, quoted(part, safe=""), quoted(part), unquote(part))}
    return (spelled for spelled in seen if len(spelled) >= _LEAST)


def scrub(text: str, secrets: Iterable[str]) -> str:
    """Replace secrets in a text, the longest first.

    >>> scrub("no answer from /tok-1/v1", ["tok-1"])
    'no answer from /***/v1'
    """
    for secret in sorted({each for each in secrets if len(each) >= _LEAST}, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def without_logins(text: str) -> str:
    """Hide the logins of URLs in a text.

    >>> without_logins("no answer from s3://me:pass@host/a")
    'no answer from s3://***@host/a'
    """
    return re.sub(r"://[^/@\s'\"]*@", f"://{HIDDEN}@", text)


def public_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain options that are not secret, nested ones with dotted names.

    >>> public_options({"key": "AKIA", "client_kwargs": {"region_name": "eu"}})
    {'client_kwargs.region_name': 'eu'}
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        if _SECRET_NAMES.search(str(name)):
            continue
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": entry for inner, entry in public_options(value).items()}
        elif value is None or isinstance(value, str | int | float | bool):
            found[str(name)] = value
    return found
