"""The states of mixtures: what the job has done, with which weights, and on which tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from torch_table_loader.engine.state import STATE_VERSION
from torch_table_loader.errors import ResumeError
from torch_table_loader.planning.exclusion import ExclusionVersions
from torch_table_loader.planning.mixed_stages import MixedPosition, read_history, write_history
from torch_table_loader.planning.mixture import NaturalShares, Shares

if TYPE_CHECKING:
    from torch_table_loader.planning.stages import SamplePosition

Weights: TypeAlias = dict[str, int] | str
"""Weights by the name of the source; or the word for those of what is left of each source."""


_UNUSED = ("shuffle", "shuffle_seed")
"""Options of a source that a mixture may leave out of its state, because it shuffles by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourcesState:
    """The fields of all mixtures' states except the position.

    Args:
        given: the weights that the loader was created with.
        newest: the weights of future epochs.
        sources: for each source, by name, the table and options as in a state of the source alone.
    """

    given: Weights
    newest: Weights
    sources: Mapping[str, Mapping[str, Any]]

    def source_state(self, name: str, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Return the table and options of a source, as a state of the source alone would have them.

        Args:
            name: the source's name.
            identity: the current identity of the source; a mixture does not use the source's own shuffling.
        """
        source = self.sources[name]
        options = {option: identity["options"][option] for option in _UNUSED} | dict(source["options"])
        return {"version": STATE_VERSION, "table": source["table"], "options": options}


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureState(_SourcesState):
    """A parsed state of a mixture of rows.

    Args:
        epoch: the epoch.
        consumed: samples that the job had taken.
        ended: True if they were counted on a rank that had taken all its batches while others continued.
        total: samples of the epoch under the weights at that time; `ENDLESS` if it had no end.
        shares: the weights of the running epoch, in the order of the names.
        names: the sources, sorted.
        exclusions: excluded rows of each source, by name.
        anchors: anchors of the sources that are walked, by name; see `TurnStream.anchor`.
    """

    epoch: int
    consumed: int
    ended: bool
    total: int
    shares: Shares
    names: tuple[str, ...]
    exclusions: Mapping[str, ExclusionVersions]
    anchors: Mapping[str, Any]

    @classmethod
    def from_state(cls, own: Mapping[str, Any], state: Mapping[str, Any]) -> MixtureState:
        """Read what `write_mixture_state` wrote.

        Args:
            own: the options that decide the order.
            state: a state of the current version, written on any rank.

        Raises:
            ResumeError: the state is malformed, or has other options.
        """
        check_mixture(own, state)
        with _refusing_others("a mixture"):
            consumed, ended, total = state["position"]
            start, shares = state["shares"]
            _refuse_others(
                state["epoch"], consumed, total, start, *(number for entry in shares for number in entry[1:])
            )
            about = _read_sources(state)
            excluded = {
                name: ExclusionVersions.from_state({"exclusions": entry}) for name, entry in state["exclusions"]
            }
            anchors = {name: anchor for name, _, _, *rest in state["sources"] for anchor in rest}
            names = tuple(name for name, _, _ in shares)
            _refuse_unfit(names, about["given"], about["newest"], {name: weight for name, weight, _ in shares})
            _refuse_disorder(start, consumed, total)
            return cls(
                given=about["given"],
                newest=about["newest"],
                sources={name: about["sources"][name] for name in names},
                epoch=state["epoch"],
                consumed=consumed,
                ended=bool(ended),
                total=total,
                shares=Shares(start, tuple(entry[1] for entry in shares), tuple(entry[2] for entry in shares)),
                names=names,
                exclusions={name: excluded.get(name, ExclusionVersions()) for name in names},
                anchors=anchors,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsState(_SourcesState):
    """A parsed state of a mixture of streams.

    Args:
        position: the position of the job.
    """

    position: MixedPosition

    @classmethod
    def from_state(cls, own: Mapping[str, Any], state: Mapping[str, Any]) -> StreamsState:
        """Read what `write_streams_state` wrote.

        Args:
            own: the options that decide the order.
            state: a state of the current version, written on any rank.

        Raises:
            ResumeError: the state is malformed, or has other options.
        """
        check_mixture(own, state)
        with _refusing_others("a mixture of streams"):
            _refuse_others(state["epoch"])
            position = read_history(state["history"], own["shuffle_seed"], state["epoch"])
            about = _read_sources(state)
            if tuple(sorted(about["sources"])) != position.deal.names:
                raise ValueError(f"the sources {sorted(about['sources'])}")
            return cls(**about, position=position)


def mixture_identity(
    sources: Mapping[str, Mapping[str, Any]], options: Mapping[str, Any], unused: tuple[str, ...] = _UNUSED
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
        bound: the job's `identity`.
        position: what the trainer has taken.
        given: the weights that the loader was created with.
        newest: the weights of future epochs.
        exclusions: exclusions of each source, by name.
        anchors: see `MixtureState`.
    """
    mixture = position.mixed
    shares, nothing = mixture.shares, ExclusionVersions()
    return {
        **_written_sources(bound, given, newest, anchors),
        "epoch": position.epoch,
        "position": [position.consumed, position.ended, position.total],
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
        bound: the job's `identity`.
        position: what the trainer has taken.
        given: the weights that the loader was created with.
        newest: the weights of future epochs.
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
    """Read the fields of `_SourcesState`."""
    sources = {name: {"table": dict(table), "options": dict(options)} for name, table, options, *_ in state["sources"]}
    return {"given": _read_weights(state["given"]), "newest": _read_weights(state["newest"]), "sources": sources}


@contextmanager
def _refusing_others(what: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ResumeError(
            f"the state must be that of {what}, as state_dict() writes it, got {error!r}; pass the value of "
            "state_dict() of a MixedDataset's loader unchanged"
        ) from error


def check_mixture(own: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Refuse a state of anything but a mixture, or of a mixture with other options.

    Args:
        own: the options that decide the order.
        state: a state of the current version, written on any rank.

    Raises:
        ResumeError: the state does not fit; the message names what differs.
    """
    if "mixture" not in state:
        raise ResumeError(
            "the state is of one table, and this is a mixture; load it with the loader of that table, or start "
            "without the state"
        )
    theirs = state["mixture"]
    if not isinstance(theirs, Mapping):
        raise ResumeError(f"the state must say of which mixture it is, got {theirs!r}; pass state_dict() unchanged")
    kind, saved = _kind(own), _kind(theirs)
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


def _read_weights(written: Any) -> Weights:
    """Read weights from a state.

    Raises:
        TypeError: they are malformed.
        ValueError: likewise.
    """
    if isinstance(written, str):
        if written not in get_args(NaturalShares):
            raise ValueError(f"weights {written!r}")
        return written
    weights = dict(written)
    _refuse_others(*weights.values())
    return weights


def _refuse_others(*numbers: Any) -> None:
    if wrong := [number for number in numbers if isinstance(number, bool) or not isinstance(number, int) or number < 0]:
        raise TypeError(f"{wrong[0]!r} where a number is expected")


def _refuse_disorder(*samples: int) -> None:
    if list(samples) != sorted(samples):
        raise ValueError(f"weights from, taken, and of the epoch: {samples} samples")


def _refuse_unfit(names: tuple[str, ...], *weights: Weights) -> None:
    if names != tuple(sorted(set(names))):
        raise ValueError(f"sources {names!r}")
    for entry in weights:
        if not isinstance(entry, str) and (entry.keys() != set(names) or not any(entry.values())):
            raise ValueError(f"weights {entry!r} for the sources {names!r}")


def _pairs_of(values: Mapping[str, Any]) -> list[list[Any]]:
    """Write a mapping as a list sorted by name, because the keys of a state never change."""
    return [[name, value] for name, value in sorted(values.items())]
