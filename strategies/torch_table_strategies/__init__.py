"""Plug-ins for torch-table-loader, found by name: ``split_strategy="by_partition"``, ``format="npy"``."""

from torch_table_strategies.by_partition import ByPartition
from torch_table_strategies.newest_first import NewestFirst
from torch_table_strategies.node_local import NodeLocal
from torch_table_strategies.npy import NpyReader

__all__ = ["ByPartition", "NewestFirst", "NodeLocal", "NpyReader"]
