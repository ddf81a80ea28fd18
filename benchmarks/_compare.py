"""Comparing stoker with plain loops and other libraries: contenders, measurement, tables, and performance targets."""

import os
import resource
import statistics
import sys
from dataclasses import replace
from importlib import import_module
from typing import NamedTuple

from benchmarks._harness import Clock, installed, run_tasks, spread, use_one_thread, versions

# --- contenders


class Contender(NamedTuple):
    function: str  # module and function in benchmarks/peers
    package: str
    label: str
    toy_only: bool = False
    precision: str | None = None  # replaces the precision of the workload
    backend: str | None = None  # of Keras
    traced: bool = False  # runs the step through a compiler, so its stack frames can't be counted


_KERAS = "keras.fit", "keras"
CONTENDERS = {
    "dataloader": Contender("plain.fit", "torch", "plain torch, DataLoader, loss.item()"),
    "indexing": Contender("plain.fit_indexing", "torch", "plain torch, indexing"),
    "fused": Contender("plain.fit_fused", "torch", "plain torch, indexing, fused"),
    "compile": Contender("plain.fit_compiled", "torch", "plain torch, fused, torch.compile", traced=True),
    "stoker": Contender("stoker.fit", "stoker", "stoker"),
    "stoker-tf32": Contender("stoker.fit", "stoker", "stoker, tf32", precision="tf32"),
    "stoker-compile": Contender("stoker.fit_compiled", "stoker", "stoker, compile=True", traced=True),
    "stoker-compile-tf32": Contender(
        "stoker.fit_compiled", "stoker", "stoker, compile=True, tf32", precision="tf32", traced=True
    ),
    "stoker-tuned": Contender(
        "stoker.fit_tuned", "stoker", "stoker, compile=True, tf32, cudnn.benchmark", precision="tf32", traced=True
    ),
    "stoker-fsdp": Contender("stoker.fit_fsdp", "stoker", "stoker, parallel='fsdp', one process"),
    "stoker-fsdp-bf16": Contender("stoker.fit_fsdp_bf16", "stoker", "… with param_dtype='bf16', reshard=False"),
    "jax": Contender("jax.fit", "jax", "JAX, jit", traced=True),
    "jax-scan": Contender("jax.fit_scan", "jax", "JAX, scan over the epoch", traced=True),
    "lightning": Contender("lightning.fit", "lightning", "Lightning: loss and metric"),
    "ignite": Contender("ignite.fit", "pytorch-ignite", "Ignite: loss and metric", toy_only=True),
    "accelerate": Contender("accelerate.fit", "accelerate", "Accelerate in a plain loop", toy_only=True),
    "skorch": Contender("skorch.fit", "skorch", "skorch: loss and metric", toy_only=True),
    "huggingface": Contender("huggingface.fit", "transformers", "Hugging Face Trainer: loss", toy_only=True),
    "keras": Contender(*_KERAS, "Keras on torch: loss and metric", toy_only=True, backend="torch"),
    "keras-jax": Contender(*_KERAS, "Keras on JAX: loss and metric", toy_only=True, backend="jax", traced=True),
}
EAGER = ("dataloader", "indexing", "fused")  # plain eager loops; the fastest of them is what people can write


def load_fit(name):
    """Imports the library of a contender and returns its `fit(work, epochs, clock)`."""
    module, function = CONTENDERS[name].function.split(".")
    return getattr(import_module(f"benchmarks.peers.{module}"), function)


def why_missing(name):
    """A line to print if the package of a contender is not installed, else `None`."""
    package = CONTENDERS[name].package
    if installed(package) is None:
        return f"{name} is left out: {package} is not installed (pip install '.[bench]')"
    return None


def versions_of(names):
    """The versions of the measured packages; torch is always included."""
    return versions(*sorted({"torch", *(CONTENDERS[name].package for name in names)}))


# --- measuring one contender, in its own process


