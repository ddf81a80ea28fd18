"""What there is to know of one contender at one workload, taken in a process of its own."""

import os
import resource
import statistics
import sys
from dataclasses import replace

from benchmarks._clock import Clock
from benchmarks._contenders import CONTENDERS, fit_of
from benchmarks._harness import one_thread
from benchmarks._workloads import workload


def measure(name, work_name, *, device="cpu", tiny=False):
    """Times, start, memory, frames, and whether it did the work.

    One fit is timed from inside, at the ends of its epochs. Where losses are compared after another number of epochs, a
    second fit follows for that.
    """
    if device == "cpu":
        one_thread()
    one = CONTENDERS[name]
    if one.backend is not None:
        os.environ["KERAS_BACKEND"] = one.backend  # read when keras is imported
    work = workload(work_name, device=device, tiny=tiny)
    judge = work.judge  # at the workload's own precision
    if one.precision is not None:
        work = replace(work, precision=one.precision)
    fit, clock = fit_of(name), Clock(device)
    model, updates = fit(work, work.epochs, clock)
    rounds = clock.rounds(work.warm)
    found = {
        "µs per update": [seconds / work.updates * 1e6 for seconds in rounds],
        "start, s": clock.marks[0] - statistics.median(rounds),
        "program, s": clock.marks[-1],
        "memory, MB": peak_memory(device, one.package),
        "epochs": len(clock.marks),
        "updates": updates,
    }
    if work.judged != work.epochs:
        model, _ = fit(work, work.judged, Clock(device))
    found["loss"] = judge(model)
    found["frames"] = frames_to_the_loss(fit, work) if work_name == "toy" and not one.traced else None
    return found


def peak_memory(device, package):
    """The most that was held: by the process, or on the GPU as allocated and as reserved."""
    if device == "cpu":
        return {"process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3}
    if package == "jax":
        import jax

        return {"allocated": jax.devices()[0].memory_stats()["peak_bytes_in_use"] / 1e6}
    import torch

    return {"allocated": torch.cuda.max_memory_allocated() / 1e6, "reserved": torch.cuda.max_memory_reserved() / 1e6}


def frames_to_the_loss(fit, work):
    """How many frames of somebody else's code stand between the call of `fit` and the user's loss.

    Of the last batch: the first time that Keras calls a loss is to learn shapes. A frame of the file that `fit` stands
    in is the user's own: a training_step, say.
    """
    depth = None

    def loss(predictions, targets):
        nonlocal depth
        depth, frame = 0, sys._getframe(1)
        while frame.f_code is not fit.__code__:
            depth += frame.f_code.co_filename != fit.__code__.co_filename
            frame = frame.f_back
        return (predictions - targets).square().mean()

    fit(replace(work, loss=loss), 1, lambda *_, **__: None)
    return depth


def refusals(found, work):
    """The contenders that did other work than was asked, or came to another loss than the plain loop; why."""
    asked = work.epochs * work.updates
    loss = next((found[name]["loss"] for name in ("dataloader", "indexing", "fused") if name in found), None)
    for name, each in found.items():
        if each["epochs"] != work.epochs:
            yield f"{name} ended {each['epochs']} epochs, asked for were {work.epochs}"
        if each["updates"] != asked:
            yield f"{name} made {each['updates']} updates, asked for were {asked}"
        if loss is not None and not abs(each["loss"] / loss - 1) < work.tolerance:
            yield f"{name} came to a loss of {each['loss']:.4f}, the plain loop to {loss:.4f}"
