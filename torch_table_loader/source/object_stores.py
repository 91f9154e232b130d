"""The object stores by protocol; imported on demand, because their clients take time to import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch_table_loader.source.address import AZURE_PROTOCOLS
from torch_table_loader.source.azure import azure_container, choose_azure
from torch_table_loader.source.gcs import choose_gcs, gcs_bucket
from torch_table_loader.source.object_store import ClientChoice, Connect, ObjectStoreClient
from torch_table_loader.source.s3 import choose_s3, s3_bucket, with_configured_endpoint


class ObjectStore(NamedTuple):
    """A kind of store.

    Args:
        family: fsspec's name for it.
        choose: reads its options, and chooses the client for them.
        bucket: opens a bucket.
    """

    family: str
    choose: Callable[..., ClientChoice]
    bucket: Callable[..., Connect]


OBJECT_STORES: Mapping[str, ObjectStore] = {
    "s3": ObjectStore("s3", choose_s3, s3_bucket),
    "gs": ObjectStore("gs", choose_gcs, gcs_bucket),
    **dict.fromkeys(AZURE_PROTOCOLS, ObjectStore("abfs", choose_azure, azure_container)),
}

__all__ = ["OBJECT_STORES", "ClientChoice", "ObjectStore", "ObjectStoreClient", "with_configured_endpoint"]
