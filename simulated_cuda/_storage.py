"""Storages of the simulated device: what FSDP, `torch.save` and `torch.load` do with them."""

import torch

from simulated_cuda._backend import backend


def install() -> None:
    """Lets storages of the device be resized and made, which a CPU build of torch does not do."""
    resize_host, move = torch.UntypedStorage.resize_, torch.UntypedStorage.to

    def resize_(storage, size):
        if storage.device.type != "cuda":
            return resize_host(storage, size)
        backend.resize_storage(storage, size)  # FSDP frees gathered parameters so, and allocates them again
        return storage

    def to(storage, *, device, non_blocking=False):
        if torch.device(device).type != "cuda" or storage.device.type == "cuda":
            return move(storage, device=device, non_blocking=non_blocking)
        made = torch.empty(storage.size(), dtype=torch.uint8, device="cuda").untyped_storage()
        return made.copy_(storage, non_blocking)

    torch.UntypedStorage.resize_, torch.UntypedStorage.to = resize_, to
