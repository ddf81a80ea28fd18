"""Which modules are gathered at once, and that a model in shards computes what it did."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from stoker.distributed import Parallel, World, find_blocks, is_distributed, is_sharded, joined, shard_model
from stoker.errors import InvalidArgument

from .processes import launched, run


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
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
def test_blocks(wrap, expected):
    model = network()
    assert names_of(model, find_blocks(model, wrap)) == expected


def test_blocks_of_other_models():
    sequence = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    assert names_of(sequence, find_blocks(sequence, None)) == ["0", "2"]
    assert find_blocks(nn.Linear(2, 2), None) == [] == find_blocks(nn.Linear(2, 2), 1)
    nested = nn.ModuleDict({"a": nn.ModuleList([nn.Linear(1, 1)]), "b": nn.ModuleList([Block(1), Block(1)])})
    assert names_of(nested, find_blocks(nested, None)) == ["b.0", "b.1"]  # lists themselves have no forward
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    assert names_of(tied, find_blocks(tied, 5)) == ["0"]  # a weight counts once


def test_a_class_that_the_model_has_not():
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
    "recompute": {"recompute": True},
    "recompute a class": {"wrap": 1000, "recompute": (nn.Linear, nn.LayerNorm)},
    "offload": {"offload": True},
    "bf16": {"param_dtype": "bf16", "reduce_dtype": "fp32"},
}


def shard_it(rank, size):
    """A model in shards, in every way; and one that the user has shard_model."""
    from torch.distributed.fsdp import FSDPModule, fully_shard

    world, found = joined(), {}
    for kind, options in OPTIONS.items():
        model = network()
        names = [name for name, _ in model.named_parameters()]
        assert not is_sharded(model) and not is_distributed(model)
        shard_model(model, Parallel(mode="fsdp", **options), world)
        assert is_sharded(model) and is_distributed(model)
        assert [name for name, _ in model.named_parameters()] == names and isinstance(model, Network)
        wrapped = [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]
        outputs = model(torch.ones(2, 3))
        calls = model.blocks[0].calls
        found[kind] = (wrapped, gradients(model, rank, size), outputs.dtype, model.blocks[0].calls - calls)
    before = fully_shard(network())
    shard_model(before, Parallel(mode="fsdp"), world)
    assert [name for name, module in before.named_modules() if isinstance(module, FSDPModule)] == [""]
    replica = nn.parallel.DistributedDataParallel(network())
    assert is_distributed(replica) and not is_sharded(replica)
    return found


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_model_in_shards_computes_what_it_did(size):
    expected = gradients(network(), 0, 1)
    for found in run(shard_it, size):
        for kind, (wrapped, grads, dtype, calls) in found.items():
            blocks = find_blocks(network(), OPTIONS[kind].get("wrap"))
            assert len(wrapped) == len(blocks) + 1, kind
            assert dtype == (torch.bfloat16 if kind == "bf16" else torch.float32)
            assert calls == (2 if kind == "recompute" else 1), kind
            close = {"rtol": 0.1, "atol": 0.02} if kind == "bf16" else {"rtol": 1e-5, "atol": 1e-6}
            torch.testing.assert_close(grads, expected, **close, msg=lambda text, kind=kind: f"{kind}: {text}")


def shard_alone(rank, size):
    """One process that nobody has launched: shards need a group, so it gets one."""
    assert not dist.is_initialized()
    model = network()
    shard_model(model, Parallel(mode="fsdp"), World())
    return gradients(model, 0, 1)


def test_one_process_can_have_shards_too():
    torch.testing.assert_close(launched(shard_alone, 1)[0], gradients(network(), 0, 1))


def test_a_model_in_channels_last_is_refused():
    model = nn.Sequential(nn.Conv2d(2, 3, 3)).to(memory_format=torch.channels_last)
    with pytest.raises(InvalidArgument, match=r"0\.weight is not contiguous .*memory_format=torch\.contiguous_format"):
        shard_model(model, Parallel(mode="fsdp"), World())
