"""Rows from a worker process lie in shared memory, which is reused, but never while anything refers to it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from torch_table_loader.batching.codec import make_codec
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.engine.sizing import LENT_SLOTS, SPARE_SLOTS
from torch_table_loader.engine.workers import shared_memory
from torch_table_loader.engine.workers.shared_memory import SharedMemoryReceiver, SharedMemorySender, new_slots

WAITING = 1
SLOTS = WAITING + SPARE_SLOTS
SCHEMA = pa.schema({"number": pa.int64(), "tokens": pa.list_(pa.int32()), "word": pa.string()})


def batch(number: int) -> pa.RecordBatch:
    values = {"number": [number] * 3, "tokens": [[number], [], [number] * 2], "word": [str(number)] * 3}
    return pa.record_batch(values, SCHEMA)


def values(rows: Any) -> Any:
    batch = rows.batches(3)[0]
    if isinstance(batch, pa.RecordBatch):
        return batch.to_pydict()
    return {
        name: [getattr(value, "tolist", lambda value=value: value)() for value in column]
        for name, column in batch.items()
    }


class Crossing:
    """Both sides of one worker's slots, in this process."""

    def __init__(self, policy: TypePolicy) -> None:
        self.codec = make_codec(SCHEMA, policy)
        self.marks = new_slots(1, WAITING)
        self._sender = SharedMemorySender(0, self.marks)
        self._receiver = SharedMemoryReceiver(self.marks)

    def send(self, number: int) -> Any:
        return self._sender.pack(self.codec, self.codec.decode(batch(number)))

    def take(self, block: Any) -> Any:
        return self._receiver.unpack(self.codec, block)

    @property
    def lent(self) -> int:
        return int((self.marks == shared_memory.LENT).sum())

    @property
    def free(self) -> int:
        return int((self.marks == shared_memory.FREE).sum())


@pytest.mark.parametrize("output", ["torch", "numpy", "arrow", "dict"])
def test_kept_batches_do_not_change_and_take_few_slots(output: Any) -> None:
    crossing = Crossing(TypePolicy(output_format=output))
    kept = []
    for number in range(3 * SLOTS):
        kept.append(crossing.take(crossing.send(number)))
        assert crossing.lent <= LENT_SLOTS
        assert crossing.free >= SLOTS - LENT_SLOTS
    for number, rows in enumerate(kept):
        assert values(rows) == values(crossing.codec.decode(batch(number)))
    kept.clear()
    del rows
    assert crossing.free == SLOTS


def test_any_part_of_a_batch_keeps_its_slot() -> None:
    crossing = Crossing(TypePolicy())
    part = crossing.take(crossing.send(7)).batches(2)[1]["number"][:1]
    assert crossing.lent == 1
    for number in range(2 * SLOTS):
        crossing.take(crossing.send(number))
    assert part.tolist() == [7]
    part += 1
    assert part.tolist() == [8], "what is lent is the trainer's alone"
    del part
    assert crossing.free == SLOTS


def test_without_a_free_slot_a_block_gets_separate_memory() -> None:
    crossing = Crossing(TypePolicy())
    sent = [crossing.send(number) for number in range(SLOTS + 2)]
    assert [block.slot for block in sent] == [*range(SLOTS), -1, -1]
    for number, block in enumerate(sent):
        assert values(crossing.take(block)) == values(crossing.codec.decode(batch(number)))
    assert crossing.free == SLOTS
