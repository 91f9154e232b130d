"""`device=`: batches move ahead on a stream of their own, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from tests.launchers.jobs import make
from tests.tables.plain import as_values, write_table
from torch_table_loader import ConfigError, StructuredDataset
from torch_table_loader.engine import device as device_module
from torch_table_loader.engine.device import ALIGNMENT, BatchMover, CudaCopier, Mark, mapped

GROUPS = [[20, 5], [31], [], [13, 13, 13], [40], [1], [0, 6]]
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@dataclass
class Copy:
    """A copy that was begun and runs as late as it may: when somebody waits for it."""

    source: torch.Tensor
    target: torch.Tensor
    log: list[str]
    number: int
    done: bool = False

    def synchronize(self) -> None:
        if not self.done:
            self.log.append(f"crossed {self.number}")
            self.target.copy_(self.source)
            self.done = True


@dataclass
class LateCopier:
    """A device whose stream does nothing before it must: a buffer that is used again too early shows as wrong data."""

    log: list[str] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    received: list[Mark] = field(default_factory=list)
    allocated: int = 0

    def page_locked(self, num_bytes: int) -> torch.Tensor:
        self.allocated += 1
        return torch.full((num_bytes,), 0xEE, dtype=torch.uint8)

    def send(self, data: torch.Tensor) -> tuple[torch.Tensor, Mark]:
        copy = Copy(data, torch.full_like(data, 0xDD), self.log, len(self.copies))
        self.log.append(f"send {copy.number}")
        self.copies.append(copy)
        return copy.target, copy

    def receive(self, data: torch.Tensor, mark: Mark) -> None:
        assert isinstance(mark, Copy)
        assert data is mark.target, "the mark and the data belong together"
        self.log.append(f"receive {mark.number}")
        self.received.append(mark)

    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        self.log.append("move")
        return tensor.detach().clone()

    def run(self) -> None:
        """Let the trainer's stream come to the end of what it was told to wait for."""
        for mark in self.received:
            mark.synchronize()


def numbered(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"x": torch.arange(number, number + 5), "f": torch.full((3, 2), float(number))}


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_a_buffer_is_used_again_only_when_its_copy_has_crossed(ahead: int) -> None:
    copier = LateCopier()
    came = list(BatchMover(numbered(20), copier, ahead))
    copier.run()
    for batch, meant in zip(came, numbered(20), strict=True):
        assert batch["x"].tolist() == meant["x"].tolist()
        assert batch["f"].tolist() == meant["f"].tolist()
    assert copier.allocated == ahead + 1
    for number in range(20 - ahead - 1):
        assert copier.log.index(f"crossed {number}") < copier.log.index(f"send {number + ahead + 1}")


@pytest.mark.parametrize("ahead", [1, 3])
def test_so_many_batches_are_on_their_way_when_one_is_handed_over(ahead: int) -> None:
    copier = LateCopier()
    mover = BatchMover(numbered(6), copier, ahead)
    for number in range(6):
        next(mover)
        assert len(copier.copies) == min(number + 1 + ahead, 6)
        assert copier.log[-1] == f"receive {number}"
    assert next(mover, None) is None
    assert next(mover, None) is None


def test_buffers_grow_with_the_batches_and_are_kept() -> None:
    copier = LateCopier()
    batches = [{"x": torch.arange(rows)} for rows in (1, 1, 900, 900, 5, 1000, 900)]
    came = list(BatchMover(iter(batches), copier))
    copier.run()
    assert [batch["x"].tolist() for batch in came] == [batch["x"].tolist() for batch in batches]
    assert copier.allocated == 4, "a quarter more than was needed leaves room for the batch of 1000"


