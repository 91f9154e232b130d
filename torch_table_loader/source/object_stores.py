"""The object stores by protocol; imported on demand, because their clients take time to import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch_table_loader.source.address import AZURE_PROTOCOLS
from torch_table_loader.source.azure import azure_container, choose_azure
from torch_table_loader.source.gcs import choose_gcs, gcs_bucket
from torch_table_loader.source.object_store import ClientChoice, ObjectStoreClient
from torch_table_loader.source.s3 import choose_s3, with_configured_endpoint


class ObjectStore(NamedTuple):
    """A kind of store.

    Args:
        choose: reads its options, and chooses the client for them.
        client: opens obstore's client for options that `choose` returned.
    """

    family: str
    choose: Callable[..., ClientChoice]
    client: Callable[[Mapping[str, Any]], ObjectStoreClient]


def _s3_client(options: Mapping[str, Any]) -> ObjectStoreClient:
    # Imported here, since botocore takes 0.15 s, which only users of S3 should pay.
    from torch_table_loader.source.s3_client import S3Client

    return S3Client(options)


def _gcs_client(options: Mapping[str, Any]) -> ObjectStoreClient:
    return ObjectStoreClient(gcs_bucket(options))


def _azure_client(options: Mapping[str, Any]) -> ObjectStoreClient:
    return ObjectStoreClient(azure_container(options))


OBJECT_STORES: Mapping[str, ObjectStore] = {
    "s3": ObjectStore("s3", choose_s3, _s3_client),
    "gs": ObjectStore("gs", choose_gcs, _gcs_client),
    **dict.fromkeys(AZURE_PROTOCOLS, ObjectStore("abfs", choose_azure, _azure_client)),
}

__all__ = ["OBJECT_STORES", "ClientChoice", "ObjectStore", "ObjectStoreClient", "with_configured_endpoint"]
