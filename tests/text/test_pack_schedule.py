"""`seq_len` by step: one epoch in sequences of several lengths, in streams and in row mode."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.effort import daily
from tests.tables.plain import meant_warnings
from tests.text.packing_reference import (
    GROUPS,
    Place,
    check_batch,
    documents_of,
    full_pack,
    length_of_step,
    places_of,
    write_documents,
)
from torch_table_loader import ConfigError, ConfigTypeError, Pack, Schedule, StructuredDataset, TableLoader

PACK = full_pack(seq_len={0: 3, 2: 7, 4: 2, 9: 11}, labels="shifted")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("documents")
    write_documents(root, GROUPS)
    return root


def make(root: Path, pack: Pack, **options: Any) -> TableLoader:
    asked: dict[str, Any] = {"check_plan": False, "columns": ["id"], "pack": pack} | options
    with meant_warnings():
        return StructuredDataset.create_dataloader(str(root), "parquet", **asked)[0]


def check(batches: list[Any], pack: Pack, *, first: int, epoch: int = 0) -> list[Place]:
    """Check every value of batches, and that each has sequences of the length of its step; give their tokens."""
    found: list[Place] = []
    for step, batch in enumerate(batches, first):
        own = full_pack(seq_len=length_of_step(pack, epoch, step), labels=pack.labels)
        found += [place for sequence in check_batch(batch, documents_of(GROUPS, own), own) for place in sequence]
    return found


ALL = sorted(places_of(documents_of(GROUPS, PACK)))


@pytest.mark.parametrize("mode", [False, True, "rows"])
@pytest.mark.parametrize("worker_type", ["thread", "process"])
@daily(2)
def test_resumes_from_every_step(table: Path, mode: Any, worker_type: Any) -> None:
    options = {"batch_size": 2, "num_workers": 2, "worker_type": worker_type, "shuffle": mode}
    batches = list(make(table, PACK, **options))
    whole = check(batches, PACK, first=0)
    assert [batch["input_ids"].shape[1] for batch in batches[:10]] == [3, 3, 7, 7, 2, 2, 2, 2, 2, 11]
    assert sorted(whole) == ALL
    for taken in range(len(batches) + 1) if worker_type == "thread" else (len(batches) // 2,):
        with make(table, PACK, **options) as loader:
            before = check(list(islice(loader, taken)), PACK, first=0)
            other = make(table, PACK, **options)
            other.load_state_dict(loader.state_dict())
        assert before + check(list(other), PACK, first=taken) == whole


@pytest.mark.parametrize("mode", [True, "rows"])
def test_seek_and_rows_of_count_steps_over_lengths(table: Path, mode: Any) -> None:
    options = {"batch_size": 2, "num_workers": 2, "shuffle": mode}
    whole = list(make(table, PACK, **options))
    loader = make(table, PACK, **options)
    for step in (0, 2, 3, 9, len(whole)):
        assert loader.seek(step=step) == step
        assert check(list(loader), PACK, first=step) == check(whole[step:], PACK, first=step)
    with pytest.raises(ConfigError, match="after its end"):
        loader.seek(step=len(whole) + 1)


@pytest.mark.parametrize("mode", [True, "rows"])
def test_later_epochs_have_the_last_length(table: Path, mode: Any) -> None:
    loader = make(table, PACK, batch_size=2, num_workers=2, shuffle=mode, epochs=2)
    length, batches = len(loader), list(loader)
    assert len(batches) == length
    first = make(table, PACK, batch_size=2, num_workers=2, shuffle=mode)
    cut = len(first)
    assert sorted(check(batches[:cut], PACK, first=0)) == ALL
    assert sorted(check(batches[cut:], PACK, first=0, epoch=1)) == ALL
    first.set_epoch(1)
    assert len(first) == len(batches) - cut


@pytest.mark.parametrize("mode", [True, "rows"])
def test_a_schedule_goes_on_from_one_length_and_back(table: Path, mode: Any) -> None:
    plain, found = full_pack(seq_len=11, labels="shifted"), []
    state: Any = None
    for pack, first, steps in ((plain, 0, 3), (PACK, 3, 3), (plain, 0, None)):
        loader = make(table, pack, batch_size=1, num_workers=1, shuffle=mode)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        found += check(list(islice(loader, steps)), pack, first=first)
        state = loader.state_dict()
    assert sorted(found) == ALL


@pytest.mark.parametrize("mode", [True, "rows"])
def test_explain_and_metrics_speak_of_all_lengths(table: Path, mode: Any) -> None:
    with meant_warnings():
        loader, dataset = StructuredDataset.create_dataloader(
            str(table),
            pack=PACK,
            batch_size=2,
            num_workers=2,
            shuffle=mode,
            check_plan=False,
            num_ranks=2,
            rank=0,
            even_ranks="pad",
        )
    told = dataset.explain()
    assert list(told.steps_per_rank or ()) == [len(loader)] * 2
    assert told.packing is None
    assert any("3 tokens, 7 from step 2 of the first epoch on, 2 from step 4, 11 from step 9" in n for n in told.notes)
    batches = list(loader)
    metrics = loader.metrics()
    assert metrics.batches == len(batches) == len(loader)
    assert metrics.packing is not None
    assert metrics.packing.sequences == sum(len(batch["input_ids"]) for batch in batches)
    assert metrics.packing.fill is None
    assert "sequences of several lengths" in str(metrics)


def test_lengths_that_do_not_change_are_one_length() -> None:
    assert Pack(seq_len={0: 8, 5: 8}) == Pack(seq_len=8) == Pack(seq_len=Schedule({0: 8}, unit="tokens"))
    assert Pack(seq_len={0: 8, 5: 9}) == Pack(seq_len=Schedule({5: 9, 0: 8}))


def test_what_does_not_fit_is_refused(table: Path) -> None:
    with pytest.raises(ConfigError, match='strategy="concat"'):
        full_pack(seq_len={0: 4, 3: 8}, strategy="pad")
    with pytest.raises(ConfigError, match="begins with the value of step 0"):
        full_pack(seq_len={3: 8})
    with pytest.raises(ConfigError, match="at least 1"):
        full_pack(seq_len={0: 4, 3: 0})
    with pytest.raises(ConfigError, match="at steps, got unit='tokens'"):
        full_pack(seq_len=Schedule({0: 4, 900: 8}, unit="tokens"))
    with pytest.raises(ConfigTypeError, match="seq_len"):
        full_pack(seq_len={"a": 8})
    with pytest.raises(TypeError, match="seq_len_from"):
        full_pack(seq_len=4, seq_len_from={3: 8})
    with pytest.raises(ConfigError, match="even_ranks"):
        make(table, PACK, shuffle="splits", num_ranks=2, rank=0, even_ranks=False)
    with pytest.raises(ConfigError, match="multiples of the 2 batches that each rank takes for global_batch_size"):
        make(table, full_pack(seq_len={0: 4, 3: 8}), shuffle="rows", batch_size=2, global_batch_size=4)
    dataset = StructuredDataset(str(table), pack=PACK, shuffle="splits")
    with pytest.raises(ConfigError, match="create_dataloader"):
        next(iter(dataset))
