"""How busy an epoch keeps a line, without a clock: the real plan, queue and limit of a job, on a simulated line.

    python -m bench.line FOLDER

No machine's speed is in it but `seconds_a_row`, which the consumer takes for each row. With 0, what is left of the line
is what requests, their order and their budget cost; with more, also what is decoded after the last byte has come.
"""

from __future__ import annotations

import argparse
import heapq
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count
from pathlib import Path

from torch_table_loader import StructuredDataset
from torch_table_loader.engine.jobs.stream_job import StreamJob
from torch_table_loader.engine.sizing import reads_ahead
from torch_table_loader.engine.work.stream_work import StreamWork
from torch_table_loader.far.fetch_queue import FetchQueue, Request, Requests, Stage, Task
from torch_table_loader.far.limit import Flight, InFlightLimit
from torch_table_loader.ranges import PlannedRead, in_order
from torch_table_loader.records import FileNeeds

MB = 1e6
CONSUMERS = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Seconds of the consumer for an epoch's rows."""


@dataclass(frozen=True, slots=True)
class Line:
    """Args: seconds to the first byte, bytes a second of all connections and of each, and bytes fetched ahead."""

    latency: float = 0.04
    together: float = 125 * MB
    each: float = 90 * MB
    ahead_bytes: int = 128 << 20


@dataclass(frozen=True, slots=True)
class Ran:
    """What happened.

    Args:
        seconds: until the last row was taken.
        last_byte: the second at which the last byte had come.
        idle: seconds in which no byte came.
        num_bytes: that came.
    """

    seconds: float
    last_byte: float
    idle: float
    num_bytes: int

    def share(self, line: Line) -> float:
        """Return the share of the line that was used until the last row."""
        return self.num_bytes / line.together / self.seconds


def plan_of(job: StreamJob, epoch: int = 0) -> list[PlannedRead]:
    """Return the reads of a rank's epoch, in the order in which they are fetched."""
    work = job.work(job.start(epoch))
    assert isinstance(work, StreamWork)  # noqa: S101 what a plain job has
    plans = work._plans(dict.fromkeys(range(work.lanes), 0), joins=work.joins_tails(0))
    return list(in_order(plans))


def scaled(plan: Sequence[PlannedRead], times: int) -> list[PlannedRead]:
    """Return the reads of a table whose files have so many times the bytes."""

    def find(of: Callable[[], FileNeeds | None]) -> FileNeeds | None:
        needs = of()
        if needs is None:
            return None
        version = replace(needs.file.version, num_bytes=needs.file.version.num_bytes * times)
        groups = tuple(tuple((start * times, stop * times) for start, stop in group) for group in needs.groups)
        return FileNeeds(replace(needs.file, version=version), groups, needs.numbers)

    return [read._replace(find=partial(find, read.find)) for read in plan]


