"""The error that checks raise, and the helpers that all checks share."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from torch_table_loader.errors import TableError, TableLoaderError

T = TypeVar("T")


class ContractError(TableLoaderError, AssertionError):
    """A plug-in breaks a rule of its socket. It is an AssertionError, so that test runners report a failure."""


def require(holds: object, rule: str) -> None:
    """Raise a ContractError unless a rule holds; `rule` says what was expected, and what came.

    >>> require(1 + 1 == 2, "sums must add up")
    """
    if not holds:
        raise ContractError(rule)


@contextmanager
def contract_errors(who: str, doing: str) -> Iterator[None]:
    """Turn any error that the plug-in raises in the block into a ContractError that says what it was doing."""
    try:
        yield
    except ContractError:
        raise
    except Exception as error:
        raise ContractError(f"{who} {doing}: {type(error).__name__}: {error}") from error


@contextmanager
def expecting_table_error(who: str, doing: str, naming: str) -> Iterator[None]:
    """Expect a TableError whose message contains a text, and refuse anything else."""
    try:
        yield
    except TableError as error:
        require(naming in str(error), f"{who}: {doing} must name {naming!r}, but its TableError says: {error}")
    except Exception as error:
        raise ContractError(
            f"{who}: {doing} must raise TableError, but raised {type(error).__name__}: {error}"
        ) from error
    else:
        raise ContractError(f"{who}: {doing} must raise TableError, but raised nothing")


def pickled(value: T, who: str) -> T:
    """Pickle and unpickle a plug-in, as on its way to worker processes."""
    try:
        copy: T = pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes
    except Exception as error:
        raise ContractError(
            f"{who} must pickle, since it travels to worker processes, but raised {type(error).__name__}: {error}; "
            "define it at the top of a module, and leave handles and locks out of its state"
        ) from error
    return copy
