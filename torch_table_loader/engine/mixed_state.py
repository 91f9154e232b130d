"""The state of a job over a mixture: small plain data that is the same on every rank, and what it must agree with.

Its keys never change, and what grows or shrinks with sources, weights and exclusions is a list of plain values: stores
of checkpoints that go key by key then keep it whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch_table_loader.engine.exclusion_book import ExclusionBook
from torch_table_loader.engine.state import check_version
from torch_table_loader.errors import ResumeError
from torch_table_loader.planning.cursor import STATE_VERSION
from torch_table_loader.planning.exclusion import ExclusionVersions
from torch_table_loader.planning.mixture import Shares

if TYPE_CHECKING:
    from torch_table_loader.planning.mixed_cursor import MixedCursor

Weights = dict[str, int]


@dataclass(frozen=True, slots=True)
class MixedPosition:
    """What a state says of a mixture.

    Args:
        epoch: which.
        consumed: samples that the job had taken.
        ended: True where they were counted on a rank that had taken all its batches, while others went on.
        total: samples of the epoch, as the weights then were; `ENDLESS` where it had no end.
        given: the weights that the loader was made with.
        newest: the weights of the epochs to come.
        shares: the weights of the running epoch, in the order of the names.
        names: the sources, sorted.
        sources: for each, what a state of it alone says of table and options, by name.
        exclusions: what is taken out of each, by name.
    """

    epoch: int
    consumed: int
    ended: bool
    total: int
    given: Weights
    newest: Weights
    shares: Shares
    names: tuple[str, ...]
    sources: Mapping[str, Mapping[str, Any]]
    exclusions: Mapping[str, ExclusionVersions]

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> MixedPosition:
        """Read what `write_mixed_state` wrote.

        Raises:
            ResumeError: it is something else.
        """
        try:
            consumed, ended, total = state["position"]
            start, shares = state["shares"]
            _refuse_others(
                state["epoch"], consumed, total, start, *(number for entry in shares for number in entry[1:])
            )
            given, newest = dict(state["given"]), dict(state["newest"])
            _refuse_others(*given.values(), *newest.values())
            excluded = {name: ExclusionVersions.from_state({"exclusions": said}) for name, said in state["exclusions"]}
            sources = {
                name: {"table": dict(table), "options": dict(options)} for name, table, options in state["sources"]
            }
            names = tuple(name for name, _, _ in shares)
            _refuse_unfit(names, given, newest, {name: weight for name, weight, _ in shares})
            _refuse_disorder(start, consumed, total)
            return cls(
                epoch=state["epoch"],
                consumed=consumed,
                ended=bool(ended),
                total=total,
                given=given,
                newest=newest,
                shares=Shares(start, tuple(entry[1] for entry in shares), tuple(entry[2] for entry in shares)),
                names=names,
                sources={name: sources[name] for name in names},
                exclusions={name: excluded.get(name, ExclusionVersions()) for name in names},
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ResumeError(
                f"the state must be that of a mixture, as state_dict() writes it, got {error!r}; pass the value of "
                "state_dict() of a MixedDataset's loader unchanged"
            ) from error

    def source_state(self, name: str, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Write the state that a source alone would have at the start of the epoch, with nothing excluded.

        Args:
            name: of the source.
            identity: of the source here, whose own shuffling a mixture does not use.
        """
        said = self.sources[name]
        options = {**identity["options"], **said["options"]}
        about = {"version": STATE_VERSION, "table": said["table"], "options": options}
        return about | {"epoch": self.epoch, "consumed": 0}


def write_mixed_state(
    identity: Mapping[str, Any],
    cursor: MixedCursor,
    given: Weights,
    newest: Weights,
    exclusions: Mapping[str, ExclusionVersions],
) -> dict[str, Any]:
    """Write where a job stands.

    Args:
        identity: see `MixedJob.identity`.
        cursor: what the trainer took.
        given: the weights that the loader was made with.
        newest: the weights of the epochs to come.
        exclusions: of each source, by name.
    """
    mixture, shares = cursor.mixture, cursor.mixture.shares
    nothing = ExclusionVersions()
    return {
        "version": STATE_VERSION,
        "mixture": dict(identity["options"]),
        "sources": [
            [name, _pairs(said["table"]), _pairs(said["options"])] for name, said in sorted(identity["sources"].items())
        ],
        "given": _pairs(given),
        "newest": _pairs(newest),
        "epoch": cursor.epoch,
        "position": [cursor.consumed, cursor.ended, cursor.total],
        "shares": [
            shares.start,
            [list(entry) for entry in zip(mixture.names, shares.weights, shares.before, strict=True)],
        ],
        "exclusions": [[name, said.to_state()] for name, said in sorted(exclusions.items()) if said != nothing],
    }


def check_mixture(own: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Refuse a state of something else, or of a mixture under other options.

    Args:
        own: the options that decide the order.
        state: what `write_mixed_state` wrote, on any rank.

    Raises:
        ResumeError: names what differs.
    """
    check_version(state)
    if "mixture" not in state:
        raise ResumeError("the state speaks of one table, and this is a mixture; load it with the loader of that table")
    theirs = state["mixture"]
    if not isinstance(theirs, Mapping):
        raise ResumeError(f"the state must say of which mixture it is, got {theirs!r}; pass state_dict() unchanged")
    if differing := [name for name in own if own[name] != theirs.get(name)]:
        shown = "; ".join(f"{name} was {theirs.get(name)!r} and is {own[name]!r}" for name in differing)
        raise ResumeError(
            f"the state was saved under other options: {shown}; give the mixture the options of the run that was "
            "saved, or start without its state"
        )


def resumed(name: str, source: Any, position: MixedPosition) -> Any:
    """Let a source (a job or a dataset) find its own part of a state; nothing need be left of it.

    Raises:
        ResumeError: the state speaks of another table, columns or filter; names source and difference.
    """
    identity = getattr(source, "job", source).identity
    try:
        job = source.resume(position.source_state(name, identity))[0]
    except ResumeError as error:
        raise ResumeError(f"source {name!r}: {error}") from error
    return replace(job, book=ExclusionBook(position.exclusions[name], position.epoch))


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
        if entry.keys() != set(names) or not any(entry.values()):
            raise ValueError(f"weights {entry!r} for the sources {names!r}")


def _pairs(values: Mapping[str, Any]) -> list[list[Any]]:
    return [[name, value] for name, value in sorted(values.items())]
