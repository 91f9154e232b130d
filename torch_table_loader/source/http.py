"""Requests over HTTP whose secrets stay with the host that they are for, wherever the server redirects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HARMLESS = frozenset({"accept", "accept-encoding", "range", "user-agent"})
"""Headers that go along to another host; whatever else the caller named may be a secret."""


def keeping_secrets_home(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options for fsspec's HTTP file system with which a redirect takes no secret to another host.

    aiohttp itself keeps back the headers Authorization and Cookie, and login and cookies of a request, but not those
    of a session.

    Args:
        options: the caller's.
    """
    from aiohttp import TraceConfig

    client = dict(options.get("client_kwargs") or {})
    cookies = {"cookies": client.pop("cookies")} if "cookies" in client else {}
    if (auth := client.pop("auth", None)) is not None:
        client["headers"] = {**(client.get("headers") or {}), "Authorization": auth.encode()}
    trace = TraceConfig()
    trace.on_request_redirect.append(_drop_secrets)
    client["trace_configs"] = [*client.get("trace_configs", ()), trace]
    return {**cookies, **options, "client_kwargs": client}


async def _drop_secrets(session: Any, context: Any, redirect: Any) -> None:  # noqa: ARG001 - aiohttp calls it
    from yarl import URL

    answer = redirect.response
    target = answer.headers.get("Location") or answer.headers.get("URI")
    if target is None:
        return
    try:
        same = answer.url.join(URL(target)).origin() == answer.url.origin()
    except ValueError:
        same = False
    if not same:
        for name in [name for name in redirect.headers if name.lower() not in _HARMLESS]:
            redirect.headers.popall(name, None)
