"""States in every mode: small, plain and whole, exact on any number of ranks, and refused where they do not fit."""

from __future__ import annotations

import io
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.launchers.jobs import check_that_fresh_loaders_go_on
from tests.states import State, is_ended
from tests.text.packed_modes import EVERY_PACK, FLAT_MODES, PACKED_MODES, PACKED_SPLITS
from tests.torch.all_modes import MODES
from tests.torch.modes import LAKE, MIXTURE, PROCESSES, ROWS, SOME, SPLITS, STREAMS, UNEVEN, Mode, RowMode, write_rows
from torch_table_loader import ResumeError, TableLoader

pytestmark = pytest.mark.usefixtures("small_gathers")

GOES_ON: list[tuple[list[Any], dict[str, Any]]] = [
    (MODES, {}),
    (MODES, {"drop_last": True}),
    (MODES, {"filters": SOME}),
    (MODES, {"num_ranks": 2, "rank": 1, "even_ranks": "pad", "batch_size": 3}),
    (MODES, {"num_workers": 0}),
    ([SPLITS, MIXTURE], PROCESSES),
    ([SPLITS], {"num_workers": 3, "shuffle_buffer_size": 9}),
    ([SPLITS], {"shuffle_buffer_size": 9, "worker_type": "process", "prefetch_batches": 5}),
    ([SPLITS], {"prefetch_batches": 1}),
    ([SPLITS], {"num_ranks": 2, "rank": 1, "even_ranks": "balance", "batch_size": 3}),
    ([SPLITS], {"num_ranks": 2, "rank": 0, "even_ranks": "pad", "shuffle_buffer_size": 4, "batch_size": 3}),
    ([SPLITS], {"shuffle": False}),
    ([SPLITS], {"filters": SOME, "count_filtered": False}),
    ([MIXTURE], {"stop": "first_exhausted"}),
    ([mode for mode in EVERY_PACK if mode not in PACKED_MODES], {}),
    (PACKED_MODES, {"worker_type": "process"}),
    (FLAT_MODES, {}),
    (FLAT_MODES, {"num_ranks": 2, "rank": 1, "even_ranks": "pad", "batch_size": 3}),
]


@pytest.mark.parametrize(
    ("mode", "options"), [(mode, options) for modes, options in GOES_ON for mode in modes], ids=str
)
@daily(5)
def test_a_fresh_loader_goes_on_with_the_batches_that_would_have_come(
    mode: Mode, tables: Path, options: dict[str, Any]
) -> None:
    counted = options.get("count_filtered", True)
    fewer = "worker_type" in options  # processes are dear
    check_that_fresh_loaders_go_on(lambda: mode.make(tables, **options), mode.read, counted=counted, fewer=fewer)


@pytest.mark.parametrize("mode", [ROWS, LAKE], ids=str, scope="session")
@pytest.mark.parametrize("options", [{}, {"filters": SOME}, {"num_ranks": 2, "rank": 1}], ids=str)
def test_every_epoch_has_as_many_steps(mode: Mode, tables: Path, options: dict[str, Any]) -> None:
    loader = mode.make(tables, **options)
    length = len(loader)
    for epoch in (1, 8):
        loader.set_epoch(epoch)
        assert len(loader) == length == len(mode.read(loader))


def is_plain(value: object) -> bool:
    """Whether it is ints, strings, bools and None, in lists and dicts, and nothing that only looks like them."""
    if type(value) is dict:
        return all(type(name) is str and is_plain(entry) for name, entry in value.items())
    return all(map(is_plain, value)) if type(value) is list else type(value) in (int, str, bool, type(None))


