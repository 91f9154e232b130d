"""S3, Google Cloud Storage and Azure through obstore: bytes do not pass through Python or its GIL.

How to connect to S3 is in `s3_client`; the network options of all three are read here.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, urlsplit

from obstore.exceptions import PreconditionError
from obstore.store import AzureStore, GCSStore
from typing_extensions import override

from torch_table_loader.cancellation import check_wanted
from torch_table_loader.causes import NOWHERE, store_error_type
from torch_table_loader.errors import (
    ConfigError,
    ConfigTypeError,
    MissingFileError,
    MissingPathError,
    StorageError,
)
from torch_table_loader.far.fsspec_client import bare_tag
from torch_table_loader.ranges import ChangedFile, Client, Found
from torch_table_loader.records import FileVersion
from torch_table_loader.sizes import sizes
from torch_table_loader.source.listing_bounds import ListingBounds
from torch_table_loader.source.retrying import patience
from torch_table_loader.translating import translating

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import (
        AzureConfig,
        AzureCredentialProvider,
        ClientConfig,
        GCSConfig,
        GCSCredentialProvider,
        RetryConfig,
        S3Store,
    )

    Bucket = S3Store | GCSStore | AzureStore

B = TypeVar("B")

Connect: TypeAlias = "Callable[[str, float], Bucket]"
"""Opens a bucket (or container) by its name, with a client whose requests may take so many seconds."""

CONNECT_TIMEOUT_S = 10.0
"""Seconds to connect, unless ``connect_timeout`` is set."""

READ_TIMEOUT_S = 30.0
"""Seconds without a byte after which a request has failed, unless ``request_timeout`` is set."""

_NO_RETRIES: RetryConfig = {"max_retries": 0}
"""The caller decides whether to retry: one policy for all clients."""

_NO_LIMIT = "30 days"
"""For a whole request, unless it is known what it asks for. obstore takes no "never" here."""

_PART_BYTES = 16 << 20
_PARTS_IN_FLIGHT = 4
_PAGE_BYTES = 1 << 20
_MOST_CONNECTIONS = 256
LIST_CHUNK = 1000
"""Keys of a page of a listing; S3 gives no more."""

_SECOND = 1_000_000_000

_OF_GOOGLE = frozenset({"service_account", "service_account_key", "application_credentials", "bearer_token"})
_OF_AZURE = frozenset(
    {"account_key", "sas_key", "tenant_id", "client_id", "client_secret"}
    | {"authority_host", "federated_token_file", "use_azure_cli"}
)
"""Options that obstore takes as they are."""

_NOBODY = "anonymous"
"""obstore asks for a token before it writes, signed or not: this fixed token avoids the request."""

_IN_STRING = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "sharedaccesssignature": "sas_key",
    "blobendpoint": "endpoint",
}
_PUBLIC = "core.windows.net"
_SCOPE = "https://storage.azure.com/.default"

_LOGINS = frozenset({"account_key", "sas_key", "client_secret", "credential", "use_azure_cli"})
_IN_ENVIRONMENT = (
    *(f"AZURE_STORAGE_{name}" for name in ("ACCOUNT_KEY", "ACCESS_KEY", "SAS_TOKEN", "SAS_KEY", "TOKEN")),
    *(f"AZURE_{name}" for name in ("CLIENT_ID", "FEDERATED_TOKEN_FILE", "MSI_ENDPOINT", "USE_AZURE_CLI")),
    *("AZURE_STORAGE_CLIENT_ID", "IDENTITY_ENDPOINT", "MSI_ENDPOINT"),
)
"""Variables where obstore looks for an identity, and by which platforms indicate that a machine has one."""

_URLS_IN_ENVIRONMENT = ("AZURE_", "AZURITE_", "IDENTITY_", "MSI_")
"""How variables begin that may hold URLs of Azure for obstore."""

_IDENTITY_HOSTS = ("login.microsoftonline.com", "169.254.169.254")
"""Where obstore asks for tokens of Azure, if nothing else is configured."""


def client_config(options: Mapping[str, Any], *, http: bool) -> ClientConfig:
    """Return obstore's network settings; obstore itself finds proxies in the environment.

    `http` is whether the endpoint does not use TLS.
    """
    config: ClientConfig = {
        "allow_http": http,
        "connect_timeout": _duration(options, "connect_timeout", CONNECT_TIMEOUT_S),
        "read_timeout": _duration(options, "read_timeout", READ_TIMEOUT_S),
        "timeout": _NO_LIMIT,
    }
    if "proxy_url" in options:
        config["proxy_url"] = proxy_url(options["proxy_url"])
    if options.get("verify") is False:
        config["allow_invalid_certificates"] = True
    authorities = ca_file(options)
    if authorities is not None:
        config["root_certificate"] = Path(authorities).read_bytes()
    return config


def staying_at(
    network: ClientConfig, options: Mapping[str, Any], endpoint: str, others: Iterable[str] = ()
) -> ClientConfig:
    """Return settings of a client that reaches the host of its endpoint, the hosts of `others`, and no more.

    obstore follows redirects to any host, where it takes S3's session token along, and a signature in a URL as the
    referer. It has no option for that, but one for proxies: all hosts except these are behind one that is not there.
    So are not the hosts that the caller reaches through a proxy.
    """
    if proxy_of(endpoint, options) is not None:
        return network
    hosts = {urlsplit(url).hostname or "" for url in (endpoint, *others)}
    return {**network, "proxy_url": f"http://{NOWHERE}", "proxy_excludes": ",".join(sorted(hosts))}


def proxy_of(url: str, options: Mapping[str, Any]) -> str | None:
    """Return the proxy that the caller or the environment names for a URL."""
    if "proxy_url" in options:
        return proxy_url(options["proxy_url"])
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.netloc):
        return None
    known = urllib.request.getproxies()
    found = known.get(parts.scheme) or known.get("all")
    if found is None:
        return None
    return proxy_url(found)


def open_bucket(kind: Callable[..., B], name: str, seconds: float, config: Any, network: ClientConfig, login: Any) -> B:
    """Open a bucket or container with a client that does not retry, and whose requests may take so many seconds.

    `config` has the settings that the store's class takes. Without a login, credentials come from it or the machine.
    """
    bounded: ClientConfig = {**network, "timeout": f"{max(1, round(seconds * 1000))}ms"}
    return kind(name, config=config, client_options=bounded, retry_config=_NO_RETRIES, credential_provider=login)


def ca_file(options: Mapping[str, Any]) -> str | None:
    """Return the file of certificate authorities that are trusted in addition to the system's."""
    verify = options.get("verify")
    given = options.get("ca_file") or (verify if isinstance(verify, str | os.PathLike) else None)
    if given:
        return os.fspath(given)
    return os.environ.get("AWS_CA_BUNDLE")