def measure(name, work_name, device, size):
    """Times, memory, stack frames, and what shows whether the contender did the same work.

    One fit is timed from inside, at the ends of its epochs. If losses are compared after another number of epochs, a
    second fit follows for that.
    """
    from benchmarks._workloads import workload

    if device == "cpu":
        use_one_thread()
    contender = CONTENDERS[name]
    if contender.backend is not None:
        os.environ["KERAS_BACKEND"] = contender.backend  # read when keras is imported
    original = workload(work_name, device=device, tiny=size == "tiny")
    work = original if contender.precision is None else replace(original, precision=contender.precision)
    fit, clock = load_fit(name), Clock(device)
    model, updates = fit(work, work.epochs, clock)
    times = clock.seconds_per_epoch(work.warm_up)
    found = {
        "µs per update": [seconds / work.updates * 1e6 for seconds in times],
        "start, s": clock.marks[0] - statistics.median(times),
        "program, s": clock.marks[-1],
        "memory, MB": peak_memory(device, contender.package),
        "epochs": len(clock.marks),
        "updates": updates,
    }
    if work.compared_after != work.epochs:
        model, _ = fit(work, work.compared_after, Clock(device))
    found["loss"] = original.loss_of(model)  # in the precision of the workload
    found["frames"] = frames_to_the_loss(fit, work) if work_name == "toy" and not contender.traced else None
    return found


