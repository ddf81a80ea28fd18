"""Runs a function in several gloo processes and gives what each returned; an exception in one is raised here."""

import os
import tempfile
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing


def run(function, size=2, *arguments):
    """`function(rank, size, *arguments)` in `size` fresh processes; it returns tensors or plain values."""
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        shared = (size, folder, arguments)
        started = [context.Process(target=_enter, args=(function, rank, *shared)) for rank in range(size)]
        for process in started:
            process.start()
        for process in started:
            process.join()
        answers = [torch.load(Path(folder) / f"{rank}.pt") for rank in range(size)]
    for rank, (_, failure) in enumerate(answers):
        assert failure is None, f"rank {rank}:\n{failure}"
    return [answer for answer, _ in answers]


def _enter(function, rank, size, folder, arguments):
    torch.set_num_threads(1)
    os.environ.pop("MASTER_ADDR", None)
    answer, failure = None, None
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
        answer = function(rank, size, *arguments)
        dist.barrier()
    except BaseException:
        failure = traceback.format_exc()
    finally:
        torch.save((answer, failure), Path(folder) / f"{rank}.pt")
        if dist.is_initialized():
            dist.destroy_process_group()
