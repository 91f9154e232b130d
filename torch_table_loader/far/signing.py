"""Requests without a body to S3, signed by the secret key: AWS Signature Version 4, header by header.

The steps are those of https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html.
botocore signs too, but takes a quarter of a second to import.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from datetime import datetime
from functools import reduce
from hashlib import sha256
from typing import Any
from urllib.parse import quote, urlsplit

_SCHEME = "AWS4-HMAC-SHA256"
_SERVICE = "s3"
_NO_BODY = sha256(b"").hexdigest()


def query_of(values: Mapping[str, str]) -> str:
    """Return a query in the one form in which it is signed.

    >>> query_of({"prefix": "a b/~", "list-type": "2"})
    'list-type=2&prefix=a%20b%2F~'
    """
    return "&".join(sorted(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in values.items()))


def signed_headers(
    method: str, url: str, headers: Mapping[str, str], login: Mapping[str, Any], region: str, now: datetime
) -> dict[str, str]:
    """Return the headers of a request with those that sign it.

    Args:
        url: its path is signed as it stands; its query must be one of `query_of`.
        login: as an `aws_login` provides it.
        now: in UTC.
    """
    parts, stamp = urlsplit(url), f"{now:%Y%m%dT%H%M%SZ}"
    host = parts.netloc.rpartition("@")[2]
    sent = {**headers, "Host": host, "X-Amz-Date": stamp, "X-Amz-Content-SHA256": _NO_BODY}
    if login["token"]:
        sent["X-Amz-Security-Token"] = login["token"]
    of_signature = sorted((name.lower(), value) for name, value in sent.items())
    names = ";".join(name for name, _ in of_signature)
    lines = "".join(f"{name}:{value}\n" for name, value in of_signature)
    request = "\n".join((method, parts.path or "/", parts.query, lines, names, _NO_BODY))
    scope = (stamp[:8], region, _SERVICE, "aws4_request")
    text = "\n".join((_SCHEME, stamp, "/".join(scope), sha256(request.encode()).hexdigest()))
    key = reduce(_keyed, scope, f"AWS4{login['secret_access_key']}".encode())
    credential = "/".join((login["access_key_id"], *scope))
    signature = _keyed(key, text).hex()
    sent["Authorization"] = f"{_SCHEME} Credential={credential}, SignedHeaders={names}, Signature={signature}"
    return sent


def _keyed(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
