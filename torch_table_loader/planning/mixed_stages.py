"""The position of a job in a mixture of streams, as a value."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from torch_table_loader.errors import ConfigError, ResumeError
from torch_table_loader.planning.dealing import Deal, deal_of
from torch_table_loader.planning.global_batches import ENDLESS, GlobalBatches
from torch_table_loader.planning.mixture import natural_shares, refuse_no_end
from torch_table_loader.planning.ranks import Topology
from torch_table_loader.planning.rounds import DealtStage, Rest, Rounds
from torch_table_loader.planning.stages import StagedPosition
from torch_table_loader.schedules import Done, StopRule, as_stop

_SHAPE = len(fields(Topology))

_NOTHING_MORE: tuple[Any, ...] = ([], 1, [])
"""What a state leaves out at the end of a stage: what was dropped, the rows of an item, and lacks."""


@dataclass(frozen=True, slots=True)
class MixedPosition(StagedPosition):
    """How much of an epoch of a mixture of streams a job has done."""

    stage: DealtStage
    past: tuple[DealtStage, ...] = ()

    @classmethod
    def at(cls, epoch: int, deal: Deal, past: Sequence[DealtStage] = ()) -> MixedPosition:
        """Return the start of a stage, behind others."""
        return cls(epoch, DealtStage.of(deal), tuple(past))

    @property
    def deal(self) -> Deal:
        """The deal of the newest stage."""
        return self.stage.deal

    @property
    def weights(self) -> tuple[int, Mapping[str, int]]:
        """The first sample to which the newest weights apply, and the weights by name."""
        return self.consumed, self.deal.by_name

    @property
    def start(self) -> int:
        """Samples that the job had taken when the newest stage began."""
        return sum(stage.places for stage in self.past)

    @property
    def total(self) -> int:
        """Samples of the epoch; `ENDLESS` if it has no end."""
        return ENDLESS if self.deal.total == ENDLESS else self.start + self.deal.total

    @property
    def consumed(self) -> int:
        """Samples that the job has taken, or dropped at the end."""
        return self.batches(0).consumed(self.stage.steps)

    @property
    def steps_until_drop(self) -> int | None:
        """Steps of the newest stage after which sources are dropped; None: none are, or the epoch ends before."""
        deal = self.deal
        return deal.until // deal.step_rows if 0 < deal.until < deal.total else None

    def batches(self, rank: int) -> GlobalBatches:
        """Plan the newest stage for a rank; padding repeats from the stage's start."""
        start = self.start
        return GlobalBatches(self.total, start, self.stage.topology, rank, start, self._aligned)

    @property
    def _aligned(self) -> int:
        """The place at which steps of the optimizer came to have their size."""
        rows, place = self.deal.optimizer_rows, self.start
        for stage in reversed(self.past):
            if stage.deal.optimizer_rows != rows:
                return place
            place -= stage.places
        return 0

    def _stage_fields(self, stage: Any, before: Any) -> list[Any]:
        """Return the places, whether shares are natural, and the weights by name.

        The list of weights is empty if they are those of the stage before. Where sources are dropped, the places until
        then and the weights of the stage follow; behind them the tokens of a sequence, where rows are tokens; and what
        sources lack of their shares, where they lack any.
        """
        deal: Deal = stage.deal
        same = before is not None and before.deal.by_name == deal.by_name
        found: list[Any] = [deal.total, deal.natural, [] if same else [list(pair) for pair in deal.by_name.items()]]
        dropped = [deal.until, list(deal.weights)] if deal.until or deal.given else []
        more = [dropped, deal.width, list(deal.lacks)]
        while more and more[-1] == _NOTHING_MORE[len(more) - 1]:
            more.pop()
        return [*found, *more]

    @classmethod
    def of_history(cls, epoch: int, history: Sequence[Sequence[Any]], seed: int) -> MixedPosition:
        """Read what `history` wrote, in a checked state."""
        stages: list[DealtStage] = []
        weights: dict[str, int] = {}
        for number, (steps, _, *entry) in enumerate(history):
            shape, (total, natural, listed, *more) = entry[:_SHAPE], entry[_SHAPE:]
            weights = dict(listed) or weights
            dropped, width, lacks = [*more, *_NOTHING_MORE[len(more) :]]
            deal = deal_of(weights, Topology.of_state(*shape), (seed, epoch, number), natural=natural, width=width)
            if dropped:
                until, own = dropped
                given = () if tuple(own) == deal.weights else deal.weights
                deal = replace(deal, until=until, weights=tuple(own), given=given)
            deal = replace(deal, lacks=tuple(lacks))
            stages.append(DealtStage.of(replace(deal, total=total), steps))
        return cls(epoch, stages[-1], tuple(stages[:-1]), ended=history[-1][1])


