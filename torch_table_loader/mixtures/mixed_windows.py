"""How a rank mixes the splits of each source of a mixture of streams, as a single stream mixes its own.

What a lane takes of a round of a source is laid out like a lane of a single stream: open windows of earlier stages come
first, then splits side by side, in windows whose rows are dealt to batches. A batch has nearly the same number of rows
of a source each time, and any as many rows that follow one another in a window are spread over all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch_table_loader.engine.sizing import mixing_of
from torch_table_loader.option_values import DEFAULT_MEMORY
from torch_table_loader.planning.interleaving import mixed, mixed_until
from torch_table_loader.planning.lanes import Section
from torch_table_loader.planning.runs import Hands, Runs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from torch_table_loader.mixtures.dealing import Deal
    from torch_table_loader.planning.ranks import Mixing
    from torch_table_loader.planning.window_sizes import WindowSizes


class MixingCost(NamedTuple):
    """What a rank holds where it mixes the splits of a source.

    Args:
        unit_bytes: of a row, or of what a stage makes of rows.
        split_bytes: of a split that is open.
    """

    unit_bytes: int
    split_bytes: int


class MixedSource(NamedTuple):
    """A source whose splits are mixed, where a stage begins.

    Args:
        rows: of a round.
    """

    cost: MixingCost
    rows: int


def mixings_of(deal: Deal, sources: Mapping[str, MixedSource]) -> dict[str, Mixing]:
    """Size how a rank mixes each source in a stage; the windows of all of them last for as many batches.

    Together they have the memory that a single stream has: windows in proportion to the bytes that come of each source,
    and open splits in equal parts.
    """
    weights = dict(zip(deal.names, deal.weights, strict=True))
    mixed = {name: own for name, own in sources.items() if weights.get(name) and own.rows}
    whole = sum(weights[name] * own.cost.unit_bytes for name, own in mixed.items())
    found = {}
    for name, (cost, rows) in mixed.items():
        memory = max(1, DEFAULT_MEMORY * weights[name] * cost.unit_bytes // whole)
        held = len(mixed) * cost.split_bytes * memory // DEFAULT_MEMORY
        own, batch = -(-rows // deal.topology.num_ranks), rows_of_a_batch(deal, name)
        found[name] = mixing_of(cost.unit_bytes, own, batch, None, held, memory)
    return found


def rows_of_a_batch(deal: Deal, source: str) -> int:
    """Return about how many rows of a source a batch of a rank has, at least those of an item."""
    weight = deal.weights[deal.names.index(source)]
    return max(1, round(deal.topology.batch_size * weight / sum(deal.weights))) * deal.width


def laid_out(name: str, runs: Runs, num_splits: int, mixing: Mixing | None, batch_rows: int) -> Section:
    """Return a section of what a lane takes of a round: as it comes, or open windows and then splits side by side.

    Args:
        runs: in the round's order; the split ``num_splits + w`` is a part of the older window w.
    """
    if mixing is None:
        return Section(name, runs, runs.num_rows)
    (sizes,) = _sizes_of(Hands.of([runs]), num_splits, mixing, batch_rows)
    return Section(name, mixed(runs, num_splits, mixing.splits, sizes), runs.num_rows, windows=sizes, dealt=batch_rows)


def taken_of(
    names: Sequence[str],
    lanes: Hands,
    taken: NDArray[np.int64],
    num_splits: int,
    mixing: Mixing | None,
    batch_rows: int,
) -> list[Section]:
    """Return such sections of what lanes have taken: each ends with the window that is open, if one is.

    Windows before that are not laid out; see `interleaved_until`.

    Args:
        taken: int64[H] the rows that each took.
    """
    sizes: Sequence[WindowSizes | None] = [None] * len(lanes)
    dealt = 0
    if mixing is not None:
        sizes = of_lanes = _sizes_of(lanes, num_splits, mixing, batch_rows)
        lanes, dealt = mixed_until(lanes, num_splits, mixing.splits, of_lanes, taken), batch_rows
    each = zip(names, lanes, taken.tolist(), sizes, strict=True)
    return [Section(name, runs, runs.num_rows, skip, windows=of, dealt=dealt) for name, runs, skip, of in each]


def _sizes_of(lanes: Hands, num_splits: int, mixing: Mixing, batch_rows: int) -> list[WindowSizes]:
    """Return what the windows of each lane have."""
    plain = lanes.some(lanes.runs.split < num_splits)
    return [mixing.windows_of(rows, 1, batch_rows) for rows in plain.rows.tolist()]
