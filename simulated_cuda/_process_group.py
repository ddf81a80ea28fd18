"""Process groups for tensors of the simulated device: the backend "nccl", and gloo. See README.md."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from simulated_cuda._backend import backend

NCCL_TIMEOUT = timedelta(minutes=10)


class Options:
    """`ProcessGroupNCCL.Options`: what torch sets is kept, and only the timeout is used."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.backend = "nccl"
        self._timeout = NCCL_TIMEOUT


def make_gloo(store: Any, rank: int, size: int, options: Options) -> Any:
    """The process group that carries the messages of a simulated NCCL."""
    under = dist.PrefixStore("simulated_nccl/", store)
    return dist.ProcessGroupGloo(under, rank, size, timeout=options._timeout)


def install() -> None:
    """Makes "nccl", and gloo for CUDA tensors, known to `torch.distributed`."""
    nccl = backend.ProcessGroupNCCL
    nccl.Options = Options
    nccl._set_default_timeout = nccl.set_timeout
    nccl._group_start = nccl._group_end = nccl._add_ephemeral_timeout = lambda self, *args: None
    nccl.uid = property(id)
    distributed_c10d._NCCL_AVAILABLE = True
    distributed_c10d.ProcessGroupNCCL = dist.ProcessGroupNCCL = nccl
    torch._C._nccl_version = lambda: 2 << 32 | 27 << 16  # torch puts it into the texts of errors
    torch._C._nccl_version_suffix = lambda: b""
    _give_gloo_the_device()


def _give_gloo_the_device() -> None:
    """A CPU build of torch has no gloo for CUDA tensors: groups of gloo get a second backend for them."""
    register = dist.ProcessGroup._register_backend

    def register_backend(group, device, kind, made):
        if torch.device(device).type == "cuda" and isinstance(made, dist.ProcessGroupGloo):
            # A group has one backend of each type, so this one needs another type than gloo's.
            kind, made = dist.ProcessGroup.BackendType.CUSTOM, backend.DeviceGloo(made)
        register(group, device, kind, made)

    dist.ProcessGroup._register_backend = register_backend
