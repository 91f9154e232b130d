"""One adapter for every form of split strategy: what it accepts, how it calls, what it refuses."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.strategies import table
from torch_table_loader import RoundRobinStrategy, TargetSizeStrategy
from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.extend import resolve_strategy
from torch_table_loader.records import DataFileInfo, RowRange, Shard, Split

GROUP = "torch_table_loader.strategies"
LAYOUT = table([[4, 6], [7], [], [1]])


def whole(files: Sequence[DataFileInfo]) -> list[Split]:
    return [Split(file) for file in files]


def dealt(files: Sequence[DataFileInfo], workers: int, ranks: int = 1, rank: int = 0) -> list[Shard]:
    mine = list(files)[rank::ranks]
    return [Shard(worker, [Split(file) for file in mine[worker::workers]]) for worker in range(workers)]


def nothing() -> list[Split]:
    raise AssertionError


class Cutting:
    def cut(self, files: Sequence[DataFileInfo]) -> list[Split]:
        return whole(files)

    @staticmethod
    def cut_static(files: Sequence[DataFileInfo]) -> list[Split]:
        return whole(files)

    def __call__(self, files: Sequence[DataFileInfo]) -> list[Split]:
        return whole(files)


def with_option(option: int, files: Sequence[DataFileInfo]) -> list[Split]:
    assert option == 3
    return whole(files)


def with_default(files: Sequence[DataFileInfo], option: int = 3) -> list[Split]:
    return with_option(option, files)


def logged(cut: Callable[..., list[Split]]) -> Callable[..., list[Split]]:
    @functools.wraps(cut)
    def inner(*args: Any, **kwargs: Any) -> list[Split]:
        return cut(*args, **kwargs)

    return inner


CUTTERS: dict[str, tuple[Any, str]] = {
    "function": (whole, "whole"),
    "lambda": (lambda table: [Split(file) for file in table], "<lambda>"),
    "callable object": (Cutting(), "Cutting"),
    "bound method": (Cutting().cut, "cut"),
    "static method": (Cutting.cut_static, "cut_static"),
    "partial": (functools.partial(with_option, 3), "with_option"),
    "partial by name": (functools.partial(with_default, option=3), "with_default"),
    "default": (with_default, "with_default"),
    "wrapped": (logged(whole), "whole"),
    "the library's own": (TargetSizeStrategy(), "TargetSizeStrategy"),
}


@pytest.mark.parametrize("kind", CUTTERS)
def test_anything_callable_with_the_files_is_a_cutter(kind: str) -> None:
    given, name = CUTTERS[kind]
    strategy = resolve_strategy(given, {})
    assert (strategy.form, strategy.name, strategy.cuts) == ("cutter", name, True)
    assert strategy.cut(LAYOUT).num_rows.sum() == LAYOUT.num_rows


class V1:
    def generate(self, files: list[DataFileInfo], num_workers: int, epoch: int) -> list[Shard]:
        assert epoch == 5
        return dealt(files, num_workers)


class V1OtherNames:
    def generate(self, f: list[DataFileInfo], n: int, e: int) -> list[Shard]:
        assert e == 5
        return dealt(f, n)


class V1Defaults:
    def generate(self, files: list[DataFileInfo], num_workers: int = 1, epoch: int = 0) -> list[Shard]:
        assert epoch == 5
        return dealt(files, num_workers)


class V1KeywordOnly:
    def generate(self, files: list[DataFileInfo], *, epoch: int, num_workers: int) -> list[Shard]:
        assert epoch == 5
        return dealt(files, num_workers)


class V1OwnOptions:
    """Two more parameters, which are not ranks."""

    def generate(
        self, files: list[DataFileInfo], num_workers: int, epoch: int, seed: int = 1, salt: int = 2
    ) -> list[Shard]:
        assert (epoch, seed, salt) == (5, 1, 2)
        return dealt(files, num_workers)


class V1Options:
    def generate(self, files: list[DataFileInfo], num_workers: int, epoch: int, **options: int) -> list[Shard]:
        assert not options
        return dealt(files, num_workers)


class V1OtherOrder:
    def generate(self, files: list[DataFileInfo], epoch: int, num_workers: int) -> list[Shard]:
        assert epoch == 5
        return dealt(files, num_workers)


class V1Instance:
    """`generate` is an attribute, not a method."""

    def __init__(self) -> None:
        self.generate = functools.partial(V1.generate, V1())


class V2:
    def generate(
        self, files: list[DataFileInfo], num_workers: int, epoch: int, num_ranks: int, rank: int
    ) -> list[Shard]:
        assert epoch == 5
        return dealt(files, num_workers, num_ranks, rank)


class V2Defaults:
    def generate(
        self, files: list[DataFileInfo], num_workers: int, epoch: int = 0, num_ranks: int = 1, rank: int = 0
    ) -> list[Shard]:
        return dealt(files, num_workers, num_ranks, rank)


class V2OtherNames:
    def generate(self, files: list[DataFileInfo], n: int, e: int, world_size: int, global_rank: int) -> list[Shard]:
        assert e == 5
        return dealt(files, n, world_size, global_rank)


class V2KeywordOnly:
    def generate(
        self, files: list[DataFileInfo], num_workers: int, epoch: int, *, rank: int, num_ranks: int
    ) -> list[Shard]:
        return dealt(files, num_workers, num_ranks, rank)


class V2Variadic:
    def generate(self, *args: Any) -> list[Shard]:
        files, workers, _, ranks, rank = args
        return dealt(files, workers, ranks, rank)


class V2Static:
    @staticmethod
    def generate(files: list[DataFileInfo], num_workers: int, epoch: int, num_ranks: int, rank: int) -> list[Shard]:
        return dealt(files, num_workers, num_ranks, rank)


class V2Lazy:
    """Yields shards, and splits from a tuple."""

    def generate(self, files: list[DataFileInfo], num_workers: int, epoch: int, num_ranks: int, rank: int) -> Any:
        for shard in dealt(files, num_workers, num_ranks, rank):
            yield SimpleNamespace(id=shard.id, splits=tuple(shard.splits))


class Both(V2):
    """`generate` takes precedence over being callable."""

    def __call__(self, files: Sequence[DataFileInfo]) -> list[Split]:
        raise AssertionError


THREE = [V1, V1OtherNames, V1Defaults, V1KeywordOnly, V1OwnOptions, V1Options, V1OtherOrder, V1Instance]
FIVE = [V2, V2Defaults, V2OtherNames, V2KeywordOnly, V2Variadic, V2Static, V2Lazy, Both, RoundRobinStrategy]


@pytest.mark.parametrize("kind", THREE)
def test_three_arguments_make_a_generator_that_every_rank_reads_whole(kind: type) -> None:
    strategy = resolve_strategy(kind(), {})
    assert (strategy.form, strategy.name, strategy.cuts) == ("generator", kind.__name__, False)
    parts = [strategy.deal(LAYOUT, 2, 5, 3, rank) for rank in range(3)]
    assert {tuple(splits.file.tolist()) for splits, _ in parts} == {(0, 2, 1, 3)}
    assert {tuple(lanes.tolist()) for _, lanes in parts} == {(0, 0, 1, 1)}
    strategy.check_coverage([splits for splits, _ in parts])


@pytest.mark.parametrize("kind", FIVE)
def test_five_arguments_make_a_generator_that_takes_ranks(kind: type) -> None:
    strategy = resolve_strategy(kind(), {})
    assert (strategy.form, strategy.name) == ("generator_with_ranks", kind.__name__)
    parts = [strategy.deal(LAYOUT, 2, 5, 3, rank) for rank in range(3)]
    assert [splits.file.tolist() for splits, _ in parts] == [[0, 3], [1], [2]]
    assert [lanes.tolist() for _, lanes in parts] == [[0, 1], [0], [0]]
    strategy.check_coverage([splits for splits, _ in parts])


class Two:
    def generate(self, files: list[DataFileInfo], num_workers: int) -> list[Shard]:
        raise AssertionError


class Four:
    def generate(self, files: list[DataFileInfo], num_workers: int, epoch: int, num_ranks: int) -> list[Shard]:
        raise AssertionError


class FourDefault:
    """Takes only half of the rank parameters: it would split the table by an unknown rank."""

    def generate(self, files: list[DataFileInfo], num_workers: int, epoch: int, num_ranks: int = 1) -> list[Shard]:
        raise AssertionError


class Six:
    def generate(self, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> list[Shard]:
        raise AssertionError


@pytest.mark.parametrize("kind", [Two, Four, FourDefault, Six])
def test_other_signatures_are_refused_and_shown_in_the_message(kind: type) -> None:
    with pytest.raises(ConfigTypeError, match=rf"generate must take .* got {kind.__name__}.generate\(.*\)"):
        resolve_strategy(kind(), {})


@pytest.mark.parametrize("kind", [V1, V2, Cutting, TargetSizeStrategy])
def test_a_class_is_refused(kind: type) -> None:
    with pytest.raises(ConfigTypeError, match=f"an instance, got the class {kind.__name__}; call it first"):
        resolve_strategy(kind, {})


@pytest.mark.parametrize("given", [7, 2.5, [whole], SimpleNamespace(generate="no method")])
def test_an_object_of_neither_form_is_refused(given: object) -> None:
    with pytest.raises(ConfigTypeError, match="must be a callable that cuts files"):
        resolve_strategy(given, {})


@pytest.mark.parametrize("given", [nothing, with_option, lambda files, *, option: []])
def test_a_callable_that_requires_more_than_the_files_is_refused(given: Any) -> None:
    with pytest.raises(ConfigTypeError, match="must take the files alone"):
        resolve_strategy(given, {})


# Names


Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return what installs a distribution with strategies of some names, in a folder on the path of this process."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def installed(distribution: str = "mine", **values: str) -> None:
        info = tmp_path / f"{distribution}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in values.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
        importlib.invalidate_caches()

    return installed


@dataclass(frozen=True)
class Sized:
    target_rows: int = 10
    seed: int = 0

    def __call__(self, files: Sequence[DataFileInfo]) -> list[Split]:
        return whole(files)


def make_sized(target_rows: int = 20, **_: int) -> Sized:
    return Sized(target_rows)


INSTANCE = V2()
HERE = "tests.laws.test_strategies_adapter"


def test_a_named_class_gets_the_arguments_that_it_accepts(install: Install) -> None:
    install(sized=f"{HERE}:Sized")
    chosen = {"target_rows": 5, "target_bytes": 99, "shuffle": "splits", "seed": 0}
    assert resolve_strategy("sized", chosen).target == Sized(5, 0)
    assert resolve_strategy("sized", {"target_rows": None}).target == Sized(10, 0)


def test_a_name_may_refer_to_a_factory_a_function_or_an_object(install: Install) -> None:
    install(factory=f"{HERE}:make_sized", cutter=f"{HERE}:whole", instance=f"{HERE}:INSTANCE")
    assert resolve_strategy("factory", {"target_rows": 7, "seed": 3}).target == Sized(7)
    assert resolve_strategy("cutter", {"target_rows": 7}).target is whole
    assert resolve_strategy("instance", {"seed": 7}).target is INSTANCE


def test_an_unknown_name_is_refused_with_the_nearest_names(install: Install) -> None:
    install(by_partition=f"{HERE}:Sized", other=f"{HERE}:Sized")
    with pytest.raises(ConfigError, match="under the name 'row_balance'; did you mean row_balanced"):
        resolve_strategy("row_balance", {})
    with pytest.raises(ConfigError, match=r"did you mean by_partition, .*other, .*row_balanced"):
        resolve_strategy("zzz", {})


@pytest.mark.parametrize("value", [f"{HERE}:Nothing", "no_such_module_anywhere:Thing"])
def test_a_name_that_does_not_load_is_refused_with_what_is_installed(install: Install, value: str) -> None:
    install(broken=value)
    with pytest.raises(ConfigError, match=f"'broken' is installed as {value} but cannot be loaded") as caught:
        resolve_strategy("broken", {})
    assert caught.value.__cause__ is not None


def test_an_ambiguous_name_is_refused(install: Install) -> None:
    same, other = f"{HERE}:Sized", f"{HERE}:V2"
    install("first", mine=same, twice=same)
    install("second", mine=other, twice=same)
    with pytest.raises(ConfigError, match=f"{same} and {other} are installed under it"):
        resolve_strategy("mine", {})
    assert resolve_strategy("twice", {}).target == Sized()


def test_the_default_is_the_target_size_strategy() -> None:
    strategy = resolve_strategy(None, {"target_rows": 9, "target_bytes": None, "shuffle": "splits", "seed": 4})
    assert strategy.target == TargetSizeStrategy(target_rows=9)


def test_built_in_strategies_are_installed_under_their_names() -> None:
    names = {point.name for point in importlib.metadata.entry_points(group=GROUP)}
    assert {"target_size", "round_robin", "size_balanced", "row_balanced"} <= names
    for name in ("target_size", "round_robin", "size_balanced", "row_balanced"):
        resolve_strategy(name, {"shuffle": "splits", "seed": 1, "target_bytes": 10, "target_rows": 10})


# Answers


def test_splits_of_another_library_work() -> None:
    class TheirFile:
        def __init__(self, path: str) -> None:
            self.path = path

    def theirs(files: Sequence[DataFileInfo]) -> tuple[SimpleNamespace, ...]:
        whole_file = [SimpleNamespace(file=TheirFile(file.path), row_range=None) for file in files[1:]]
        halves = [
            SimpleNamespace(file=TheirFile(files[0].path), row_range=SimpleNamespace(offset=start, length=5))
            for start in (0, 5)
        ]
        return (*halves, *whole_file)

    splits = resolve_strategy(theirs, {}).cut(LAYOUT)
    assert [split.row_range for split in splits] == [
        RowRange(0, 5), RowRange(5, 5), RowRange(0, 7), RowRange(0, 0), RowRange(0, 1)
    ]  # fmt: skip


ANSWERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nothing": (lambda files: None, "must return a list of splits, got NoneType"),
    "a string": (lambda files: "splits", "must return a list of splits, got str"),
    "a mapping": (lambda files: {}, "must return a list of splits, got dict"),
    "files": (list, "must return splits, got DataFileInfo"),
    "a gap": (lambda files: whole(files[1:]), r"leaves out rows \[0, 10\) of '0.parquet'"),
    "an overlap": (lambda files: [*whole(files), Split(files[1], RowRange(2, 3))], r"rows \[2, 5\) of '1.parquet'"),
    "an unknown file": (lambda files: [Split(DataFileInfo("x.parquet"))], "'x.parquet', which is not a file"),
    "too many rows": (lambda files: [Split(files[1], RowRange(0, 8))], r"rows \[0, 8\) of '1.parquet', which has 7"),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_wrong_result_of_a_cutter_is_refused_by_name(kind: str) -> None:
    def mine(files: Any) -> Any:
        return ANSWERS[kind][0](files)

    with pytest.raises(ConfigError, match=f"mine .*{ANSWERS[kind][1]}"):
        resolve_strategy(mine, {}).cut(LAYOUT)


@dataclass(frozen=True)
class Dealing:
    """Returns the given shards."""

    ids: tuple[int, ...]
    ranks: int = 1

    def generate(self, files: Any, num_workers: int, epoch: int, num_ranks: int, rank: int) -> list[Shard]:
        return [Shard(at, whole(files) if at == self.ids[0] and rank < self.ranks else []) for at in self.ids]


@pytest.mark.parametrize("ids", [(0, 0), (0, 2), (-1,), (0, 1, 2)])
def test_shards_must_have_the_ids_of_workers(ids: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=rf"each of 2 workers, with ids in \[0, 2\), got ids \[{ids[0]}"):
        resolve_strategy(Dealing(ids), {}).deal(LAYOUT, 2, 0, 1, 0)


def test_a_worker_may_get_no_shard_and_shards_come_in_any_order() -> None:
    splits, lanes = resolve_strategy(Dealing((1,)), {}).deal(LAYOUT, 2, 0, 1, 0)
    assert (len(splits), set(lanes.tolist())) == (4, {1})
    splits, lanes = resolve_strategy(Dealing((1, 0)), {}).deal(LAYOUT, 2, 0, 1, 0)
    assert (len(splits), set(lanes.tolist())) == (4, {1})


@pytest.mark.parametrize(("ranks", "fault"), [(0, "leaves out rows"), (2, "holds more than once rows")])
def test_ranks_together_must_cover_each_row_once(ranks: int, fault: str) -> None:
    strategy = resolve_strategy(Dealing((0,), ranks), {})
    parts = [strategy.deal(LAYOUT, 1, 0, 3, rank)[0] for rank in range(3)]
    with pytest.raises(ConfigError, match=rf"Dealing, over its 3 ranks, must cover .*{fault} \[0, 10\) of '0.parquet'"):
        strategy.check_coverage(parts)


def test_each_rank_of_a_three_argument_generator_must_cover_the_table() -> None:
    class Half:
        def generate(self, files: Any, num_workers: int, epoch: int) -> list[Shard]:
            return [Shard(0, whole(files[:1]))]

    strategy = resolve_strategy(Half(), {})
    with pytest.raises(ConfigError, match=r"Half must cover .* leaves out rows \[0, 7\) of '1.parquet'"):
        strategy.check_coverage([strategy.deal(LAYOUT, 1, 0, 2, rank)[0] for rank in range(2)])


class NoText:
    def __repr__(self) -> str:
        return "x" * 999


SPLIT_OF_NOTHING = SimpleNamespace(file=None, row_range=None)
SPLIT_WITHOUT_ROWS = SimpleNamespace(file=SimpleNamespace(path="0.parquet"), row_range=(0, 1))
GENERATED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "lists": (lambda files: [whole(files)], r"generate must return shards, got list \[Split\("),
    "tuples": (lambda files: [(0, whole(files))], r"generate must return shards, got tuple \(0, \["),
    "dicts": (lambda files: [{"id": 0, "splits": whole(files)}], r"generate must return shards, got dict \{'id': 0"),
    "splits": (whole, r"generate must return shards, got Split Split\("),
    "None in a list": (lambda files: [None], "generate must return shards, got NoneType None; a shard is Shard"),
    "long objects": (lambda files: [NoText()], "generate must return shards, got NoText x{60}…; a shard"),
    "a table of splits": (
        lambda files: resolve_strategy(whole, {}).cut(LAYOUT),
        "generate must return shards, got Split ",
    ),
    "a mapping": (lambda files: {0: whole(files)}, "generate must return a list of shards, got dict"),
    "a number": (lambda files: 3, "generate must return a list of shards, got int"),
    "one shard": (lambda files: Shard(0, whole(files)), "generate must return a list of shards, got Shard"),
    "ids of text": (lambda files: [Shard("0", whole(files))], "the id of a shard of .*generate must be an integer"),  # type: ignore[arg-type]  # the test
    "ids of lists": (lambda files: [Shard([], whole(files))], "the id of a shard of .*generate must be an integer"),  # type: ignore[arg-type]  # the test
    "no id": (lambda files: [Shard(None, whole(files))], "the id of a shard of .*generate must be an integer"),  # type: ignore[arg-type]  # the test
    "no splits": (lambda files: [Shard(0, None)], "must return a list of splits in shard 0, got NoneType"),  # type: ignore[arg-type]  # the test
    "splits by name": (lambda files: [Shard(0, {"a": 1})], "must return a list of splits in shard 0, got dict"),  # type: ignore[arg-type]  # the test
    "lists of lists": (lambda files: [Shard(0, [whole(files)])], r"must return splits, got list \["),  # type: ignore[list-item]  # the test
    "files": (lambda files: [Shard(0, list(files))], "must return splits, got DataFileInfo"),
    "paths": (lambda files: [Shard(0, ["0.parquet"])], "must return splits, got str '0.parquet'; a split has file"),  # type: ignore[list-item]  # the test
    "split of no file": (lambda files: [Shard(0, [SPLIT_OF_NOTHING])], "must return splits, got SimpleNamespace"),  # type: ignore[list-item]  # the test
    "a row range of two": (lambda files: [Shard(0, [SPLIT_WITHOUT_ROWS])], "must return splits, got SimpleNames"),  # type: ignore[list-item]  # the test
    "a shard twice": (lambda files: [Shard(0, whole(files))] * 2, "at most one shard for each of 1 workers"),
    "a split twice": (
        lambda files: [Shard(0, whole(files) * 2)],
        r"holds more than once rows \[0, 10\) of '0.parquet'",
    ),
    "nothing": (lambda files: iter(()), r"leaves out rows \[0, 10\) of '0.parquet'"),
}


@pytest.mark.parametrize("kind", GENERATED)
def test_a_wrong_result_of_a_generator_is_refused_by_name(kind: str) -> None:
    class Mine:
        def generate(self, files: Any, num_workers: int, epoch: int) -> Any:
            return GENERATED[kind][0](files)

    strategy = resolve_strategy(Mine(), {})
    with pytest.raises(ConfigError, match=f"(?=.*Mine).*{GENERATED[kind][1]}"):
        strategy.check_coverage([strategy.deal(LAYOUT, 1, 0, 1, 0)[0]])


def test_shards_may_be_yielded() -> None:
    class Yielding:
        def generate(self, files: Any, num_workers: int, epoch: int) -> Any:
            yield Shard(0, (split for split in whole(files)))  # type: ignore[arg-type]  # the test

    splits, lanes = resolve_strategy(Yielding(), {}).deal(LAYOUT, 1, 0, 1, 0)
    assert (len(splits), lanes.tolist()) == (4, [0] * 4)


def test_shards_without_a_list_are_refused() -> None:
    class Silent:
        def generate(self, files: Any, num_workers: int, epoch: int) -> None:
            return None

    with pytest.raises(ConfigTypeError, match=r"Silent\.generate must return a list of shards, got NoneType"):
        resolve_strategy(Silent(), {}).deal(LAYOUT, 1, 0, 1, 0)