@pytest.mark.parametrize("options", [{}, {"filters": SOME, "num_ranks": 2, "rank": 1, "even_ranks": "pad"}], ids=str)
def test_a_state_is_small_and_plain_and_has_the_same_keys_at_any_moment(
    mode: Mode, tables: Path, options: dict[str, Any]
) -> None:
    loader = mode.make(tables, **options)
    states = [loader.state_dict()]
    list(islice(loader, 2))
    states.append(loader.state_dict())
    if isinstance(mode, RowMode):
        mode.change(loader.dataset, "exclude", range(20))
        states.append(loader.state_dict())
    loader.set_epoch(1)
    list(loader)
    states.append(loader.state_dict())
    for state in states:
        assert len(json.dumps(state)) < 1024 * len(mode.tables)
        assert is_plain(state)
        stored = io.BytesIO()
        torch.save(state, stored)
        stored.seek(0)
        assert torch.load(stored, weights_only=True) == state == json.loads(json.dumps(state))
        assert state.keys() == states[0].keys() == mode.make(tables).state_dict().keys()


def test_a_state_put_together_key_by_key_is_whole(mode: Mode, tables: Path) -> None:
    """As torch.distributed.checkpoint loads it: only keys that the fresh loader's own state has."""
    loader, gone = mode.make(tables), set[int]()
    if isinstance(mode, RowMode):
        gone = mode.beside({6, 7, 8})
        mode.change(loader.dataset, "exclude", gone)
    loader.set_epoch(1)
    batches = iter(loader)
    taken = mode.read(islice(batches, 3))
    saved = loader.state_dict()
    fresh = mode.make(tables)
    fresh.load_state_dict({key: saved[key] for key in fresh.state_dict()})
    mode.check_whole(sum(taken + mode.read(fresh), []), mode.live(tables) - gone)


chains = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(1, 9), st.integers(1, 6), st.booleans()), max_size=6
)


@settings(max_examples=examples(3), deadline=None, suppress_health_check=list(HealthCheck))
@given(chain=chains, data=st.data())
@daily(lambda mode: mode in (SPLITS, MIXTURE))
def test_states_chained_through_topologies_with_exclusions(
    mode: Mode, tables: Path, chain: list[tuple[int, int, int, int, bool]], data: st.DataObject
) -> None:
    """An epoch delivers what was left when it began, whatever was excluded or resumed meanwhile."""
    live, gone, seen = mode.live(tables), set[int](), list[int]()
    state: State | None = None
    for ranks, lanes, batch_size, steps, pad in [*chain, (1, 0, 100, 10**6, False)]:
        asked = data.draw(st.sets(st.sampled_from(sorted(live)), max_size=5))
        what = data.draw(st.sampled_from(["exclude", "include"]))
        states = []
        for rank in range(ranks):
            options = {"num_workers": lanes, "batch_size": batch_size, "even_ranks": "pad" if pad else None}
            loader = mode.make(tables, num_ranks=ranks, rank=rank, **options)
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            batches = iter(loader)
            seen += sum(mode.read(islice(batches, 1)), [])
            if isinstance(mode, RowMode):
                asked = mode.beside(asked)
                mode.change(loader.dataset, what, asked)
            seen += sum(mode.read(islice(batches, steps - 1)), [])
            states.append(loader.state_dict())
        if isinstance(mode, RowMode):
            gone = gone | asked if what == "exclude" else gone - asked
        running = [each for each in states if not is_ended(each)]
        assert all(each == running[0] for each in running)
        assert len(json.dumps(states)) < 4096 * ranks
        state = running[0] if running else max(states, key=lambda each: mode.steps(each, batch_size))
    mode.check_whole(seen, live)
    loader = mode.make(tables)
    loader.load_state_dict(state or {})
    assert mode.read(loader) == []
    loader.set_epoch(1)
    mode.check_whole(sum(mode.read(loader), []), live - gone)


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"shuffle_seed": 1}, "saved under other options: shuffle_seed was 42 and is 1"),
    ({"columns": ["k"]}, "saved under other options: columns was"),
    ({"filters": SOME}, "saved under other options: filters was None"),
]


@pytest.mark.parametrize(("options", "message"), OTHERS, ids=str)
def test_a_state_under_other_options_is_refused_by_name(
    mode: Mode, tables: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ResumeError, match=message):
        mode.make(tables, **options).load_state_dict(mode.make(tables).state_dict())


