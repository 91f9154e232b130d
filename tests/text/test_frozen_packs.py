"""States of sequences that older code wrote go on for ever; see `tests/torch/test_frozen_states.py`.

``python -m tests.text.test_frozen_packs`` adds the cases that are missing to the file of the newest version.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.effort import daily
from tests.states import STATE_VERSION, with_record
from tests.text.packing_reference import write_documents
from tests.torch.test_frozen_states import Case, Cases, freeze, frozen_in, open_loader, what_follows, write
from torch_table_loader import Pack

STATES = Path(__file__).parent / "states"
"""Documents of two tables, committed as bytes, and states of jobs over them."""
GROUPS: dict[str, list[list[int | None]]] = {
    "a": [[5, 0, 17, 1], [None, 40, 3], [9, 9, 2, 2, 30], [12, 33, 4, 6]],
    "b": [[7, 8, 9], [3, 3, 3, 50], [16, 16]],
}
LENGTHS = Pack(seq_len={0: 6, 3: 9, 7: 4})
COMMON: Case = {"columns": ["id"], "row_id": False, "batch_size": 2, "num_workers": 2}
ITEMS: Case = COMMON | {"shuffle": "rows", "root": STATES / "a"}
STREAM: Case = COMMON | {"shuffle": "splits", "split_size": 4, "root": STATES / "a"}
FORMS = {name: str(STATES / name) for name in GROUPS}
MIXED: Case = COMMON | {"weights": {"a": 1, "b": 3}, "stop": "all_exhausted", "forms": FORMS, "columns": []}
MIXED_ITEMS, MIXED_STREAMS = MIXED | {"shuffle": "rows"}, MIXED | {"shuffle": "splits"}


def case(options: Case, pack: Pack, *moves: Any, **go_on: Any) -> Case:
    """Return a job that is saved after two steps on two ranks, and some more moves on one."""
    own = options | {"pack": pack}
    epoch = 1 if isinstance(pack.seq_len, int) else 0
    return {"go on": own | go_on, "epoch": epoch, "stages": [(own | {"num_ranks": 2}, 2), (own, *moves)]}


TWO = {"num_ranks": 2, "rank": 1}
CASES: Cases = {
    "a packed stream": case(STREAM, Pack(seq_len=6), 2, **TWO),
    "a packed stream of several lengths": case(STREAM, LENGTHS, 3),
    "a stream packed whole": case(STREAM, Pack(seq_len=12, strategy="best_fit", long_docs="split"), 1, **TWO),
    "packed items": case(ITEMS, Pack(seq_len=6), 4, **TWO),
    "packed items of several lengths": case(ITEMS, LENGTHS, 3, **TWO),
    "packed items, some documents excluded": case(ITEMS, Pack(seq_len=6), {"exclude": [2, 9]}, 4),
    "windows": case(ITEMS, Pack(seq_len=6, strategy="windows"), 4),
    "padded documents": case(ITEMS, Pack(seq_len=6, strategy="pad", long_docs="split"), 4, **TWO),
    "documents by best fit": case(ITEMS, Pack(seq_len=6, strategy="best_fit", long_docs="split", block_docs=5), 4),
    "a mixture of packed items": case(MIXED_ITEMS, Pack(seq_len=6), 7, {"set_weights": {"a": 1, "b": 1}}, **TWO),
    "a mixture of packed items of several lengths": case(MIXED_ITEMS, LENGTHS, 7),
    "a mixture of documents by best fit": case(
        MIXED_ITEMS, Pack(seq_len=6, strategy="best_fit", long_docs="split", block_docs=5), 7
    ),
    "a mixture of packed streams": case(MIXED_STREAMS, Pack(seq_len=6), 5, {"set_weights": {"a": 1, "b": 1}}, 1),
    "a mixture of packed streams of several lengths": case(MIXED_STREAMS, LENGTHS, 7, **TWO),
}
FROZEN = frozen_in(STATES)


@pytest.mark.parametrize(("name", "frozen"), FROZEN)
@daily(4)
def test_a_state_of_old_goes_on_with_the_batches_that_followed_it(name: str, frozen: dict[str, Any]) -> None:
    assert {"state": frozen["state"], **what_follows(CASES[name]["go on"], frozen["state"])} == frozen


@pytest.mark.parametrize(("name", "frozen"), FROZEN)
@daily(4)
def test_the_newest_code_writes_the_state_that_is_kept(name: str, frozen: dict[str, Any]) -> None:
    if frozen["state"]["version"] == STATE_VERSION:
        assert write(CASES[name]) == frozen["state"]


@pytest.mark.parametrize(("name", "frozen"), FROZEN)
@daily(4)
def test_a_state_that_was_loaded_is_written_again_as_it_was(name: str, frozen: dict[str, Any]) -> None:
    changes = "several lengths" in name  # which begin a stage where they are loaded
    if frozen["state"]["version"] == STATE_VERSION and not changes:
        loader = open_loader(CASES[name]["stages"][-1][0])
        loader.load_state_dict(frozen["state"])
        assert loader.state_dict() == frozen["state"]


def test_documents_that_stay_whole_have_no_origins_in_a_mixture() -> None:
    name = "a mixture of documents by best fit"
    state = json.loads((STATES / f"state-v{STATE_VERSION}.json").read_text())[name]["state"]
    state = with_record(state, "packing", origins={"b": {"round": 0, "tokens": -2}})
    assert "documents are not cut anywhere" in what_follows(CASES[name]["go on"], state)["refused"]


def test_there_is_a_file_of_every_version_with_every_case() -> None:
    for version in range(1, STATE_VERSION + 1):
        kept = json.loads((STATES / f"state-v{version}.json").read_text())
        assert {entry["state"]["version"] for entry in kept.values()} == {version}
    assert set(kept) == set(CASES)


if __name__ == "__main__":
    for number, (source, groups) in enumerate(GROUPS.items()):
        if not (STATES / source).exists():
            write_documents(STATES / source, groups, first=100 * number)
    freeze(STATES / f"state-v{STATE_VERSION}.json", CASES)
