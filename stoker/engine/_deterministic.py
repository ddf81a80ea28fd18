"""Deterministic kernels for the length of a fit, and a warning if a run that is saved uses others."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from stoker._dispatch import WatchingMode
from stoker.engine._fit import Fit
from stoker.errors import InvalidArgument

_WORKSPACES = (":4096:8", ":16:8")
_SUMS = ("sum", "add", "mean", "prod", "multiply")
# Operations that do so only with some arguments.
_ATOMIC_IF: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    **dict.fromkeys(("put", "put_"), lambda given: bool(given.get("accumulate"))),
    **dict.fromkeys(
        ("scatter", "scatter_", "scatter_reduce", "scatter_reduce_"), lambda given: given.get("reduce") in _SUMS
    ),
    "_embedding_bag_backward": lambda given: given["mode"] == 2,  # the maximum
    "bincount": lambda given: given.get("weights") is not None,
}
# Operations whose kernels on a GPU add up floating-point numbers in an order that differs from run to run: from the
# list of `torch.use_deterministic_algorithms`, and the backward passes of attention, which are not in it. An
# accumulating `index_put` sorts its indices on a GPU, and is not among them.
_ATOMIC = {
    *_ATOMIC_IF,
    *("index_add", "index_add_", "scatter_add", "scatter_add_"),
    *("cumsum", "cumsum_", "nll_loss2d_forward", "_ctc_loss_backward", "max_unpool2d", "max_unpool3d"),
    *("_scaled_dot_product_efficient_attention_backward", "_efficient_attention_backward"),
    *("_scaled_dot_product_flash_attention_backward", "_flash_attention_backward"),
    *("_scaled_dot_product_cudnn_attention_backward", "_cudnn_attention_backward"),
    *("avg_pool3d_backward", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward"),
    *("max_pool3d_with_indices_backward", "adaptive_max_pool2d_backward"),
    *("fractional_max_pool2d_backward", "fractional_max_pool3d_backward"),
    *("upsample_linear1d_backward", "upsample_bilinear2d_backward", "_upsample_bilinear2d_aa_backward"),
    *("upsample_bicubic2d_backward", "_upsample_bicubic2d_aa_backward", "upsample_trilinear3d_backward"),
    *("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward"),
    *("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward"),
    *("grid_sampler_2d_backward", "grid_sampler_3d_backward", "_roi_align_backward", "_roi_pool_backward"),
}


def check_deterministic(device: torch.device) -> None:
    """Raises if cuBLAS has no fixed workspaces, without which torch refuses matrix products."""
    if device.type == "cuda" and os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in _WORKSPACES:
        raise InvalidArgument(
            "deterministic=True on a GPU needs the environment variable CUBLAS_WORKSPACE_CONFIG=:4096:8, and cuBLAS "
            "reads it only once: set it before Python starts, or with os.environ before the first import of torch"
        )


@contextmanager
def deterministic_algorithms(*, enabled: bool) -> Iterator[None]:
    """Uses deterministic kernels inside, and restores PyTorch's settings; does nothing unless `enabled`."""
    if not enabled:
        yield
        return
    cudnn: Any = torch.backends.cudnn
    mode, cudnn_settings = torch.get_deterministic_debug_mode(), (cudnn.deterministic, cudnn.benchmark)
    try:
        torch.use_deterministic_algorithms(True)
        cudnn.deterministic, cudnn.benchmark = True, False
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        cudnn.deterministic, cudnn.benchmark = cudnn_settings


class AtomicOperations(WatchingMode):
    """Collects the names of operations that are not deterministic on a GPU.

    >>> with AtomicOperations() as operations:
    ...     _ = torch.zeros(3).index_add(0, torch.tensor([0, 0]), torch.ones(2))
    >>> operations.names
    ['index_add']
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _ATOMIC and name not in self.names and _adds_floats(func, name, args, kwargs or {}):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def _adds_floats(func: Any, name: str, args: Any, kwargs: Any) -> bool:
    """Whether the operation adds up floating-point numbers: the sum of integers does not depend on their order."""
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    tensors = [value for value in given.values() if isinstance(value, Tensor)]
    if not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors):
        return False
    return name not in _ATOMIC_IF or _ATOMIC_IF[name](given)


@contextmanager
def warn_if_not_deterministic(fit: Fit) -> Iterator[None]:
    """Around the first batch of a run: warns if a resumed one may not give the same bits.

    torch's own `warn_only` mode does not help: it would run this one batch with other kernels.
    """
    is_saved = fit.device.type == "cuda" and fit.checkpointer.is_active
    if not is_saved or fit.ctx.update or torch.are_deterministic_algorithms_enabled():
        yield
        return
    with AtomicOperations() as operations:
        yield
    if operations.names:
        fit.ctx.warn(
            f"the training step uses {', '.join(operations.names)}, which add up numbers on a GPU in an order that "
            "differs from run to run: a resumed run follows this one up to rounding, not to the same bits. "
            "Learner(deterministic=True) uses kernels that are exact and slower"
        )
