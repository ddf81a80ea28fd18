"""`Parallel`: its arguments, which modules FSDP gathers at once, and that a sharded model computes the same."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from stoker.distributed import Parallel, World, as_parallel, find_blocks, is_distributed, is_sharded, join, shard_model
from stoker.errors import InvalidArgument, WrongType

from .processes import run

MESH = SimpleNamespace(mesh_dim_names=("replicate", "shard", "tp"))


def test_a_mode_or_a_parallel_is_accepted():
    assert as_parallel("auto") == Parallel()
    assert as_parallel("fsdp") == Parallel(mode="fsdp")
    own = Parallel(mode="fsdp", wrap=(nn.Linear, nn.Conv2d), recompute=True, param_dtype="bf16", reduce_dtype="fp32")
    assert as_parallel(own) is own


def test_all_dimensions_of_a_mesh_but_tp_cp_and_pp_split_the_batch():
    assert Parallel().data_names == ()
    assert Parallel(mesh=MESH).data_names == ("replicate", "shard")
    assert Parallel(mesh=MESH, data=("shard",)).data_names == ("shard",)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "dpp"}, 'mode has to be "auto" or "ddp" or "fsdp", not \'dpp\'; did you mean \'ddp\'?'),
        ({"param_dtype": "float16"}, 'param_dtype has to be "bf16" or "fp16" or None, not \'float16\''),
        ({"reduce_dtype": 16}, 'reduce_dtype has to be "fp32" or "bf16" or None, not 16'),
        ({"wrap": 100}, 'wrap needs mode="fsdp", and the mode is "auto"'),
        ({"mode": "ddp", "reshard": False}, 'reshard needs mode="fsdp", and the mode is "ddp"'),
        ({"mode": "fsdp", "wrap": 0}, "wrap has to be module classes or a number of parameters, not 0"),
        ({"mode": "fsdp", "wrap": True}, "wrap has to be module classes or a number of parameters, not True"),
        ({"bucket_mb": 0}, "bucket_mb has to be more than 0, not 0"),
        ({"timeout": -1.0}, "timeout has to be more than 0, not -1.0"),
        ({"data": ("dp",)}, "data=('dp',) names dimensions of a mesh, so it needs mesh="),
        ({"mesh": MESH, "data": ("sharp",)}, "data names 'sharp'; the mesh has replicate, shard, tp; did you mean 'sh"),
        (
            {"mesh": SimpleNamespace(mesh_dim_names=None)},
            'the dimensions of mesh have no names: make it with mesh_dim_names=("dp", "tp"), say',
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_errors_for_invalid_values(options, text):
    with pytest.raises(InvalidArgument) as caught:
        Parallel(**options)
    assert str(caught.value).startswith(text)


def test_errors_for_wrong_types():
    with pytest.raises(WrongType, match=r'parallel has to be "auto", "ddp", "fsdp" or a stoker\.Parallel, not 2'):
        as_parallel(2)
    with pytest.raises(InvalidArgument, match="parallel has to be .* not 'fsdp2'; did you mean 'fsdp'"):
        as_parallel("fsdp2")
    with pytest.raises(
        WrongType, match=r"wrap has to be classes of modules such as nn\.TransformerEncoderLayer, not Li"
    ):
        Parallel(mode="fsdp", wrap=nn.Linear(1, 1))
    with pytest.raises(WrongType, match=r"recompute has to be classes of modules .*, not <class 'int'>"):
        Parallel(mode="fsdp", recompute=(nn.Linear, int))
    with pytest.raises(WrongType, match=r"data has to be a tuple of names, such as \('dp',\), not 'dp'"):
        Parallel(mesh=MESH, data="dp")


# --- sharding


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.narrow(torch.tanh(self.wide(x)))


class Network(nn.Module):
    def __init__(self, width=4, depth=3):
        super().__init__()
        self.embed = nn.Linear(3, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2))

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def network():
    torch.manual_seed(0)
    return Network()


def names_of(model, blocks):
    names = {module: name for name, module in model.named_modules()}
    return [names[block] for block in blocks]


BLOCKS = ["blocks.0", "blocks.1", "blocks.2"]


@pytest.mark.parametrize(
    ("wrap", "expected"),
    [
        (None, BLOCKS),
        (Block, BLOCKS),
        ((Block, nn.LayerNorm), [*BLOCKS, "head.0"]),
        (40, [each for block in reversed(BLOCKS) for each in (f"{block}.wide",)]),
        (60, list(reversed(BLOCKS))),
        (1000, []),
    ],
    ids=["none", "class", "classes", "40", "60", "1000"],
)
def test_blocks_are_selected_by_class_size_or_repetition(wrap, expected):
    model = network()
    assert names_of(model, find_blocks(model, wrap)) == expected


def test_blocks_of_containers_and_tied_weights():
    sequence = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    assert names_of(sequence, find_blocks(sequence, None)) == ["0", "2"]
    assert find_blocks(nn.Linear(2, 2), None) == [] == find_blocks(nn.Linear(2, 2), 1)
    nested = nn.ModuleDict({"a": nn.ModuleList([nn.Linear(1, 1)]), "b": nn.ModuleList([Block(1), Block(1)])})
    assert names_of(nested, find_blocks(nested, None)) == ["b.0", "b.1"]  # a list has no forward
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    assert names_of(tied, find_blocks(tied, 5)) == ["0"]  # a weight counts once


def test_error_for_a_class_that_the_model_does_not_have():
    with pytest.raises(InvalidArgument, match="wrap: the model has no module of class Conv2d; it has Block, LayerNorm"):
        find_blocks(network(), nn.Conv2d)


def gradients(model, rank, size):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(12, 3, generator=generator).chunk(size)[rank]
    model(x).square().mean().backward()
    return {
        name: p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for name, p in model.named_parameters()
    }


OPTIONS = {
    "default": {},
    "class": {"wrap": Block, "reshard": False},
    "size": {"wrap": 40},
    "blocks in blocks": {"wrap": (Block, nn.Linear)},
    "offload": {"offload": True},
    "bf16": {"param_dtype": "bf16", "reduce_dtype": "fp32"},
}


def shard_in_every_way(rank, size):
    """Shards a model with every option; and one that the user has sharded."""
    from torch.distributed.fsdp import FSDPModule, fully_shard

    world, found = join(), {}
    for kind, options in OPTIONS.items():
        model = network()
        names = [name for name, _ in model.named_parameters()]
        assert not is_sharded(model) and not is_distributed(model)
        shard_model(model, Parallel(mode="fsdp", **options), world)
        assert is_sharded(model) and is_distributed(model)
        assert [name for name, _ in model.named_parameters()] == names and isinstance(model, Network)
        wrapped = [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]
        outputs = model(torch.ones(2, 3))
        found[kind] = (wrapped, gradients(model, rank, size), outputs.dtype)
    before = fully_shard(network())
    shard_model(before, Parallel(mode="fsdp"), world)
    assert [name for name, module in before.named_modules() if isinstance(module, FSDPModule)] == [""]
    replica = nn.parallel.DistributedDataParallel(network())
    assert is_distributed(replica) and not is_sharded(replica)
    return found


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_a_sharded_model_computes_the_same_gradients(size):
    expected = gradients(network(), 0, 1)
    for found in run(shard_in_every_way, size):
        for kind, (wrapped, grads, dtype) in found.items():
            blocks = find_blocks(network(), OPTIONS[kind].get("wrap"))
            assert len(wrapped) == len(blocks) + 1, kind
            assert dtype == (torch.bfloat16 if kind == "bf16" else torch.float32)
            close = {"rtol": 0.1, "atol": 0.02} if kind == "bf16" else {"rtol": 1e-5, "atol": 1e-6}
            torch.testing.assert_close(grads, expected, **close, msg=lambda text, kind=kind: f"{kind}: {text}")


def test_error_for_a_model_in_channels_last():
    model = nn.Sequential(nn.Conv2d(2, 3, 3)).to(memory_format=torch.channels_last)
    with pytest.raises(InvalidArgument, match=r"0\.weight is not contiguous .*memory_format=torch\.contiguous_format"):
        shard_model(model, Parallel(mode="fsdp"), World())


def shard_along_a_mesh(rank, size):
    from torch.distributed.device_mesh import init_device_mesh

    world, hybrid, along = join(), network(), network()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    shard_model(hybrid, Parallel(mode="fsdp", mesh=both), world)
    shard_model(along, Parallel(mode="fsdp", mesh=mesh), world)
    three = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("a", "b", "c"))
    with pytest.raises(InvalidArgument, match="needs one dimension of the mesh .* not a, b, c: select them with data="):
        shard_model(network(), Parallel(mode="fsdp", mesh=three), world)
    return gradients(hybrid, rank, size), gradients(along, rank // 2, 2)


@pytest.mark.soak
def test_a_model_is_sharded_along_a_mesh():
    expected = gradients(network(), 0, 1)
    for hybrid, along in run(shard_along_a_mesh, 4):
        torch.testing.assert_close(hybrid, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(along, expected, rtol=1e-5, atol=1e-6)
