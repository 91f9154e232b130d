"""Packs of every kind, in streams and in row mode, of one table and of two: every token once, in any chain of jobs."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.states import State, is_ended, steps_of
from tests.text.packed_modes import (
    STRATEGIES,
    Packed,
    PackedItems,
    PackedMixed,
    PackedMixture,
    PackedSplits,
    PackedStreams,
    PackedTables,
)
from tests.text.packing_reference import BOS, EOS, SEP, full_pack, length_of_step
from torch_table_loader import Pack

WEIGHTS = {"documents": 5, "more documents": 2}


@st.composite
def packs(draw: st.DrawFn, kind: type[Packed]) -> Pack:
    """Draw a pack that a kind of loader takes."""
    strategy = draw(st.sampled_from(STRATEGIES[:3] if kind.streamed else STRATEGIES))
    labels = draw(st.sampled_from(["hf", "shifted", None]))
    lengths, of_step = st.integers(1, 45), st.integers(1, 12)
    fields: dict[str, Any] = {"loss_mask": draw(st.sampled_from([None, "trained"])) if labels else None}
    fields["seq_len"] = draw(lengths)
    if strategy in ("pad", "best_fit"):
        dropped = [] if issubclass(kind, PackedTables) else ["drop"]  # a mixture refuses to have nothing
        fields["long_docs"] = draw(st.sampled_from(["split", "truncate", *dropped]))
    elif strategy == "concat" and not issubclass(kind, PackedTables):
        later = st.dictionaries(of_step, of_step, max_size=3)
        fields["seq_len"] = {0: fields["seq_len"], **draw(later)}
    if kind is PackedItems:
        fields["balance"] = draw(st.sampled_from([None, "attention"]))
    return draw(
        st.builds(
            full_pack,
            strategy=st.just(strategy),
            bos_id=st.sampled_from([None, BOS]),
            eos_id=st.sampled_from([None, EOS]),
            sep_id=st.sampled_from([None, SEP]),
            min_length=st.sampled_from([1, 2, 6]),
            labels=st.just(labels),
            aligned=st.sampled_from([(), ("weight",)]),
            spans=st.sampled_from([(), ("spans",)]),
            block_docs=st.sampled_from([1, 3, 4096]),
            **{name: st.just(value) for name, value in fields.items()},
        )
    )


@st.composite
def worlds(draw: st.DrawFn, kind: type[Packed], pack: Pack) -> dict[str, Any]:
    """Draw what may change where a job goes on; ranks of a schedule of lengths must take equally many steps."""
    ranks = draw(st.integers(1, 3))
    # A window of documents that are cut anywhere is part of the stage, unless they are mixed.
    whole = pack.strategy in ("pad", "best_fit") or kind is PackedMixed
    even = [
        "pad",
        *(["balance"] if issubclass(kind, PackedSplits) else []),
        *([None] if ranks == 1 or isinstance(pack.seq_len, int) else []),
    ]
    return {
        "num_ranks": ranks,
        "num_workers": draw(st.integers(0, 3)),
        "batch_size": draw(st.integers(1, 4)),
        "even_ranks": draw(st.sampled_from(even)),
        **(
            {"shuffle_buffer_size": draw(st.sampled_from([None, 2, 9]))}
            if issubclass(kind, PackedSplits) and whole
            else {}
        ),
    }


@pytest.mark.parametrize("kind", [PackedSplits, PackedMixed, PackedItems, PackedStreams, PackedMixture])
@settings(max_examples=examples(6), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.data(),
    epoch=st.integers(0, 2),
    stops=st.lists(st.integers(0, 6), max_size=2),
    mixed=st.sampled_from([("rows", "first_exhausted"), (WEIGHTS, "first_exhausted"), (WEIGHTS, "all_exhausted")]),
)
@daily(2)
def test_every_token_comes_once_over_any_chain_of_worlds(
    tables: Path, kind: type[Packed], data: st.DataObject, epoch: int, stops: list[int], mixed: Any
) -> None:
    mode = kind(data.draw(packs(kind)))
    weights, stop = mixed
    shares = {"weights": weights, "stop": stop} if issubclass(kind, PackedTables) else {}
    found, first = [], 0
    state: State | None = None
    for steps in [*stops, None]:
        world = data.draw(worlds(kind, mode.pack))
        states, lefts = [], []
        for rank in range(world["num_ranks"]):
            loader = mode.make(tables, rank=rank, **world, **shares)
            loader.set_epoch(epoch)
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            left = loader.remaining
            begun = steps_of(loader.state_dict()) if mode.streamed else 0  # items are counted from where a job goes on
            batches = list(islice(loader, steps))
            assert len(batches) == (left if steps is None else min(left, steps))
            if isinstance(mode.pack.seq_len, int):  # else steps are counted from each length
                told = [mode.rows_of(tables, loader, begun + step) for step in range(len(batches))]
                assert told == [mode.sources(batch) for batch in batches]
            widths = [batch["input_ids"].shape[1] for batch in batches]
            assert widths == [length_of_step(mode.pack, epoch, first + step) for step in range(len(batches))]
            found += [sequence for batch in batches for sequence in mode.rows(batch)]
            states.append(loader.state_dict())
            lefts.append(left)
        assert world["even_ranks"] is None or len(set(lefts)) == 1
        first += min(lefts[0], steps or 0)
        running = [each for each in states if not is_ended(each)]
        assert all(each == running[0] for each in running)
        state = running[0] if running else max(states, key=lambda each: mode.steps(each, world["batch_size"]))
    check(mode, found, mode.live(tables), weights, stop)


def check(mode: Packed, found: list[tuple[int, ...]], live: set[int], weights: Any, stop: str) -> None:
    """Hold what came against what was to come; sequences that are put behind one another are full but for the last."""
    if not isinstance(mode, PackedTables) or weights == "rows":
        mode.check_once(found, live)
    elif stop == "all_exhausted":
        mode.check_whole(found, live)
    else:
        assert max(Counter(token for sequence in found for token in sequence).values(), default=1) == 1
    if (
        mode.pack.strategy in ("concat", "windows")
        and not isinstance(mode, PackedSplits)
        and isinstance(mode.pack.seq_len, int)
    ):
        for at in range(len(mode.tables)):
            own = [sequence for sequence in found if mode.table_of(sequence[0]) == at]
            rounds = max(Counter(token for sequence in own for token in sequence).values(), default=0)
            assert sum(len(sequence) < mode.pack.seq_len for sequence in own) <= rounds


@pytest.mark.parametrize("window", [4, 30])
@pytest.mark.parametrize("strategy", ["concat", "pad", "best_fit"])
@pytest.mark.parametrize("worker_type", ["thread", "process"])
@daily(lambda worker_type, window: (worker_type, window) == ("thread", 30))
def test_padding_of_an_open_window_has_no_documents(tables: Path, strategy: Any, window: int, worker_type: Any) -> None:
    mode = PackedSplits(full_pack(seq_len=9, strategy=strategy, block_docs=4))
    options: dict[str, Any] = {"batch_size": 2, "num_workers": 1, "shuffle": False, "shuffle_buffer_size": window}
    if strategy == "concat":
        options["shuffle"] = "mixed"
    for taken, ranks in [(1, 2), (3, 3), (5, 7)]:
        loader = mode.make(tables, **options)
        found = [row for batch in islice(loader, taken) for row in mode.rows(batch)]
        state, own = loader.state_dict(), []
        for rank in range(ranks):
            world: dict[str, Any] = {"num_ranks": ranks, "even_ranks": "pad", "worker_type": worker_type}
            loader = mode.make(tables, rank=rank, **options | world)
            loader.load_state_dict(state)
            marks = [
                (row, pads) for batch in loader for row, pads in zip(mode.ids(batch), mode.pads(batch), strict=True)
            ]
            found += [row for row, pads in marks if not pads]
            own.append([pads for _, pads in marks])
        most = max(pads.count(False) for pads in own)
        assert [len(pads) for pads in own] == [most] * ranks
        mode.check_once(found, mode.live(tables))
