"""The contract of a guest's door: the functions that the core asks of it, with the parameters that it passes."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from torch_table_loader.testing.rules import require


def check_door(door: ModuleType, *contracts: Any) -> None:
    """Check that a module has each function of some protocols, with the same parameters.

    Raises:
        ContractError: a function is not there, or takes other parameters.
    """
    for contract in contracts:
        for name, wanted in inspect.getmembers(contract, inspect.isfunction):
            if name.startswith("_"):
                continue
            found: Any = getattr(door, name, None)
            title = f"{door.__name__}.{name}"
            require(inspect.isfunction(found), f"{title} must be a function, as {contract.__name__} says")
            ours = list(inspect.signature(wanted).parameters.values())[1:]
            theirs = list(inspect.signature(found).parameters.values())
            same = [(each.name, each.kind, each.default) for each in ours]
            got = [(each.name, each.kind, each.default) for each in theirs]
            require(same == got, f"{title} must take {_said(ours)}, takes {_said(theirs)}")


def _said(parameters: list[inspect.Parameter]) -> str:
    return f"({', '.join(each.name for each in parameters)})"
