"""Checks of the state of a mixture: its kind, its options, and whether a caller can have asked for its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from torch_table_loader.errors import ConfigError, ResumeError
from torch_table_loader.planning.mixture import LEAST_SHARE, Shares, smallest

if TYPE_CHECKING:
    from torch_table_loader.engine.state import Kind, SavedMixture, SavedState, Weights
    from torch_table_loader.planning.dealing import Deal
    from torch_table_loader.planning.stages import SampleCount

_NAMES = {"splits": "streams", "items": "rows"}


def mixture_of(saved: SavedState, kind: Kind, options: Mapping[str, Any]) -> SavedMixture:
    """Return what a state says of the mixture, for a job of a kind with options of its own that decide the order.

    Raises:
        ResumeError: the state is of something else, or was saved under other options; names what differs.
    """
    mixture = saved.mixture
    if mixture is None:
        raise ResumeError(
            "the state is of one table, and this is a mixture; load it with the loader of that table, or start "
            "without the state"
        )
    if saved.kind != kind:
        raise ResumeError(
            f"the state is of a mixture of {_NAMES[saved.kind]}, and this is a mixture of {_NAMES[kind]}; pass the "
            'shuffle= of the run that was saved to the sources (shuffle="rows" makes a mixture of rows, True or False '
            "one of streams), or start without its state"
        )
    theirs = mixture.options
    names = dict.fromkeys((*options, "drop", "samples"))
    if differing := [name for name in names if options.get(name) != theirs.get(name)]:
        shown = "; ".join(f"{name} was {theirs.get(name)!r} and is {options.get(name)!r}" for name in differing)
        raise ResumeError(
            f"the state was saved under other options: {shown}; give the mixture the options of the run that was "
            "saved, or start without its state"
        )
    return mixture


def running_shares(names: tuple[str, ...], count: SampleCount, mixture: SavedMixture) -> Shares:
    """Return the shares that an epoch of a mixture of rows had.

    Raises:
        ResumeError: the parts of the state do not fit each other.
    """
    since, taken, total, before = count.since, count.consumed, count.total, count.before
    refuse_unfit(names, mixture.given, mixture.newest, count.weights)
    beyond = not count.origins and sum(before.values()) > since  # where lengths changed, other sequences are counted
    if not since <= taken <= total or beyond:
        refuse(f"rows of sources {before}, weights from {since}, taken {taken}, of the epoch {total}")
    count.check(total)
    if taken < total:
        refuse_unasked(count.weights, mixture.newest, natural=isinstance(mixture.newest, str))
    return Shares(since, tuple(count.weights.values()), tuple(before.values()))


def refuse(what: str) -> NoReturn:
    """Refuse a state whose parts do not fit each other."""
    raise ResumeError(
        f"the state of a mixture must fit itself, as state_dict() writes it, got {what}; pass the value of "
        "state_dict() of a MixedDataset's loader unchanged"
    )


def refuse_unfit(names: tuple[str, ...], *weights: Mapping[str, int] | str) -> None:
    """Refuse weights of other sources, and those that nobody can have asked for.

    Raises:
        ResumeError: names the weights.
    """
    for entry in weights:
        if isinstance(entry, str):
            continue
        try:
            fit = tuple(entry) == names and smallest(entry) == entry
        except ConfigError:
            fit = False
        if not fit:
            refuse(f"weights {entry!r} for the sources {', '.join(names)}")


def refuse_undealt(deal: Deal, *, cuts: bool) -> None:
    """Refuse a stage with weights that no stage has where sources are dropped, or with tokens where nothing is cut.

    Raises:
        ResumeError: names the weights, or the tokens of a sequence.
    """
    if deal.width > 1 and not cuts:
        refuse(f"sequences of {deal.width} tokens, and here documents are not cut anywhere")
    fit = len(deal.weights) == len(deal.names) and any(deal.weights) and not deal.until % deal.step_rows
    if not fit or deal.block_rows > LEAST_SHARE + deal.step_rows:
        refuse(f"the dealt weights {deal.weights!r} until {deal.until} for the sources {', '.join(deal.names)}")


def refuse_unasked(running: Mapping[str, int], newest: Weights, *, natural: bool) -> None:
    """Refuse weights of a running epoch that are not the newest ones.

    Raises:
        ResumeError: names both.
    """
    if natural != isinstance(newest, str) or not (natural or newest == running):
        refuse(f"the running weights {running!r}, {'' if natural else 'not '}natural, and the newest {newest!r}")