@pytest.mark.parametrize(
    ("saved", "loads", "message"),
    [
        (ROWS, SPLITS, "saved under other options: shuffle was 'rows' and is True; give"),
        (SPLITS, ROWS, "saved under other options: shuffle was True and is 'rows'; give"),
        (ROWS, LAKE, "another table"),
        (LAKE, ROWS, "another table"),
        (ROWS, MIXTURE, "state is of one table"),
        (SPLITS, MIXTURE, "state is of one table"),
        (MIXTURE, ROWS, "state is of a mixture"),
        (MIXTURE, SPLITS, "state is of a mixture"),
        (SPLITS, STREAMS, "state is of one table"),
        (STREAMS, SPLITS, "state is of a mixture"),
        (STREAMS, MIXTURE, 'mixture of streams, and this is a mixture of rows; pass the shuffle= .*shuffle="rows"'),
        (MIXTURE, STREAMS, 'mixture of rows, and this is a mixture of streams; pass the shuffle= .*shuffle="rows"'),
    ],
    ids=str,
)
def test_a_state_of_another_mode_is_refused_by_name(saved: Mode, loads: Mode, tables: Path, message: str) -> None:
    loader = loads.make(tables)
    before = loader.state_dict()
    with pytest.raises(ResumeError, match=message):
        loader.load_state_dict(saved.make(tables).state_dict())
    assert loader.state_dict() == before


@pytest.mark.parametrize("mode", [SPLITS, ROWS, MIXTURE], ids=str, scope="session")
def test_a_state_of_another_table_is_refused(mode: Mode, tables: Path, tmp_path: Path) -> None:
    for name in mode.tables:
        write_rows(tmp_path / name, [[50]])
    with pytest.raises(ResumeError, match=r"state is of another table \(files: \d then, 1 now; rows: \d+ then, 50 now"):
        mode.make(tmp_path).load_state_dict(mode.make(tables).state_dict())


def test_what_is_no_state_is_refused(mode: Mode, tables: Path) -> None:
    loader = mode.make(tables)
    state = loader.state_dict()
    others: list[Any] = [None, {}, [], "a state"]
    for other in others:
        with pytest.raises(ResumeError, match=r"expected what state_dict.*without a version"):
            loader.load_state_dict(other)
    for version in (0, 3, 99, "1", None):
        with pytest.raises(ResumeError, match=f"expected a state of version 2, got version {version!r}"):
            loader.load_state_dict(state | {"version": version})
    for missing in state.keys() - ({"exclusions"} if mode in (ROWS, LAKE) else set()):
        with pytest.raises(ResumeError):
            loader.load_state_dict({name: value for name, value in state.items() if name != missing})
    for epoch in (-1, None, "0", True):
        with pytest.raises(ResumeError):
            loader.load_state_dict(state | {"epoch": epoch})
    assert loader.state_dict() == state


def make_uneven(mode: Mode, tables: Path, rank: int) -> TableLoader:
    return mode.make(
        tables, **{"num_ranks": 2, "rank": rank, "batch_size": 36, "even_ranks": False, **UNEVEN.get(mode.name, {})}
    )


def test_the_state_of_a_rank_that_ended_is_refused_while_others_go_on(mode: Mode, tables: Path) -> None:
    long, short = (make_uneven(mode, tables, rank) for rank in (0, 1))
    assert (len(long), len(short)) == (2, 1)
    whole = mode.read(long)
    long.set_epoch(0)
    batches = iter(long)
    next(batches)
    mode.read(short)
    assert is_ended(short.state_dict())
    running = long.state_dict()
    assert not is_ended(running)
    for rank in (0, 1):
        fresh = make_uneven(mode, tables, rank)
        with pytest.raises(ResumeError, match=r"had ended after .* while others take (up to 2|1 more)"):
            fresh.load_state_dict(short.state_dict())
        fresh.load_state_dict(running)
        assert mode.read(fresh) == (whole[1:] if rank == 0 else [])
    # A rank of packs in a stream counts its own, and does not know that it is the last.
    assert is_ended(state_at_the_end(long, batches)) == (mode is PACKED_SPLITS)


def state_at_the_end(loader: TableLoader, batches: Any) -> State:
    list(batches)
    return loader.state_dict()
