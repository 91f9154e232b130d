"""Ranks that plan at different moments could see different tables: they compare notes once, at construction."""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias

import numpy as np

from torch_table_loader.engine.calls import Call, SameCall, place, running
from torch_table_loader.errors import ConfigError, StorageTimeoutError, TableError, TableLoaderError
from torch_table_loader.messages import warn_caller
from torch_table_loader.planning.exclusion import decode_ids, encode_ids
from torch_table_loader.records import DataFile
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.stages import Position

    IdsBySource: TypeAlias = dict[str, NDArray[np.int64]]

TIMEOUT = timedelta(minutes=5)
"""How long a rank waits for another to say what it saw, where the caller gave the process group no timeout."""

FIRST_LOOK, LAST_LOOK = timedelta(seconds=0.25), timedelta(seconds=2)
"""How long a rank that waits does so before it looks whether another has failed: twice as long each time."""

AGREED = "agreed"

_constructed, _joining = itertools.count(), itertools.count()

_CONSTRUCT = (
    "every rank must construct its loaders, and in the same order (check_plan=False switches the comparison off)"
)
_JOIN = "every rank must make this call, also those that have no rows to name"


class PlanCheck:
    """The process group's key-value store, where there is one; each loader uses keys of its own.

    Loaders must be constructed in the same order on every rank, as collectives are. A rank that leaves the block with
    an error makes the others leave it.
    """

    def __init__(
        self, rank: int, num_ranks: int, *, check: bool, pinned: bool, timeout: timedelta | None = None
    ) -> None:
        """Look for a process group.

        Args:
            rank: this rank, among those that read different rows.
            pinned: whether the caller named the files or the snapshot.
            timeout: how long to wait for another rank; None for the process group's own.
        """
        self._rank = self._part = rank
        self._num_ranks = num_ranks
        self._timeout = timeout or TIMEOUT
        self._store: Any = None
        self._call: Call | None = running.get()
        self._same: SameCall | None = None
        """What ranks say of this call, until this one has compared its plan or begun to read."""
        self._begun: Counter[tuple[int, str]] = Counter()
        self._unsettled: deque[str] = deque(maxlen=8)
        """The newest comparisons of where epochs begin whose results were not read yet."""
        self._lines: set[str] = set()
        """Hashes of the lines by which an epoch began."""
        self._continued = 0
        self._unions: Any = None
        """Where ranks join row ids; a loader that compares nothing has keys of its own for it."""
        self._joined = 0
        group = _process_group(max(num_ranks, 2))
        if group is not None:
            self._timeout = timeout or _timeout_of(group)
            if self._call is not None:
                self._same = _same_call(group, self._call, num_ranks)
        if not check or num_ranks == 1:
            self._say_that_it_compares_nothing(group)
        elif group is not None:
            self._rank = group.get_rank()
            self._store = _store_of(group, str(next(_constructed)))
            if self._same is not None:
                self._same.compares()
        elif not pinned:
            warn_caller(
                f"{num_ranks} ranks list the table on their own, and there is no process group through which they "
                "could compare what they saw; pass files= (or snapshot_id= or version=), or construct the loader after "
                "init_process_group"
            )

    @property
    def compares(self) -> bool:
        """Whether there are ranks with which this one compares what it plans."""
        return self._store is not None

    def __enter__(self) -> Self:
        """Begin to plan."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Make the other ranks raise an error of this one."""
        if self._store is not None:
            if error is not None:
                _refuse_for_all(self._store, self._rank, error)
            if self._call is not None:
                self._call.is_over = True

    def _say_that_it_compares_nothing(self, group: Any) -> None:
        """Tell ranks that wait for this one that it does not come, and raise if there are some already."""
        if self._same is None:
            return
        asked, remedy = (
            ("check_plan=False", "pass the same check_plan= on every rank")
            if self._num_ranks > 1
            else ("num_ranks=1", 'pass num_ranks="auto" on every rank')
        )
        self._same.does_not(
            f"rank {group.get_rank()} made its loader with {asked}, where other ranks compare theirs; {remedy}"
        )
        self.raise_if_others_wait()

    def raise_if_others_wait(self) -> None:
        """Look whether other ranks compare the loader that this one compares with none.

        Raises:
            TableError: they do.
        """
        if self._store is None and self._same is not None and (told := self._same.unlike()) is not None:
            raise TableError(told)

    def common_files(self, files: Sequence[DataFile]) -> tuple[DataFile, ...]:
        """Return the files that rank 0 saw.

        Raises:
            TableError: rank 0 saw a file that is not here; on the other ranks `check` raises it.
        """
        if self._store is None:
            return tuple(files)
        names = self._from_rank_0("files", json.dumps([file.name for file in files]))
        here = {file.name: file for file in files}
        wanted: list[str] = json.loads(names)
        if missing := [name for name in wanted if name not in here]:
            self._refuse(
                f"rank 0 found {len(wanted)} files, of which rank {self._rank} misses {missing[0]!r} and "
                f"{len(missing) - 1} more; check that all ranks read the same place"
            )
        return tuple(here[name] for name in wanted)

    def common_value(self, name: str, value: Any) -> Any:
        """Return what rank 0 saw, such as the id of the current snapshot."""
        if self._store is None:
            return value
        return json.loads(self._from_rank_0(name, json.dumps(value)))

    def check(self, plan: Mapping[str, Any]) -> None:
        """Compare the plan with rank 0's, and wait until every rank has done so.

        Raises:
            TableError: on every rank, where the plan of any differs; names what.
            StorageTimeoutError: a rank did not come.
        """
        if self._store is None:
            return
        own = {name: digest_of(value) for name, value in plan.items()}
        theirs = json.loads(self._from_rank_0("plan", json.dumps(own)))
        differing = sorted(name for name in own.keys() | theirs.keys() if own.get(name) != theirs.get(name))
        if differing:
            shown = ", ".join(f"{name} (there {plan.get(name)!r})" for name in differing)
            self._refuse(
                f"rank {self._rank} plans another epoch than rank 0: they differ in {shown}; give every rank the same "
                "table and options"
            )
        # Ranks of one tensor-parallel group have one part: the first of them counts for it.
        if self._store.add(f"compared/{self._part}", 1) == 1 and self._store.add("compared", 1) == self._num_ranks:
            self._store.compare_set("verdict", "", AGREED)  # unless one has refused
        everyone = f"all {self._num_ranks} ranks to compare what they plan"
        verdict = self._awaited(self._store, "verdict", everyone, _CONSTRUCT, refused=self._raise_if_one_is_unlike)
        if verdict != AGREED:
            raise TableError(verdict)

    def _raise_if_one_failed(self) -> None:
        """Look whether a rank has failed, or compares nothing."""
        if self._store.check(["verdict"]) and (told := str(self._store.get("verdict"), "utf-8")) != AGREED:
            raise TableError(told)  # ranks of one part may have agreed on what this one is about to read
        self._raise_if_one_is_unlike()

    def _raise_if_one_is_unlike(self) -> None:
        if self._same is not None and (told := self._same.unlike()) is not None:
            self._refuse(told)

    def _refuse(self, message: str) -> NoReturn:
        """Raise on this rank, and let the others do so."""
        self._store.set("verdict", message)
        raise TableError(message)

    def check_begin(self, epoch: int, exclusions: Mapping[str, str], start: Mapping[str, Any] | None) -> None:
        """Compare where and with which exclusions an epoch begins, and wait a while for ranks that come later.

        A rank that has waited `Sizes.exclusions_s` continues; it raises for a difference when it begins its next epoch.

        Args:
            exclusions: hashes of every earlier exclusion and inclusion, by source; a single table has the name "".
            start: what tells where a state or the caller has put this rank, by name; None: at the start of an epoch.

        Raises:
            TableError: on every rank, where one excludes other rows or continues elsewhere than another.
        """
        if self._store is None:
            return
        self._raise_what_is_settled()
        awaited = self._check_start(epoch, start)
        if exclusions:
            awaited.append(self._check_exclusions(epoch, exclusions))
        end = time.monotonic() + sizes().exclusions_s
        for key in awaited:
            while key in self._unsettled and (left := end - time.monotonic()) > 0:
                with suppress(RuntimeError):  # what torch raises where the time is over
                    self._store.wait([f"{key}/verdict"], min(_to_wait(left), FIRST_LOOK))
                self._raise_what_is_settled()

    def _check_start(self, epoch: int, start: Mapping[str, Any] | None) -> list[str]:
        """Compare where this rank begins with others that begin by the same line, or continue as often.

        Returns:
            What is to be settled before the epoch begins.
        """
        line, own, keys = place(), dict(start or {}), []
        if line not in self._lines:
            self._lines.add(line)
            keys.append(f"begun/{line}")
        if start is not None:
            self._continued += 1
            keys.append(f"continued/{self._continued}")
        for key in keys:
            theirs = json.loads(self._first_said(key, json.dumps(own)))
            if differing := sorted(name for name in own.keys() | theirs.keys() if own.get(name) != theirs.get(name)):
                here, there = (_where(each, epoch) for each in (own, theirs))
                self._refuse_begin(
                    key,
                    f"rank {self._rank} continues from another state than the rank that began first: they differ in "
                    f"{', '.join(differing)} ({here} here, {there} there); load the same state on every rank",
                )
            self._agree(key)
        if start is None:
            return []
        return keys[-1:]

    def _check_exclusions(self, epoch: int, digests: Mapping[str, str]) -> str:
        self._begun[epoch, "exclusions"] += 1
        key = f"exclusions/{epoch}/{self._begun[epoch, 'exclusions']}"
        theirs = json.loads(self._first_said(key, json.dumps(digests)))
        differing = sorted(name for name in digests.keys() | theirs.keys() if digests.get(name) != theirs.get(name))
        if differing:
            name = differing[0]
            rows = f"rows of source {name!r}" if name else "rows"
            self._refuse_begin(
                key,
                f"rank {self._rank} leaves other {rows} out of epoch {epoch} than the rank that began it first (hash "
                f"{digests.get(name, '')[:8]} here, {theirs.get(name, '')[:8]} there); call exclude() and include() on "
                "every rank, with the same ids, in the same order, before the epoch begins",
            )
        self._agree(key)
        return key

    def _refuse_begin(self, key: str, message: str) -> NoReturn:
        """Raise on this rank, and let those do so that settle what was said under a key."""
        self._store.compare_set(f"{key}/verdict", "", message)
        raise TableError(message)

    def _agree(self, key: str) -> None:
        """Count this rank among those that said the same under a key, which is to be settled."""
        if self._store.add(f"{key}/{self._part}", 1) == 1 and self._store.add(f"{key}/ranks", 1) == self._num_ranks:
            self._store.compare_set(f"{key}/verdict", "", AGREED)  # unless one has refused
        self._unsettled.append(key)

    def _raise_what_is_settled(self) -> None:
        """Look whether ranks differed in what they said of a beginning, here or elsewhere."""
        for key in tuple(self._unsettled):
            if self._store.check([f"{key}/verdict"]):
                self._unsettled.remove(key)
                if (told := str(self._store.get(f"{key}/verdict"), "utf-8")) != AGREED:
                    raise TableError(told)

    def check_asked(self, position: Position, *, begins: bool) -> None:
        """Compare what the caller asked for with the rank that was the first to say it there, without waiting.

        Args:
            position: from where on it holds.
            begins: whether an iterator gives its first batch; else something else was asked for.

        Raises:
            TableError: that rank was asked for something else.
        """
        if self._store is None or (asked := position.asked) is None:
            return
        epoch = position.epoch
        self._begun[epoch, "asked"] += begins
        own = json.dumps(asked.value, sort_keys=True)
        theirs = self._first_said(f"asked/{epoch}/{self._begun[epoch, 'asked']}/{asked.sample}", own)
        if theirs != own:
            raise TableError(
                f"rank {self._rank} {asked.does} {json.loads(own)} from sample {asked.sample} of epoch {epoch} on, and "
                f"the rank that was first by {json.loads(theirs)}; {asked.remedy}"
            )

    def union(self, own: Callable[[], IdsBySource]) -> IdsBySource:
        """Return the row ids that any rank of the process group gives, by source; every rank must call it.

        Returns:
            For each source that a rank names: int64[n], sorted, each once.

        Raises:
            ConfigError: there are other ranks and no process group, or another rank's ids are wrong. What `own` raises
                is raised on, once the other ranks know.
            StorageTimeoutError: a rank did not come.
        """
        group = _process_group(self._num_ranks)
        if group is None:
            if self._num_ranks == 1:
                return own()
            raise ConfigError(
                f"gather=True joins the rows of {self._num_ranks} ranks, but no process group has that many; call "
                "init_process_group before, or exclude the same rows on every rank"
            )
        if self._unions is None:
            self._unions = self._store or _store_of(group, f"joined/{next(_joining)}")
        self._rank = group.get_rank()
        self._joined += 1
        result = f"joined/{self._joined}"
        place = f"{result}/{self._rank}" if self._rank else result
        try:
            ids = own()
        except Exception as error:
            cause = f": {error}" if isinstance(error, TableLoaderError) else ""  # another's may hold a secret
            refused = f"rank {self._rank} could not name its rows: {type(error).__name__}{cause}"
            self._unions.set(place, json.dumps({"refused": refused}))
            raise
        try:
            if self._rank == 0:
                answer = self._join(result, ids, group.get_world_size())
            else:
                self._unions.set(place, _packed(ids))
                answer = self._awaited(self._unions, result, "rank 0 to join the rows of all ranks", _JOIN)
        except StorageTimeoutError as error:
            answer = json.dumps({"missing": str(error)})
        else:
            if self._rank:
                return _unpacked(answer)
        # One result for all: whoever gives up first makes the others give up too, also those that come later.
        return _unpacked(str(self._unions.compare_set(result, "", answer), "utf-8"))

    def _join(self, result: str, ids: IdsBySource, ranks: int) -> str:
        """Join what the other ranks give with rank 0's ids, overwrite what was read, and return the answer for all.

        Raises:
            StorageTimeoutError: a rank did not come.
        """
        parts, end = [ids], time.monotonic() + self._timeout.total_seconds()
        for rank in range(1, ranks):
            answer = self._awaited(self._unions, f"{result}/{rank}", f"rank {rank} to name its rows", _JOIN, end=end)
            try:
                parts.append(_unpacked(answer))
            except ConfigError:
                return answer
            self._unions.set(f"{result}/{rank}", "")
        if self._joined > 1:  # every rank has read that result: it has come to this one since
            self._unions.set(f"joined/{self._joined - 1}", "")
        names = {name: None for part in parts for name in part}
        return _packed(
            {name: np.unique(np.concatenate([part[name] for part in parts if name in part])) for name in names}
        )

    def _first_said(self, key: str, value: str) -> str:
        """Return the value of the rank that was first; without a process group, this one."""
        if self._store is None:
            return value
        return str(self._store.compare_set(key, "", value), "utf-8")

    def __getstate__(self) -> dict[str, Any]:
        """Leave the store out: another process does not compare."""
        return {**vars(self), "_store": None, "_unions": None, "_same": None, "_call": None}

    def _from_rank_0(self, key: str, value: str) -> str:
        if self._rank == 0:
            self._store.set(key, value)
            return value
        what = "rank 0 to say what it plans"
        return self._awaited(self._store, key, what, _CONSTRUCT, refused=self._raise_if_one_failed)

    def _awaited(
        self,
        store: Any,
        key: str,
        what: str,
        remedy: str,
        *,
        refused: Callable[[], None] | None = None,
        end: float | None = None,
    ) -> str:
        """Return what another rank says.

        Args:
            what: what is awaited, for the message.
            refused: raises if the answer will not come.
            end: when waiting ends, by the monotonic clock; None after the timeout.

        Raises:
            TableError: a rank has failed.
            StorageTimeoutError: no rank answered in time.
        """
        end, look = time.monotonic() + self._timeout.total_seconds() if end is None else end, FIRST_LOOK
        while True:
            if refused is not None and not store.check([key]):
                refused()
            left = _to_wait(end - time.monotonic())
            with suppress(RuntimeError):  # what torch raises after the time; where the store is gone, so does check()
                store.wait([key], min(look, left))
            if store.check([key]):
                return str(store.get(key), "utf-8")
            if look >= left:
                raise StorageTimeoutError(f"rank {self._rank} waited {self._timeout} for {what}; {remedy}")
            look = min(2 * look, LAST_LOOK)


