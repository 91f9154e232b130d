"""Split strategies for torch-table-loader; each is found by its name: ``split_strategy="by_partition"``."""

from torch_table_strategies.by_partition import ByPartition
from torch_table_strategies.newest_first import NewestFirst
from torch_table_strategies.node_local import NodeLocal

__all__ = ["ByPartition", "NewestFirst", "NodeLocal"]
