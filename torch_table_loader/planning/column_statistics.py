"""What a table's column holds, as plain values that a training script keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from torch_table_loader.errors import ConfigError

if TYPE_CHECKING:
    from torch_table_loader.planning.value_sums import ValueSums


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """What `dataset.statistics` says of a column of numbers; of a column of lists, of the values in them.

    Args:
        count: values that are neither null nor NaN; all below is of these.
        nulls: how many are null.
        nans: how many are NaN.
        mean: rounded once; NaN where there is no value, None where bounds alone were asked for.
        std: the standard deviation of the population, likewise.
        min: the least value; None where there is none.
        max: the greatest value.
        quantiles: by share, the least value that so many of all do not exceed; empty where bounds alone were asked for.
    """

    count: int
    nulls: int
    nans: int
    mean: float | None
    std: float | None
    min: Any
    max: Any
    quantiles: Mapping[float, float] = field(default_factory=dict)

    @classmethod
    def of(cls, sums: ValueSums, shares: Sequence[float] | None) -> Self:
        """Return what sums say.

        Args:
            sums: of the column.
            shares: which quantiles; None for bounds alone.
        """
        if shares is None:
            return cls(sums.count, sums.nulls, sums.nans, None, None, sums.low, sums.high)
        quantiles = {share: sums.quantile(share) for share in shares}
        return cls(sums.count, sums.nulls, sums.nans, sums.mean, sums.std, sums.low, sums.high, quantiles)

    def standardize(self, values: Any) -> Any:
        """Return values less the mean, over the standard deviation: a function for ``transforms=``.

        Floats keep their width, and integers become floats. Where all values are equal, zeros come out.

        Args:
            values: a tensor or an array.

        Raises:
            ConfigError: bounds alone are known.

        >>> import numpy as np
        >>> ColumnStatistics(2, 0, 0, 3.0, 2.0, 1, 5).standardize(np.array([1, 3, 5]))
        array([-1.,  0.,  1.])
        """
        if self.mean is None or self.std is None:
            raise ConfigError("these statistics hold bounds alone; measure the column without bounds_only=True")
        return (values - self.mean) / (self.std or 1.0)
