"""Reads a table under a limit of the system, and says what came: a sum, or an error with its type."""

from __future__ import annotations

import json
import resource
import sys
import threading
from unittest.mock import patch

import pyarrow as pa

from torch_table_loader import StructuredDataset, TableLoaderError


def main(limit: str, options: dict[str, object]) -> None:
    """Set the limit, and read."""
    loader, _ = StructuredDataset.create_dataloader(source=pa.table({"x": range(1000)}), batch_size=10, **options)  # type: ignore[call-overload]
    if limit == "threads":
        start = "_start_joinable_thread" if sys.version_info >= (3, 13) else "_start_new_thread"
        patch.object(threading, start, side_effect=RuntimeError("can't start new thread")).start()
    elif limit == "address space":
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: SIM115, PTH123
        resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 20), resource.RLIM_INFINITY))
    elif limit == "processes":
        patch("os.fork", side_effect=BlockingIOError(11, "Resource temporarily unavailable")).start()
    try:
        print("read", sum(len(batch["x"]) for batch in loader))
    except TableLoaderError as error:
        print(type(error).__name__, error)


main(sys.argv[1], json.loads(sys.argv[2]))
