"""The door of far stores has what the core asks of it, and a door that lacks something is told apart."""

from __future__ import annotations

from types import ModuleType

import pytest

import torch_table_loader.far
from torch_table_loader.ranges import Far, far
from torch_table_loader.store.far_rows import FarStores, far_stores
from torch_table_loader.testing import ContractError, check_door


def test_the_door_is_what_the_core_asks_for() -> None:
    doors: list[object] = [far(), far_stores()]
    assert doors == [torch_table_loader.far] * 2
    check_door(torch_table_loader.far, Far, FarStores)


@pytest.mark.parametrize("wrong", ["no function", "other parameters"])
def test_a_door_that_is_another_is_refused(wrong: str) -> None:
    door = ModuleType("door")
    vars(door).update({name: getattr(torch_table_loader.far, name) for name in vars(Far) if not name.startswith("_")})
    check_door(door, Far)
    if wrong == "no function":
        del door.connect
    else:
        vars(door)["connect"] = lambda protocol: protocol
    with pytest.raises(ContractError, match="connect"):
        check_door(door, Far)
