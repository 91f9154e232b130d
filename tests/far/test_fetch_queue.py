"""Fetching ahead: everything once, in the order of delivery, within the budget."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import partial
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from torch_table_loader.far.fetch_queue import (
    FetchQueue,
    Request,
    Requests,
    Stage,
    Task,
    joined,
)
from torch_table_loader.ranges import PlannedRead, in_order
from torch_table_loader.records import DataFile, FileNeeds, FileVersion

CONTENT = bytes(range(251)) * 400
STORAGE: Any = None
"""A queue asks no storage."""


def needs_of(path: str, groups: list[list[tuple[int, int]]]) -> FileNeeds:
    file = DataFile(path, path, FileVersion(len(CONTENT)), "parquet")
    return FileNeeds(file, tuple(map(tuple, groups)))


def requests_of(task: Task, kept: Kept = frozenset()) -> Requests | None:
    needs = task.read.find()
    if needs is None:
        return None
    return Requests(needs, STORAGE, held=[(0, len(CONTENT))] if needs.file.path in kept else ())


@st.composite
def groups(draw: st.DrawFn) -> list[list[tuple[int, int]]]:
    """Draw consecutive row groups of a file, with some columns of each."""
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


def _file(file: DataFile) -> DataFile:
    return file


class Line:
    """Carries out the jobs of a queue; requests arrive in any order."""

    def __init__(self, queue: FetchQueue, random: Random, kept: Kept = frozenset()) -> None:
        self.queue = queue
        self.random = random
        self.kept = kept
        self.flying: list[Request] = []

    def work(self) -> bool:
        """Begin all jobs, and let one request arrive; return whether anything happened."""
        did = False
        while (job := self.queue.next_job(lambda _: len(self.flying) < 3)) is not None:
            did = True
            if isinstance(job, Task):
                self.queue.found(job, requests_of(job, self.kept))
            else:
                self.flying.append(job)
        if self.flying:
            request = self.flying.pop(self.random.randrange(len(self.flying)))
            self.queue.arrived(request, CONTENT[request.start : request.stop], None)
        return did or bool(self.flying)

    def task(self, lane: int) -> Task:
        """Return a lane's next read, once its needs are known."""
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
        self.queue.drop(task.requests.before_part(covering[0]))
        while (request := self.queue.read_here(covering)) is not None:
            if self.random.random() < 0.05:
                self.queue.lost(request)
            else:
                self.queue.arrived(request, CONTENT[request.start : request.stop], None)
        for request in covering:
            if request.stage is Stage.QUEUED:
                self.queue.want(request)
            while request.waits:
                self.work()
        return bytes(joined(covering, start, stop))


@settings(max_examples=examples(100), deadline=None)
@given(LANES, st.integers(1, 30_000), KEPT, st.randoms(use_true_random=False))
def test_every_lane_gets_its_bytes_whatever_the_budget_and_the_order_of_arrival(
    lanes: Lanes, budget: int, kept: Kept, random: Random
) -> None:
    queue = FetchQueue(in_order(plans(lanes)), budget)
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
    assert queue.held == 0
    assert queue.next_job(lambda _: True) is None


@settings(max_examples=examples(100), deadline=None)
@given(LANES, st.integers(1, 30_000))
def test_requests_that_nobody_waits_for_stay_in_order_and_within_the_budget(lanes: Lanes, budget: int) -> None:
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
    """Return what a queue sends while no lane reads; all of it arrives."""
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
@given(LANES, st.integers(1, 400_000), KEPT)
def test_cached_requests_are_left_to_lanes_and_count_in_the_budget_until_lost(
    lanes: Lanes, budget: int, kept: Kept
) -> None:
    far = sent_while_nobody_reads(FetchQueue(in_order(plans(lanes)), budget), set())
    queue = FetchQueue(in_order(plans(lanes)), budget)
    sent = sent_while_nobody_reads(queue, kept)
    assert not [request for request in sent if request.is_here]
    assert ranges_of(sent) == {each for each in ranges_of(far) if each[0] not in kept}
    assert queue.held == sum(request.num_bytes for request in far)
    lost = _one_that_a_lane_loses(queue, lanes, kept)
    rest = sent_while_nobody_reads(queue, kept)
    if lost is None:
        assert rest == []
    else:
        wanted = [*sent, *rest]
        assert ranges_of(far) <= ranges_of(wanted), "what a cache lost, and may lose next, is sent as early as all else"
        assert len(ranges_of(wanted)) == len(wanted)


def _one_that_a_lane_loses(queue: FetchQueue, lanes: Lanes, kept: Kept) -> Request | None:
    """Let the first lane reach its first read, and lose what it finds in the disk cache."""
    if not lanes[0]:
        return None
    task = queue.take(0)
    if not task.found:
        task.is_sought = True
        queue.found(task, requests_of(task, kept))
    if task.requests is None:
        return None
    lost = queue.read_here([request for piece in task.requests.by_piece for request in piece])
    if lost is not None:
        queue.lost(lost)
        assert (lost.stage, lost.is_here) == (Stage.QUEUED, False)
        queue.want(lost)
    return lost


def test_a_request_abandoned_while_its_lane_reads_the_cache_is_released() -> None:
    for ends in (True, False):
        queue = FetchQueue(iter([PlannedRead(0, 0, 1, lambda: needs_of("a", [[(0, 10)]]))]), 1000)
        task = queue.take(0)
        assert queue.next_job(lambda _: True) is task
        queue.found(task, requests_of(task, {"a"}))
        assert task.requests is not None
        request = queue.read_here(task.requests.by_piece[0])
        assert request is not None
        assert queue.read_here(task.requests.by_piece[0]) is None, "one thread reads it"
        queue.end(0)
        assert queue.held == 10
        if ends:
            queue.arrived(request, b"0123456789", None)
        else:
            queue.lost(request)
        assert (queue.held, request.data) == (0, None)
        assert queue.next_job(lambda _: True) is None


def test_the_first_answer_to_a_request_sent_twice_counts() -> None:
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


def test_no_job_comes_of_reads_of_files_that_are_here() -> None:
    files = [needs_of(path, [[(0, 10)]]).file for path in "abc"]
    other = DataFile("b", "b", FileVersion(len(CONTENT), 1), "parquet")
    reads = [
        PlannedRead(number, number % 2, 1, lambda: needs_of("b", [[(0, 10)]]), file=partial(_file, file))
        for number, file in enumerate([*files, other, *files])
    ]
    queue = FetchQueue(iter(reads), 1000, {(file.path, file.version): CONTENT for file in files})
    assert isinstance(job := queue.next_job(lambda _: True), Task)
    assert job.read is reads[3]
    assert queue.next_job(lambda _: True) is None
    for number in range(len(reads)):
        task = queue.take(number % 2)
        assert (task.read, task.kept is None) == (reads[number], number == 3)
        assert task.kept is None or task.kept.data is CONTENT
        assert queue.held == 0


def test_a_read_abandoned_before_its_needs_are_known_holds_nothing() -> None:
    queue = FetchQueue(iter([PlannedRead(0, 0, 1, lambda: needs_of("a", [[(0, 10)]]))]), 1000)
    task = queue.take(0)
    assert queue.next_job(lambda _: True) is task
    queue.end(0)
    queue.found(task, requests_of(task))
    assert queue.next_job(lambda _: True) is None
