"""What glibc does with memory that a training step on a CPU has freed."""

import torch

_BLOCK = 2**25 - 2**16  # bytes: glibc adapts to freed blocks of at most 32 MiB, with their header


def keep_freed_memory() -> None:
    """Makes glibc keep up to 64 MiB of freed memory, so that a step need not get its pages from the system again.

    glibc returns memory to the system when more is free at the end of its heap than twice the largest block that the
    process has freed so far, of blocks up to 32 MiB (`M_MMAP_THRESHOLD` in `man mallopt`). Otherwise the speed of a
    step would depend on what the program did before the fit. This frees a block of that size without writing to it. It
    has no effect if `MALLOC_…` variables set the limits, or with another allocator.
    """
    torch.UntypedStorage(_BLOCK, device="cpu")  # unlike `torch.empty`, never filled
