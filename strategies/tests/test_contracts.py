"""Each strategy is found by its name and keeps the contract."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points

import pytest
from torch_table_strategies import ByPartition, NewestFirst, NodeLocal

from torch_table_loader.planning.strategies import resolve_strategy
from torch_table_loader.testing import check_split_strategy

CHOICES: dict[str, list[Mapping[str, object]]] = {
    "by_partition": [{}, {"target_rows": 3}],
    "newest_first": [{}],
    "node_local": [{"shuffle": "splits", "seed": 7}, {"shuffle": False}],
}
OBJECTS = [
    ByPartition(descending=True, target_bytes=1),
    NewestFirst("day"),
    NewestFirst("day", oldest_first=True),
    NodeLocal(ranks_per_node=1),
    NodeLocal(ranks_per_node=3, slack_percent=0),
    NodeLocal(ranks_per_node=3, shuffle=False),
]


def test_every_installed_strategy_of_this_package_is_checked() -> None:
    points = entry_points(group="torch_table_loader.strategies")
    assert {point.name for point in points if point.module.startswith("torch_table_strategies")} == set(CHOICES)


@pytest.mark.parametrize("name", CHOICES)
def test_found_by_name_it_keeps_the_contract(name: str) -> None:
    for turn, arguments in enumerate(CHOICES[name]):
        check_split_strategy(name, arguments=arguments, other_process=turn == 0)


@pytest.mark.parametrize(
    "strategy", [OBJECTS[0], *(pytest.param(each, marks=pytest.mark.slow) for each in OBJECTS[1:])]
)
def test_with_options_it_keeps_the_contract(strategy: object) -> None:
    check_split_strategy(strategy, other_process=False)


def test_the_forms_are_those_that_the_readme_says() -> None:
    forms = {name: resolve_strategy(name, {}).form for name in CHOICES}
    assert forms == {"by_partition": "cutter", "newest_first": "generator", "node_local": "generator_with_ranks"}


def test_what_the_caller_chose_arrives() -> None:
    arguments = {"shuffle": False, "seed": 5, "target_rows": 10, "target_bytes": None}
    assert resolve_strategy("node_local", arguments).target == NodeLocal(shuffle=False, seed=5)
    assert resolve_strategy("by_partition", arguments).target == ByPartition(target_rows=10)
    assert resolve_strategy("newest_first", arguments).target == NewestFirst()
