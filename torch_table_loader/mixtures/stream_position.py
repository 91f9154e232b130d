"""The position of a job in a mixture of streams, as a value."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from typing_extensions import override

from torch_table_loader.errors import ConfigError, ResumeError
from torch_table_loader.mixtures.dealing import Deal, deal_of
from torch_table_loader.mixtures.mixture import natural_shares, refuse_no_end
from torch_table_loader.mixtures.rounds import DealtStage, Rest, Rounds, mixed_of
from torch_table_loader.mixtures.row_position import weights_from
from torch_table_loader.mixtures.stop import StopRule, as_stop
from torch_table_loader.planning.global_batches import ENDLESS, GlobalBatches
from torch_table_loader.planning.ranks import Mixing, Topology
from torch_table_loader.planning.stages import AskedFrom, StagedPosition
from torch_table_loader.schedules import Done


@dataclass(frozen=True, slots=True)
class MixedPosition(StagedPosition):
    """How much of an epoch of a mixture of streams a job has done."""

    stage: DealtStage
    past: tuple[DealtStage, ...] = ()

    @classmethod
    def at(
        cls,
        epoch: int,
        deal: Deal,
        past: Sequence[DealtStage] = (),
        mixed: Mapping[str, Mixing] | None = None,
    ) -> MixedPosition:
        """Return the start of a stage, after others."""
        return cls(epoch, DealtStage.of(deal, mixed=mixed), tuple(past))

    @property
    def deal(self) -> Deal:
        """The deal of the newest stage."""
        return self.stage.deal

    @property
    @override
    def asked(self) -> AskedFrom:
        return weights_from(self.consumed, self.deal.by_name)

    @property
    def start(self) -> int:
        """Samples that the job had taken when the newest stage began."""
        return sum(stage.places for stage in self.past)

    @property
    def total(self) -> int:
        """Samples of the epoch; `ENDLESS` if it has no end."""
        if self.deal.total == ENDLESS:
            return ENDLESS
        return self.start + self.deal.total

    @property
    def consumed(self) -> int:
        """Samples that the job has taken, or dropped at the end."""
        return self.batches(0).consumed(self.stage.steps)

    @property
    def steps_until_drop(self) -> int | None:
        """Steps of the newest stage after which sources are dropped; None: none are, or the epoch ends before."""
        deal = self.deal
        if 0 < deal.until < deal.total:
            return deal.until // deal.step_rows
        return None

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

    def shares(self) -> list[dict[str, Any]]:
        """Write how sources share each stage, oldest first, as plain values by name.

        Left out is what a stage has of the one before it, or as most do: `weights`, if they are those of the stage
        before; what is `dropped`, if nothing is: the places until then, and the weights that the stage has; the
        `width` of an item, if that is a row; what sources `lack` of their shares, if they lack nothing;
        `micro_batches`, if a step has one; `natural`, if shares are given; and how splits are mixed, as `windows`, of
        sources whose splits are.
        """
        found, before = [], None
        for stage in self.stages:
            deal: Deal = stage.deal
            fields: dict[str, Any] = {"total": deal.total}
            if before is None or before != deal.by_name:
                fields["weights"] = deal.by_name
            if deal.until or deal.given:
                fields["dropped"] = {"until": deal.until, "weights": list(deal.weights)}
            if deal.width > 1:
                fields["width"] = deal.width
            if deal.lacks:
                fields["lacks"] = list(deal.lacks)
            if deal.topology.micro_batches > 1:
                fields["micro_batches"] = deal.topology.micro_batches
            if deal.natural:
                fields["natural"] = True
            if stage.mixed:
                fields["windows"] = {name: mixing.to_state() for name, mixing in stage.mixed.items()}
            found.append(fields)
            before = deal.by_name
        return found

    @classmethod
    def of_shares(cls, staged: StagedPosition, shares: Sequence[Mapping[str, Any]], seed: int) -> MixedPosition:
        """Read what `shares` wrote, in a checked state whose stages are known.

        Raises:
            ResumeError: a stage has weights of other sources.
        """
        stages: list[DealtStage] = []
        weights: Mapping[str, int] = {}
        for number, (stage, fields) in enumerate(zip(staged.stages, shares, strict=True)):
            weights = fields.get("weights", weights)
            topology = replace(stage.topology, micro_batches=fields.get("micro_batches", 1))
            key, natural = (seed, staged.epoch, number), fields.get("natural", False)
            deal = deal_of(weights, topology, key, natural=natural, width=fields.get("width", 1))
            if dropped := fields.get("dropped"):
                own = tuple(dropped["weights"])
                if len(own) != len(deal.names):
                    raise ResumeError(
                        f"the state has weights {own} after sources were dropped, and the sources "
                        f"{', '.join(deal.names)}; pass the value of state_dict() unchanged"
                    )
                given = () if own == deal.weights else deal.weights
                deal = replace(deal, until=dropped["until"], weights=own, given=given)
            deal = replace(deal, total=fields["total"], lacks=tuple(fields.get("lacks", ())))
            mixed = {name: Mixing(**sizes) for name, sizes in fields.get("windows", {}).items()}
            stages.append(DealtStage.of(deal, stage.steps, mixed))
        return cls(staged.epoch, stages[-1], tuple(stages[:-1]), ended=staged.ended)


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
    return MixedPosition.at(epoch, replace(deal, total=total), past, mixed_of(deal, rounds))


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