def peak_memory(device, package):
    """Peak megabytes of the process, or of the GPU as allocated and reserved."""
    if device == "cpu":
        return {"process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3}
    if package == "jax":
        import jax

        return {"allocated": jax.devices()[0].memory_stats()["peak_bytes_in_use"] / 1e6}
    import torch

    return {"allocated": torch.cuda.max_memory_allocated() / 1e6, "reserved": torch.cuda.max_memory_reserved() / 1e6}


def frames_to_the_loss(fit, work):
    """The number of library frames between the call of `fit` and the user's loss.

    Taken at the last batch, since Keras calls a loss once before training to infer shapes. Frames in the file of `fit`
    are the user's own (a `training_step`, for example) and don't count.
    """
    depth = None

    def loss(predictions, targets):
        nonlocal depth
        depth, frame = 0, sys._getframe(1)
        while frame.f_code is not fit.__code__:
            depth += frame.f_code.co_filename != fit.__code__.co_filename
            frame = frame.f_back
        return (predictions - targets).square().mean()

    fit(replace(work, loss=loss), 1, Clock())
    return depth


# --- comparing contenders

_OF_EVERY_PASS = ("µs per update", "start, s", "program, s")  # the rest is taken from the last pass


def compare(module, work, names, passes, *, environment=None, seconds=None, after_each=None):
    """Measures contenders in turn: the results by name, and the last line of the error of those that failed."""
    found, failed = {}, {}
    tasks = [(name, work.name, work.device, "tiny" if work.tiny else "full") for _ in range(passes) for name in names]
    for (name, *_), result, failure in run_tasks(module, tasks, environment=environment, seconds=seconds):
        if failure is None:
            times = {key: result[key] if isinstance(result[key], list) else [result[key]] for key in _OF_EVERY_PASS}
            earlier = found.get(name, {key: [] for key in _OF_EVERY_PASS})
            found[name] = {**result, **earlier, **{key: earlier[key] + times[key] for key in _OF_EVERY_PASS}}
        else:
            failed[name] = (failure.strip() or "no error text").splitlines()[-1]
            print(f"  {name} failed: {failed[name]}")
        if after_each is not None:
            after_each(name, found, failed)
    return found, failed


def refusals(found, work):
    """Yields (name, reason) for contenders that did other work, or ended at another loss than the plain loop."""
    updates = work.epochs * work.updates
    loss = next((found[name]["loss"] for name in EAGER if name in found), None)
    for name, each in found.items():
        if each["epochs"] != work.epochs:
            yield name, f"ran {each['epochs']} epochs instead of {work.epochs}"
        if each["updates"] != updates:
            yield name, f"made {each['updates']} updates instead of {updates}"
        if loss is not None and not abs(each["loss"] / loss - 1) < work.tolerance:
            yield name, f"ended at a loss of {each['loss']:.4f}, the plain loop at {loss:.4f}"


def accepted(work, found):
    """The results without those of contenders that did other work."""
    refused = {name for name, _ in refusals(found, work)}
    return {name: each for name, each in found.items() if name not in refused}


def report(work, found):
    """Prints a table with ratios to the plain loops, the performance targets, and the refused contenders."""
    median = {name: statistics.median(each["µs per update"]) for name, each in found.items()}
    baselines = [name for name in ("dataloader", "indexing", "compile") if name in found]
    heads = "".join(f"{'× ' + name:>13}" for name in baselines)
    unit = "samples/s" if work.tokens == 1 else "tokens/s"
    print(f"\n{work.name}: {work.text}; {work.device}{', one thread' if work.device == 'cpu' else ''}")
    print(f"  {'':<42} {'µs/update':>9} {'spread':>15}{heads}  {unit:>10}", end="")
    print("  start, s  program, s  memory, MB  frames     loss")
    for name in CONTENDERS:
        if name in found:
            ratios = "".join(f"{median[name] / median[other]:13.3f}" for other in baselines)
            rate = work.samples * work.tokens / (work.updates * median[name] * 1e-6)
            times = spread(found[name]["µs per update"])
            print(f"  {CONTENDERS[name].label:<42}  {times}{ratios}  {rate:10,.0f}{_last_columns(found[name])}")
    for line in check_targets(accepted(work, found), work.device, work.name):
        print(f"  {line}")
    for name, reason in refusals(found, work):
        print(f"  REFUSED: {name} {reason}")


def _last_columns(each):
    start, program = (statistics.median(each[key]) for key in ("start, s", "program, s"))
    memory = each["memory, MB"].get("reserved", next(iter(each["memory, MB"].values())))
    frames = "" if each["frames"] is None else each["frames"]
    return f"  {start:8.2f}  {program:10.2f}  {memory:10.0f}  {frames:>6}  {each['loss']:7.4f}"


# --- performance targets


class Target(NamedTuple):
    """`contender` takes at most `limit` × what the best of `rivals` takes."""

    contender: str
    rivals: tuple[str, ...]
    limit: float
    quantity: str = "µs per update"


TARGETS = {
    ("cpu", "toy"): [
        Target("stoker", ("dataloader",), 0.50),
        Target("stoker-compile", ("dataloader",), 0.12),
        Target("stoker-compile", ("jax-scan",), 1.1),
    ],
    ("cpu", "digits"): [Target("stoker", EAGER, 1.0), Target("stoker-compile", EAGER, 0.9)],
    ("cuda", "digits"): [
        Target("stoker", ("dataloader",), 0.12),
        Target("stoker-compile-tf32", ("dataloader",), 0.07),
        Target("stoker-compile-tf32", ("jax-scan",), 1.1),
        Target("stoker-tuned", ("dataloader",), 0.07),
        Target("stoker-tuned", ("jax-scan",), 1.1),
        Target("stoker-compile-tf32", ("jax-scan",), 1.0, "start, s"),
        Target("stoker", ("fused",), 1.1, "memory, MB"),
    ],
    ("cuda", "resnet"): [
        Target("stoker", EAGER, 1.0),
        Target("stoker-compile", EAGER, 1 / 1.3),
        Target("stoker", ("fused",), 1.1, "memory, MB"),
    ],
    ("cuda", "gpt"): [
        Target("stoker-compile", ("compile",), 1.0),
        Target("stoker-compile", ("compile",), 1.05, "memory, MB"),
        Target("stoker-compile", ("compile",), 1.2, "start, s"),
        Target("stoker", ("fused",), 1.1, "memory, MB"),
        Target("stoker-fsdp", ("stoker",), 1 / 0.97),
        Target("stoker-fsdp-bf16", ("stoker",), 1 / 0.97),
    ],
    ("cuda", "tabular"): [Target("stoker-compile-tf32", ("jax-scan",), 1.1)],
}


def check_targets(found, device, work_name):
    """Yields a line for each target of a workload whose contenders were measured."""
    for target in TARGETS.get((device, work_name), ()):
        own = _quantity_of(found, target.contender, target.quantity)
        rivals = {
            name: value for name in target.rivals if (value := _quantity_of(found, name, target.quantity)) is not None
        }
        if own is not None and rivals:
            best = min(rivals, key=rivals.__getitem__)
            what = {"memory, MB": "memory of ", "start, s": "start of "}.get(target.quantity, "")
            yield check_target(f"{what}{target.contender} relative to {best}", own / rivals[best], target.limit)


def check_target(what, ratio, limit):
    return f"{what}: {ratio:.3f}, target ≤ {limit:.3g}: {'met' if ratio <= limit else 'NOT met'}"


def _quantity_of(found, name, quantity):
    if name not in found:
        return None
    value = found[name][quantity]
    return value.get("reserved") if isinstance(value, dict) else statistics.median(value)