def refuse_call(call: Call, error: BaseException, *, compared: bool) -> None:
    """Tell the other ranks that this one was refused the loader of a call before it could compare a plan.

    Args:
        compared: whether the other ranks compare that loader, as far as this rank can know: then it counts as one.
    """
    group = _process_group(2)
    if group is None:
        return
    rank = group.get_rank()
    if compared:
        _refuse_for_all(_store_of(group, str(next(_constructed))), rank, error)
        call.is_over = True
    _same_call(group, call, 1).does_not(_failure(rank, error))


def _refuse_for_all(store: Any, rank: int, error: BaseException) -> None:
    with suppress(RuntimeError):  # where the store is gone: the others find that out, and this error matters more
        store.compare_set("verdict", "", _failure(rank, error))  # unless another rank was first


def _failure(rank: int, error: BaseException) -> str:
    cause = f": {error}" if isinstance(error, TableLoaderError) else ""  # another's may hold a secret
    return f"rank {rank} could not make its loader: {type(error).__name__}{cause}"


def _same_call(distributed: Any, call: Call, num_ranks: int) -> SameCall:
    store = _store_of(distributed, f"call/{call.key()}")
    return SameCall(store, num_ranks, distributed.get_world_size())


def _to_wait(seconds: float) -> timedelta:
    """Return how long a store of torch waits: it counts whole milliseconds, and takes 0 for no limit."""
    return timedelta(seconds=max(0.001, seconds))


