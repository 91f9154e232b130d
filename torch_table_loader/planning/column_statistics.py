"""The statistics of a table's column, as plain values that a training script can keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from torch_table_loader.errors import ConfigError

if TYPE_CHECKING:
    from torch_table_loader.planning.value_sums import ValueSums


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """What `dataset.statistics` returns for a column of numbers, or for the values in a column of lists.

    Args:
        count: number of values that are neither null nor NaN; all fields below describe these.
        nulls: number of nulls.
        nans: number of NaNs.
        mean: rounded once; NaN if there is no value, None with `bounds_only`.
        std: the standard deviation of the population, likewise.
        min: the least value; None if there is none.
        max: the greatest value.
        quantiles: for each share, the least value that this share of the values does not exceed; empty with
            `bounds_only`.
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
        """Build from the sums of the column, with quantiles for the given shares; None: bounds alone."""
        if shares is None:
            return cls(sums.count, sums.nulls, sums.nans, None, None, sums.low, sums.high)
        quantiles = {share: sums.quantile(share) for share in shares}
        return cls(sums.count, sums.nulls, sums.nans, sums.mean, sums.std, sums.low, sums.high, quantiles)

    def standardize(self, values: Any) -> Any:
        """Subtract the mean from a tensor or array, and divide by the standard deviation: a function for `transforms`.

        Floats keep their width, and integers become floats. If all values are equal, the result is zeros.

        Raises:
            ConfigError: only bounds are known.

        >>> import numpy as np
        >>> ColumnStatistics(2, 0, 0, 3.0, 2.0, 1, 5).standardize(np.array([1, 3, 5]))
        array([-1.,  0.,  1.])
        """
        if self.mean is None or self.std is None:
            raise ConfigError("these statistics hold bounds alone; measure the column without bounds_only=True")
        return (values - self.mean) / (self.std or 1.0)
