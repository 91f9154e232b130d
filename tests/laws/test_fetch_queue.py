"""What is fetched ahead: everything once, in the order of delivery, within the budget."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import partial
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.effort import examples
from torch_table_loader.fetch.fetch_queue import FetchQueue, Task, in_order
from torch_table_loader.fetch.planned_read import PlannedRead, Request, Requests, Stage, joined
from torch_table_loader.records import DataFile, FileNeeds, FileVersion

CONTENT = bytes(range(251)) * 400


def needs_of(path: str, groups: list[list[tuple[int, int]]]) -> FileNeeds:
    file = DataFile(path, path, FileVersion(len(CONTENT)), "parquet")
    return FileNeeds(file, tuple(map(tuple, groups)))


def requests_of(task: Task, kept: Kept = frozenset()) -> Requests | None:
    needs = task.read.find()
    if needs is None:
        return None
    return Requests(needs, held=[(0, len(CONTENT))] if needs.file.path in kept else ())


@st.composite
def groups(draw: st.DrawFn) -> list[list[tuple[int, int]]]:
    """Row groups that follow one another in a file, some columns of each."""
    found, at = [], 4
    for _ in range(draw(st.integers(1, 4))):
        ranges = []
        for _ in range(draw(st.integers(1, 3))):
            at += draw(st.integers(0, 300))
            stop = at + draw(st.integers(1, 4000))
            ranges.append((at, stop))
            at = stop
        found.append(ranges)
    return found


Groups = list[list[tuple[int, int]]]
Lanes = list[list[Groups | None]]
Kept = AbstractSet[str]
KEPT = st.one_of(
    st.just({f"{lane}/{number}" for lane in range(4) for number in range(5)}),
    st.sets(st.builds("{}/{}".format, st.integers(0, 3), st.integers(0, 4))),
)
"""Files that the disk cache has."""
LANES = st.lists(st.lists(st.one_of(st.none(), groups()), max_size=5), min_size=1, max_size=4)


def plans(lanes: Lanes) -> list[Iterator[PlannedRead]]:
    def plan(lane: int) -> Iterator[PlannedRead]:
        for number, each in enumerate(lanes[lane]):
            needs = None if each is None else needs_of(f"{lane}/{number}", each)
            yield PlannedRead(100 * number, lane, 100, partial(_given, needs))

    return [plan(lane) for lane in range(len(lanes))]


def _given(needs: FileNeeds | None) -> FileNeeds | None:
    return needs


class Line:
    """Does what a queue says; requests arrive in any order."""

    def __init__(self, queue: FetchQueue, random: Random, kept: Kept = frozenset()) -> None:
        self.queue = queue
        self.random = random
        self.kept = kept
        self.flying: list[Request] = []

    def work(self) -> bool:
        """Begin what there is to do, and let one request arrive; whether anything happened."""
        did = False
        while (job := self.queue.next_job(lambda _: len(self.flying) < 3)) is not None:
            did = True
            if isinstance(job, Task):
                self.queue.found(job, requests_of(job, self.kept))
            else:
                self.flying.append(job)
                if job.is_here and self.random.random() < 0.05:
                    self.queue.missed()
        if self.flying:
            request = self.flying.pop(self.random.randrange(len(self.flying)))
            self.queue.arrived(request, CONTENT[request.start : request.stop], None)
        return did or bool(self.flying)

    def task(self, lane: int) -> Task:
        """A lane's next read, once it is known what it needs."""
        task = self.queue.take(lane)
        if not task.found:
            self.queue.want(task)
        while not task.found:
            self.work()
        return task

    def read(self, task: Task, start: int, stop: int) -> bytes:
        assert task.requests is not None
        covering = task.requests.covering(start, stop)
        assert covering is not None
        self.queue.drop(task.requests.left_behind(covering[0].piece))
        for request in covering:
            if request.stage is Stage.QUEUED:
                self.queue.want(request)
            while request.waits:
                self.work()
        self.queue.use(covering)
        return bytes(joined(covering, start, stop))


@settings(max_examples=examples(100), deadline=None)
@given(LANES, st.integers(1, 30_000), st.integers(1, 60_000), KEPT, st.randoms(use_true_random=False))
def test_every_lane_gets_its_bytes_whatever_the_budget_and_the_order_of_arrival(
    lanes: Lanes, budget: int, near: int, kept: Kept, random: Random
) -> None:
    queue = FetchQueue(in_order(plans(lanes)), budget, near)
    line = Line(queue, random, kept)
    for number in range(max(map(len, lanes))):
        for lane in [lane for lane in range(len(lanes)) if number < len(lanes[lane])]:
            task, wanted = line.task(lane), lanes[lane][number]
            if wanted is None:
                assert task.requests is None
            for start, stop in [each for group in wanted or () for each in group]:
                assert line.read(task, start, stop) == CONTENT[start:stop]
    while line.work():
        pass
    queue.close()
    assert (queue.held, queue.near_held) == (0, 0)
    assert queue.next_job(lambda _: True) is None


@settings(max_examples=examples(100), deadline=None)
@given(LANES, st.integers(1, 30_000))
def test_what_nobody_waits_for_stays_in_order_and_within_the_budget(lanes: Lanes, budget: int) -> None:
    queue = FetchQueue(in_order(plans(lanes)), budget)
    sent: list[Request] = []
    while (job := queue.next_job(lambda _: True)) is not None:
        if isinstance(job, Task):
            queue.found(job, requests_of(job))
        else:
            sent.append(job)
            queue.arrived(job, CONTENT[job.start : job.stop], None)
            assert queue.held == sum(request.num_bytes for request in sent)
            assert queue.held <= budget or len(sent) == 1
    places = [tuple(map(int, reversed(request.file.path.split("/")))) for request in sent]
    first_of_reads = [place for at, place in enumerate(places) if place not in places[:at]]
    assert first_of_reads == sorted(first_of_reads)


