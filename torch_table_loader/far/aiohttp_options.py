"""What fsspec's clients that ask through aiohttp are given: waits that end, and redirects that take no secret along."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http.cookies import SimpleCookie
from inspect import signature
from itertools import chain
from typing import Any

from aiohttp import ClientResponse, ClientTimeout, TraceConfig
from yarl import URL

from torch_table_loader.errors import StorageError
from torch_table_loader.scrubbing import shown_url
from torch_table_loader.sizes import sizes
from torch_table_loader.source.retrying import patience

_CONNECT_S = 10
_SILENCE_S = 30
"""An HTTP server that sends nothing for this long does not answer."""

_HARMLESS = frozenset({"accept", "accept-encoding", "range", "user-agent"})
"""Headers that are sent to another host too; anything else that the caller set may be a secret."""


def http_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options for fsspec's HTTP file system with timeouts, unless the caller set some.

    They keep a redirect from sending secrets to another host: logins and cookies become headers, which are withheld
    there. Of what it is given otherwise, aiohttp withholds more in some versions than in others.
    """
    whole = patience(sizes().whole_file_bytes)  # who asks waits no longer than its bytes need; this ends what is left
    timeout = ClientTimeout(total=whole, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
    client = {"timeout": timeout, "response_class": _Bounded, **(options.get("client_kwargs") or {})}
    headers = dict(client.get("headers") or {})
    if (auth := client.pop("auth", None)) is not None:
        headers["Authorization"] = auth.encode()
    cookies: SimpleCookie = SimpleCookie()
    for name, value in chain.from_iterable(dict(each.get("cookies") or {}).items() for each in (client, options)):
        cookies[name] = value
    if cookies:
        given = [headers.pop(name) for name in list(headers) if name.lower() == "cookie"]
        headers["Cookie"] = "; ".join([*given, *(each.OutputString([]) for each in cookies.values())])
    client = {name: value for name, value in client.items() if name != "cookies"} | {"headers": headers}
    client["trace_configs"] = [*client.get("trace_configs", ()), _withholding()]
    return {**{name: value for name, value in options.items() if name != "cookies"}, "client_kwargs": client}


def s3fs_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options for s3fs that keep a redirect from sending a session token to another host.

    aiobotocore takes a class of sessions from 2.18 on; older ones are left as they are.
    """
    from aiobotocore.config import AioConfig
    from aiobotocore.httpsession import AIOHTTPSession

    config = dict(options.get("config_kwargs") or {})
    if "http_session_cls" not in signature(AioConfig).parameters or "http_session_cls" in config:
        return dict(options)

    class Session(AIOHTTPSession):  # type: ignore[misc] # its package has no types
        async def _get_session(self, proxy_url: Any) -> Any:
            session = await super()._get_session(proxy_url)
            if not session.trace_configs:
                trace = _withholding()
                trace.freeze()
                session.trace_configs.append(trace)
            return session

    return {**options, "config_kwargs": {**config, "http_session_cls": Session}}


class _Bounded(ClientResponse):
    """An answer of which no more is read than was asked for, or than a page or a file that is read whole may have."""

    async def read(self) -> bytes:
        """Return the body; of a range that is longer than it should be, a part that is too long as well."""
        if self._body is None:
            span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.request_info.headers.get("Range", ""))
            is_page = self.content_type in ("text/html", "application/xhtml+xml")
            most = int(span[2]) - int(span[1]) + 1 if span else 0
            bound = most or (sizes().answer_bytes if is_page else sizes().whole_file_bytes)
            pieces, num_bytes = [], 0
            while piece := await self.content.readany():
                pieces.append(piece)
                num_bytes += len(piece)
                if num_bytes > bound:
                    self.close()
                    if not span:
                        raise StorageError(
                            f"{shown_url(str(self.url))}: expected an answer of at most {bound:,} bytes, got more; "
                            "check the URL, or name the files themselves"
                        )
                    break
            self._body = b"".join(pieces)
            if num_bytes > bound:
                return self._body
        return await super().read()


def _withholding() -> TraceConfig:
    trace = TraceConfig()
    trace.on_request_redirect.append(_drop_secrets)
    return trace


async def _drop_secrets(session: Any, context: Any, redirect: Any) -> None:  # noqa: ARG001 - aiohttp calls it
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
