"""What a state says of a mixture: how its sources share the stages, its options, and the weights asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeAlias, get_args

from torch_table_loader.engine.jobs.bound import check_options
from torch_table_loader.engine.state_forms import COUNT, FLAG, Form, ListOf, Named, OneOf
from torch_table_loader.engine.state_forms import refuse as refuse_value
from torch_table_loader.engine.state_records import MIXING, StageForms, StateRecord
from torch_table_loader.errors import ResumeError
from torch_table_loader.mixtures.mixture import LEAST_SHARE, Mixture, NaturalShares, Shares
from torch_table_loader.mixtures.row_position import MixedRowsPosition
from torch_table_loader.mixtures.stop import StopWord
from torch_table_loader.mixtures.stream_position import MixedPosition
from torch_table_loader.option_checks import MOST_ROWS
from torch_table_loader.planning.stages import SamplePosition, refuse_ended

if TYPE_CHECKING:
    from torch_table_loader.engine.saved_state import Kind, SavedState
    from torch_table_loader.mixtures.dealing import Deal

Weights: TypeAlias = dict[str, int] | str
"""Weights by the name of the source; or the word for those of what is left of each source."""


@dataclass(frozen=True, slots=True)
class SavedMixture:
    """What a state says of a mixture beside its stages; the options are those that decide the order.

    Args:
        given: the weights that the loader was made with.
        newest: the weights of the steps to come.
    """

    options: Mapping[str, Any]
    given: Weights
    newest: Weights

    def to_state(self) -> dict[str, Any]:
        """Write as plain values by name."""
        return {"options": dict(self.options), "given": self.given, "newest": self.newest}


def shares_of(position: MixedRowsPosition) -> dict[str, Any]:
    """Write how sources of rows share an epoch, since the newest weights, and what came of each before."""
    mixture, shares = position.mixture, position.mixture.shares
    entries = zip(mixture.names, shares.weights, shares.before, strict=True)
    sources = {name: {"weight": weight, "before": before} for name, weight, before in entries}
    written = {"total": position.total, "since": position.begins, "sources": sources}
    if not shares.lacks:
        return written
    for own, lack in zip(sources.values(), shares.lacks, strict=True):
        own["lack"] = lack
    return {**written, "width": shares.width}


_WEIGHTS = OneOf(get_args(NaturalShares), Named({}, others=COUNT))
_TIMES = Named({}, others=COUNT)
_ROWS = range(1, MOST_ROWS + 1)
_LACK = range(-COUNT.stop, COUNT.stop)
_MOST_PLACES = 1 << 24
"""Rows of a step over all ranks, or lanes of all ranks, of a mixture of streams, which deals each of them."""


class MixtureRecord(StateRecord):
    """The record of a mixture of rows, or of streams."""

    key = "mixture"
    forms: ClassVar[Mapping[Kind, StageForms]] = {
        "items": StageForms(
            Named(
                {
                    "total": COUNT,
                    "since": COUNT,
                    "sources": Named({}, others=Named({"weight": COUNT, "before": COUNT}, {"lack": _LACK})),
                },
                {"width": _ROWS},
            )
        ),
        "splits": StageForms(
            Named(
                {"total": COUNT},
                {
                    "weights": Named({}, others=COUNT),
                    "dropped": Named({"until": COUNT, "weights": ListOf(COUNT, least=1)}),
                    "width": range(2, MOST_ROWS + 1),
                    "lacks": ListOf(_LACK, least=1),
                    "micro_batches": _ROWS,
                    "natural": FLAG,
                    "windows": Named({}, others=MIXING),
                },
            )
        ),
    }
    whole: ClassVar[Form] = Named(
        {
            "options": Named(
                {
                    "shuffle_seed": "whole",
                    "stop": OneOf(get_args(StopWord), _TIMES),
                    "block": OneOf((None,), COUNT),
                },
                {"drop": _TIMES, "samples": COUNT, "tokens": COUNT},
                others="plain",
            ),
            "given": _WEIGHTS,
            "newest": _WEIGHTS,
        }
    )
    without = ("extent", "extents", "rank", "shuffle_buffer_size")
    names_tables = True

    def read(self, saved: SavedState, stages: Sequence[Any], whole: Any) -> SavedState:
        """Put the shares into the position, and keep the options and weights."""
        mixture, taken = SavedMixture(**whole), saved.taken
        seed, records = mixture.options["shuffle_seed"], {**saved.records, self.key: mixture}
        if not isinstance(taken, SamplePosition):
            return replace(saved, taken=MixedPosition.of_shares(taken, stages, seed), records=records)
        [fields] = stages
        sources: Mapping[str, Mapping[str, int]] = fields["sources"]
        weights, before = (tuple(own[name] for own in sources.values()) for name in ("weight", "before"))
        lacks = tuple(own.get("lack", 0) for own in sources.values())
        shares = Shares(fields["since"], weights, before, lacks, fields.get("width", 1))
        natural = isinstance(mixture.newest, str)
        mixed = Mixture(tuple(sources), shares, seed, taken.epoch, mixture.options["block"], natural)
        return replace(saved, taken=MixedRowsPosition.of(taken, fields["total"], mixed), records=records)

    def check(self, saved: SavedState) -> None:
        """Refuse a mixture whose parts do not fit each other."""
        names, mixture, taken = tuple(saved.tables), saved.records[self.key], saved.taken
        asked = [(names, mixture.given), (names, mixture.newest)]
        if isinstance(taken, MixedRowsPosition):
            _refuse_weights([*asked, (names, taken.mixture.weights)])
            _refuse_shares(taken)
            running, natural, start = taken.mixture.weights, taken.mixture.natural, taken.start
        else:
            stages = [(stage.deal.names, stage.deal.by_name) for stage in taken.stages]
            _refuse_weights([*asked, *stages, (names, taken.deal.by_name)])
            _refuse_undealt(taken)
            running, natural, start = taken.deal.by_name, taken.deal.natural, taken.consumed
        refuse_ended(start, taken.total, ended=taken.ended)
        fits = natural == isinstance(mixture.newest, str) and (natural or mixture.newest == running)
        if start < taken.total and not fits:
            unlike = "" if natural else "not "
            refuse(f"the running weights {running!r}, {unlike}natural, and the newest {mixture.newest!r}")

    def check_job(self, saved: SavedState, job: Any) -> None:
        """Refuse a mixture of other options or of another kind, and a mixture for one table, or one table for it."""
        mixture: SavedMixture | None = saved.records.get(self.key)
        if mixture is None:
            raise ResumeError(
                "the state is of one table, and this is a mixture; load it with the loader of that table, or start "
                "without the state"
            )
        if self.key not in job.own_records:
            raise ResumeError("the state is of a mixture, and this is one table; load it with a MixedDataset's loader")
        if saved.kind != job.kind:
            raise ResumeError(
                f"the state is of a mixture of {_NAMES[saved.kind]}, and this is a mixture of {_NAMES[job.kind]}; "
                'pass the shuffle= of the run that was saved to the sources (shuffle="rows" makes a mixture of rows, '
                "True or False one of streams), or start without its state"
            )
        check_options(job.bound.options, mixture.options, "mixture")


RECORD = MixtureRecord()
_NAMES = {"splits": "streams", "items": "rows"}


def refuse(what: str) -> NoReturn:
    """Refuse a state whose parts do not fit each other."""
    raise ResumeError(
        f"the state of a mixture must fit itself, as state_dict() writes it, got {what}; pass the value of "
        "state_dict() of a MixedDataset's loader unchanged"
    )


def _refuse_weights(asked: Sequence[tuple[tuple[str, ...], Weights]]) -> None:
    """Refuse weights that are not those of some sources, as the smallest integers."""
    for names, weights in asked:
        if isinstance(weights, str):
            continue
        least, shares = min(filter(None, weights.values()), default=0), sum(weights.values())
        if tuple(weights) != names or gcd(*weights.values()) != 1 or shares > least * LEAST_SHARE:
            refuse(f"weights {weights!r} for the sources {', '.join(names)}")


def _refuse_shares(taken: MixedRowsPosition) -> None:
    """Refuse weights that begin after what was taken, or after fewer rows than came before them."""
    before, since, start = taken.mixture.shares.before, taken.begins, taken.start
    # Where lengths changed, other sequences are counted.
    if not since <= start <= taken.total or (not taken.origins and sum(before) > since):
        rows = dict(zip(taken.mixture.names, before, strict=True))
        refuse(f"rows of sources {rows}, weights from {since}, taken {start}, of the epoch {taken.total}")
    if (shares := taken.mixture.shares).lacks and (sum(shares.lacks) or shares.width != taken.width):
        lacks = f"{shares.lacks} of their shares, of sequences of {shares.width} tokens"
        refuse(f"sources that lack {lacks}, which do not add up to nothing for those of {taken.width}")


def _refuse_undealt(taken: MixedPosition) -> None:
    """Refuse weights of sources that were dropped that no stage has, stages too large to deal, and other windows."""
    for stage in taken.stages:
        deal: Deal = stage.deal
        topology = deal.topology
        if topology.num_ranks * max(topology.lanes, topology.batch_size) > _MOST_PLACES or (
            deal.optimizer_rows > MOST_ROWS
        ):
            most = f"of jobs with at most {_MOST_PLACES} rows of a step and as many workers"
            refuse_value("history", most, topology)
        fit = len(deal.weights) == len(deal.names) and any(deal.weights) and not deal.until % deal.step_rows
        fit = fit and len(deal.lacks) in (0, len(deal.names)) and not sum(deal.lacks)
        fit = fit and set(stage.mixed) <= set(deal.names)
        if not fit or deal.block_rows > LEAST_SHARE + deal.step_rows:
            dealt = f"the dealt weights {deal.weights!r} until {deal.until}" + f", which lack {deal.lacks!r}," * bool(
                deal.lacks
            )
            dealt += f" with windows of {', '.join(stage.mixed)}" * bool(stage.mixed)
            refuse(f"{dealt} for the sources {', '.join(deal.names)}")
