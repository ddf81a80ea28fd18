"""Runs a function in several gloo processes and gives what each returned; an exception in one is raised here.

The processes are forked by a server that has imported torch and stoker already. They have the environment of that
server, and the function has to stand at the top of a module.
"""

import os
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

PRELOADED = ["torch", "torch.distributed.fsdp", "torch.distributed.checkpoint", "pytest", "numpy", "stoker.learner"]


def run(function, size=2, *arguments):
    """`function(rank, size, *arguments)` in `size` fresh processes that have a process group."""
    return _answers(_grouped, function, size, arguments, None)


def launched(function, size=2, *arguments):
    """The same without a process group, in the environment that torchrun gives: the store is in another process."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return _answers(_alone, function, size, arguments, store.port)


def _answers(enter, function, size, arguments, port):
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        shared = (size, folder, port, arguments)
        started = [context.Process(target=_enter, args=(enter, function, rank, *shared)) for rank in range(size)]
        for process in started:
            process.start()
        for process in started:
            process.join()
        answers = [
            torch.load(path, weights_only=False) if path.exists() else (None, f"ended with {process.exitcode}")
            for path, process in ((Path(folder) / f"{rank}.pt", started[rank]) for rank in range(size))
        ]
    failures = [f"rank {rank}:\n{failure}" for rank, (_, failure) in enumerate(answers) if failure]
    assert not failures, "\n".join(failures)
    return [answer for answer, _ in answers]


def _enter(enter, function, rank, size, folder, port, arguments):
    torch.set_num_threads(1)
    answer, failure = None, None
    try:
        answer = enter(function, rank, size, folder, port, arguments)
        _check_races()
    except BaseException:
        failure = traceback.format_exc()
    finally:
        torch.save((answer, failure), Path(folder) / f"{rank}.pt")
        if dist.is_initialized():
            dist.destroy_process_group()


def _check_races():
    """On the simulated CUDA device: raises if streams of this process race."""
    if os.environ.get("SIMULATED_CUDA"):
        from simulated_cuda import control

        races = control.take_races()
        assert not races, "streams race: " + "; ".join(races)


def _grouped(function, rank, size, folder, port, arguments):
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        os.environ.pop(name, None)
    place = f"file://{folder}/meeting"
    dist.init_process_group(
        "gloo", init_method=place, rank=rank, world_size=size, timeout=timedelta(seconds=120)
    )  # a hang ends
    answer = function(rank, size, *arguments)
    dist.barrier()
    return answer


def _alone(function, rank, size, folder, port, arguments):
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    return function(rank, size, *arguments)