def tls_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Return whom to trust, for clients of Python; `client_config` says the same to obstore."""
    context = ssl.create_default_context()
    if options.get("verify") is False:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif authorities := ca_file(options):
        context.load_verify_locations(authorities)
    return context


def proxy_url(proxy: Any) -> str:
    """Return a proxy as a URL, given one or a mapping as in pyarrow's ``proxy_options``.

    >>> proxy_url({"scheme": "http", "host": "proxy", "port": 8080, "username": "me", "password": "a/b"})
    'http://me:a%2Fb@proxy:8080'
    """
    if isinstance(proxy, str):
        if "://" in proxy:
            return proxy
        return f"http://{proxy}"
    if not isinstance(proxy, Mapping):
        raise ConfigTypeError(f"a proxy must be a URL, or a mapping with host and port, got {type(proxy).__name__}")
    if not proxy.get("host"):
        raise ConfigError("proxy_options must name a host")
    login = ""
    if proxy.get("username"):
        login = f"{quote(proxy['username'], safe='')}:{quote(proxy.get('password') or '', safe='')}@"
    port = f":{proxy['port']}" if proxy.get("port") else ""
    return f"{proxy.get('scheme') or 'http'}://{login}{proxy['host']}{port}"


def _duration(options: Mapping[str, Any], name: str, otherwise: float) -> str:
    value = options.get(name, otherwise)
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise ConfigError(f"storage_options[{name!r}] must be a number of seconds above 0, got {value!r}")
    return f"{max(1, round(value * 1000))}ms"


class Listed(NamedTuple):
    """One page of a listing; where the listing ends at a slash, `folders` are what keys begin with up to there."""

    objects: list[tuple[str, FileVersion]]
    folders: list[str]


class ObjectStoreClient(Client):
    """Buckets (or containers) of one kind of store; a path is the bucket's name, a slash and the object's key."""

    checks_tags = True

    def __init__(self, connect: Connect) -> None:
        """Connect to each bucket on first use."""
        self._connect = connect
        self._buckets: dict[tuple[str, bool], Bucket] = {}

    @override
    def stat(self, path: str) -> Found:
        """Send a HEAD request (none for a directory), and list if it finds nothing: the path may be a directory."""
        found = self.probe(path)
        if found.is_dir:
            name, _, key = path.rstrip("/").partition("/")
            with _missing_bucket(name):
                first = next(self._pages(name, key, recursive=True, most=1), None)
            if first is None or not first.objects:
                raise FileNotFoundError(path)
        return found

    @override
    def probe(self, path: str) -> Found:
        """Send a HEAD request, or none if the path cannot be an object's."""
        bucket, key = self._at(path)
        if key and not key.endswith("/"):
            with suppress(FileNotFoundError):
                return Found(path, _version(bucket.head(key)))
        return Found(path, None)

    @override
    def walk(self, root: str, *, recursive: bool) -> Iterator[Found]:
        """List with one request for every thousand objects; empty objects that mark directories are left out."""
        name, _, key = root.partition("/")
        objects: list[tuple[str, FileVersion]] = []
        folders: set[str] = set()
        with _missing_bucket(name):
            for page in self._pages(name, key, recursive=recursive, most=LIST_CHUNK):
                check_wanted()
                objects += page.objects
                folders.update(page.folders)
        if recursive:
            folders = {path.rpartition("/")[0] for path, _ in objects}
        else:
            yield from (Found(f"{name}/{folder}", None) for folder in sorted(folders))
        for path, version in objects:
            marker = version.num_bytes == 0 and (path == key or path in folders)
            if not marker:
                yield Found(f"{name}/{path}", version)

    def _pages(self, name: str, key: str, *, recursive: bool, most: int) -> Iterator[Listed]:
        """Yield the pages of a listing of a directory of a bucket."""
        bucket, bounds = self.bucket(name), ListingBounds(f"{name}/{key}")
        with closing(asyncio.new_event_loop()) as loop:

            def within(num_bytes: int, ask: Callable[[], Any]) -> Any:
                async def answer() -> Any:
                    return await ask()

                # What takes longer is not only left, as in a thread, but ended: its next page is never asked for.
                return loop.run_until_complete(asyncio.wait_for(answer(), patience(num_bytes)))

            if not recursive:
                listed = within(_PART_BYTES, lambda: bucket.list_with_delimiter_async(key or None))
                folders = list(listed["common_prefixes"])
                bounds.count(len(listed["objects"]) + len(folders))
                yield Listed([_key_and_version(meta) for meta in listed["objects"]], folders)
                return
            pages = aiter(bucket.list(key or None, chunk_size=most))
            while (page := within(_PAGE_BYTES, lambda: anext(pages, None))) is not None:
                bounds.count(len(page))
                yield Listed([_key_and_version(meta) for meta in page], [])

    @override
    def read(self, path: str) -> bytes:
        bucket, key = self._at(path)
        answer = bucket.get(key)
        if (num_bytes := answer.meta["size"]) > (most := sizes().whole_file_bytes):
            raise StorageError(
                f"{path}: expected a file of at most {most:,} bytes, since it is read whole; got {num_bytes:,}"
            )
        if num_bytes > _PART_BYTES:
            answer = self._at(path, num_bytes)[0].get(key)
        return bytes(answer.bytes())

    @override
    def read_range(self, path: str, start: int, stop: int, etag: str | None) -> Any:
        """Send a GET request for an object with that tag (If-Match). Not every store heeds that: look at its answer."""
        bucket, key = self._at(path, stop - start)
        options: GetOptions = {"range": (start, stop)}
        if etag is not None:
            options["if_match"] = f'"{etag}"'  # with quotes, as in the header; Azure lists tags without them
        try:
            answer = bucket.get(key, options=options)
        except PreconditionError:
            raise ChangedFile(etag) from None
        if etag is not None and (now := bare_tag(answer.meta["e_tag"])) not in {None, etag}:
            raise ChangedFile(etag, now)
        return answer.bytes()

    @override
    def write(self, path: str, data: bytes) -> None:
        bucket, key = self._at(path, len(data))
        bucket.put(key, data, use_multipart=False)

    @override
    def put_file(self, local: str, path: str) -> None:
        """Upload a file of any size, a large one in parts."""
        bucket, key = self._at(path)
        bucket.put(key, Path(local), chunk_size=_PART_BYTES, max_concurrency=_PARTS_IN_FLIGHT)

    def _at(self, path: str, num_bytes: int = 0) -> tuple[Bucket, str]:
        name, _, key = path.partition("/")
        return self.bucket(name, num_bytes), key

    def bucket(self, name: str, num_bytes: int = 0) -> Bucket:
        """Return a bucket by its name, for requests of so many bytes; it is opened on first use."""
        is_large = num_bytes > _PART_BYTES
        bucket = self._buckets.get((name, is_large))
        if bucket is None:
            if len(self._buckets) >= _MOST_CONNECTIONS:
                self._buckets.clear()  # what is in use stays until it is done
            seconds = patience(sizes().whole_file_bytes if is_large else _PART_BYTES)
            bucket = self._buckets.setdefault((name, is_large), self._connect(name, seconds))
        return bucket


