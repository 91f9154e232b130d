"""Google Cloud Storage: its options, under gcsfs's or obstore's names, and how to connect."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obstore.store import GCSStore

from torch_table_loader.errors import ConfigError
from torch_table_loader.source.object_store import ClientChoice, client_config, open_bucket, sort_options

if TYPE_CHECKING:
    from obstore.store import GCSConfig, GCSCredentialProvider

_NAMES = {
    "token": "token",
    "endpoint_url": "base_url",
    "base_url": "base_url",
    "service_account": "service_account",
    "service_account_path": "service_account",
    "service_account_key": "service_account_key",
    "application_credentials": "application_credentials",
    "bearer_token": "bearer_token",
    "anon": "anonymous",
    "skip_signature": "anonymous",
    "project": "project",
}
_PASSED_ON = frozenset(
    {"base_url", "service_account", "service_account_key", "application_credentials", "bearer_token"}
)
_FIXED = frozenset({"anonymous", "bearer_token", "service_account_key"})
_FOUND = ("google_default", "cloud")
"""gcsfs's names for logins that obstore finds by itself."""

_OWN = ("cache", "browser")
"""gcsfs's names for its own logins."""

_NOBODY = "anonymous"
"""obstore asks for a token before it writes, signed or not: this fixed token avoids the request."""


def choose_gcs(options: Mapping[str, Any]) -> ClientChoice:
    """Translate Google's options for obstore, or leave all to gcsfs if one of them has no equivalent there.

    Args:
        options: as gcsfs or obstore names them.

    Raises:
        ConfigError: two names of one option disagree, or a login's file does not exist.

    >>> choose_gcs({"token": "anon"}).options
    {'anonymous': True}
    >>> choose_gcs({"token": "browser"}).client
    'gcsfs'
    """
    known, others = sort_options(options, _NAMES)
    known.pop("project", None)  # used by gcsfs to create buckets
    token = known.pop("token", None)
    login = _login(token)
    if others or login is None:
        return ClientChoice("gcsfs", options)
    known |= login
    return ClientChoice("obstore", known, fixed=bool(_FIXED & set(known)))


def _login(token: Any) -> dict[str, Any] | None:
    """Return gcsfs's ``token`` under obstore's names; None if only gcsfs supports it."""
    if token is None or token in _FOUND:
        return {}
    if token == "anon":  # noqa: S105 - gcsfs's word for none
        return {"anonymous": True}
    if isinstance(token, Mapping):
        return {"service_account_key": json.dumps(dict(token))} if token.get("type") == "service_account" else None
    if isinstance(token, str | os.PathLike):
        return None if token in _OWN else _login_of_file(Path(token).expanduser(), os.fspath(token))
    return {"credentials": token} if hasattr(token, "refresh") else None


def _login_of_file(path: Path, token: str) -> dict[str, Any] | None:
    try:
        kind = json.loads(path.read_text()).get("type")
    except OSError:
        if token.endswith(".json") or os.sep in token:
            raise ConfigError(
                "storage_options['token'] names a file that cannot be read; give the path of a service account's or "
                'of gcloud\'s JSON file, "anon", "google_default", or an access token'
            ) from None
        return {"bearer_token": token}
    except (ValueError, AttributeError):
        raise ConfigError("storage_options['token'] names a file that is not the JSON of a Google login") from None
    if kind == "service_account":
        return {"service_account": str(path)}
    return {"application_credentials": str(path)} if kind == "authorized_user" else None


def gcs_bucket(options: Mapping[str, Any]) -> Callable[[str], GCSStore]:
    """Return a function that opens a bucket by its name.

    Args:
        options: as returned by `choose_gcs` for obstore.
    """
    config: GCSConfig = {name: value for name, value in options.items() if name in _PASSED_ON}  # type: ignore[assignment]
    endpoint = options.get("base_url") or os.environ.get("STORAGE_EMULATOR_HOST") or ""
    if endpoint:
        config["base_url"] = endpoint = endpoint if "://" in endpoint else f"http://{endpoint}"
    if options.get("anonymous"):
        config |= {"skip_signature": True, "bearer_token": _NOBODY}
    network = client_config(options, http=endpoint.startswith("http://"))
    provider = _tokens(options["credentials"]) if "credentials" in options else None
    return lambda bucket: open_bucket(GCSStore, bucket, config, network, provider)


def _tokens(credentials: Any) -> GCSCredentialProvider:
    """Get tokens from credentials of google-auth."""

    def provide() -> Any:
        if not credentials.valid:
            from google.auth.transport.requests import Request

            credentials.refresh(Request())
        expiry = credentials.expiry
        return {"token": credentials.token, "expires_at": expiry and expiry.replace(tzinfo=UTC)}

    return provide
