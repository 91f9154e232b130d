"""The door of this room: the codec for a schema and a policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_table_loader.batching.arrow_rows import ArrowCodec
from torch_table_loader.batching.tensors import TensorCodec

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_table_loader.batching.policy import TypePolicy
    from torch_table_loader.batching.rows import RowsCodec


def make_codec(schema: pa.Schema, policy: TypePolicy) -> RowsCodec[Any]:
    """Choose how record batches of a schema become outputs.

    Args:
        schema: the columns that come out, in order.
        policy: how types come out.

    Raises:
        ConfigError: a column that the output cannot hold; names column, type and remedy.
    """
    if policy.output_format in ("arrow", "dict"):
        return ArrowCodec(schema, python=policy.output_format == "dict")
    return TensorCodec(schema, policy)
