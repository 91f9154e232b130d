"""A mixture of streams, chained through topologies and weights: one order, and no row twice before its round ends."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.strategies import table
from torch_table_loader import Stop, TargetSizeStrategy
from torch_table_loader.extend import SegmentTable, StopRule, Topology, resolve_strategy
from torch_table_loader.mixtures.mixed_windows import MixingCost
from torch_table_loader.mixtures.rounds import DealtStage, Rounds
from torch_table_loader.mixtures.stream_position import MixedPosition, begun, had_of, refuse_other_orders, rests_of
from torch_table_loader.option_values import DEFAULT_MEMORY
from torch_table_loader.planning.runs import Runs
from torch_table_loader.planning.stages import StreamPosition

SEED = 7

Row = tuple[str, int, int]


def rounds_of(
    name: str, groups: list[list[int]], target: int, *, shuffle: bool, cost: MixingCost | None = None
) -> Rounds:
    strategy = resolve_strategy(TargetSizeStrategy(target_rows=target), {})
    return Rounds(name, SegmentTable.of(strategy.cut(table(groups)), filtered=False), shuffle, SEED, cost)


filled = st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=3), min_size=1, max_size=3)
widths = st.sampled_from([1, 1, 2, 3, 50])  # rows of an item, such as the tokens of a sequence
costs = st.sampled_from([None, MixingCost(8, 8), MixingCost(DEFAULT_MEMORY // 100, DEFAULT_MEMORY)])
"""Of splits that are not mixed, in windows of many rows, and in windows of few rows."""
sources = st.fixed_dictionaries(
    {
        name: st.builds(rounds_of, st.just(name), filled, st.integers(3, 20), shuffle=st.booleans(), cost=costs)
        for name in "abc"
    }
)
weights = st.none() | st.fixed_dictionaries({name: st.sampled_from([0, 1, 2, 3, 9]) for name in "abc"}).filter(
    lambda found: any(found.values())
)
topologies = st.builds(
    Topology, st.integers(1, 3), st.integers(1, 3), st.integers(1, 6), even_ranks=st.sampled_from([None, "pad"])
)
stages = st.lists(st.tuples(topologies, st.integers(0, 5), weights, widths), min_size=1, max_size=3)


def rows_of(rounds: Rounds, runs: Runs) -> list[Row]:
    """Identify rows by their place, which does not depend on the cut."""
    bases = rounds.segments.bases
    return [(rounds.name, int(bases[split]), row) for split, start, stop in runs for row in range(start, stop)]


def saved_and_read(position: MixedPosition) -> MixedPosition:
    """Write a position as plain values, and read them."""
    history, shares = json.loads(json.dumps([position.history(), position.shares()]))
    return MixedPosition.of_shares(StreamPosition.of_history(position.epoch, history), shares, SEED)


def delivered(position: MixedPosition, rounds: dict[str, Rounds], steps: int) -> tuple[list[Row], int]:
    """Return the rows that all channels deliver in the first steps of a stage, and the number of items.

    All items have the same number of rows, except the last of a round.
    """
    deal, rests, found, items = position.deal, rests_of(rounds, position), [], 0
    places = min(steps * deal.step_rows, deal.end)
    taken = deal.dealt(places)
    for name, own in rounds.items():
        source = deal.names.index(name)
        short = Counter[int]()
        for channel in np.ndindex(*taken.shape[1:]):
            parts = own.of_channel(rests[name], position.epoch, position.stage, channel, 0)
            assert deal.takes(source, channel) or next(parts, None) is None
            wanted = int(taken[(source, *channel)])
            while wanted:
                part = next(parts)
                runs = part.rows(own.segments, (SEED, position.epoch))
                rows = min(runs.num_rows, wanted * deal.width)
                assert rows, "a round has fewer rows than were dealt"
                found += rows_of(own, runs.slice(0, rows))
                short[part.round] += rows % deal.width > 0
                wanted -= -(-rows // deal.width)
                items += -(-rows // deal.width)
        assert max(short.values(), default=0) <= 1
    return found, items


@settings(max_examples=examples(20), deadline=None)
@given(
    rounds=sources,
    chain_of=stages,
    stop=st.sampled_from(["first_exhausted", "all_exhausted", "forever"]),
    last_width=widths,
)
def test_no_row_repeats_before_its_round_ends_over_any_chain(
    rounds: dict[str, Rounds], chain_of: list[Any], stop: StopRule, last_width: int
) -> None:
    past: tuple[DealtStage, ...] = ()
    seen, had, over = Counter[Row](), 0, False
    for topology, most, shares, width in chain_of:
        position = begun(2, rounds, shares, topology, stop, past, width)
        assert position.consumed == had
        steps = min(most, position.batches(0).longest)
        found, items = delivered(position, rounds, steps)
        had += items
        assert items == min(steps * position.deal.step_rows, position.deal.total)
        seen.update(found)
        position = position.after(steps)
        for name, own in rounds.items():
            times = [count for row, count in seen.items() if row[0] == name]
            times += [0] * (int(own.live.sum()) - len(times))
            assert max(times) - min(times) <= 1
            assert max(times) <= 1 or stop != "first_exhausted"
        assert saved_and_read(position) == position
        if not over:
            again = {name: replace(own) for name, own in rounds.items()}  # which remember no stage
            refuse_other_orders(position, again, stop)
        over = over or position.consumed == position.total
        past = position.stages if position.stage.steps else position.past
    left = begun(2, rounds, None, chain_of[-1][0], "first_exhausted", past, last_width)
    assert left.total >= had
    if stop == "first_exhausted":
        rest, _ = delivered(left, rounds, -(-left.deal.total // left.deal.step_rows))
        assert Counter(seen + Counter(rest)) == Counter(
            chain.from_iterable(rows_of(own, own.order(2, 0)) for own in rounds.values())
        )


@settings(max_examples=examples(30), deadline=None)
@given(
    rounds=sources,
    width=widths,
    shapes=st.lists(st.tuples(topologies, st.integers(1, 9)), min_size=1, max_size=3),
    shares=weights.filter(bool),
    caps=st.fixed_dictionaries({}, optional={name: st.integers(1, 3) for name in "abc"}),
    samples=st.none() | st.integers(1, 200),
)
def test_sources_are_dropped_at_their_caps_to_the_row(
    rounds: dict[str, Rounds], width: int, shapes: list[Any], shares: Any, caps: dict[str, int], samples: int | None
) -> None:
    stop = Stop("forever", drop=caps, samples=samples)
    if samples is None and any(weight and name not in caps for name, weight in shares.items()):
        stop = Stop("all_exhausted", drop=caps)
    had, past = Counter[Row](), tuple[DealtStage, ...]()
    counts = dict.fromkeys(rounds, 0)
    shapes = [*shapes, (Topology(2, 2, 3), 10**6)]
    position = begun(1, rounds, shares, shapes[0][0], stop, width=width)
    while position.consumed < position.total:
        most, drop = shapes[0][1], position.steps_until_drop
        steps = min(most, 10**6 if drop is None else drop, position.batches(0).longest)
        found, items = delivered(position, rounds, steps)
        assert items == min(steps * position.deal.step_rows, position.total - position.start)
        had.update(found)
        position = position.after(steps)
        counts = had_of(rounds, 1, position.stages, width)
        assert sum(counts.values()) == position.consumed
        assert all(counts[name] <= caps[name] * rounds[name].items(width) for name in caps)
        assert saved_and_read(position) == position
        refuse_other_orders(position, rounds, stop)
        shapes = shapes if steps < most else shapes[1:] or shapes
        past = position.stages
        if position.consumed < position.total:
            position = begun(1, rounds, shares, shapes[0][0], stop, past, width)
    for name, own in rounds.items():
        times = [count for row, count in had.items() if row[0] == name]
        times += [0] * (int(own.live.sum()) - len(times))
        assert max(times) - min(times) <= 1
    going = [
        name
        for name, weight in shares.items()
        if weight and counts[name] < caps.get(name, 99) * rounds[name].items(width)
    ]
    assert not going or stop.at == "all_exhausted" or sum(counts.values()) == samples
    if stop.at == "all_exhausted":
        assert all(counts[name] >= rounds[name].items(width) for name, weight in shares.items() if weight)


@settings(max_examples=examples(20), deadline=None)
@given(rounds=sources, topology=topologies, before=st.integers(0, 3), width=widths)
def test_a_row_is_found_at_its_place(rounds: dict[str, Rounds], topology: Topology, before: int, width: int) -> None:
    stop: StopRule = "all_exhausted"
    past = begun(0, rounds, {"a": 1, "b": 2, "c": 3}, topology, stop).after(before).stages if before else ()
    position = begun(0, rounds, {"a": 3, "b": 1, "c": 1}, topology, stop, past, width)
    deal, rests = position.deal, rests_of(rounds, position)
    if not deal.total:
        return
    places = np.arange(deal.total)
    sources, channels, _ = deal.ordinals(places)
    for name, own in rounds.items():
        for channel in np.unique(channels[sources == deal.names.index(name)]).tolist():
            at = places[(sources == deal.names.index(name)) & (channels == channel)]
            twice = np.concatenate([at[::-1], at[:2]])
            found: dict[int, list[Row]] = {}
            for part, items in own.at(rests[name], 0, position.stage, twice):
                rows = rows_of(own, part.rows(own.segments, (SEED, 0)))
                found |= {place: rows[item * width : (item + 1) * width] for place, item in items.tolist()}
            parts = own.of_channel(rests[name], 0, position.stage, divmod(channel, topology.lanes), 0)
            all_rows = [rows_of(own, part.rows(own.segments, (SEED, 0))) for part in parts]
            one_by_one = [rows[start : start + width] for rows in all_rows for start in range(0, len(rows), width)]
            assert [found[len(at) - 1 - place] for place in range(len(at))] == one_by_one
            assert [found[place] for place in range(len(at), len(twice))] == one_by_one[:2]


@settings(max_examples=examples(20), deadline=None)
@given(rounds=sources, topology=topologies, steps=st.integers(0, 5), width=widths)
def test_a_channel_goes_on_in_mid_window_with_the_rows_that_it_would_have_had(
    rounds: dict[str, Rounds], topology: Topology, steps: int, width: int
) -> None:
    position = begun(3, rounds, {"a": 2, "b": 1, "c": 1}, topology, "all_exhausted", width=width)
    deal, rests = position.deal, rests_of(rounds, position)
    place = min(steps * deal.step_rows, deal.end)
    for name, own in rounds.items():
        for channel in np.ndindex(topology.num_ranks, topology.lanes):
            whole, rest = (
                [
                    row
                    for part in own.of_channel(rests[name], 3, position.stage, channel, begin)
                    for row in rows_of(own, part.rows(own.segments, (SEED, 3)))
                ]
                for begin in (0, place)
            )
            assert whole[len(whole) - len(rest) :] == rest
            had = int(deal.dealt(place)[(deal.names.index(name), *channel)])
            assert had == 0 or len(rest) < len(whole) or not whole


def test_batches_draw_on_all_parts_of_each_source() -> None:
    """Of a sorted table, one batch of a rank has rows of each sixteenth, and so has any part of a window."""
    groups = [[50] * 16] * 16
    rounds = {name: rounds_of(name, groups, 50, shuffle=True, cost=MixingCost(8, 8)) for name in "ab"}
    topology = Topology(2, 1, 64)
    position = begun(0, rounds, {"a": 3, "b": 1}, topology, "first_exhausted")
    assert {name: mixing.splits for name, mixing in position.stage.mixed.items()} == {"a": 16, "b": 16}
    for name, batch in (("a", 48), ("b", 16)):
        own = rounds[name]
        [part, *_] = own.of_channel(own.rest(0, ()), 0, position.stage, (1, 0), 0)
        rows = np.array([base + row for _, base, row in rows_of(own, part.rows(own.segments, (SEED, 0)))])
        for start in range(0, 20 * batch, 13):
            spread = rows[start : start + batch].std() / np.sqrt(own.rows**2 / 12)
            assert spread > 0.9