def _timeout_of(distributed: Any) -> timedelta:
    """Return the process group's timeout, if it is not torch's own of half an hour; else `TIMEOUT`."""
    try:
        cpu = distributed.distributed_c10d._get_default_group()._get_backend(sys.modules["torch"].device("cpu"))
        timeout = cpu.options._timeout
    except (AttributeError, RuntimeError, ValueError):  # a group without a backend for the CPU, such as NCCL's
        timeout = distributed.distributed_c10d._get_default_store().timeout
    usual = (distributed.constants.default_pg_timeout, distributed.constants.default_pg_nccl_timeout)
    return TIMEOUT if timeout in usual else timeout


def _process_group(num_ranks: int) -> Any:
    """Return `torch.distributed` where a process group of at least so many ranks runs; else None."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if distributed.get_world_size() >= num_ranks:
        return distributed
    return None


def _store_of(distributed: Any, name: str) -> Any:
    """Return the process group's key-value store, under keys of one's own."""
    base = distributed.distributed_c10d._get_default_store()
    return distributed.PrefixStore(f"torch_table_loader/{name}", base)


def _where(start: Mapping[str, Any], epoch: int) -> str:
    """Return where a rank begins, for a message."""
    if not start:
        return f"the start of epoch {epoch}"
    return f"epoch {start['epoch']} after {start['steps']} steps"


def _packed(ids: IdsBySource) -> str:
    return json.dumps({"ids": {name: encode_ids(own) for name, own in ids.items()}})


def _unpacked(text: str) -> IdsBySource:
    """Read what a rank answered: ids, or why there are none."""
    answer = json.loads(text)
    if "refused" in answer:
        raise ConfigError(answer["refused"])
    if "missing" in answer:
        raise StorageTimeoutError(answer["missing"])
    return {name: decode_ids(own) for name, own in answer["ids"].items()}


def digest_of(value: Any) -> str:
    """Return a hash of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
