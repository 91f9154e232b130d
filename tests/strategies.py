"""Random tables and jobs for the laws, without files."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from torch_table_loader import RowBalancedStrategy, SizeBalancedStrategy, TargetSizeStrategy
from torch_table_loader.extend import TableLayout, Topology
from torch_table_loader.planning.ranks import Mixing
from torch_table_loader.records import DataFile, FileVersion

SEED = 3


def table(group_rows: list[list[int]], kept: list[list[bool]] | None = None) -> TableLayout:
    """Lay out a table of files with the given row groups; a row has 8 bytes."""
    files = [DataFile(f"/t/{i}", f"{i}.parquet", FileVersion(1), "parquet") for i in range(len(group_rows))]
    return TableLayout.of(files, group_rows, [[8 * rows for rows in groups] for groups in group_rows], kept)


tables = st.lists(st.lists(st.integers(0, 30), max_size=5), max_size=8).map(table)

cutters = st.one_of(
    st.builds(TargetSizeStrategy, target_bytes=st.integers(1, 600)),
    st.builds(TargetSizeStrategy, target_rows=st.integers(1, 60)),
    st.builds(SizeBalancedStrategy, target_bytes=st.integers(1, 600)),
    st.builds(RowBalancedStrategy, target_rows=st.integers(1, 60)),
)

topologies = st.builds(
    Topology,
    num_ranks=st.one_of(st.integers(1, 4), st.integers(1, 64)),
    lanes=st.integers(1, 8),
    batch_size=st.integers(1, 40),
    shuffle_buffer_size=st.one_of(
        st.none(),
        st.integers(1, 50),
        st.builds(Mixing, st.integers(1, 50), st.integers(1, 6), st.none() | st.integers(1, 20)),
    ),
    even_ranks=st.sampled_from([None, "balance", "drop", "pad"]),
    drop_last=st.booleans(),
)


def row_topologies(most_rows: int) -> st.SearchStrategy[Topology]:
    """Draw jobs of row mode, with batches of at most so many rows."""
    return st.builds(
        Topology,
        st.integers(1, 8),
        st.integers(1, 5),
        st.integers(1, most_rows),
        even_ranks=st.sampled_from([None, "balance", "pad"]),
        drop_last=st.booleans(),
        micro_batches=st.integers(1, 4),
    )


def as_counts(rows: list[int], total: int) -> list[int]:
    """Count how often each row came."""
    return np.bincount(np.array(rows, dtype=np.int64), minlength=total).tolist()  # type: ignore[no-any-return]
