"""What is fetched ahead: everything once, in the order of delivery, within the budget."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.effort import examples
from torch_table_loader.fetch.fetch_queue import FetchQueue, Task, in_order
from torch_table_loader.fetch.planned_read import PlannedRead, Request, Stage, joined
from torch_table_loader.records import DataFile, FileNeeds, FileVersion

CONTENT = bytes(range(251)) * 400


def needs_of(path: str, groups: list[list[tuple[int, int]]]) -> FileNeeds:
    file = DataFile(path, path, FileVersion(len(CONTENT)), "parquet")
    return FileNeeds(file, tuple(map(tuple, groups)))


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


LANES = st.lists(st.lists(st.one_of(st.none(), groups()), max_size=5), min_size=1, max_size=4)


def plans(lanes: list[list[list[list[tuple[int, int]]] | None]]) -> list[Iterator[PlannedRead]]:
    def plan(lane: int) -> Iterator[PlannedRead]:
        for number, each in enumerate(lanes[lane]):
            needs = None if each is None else needs_of(f"{lane}/{number}", each)
            yield PlannedRead(100 * number, lane, 100, lambda needs=needs: needs)

    return [plan(lane) for lane in range(len(lanes))]


@settings(max_examples=examples(100), deadline=None)
@given(LANES, st.integers(1, 30_000), st.randoms(use_true_random=False))
def test_every_lane_gets_its_bytes_whatever_the_budget_and_the_order_of_arrival(lanes, budget, random) -> None:  # type: ignore[no-untyped-def]
    queue = FetchQueue(in_order(plans(lanes)), budget)
    flying: list[Request] = []
    largest = 0

    def work() -> bool:
        """Begin what there is to do, and let something arrive; whether anything happened."""
        nonlocal largest
        did = False
        while (job := queue.next_job(may_send=len(flying) < 3)) is not None:
            did = True
            if isinstance(job, Task):
                queue.found(job, job.read.find())
            else:
                flying.append(job)
                largest = max(largest, job.num_bytes)
        if flying:
            request = flying.pop(random.randrange(len(flying)))
            queue.arrived(request, CONTENT[request.start : request.stop], None)
        return did or bool(flying)

    for number in range(max(map(len, lanes))):
        for lane in [lane for lane in range(len(lanes)) if number < len(lanes[lane])]:
            task = queue.take(lane)
            if not task.found:
                queue.want(task)
            while not task.found:
                work()
            given_groups = lanes[lane][number]
            if given_groups is None:
                assert task.requests is None
                continue
            assert task.requests is not None
            for start, stop in [each for group in given_groups for each in group]:
                covering = task.requests.covering(start, stop)
                assert covering is not None
                queue.drop(task.requests.left_behind(covering[0].piece))
                for request in covering:
                    if request.stage is Stage.QUEUED:
                        queue.want(request)
                    while request.waits:
                        work()
                assert bytes(joined(covering, start, stop)) == CONTENT[start:stop]
    while work():
        pass
    queue.close()
    assert queue.held == 0
    assert queue.next_job(may_send=True) is None


@settings(max_examples=examples(100), deadline=None)
@given(LANES, st.integers(1, 30_000))
def test_what_nobody_waits_for_stays_in_order_and_within_the_budget(lanes, budget) -> None:  # type: ignore[no-untyped-def]
    queue = FetchQueue(in_order(plans(lanes)), budget)
    sent: list[Request] = []
    while (job := queue.next_job(may_send=True)) is not None:
        if isinstance(job, Task):
            queue.found(job, job.read.find())
        else:
            sent.append(job)
            queue.arrived(job, CONTENT[job.start : job.stop], None)
            assert queue.held == sum(request.num_bytes for request in sent)
            assert queue.held <= budget or len(sent) == 1
    places = [tuple(map(int, reversed(request.file.path.split("/")))) for request in sent]
    first_of_reads = [place for at, place in enumerate(places) if place not in places[:at]]
    assert first_of_reads == sorted(first_of_reads)


def test_the_first_answer_of_a_request_that_was_sent_twice_counts() -> None:
    queue = FetchQueue(iter([PlannedRead(0, 0, 1, lambda: needs_of("a", [[(0, 10)]]))]), 1000)
    task = queue.take(0)
    assert queue.next_job(may_send=True) is task
    queue.found(task, task.read.find())
    request = queue.next_job(may_send=True)
    assert isinstance(request, Request)
    queue.want(request)
    assert queue.next_job(may_send=False) is request
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
    assert queue.next_job(may_send=True) is task
    queue.end(0)
    queue.found(task, task.read.find())
    assert queue.next_job(may_send=True) is None
