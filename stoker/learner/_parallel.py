"""A model on many processes: the same weights on every rank, shards of them where that is asked for; and in words."""

import copy
from collections.abc import Iterable, Sequence
from typing import Literal

from torch import nn

from stoker.callbacks import CSV, Callback, Tracker
from stoker.data import Loader
from stoker.distributed import Accord, Parallel, World, blocks_of, data_world, is_distributed, is_sharded, sharded
from stoker.engine import EMA, Fit
from stoker.gradients import Shared
from stoker.learner._same import check_same, trained

_OF_RANK_0 = (CSV, Tracker)  # they write what rank 0 knows
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def spread(
    model: nn.Module, parallel: Parallel, world: World, *, ema: float | None, dry: bool = False
) -> EMA | None:
    """Rank 0's weights on every rank, and the model in shards where it is to be; gives the average, made on the way.

    A model that is distributed already is as the user made it; a `dry` one is only looked at.
    """
    if not (dry or is_distributed(model)):
        world.broadcast([*model.parameters(), *model.buffers()])
    if dry or is_sharded(model) or parallel.mode != "fsdp":
        return None if ema is None else EMA(model, ema)
    twin = None if ema is None else copy.deepcopy(model)
    sharded(model, parallel, world)
    if ema is None or twin is None:
        return None
    sharded(twin, parallel, world)
    return EMA(model, ema, twin)


def split_of(world: World, parallel: Parallel, *, dry: bool = False) -> World:
    """The ranks among which a batch is split; for a `dry` fit without the groups, which all ranks make together."""
    if not dry or parallel.mesh is None or world.size == 1:
        return data_world(world, parallel)
    mesh, rank, size = parallel.mesh, 0, 1
    for name in parallel.data_names:
        count = mesh.size(mesh.mesh_dim_names.index(name))
        rank, size = rank * count + mesh.get_local_rank(name), size * count
    return World(rank, size, world.local_rank, world.local_size)


def reducer_for(model: nn.Module, split: World, parallel: Parallel, reduce: Literal["mean", "sum"]) -> Shared | None:
    """What adds up gradients over ranks; None if there is one rank and the model is not sharded."""
    if split.size == 1 and not is_sharded(model):
        return None
    return Shared(model, split, mode=_mode(model), reduce=reduce, bucket_mb=parallel.bucket_mb)


def _mode(model: nn.Module) -> Literal["ddp", "values", "fsdp"]:
    """Who adds the gradients up: the model itself where somebody has wrapped it, and not where its layers are split."""
    if is_sharded(model) or not is_distributed(model):
        return "fsdp" if is_sharded(model) else "ddp"
    is_split = any(hasattr(parameter, "device_mesh") for parameter in model.parameters())
    return "values" if is_split else "fsdp"


def heard_here(callbacks: Sequence[Callback], world: World) -> Sequence[Callback]:
    """The callbacks of this rank: what writes a run's numbers somewhere is rank 0's business."""
    return callbacks if world.is_first else [each for each in callbacks if not isinstance(each, _OF_RANK_0)]


def told(fit: Fit) -> list[str]:
    """What there is to know about training with several processes."""
    if fit.step.reducer is None and fit.ranks.world.size == 1 and fit.parallel.mode != "fsdp":
        return []
    return [*_ways(fit), *_doubts(fit)]


def _ways(fit: Fit) -> Iterable[str]:
    world, parallel, size = fit.ranks.world, fit.parallel, fit.ranks.split.size
    one = "1 process" if world.size == 1 else f"{world.size} processes"
    yield f"ranks      {one}, this is rank {world.rank}; each takes 1/{size} of every batch, whose size is that of all"
    if is_sharded(fit.state.model) or parallel.mode == "fsdp":
        blocks = "" if is_sharded(fit.state.model) else f", {len(blocks_of(fit.state.model, parallel.wrap))} blocks"
        yield f"sharding   FSDP2{blocks}: each rank keeps 1/{size} of weights, gradients and optimizer state"
    elif fit.ranks.model_is_distributed:
        yield "gradients  the model is distributed already, and is taken as it is"
    elif fit.settings.accumulate > 1:
        yield "gradients  added up on each rank, and over the ranks once for each update"
    elif fit.plan.mode == "gradient":
        yield "gradients  added up over the ranks after the backward pass, which is compiled; weighed by samples"
    else:
        yield "gradients  added up over the ranks by DDP, beside the backward pass; weighed by samples, not by ranks"


def _doubts(fit: Fit) -> Iterable[str]:
    modules = list(fit.state.model.modules())
    if any(isinstance(module, _BATCH_NORMS) for module in modules):
        yield (
            "batch norm each rank normalises its own share of a batch, and rank 0's running statistics are kept; "
            "torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) normalises whole batches, on GPUs"
        )
    elif any(True for _ in fit.state.model.buffers()):
        yield "buffers    rank 0's are given to every rank before each forward in training"
    if any(isinstance(module, nn.modules.dropout._DropoutNd) for module in modules):
        yield "dropout    is another one on each rank, so its numbers depend on how many there are"
    loaders: dict[str, Loader] = {"train": fit.train, **fit.valid}
    for name, loader in loaders.items():
        if (note := loader.sharing_note) is not None:
            yield f"{name:<10} {note}"
