"""Which rank this process is, of how many."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch_table_loader.errors import ConfigError
from torch_table_loader.messages import warn_caller
from torch_table_loader.option_checks import is_mesh
from torch_table_loader.options import LoaderOptions

_log = logging.getLogger(__name__)

DATA_PARALLEL_DIMS = frozenset(
    {"data", "data_parallel", "ddp", "dp", "dp_replicate", "dp_shard", "fsdp", "replicate", "shard"}
)
"""Names of mesh dimensions along which ranks read different rows."""

ACCELERATES_MESH = "Accelerate's mesh"
"""Which alone may say another rank than the launcher does: ranks of one model share a part."""

OTHER_DIMS = frozenset(
    {"context", "cp", "ep", "expert", "model", "pipeline", "pp", "sequence", "sp", "stage", "tensor", "tp"}
)
"""Names of dimensions along which they read the same; of a mesh with one dimension any other name is the caller's word
for data-parallel."""


class RankInfo(NamedTuple):
    """A rank, the number of ranks, and where these numbers come from."""

    rank: int
    num_ranks: int
    origin: str


def resolve_ranks(options: LoaderOptions) -> RankInfo:
    """Return rank and number of ranks.

    Under ``"auto"`` what is running says it: Accelerate, torch.distributed, Horovod, Ray Train, and the environment of
    torchrun or Horovod. Nothing is imported to find out.

    Raises:
        ConfigError: the sources disagree, or a mesh has no data-parallel dimension.
    """
    if options.num_ranks == "auto":
        found = _automatic(sys.modules, os.environ)
        _log.info("reading as rank %d of %d, as %s says", *found)
        return found
    if not isinstance(options.num_ranks, int | None):
        return _of_mesh(options.num_ranks)
    num_ranks = options.num_ranks or 1
    if num_ranks > 1 and options.rank is None:
        raise ConfigError(
            f"num_ranks={num_ranks} needs rank= in [0, {num_ranks}); pass dist.get_rank(), or "
            'num_ranks="auto" and no rank'
        )
    return RankInfo(options.rank or 0, num_ranks, "the caller")


def asks_for_a_part(keywords: Mapping[str, Any]) -> bool:
    """Return whether keyword arguments, which need not be right, are of a loader that ranks compare."""
    if keywords.get("check_plan") is False:
        return False
    num_ranks, rank, even_ranks = map(keywords.get, ("num_ranks", "rank", "even_ranks"))
    if num_ranks is None:
        num_ranks = 1
        if rank is not None or even_ranks is not None:
            num_ranks = "auto"
    try:
        if is_mesh(num_ranks):
            return _of_mesh(num_ranks).num_ranks > 1
        if isinstance(num_ranks, str):
            return _automatic(sys.modules, os.environ, check=False).num_ranks > 1
    except ConfigError:
        return True
    return not isinstance(num_ranks, int) or num_ranks > 1


def warn_of_a_whole_table(options: LoaderOptions) -> None:
    """Warn if the caller named no ranks, in a job of several: each of them would read all rows."""
    if options.num_ranks is not None:
        return
    job = _automatic(sys.modules, os.environ, check=False)
    if job.num_ranks > 1:
        warn_caller(
            f"this loader reads the whole table (num_ranks=1) in a job of {job.num_ranks} ranks ({job.origin} says); "
            'pass num_ranks="auto" (or even_ranks=, which also makes their steps equal), or num_ranks= and rank=, to '
            "give each rank its part; or num_ranks=1, if each is to read all of it"
        )


def _automatic(modules: Mapping[str, Any], environ: Mapping[str, str], *, check: bool = True) -> RankInfo:
    looks: tuple[Callable[[], RankInfo | None], ...] = (
        lambda: _of_accelerate(modules),
        lambda: _of_torch(modules),
        lambda: _of_horovod(modules),
        lambda: _of_ray(modules),
        lambda: _of_environment(environ, "RANK", "WORLD_SIZE"),
        lambda: _of_environment(environ, "HOROVOD_RANK", "HOROVOD_SIZE"),
    )
    found = [info for look in looks if (info := look()) is not None]
    if not found:
        return RankInfo(0, 1, "nothing that runs ranks")
    first = found[0]
    same_world = [info for info in found if info.origin != ACCELERATES_MESH]
    if check and len({(info.rank, info.num_ranks) for info in same_world}) > 1:
        claims = "; ".join(f"{info.origin} says rank {info.rank} of {info.num_ranks}" for info in same_world)
        raise ConfigError(f'num_ranks="auto" found ranks that disagree: {claims}; pass rank= and num_ranks= yourself')
    return first


def _of_accelerate(modules: Mapping[str, Any]) -> RankInfo | None:
    state = getattr(modules.get("accelerate.state"), "AcceleratorState", None)
    shared = getattr(state, "_shared_state", None)
    if not shared:
        return None
    mesh = shared.get("device_mesh")
    if names := getattr(mesh, "mesh_dim_names", None):
        if DATA_PARALLEL_DIMS.isdisjoint(names):
            return RankInfo(0, 1, ACCELERATES_MESH)  # all ranks are one model's: the names are known, and none is left
        return _of_mesh(mesh)._replace(origin=ACCELERATES_MESH)
    partial_state = getattr(modules["accelerate.state"], "PartialState", None)
    known = getattr(partial_state, "_shared_state", {})
    if "num_processes" not in known:
        return None
    return RankInfo(int(known["process_index"]), int(known["num_processes"]), "Accelerate")


def _of_torch(modules: Mapping[str, Any]) -> RankInfo | None:
    distributed = modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return RankInfo(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _of_horovod(modules: Mapping[str, Any]) -> RankInfo | None:
    horovod = modules.get("horovod.torch")
    if horovod is None or not horovod.is_initialized():
        return None
    return RankInfo(horovod.rank(), horovod.size(), "Horovod")


def _of_ray(modules: Mapping[str, Any]) -> RankInfo | None:
    train = modules.get("ray.train")
    if train is None or not _is_a_ray_worker(modules):
        return None
    context = train.get_context()
    return RankInfo(context.get_world_rank(), context.get_world_size(), "Ray Train")


def _is_a_ray_worker(modules: Mapping[str, Any]) -> bool:
    """Look where each engine of Ray Train keeps its worker: asked elsewhere, the context of V1 warns, of V2 raises."""
    session = getattr(modules.get("ray.train._internal.session"), "get_session", None)
    if session is not None and session() is not None:
        return True
    return getattr(modules.get("ray.train.v2._internal.execution.train_fn_utils"), "_train_fn_utils", None) is not None


def _of_environment(environ: Mapping[str, str], rank: str, size: str) -> RankInfo | None:
    if rank not in environ or size not in environ:
        return None
    try:
        info = RankInfo(int(environ[rank]), int(environ[size]), f"the environment's {rank}/{size}")
    except ValueError as error:
        raise ConfigError(f"{rank} and {size} must be ints, got {environ[rank]!r} and {environ[size]!r}") from error
    if not 0 <= info.rank < info.num_ranks:
        raise ConfigError(f"{rank} must be in [0, {size}), got {info.rank} and {info.num_ranks}")
    return info


def _of_mesh(mesh: Any) -> RankInfo:
    """Number the data-parallel coordinates of a mesh in row-major order."""
    names = getattr(mesh, "mesh_dim_names", None)
    dims = list(range(mesh.ndim))
    if names is not None:
        alone = len(names) == 1 and names[0].removesuffix("_parallel") not in OTHER_DIMS
        dims = [at for at, name in enumerate(names) if alone or name in DATA_PARALLEL_DIMS]
        if not dims:
            raise ConfigError(
                f"mesh has the dimensions {tuple(names)}, of which none is data-parallel "
                f"({', '.join(sorted(DATA_PARALLEL_DIMS))}); pass the data-parallel submesh: mesh['your_dim']"
            )
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ConfigError("this process is not part of the mesh; make the loader only on the ranks of the mesh")
    rank, size = 0, 1
    for dim in dims:
        rank = rank * mesh.size(dim) + coordinate[dim]
        size *= mesh.size(dim)
    return RankInfo(rank, size, "mesh")
