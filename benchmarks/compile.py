"""`compile=True` compared with a plain loop around `torch.compile`: start, second start, memory, µs per update.

    python -m benchmarks.compile                       everything, about 20 minutes on two cores
    python -m benchmarks.compile gpt --device cuda     one workload, in the size of a GPU
    python -m benchmarks.compile gpt --quick           tiny sizes, checks that everything runs

Every measurement is a process of its own. `start` is the time from the start of the process to the first update, with
an empty cache of compiled code; `second` that of another process, with the cache that the first one has left. Memory is
the most that torch had reserved on the GPU. On a CPU it is the most that tensors of one epoch took beside those that
were there before (weights and optimizer state), by torch's profiler.
"""

import argparse
import json
import os
import tempfile
from dataclasses import replace

from benchmarks._compare import load_fit, peak_memory, versions_of
from benchmarks._harness import Clock, check_names, collect, save_results, use_one_thread

WORKLOADS = ("digits", "gpt", "resnet", "vit")
CONTENDERS = {"plain": "compile", "stoker": "stoker-compile"}
EPOCHS, UPDATES = 4, 4  # of one fit; the last epoch is watched by the profiler on a CPU


def make_workload(name, device, size):
    """A workload of four batches; on a CPU in a size that takes seconds."""
    from torch import nn

    from benchmarks._models import GPT, ResNet18, ViT
    from benchmarks._workloads import pictures, token_rows, workload

    if name == "vit":
        net, batch = (lambda: ViT(depth=12, width=384, heads=6)), 256
        work = replace(workload("resnet", device=device), name="vit", text="ViT, 3 × 32 × 32", net=net, batch=batch)
    else:
        work = workload(name, device=device, tiny=size == "tiny" and name == "digits")
    small = {
        "gpt": {"batch": 8, "make": lambda: token_rows(32, 128, 4096), "net": lambda: GPT(4096, 128, 3, 192, 4)},
        "resnet": {"batch": 16, "net": lambda: ResNet18(width=16)},
        "vit": {"batch": 16, "net": lambda: ViT(depth=4, width=128, heads=4)},
    }
    tiny = {
        "digits": {"net": lambda: nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10))},  # compiled in seconds
        "gpt": {"batch": 4, "make": lambda: token_rows(16, 16, 128), "net": lambda: GPT(128, 16, 2, 32, 2)},
        "resnet": {"batch": 4, "net": lambda: ResNet18(width=4)},
        "vit": {"batch": 4, "net": lambda: ViT(depth=1, width=32, heads=2)},
    }
    if size == "tiny" or device == "cpu":
        work = replace(work, **(tiny if size == "tiny" else small).get(name, {}))
    samples = UPDATES * work.batch
    if name in ("resnet", "vit"):
        return replace(work, samples=samples, make=lambda: pictures(samples))
    whole = work.make
    return replace(work, samples=samples, make=lambda: tuple(each[:samples] for each in whole()))


class WatchingClock(Clock):
    """A clock that also measures the memory of the tensors of the last epoch."""

    needs_calls = True

    def __init__(self, device):
        super().__init__(device)
        self.peak, self._profiler = None, None

    def __call__(self, *_, **__):
        super().__call__()
        if self._synchronize is None and len(self.marks) == EPOCHS - 1:
            from torch.profiler import ProfilerActivity, profile

            self._profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
            self._profiler.start()
        elif self._profiler is not None and self.peak is None:
            self._profiler.stop()
            events = [event for event in self._profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
            allocated, self.peak = 0, 0
            for event in sorted(events, key=lambda event: event.start_ns()):
                allocated += event.nbytes()
                self.peak = max(self.peak, allocated)


def measure(name, work_name, device, size, cache):
    """One fit, in its own process."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    if device == "cpu":
        use_one_thread()
    work = make_workload(work_name, device, size)
    fit, clock = load_fit(CONTENDERS[name]), WatchingClock(device)
    fit(work, EPOCHS, clock)
    first, *others = clock.marks[: EPOCHS - 1]
    seconds = min(after - before for before, after in zip(clock.marks, others, strict=False)) / UPDATES
    gpu = None if device == "cpu" else peak_memory(device, "torch")
    return {
        "start, s": first - (UPDATES - 1) * seconds,
        "µs per update": seconds * 1e6,
        "memory, MB": {"tensors": clock.peak / 1e6} if gpu is None else gpu,
    }


def main():
    arguments = _parse_arguments()
    if arguments.measure:
        print(json.dumps(measure(*arguments.measure)))
        return
    size, found = "tiny" if arguments.quick else "full", {}
    for work_name in arguments.workload or WORKLOADS:
        with tempfile.TemporaryDirectory() as caches:
            tasks = [(name, work_name, arguments.device, size, os.path.join(caches, name)) for name in CONTENDERS]
            results = collect("benchmarks.compile", [*tasks, *tasks])  # the second time with the cache of the first
        found[work_name] = {
            task[0]: {**second, "start, s": first["start, s"], "second start, s": second["start, s"]}
            for task, (first, second) in results.items()
        }
        report(work_name, found[work_name])
    if not (arguments.quick or arguments.no_file):
        used = versions_of(CONTENDERS.values())
        save_results("compile", used, merge=True, device=arguments.device, workloads=found)


def report(work_name, found):
    """Prints a table with ratios."""
    print(f"\n{work_name:<10}{'start, s':>10}{'second, s':>11}{'memory, MB':>12}{'µs/update':>12}")
    rows = {name: numbers(each) for name, each in found.items()}
    for name, (start, second, memory, update) in rows.items():
        print(f"{name:<10}{start:10.1f}{second:11.1f}{memory:12.1f}{update:12.0f}", flush=True)
    ratios = [own / other for own, other in zip(rows["stoker"], rows["plain"], strict=True)]
    print(f"{'ratio':<10}{ratios[0]:10.2f}{ratios[1]:11.2f}{ratios[2]:12.2f}{ratios[3]:12.2f}", flush=True)


def numbers(each):
    """Start, second start, memory and µs per update of one contender."""
    memory = each["memory, MB"]
    return (
        each["start, s"],
        each["second start, s"],
        memory.get("reserved", memory.get("tensors")),
        each["µs per update"],
    )


def _parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("workload", nargs="*", help=f"of {', '.join(WORKLOADS)} (default: all)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="tiny sizes; writes no file")
    parser.add_argument("--no-file", action="store_true", help="writes no file")
    parser.add_argument("--measure", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    check_names(parser, "workload", arguments.workload, WORKLOADS)
    return arguments


if __name__ == "__main__":
    main()