def sent_while_nobody_reads(queue: FetchQueue, kept: Kept, *, may_send: bool = True) -> list[Request]:
    """What a queue sends while no lane comes to any of it, all of which arrives."""
    sent: list[Request] = []
    while (job := queue.next_job(lambda _: may_send)) is not None:
        if isinstance(job, Task):
            queue.found(job, requests_of(job, kept))
        else:
            sent.append(job)
            queue.arrived(job, CONTENT[job.start : job.stop], None)
    return sent


def ranges_of(requests: Iterable[Request]) -> set[tuple[str, int, int]]:
    return {(request.file.path, request.start, request.stop) for request in requests}


@settings(max_examples=examples(100), deadline=None)
@given(LANES, st.integers(1, 400_000), st.integers(1, 60_000), KEPT)
def test_what_the_disk_cache_has_is_read_shortly_before_it_is_used_and_holds_nothing_else_up(
    lanes: Lanes, budget: int, near: int, kept: Kept
) -> None:
    queue = FetchQueue(in_order(plans(lanes)), budget, near)
    sent = sent_while_nobody_reads(queue, kept)
    here = [request for request in sent if request.is_here]
    assert queue.near_held == sum(request.num_bytes for request in here)
    assert queue.near_held <= near or len(here) == 1
    unbounded = sent_while_nobody_reads(FetchQueue(in_order(plans(lanes)), budget, budget + 1), kept)
    assert ranges_of(each for each in sent if not each.is_here) == ranges_of(
        each for each in unbounded if not each.is_here
    )
    assert queue.held == sum(request.num_bytes for request in unbounded)
    places = [(each.file.path, each.start) for each in unbounded if each.is_here]
    assert [(each.file.path, each.start) for each in here] == places[: len(here)]
    assert queue.use(here) == bool(here)
    assert queue.near_held == 0
    rest = sent_while_nobody_reads(queue, kept)
    assert bool(rest) == (len(here) < len(places)), "what was used makes room"
    assert [(each.file.path, each.start) for each in here + rest] == places[: len(here + rest)]
    queue.missed()
    rest += sent_while_nobody_reads(queue, kept)
    assert ranges_of(sent + rest) == ranges_of(unbounded), "a cache that loses what it had is read as early as a store"


def test_what_the_disk_cache_has_needs_no_leave_of_the_line_until_it_was_lost() -> None:
    def begun(reads: int) -> FetchQueue:
        needs = [needs_of(str(number), [[(4, 90_000)]]) for number in range(reads)]
        plan = (PlannedRead(number, 0, 1, partial(_given, each)) for number, each in enumerate(needs))
        return FetchQueue(plan, 1 << 20, near=1)

    assert sent_while_nobody_reads(begun(2), set(), may_send=False) == []
    queue = begun(2)
    (first,) = sent_while_nobody_reads(queue, {"0", "1"}, may_send=False)
    assert first.is_here
    queue.missed()
    queue.use([first])
    assert sent_while_nobody_reads(queue, {"0", "1"}, may_send=False) == []
    assert len(sent_while_nobody_reads(queue, {"0", "1"})) == 1


def test_what_is_needed_later_but_was_found_first_keeps_nothing_back() -> None:
    needs = [needs_of(str(number), [[(4, 90_000)]]) for number in range(2)]
    plan = (PlannedRead(number, 0, 1, partial(_given, each)) for number, each in enumerate(needs))
    queue = FetchQueue(plan, 1 << 20, near=1)
    first, second = queue.next_job(lambda _: True), queue.next_job(lambda _: True)
    assert isinstance(first, Task)
    assert isinstance(second, Task)
    for task in (second, first):
        queue.found(task, requests_of(task, {"0", "1"}))
        sent = queue.next_job(lambda _: True)
        assert isinstance(sent, Request)
        assert sent.file.path == task.read.find().file.path  # type: ignore[union-attr]
    assert queue.next_job(lambda _: True) is None


def test_the_first_answer_of_a_request_that_was_sent_twice_counts() -> None:
    queue = FetchQueue(iter([PlannedRead(0, 0, 1, lambda: needs_of("a", [[(0, 10)]]))]), 1000)
    task = queue.take(0)
    assert queue.next_job(lambda _: True) is task
    queue.found(task, requests_of(task))
    request = queue.next_job(lambda _: True)
    assert isinstance(request, Request)
    queue.want(request)
    assert queue.next_job(lambda _: False) is None, "that two wait for it is no reason to send it twice"
    request.is_late = True
    queue.want(request)
    queue.want(request)
    assert queue.next_job(lambda _: False) is request
    assert queue.next_job(lambda _: False) is None
    assert (request.running, queue.held) == (2, 10)
    queue.arrived(request, None, OSError("lost"))
    assert request.waits
    queue.arrived(request, b"0123456789", None)
    assert (request.stage, queue.held) == (Stage.DONE, 10)
    queue.end(0)
    assert queue.held == 0


def test_a_read_that_its_lane_left_before_it_was_found_holds_nothing() -> None:
    queue = FetchQueue(iter([PlannedRead(0, 0, 1, lambda: needs_of("a", [[(0, 10)]]))]), 1000)
    task = queue.take(0)
    assert queue.next_job(lambda _: True) is task
    queue.end(0)
    queue.found(task, requests_of(task))
    assert queue.next_job(lambda _: True) is None
