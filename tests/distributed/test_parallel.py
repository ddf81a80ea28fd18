"""What a user says about many processes, and what is wrong with it."""

from types import SimpleNamespace

import pytest
from torch import nn

from stoker.distributed import Parallel, as_parallel
from stoker.errors import InvalidArgument, WrongType

MESH = SimpleNamespace(mesh_dim_names=("replicate", "shard", "tp"))


def test_a_word_or_the_thing_itself():
    assert as_parallel("auto") == Parallel()
    assert as_parallel("fsdp") == Parallel(mode="fsdp")
    own = Parallel(mode="fsdp", wrap=(nn.Linear, nn.Conv2d), recompute=True, param_dtype="bf16", reduce_dtype="fp32")
    assert as_parallel(own) is own


def test_which_dimensions_of_a_mesh_split_the_batch():
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
def test_values_that_can_not_be_used(options, text):
    with pytest.raises(InvalidArgument) as caught:
        Parallel(**options)
    assert str(caught.value).startswith(text)


def test_things_of_the_wrong_kind():
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