@dataclass
class Simulation:
    """A consumer that takes rows in their order, threads that decode whole splits, and the line.

    Args:
        plan: in the order of the first rows of its reads.
        seconds_a_row: of the consumer.
        threads: that decode side by side.
        whole: whether a read is decoded at once, and makes room then; else it does so when its rows are taken.
    """

    plan: Sequence[PlannedRead]
    line: Line = field(default_factory=Line)
    seconds_a_row: float = 0.0
    threads: int = 2
    whole: bool = True

    def __post_init__(self) -> None:
        """Start with nothing in flight."""
        self.queue, self.limit = FetchQueue(iter(self.plan), self.line.ahead_bytes), InFlightLimit()
        self.numbers = count()
        self.latent: list[tuple[float, int, Request, Flight | None]] = []
        self.moving: list[tuple[float, int, Request, Flight | None]] = []
        self.now = self.moved = self.row = self.idle = 0.0
        self.rows = max(read.rows_before + read.rows for read in self.plan)
        self.begun, self.decoded = 0, set[int]()
        self.busy, self.held = dict[int, Task](), dict[int, Task]()

    def run(self) -> Ran:
        """Run an epoch."""
        last_byte, num_bytes = 0.0, 0
        while self.row < self.rows or self.moving or self.latent:
            self._read()
            request = self._step()
            if request is not None:
                last_byte, num_bytes = self.now, num_bytes + request.num_bytes
        return Ran(self.now, last_byte, self.idle, num_bytes)

    def _step(self) -> Request | None:
        """Go on to what happens next; return the request whose bytes have come, if that is it."""
        rate = min(self.line.each, self.line.together / max(1, len(self.moving)))
        comes = self.now + (self.moving[0][0] - self.moved) / rate if self.moving else math.inf
        begins = self.latent[0][0] if self.latent else math.inf
        goal = self._reachable()
        takes = self.now + (goal - self.row) * self.seconds_a_row if goal > self.row else math.inf
        then = max(self.now, min(comes, begins, takes))
        assert then < math.inf, "the consumer waits for bytes that nobody asked for"  # noqa: S101
        if self.moving:
            self.moved += (then - self.now) * rate
        else:
            self.idle += then - self.now
        if takes <= then:
            self.row, self.now = goal, then
            return None
        if takes < math.inf:
            self.row += (then - self.now) / self.seconds_a_row
        self.now = then
        if begins <= then:
            _, number, request, flight = heapq.heappop(self.latent)
            heapq.heappush(self.moving, (self.moved + request.num_bytes, number, request, flight))
            return None
        _, _, request, flight = heapq.heappop(self.moving)
        if flight is not None:
            self.limit.ended(flight, self.now)
        self.queue.arrived(request, b"", None)
        return request

    def _reachable(self) -> float:
        """Return the row up to which the consumer can go before another read begins, or must be decoded."""
        return min(
            (
                read.rows_before
                for number, read in enumerate(self.plan)
                if read.rows_before > self.row or number not in self.decoded
            ),
            default=self.rows,
        )

    def _read(self) -> None:
        """Let threads begin reads, decode those whose bytes are here, and send what may be sent."""
        needed = max(number for number, read in enumerate(self.plan) if read.rows_before <= self.row)
        most = min(len(self.plan), needed + 1 + reads_ahead(self.threads))
        while True:
            self._decode()
            while self.begun < most and len(self.busy) < self.threads:
                self.busy[self.begun] = task = self.queue.take(self.plan[self.begun].lane)
                self.queue.want(task)
                self.begun += 1
            for request in chain.from_iterable(map(_requests, self.busy.values())):
                if request.stage is Stage.QUEUED:
                    self.queue.want(request)
            self._send()
            if not any(map(_is_here, self.busy.values())):
                return

    def _decode(self) -> None:
        """Decode what is here, and make room."""
        for number in [number for number, task in self.busy.items() if _is_here(task)]:
            self.decoded.add(number)
            self.held[number] = self.busy.pop(number)
        for number, task in list(self.held.items()):
            read = self.plan[number]
            if task.requests is not None and (self.whole or read.rows_before + read.rows <= self.row):
                self.queue.drop(task.requests.rest())
                del self.held[number]

    def _send(self) -> None:
        flights: list[Flight] = []

        def may_send(request: Request) -> bool:
            flight = self.limit.begin(request.num_bytes, self.now)
            if flight is not None:
                flights.append(flight)
            return flight is not None

        while (job := self.queue.next_job(may_send)) is not None:
            if isinstance(job, Task):
                needs = job.read.find()
                self.queue.found(job, None if needs is None else Requests(needs, None))  # type: ignore[arg-type]
            else:
                flight = flights.pop() if flights else None
                heapq.heappush(self.latent, (self.now + self.line.latency, next(self.numbers), job, flight))


def _is_here(task: Task) -> bool:
    return task.found and all(request.stage is Stage.DONE for request in _requests(task))


def _requests(task: Task) -> list[Request]:
    return [] if task.requests is None else list(chain.from_iterable(task.requests.by_piece))


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--latency", type=float, default=40, help="milliseconds")
    parser.add_argument("--together", type=float, default=125, help="MB/s")
    options = parser.parse_args(argv)
    line = Line(latency=options.latency / 1000, together=options.together * MB)
    loader, dataset = StructuredDataset.create_dataloader(options.folder, batch_size=8192, num_workers=2, shuffle=True)
    with loader:
        job = dataset.job
        assert isinstance(job, StreamJob)  # noqa: S101 what shuffle=True makes
        plan, whole = plan_of(job), job.work(job.start(0)).read_rows >= job.table.layout.group_rows.max()
    for seconds in CONSUMERS:
        each = seconds / max(read.rows_before + read.rows for read in plan)
        ran = Simulation(plan, line, each, whole=whole).run()
        sys.stdout.write(
            f"a consumer of {seconds:.1f} s an epoch: {ran.seconds:.2f} s, {ran.share(line):.3f} of the line; "
            f"the last byte came at {ran.last_byte:.2f} s, none for {ran.idle:.2f} s\n"
        )


if __name__ == "__main__":
    main()