def test_tensors_of_every_kind_arrive_as_they_were() -> None:
    lists: Any = torch.nested.nested_tensor_from_jagged(torch.arange(7.0), torch.tensor([0, 2, 2, 7]))
    batch = {
        "flags": torch.tensor([True, False]),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "strided": torch.arange(12).reshape(3, 4).T[1:],
        "scalar": torch.tensor(3, dtype=torch.int8),
        "empty": torch.empty(0, 4),
        "inside": {"ids": (torch.tensor([1]), [torch.tensor([2.5])]), "words": ["a", None]},
        "lists": lists,
        "odd": torch.ones(2, requires_grad=True),
        "sparse": torch.eye(2).to_sparse(),
        "number": 7,
    }
    copier = LateCopier()
    (came,) = BatchMover(iter([batch]), copier)
    copier.run()
    torch.testing.assert_close(came["lists"].values(), lists.values())
    torch.testing.assert_close(came["lists"].offsets(), lists.offsets())
    for name in ("flags", "half", "strided", "scalar", "empty"):
        torch.testing.assert_close(came[name], batch[name])
        assert came[name].data_ptr() % ALIGNMENT == copier.copies[0].target.data_ptr() % ALIGNMENT or name == "empty"
    assert came["inside"]["words"] == ["a", None]
    assert came["inside"]["ids"][0].tolist() == [1]
    assert came["inside"]["ids"][1][0].tolist() == [2.5]
    assert came["sparse"].to_dense().tolist() == torch.eye(2).tolist()
    assert came["number"] == 7
    assert copier.log.count("move") == 2, "the odd ones, in the trainer's own stream"
    assert len(copier.copies) == 1, "all others in one copy"


def test_an_error_comes_where_its_batch_would_have() -> None:
    def torn() -> Iterator[dict[str, Any]]:
        yield from numbered(3)
        raise ConfigError("torn")

    mover = BatchMover(torn(), LateCopier())
    assert [len(next(mover)) for _ in range(3)] == [2, 2, 2]
    with pytest.raises(ConfigError, match="torn"):
        next(mover)
    assert next(mover, None) is None


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> LateCopier:
    """Have ``device="cuda"`` mean a late copier."""
    copier = LateCopier()
    monkeypatch.setattr(device_module, "CudaCopier", lambda device: copier)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    return copier


@pytest.mark.parametrize(
    "options", [{"even_ranks": "balance"}, {"filters": pc.field("k") < 7, "count_filtered": False}], ids=["", "filter"]
)
def test_reading_ahead_disturbs_neither_state_nor_metrics(
    tmp_path: Path, late: LateCopier, options: dict[str, Any]
) -> None:
    write_table(tmp_path, GROUPS)
    common: dict[str, Any] = {"batch_size": 7, "num_workers": 2, "shuffle": "splits", **options}
    plain, ahead = make(tmp_path, **common), make(tmp_path, device="cuda", **common)
    batches, moving = iter(plain), iter(ahead)
    taken = 0
    for batch in batches:
        came = next(moving)
        late.run()
        assert as_values(came) == as_values(batch)
        taken += 1
        assert ahead.state_dict() == plain.state_dict()
        assert ahead.metrics().rows == plain.metrics().rows
        assert ahead.metrics().batches == taken
    assert next(moving, None) is None
    assert taken > 5


def test_what_was_read_ahead_and_not_taken_comes_after_a_resume(tmp_path: Path, late: LateCopier) -> None:
    write_table(tmp_path, GROUPS)
    options: dict[str, Any] = {"batch_size": 7, "num_workers": 2, "shuffle": "splits"}
    whole = [as_values(batch).rows for batch in make(tmp_path, **options)]
    loader = make(tmp_path, device="cuda", **options)
    first = list(islice(loader, 4))
    fresh = make(tmp_path, device="cuda", **options)
    fresh.load_state_dict(loader.state_dict())
    rest = list(fresh)
    late.run()
    assert [as_values(batch).rows for batch in first + rest] == whole


def test_closing_lets_go_of_what_is_on_its_way(tmp_path: Path, late: LateCopier) -> None:
    write_table(tmp_path, GROUPS)
    batches = iter(make(tmp_path, device="cuda", batch_size=7))
    next(batches)
    batches.close()
    assert next(batches, None) is None