@translating
def _missing_bucket(name: str) -> Iterator[None]:
    """Say what it means that there is nothing to list: a directory without files is an empty listing."""
    try:
        yield
    except Exception as error:
        if store_error_type(error) is not MissingFileError:
            raise
        raise MissingPathError(
            f"there is no bucket (or container) {name!r}; check the path, and endpoint and account in storage_options",
            name,
        ) from None


def _version(meta: Any) -> FileVersion:
    return object_version(meta["size"], meta["last_modified"], meta["e_tag"])


def _key_and_version(meta: Any) -> tuple[str, FileVersion]:
    return meta["path"], _version(meta)


def object_version(num_bytes: int, modified: datetime, etag: str | None) -> FileVersion:
    """Return the version from a listing or a HEAD response: both must give the same version."""
    seconds = int(modified.timestamp())  # S3 listings have milliseconds, HEAD has seconds
    return FileVersion(num_bytes, seconds * _SECOND, bare_tag(etag))


def google_client(options: Mapping[str, Any]) -> ObjectStoreClient:
    """Return a client of Google's buckets, with the options of `store_options`."""
    config: GCSConfig = {name: value for name, value in options.items() if name in _OF_GOOGLE}  # type: ignore[assignment]
    endpoint = options.get("base_url") or os.environ.get("STORAGE_EMULATOR_HOST") or ""
    if endpoint:
        if "://" not in endpoint:
            endpoint = f"http://{endpoint}"
        config["base_url"] = endpoint
    if options.get("skip_signature"):
        config |= {"skip_signature": True, "bearer_token": _NOBODY}
    network = client_config(options, http=endpoint.startswith("http://"))
    provider = None
    if "credentials" in options:
        provider = _google_tokens(options["credentials"])
    return ObjectStoreClient(lambda bucket, seconds: open_bucket(GCSStore, bucket, seconds, config, network, provider))


