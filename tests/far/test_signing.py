"""The signature of a request is the one that botocore makes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from torch_table_loader.far.signing import query_of, signed_headers

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_KEYS = st.text("abcXYZ019/+=", min_size=1, max_size=40)
_HOSTS = st.sampled_from(["http://s3.test:9000", "https://s3.us-east-1.amazonaws.com", "https://[::1]:9000"])
_PATHS = st.sampled_from(["/", "/bucket", "/a%20b/t//", "/~x"])


@given(
    _HOSTS,
    _PATHS,
    st.dictionaries(_TEXT.filter(bool), _TEXT, max_size=4),
    st.tuples(_KEYS, _KEYS, st.none() | _KEYS),
    st.sampled_from([{}, {"x-amz-request-payer": "requester"}]),
    st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(2100, 1, 1)),  # noqa: DTZ001 hypothesis wants it
)
def test_a_request_is_signed_as_botocore_signs_it(
    host: str,
    path: str,
    query: dict[str, str],
    keys: tuple[str, str, str | None],
    headers: dict[str, str],
    now: datetime,
) -> None:
    url = f"{host}{path}?{query_of(query)}"
    login = dict(zip(("access_key_id", "secret_access_key", "token"), keys, strict=True))
    sent = signed_headers("GET", url, headers, login, "eu-central-1", now.replace(tzinfo=UTC))
    authorization = sent.pop("Authorization")
    request = AWSRequest("GET", url, headers=sent)
    request.context["timestamp"] = sent["X-Amz-Date"]
    theirs: Any = S3SigV4Auth(Credentials(*keys), "s3", "eu-central-1")
    text = theirs.string_to_sign(request, theirs.canonical_request(request))
    theirs._inject_signature_to_request(request, theirs.signature(text, request))
    assert authorization == request.headers["Authorization"]
    assert {name.lower() for name in headers} <= {name.lower() for name in sent}
    assert sent.get("X-Amz-Security-Token") == keys[2]
