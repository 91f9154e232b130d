"""The rank of this process: from the caller, a mesh, or the launcher, in that order."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from torch_table_loader import ConfigError, LoaderOptions, MixedDataset, StructuredDataset
from torch_table_loader.engine.rank_info import DATA_PARALLEL_DIMS, warn_of_a_whole_table

RAY_V1, RAY_V2 = "ray.train._internal.session", "ray.train.v2._internal.execution.train_fn_utils"
ROWS = pa.table({"x": range(16)})
SAYERS = ["accelerate.state", "horovod.torch", "ray.train", RAY_V1, RAY_V2]


@pytest.fixture(autouse=True)
def nobody_runs_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove this machine's own information about ranks."""
    for name in ("RANK", "WORLD_SIZE", "HOROVOD_RANK", "HOROVOD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name in SAYERS:
        monkeypatch.delitem(sys.modules, name, raising=False)


class FakeMesh:
    """What is needed of a DeviceMesh."""

    def __init__(self, sizes: Mapping[str, int] | tuple[int, ...], coordinate: list[int] | None) -> None:
        self.mesh_dim_names = tuple(sizes) if isinstance(sizes, Mapping) else None
        self._sizes = list(sizes.values()) if isinstance(sizes, Mapping) else list(sizes)
        self._coordinate = coordinate
        self.ndim = len(self._sizes)

    def size(self, dim: int) -> int:
        return self._sizes[dim]

    def get_coordinate(self) -> list[int] | None:
        return self._coordinate


def resolve(**options: Any) -> tuple[int, int]:
    plan = StructuredDataset(source=ROWS, even_ranks="balance", check_plan=False, **options).explain()
    return plan.rank, plan.num_ranks


def set_environment(monkeypatch: pytest.MonkeyPatch, **values: object) -> None:
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))


