"""A client of S3, with endpoint, region and login as botocore finds them in the environment and ~/.aws.

obstore reads and writes; listings are asked for, and checked, page by page, since obstore ends one
at a page without a token, whatever else that page says. The requests are those of ListObjectsV2:
https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import quote, unquote_plus, urlsplit
from xml.etree import ElementTree as ET

import urllib3
from botocore import exceptions
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError
from botocore.utils import percent_encode_sequence
from obstore.store import S3Store
from typing_extensions import override

from torch_table_loader.cancellation import interruptibly
from torch_table_loader.errors import AccessRefusedError, ConfigError, StorageError
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
from torch_table_loader.scrubbing import scrub, secrets_of
from torch_table_loader.sizes import sizes
from torch_table_loader.source.listing_bounds import ListingBounds
from torch_table_loader.source.retrying import patience

if TYPE_CHECKING:
    from botocore.credentials import Credentials
    from obstore.store import S3Config, S3Credential, S3CredentialProvider

    from torch_table_loader.far.object_store import Bucket

_PIECE_BYTES = 1 << 16
_DOTS = frozenset({".", ".."})

_ASKED_AGAIN = timedelta(minutes=10)
"""botocore renews credentials at least this long before they expire; obstore asks for them after half of it."""


def configured_endpoint(profile: str | None = None) -> str | None:
    """Return the S3 endpoint that is configured outside the program, for a profile (None: the environment's).

    The order is that of AWS's SDKs, see https://docs.aws.amazon.com/sdkref/latest/guide/feature-ss-endpoints.html:
    ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL``, the ``s3`` part of the profile's ``services`` section, and the
    profile's ``endpoint_url``. ``AWS_IGNORE_CONFIGURED_ENDPOINT_URLS`` switches all of them off.
    """
    settings = _settings(profile)
    environ = os.environ
    ignored = environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") or settings.get("ignore_configured_endpoint_urls", "")
    if ignored.lower() == "true":
        return None
    given = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    if given or "services" not in settings:
        return given or settings.get("endpoint_url")
    section = settings["services"]
    if section not in settings["all services"]:
        raise ConfigError(
            f"a profile in {_files()[0]} names services {section!r}, and there is no section [services {section}]; "
            "add it, or take the line out"
        )
    of_s3 = settings["all services"][section].get("s3", {})
    return of_s3.get("endpoint_url") or settings.get("endpoint_url")


def configured_region(profile: str | None = None) -> str | None:
    """Return the region from the environment or a profile, as AWS's SDKs read them."""
    given = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return given or _settings(profile).get("region")


def login_now(options: Mapping[str, Any], shown: str) -> dict[str, str] | None:
    """Return the credentials of now, by our names of them; None for anonymous access.

    Raises:
        AccessRefusedError: there are none; `shown` says what for.
    """
    try:
        provider = aws_login(options)
    except exceptions.BotoCoreError as error:
        said = scrub(str(error).strip().split("\n", 1)[0], secrets_of(options))
        raise AccessRefusedError(
            f"{shown}: there is no login ({said}); pass credentials in storage_options, or anon=True for a public "
            "bucket",
            shown,
        ) from None
    if provider is None:
        return None
    login = cast("Mapping[str, Any]", provider())
    names = {"access_key_id": "access_key_id", "secret_access_key": "secret_access_key", "token": "session_token"}
    return {ours: login[theirs] for theirs, ours in names.items() if login[theirs]}


def aws_login(options: Mapping[str, Any]) -> S3CredentialProvider | None:
    """Return a provider of credentials for obstore; None for anonymous access.

    It gives the keys among the options (see `store_options`) or, without keys or for a role, what botocore finds.

    Raises:
        ConfigError: the login is incomplete, or the profile does not exist.
        botocore.exceptions.BotoCoreError: there is no login, or it cannot be obtained.
    """
    if options.get("skip_signature"):
        return None
    keys = [options.get(name) for name in ("access_key_id", "secret_access_key", "session_token")]
    if bool(keys[0]) != bool(keys[1]):
        raise ConfigError("storage_options must give access key and secret key together, or neither")
    if keys[0] and "role_arn" not in options:
        names = ("access_key_id", "secret_access_key", "token", "expires_at")
        given: Any = dict(zip(names, (*keys, None), strict=True))
        return lambda: given
    from botocore.credentials import Credentials, RefreshableCredentials

    found = _of_botocore(options, Credentials(*keys) if keys[0] else None)
    renewed = isinstance(found, RefreshableCredentials)

    def provide() -> S3Credential:
        now = found.get_frozen_credentials()
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": datetime.now(UTC) + _ASKED_AGAIN if renewed else None,
        }

    provide()  # a failure is raised here, with botocore's own error
    return provide


