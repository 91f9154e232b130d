"""The contract of items (`engine/items.py`): what epochs have, streams of that, and items as a map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_table_loader.engine.exclusion_record import RECORD as EXCLUSIONS
from torch_table_loader.testing.rules import pickled, require

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.engine.items import Items, ItemStream, TableItems, TurnStream
    from torch_table_loader.engine.jobs.by_step import ByStep

    Ints = NDArray[np.int64]


def check_item_stream(stream: ItemStream, names: Sequence[str], count: int) -> None:
    """Check the items of an epoch, whose stores are open: each is the same in whatever block, and in any process.

    Args:
        names: of the columns that come.
        count: so many items are asked for, at the places from 0 on.

    Raises:
        ContractError: a rule is broken; the message names it.
    """
    who, places = type(stream).__name__, np.arange(count, dtype=np.int64)
    whole = _items(who, stream, names, [places])
    require(_items(who, stream, names, np.array_split(places, 3)) == whole, f"{who} must not depend on blocks")
    mixed = np.concatenate((places[::-1], places[::2]))
    again = _items(who, stream, names, [places[:0], mixed])
    require(again == [whole[place] for place in mixed], f"{who} must give items in the order of the places")
    require(_items(who, pickled(stream, who), names, [places]) == whole, f"{who} must be the same in another process")
    said = [stream.name_of(place) for place in range(min(count, 3))]
    require(all(said), f"{who} must call each item something, says {said}")


def check_turn_stream(stream: TurnStream, names: Sequence[str], count: int, rows: int) -> None:
    """Check the items of a source of a mixture, by how many came before; see `check_item_stream`.

    Args:
        rows: physical rows of the table.

    Raises:
        ContractError: a rule is broken; the message names it.
    """
    check_item_stream(stream, names, count)
    who, turns = type(stream).__name__, np.arange(count, dtype=np.int64)
    ids, of_items = stream.found(turns)
    require(len(of_items) == count and int(of_items.sum()) == len(ids), f"{who} must count the row ids of each item")
    require(bool(((ids >= 0) & (ids < rows)).all()), f"{who} must find row ids in [0, {rows})")
    alone = [stream.found(turns[at : at + 1])[0].tolist() for at in range(min(count, 10))]
    parts = [part.tolist() for part in np.split(ids, np.cumsum(of_items))[: len(alone)]]
    require(alone == parts, f"{who} must find the same row ids of an item alone as of items together")
    behind, other = count // 2, pickled(stream, who)
    if anchor := stream.anchor(behind):
        other.begin_at(list(anchor))
    left = _items(who, other, names, [turns[behind:]])
    require(left == _items(who, stream, names, [turns[behind:]]), f"{who} must go on from an anchor as it does here")


def check_items(items: Items, by_step: ByStep) -> None:
    """Check the epochs that items have, whose stores are opened: the order, what a state says of it, and its stages.

    Args:
        by_step: the shape of a job; its first epoch has two steps at least.

    Raises:
        ContractError: a rule is broken; the message names it.
    """
    who, start = type(items).__name__, items.start(1, by_step)
    require(start == items.start(1, by_step), f"{who} must begin an epoch in the same way each time")
    begun = (start.epoch, start.steps_taken, start.consumed)
    require(begun == (1, 0, 0), f"{who} must begin an epoch at its first item, begins at {begun}")
    stream = items.stream(start)
    for store in stream.stores:
        store.open()
    some = min(start.total, 30)
    check_item_stream(stream, items.columns.names, some)
    places = np.arange(some, dtype=np.int64)
    alone = [row for place in places for row in items.locate(start, np.array([place]))]
    require(alone == [*items.locate(start, places)], f"{who} must locate items in the order of the places")
    one = start.after(1)
    stray = set(items.records(one)) - {*items.own_records, EXCLUSIONS.key}
    require(not stray, f"{who} must name the records of its states, does not name {sorted(stray)}")
    after = items.next_stage(one, by_step)
    items.enter(one, after)
    done = one.done(by_step.width), after.done(by_step.width)
    require(done[0] == done[1], f"{who} must begin a stage after what was taken, {done[0]}, begins after {done[1]}")
    require(items.gathering(by_step.topology).batches > 0, f"{who} must gather a batch at least")
    require(
        set(items.bounds) == set(items.sources), f"{who} must say what the state of each of its sources is bound to"
    )


def check_map(items: TableItems, rows: int) -> None:
    """Check items in the table's own order, whose store is open.

    Args:
        rows: physical rows of the table.

    Raises:
        ContractError: a rule is broken; the message names it.
    """
    who, places = type(items).__name__, np.arange(items.num_places, dtype=np.int64)
    names = items.columns.names
    whole = _as_rows(who, names, items.columns_at(places), len(places))
    mixed = np.concatenate((places[::-1], places[::2]))
    again = _as_rows(who, names, items.columns_at(mixed), len(mixed))
    require(again == [whole[place] for place in mixed], f"{who} must give items in the order of the places")
    ids = items.ids_at(places)
    require(bool(((ids >= 0) & (ids < rows)).all()), f"{who} must name row ids in [0, {rows})")
    require(bool((np.diff(ids) >= 0).all()), f"{who} must have its items in the table's order")


def _items(who: str, stream: ItemStream, names: Sequence[str], blocks: Sequence[Ints]) -> list[tuple[Any, ...]]:
    """Return the items of some blocks of places, as Python's values."""

    def asked() -> Iterator[tuple[Ints, int]]:
        return ((places, number) for number, places in enumerate(blocks))

    found: list[tuple[Any, ...]] = []
    notes = []
    for columns, note in stream.columns(asked(), None):
        notes.append(note)
        found += _as_rows(who, names, columns, len(blocks[note]))
    require(notes == [*range(len(blocks))], f"{who} must give each block once, in order, with its note; gave {notes}")
    return found


def _as_rows(who: str, names: Sequence[str], columns: list[pa.Array], count: int) -> list[tuple[Any, ...]]:
    lengths = [len(column) for column in columns]
    require(lengths == [count] * len(names), f"{who} must give {count} values of each of {names}, gave {lengths}")
    return list(zip(*(column.to_pylist() for column in columns), strict=True))
