"""Batches that are rows of lists become the rows that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.batching.codec import make_codec
from torch_table_loader.batching.jagged import offsets_from
from torch_table_loader.batching.rows import Batches
from torch_table_loader.batching.uneven import UnevenRows, WholeBatchesCodec
from torch_table_loader.budgets.counts import BudgetCounts
from torch_table_loader.records import PADDING_COLUMN
from torch_table_loader.samples import ONE_BY_ONE

if TYPE_CHECKING:
    from torch_table_loader.batching.policy import TypePolicy
    from torch_table_loader.samples import FilledSamples


class FilledRows(UnevenRows):
    """A run of whole batches, which says of each how many rows it has."""

    __slots__ = ()

    @override
    def cut(self, bounds: Sequence[int]) -> Batches:
        budget = cast("FilledCodec", self._codec).budget
        edges = self.bounds[bounds]
        pairs = zip(np.diff(bounds).tolist(), np.diff(edges).tolist(), strict=True)
        return Batches(super().cut(bounds), [BudgetCounts(budget, *pair, None, None) for pair in pairs])


class FilledCodec(WholeBatchesCodec):
    """Decodes batches, each a row of a stream whose columns are lists of the values of its rows.

    Args:
        schema: of `BatchesAsRows`; a column `padding` may follow, which says of whole batches that they are padding.
    """

    made = FilledRows

    def __init__(self, schema: pa.Schema, policy: TypePolicy) -> None:
        own = [field if field.name == PADDING_COLUMN else _values_of(field) for field in schema]
        self._schema = pa.schema(own)
        super().__init__(make_codec(self._schema, replace(policy, samples=ONE_BY_ONE)))
        self.budget = cast("FilledSamples", policy.samples).budget.tokens
        self.views_at_once = 0  # each batch says what it holds when it is cut

    @override
    def decode(self, batch: pa.RecordBatch) -> UnevenRows:
        lists = batch.columns[: len(self._schema.names) - (PADDING_COLUMN in self._schema.names)]
        sizes = np.diff(lists[0].offsets.to_numpy())
        columns = [column.flatten() for column in lists]
        if PADDING_COLUMN in self._schema.names:
            padding = batch.column(PADDING_COLUMN).to_numpy(zero_copy_only=False)
            columns.append(pa.array(np.repeat(padding, sizes)))
        rows = self._codec.decode(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        return self.made(self, rows, offsets_from(sizes))


def _values_of(field: pa.Field) -> pa.Field:
    values = cast("pa.LargeListType", field.type).value_field
    return values.with_name(field.name).with_metadata(field.metadata)