def _google_tokens(credentials: Any) -> GCSCredentialProvider:
    """Get tokens from credentials of google-auth; obstore's own provider renews those that are valid, too."""

    def provide() -> Any:
        if not credentials.valid:
            from google.auth.transport.requests import Request

            credentials.refresh(Request())
        expiry = credentials.expiry
        return {"token": credentials.token, "expires_at": expiry and expiry.replace(tzinfo=UTC)}

    return provide


def azure_client(options: Mapping[str, Any]) -> ObjectStoreClient:
    """Return a client of the containers of an Azure account, with the options of `store_options`."""
    string = options.get("connection_string")
    if string is None and not _LOGINS & set(options) and "skip_signature" not in options:
        string = os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
    options = {**_connection(string or ""), **options}
    account = options.get("account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if not account:
        raise ConfigError(
            "an Azure URL needs the account's name: write abfs://container@account.dfs.core.windows.net/path, pass "
            "account_name in storage_options, or set AZURE_STORAGE_ACCOUNT_NAME"
        )
    host = options.get("account_host")
    endpoint = options.get("endpoint") or (f"https://{host}" if host else None)
    anonymous, provider = _azure_login(options)
    config: AzureConfig = {name: value for name, value in options.items() if name in _OF_AZURE}  # type: ignore[assignment]
    config |= {"account_name": account, "skip_signature": anonymous}
    if endpoint:
        config["endpoint"] = endpoint
    network = client_config(options, http=(endpoint or "").startswith("http://"))
    network = staying_at(network, options, endpoint or f"https://{account}.blob.{_PUBLIC}", hosts_of_azure(options))
    return ObjectStoreClient(lambda box, seconds: open_bucket(AzureStore, box, seconds, config, network, provider))


def hosts_of_azure(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield URLs at which obstore may ask for a token, or that the environment gives it as endpoint."""
    yield from (f"https://{host}" for host in _IDENTITY_HOSTS)
    named = [value for name, value in os.environ.items() if name.startswith(_URLS_IN_ENVIRONMENT)]
    yield from (url for url in (options.get("authority_host", ""), *named) if url.startswith(("http://", "https://")))


def _connection(string: str) -> dict[str, str]:
    """Read a connection string: https://learn.microsoft.com/azure/storage/common/storage-configure-connection-string."""
    pairs = {}
    for pair in filter(None, string.split(";")):
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError("an Azure connection_string must read Name=Value;Name=Value, as the portal shows it")
        pairs[name.strip().lower()] = value.strip()
    known = {_IN_STRING[name]: value for name, value in pairs.items() if name in _IN_STRING}
    suffix = pairs.get("endpointsuffix", _PUBLIC)
    if "account_name" in known and "endpoint" not in known and suffix != _PUBLIC:
        scheme = pairs.get("defaultendpointsprotocol", "https")
        known["endpoint"] = f"{scheme}://{known['account_name']}.blob.{suffix}"
    return known


def _azure_login(options: Mapping[str, Any]) -> tuple[bool, AzureCredentialProvider | None]:
    """Return whether requests are not signed, and who gives tokens: None for obstore itself.

    Without a login, connect anonymously as adlfs does, unless the caller or machine has a login.
    """
    if "credential" in options:
        return bool(options.get("skip_signature")), _azure_tokens(options["credential"])
    anonymous, given = options.get("skip_signature"), _LOGINS & set(options)
    if anonymous is None and not given:
        refused = os.environ.get("AZURE_STORAGE_ANON", "").lower() in {"false", "0", "f"}
        if not refused:
            return not any(os.environ.get(name) for name in _IN_ENVIRONMENT), None
        anonymous = False
    if anonymous is False and not given:
        return False, _default_identity()
    return bool(anonymous), None


def _default_identity() -> AzureCredentialProvider | None:
    """Return azure-identity's default login if it is installed; otherwise obstore looks for a login itself."""
    if any(os.environ.get(name) for name in _IN_ENVIRONMENT):
        return None
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError:
        return None
    return _azure_tokens(DefaultAzureCredential())


def _azure_tokens(credential: Any) -> AzureCredentialProvider:
    """Get tokens from a credential of azure-identity."""

    def provide() -> Any:
        token = credential.get_token(_SCOPE)
        return {"token": token.token, "expires_at": datetime.fromtimestamp(token.expires_on, UTC)}

    return provide
