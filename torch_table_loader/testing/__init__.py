"""The sockets' contracts as checks that a plug-in's author runs, with pytest or without.

```python
from torch_table_loader.testing import check_split_strategy

def test_contract() -> None:
    check_split_strategy(MyStrategy())
```

Each check returns nothing, or raises `ContractError` and says which rule was broken, and where.

`small_sizes` makes what the loader does at a time small, so that small tables reach every path.
"""

from torch_table_loader.sizes import small_sizes
from torch_table_loader.testing.doors import check_door
from torch_table_loader.testing.format_readers import check_format_reader, stored_files
from torch_table_loader.testing.item_streams import check_item_stream, check_items, check_map, check_turn_stream
from torch_table_loader.testing.row_orders import check_draws, check_epoch_order, check_order
from torch_table_loader.testing.rules import ContractError
from torch_table_loader.testing.sources import check_source, check_storage
from torch_table_loader.testing.split_strategies import check_split_strategy, data_file, zoo
from torch_table_loader.testing.table_requests import check_table_request

__all__ = [
    "ContractError",
    "check_door",
    "check_draws",
    "check_epoch_order",
    "check_format_reader",
    "check_item_stream",
    "check_items",
    "check_map",
    "check_order",
    "check_source",
    "check_split_strategy",
    "check_storage",
    "check_table_request",
    "check_turn_stream",
    "data_file",
    "small_sizes",
    "stored_files",
    "zoo",
]