def test_a_device_that_is_not_there_is_refused_at_construction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(tmp_path, GROUPS)
    for count, device in ((0, "cuda"), (0, "cuda:0"), (2, "cuda:2")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        with pytest.raises(ConfigError, match=f"device='{device}' must be one of the {count} CUDA devices"):
            make(tmp_path, device=device)


def test_the_cpu_is_a_device_too(tmp_path: Path) -> None:
    write_table(tmp_path, GROUPS)
    plain, to_cpu = make(tmp_path, batch_size=7), make(tmp_path, batch_size=7, device="cpu")
    assert [as_values(batch) for batch in to_cpu] == [as_values(batch) for batch in plain]
    (meta,) = islice(make(tmp_path, batch_size=7, device="meta"), 1)
    assert meta["x"].device.type == "meta"


def lists_and_words(root: Path, rows: int) -> None:
    columns = {
        "x": pa.array(range(rows), "int64"),
        "f": pa.array([row / 7 for row in range(rows)], "float32"),
        "ids": pa.array([list(range(row % 5)) for row in range(rows)], pa.list_(pa.int64())),
        "word": pa.array([f"w{row}" for row in range(rows)]),
        "inside": pa.array([{"a": row} for row in range(rows)], pa.struct([("a", pa.int32())])),
    }
    pq.write_table(pa.table(columns), root / "mixed.parquet", row_group_size=500)


@cuda
@pytest.mark.parametrize("worker_type", ["thread", "spawn"])
def test_batches_on_the_device_are_those_of_the_cpu(tmp_path: Path, worker_type: Literal["thread", "spawn"]) -> None:
    lists_and_words(tmp_path, 3_000)
    options: dict[str, Any] = {"batch_size": 64, "shuffle": "splits", "num_workers": 2}
    on_cpu = StructuredDataset.create_dataloader(str(tmp_path), **options)[0]
    on_device = StructuredDataset.create_dataloader(str(tmp_path), device="cuda", worker_type=worker_type, **options)[0]
    for meant, came in zip(on_cpu, on_device, strict=True):
        assert came["word"] == meant["word"]
        torch.testing.assert_close(came["ids"].values().cpu(), meant["ids"].values())
        torch.testing.assert_close(came["ids"].offsets().cpu(), meant["ids"].offsets())
        for name in ("x", "f"):
            assert came[name].is_cuda
            torch.testing.assert_close(came[name].cpu(), meant[name])
        torch.testing.assert_close(came["inside"]["a"].cpu(), meant["inside"]["a"])


@cuda
@pytest.mark.parametrize("ahead", [1, 3])
@pytest.mark.parametrize("own_stream", [False, True])
def test_a_device_that_lags_behind_sees_no_batch_of_another_step(ahead: int, own_stream: bool) -> None:
    """The trainer's stream sleeps, so that copies, their buffers and freed memory are all wanted again too early."""
    rows, steps = 1 << 18, 60
    batches = ({"x": torch.full((rows,), step)} for step in range(steps))
    stream: Any = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()  # type: ignore[no-untyped-call]
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for step, batch in enumerate(BatchMover(batches, CudaCopier(torch.device("cuda")), ahead)):
            torch.cuda._sleep(3_000_000)  # type: ignore[no-untyped-call]
            wrong += (batch["x"] != step).sum()
            batch["x"].zero_()  # what is handed over is the trainer's own
    stream.synchronize()
    assert wrong.item() == 0


@cuda
def test_the_copy_runs_while_the_trainer_computes() -> None:
    batches = ({"x": torch.full((1 << 24,), step)} for step in range(6))
    mover = BatchMover(batches, CudaCopier(torch.device("cuda")))
    for _ in range(3):
        next(mover)  # buffers and memory are then there to be used again
    torch.cuda.synchronize()
    busy = torch.cuda.Event()  # type: ignore[no-untyped-call]
    torch.cuda._sleep(2_000_000_000)  # type: ignore[no-untyped-call]
    busy.record()
    next(mover)  # hands over one and sends the next, all behind a trainer that sleeps
    sent = mover._sent[-1].mark
    sent.synchronize()
    idle = busy.query()  # type: ignore[no-untyped-call]
    assert not idle, "the copy was done before the trainer's stream came to it"
    busy.synchronize()


@cuda
def test_memory_on_the_device_does_not_grow() -> None:
    batches = ({"x": torch.full((1 << 18,), step)} for step in range(200))
    most = []
    for batch in BatchMover(batches, CudaCopier(torch.device("cuda"))):
        most.append(torch.cuda.memory_reserved())
        del batch
    assert max(most[100:]) == max(most[20:100])


def test_a_named_tuple_stays_one() -> None:
    pair = torch.ones(1).max(dim=0)
    came = mapped((1, [pair.indices]), torch.Tensor, lambda tensor: tensor.item())
    assert came == (1, [0])
