"""The login, endpoint and region of S3: those that the caller gives or, else, that botocore finds in the environment.

botocore takes a quarter of a second to import. So it is imported only where it has something to look for.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch_table_loader.errors import AccessRefusedError, ConfigError
from torch_table_loader.scrubbing import scrub, secrets_of

if TYPE_CHECKING:
    from botocore.credentials import Credentials
    from obstore.store import S3Credential, S3CredentialProvider

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
    except Exception as error:
        from botocore.exceptions import BotoCoreError  # keys that are given need none of it

        if not isinstance(error, BotoCoreError):
            raise
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
    from botocore.exceptions import NoCredentialsError, ProfileNotFound
    from botocore.session import Session

    session = Session(profile=options.get("profile"))
    try:
        if region := options.get("region") or configured_region(options.get("profile")):
            session.set_config_variable("region", region)
        found = keys or session.get_credentials()
    except ProfileNotFound as error:
        raise ConfigError(f"{error}; name one of ~/.aws/config as profile, or leave it out") from None
    if found is None:
        raise NoCredentialsError
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
    stamps = tuple((path, _stamp(path)) for path in _files())
    if not any(stamp for _, stamp in stamps):
        return {}
    return _parsed(name or "default", stamps)


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
    from botocore.exceptions import ConfigParseError
    from botocore.session import Session

    try:
        known = Session().full_config
    except ConfigParseError as error:
        # Its text quotes the line, which may contain a secret.
        raise ConfigError(
            f"{error.kwargs['path']} does not parse as a configuration file of AWS "
            f"({type(error.kwargs['error']).__name__}); correct it"
        ) from None
    return {**known["profiles"].get(name, {}), "all services": known.get("services", {})}
