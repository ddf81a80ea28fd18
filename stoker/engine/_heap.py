"""What glibc does with memory that a training step on a CPU has freed."""

import torch

_BLOCK = 2**25 - 2**16  # bytes: glibc adapts to freed blocks of at most 32 MiB, with their header


def keep_freed_memory() -> None:
    """Makes glibc keep up to 64 MiB of freed memory, so that a step need not get its pages from the system again.

    glibc gives memory back when more is free at the end of its heap than twice the largest block that was freed so far,
    which it looks at up to 32 MiB (`M_MMAP_THRESHOLD` in `man mallopt`). So the speed of a step depended on what the
    program had done before. This frees such a block, without writing to it. It has no effect if `MALLOC_…` variables
    set the limits, or with another allocator.
    """
    torch.empty(_BLOCK, dtype=torch.uint8, device="cpu")
