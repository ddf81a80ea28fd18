"""Several processes: the model on every rank, a check that all run the same training, and the plan in words."""

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor, nn

from stoker._tree import named_leaves
from stoker.data import Combination, Loader
from stoker.distributed import Parallel, World, data_world, find_blocks, is_distributed, is_sharded, shard_model
from stoker.engine import Fit, ModelWithLoss, length_of, seed_rng
from stoker.errors import InvalidArgument
from stoker.gradients import GradientReducer
from stoker.learner._arguments import FitArguments, declared_arguments
from stoker.learner._describe import loaders_of

if TYPE_CHECKING:
    from stoker.learner._learner import Learner

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_MAY_DIFFER = ("structure", "threads")  # between ranks: a repr may contain a device
_MAX_LENGTH = 200  # characters of a value in an error message


def distribute_model(
    model: nn.Module, parallel: Parallel, world: World, *, compile: bool = False, dry: bool = False
) -> None:
    """Gives every rank the weights of rank 0, and shards the model if requested.

    A model that is already distributed stays as it is. With `compile`, the blocks of a model that is sharded here are
    compiled. With `dry`, nothing is sent or sharded.
    """
    if isinstance(model, ModelWithLoss) and (parallel.mode == "fsdp" or is_distributed(model.model)):
        raise InvalidArgument(
            "the loss has parameters, and those of a loss are not sharded with the model: make the loss a part of the "
            'model, which computes it in a train_step, freeze its parameters, or use parallel="ddp"'
        )
    if not (dry or is_distributed(model)):
        world.broadcast([*model.parameters(), *model.buffers()])
    if parallel.mode == "fsdp" and not dry and not is_sharded(model):
        shard_model(model, parallel, world, compile=compile)


def find_split(world: World, parallel: Parallel, *, dry: bool = False) -> World:
    """The ranks among which a batch is split; with `dry`, without process groups, which all ranks create together."""
    if not dry or parallel.mesh is None or world.size == 1:
        return data_world(world, parallel)
    mesh, rank, size = parallel.mesh, 0, 1
    for name in parallel.data_names:
        count = mesh.size(mesh.mesh_dim_names.index(name))
        rank, size = rank * count + mesh.get_local_rank(name), size * count
    return World(rank, size, world.local_rank, world.local_size)


def make_reducer(model: nn.Module, split: World, parallel: Parallel) -> GradientReducer | None:
    """Creates what sums gradients over ranks; None for one rank whose model is not sharded.

    The mode says who reduces: stoker through DDP, stoker with gradients as values (the layers of the model are split
    over ranks), or the model itself because it is sharded or wrapped ("fsdp").
    """
    if split.size == 1 and not is_sharded(model):
        return None
    if is_sharded(model):
        mode = "fsdp"
    elif not is_distributed(model):
        mode = "ddp"
    else:
        mode = "values" if any(hasattr(each, "device_mesh") for each in model.parameters()) else "fsdp"
    return GradientReducer(model, split, mode=mode, bucket_mb=parallel.bucket_mb)


def check_ranks_agree(world: World, describe: Callable[[], Mapping[str, Any]]) -> None:
    """Raises on every rank if the descriptions of two ranks differ: they would wait for each other forever."""
    if world.size == 1:
        return
    own = {name: str(value) for name, value in describe().items()}
    for rank, theirs in enumerate(world.all_gather(own)):
        names = [name for name in {**own, **theirs} if own.get(name) != theirs.get(name)]
        if names:
            lines = [f"{name}: {_shorten(theirs.get(name))} there, {_shorten(own.get(name))} here" for name in names]
            raise InvalidArgument(
                "\n  ".join([f"rank {rank} runs another training than rank {world.rank}", *lines])
                + "\nEvery process has to run the same script on the same data; stoker gives each its share"
            )


def describe_arguments(learner: "Learner", arguments: FitArguments, parallel: Parallel) -> dict[str, Any]:
    """What ranks compare before anything is created: these arguments determine what they do together."""
    saving = arguments.checkpoint_settings
    return {
        **{name: getattr(arguments, name) for name, each in declared_arguments().items() if each.is_shared},
        "resume": arguments.should_resume,
        "valid": arguments.valid is not None,
        "checkpoint": None if saving is None else saving.replace(deadline=None),  # each rank has its own clock
        "seed": learner.seed,
        "ema": learner.ema,
        **{f"parallel.{each.name}": getattr(parallel, each.name) for each in fields(parallel) if each.name != "mesh"},
    }


