"""Jobs that are stopped and go on with other ranks and workers, through the real loader."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.states import State, is_ended, steps_of
from tests.tables.plain import as_values, meant_warnings
from torch_table_loader import StructuredDataset, TableLoader
from torch_table_loader.extend import LiveSpan, RowSpan, SourceRow


def topologies(*, generated: bool = False) -> st.SearchStrategy[dict[str, Any]]:
    """Draw what may change between the stages of an epoch."""
    return st.fixed_dictionaries(
        {
            "num_ranks": st.one_of(st.integers(1, 4), st.just(9)),
            "num_workers": st.integers(0, 3),
            "batch_size": st.integers(1, 9),
            "shuffle_buffer_size": st.one_of(st.none(), st.integers(1, 12)),
            "even_ranks": st.none() if generated else st.sampled_from([None, "balance", "drop", "pad"]),
            "drop_last": st.booleans(),
        }
    )


def make(root: Path, form: str = "parquet", **options: Any) -> TableLoader:
    """Make a loader whose batches have ``row_id``."""
    with meant_warnings():
        return StructuredDataset.create_dataloader(
            str(root), form, **({"check_plan": False, "row_id": True} | options)
        )[0]


def spans_of(loader: TableLoader, step: int) -> list[RowSpan | LiveSpan]:
    """Give what `rows_of` says where there is one table, which no row of a mixture can be."""
    found = loader.rows_of(step)
    spans = [span for span in found if not isinstance(span, SourceRow)]
    assert len(spans) == len(found)
    return spans


def own_rows(batches: Any) -> list[int]:
    """Give the ``row_id`` of every row of some batches, padding left out."""
    values = [as_values(batch) for batch in batches]
    return [
        row
        for each in values
        for row, pads in zip(each.ids or [], each.padding or [False] * len(each.rows), strict=True)
        if not pads
    ]


def run_stage(
    root: Path, state: State | None, steps: int | None, *, form: str = "parquet", epoch: int = 0, **options: Any
) -> tuple[list[list[int]], list[State]]:
    """Let every rank of a job go on from a state for some steps (None: to the end); gives rows and states by rank."""
    rows, states = [], []
    for rank in range(options["num_ranks"]):
        loader = make(root, form, rank=rank, **options)
        loader.set_epoch(epoch)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        rows.append(own_rows(islice(loader, steps)))
        states.append(loader.state_dict())
    return rows, states


def check_that_fresh_loaders_go_on(
    make: Callable[[], TableLoader],
    read: Callable[[TableLoader], list[Any]],
    *,
    counted: bool = True,
    fewer: bool = False,
) -> None:
    """Stop in an epoch at its start, in the middle and at its end, and go on from each state with a fresh loader.

    Args:
        make: gives a fresh loader.
        read: gives what a loader delivers, a batch each.
        counted: whether loaders know their length.
        fewer: whether two places are enough.
    """
    loader = make()
    loader.set_epoch(8)
    later = read(loader)
    loader.set_epoch(7)
    whole = read(loader)
    for taken in (5, len(whole) - 1) if fewer else (0, 1, 5, len(whole) - 1, len(whole)):
        loader.set_epoch(7)
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        fresh = make()
        fresh.load_state_dict(state)
        assert fresh.state_dict() == state
        fresh.set_epoch(7)
        assert read(fresh) == whole[taken:]
        fresh.set_epoch(8)
        assert read(fresh) == later
        if counted:
            assert len(later) == len(fresh)


def of_a_running_rank(states: Sequence[State]) -> State:
    """Give the state that the ranks of a job hand on; those of running ranks must be one."""
    running = [state for state in states if not is_ended(state)]
    assert all(state == running[0] for state in running)
    return running[0] if running else max(states, key=steps_of)
