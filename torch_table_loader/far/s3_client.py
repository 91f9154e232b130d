"""A client of S3, with endpoint, region and login as botocore finds them in the environment and ~/.aws.

obstore reads and writes; listings are asked for, and checked, page by page, since obstore ends one
at a page without a token, whatever else that page says. The requests are those of ListObjectsV2:
https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote_plus, urlsplit
from xml.etree import ElementTree as ET

from obstore.store import S3Store
from typing_extensions import override

from torch_table_loader.cancellation import interruptibly
from torch_table_loader.errors import ConfigError, StorageError
from torch_table_loader.far.aws_login import aws_login, configured_region
from torch_table_loader.far.object_store import (
    CONNECT_TIMEOUT_S,
    READ_TIMEOUT_S,
    Listed,
    ObjectStoreClient,
    client_config,
    object_version,
    open_bucket,
    proxy_of,
    staying_at,
    tls_context,
)
from torch_table_loader.far.signing import query_of, signed_headers
from torch_table_loader.sizes import sizes
from torch_table_loader.source.listing_bounds import ListingBounds
from torch_table_loader.source.retrying import patience

if TYPE_CHECKING:
    import urllib3
    from obstore.store import S3Config

    from torch_table_loader.far.object_store import Bucket

_PIECE_BYTES = 1 << 16
_DOTS = frozenset({".", ".."})


_REGION = "us-east-1"
"""The default region: stores without regions expect it, too."""


class S3Client(ObjectStoreClient):
    """Buckets of S3; obstore reads and writes, and listings are checked page by page."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Log in, and raise what `aws_login` raises; connect to each bucket on first use."""
        super().__init__(self._open)
        self._options = options
        plain = (options.get("endpoint") or f"{options.get('scheme')}:").startswith("http:")
        self._network = client_config(options, http=plain)
        self._login = aws_login(options)
        self._addresses: dict[str, _Address] = {}
        self._finding = threading.Lock()
        self._pools: dict[str, urllib3.PoolManager] = {}

    @override
    def _at(self, path: str, num_bytes: int = 0) -> tuple[Bucket, str]:
        """Return a bucket and a key; what comes before the last empty part of a key is in the bucket's URL.

        S3 allows such keys ("t//a.parquet"), and obstore takes none; the request that it sends is the same.
        """
        name, _, key = path.partition("/")
        above, empty, rest = f"/{key}".rpartition("//")
        if not empty or _DOTS.intersection(above.split("/")):  # a URL cannot say these, and obstore refuses them
            return super()._at(path, num_bytes)
        return self.bucket(f"{name}{above}/", num_bytes), rest

    @override
    def _pages(self, name: str, key: str, *, recursive: bool, most: int) -> Iterator[Listed]:
        """Ask for page after page, and check that they make one listing."""
        prefix = f"{key}/" if key else ""
        shown = f"s3://{name}/{prefix}"
        query = {"list-type": "2", "encoding-type": "url", "max-keys": str(most), "prefix": prefix}
        if not recursive:
            query["delimiter"] = "/"
        seen: set[str] = set()
        keys: set[str] = set()
        bounds = ListingBounds(shown)
        while True:
            asked = partial(self._get, name, dict(query), bounds)
            page, token = read_page(interruptibly(asked, patience(sizes().answer_bytes)), shown)
            _check(page, shown, prefix, keys)
            bounds.count(len(page.objects) + len(page.folders))
            objects = [(key.removesuffix("/"), version) for key, version in page.objects]
            yield Listed(objects, [folder.removesuffix("/") for folder in page.folders])
            if token is None:
                return
            if token in seen:
                raise _broken(shown, f"it gives the token {token[:40]!r} for a second time")
            seen.add(token)
            query["continuation-token"] = token

    def _get(self, bucket: str, query: Mapping[str, str], bounds: ListingBounds) -> bytes:
        """Return a page of a listing; it comes at the least rate, and is not too large."""
        address = self._address(bucket)
        url = f"{address.url(bucket)}?{query_of(query)}"
        headers = {}
        if self._options.get("request_payer"):
            headers["x-amz-request-payer"] = "requester"
        if self._login is not None:
            login: Any = self._login()
            headers = signed_headers("GET", url, headers, login, address.region, datetime.now(UTC))
        began = time.monotonic()
        answer = self._send("GET", url, headers, whole=False)
        body = bytearray()
        try:
            for piece in answer.stream(_PIECE_BYTES):
                body += piece
                bounds.check_page(len(body), time.monotonic() - began)
        except BaseException:
            answer.close()  # what still comes is not wanted
            raise
        answer.release_conn()
        if answer.status != 200:
            raise _error(bytes(body), answer.status)
        return bytes(body)

    def _send(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, *, whole: bool = True
    ) -> urllib3.BaseHTTPResponse:
        """Send a request through the proxy that the caller or the environment names for its host.

        `whole` is whether all of the answer is read.
        """
        import urllib3  # takes as long as a request: obstore sends its own meanwhile

        parts = urlsplit(url)
        pool = self._pools.get(parts.netloc)
        if pool is None:
            common: dict[str, Any] = {
                "maxsize": 16,
                "timeout": urllib3.Timeout(
                    self._options.get("connect_timeout", CONNECT_TIMEOUT_S),
                    self._options.get("read_timeout", READ_TIMEOUT_S),
                ),
            }
            if parts.scheme == "https":
                common["ssl_context"] = tls_context(self._options)
            proxy = proxy_of(url, self._options)
            pool = urllib3.PoolManager(**common) if proxy is None else _through(proxy, common)
            pool = self._pools.setdefault(parts.netloc, pool)
        return pool.request(method, url, headers=headers, retries=False, redirect=False, preload_content=whole)

    def _open(self, place: str, seconds: float) -> S3Store:
        """Open a bucket, or the folder of one whose keys begin with an empty part (see `_at`)."""
        bucket, is_folder, above = place.partition("/")
        address = self._address(bucket)
        endpoint = address.endpoint
        if is_folder:
            endpoint = f"{address.url(bucket).rstrip('/')}/{quote(above)}"
        config: S3Config = {
            "region": address.region,
            "endpoint": endpoint,
            "aws_endpoint_url_s3": endpoint,  # else the environment's goes first, which may be switched off
            "virtual_hosted_style_request": address.virtual or bool(is_folder),
            "skip_signature": self._login is None,
        }
        if self._options.get("request_payer"):
            config["request_payer"] = True
        network = staying_at(self._network, self._options, address.endpoint)
        return open_bucket(S3Store, bucket, seconds, config, network, self._login)

    def _address(self, bucket: str) -> _Address:
        """Return where requests about a bucket go; on AWS without a region, its own is looked up."""
        with self._finding:  # several threads ask about a new bucket at once
            address = self._addresses.get(bucket)
            if address is None:
                address = self._addresses[bucket] = self._find(bucket)
            return address

    def _find(self, bucket: str) -> _Address:
        options = self._options
        if bucket.startswith("arn:"):
            raise ConfigError("an ARN is not a name of a bucket here; write the access point's alias (s3://alias/path)")
        region = options.get("region") or configured_region(options.get("profile"))
        if region is None and "endpoint" not in options:
            region = self._region(bucket)
        region = region or _REGION
        if "endpoint" in options:
            scheme, _, host = options["endpoint"].partition("://")
            virtual = options.get("virtual_hosted_style_request", False)
        else:
            scheme = options.get("scheme", "https")
            host = f"s3.{region}.amazonaws.com"
            if region.startswith("cn-"):
                host += ".cn"
            # No certificate of AWS covers a name with a dot.
            virtual = options.get("virtual_hosted_style_request", "." not in bucket)
        if virtual:
            host = f"{bucket}.{host}"
        return _Address(f"{scheme}://{host}", region, virtual)

    def _region(self, bucket: str) -> str | None:
        """Return the region of a bucket, which AWS tells without authentication, also in a refusal."""
        from urllib3.exceptions import HTTPError

        try:
            answer = self._send("HEAD", f"https://s3.amazonaws.com/{bucket}")
        except (OSError, HTTPError):  # the request itself will report it
            return None
        return answer.headers.get("x-amz-bucket-region")


