"""One rank's share of a mixture of streams: splits of several tables, in shares that the caller chooses."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

import numpy as np
from typing_extensions import override

from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.cached import cached_property
from torch_table_loader.contracts import is_far
from torch_table_loader.engine.jobs.batching import Batching
from torch_table_loader.engine.jobs.explained import explained_by_places
from torch_table_loader.engine.jobs.job import Job
from torch_table_loader.engine.jobs.placed import batches_at
from torch_table_loader.engine.jobs.resolve import topology_of
from torch_table_loader.engine.saved_state import Bound
from torch_table_loader.engine.sizing import batches_of_a_gather, rows_in_flight
from torch_table_loader.errors import ConfigError
from torch_table_loader.mixtures.form import (
    checked_columns,
    common_columns,
    places_of,
    share_notes,
    stream_weights,
)
from torch_table_loader.mixtures.mixed_reading import SourceReading, cost_of, threads_of
from torch_table_loader.mixtures.mixed_sources import AskedWeights, MixedSources
from torch_table_loader.mixtures.mixed_stream_work import MixedStreamWork
from torch_table_loader.mixtures.mixture import NaturalShares, ShareUnit
from torch_table_loader.mixtures.record import RECORD, Weights, refuse
from torch_table_loader.mixtures.rounds import Rounds, RoundSection
from torch_table_loader.mixtures.source_form import PlainForm
from torch_table_loader.mixtures.stream_position import (
    MixedPosition,
    begun,
    begun_as,
    done_in,
    had_of,
    refuse_other_orders,
    rests_of,
)
from torch_table_loader.planning.global_batches import ENDLESS
from torch_table_loader.planning.rows_of import SourceRow
from torch_table_loader.ranges import FetchSettings
from torch_table_loader.schedules import Done

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.batching.rows import RowsCodec
    from torch_table_loader.engine.explanation import Explanation
    from torch_table_loader.engine.jobs.stream_job import StreamJob
    from torch_table_loader.engine.rank_info import RankInfo
    from torch_table_loader.engine.saved_state import Kind, SavedState
    from torch_table_loader.engine.state_records import Written
    from torch_table_loader.engine.table import Table
    from torch_table_loader.mixtures.source_form import SourceForm
    from torch_table_loader.mixtures.stop import Stop
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.ranks import Topology
    from torch_table_loader.planning.splits import SegmentTable

    Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class MixedStreams(Job):
    """One rank's share of several tables that are read split by split.

    Args:
        fetching: how remote files are fetched, with one budget for all sources.
        rounds: the order of each source; given are those of the job that this one was, of which some may be others.
    """

    mixed: MixedSources[StreamJob]
    fetching: FetchSettings
    rounds: Mapping[str, Rounds] = field(default_factory=dict)
    kind: ClassVar[Kind] = "splits"

    def __post_init__(self) -> None:
        """Count the items of all sources."""
        seed = self.options.shuffle_seed
        rounds = {
            name: Rounds(name, job.planner.whole(), bool(job.options.shuffle), seed, cost_of(job))
            for name, job in self.sources.items()
        }
        known = {name: own.or_known(self.rounds.get(name)) for name, own in rounds.items()}
        object.__setattr__(self, "rounds", known)

    @classmethod
    def of(
        cls,
        sources: Mapping[str, StreamJob],
        options: LoaderOptions,
        ranks: RankInfo,
        weights: Mapping[str, float] | NaturalShares,
        stop: Stop,
        block: int | None,
        unit: ShareUnit,
    ) -> MixedStreams:
        """Check that the sources fit each other and the options.

        Raises:
            ConfigError: they do not; names what differs.
        """
        for name, source in sources.items():
            _refuse_unfit(name, source)
        fetching = _common_fetching(sources)
        for source in sources.values():
            source.table.let_go()
        given = stream_weights(weights, sources, unit, block, options.samples)
        topology = _shape_of(sources, topology_of(options, ranks.num_ranks))
        return cls(
            options=options,
            rank=ranks.rank,
            topology=topology,
            schedules=options.schedules,
            row_bytes=max(_item_bytes(source) for source in sources.values()),
            fork_safe=all(source.fork_safe for source in sources.values()),
            columns=checked_columns(sources, options, topology),
            mixed=MixedSources.of(dict(sources), given, stop, unused=("shuffle_seed",)),
            fetching=fetching,
        )

    @property
    @override
    def asked(self) -> AskedWeights:
        return self.mixed.asked

    @property
    def sources(self) -> Mapping[str, StreamJob]:
        """The jobs of single tables whose rows come, by name."""
        return self.mixed.by_name

    @property
    @override
    def tables(self) -> Mapping[str, Table]:
        return {name: source.table for name, source in self.sources.items()}

    @property
    @override
    def bounds(self) -> Mapping[str, Bound]:
        return self.mixed.bounds

    @cached_property
    @override
    def bound(self) -> Bound:
        own = {"shuffle_seed": self.options.shuffle_seed, "block": None, **self.mixed.stop.as_dict}
        return Bound({}, own | self.samples.bound)

    @property
    @override
    def compared(self) -> Mapping[str, Any]:
        return {**self.mixed.compared(self.bound), **self.by_step.compared}

    def with_sources(self, sources: Mapping[str, StreamJob]) -> MixedStreams:
        """Return the same mixture over other versions of its sources."""
        mixed = self.mixed.others(sources)
        return replace(self, mixed=mixed, columns=common_columns(mixed.by_name, self.options))

    @property
    @override
    def batching(self) -> Batching:
        threads = threads_of(self.options, mixes=any(own.cost is not None for own in self.rounds.values()))
        return Batching.of(self.options, self.topology, self.row_bytes, collated=max(1, threads))

    @property
    @override
    def own_records(self) -> tuple[str, ...]:
        return (RECORD.key,)

    @property
    def sizes(self) -> dict[str, int]:
        """Items of each source in an epoch that begins later."""
        width = self._width_at(0)
        return {name: rounds.items(width) for name, rounds in self.rounds.items()}

    def _width_at(self, epoch: int, step: int = 0) -> int:
        """Return the rows of an item at a step: the tokens of a sequence, where documents are cut anywhere."""
        if self.samples.cut_anywhere:
            return self.by_step.length_at(epoch, step)
        return 1

    def check_weights(
        self, weights: Mapping[str, float] | NaturalShares, epoch: int, coming: frozenset[str] = frozenset()
    ) -> Weights:
        """Return weights that an epoch can begin with, as the smallest integers; see `MixtureOfRows`."""
        newest = stream_weights(weights, self.sources, "rows", None, self.samples)
        self._begun(epoch, newest, coming=coming)
        return newest

    @override
    def start(self, epoch: int) -> MixedPosition:
        return self._begun(epoch, self.mixed.weights_at(epoch))

    @override
    def kept_shape(self, position: MixedPosition) -> bool:
        done = Done()
        for stage in position.stages:
            deal, width = stage.deal, self._width_at(position.epoch, done.steps)
            if (deal.topology, deal.width) != (self.by_step.topology_of(position.epoch, done), width):
                return False
            done = self.by_step.did(done.steps + stage.steps, done.samples + stage.places)
        return True

    @override
    def done(self, position: MixedPosition) -> Done:
        done = self.by_step.did(position.steps_taken, position.consumed)
        if not self.by_step.changes_length:
            return done
        return done._replace(tokens=done_in(position.stages).tokens)

    def _begun(
        self,
        epoch: int,
        weights: Weights,
        before: MixedPosition | None = None,
        coming: frozenset[str] | None = None,
    ) -> MixedPosition:
        """Return the start of a stage, after another one if one is given.

        Args:
            coming: sources that have a weight later; None: those of the schedule.
        """
        done = Done() if before is None else self.done(before)
        coming = self.mixed.coming(epoch, done) if coming is None else coming
        past = () if before is None else before.stages if before.stage.steps else before.past
        by_name = None if isinstance(weights, str) else weights
        topology, width = self.by_step.topology_of(epoch, done), self._width_at(epoch, done.steps)
        return begun(epoch, self.rounds, by_name, topology, self.mixed.stop, past, width, coming)

    @override
    def next_stage(self, position: MixedPosition) -> MixedPosition:
        return self.reweighted(position, self.mixed.weights_at(position.epoch, self.done(position)))

    @override
    def refuse_nulls(self) -> None:
        self.mixed.refuse_nulls()

    def reweighted(self, position: MixedPosition, weights: Weights) -> MixedPosition:
        """Return a position with other weights for the steps that come; see `MixedRows.reweighted`."""
        if position.consumed == position.total or _stays(self, position, weights):
            return position
        return self._begun(position.epoch, weights, position)

    @override
    def records(self, position: MixedPosition) -> dict[str, Written]:
        weights = self.mixed.weights_at(position.epoch, self.done(position))
        return self.mixed.written(self.bound, weights, position.shares())

    @override
    def resume(self, saved: SavedState) -> tuple[MixedStreams, MixedPosition]:
        """Return the mixture with the state's weights, and where it continues; see `MixedRows.resume`."""
        position = cast("MixedPosition", saved.taken)
        if not self.samples.cut_anywhere and (
            cut := [each.deal.width for each in position.stages if each.deal.width > 1]
        ):
            refuse(f"sequences of {cut[0]} tokens, and here documents are not cut anywhere")
        refuse_other_orders(position, self.rounds, self.mixed.stop)
        lanes = position.stage.topology.lanes if self.options.num_workers is None else self.topology.lanes
        job = replace(self.with_lanes(lanes), mixed=self.mixed.resumed(saved))
        newest = job.mixed.weights_at(position.epoch, job.done(position))
        same_shape = position.stage.topology == job.by_step.topology_of(position.epoch, job.done(position))
        over = position.consumed == position.total
        if same_shape and _stays(job, position, newest) and (over or _ends_there(job, position)):
            return job, position
        if over:
            done = job._begun(position.epoch, newest, position)
            return job, MixedPosition.at(done.epoch, replace(done.deal, total=0), done.past)
        return job, job._begun(position.epoch, newest, position)

    @override
    def until(self, position: Any) -> int | None:
        untils = (super().until(position), position.steps_until_drop)
        return min((steps for steps in untils if steps is not None), default=None)

    @override
    def work(self, position: MixedPosition) -> MixedStreamWork:
        common = self._common_work(position, self.planned(position))
        rests = rests_of(self.rounds, position)
        return MixedStreamWork(
            **common,
            stage=position.stage,
            parts=tuple(
                _reading(self, name, position).part(
                    self.rounds[name], rests[name], _form(self, name, common["codec"]), common
                )
                for name in position.deal.names
            ),
            joined_batches=_joined_batches(self),
            fetching=self.fetching,
            threads=threads_of(self.options, mixes=bool(position.stage.mixed)),
        )

    @override
    def rows_of(self, position: MixedPosition, step: int, most: int | None = None) -> list[SourceRow]:
        position = self.current(position)
        plan = position.batches(self.rank)
        taken = plan.step(step)
        places = taken.places[: taken.real][:most] - plan.start
        source, names = position.deal.sources(places), position.deal.names
        rests = rests_of(self.rounds, position)
        ids: list[list[SourceRow]] = [[] for _ in places]
        for number in np.unique(source).tolist():
            name, chosen = names[number], np.flatnonzero(source == number)
            for found, items in self.rounds[name].at(rests[name], position.epoch, position.stage, places[chosen]):
                under = _row_ids(self, name, position, found, items[:, 1])
                for place, rows in zip(chosen[items[:, 0]].tolist(), under, strict=True):
                    ids[place] = [SourceRow(name, row) for row in rows]
        return [row for rows in ids for row in rows]

    @override
    def num_rows(self, epoch: int) -> int:
        return sum(self.sizes.values())

    @override
    def num_samples(self, epoch: int) -> int | None:
        delivered = _delivered(self, self.start(epoch), self._width_at(0))
        if delivered is None or self.by_step.changes_length:
            return None
        return sum(delivered.values())

    @override
    def explain(self, epoch: int) -> Explanation:
        position, gathered = self.start(epoch), _joined_batches(self) * self.options.most_rows
        codec, joined = self.codec_at(position), 2 * rows_in_flight(self.options, gathered, self.batching.blocks)
        told = [_reading(self, name, position).told(_form(self, name, codec).reads()) for name in position.stage.mixed]
        read = sum(
            -(-source.read_rows * source.row_bytes // self.row_bytes)
            for name, source in self.sources.items()
            if name not in position.stage.mixed
        )
        far = any(source.is_far for source in self.sources.values())
        plans = [batches_at(self, stage) for stage in self.walk.stages(position)]
        return explained_by_places(
            self,
            epoch,
            plans,
            strategy="a mixture of streams",
            live_rows=self.num_rows(epoch),
            lane_bytes=joined * self.row_bytes + sum(each.lane_bytes for each in told),
            open_bytes=read * self.topology.lanes * self.row_bytes + sum(each.open_bytes for each in told),
            held_bytes=self.fetching.ahead_bytes if far else 0,
            notes=[*_notes(self, position), *(note for each in told for note in each.notes)],
            splits=sum(len(rounds.segments.splits) for rounds in self.rounds.values()),
        )

    def had_of(self, position: MixedPosition) -> dict[str, tuple[int, int]]:
        """Return how many items of each source an epoch has had before a position; see `MixedRows.had_of`."""
        had = had_of(self.rounds, position.epoch, position.stages)
        return {name: (had[name], own.items(1)) for name, own in self.rounds.items()}


def _joined_batches(job: MixedStreams) -> int:
    """Batches of a lane that are joined of rows of all sources at once; few, as each source is decoded for them."""
    return max(1, batches_of_a_gather(job.row_bytes, job.options.most_rows) // 4)


def _form(job: MixedStreams, name: str, codec: RowsCodec[Any]) -> SourceForm:
    """Return what makes items of the mixture of what is read of a source."""
    number, schema = list(job.sources).index(name), job.sources[name].reader.schema
    if not job.samples.are_rows:
        policy = TypePolicy.of(job.options)
        form: SourceForm = job.samples.parts.form_of_source(number, codec, job.columns, schema, policy)
        return form
    return PlainForm(number, codec, job.schema, places_of(job.columns, schema), job.topology.marks_padding)


def _reading(job: MixedStreams, name: str, position: MixedPosition) -> SourceReading:
    return SourceReading(name, job.sources[name], job.options, position.stage, job.rank, job.fetching)


def _row_ids(
    job: MixedStreams, name: str, position: MixedPosition, found: RoundSection, items: Ints
) -> list[list[int]]:
    """Return the row ids under items of a section: of rows from the plan, and of what is made of rows by reading."""
    rounds = job.rounds[name]
    if job.samples.are_rows:
        rows = list(found.rows(rounds.segments, (rounds.seed, position.epoch)))
        each = [(split, row) for split, start, stop in rows for row in range(start, stop)]
        return [[_row_id(name, rounds.segments, *each[item])] for item in items.tolist()]
    common = job._common_work(position, job.planned(position))
    return _reading(job, name, position).ids(rounds, found, items.tolist(), common)


def _shape_of(sources: Mapping[str, StreamJob], topology: Topology) -> Topology:
    """Return the shape of a job over sources; with one lane where splits are mixed, so that a batch draws on all."""
    if any(source.topology.mixing is not None for source in sources.values()):
        return replace(topology, lanes=1)
    return topology


def _stays(job: MixedStreams, position: MixedPosition, weights: Weights) -> bool:
    """Return whether a position's stage goes on under some weights."""
    if position.stage.steps == position.steps_until_drop or not _has(position, weights, job.sources):
        return False
    if position.deal.width != job._width_at(position.epoch, position.steps_taken):
        return False
    return position.stage.topology.has_batches_of(job.by_step.topology_of(position.epoch, job.done(position)))


def _ends_there(job: MixedStreams, position: MixedPosition) -> bool:
    """Return whether the newest stage ends where a job ends it, whatever weights the saved one had later."""
    coming = job.mixed.coming(position.epoch, job.done(position))
    return begun_as(position.deal, position, job.rounds, job.mixed.stop, coming).total == position.deal.total


def _delivered(job: MixedStreams, position: MixedPosition, width: int) -> dict[str, int] | None:
    """Count what an epoch delivers of each source, in items of so many rows; None: it has no end.

    A last step that is dropped is counted too.
    """
    *_, last = job.walk.stages(position)
    if (end := batches_at(job, last).total) == ENDLESS:
        return None
    done = last.after(-(-(end - last.start) // last.deal.step_rows))
    return had_of(job.rounds, position.epoch, done.stages, width)


def _notes(job: MixedStreams, position: MixedPosition) -> list[str]:
    """Return what `explain()` says of the shares: of sequences of several lengths, their tokens."""
    deal, shares, stop = position.deal, sum(position.deal.by_name.values()), job.mixed.stop
    what, counted, width = job.samples.word, job.samples.word, deal.width
    if job.by_step.changes_length:
        counted, width = "token", 1
    sizes = {name: own.items(width) for name, own in job.rounds.items()}
    weights = {name: weight / shares for name, weight in deal.by_name.items()}
    every = "after every step" if deal.block_steps == 1 else f"after every {deal.block_steps:,} steps"
    return [
        *share_notes(tuple(job.sources), sizes, weights, _delivered(job, position, width), counted),
        *job.samples.notes,
        (f"{every} each source has its share, to within one {what}; the epoch ends {stop.in_words(what)}"),
    ]


def _row_id(name: str, segments: SegmentTable, split: int, live: int) -> int:
    """Return the row id of a live row of a split of a source."""
    splits = segments.splits
    file = int(splits.file[split])
    for segment in segments.task(split, 0, -1).segments:
        if segment.live != segment.row_stop - segment.row_start:
            raise ConfigError(
                f"rows_of names rows by their row_id, which deletes or filters of source {name!r} decide; pass "
                "row_id=True to the sources and read the column row_id of the batch"
            )
        if live < segment.live:
            return int(splits.layout.file_starts[file]) + segment.row_start + live
        live -= segment.live
    raise ConfigError(f"split {split} of source {name!r} has no such row")


def _has(position: MixedPosition, weights: Weights, sources: Collection[str]) -> bool:
    """Return whether a position's stage has these weights and sources already."""
    deal = position.deal
    if deal.names != tuple(sorted(sources)):
        return False
    if isinstance(weights, str):
        return deal.natural
    return not deal.natural and deal.by_name == weights


def _item_bytes(source: StreamJob) -> int:
    """Return the decoded bytes of a sample."""
    samples = source.samples
    if samples.are_rows:
        return source.row_bytes
    rows = 1 if samples.joins_rows else samples.width
    return samples.longest * source.batching.unit_bytes // rows


def _common_fetching(sources: Mapping[str, StreamJob]) -> FetchSettings:
    """Return how all sources fetch files that are far away; where none is, how local files are read ahead.

    Raises:
        ConfigError: two of these sources differ in their read-ahead or in their cache.
    """
    far = {name: source for name, source in sources.items() if is_far(source.table.storage)}
    far = far or {name: source for name, source in sources.items() if source.is_far}
    asked = {name: replace(source.options.remote, retry_seconds=0) for name, source in far.items()}
    first = next(iter(asked), "")
    for name, remote in asked.items():
        if remote != asked[first]:
            raise ConfigError(
                f"the files of a mixture of streams are fetched ahead together, but sources {first!r} and {name!r} "
                "differ in read_ahead_bytes, cache_dir or cache_bytes in storage_options; give both the same"
            )
    return next((source.fetching for source in far.values()), FetchSettings(0))


def _refuse_unfit(name: str, source: StreamJob) -> None:
    """Refuse what a source of a mixture of streams cannot be."""
    options = source.options
    remedies = {
        "shuffle_buffer_size=": (
            options.row_window is not None or options.limits_memory,
            "leave it out; with shuffle=True, sources share the windows of one stream, by their shares",
        ),
        "shuffle_buffer_size= beside shuffle=True": (
            options.window is not None and source.topology.mixing is not None,
            'pass shuffle="splits"; documents are then shuffled in each row group',
        ),
        "batch_by=": (options.batch_by is not None, "leave it out; a batch has rows of several sources"),
        "even_ranks=": (bool(options.even_ranks), "pass it to the mixture"),
        "count_filtered=False": (not source.counted, "leave it True, since shares need the number of rows"),
        "split_strategy= that deals by itself": (not source.strategy.cuts, "pass one that returns splits"),
        "split_strategy= of coverage='any'": (
            source.strategy.coverage == "any",
            "pass one that covers each row once, and filter or weigh the source instead",
        ),
    }
    for option, (given, remedy) in remedies.items():
        if given:
            raise ConfigError(
                f"source {name!r} is a stream with {option}, which a mixture of streams does not support; {remedy}"
            )
