"""Records of states: each guest reads its own, any edit is refused in words, and version 1 becomes version 2."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.effort import daily
from tests.states import State, stages_of, with_newest
from tests.torch.test_changed_states import changes_of
from torch_table_loader import ConfigError, ResumeError, StructuredDataset, installed
from torch_table_loader.engine.state import STATE_VERSION, read_state, upgraded

FOLDERS = [Path(__file__).parent / "states", Path(__file__).parents[1] / "text" / "states"]


def with_what_follows(version: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the frozen states of a version, of all guests that this build has, with what follows them."""
    for folder in FOLDERS:
        if (path := folder / f"state-v{version}.json").exists():
            yield from json.loads(path.read_text()).items()


def frozen(version: int) -> Iterator[tuple[str, State]]:
    """Yield the frozen states of a version."""
    yield from ((name, entry["state"]) for name, entry in with_what_follows(version))


NEWEST = dict(frozen(STATE_VERSION))


def newest(name: str) -> State:
    """Return the frozen state of the newest version."""
    return dict(frozen(2))[name]


def load(state: State) -> None:
    """Load a state into a job of another table, whose form is read first."""
    loader, _ = StructuredDataset.create_dataloader(source=pa.table({"x": [1]}), num_workers=0)
    loader.load_state_dict(state)


ENTRIES = [pytest.param(each, id=f"v{number} {name}") for number in (1, 2) for name, each in with_what_follows(number)]
EVERY = [pytest.param(state, id=f"v{number} {name}") for number in (1, 2) for name, state in frozen(number)]


@pytest.mark.parametrize("name", [name for name, _ in frozen(1)])
def test_a_state_of_version_1_becomes_the_one_that_is_written_now(name: str) -> None:
    state = dict(frozen(1))[name]
    before = json.dumps(state)
    if '"lack' in json.dumps(NEWEST[name]):  # version 1 did not know what sources lack, which moves where stages end
        assert list(map(sorted, stages_of(upgraded(state)))) == list(map(sorted, stages_of(NEWEST[name])))
    else:
        assert upgraded(state) == NEWEST[name]
    assert json.dumps(state) == before, "what the caller holds stays as it was"
    assert upgraded(NEWEST[name]) == NEWEST[name]


@pytest.mark.parametrize("entry", ENTRIES)
@daily(6)
def test_any_edit_of_a_state_is_read_or_refused_in_words(entry: dict[str, Any]) -> None:
    state: State = entry["state"]
    knows_the_end = bool(state.get("mixture"))  # the tables of others say it, when a job loads the state
    has_ended = knows_the_end and "on a rank that had ended" in entry.get("refused", "")
    with pytest.raises(ResumeError, match="had ended") if has_ended else nullcontext():
        read_state(state)
    for _, other in changes_of(state):
        with suppress(ResumeError, ConfigError):  # of the second, `load_state_dict` makes the first
            read_state(other)


@pytest.mark.parametrize("state", EVERY)
def test_what_has_a_name_is_in_order_and_there_once(state: State) -> None:
    state = dict(upgraded(state))
    names, *rows = state["history"]
    for wrong in ([names[::-1], *rows], [[*names, names[-1]], *([*row, row[-1]] for row in rows)], [names], []):
        with pytest.raises(ResumeError, match="history"):
            read_state({**state, "history": wrong})


def test_a_checkpoint_of_one_table_may_lack_the_key_that_was_empty_in_version_1() -> None:
    """Stores that save key by key load the keys of today alone; a mixture cannot do without."""
    for name, state in frozen(1):
        less = {key: value for key, value in state.items() if key != "mixture"}
        if not state["mixture"]:
            assert upgraded(less) == NEWEST[name]
            continue
        with pytest.raises(ResumeError, match="the state has no mixture"):
            read_state(less)


@pytest.mark.parametrize("version", [1, 2])
def test_a_state_of_a_guest_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    monkeypatch.setitem(installed.RECORDS, "packing", "text.module_of_another_build")
    read_state(NEWEST["in the middle of an epoch"])
    packed = [state for name, state in frozen(version) if "packing" in stages_of(NEWEST[name])[-1]]
    for state in packed:
        with pytest.raises(ResumeError, match="'packing', which this build cannot read: this build has no packing"):
            read_state(state)


@pytest.mark.parametrize("columns", [{"bound": []}, {"mixture": None}, {"packing": None}], ids=str)
def test_a_record_without_a_value_is_refused(columns: dict[str, Any]) -> None:
    with pytest.raises(ResumeError, match="history"):
        load(with_newest(newest("in the middle of an epoch"), **columns))


@pytest.mark.parametrize(
    ("name", "columns", "said"),
    [
        ("a mixture of streams", {"rank": 0}, "rank must be left out of a state with 'mixture'"),
        ("a mixture", {"extents": []}, "extents must be left out of a state with 'mixture'"),
        ("packed items", {"extents": []}, "extents must be left out of a state with 'packing'"),
        ("single rows", {"packing": {"seq_len": 4, "origin": 0}}, "sequences as long as the options of tables say"),
        ("a packed stream", {"packing": {"seq_len": 4, "origin": 0}}, "without 'packing' in a job that counts splits"),
    ],
    ids=str,
)
def test_what_a_record_rules_out_is_refused_by_name(name: str, columns: dict[str, Any], said: str) -> None:
    with pytest.raises(ResumeError, match=said):
        load(with_newest(newest(name), **columns))
