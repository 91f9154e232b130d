"""The codecs of a job, which take microseconds a column to make, and are kept for other epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_table_loader.batching.codec import make_codec
from torch_table_loader.batching.policy import TypePolicy

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_table_loader.batching.rows import RowsCodec
    from torch_table_loader.options import LoaderOptions


class Codecs:
    """The last codec and its schema, by the width of samples."""

    def __init__(self) -> None:
        """Begin with none."""
        self._by_width: dict[int, tuple[pa.Schema, RowsCodec[Any]]] = {}

    def of(self, schema: pa.Schema, options: LoaderOptions, width: int) -> RowsCodec[Any]:
        """Return the codec of a schema, for samples of a width."""
        known, codec = self._by_width.get(width, (None, None))
        if codec is None or not schema.equals(known, check_metadata=True):
            codec = make_codec(schema, TypePolicy.of(options.of_length(width)))
            self._by_width[width] = schema, codec
        return codec