class _Address(NamedTuple):
    """Where requests about a bucket go: with its name in the host if `virtual`, else in the path."""

    endpoint: str
    region: str
    virtual: bool

    def url(self, bucket: str) -> str:
        """Return where the bucket itself is."""
        if self.virtual:
            return f"{self.endpoint}/"
        return f"{self.endpoint}/{quote(bucket)}"


def _through(proxy: str, common: dict[str, Any]) -> urllib3.ProxyManager:
    import urllib3

    login = urlsplit(proxy)
    headers = None
    if login.username is not None:
        headers = urllib3.make_headers(proxy_basic_auth=unquote_plus(f"{login.username}:{login.password or ''}"))
    return urllib3.ProxyManager(proxy, proxy_headers=headers, **common)


def read_page(body: bytes, shown: str) -> tuple[Listed, str | None]:
    """Read a page of ListObjectsV2; return it with the token that asks for the next, None for the last.

    Raises:
        RefusedListing: it is an error, which some stores send with status 200.
        NoListing: it is no listing.
        StorageError: it says that more follows, and not where.

    >>> read_page(b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>", "s3://bucket/t/")
    (Listed(objects=[], folders=[]), None)
    """
    try:
        root = ET.fromstring(body)  # noqa: S314 expat bounds what entities grow to
    except ET.ParseError as error:
        raise NoListing(f"expected a listing in XML, got {body[:60]!r} ({error})") from None
    name = _name(root)
    if name == "Error":
        raise _error(body, 500)
    if name != "ListBucketResult":
        raise NoListing(f"expected a ListBucketResult, got {name[:40]!r}")
    texts = _texts(root)
    decoded = unquote_plus if texts.get("EncodingType") == "url" else str
    token = texts.get("NextContinuationToken") or None
    if token is None and texts.get("IsTruncated", "").strip().lower() == "true":
        raise _broken(shown, "it says that more follows, and has no token to ask for it")
    objects, folders = [], []
    for child in root:
        inner = _texts(child)
        try:
            if _name(child) == "Contents":
                modified = datetime.fromisoformat(inner["LastModified"])
                version = object_version(int(inner["Size"]), modified, inner.get("ETag"))
                objects.append((decoded(inner["Key"]), version))
            elif _name(child) == "CommonPrefixes":
                folders.append(decoded(inner["Prefix"]))
        except (KeyError, ValueError, TypeError) as error:
            raise NoListing(f"expected keys with size and time, got {inner!r} ({error})") from None
    return Listed(objects, folders), token


