"""The states of mixtures: what the job has done, with which weights, and on which tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from torch_table_loader.engine.state import STATE_VERSION
from torch_table_loader.errors import ConfigError, ResumeError
from torch_table_loader.planning.exclusion import ExclusionVersions
from torch_table_loader.planning.mixed_stages import WEIGHTS, MixedPosition, read_history, write_history
from torch_table_loader.planning.mixture import Shares, smallest
from torch_table_loader.planning.stages import refuse_other_steps

if TYPE_CHECKING:
    from torch_table_loader.planning.stages import SamplePosition

Weights: TypeAlias = dict[str, int] | str
"""Weights by the name of the source; or the word for those of what is left of each source."""


_UNUSED = ("shuffle", "shuffle_seed")
"""Options of a source that a mixture may leave out of its state, because it shuffles by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcesState:
    """The fields of all mixtures' states except the position.

    Args:
        given: the weights that the loader was created with.
        sources: for each source, by name, the table and options as in a state of the source alone.
    """

    given: Weights
    newest: Weights
    sources: Mapping[str, Mapping[str, Any]]

    def source_state(self, name: str, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Return the table and options of a source, as a state of the source alone would have them.

        Args:
            identity: the current identity of the source; a mixture does not use the source's own shuffling.
        """
        source = self.sources[name]
        options = {option: identity["options"][option] for option in _UNUSED} | dict(source["options"])
        return {"version": STATE_VERSION, "table": source["table"], "options": options}


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureState(SourcesState):
    """A parsed state of a mixture of rows.

    Args:
        consumed: samples that the job had taken.
        steps: steps in which it took them.
        ended: True if they were counted on a rank that had taken all its batches while others continued.
        total: samples of the epoch under the weights at that time; `ENDLESS` if it had no end.
        shares: the weights of the running epoch, in the order of the names.
        exclusions: what `ExclusionVersions.to_state` wrote of each source, by name.
        anchors: anchors of the sources that are walked, by name; see `TurnStream.anchor`.
    """

    epoch: int
    consumed: int
    steps: int
    ended: bool
    total: int
    shares: Shares
    names: tuple[str, ...]
    exclusions: Mapping[str, list[list[str]]]
    anchors: Mapping[str, list[int]]

    @classmethod
    def from_state(cls, own: Mapping[str, Any], state: Mapping[str, Any]) -> MixtureState:
        """Read what `write_mixture_state` wrote.

        Args:
            own: the options that decide the order.
            state: a checked state, written on any rank.

        Raises:
            ResumeError: the state has other options, or its parts do not fit each other.
        """
        check_mixture(own, state)
        consumed, ended, total, steps = state["position"]
        start, shares = state["shares"]
        about, excluded = _read_sources(state), dict(state["exclusions"])
        names = tuple(about["sources"])
        weights, before = ({entry[0]: entry[place] for entry in shares} for place in (1, 2))
        _refuse_unfit(names, about["given"], about["newest"], weights)
        if unknown := excluded.keys() - weights.keys():
            raise _unfit(f"exclusions of {min(unknown)!r}, and the sources are {', '.join(names)}")
        if not start <= consumed <= total or sum(before.values()) > start:
            raise _unfit(f"rows of sources {before}, weights from {start}, taken {consumed}, of the epoch {total}")
        refuse_other_steps(consumed, steps)
        if consumed < total:
            _refuse_unasked(weights, about["newest"], natural=isinstance(about["newest"], str))
        return cls(
            **about,
            epoch=state["epoch"],
            consumed=consumed,
            steps=steps,
            ended=ended,
            total=total,
            shares=Shares(start, tuple(weights.values()), tuple(before.values())),
            names=names,
            exclusions={name: excluded.get(name, []) for name in names},
            anchors={name: anchor for name, _, _, *rest in state["sources"] for anchor in rest},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsState(SourcesState):
    """A parsed state of a mixture of streams."""

    position: MixedPosition

    @classmethod
    def from_state(cls, own: Mapping[str, Any], state: Mapping[str, Any]) -> StreamsState:
        """Read what `write_streams_state` wrote.

        Args:
            own: the options that decide the order.
            state: a checked state, written on any rank.

        Raises:
            ResumeError: the state has other options, or its parts do not fit each other.
        """
        check_mixture(own, state)
        about = _read_sources(state)
        weights: dict[str, int] = {}
        for entry in state["history"]:
            weights = dict(entry[WEIGHTS]) or weights
            _refuse_unfit(tuple(weights), weights)
        _refuse_unfit(tuple(about["sources"]), about["given"], about["newest"], weights)
        position = read_history(state["history"], own["shuffle_seed"], state["epoch"])
        if position.consumed < position.total:
            _refuse_unasked(weights, about["newest"], natural=position.deal.natural)
        return cls(**about, position=position)


def mixture_identity(
    sources: Mapping[str, Mapping[str, Any]], options: Mapping[str, Any], unused: tuple[str, ...]
) -> dict[str, Any]:
    """Return the tables and options that a state of a mixture is bound to; weights are not among them.

    Args:
        sources: the identity of each source, by name.
        options: the mixture's options that decide the order.
        unused: options of the sources that have no effect here.
    """
    bound = {}
    for name, own in sources.items():
        kept = {option: value for option, value in own["options"].items() if option not in unused}
        bound[name] = {"table": own["table"], "options": kept}
    return {"sources": bound, "options": dict(options)}


def write_mixture_state(
    bound: Mapping[str, Any],
    position: SamplePosition,
    given: Weights,
    newest: Weights,
    exclusions: Mapping[str, ExclusionVersions],
    anchors: Mapping[str, list[int]],
) -> dict[str, Any]:
    """Write the position of a job of a mixture.

    Args:
        given: the weights that the loader was created with.
        exclusions: exclusions of each source, by name.
    """
    mixture = position.mixed
    shares, nothing = mixture.shares, ExclusionVersions()
    return {
        **_written_sources(bound, given, newest, anchors),
        "epoch": position.epoch,
        "position": [position.consumed, position.ended, position.total, position.steps_taken],
        "shares": [
            shares.start,
            [list(entry) for entry in zip(mixture.names, shares.weights, shares.before, strict=True)],
        ],
        "exclusions": [[name, entry.to_state()] for name, entry in sorted(exclusions.items()) if entry != nothing],
    }


def write_streams_state(
    bound: Mapping[str, Any], position: MixedPosition, given: Weights, newest: Weights
) -> dict[str, Any]:
    """Write the position of a job of a mixture of streams.

    Args:
        given: the weights that the loader was created with.
    """
    about = _written_sources(bound, given, newest, {})
    return {**about, "epoch": position.epoch, "history": write_history(position)}


@contextmanager
def of_source(name: str) -> Iterator[None]:
    """Name the source in errors about its part of a state."""
    try:
        yield
    except ResumeError as error:
        raise ResumeError(f"source {name!r}: {error}") from error


def _written_sources(
    bound: Mapping[str, Any], given: Weights, newest: Weights, anchors: Mapping[str, list[int]]
) -> dict[str, Any]:
    return {
        "version": STATE_VERSION,
        "mixture": dict(bound["options"]),
        "sources": [
            [
                name,
                _pairs_of(source["table"]),
                _pairs_of(source["options"]),
                *([anchors[name]] if name in anchors else []),
            ]
            for name, source in sorted(bound["sources"].items())
        ],
        "given": given if isinstance(given, str) else _pairs_of(given),
        "newest": newest if isinstance(newest, str) else _pairs_of(newest),
    }


def _read_sources(state: Mapping[str, Any]) -> dict[str, Any]:
    """Read the fields of `SourcesState`."""
    sources = {name: {"table": dict(table), "options": dict(options)} for name, table, options, *_ in state["sources"]}
    return {"given": _read_weights(state["given"]), "newest": _read_weights(state["newest"]), "sources": sources}


def _unfit(what: str) -> ResumeError:
    return ResumeError(
        f"the state of a mixture must fit itself, as state_dict() writes it, got {what}; pass the value of "
        "state_dict() of a MixedDataset's loader unchanged"
    )


def check_mixture(own: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Refuse a state of anything but a mixture, or of a mixture with other options.

    Args:
        own: the options that decide the order.
        state: a checked state, written on any rank.

    Raises:
        ResumeError: the state does not fit; the message names what differs.
    """
    if "mixture" not in state:
        raise ResumeError(
            "the state is of one table, and this is a mixture; load it with the loader of that table, or start "
            "without the state"
        )
    theirs = state["mixture"]
    kind, saved = _kind(own), "streams" if "history" in state else "rows"
    if kind != saved:
        raise ResumeError(
            f"the state is of a mixture of {saved}, and this is a mixture of {kind}; pass the shuffle= of the run that "
            'was saved to the sources (shuffle="rows" makes a mixture of rows, True or False one of streams), or '
            "start without its state"
        )
    if differing := [name for name in own if own[name] != theirs.get(name)]:
        shown = "; ".join(f"{name} was {theirs.get(name)!r} and is {own[name]!r}" for name in differing)
        raise ResumeError(
            f"the state was saved under other options: {shown}; give the mixture the options of the run that was "
            "saved, or start without its state"
        )


def _kind(options: Mapping[str, Any]) -> str:
    """Return what a mixture deals: only rows have a block in which each source has its share."""
    return "streams" if options.get("block") is None else "rows"


def _read_weights(written: str | list[list[Any]]) -> Weights:
    return written if isinstance(written, str) else dict(written)


def _refuse_unfit(names: tuple[str, ...], *weights: Weights) -> None:
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
            raise _unfit(f"weights {entry!r} for the sources {', '.join(names)}")


def _refuse_unasked(running: Weights, newest: Weights, *, natural: bool) -> None:
    """Refuse weights of a running epoch that are not the newest ones.

    Raises:
        ResumeError: names both.
    """
    if natural != isinstance(newest, str) or not (natural or newest == running):
        raise _unfit(f"the running weights {running!r}, {'' if natural else 'not '}natural, and the newest {newest!r}")


def _pairs_of(values: Mapping[str, Any]) -> list[list[Any]]:
    """Write a mapping as a list sorted by name, because the keys of a state never change."""
    return [[name, value] for name, value in sorted(values.items())]