def _of_botocore(options: Mapping[str, Any], keys: Credentials | None) -> Any:
    """Return what botocore finds, or gets for a role."""
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
    from botocore.session import Session

    session = Session(profile=options.get("profile"))
    try:
        if region := options.get("region") or configured_region(options.get("profile")):
            session.set_config_variable("region", region)
        found = keys or session.get_credentials()
    except exceptions.ProfileNotFound as error:
        raise ConfigError(f"{error}; name one of ~/.aws/config as profile, or leave it out") from None
    if found is None:
        raise exceptions.NoCredentialsError
    if "role_arn" not in options:
        return found
    named = {"RoleSessionName": options.get("role_session_name"), "ExternalId": options.get("external_id")}
    fetcher = AssumeRoleCredentialFetcher(
        session.create_client, found, options["role_arn"], {name: value for name, value in named.items() if value}
    )
    return DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")


def _settings(profile: str | None) -> Mapping[str, Any]:
    """Return the settings of a profile in both of AWS's files, and all sections of services."""
    name = profile or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    return _parsed(name or "default", tuple((path, _stamp(path)) for path in _files()))


def _files() -> tuple[Path, Path]:
    """Return the paths of the configuration and credentials files."""
    config = os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config"
    login = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    return Path(config).expanduser(), Path(login).expanduser()


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - asked for each path of a list
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


@functools.lru_cache(maxsize=8)
def _parsed(name: str, _files: object) -> Mapping[str, Any]:
    from botocore.session import Session

    try:
        known = Session().full_config
    except exceptions.ConfigParseError as error:
        # Its text quotes the line, which may contain a secret.
        raise ConfigError(
            f"{error.kwargs['path']} does not parse as a configuration file of AWS "
            f"({type(error.kwargs['error']).__name__}); correct it"
        ) from None
    return {**known["profiles"].get(name, {}), "all services": known.get("services", {})}


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
        url = address.url(bucket)
        headers = {}
        if self._options.get("request_payer"):
            headers["x-amz-request-payer"] = "requester"
        request = AWSRequest("GET", f"{url}?{percent_encode_sequence(sorted(query.items()))}", headers)
        if self._login is not None:
            login: Any = self._login()
            keys: Any = _Keys(login["access_key_id"], login["secret_access_key"], login["token"])
            S3SigV4Auth(keys, "s3", address.region).add_auth(request)
        began = time.monotonic()
        answer = self._send("GET", request.url, dict(request.headers.items()), whole=False)
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
        address = self._addresses.get(bucket)
        if address is None:
            address = self._addresses.setdefault(bucket, self._find(bucket))
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
        try:
            answer = self._send("HEAD", f"https://s3.amazonaws.com/{bucket}")
        except (OSError, urllib3.exceptions.HTTPError):  # the request itself will report it
            return None
        return answer.headers.get("x-amz-bucket-region")


class _Keys(NamedTuple):
    """What botocore signs with, by its names; its own class takes long to import."""

    access_key: str
    secret_key: str
    token: str | None


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
    login = urlsplit(proxy)
    headers = None
    if login.username is not None:
        headers = urllib3.make_headers(proxy_basic_auth=unquote_plus(f"{login.username}:{login.password or ''}"))
    return urllib3.ProxyManager(proxy, proxy_headers=headers, **common)


def read_page(body: bytes, shown: str) -> tuple[Listed, str | None]:
    """Read a page of ListObjectsV2; return it with the token that asks for the next, None for the last.

    Raises:
        ClientError: it is an error, which some stores send with status 200.
        ResponseParserError: it is no listing.
        StorageError: it says that more follows, and not where.

    >>> read_page(b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>", "s3://bucket/t/")
    (Listed(objects=[], folders=[]), None)
    """
    try:
        root = ET.fromstring(body)  # noqa: S314 expat bounds what entities grow to
    except ET.ParseError as error:
        raise ResponseParserError(f"expected a listing in XML, got {body[:60]!r} ({error})") from None
    name = _name(root)
    if name == "Error":
        raise _error(body, 500)
    if name != "ListBucketResult":
        raise ResponseParserError(f"expected a ListBucketResult, got {name[:40]!r}")
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
            raise ResponseParserError(f"expected keys with size and time, got {inner!r} ({error})") from None
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


def _error(body: bytes, status: int) -> ClientError:
    """Return an answer that is an error; with botocore's class, whose code and status are known elsewhere."""
    try:
        texts = _texts(ET.fromstring(body))  # noqa: S314 expat bounds what entities grow to
    except ET.ParseError:
        texts = {}
    response: Any = {
        "Error": {"Code": texts.get("Code", str(status)), "Message": texts.get("Message", "no message")},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(response, "ListObjectsV2")


def _texts(element: ET.Element) -> dict[str, str]:
    return {_name(child): child.text or "" for child in element}


def _name(element: ET.Element) -> str:
    """Return a tag without its namespace, which not every store writes."""
    return element.tag.rpartition("}")[2]