def _check(page: Listed, shown: str, prefix: str, keys: set[str]) -> None:
    """Refuse keys that were not asked for, or that came before; add the page's."""
    for key in (*(key for key, _ in page.objects), *page.folders):
        if not key.startswith(prefix):
            raise _broken(shown, f"it names {key!r}, which does not begin with {prefix!r}")
        if key in keys:
            raise _broken(shown, f"it names {key!r} twice")
        keys.add(key)


def _broken(shown: str, why: str) -> StorageError:
    return StorageError(
        f"{shown}: the store's listing cannot be trusted: {why}; check that the endpoint in storage_options speaks "
        "S3's ListObjectsV2, or pass the files themselves as path"
    )


class NoListing(Exception):  # noqa: N818 - storage turns it into an error
    """What came is not the listing that was asked for; it may come when it is asked for again."""


class RefusedListing(Exception):  # noqa: N818 - storage turns it into an error
    """A store answered with an error. `response` has its code and status as errors of botocore have them."""

    def __init__(self, code: str, status: int, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


def _error(body: bytes, status: int) -> RefusedListing:
    """Return an answer that is an error."""
    try:
        texts = _texts(ET.fromstring(body))  # noqa: S314 expat bounds what entities grow to
    except ET.ParseError:
        texts = {}
    return RefusedListing(texts.get("Code", str(status)), status, texts.get("Message", "no message"))


def _texts(element: ET.Element) -> dict[str, str]:
    return {_name(child): child.text or "" for child in element}


def _name(element: ET.Element) -> str:
    """Return a tag without its namespace, which not every store writes."""
    return element.tag.rpartition("}")[2]
