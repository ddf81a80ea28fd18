import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from stoker.errors import InvalidArgument
from stoker.weights import save
from stoker.weights._state import owners, state


def test_it_is_what_state_dict_holds():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.TransformerEncoderLayer(4, 2, 8), nn.LSTM(2, 2))
    model.register_buffer("kept", torch.ones(1))
    model.register_buffer("not_kept", torch.ones(1), persistent=False)
    model.register_parameter("none", None)
    model = torch.nn.utils.parametrizations.weight_norm(model[0]) and model
    assert {name: id(tensor) for name, tensor in state(model).items()} == {
        name: id(tensor) for name, tensor in model.state_dict(keep_vars=True).items()
    }


@pytest.fixture
def one_process():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_wrappers_leave_no_trace(one_process):
    class Own(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    inner = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    names = list(inner.state_dict())
    assert list(state(torch.compile(inner, backend="eager"))) == names
    assert list(state(DistributedDataParallel(inner))) == names
    assert list(state(DistributedDataParallel(torch.compile(inner, backend="eager")))) == names
    assert list(state(nn.Sequential(checkpoint_wrapper(inner[0]), inner[1]))) == names
    assert "module.0.weight" in state(Own(inner))  # a user's own attribute of that name is a name


def test_a_sharded_tensor_is_there_as_it_is(one_process):
    model = nn.Linear(2, 2)
    mesh = init_device_mesh("cpu", (1,))
    model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Shard(0)]))
    assert state(model)["weight"] is model.weight and owners(state(model))["weight"] == "weight"


def test_shared_numbers_are_found_as_parameters_and_as_views():
    weight = nn.Parameter(torch.randn(3, 3))
    model = nn.Module()
    model.one, model.two = weight, weight
    model.register_buffer("same", weight.detach())
    model.register_buffer("turned", weight.detach().t())
    model.register_buffer("row", weight.detach()[0])
    model.register_buffer("empty", torch.zeros(0))
    model.register_buffer("void", torch.zeros(0))
    assert owners(state(model)) == {
        "one": "one", "two": "one", "same": "one", "turned": "turned", "row": "row", "empty": "empty", "void": "void",
    }  # fmt: skip


class WithExtra(nn.Linear):
    def get_extra_state(self):
        return {"anything": 1}


@pytest.mark.parametrize(("model", "text"), [
    (nn.LazyLinear(2), r"'weight' has no shape yet \(a lazy module\)"),
    (nn.Linear(2, 2, device="meta"), r"'weight' is on the meta device"),
    (nn.Sequential(WithExtra(1, 1)), r"'0' has extra state of its own"),
    (WithExtra(1, 1), r"'WithExtra' has extra state of its own"),
])  # fmt: skip
def test_what_cannot_be_kept_in_a_file_is_named(tmp_path, model, text):
    with pytest.raises(InvalidArgument, match=text):
        save(model, tmp_path / "m")


def test_odd_tensors_are_named(tmp_path):
    model = nn.Module()
    model.register_buffer("sparse", torch.eye(2).to_sparse())
    with pytest.raises(InvalidArgument, match=r"'sparse' is a tensor of the layout torch.sparse_coo"):
        save(model, tmp_path / "m")
    model = nn.Module()
    model.register_buffer("packed", torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2))
    with pytest.raises(InvalidArgument, match=r"'packed' has the dtype torch.float4_e2m1fn_x2"):
        save(model, tmp_path / "m")