def begun(
    epoch: int,
    rounds: Mapping[str, Rounds],
    weights: Mapping[str, int] | None,
    topology: Topology,
    stop: StopRule,
    past: Sequence[DealtStage] = (),
    width: int = 1,
    coming: Collection[str] = (),
    *,
    goes_on: bool = True,
) -> MixedPosition:
    """Return the start of a stage; without weights, sources have theirs in proportion to what is left of each.

    Args:
        width: rows of an item; see `Deal`.
        coming: sources that have a weight in a later stage; see `Mixture.length`.
        goes_on: whether shares go on from the stage before, if their weights stay.

    Raises:
        ConfigError: no source has a row, or a source with a weight has none.
    """
    had, items = had_of(rounds, epoch, past, width), {name: own.items(width) for name, own in rounds.items()}
    left = {name: max(0, own - had[name]) for name, own in items.items()}
    seed = next(iter(rounds.values())).seed
    shares = weights
    if shares is None:
        shares = natural_shares(left if any(left.values()) else items)
    if empty := [name for name, weight in shares.items() if weight and not items[name]]:
        raise ConfigError(
            f"source {empty[0]!r} has no row in this epoch; leave it out of the mixture, or give it the weight 0"
        )
    deal = deal_of(shares, topology, (seed, epoch, len(past)), natural=weights is None, width=width)
    rule = as_stop(stop).in_samples(width, done_in(past))
    refuse_no_end(rule, {*coming, *(name for name, weight in shares.items() if weight)})
    last = (past[-1].deal, past[-1].places) if past and goes_on else None
    deal = deal.dropping({name: cap - had[name] for name, cap in rule.caps(items).items()}, last)
    if deal.total == ENDLESS:
        limits = {name: max(0, limit - had[name]) for name, limit in rule.limits(items).items()}
        deal = deal.ending(limits, stop, coming)
    total = deal.total if rule.samples is None else min(deal.total, max(0, rule.samples - done_in(past).samples))
    return MixedPosition.at(epoch, replace(deal, total=total), past)


def begun_as(
    deal: Deal, position: MixedPosition, rounds: Mapping[str, Rounds], stop: StopRule, coming: Collection[str] = ()
) -> Deal:
    """Return the deal of the newest stage of a position, if it began with the weights of a deal; see `begun`.

    States of before lacks were known have none.
    """
    weights = None if deal.natural else deal.by_name
    shape = deal.topology, stop, position.past, deal.width, coming
    return begun(position.epoch, rounds, weights, *shape, goes_on=bool(deal.lacks)).deal


def done_in(stages: Sequence[DealtStage]) -> Done:
    """Return what a job has done in some stages; each item has the tokens of a sequence."""
    taken = [(stage.steps, stage.places, stage.places * stage.deal.width) for stage in stages]
    return Done(*map(sum, zip(*taken, strict=True)))


def had_of(rounds: Mapping[str, Rounds], epoch: int, past: Sequence[DealtStage], width: int = 1) -> dict[str, int]:
    """Count what each source delivered in stages, in items of so many rows; one that a stage lacked starts over."""
    return {name: own.rest(epoch, past).had(own.rows, width) for name, own in rounds.items()}


def rests_of(rounds: Mapping[str, Rounds], position: MixedPosition) -> dict[str, Rest]:
    """Return what is left of each source where the newest stage begins, by name."""
    return {name: own.rest(position.epoch, position.past) for name, own in rounds.items()}


def refuse_other_orders(position: MixedPosition, rounds: Mapping[str, Rounds], stop: StopRule) -> None:
    """Refuse stages that no job can have had with the sources in `rounds`; the rows of other sources are unknown.

    Some of these sources, or none, had a weight in later stages.

    Raises:
        ResumeError: a stage has another length or other natural weights than its sources give, or fewer steps than were
            taken.
        ConfigError: a source with a weight has no row.
    """
    past: tuple[DealtStage, ...] = ()
    over, known = False, True
    for own in position.stages:
        deal, taken = own.deal, own.steps
        known = known and all(name in rounds for name in deal.names)
        stage = MixedPosition.at(position.epoch, deal, past)
        asked = replace(deal, total=0) if over else deal
        if known and not over:
            of_stage = {name: rounds[name] for name in deal.names}
            asked = begun_as(deal, stage, of_stage, stop, rounds)
            if deal != asked:
                asked = begun_as(deal, stage, of_stage, stop)
        plan, most = stage.batches(0), stage.steps_until_drop
        if deal != asked or taken > (plan.longest if most is None else most):
            raise ResumeError(
                f"the state has taken {taken} of {plan.longest} steps of a stage of {deal.total} rows with the weights "
                f"{deal.by_name}, and the stage has {asked.total} rows with {asked.by_name}; pass the value of "
                "state_dict() unchanged"
            )
        over = over or plan.consumed(taken) == plan.total
        past = (*past, own)