def module(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    found = ModuleType(name)
    vars(found).update(members)
    monkeypatch.setitem(sys.modules, name, found)


def run_horovod(monkeypatch: pytest.MonkeyPatch, rank: int, size: int, *, initialised: bool = True) -> None:
    module(monkeypatch, "horovod.torch", is_initialized=lambda: initialised, rank=lambda: rank, size=lambda: size)


def run_ray(
    monkeypatch: pytest.MonkeyPatch, rank: int, size: int, *, in_session: bool = True, version: int = 2
) -> None:
    """Run Ray Train: both engines are imported, and one of them may have made this process a worker."""
    context = SimpleNamespace(get_world_rank=lambda: rank, get_world_size=lambda: size)
    module(monkeypatch, "ray.train", get_context=lambda: context)
    module(monkeypatch, RAY_V1, get_session=lambda: object() if in_session and version == 1 else None)
    module(monkeypatch, RAY_V2, _train_fn_utils=object() if in_session and version == 2 else None)


def run_accelerate(monkeypatch: pytest.MonkeyPatch, rank: int, size: int, mesh: Any = None) -> None:
    shared = {"num_processes": size, "process_index": rank}
    module(
        monkeypatch,
        "accelerate.state",
        AcceleratorState=SimpleNamespace(_shared_state=shared | {"device_mesh": mesh}),
        PartialState=SimpleNamespace(_shared_state=shared),
    )


@pytest.fixture
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run a process group of one."""
    store = torch._C._distributed_c10d.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_default_is_rank_0_of_1() -> None:
    assert resolve() == (0, 1)
    assert resolve(num_ranks=1, rank=0) == (0, 1)


@pytest.mark.parametrize("rank", [0, 3])
def test_explicit_numbers_take_precedence(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, RANK=1, WORLD_SIZE=2)
    assert resolve(num_ranks=4, rank=rank) == (rank, 4)


def test_several_ranks_require_a_rank() -> None:
    with pytest.raises(ConfigError, match=r"num_ranks=4 needs rank= in \[0, 4\); pass dist.get_rank\(\)"):
        resolve(num_ranks=4)


def test_auto_without_anything_is_one_rank() -> None:
    assert resolve(num_ranks="auto") == (0, 1)


@pytest.mark.parametrize(("rank", "size"), [("RANK", "WORLD_SIZE"), ("HOROVOD_RANK", "HOROVOD_SIZE")])
def test_auto_reads_the_environment(rank: str, size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, **{rank: 2, size: 5})
    assert resolve(num_ranks="auto") == (2, 5)


@pytest.mark.parametrize("only", ["RANK", "WORLD_SIZE"])
def test_an_incomplete_environment_is_ignored(only: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, **{only: 3})
    assert resolve(num_ranks="auto") == (0, 1)


@pytest.mark.parametrize(
    ("rank", "size", "said"),
    [
        ("one", "2", "RANK and WORLD_SIZE must be ints, got 'one' and '2'"),
        ("2", "2", r"RANK must be in \[0, WORLD_SIZE"),
    ],
)
def test_an_inconsistent_environment_is_refused(
    rank: str, size: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch, RANK=rank, WORLD_SIZE=size)
    with pytest.raises(ConfigError, match=said):
        resolve(num_ranks="auto")


@pytest.mark.parametrize("version", [1, 2])
def test_auto_asks_horovod_and_ray_only_if_they_run(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run_horovod(monkeypatch, 3, 8, initialised=False)
    run_ray(monkeypatch, 2, 4, in_session=False)
    assert resolve(num_ranks="auto") == (0, 1)
    run_ray(monkeypatch, 2, 4, version=version)
    assert resolve(num_ranks="auto") == (2, 4)
    monkeypatch.delitem(sys.modules, "ray.train")
    run_horovod(monkeypatch, 3, 8)
    assert resolve(num_ranks="auto") == (3, 8)


def test_accelerates_data_parallel_rank_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, RANK=5, WORLD_SIZE=8)
    mesh = FakeMesh({"dp_replicate": 2, "dp_shard": 2, "tp": 2}, [1, 0, 1])
    run_accelerate(monkeypatch, 5, 8, mesh)
    assert resolve(num_ranks="auto") == (2, 4), "of the mesh: ranks of one tensor-parallel group share a part"
    run_accelerate(monkeypatch, 5, 8)
    assert resolve(num_ranks="auto") == (5, 8)


def test_ranks_of_one_model_under_accelerate_share_the_whole_table(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, RANK=1, WORLD_SIZE=2)
    run_accelerate(monkeypatch, 1, 2, FakeMesh({"tp": 2}, [1]))
    assert resolve(num_ranks="auto") == (0, 1)


def test_an_accelerate_that_sees_one_process_of_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, RANK=1, WORLD_SIZE=2)
    run_accelerate(monkeypatch, 0, 1)
    with pytest.raises(
        ConfigError, match="Accelerate says rank 0 of 1; the environment's RANK/WORLD_SIZE says rank 1 of 2"
    ):
        resolve(num_ranks="auto")


def test_an_accelerate_that_was_only_imported_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "accelerate.state", AcceleratorState=SimpleNamespace(_shared_state={}))
    assert resolve(num_ranks="auto") == (0, 1)
    module(
        monkeypatch,
        "accelerate.state",
        AcceleratorState=SimpleNamespace(_shared_state={"a": 1}),
        PartialState=SimpleNamespace(_shared_state={}),
    )
    assert resolve(num_ranks="auto") == (0, 1)


def test_auto_asks_torch_distributed_if_it_is_initialized(group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_rank", lambda: 6)
    monkeypatch.setattr(dist, "get_world_size", lambda: 7)
    assert resolve(num_ranks="auto") == (6, 7)


def test_detection_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(sys.modules)
    resolve(num_ranks="auto")
    assert not {name for name in set(sys.modules) - before if name.startswith(("accelerate", "horovod", "ray"))}


def test_launchers_that_agree_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, RANK=1, WORLD_SIZE=2, HOROVOD_RANK=1, HOROVOD_SIZE=2)
    run_horovod(monkeypatch, 1, 2)
    assert resolve(num_ranks="auto") == (1, 2)


def test_launchers_that_disagree_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, RANK=1, WORLD_SIZE=4)
    run_horovod(monkeypatch, 1, 2)
    with pytest.raises(
        ConfigError, match=r"Horovod says rank 1 of 2; the environment's RANK/WORLD_SIZE says rank 1 of 4"
    ):
        resolve(num_ranks="auto")
    assert resolve(num_ranks=2, rank=1) == (1, 2), "which explicit numbers settle"


@pytest.mark.parametrize("beside", [{"num_ranks": "auto"}, {"num_ranks": FakeMesh((2,), [0])}])
def test_an_explicit_rank_beside_another_source_of_ranks_is_refused(beside: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"rank=0 was given beside .*; leave rank out"):
        resolve(rank=0, **beside)


def test_one_rank_by_default_in_a_job_of_many_gives_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, RANK=1, WORLD_SIZE=4)
    with pytest.warns(
        UserWarning, match=r"num_ranks=1\) in a job of 4 ranks \(the environment's RANK/WORLD_SIZE says\)"
    ) as caught:
        warn_of_a_whole_table(LoaderOptions())
    assert caught[0].filename == __file__
    for chosen in ({"num_ranks": 1}, {"num_ranks": "auto"}, {"num_ranks": 4, "rank": 1}):
        warn_of_a_whole_table(LoaderOptions(**chosen))
    set_environment(monkeypatch, WORLD_SIZE=1, RANK=0)
    warn_of_a_whole_table(LoaderOptions())


def test_even_ranks_alone_finds_the_ranks_and_the_log_says_which(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def ranks_of(**options: Any) -> tuple[int, int]:
        job = StructuredDataset(source=ROWS, check_plan=False, **options).job
        return job.rank, job.topology.num_ranks

    assert ranks_of(even_ranks="balance") == (0, 1)
    set_environment(monkeypatch, RANK=1, WORLD_SIZE=4)
    with caplog.at_level("INFO", "torch_table_loader"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ranks_of(even_ranks="balance") == ranks_of(even_ranks="pad", shuffle="rows") == (1, 4)
    assert "reading as rank 1 of 4, as the environment's RANK/WORLD_SIZE says" in caplog.messages
    assert ranks_of() == ranks_of(even_ranks="pad", num_ranks=1) == (0, 1)
    assert ranks_of(even_ranks="balance", num_ranks=3, rank=2) == (2, 3)
    sources = {"a": StructuredDataset(source=ROWS, shuffle="rows", check_plan=False)}
    assert MixedDataset(sources, {"a": 1}, even_ranks="pad", check_plan=False).job.topology.num_ranks == 4
    assert MixedDataset(sources, {"a": 1}, check_plan=False).job.topology.num_ranks == 1


def test_a_mesh_without_names_is_data_parallel_in_row_major_order() -> None:
    assert resolve(num_ranks=FakeMesh((4,), [3])) == (3, 4)
    assert [resolve(num_ranks=FakeMesh((2, 3), [i, j]))[0] for i in range(2) for j in range(3)] == list(range(6))


@pytest.mark.parametrize("name", sorted(DATA_PARALLEL_DIMS))
def test_the_data_parallel_dimensions_of_a_mesh_are_known_by_name(name: str) -> None:
    assert resolve(num_ranks=FakeMesh({"pp": 2, name: 3, "tp": 4}, [1, 2, 3])) == (2, 3)


def test_a_mesh_without_a_data_parallel_dimension_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"\('tp', 'pp'\), of which none is data-parallel .*pass the data-parallel submesh"
    ):
        resolve(num_ranks=FakeMesh({"tp": 2, "pp": 2}, [0, 0]))


def test_a_one_dimensional_submesh_is_data_parallel_unless_its_name_says_otherwise() -> None:
    assert resolve(num_ranks=FakeMesh({"batch": 3}, [2])) == (2, 3)
    for name in ("tp", "pp", "tensor_parallel", "context_parallel", "ep"):
        with pytest.raises(ConfigError, match="none is data-parallel"):
            resolve(num_ranks=FakeMesh({name: 2}, [0]))


def test_a_process_outside_the_mesh_is_refused() -> None:
    with pytest.raises(ConfigError, match="not part of the mesh"):
        resolve(num_ranks=FakeMesh({"dp": 2}, None))


def test_a_real_mesh_is_read(group: None) -> None:
    assert resolve(num_ranks=init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))) == (0, 1)
    with pytest.raises(ConfigError, match="of which none is data-parallel"):
        resolve(num_ranks=init_device_mesh("cpu", (1, 1), mesh_dim_names=("cp", "tp")))