def share_loader(loader: Loader, split: World) -> Loader:
    """This rank's share of a loader; if every rank has its own data, all get as many batches as the longest has."""
    own = loader.shared(split.rank, split.size)
    if split.size == 1 or not own.sharded:
        return own
    lengths = split.all_gather(length_of(own))
    if None not in lengths:
        return own.padded(max(lengths))
    if any(length is not None for length in lengths):
        raise InvalidArgument(f"only some ranks know how many batches they have: {lengths}; give all of them a __len__")
    return own


def describe_training(fit: Fit) -> dict[str, Any]:
    """What ranks compare before the first batch: everything that a resumed run is compared by, and some samples."""
    identity = fit.state.identity
    settings = {**identity["fixed"], **identity["free"], **identity["limits"]}
    checksums = {f"the samples of {name}": _checksum_samples(loader) for name, loader in loaders_of(fit).items()}
    return {name: value for name, value in settings.items() if name not in _MAY_DIFFER} | {
        name: value for name, value in checksums.items() if value is not None
    }


def _checksum_samples(loader: Loader) -> str | None:
    """A checksum of the first, the middle and the last sample, before any transform.

    None if that says nothing: for a stream or a DataLoader, if workers read the samples (this process may be unable
    to), and if samples differ every time.
    """
    is_one_source = not isinstance(loader.source, Combination) and not loader.sharded
    if loader.batch_size is None or loader.workers or length_of(loader) is None or not is_one_source:
        return None
    last = loader.samples - 1
    single = Loader(loader.source, batch_size=1, batcher=loader.batcher)

    def read() -> int:
        with seed_rng(0):  # random samples are then the same on every rank
            samples = [next(iter(single.at(epoch=0, batch=number).raw())) for number in sorted({0, last // 2, last})]
        leaves = [(name, _checksum(leaf)) for sample in samples for name, leaf in named_leaves(sample)]
        return zlib.crc32(repr(leaves).encode())

    try:
        once, again = read(), read()
    except Exception:  # training will raise it, with the number of the sample
        return None
    return f"{once:08x}" if once == again else None


def _checksum(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        flat = leaf.detach().cpu().contiguous().flatten().view(torch.uint8)  # NumPy has no bfloat16
        return str(leaf.dtype), list(leaf.shape), zlib.crc32(flat.numpy().tobytes())
    if isinstance(leaf, numpy.ndarray):
        return str(leaf.dtype), leaf.shape, zlib.crc32(numpy.ascontiguousarray(leaf).tobytes())
    return leaf if isinstance(leaf, bool | int | float | str | bytes | None) else type(leaf).__name__


def _shorten(text: str | None) -> str:
    return "nothing" if text is None else text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…"


def describe_ranks(fit: Fit) -> Iterator[str]:
    """The lines of the plan about several processes."""
    world, split, parallel, model = fit.ranks.world, fit.ranks.data_world, fit.parallel, fit.state.model
    if fit.step.reducer is None and world.size == 1 and parallel.mode != "fsdp":
        return
    processes = "1 process" if world.size == 1 else f"{world.size} processes"
    yield f"ranks      {processes}, this is rank {world.rank}; each has 1/{split.size} of every batch of `batch_size`"
    if is_sharded(model) or parallel.mode == "fsdp":
        blocks = "" if is_sharded(model) else f", {len(find_blocks(model, parallel.wrap))} blocks"
        yield f"sharding   FSDP2{blocks}: each rank has 1/{split.size} of weights, gradients and optimizer state"
    elif fit.ranks.model_is_distributed:
        yield "gradients  reduced by the model, which is already distributed"
    elif fit.step.reduces_windows:
        yield "gradients  accumulated on each rank, and summed over the ranks once per update"
    elif fit.plan.ends_with_gradients:
        yield "gradients  summed over the ranks after the backward pass, which is compiled; weighted by samples"
    elif fit.step.reducer is not None and not fit.step.reducer.overlaps:
        yield "gradients  summed over the ranks in one message after the backward pass; weighted by samples"
    else:
        yield "gradients  summed over the ranks by DDP during the backward pass; weighted by samples, not by ranks"
    modules = list(model.modules())
    if any(isinstance(module, _BATCH_NORMS) for module in modules):
        yield (
            "batch norm each rank normalizes its share of a batch, and the running statistics of rank 0 are kept; "
            "torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) normalizes whole batches, on GPUs"
        )
    elif any(True for _ in model.buffers()):
        yield "buffers    those of rank 0 are broadcast before each forward pass in training"
    if any(isinstance(module, nn.modules.dropout._DropoutNd) for module in modules):
        yield "dropout    differs between ranks, so the results depend on their number"
    for name, loader in loaders_of(fit).items():
        if (note := loader.sharing_note) is not None:
            yield f"{name:<10} {note}"
