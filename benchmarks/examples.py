"""The tasks of examples/ in realistic sizes on a GPU: `fit` beside the loop that one would write, ms per update.

    python -m benchmarks.examples                               everything, about six minutes
    python -m benchmarks.examples --example lora,gan            some; each adds to the same file
    python -m benchmarks.examples --device cpu --tiny           checks that everything runs, on any machine

Three contenders train the same model, from the same weights, in one process for each task: `plain` is a loop with
torch's `DataLoader`, fused optimizer and no synchronisation in an update; `resident` is the same with all batches on
the device from the beginning; `stoker` is `fit`. Times are taken from the end of one epoch to the end of the next, each
after a synchronisation, without the first epoch. A contender that makes another number of updates, or ends at another
loss, is refused. Models and data are random. Results are written after each task.
"""

import argparse
import json
import statistics
from contextlib import nullcontext
from datetime import date
from pathlib import Path

from benchmarks._harness import (
    ONE_THREAD,
    RESULTS,
    Clock,
    check_names,
    machine,
    run_tasks,
    seconds_since_start,
    versions,
    write_json,
)
from benchmarks.gpu import gpu_name

EXAMPLES = (
    "text_classification",
    "causal_lm",
    "lora",
    "image_classification",
    "image_classification_vit",
    "segmentation",
    "detection",
    "graph_classification",
    "diffusion",
    "gan",
    "vae",
    "distillation",
    "recurrent_lm",
)
EPOCHS = 4  # the first one is not timed
UPDATES = 16  # in an epoch
TOLERANCE = 0.2  # of the loss of the last epoch; order, dropout and other random numbers differ
LIBRARIES = ("torch", "transformers", "peft", "timm", "torchvision", "torch-geometric", "diffusers")


def main():
    arguments = _parse_arguments()
    if arguments.measure:
        print(json.dumps(measure(*arguments.measure)))
        return
    path = arguments.to or (None if arguments.tiny else RESULTS / f"examples-{date.today()}.json")
    tasks = [(name, arguments.device, "tiny" if arguments.tiny else "full") for name in arguments.example or EXAMPLES]
    environment = ONE_THREAD if arguments.device == "cpu" else {}
    print(f"{'':<26}{'plain':>9}{'resident':>10}{'stoker':>9}{'× plain':>9}{'× resident':>12}  ms per update; plan")
    for (name, *_), result, failure in run_tasks(
        "benchmarks.examples", tasks, environment=environment, seconds=arguments.limit
    ):
        result = result or {"failed": (failure.strip() or "no error text").splitlines()[-1]}
        print(describe(name, result), flush=True)
        if path is not None:
            heading = {"machine": {**machine(), "gpu": gpu_name()}, "device": arguments.device}
            found = {**heading, "versions": versions(*LIBRARIES), "examples": {name: result}}
            write_json(path, found, merge=True)
    if path is not None:
        print(f"\nwritten to {path}")


def describe(name, result):
    """A line of the table."""
    if "failed" in result:
        return f"{name:<26} failed: {result['failed']}"
    ms = {each: statistics.median(found["ms per update"]) for each, found in result["contenders"].items()}
    times = f"{ms['plain']:9.2f}{ms['resident']:10.2f}{ms['stoker']:9.2f}"
    ratios = f"{ms['stoker'] / ms['plain']:9.3f}{ms['stoker'] / ms['resident']:12.3f}"
    step = next(line.removeprefix("step").strip() for line in result["plan"] if line.startswith("step"))
    refused = "".join(f"\n  REFUSED: {reason}" for reason in result["refused"])
    return f"{name:<26}{times}{ratios}  {step}{refused}"


# --- measuring one task, in its own process


def measure(name, device, size):
    """Times, memory and losses of the contenders, and the plan of stoker's fit."""
    import torch

    from benchmarks._example_tasks import TASKS
    from tests.torchvision_ops import declare

    declare()  # beside a CPU build of torch, torchvision's operators can't be loaded
    torch.manual_seed(0)
    task = TASKS[name](size == "tiny")
    model = task.model().to(device)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    source = task.loader(UPDATES * task.batch) if task.columns is None else task.columns(UPDATES * task.batch)
    found, plan = {}, []
    for contender, fit in (("plain", fit_plain), ("resident", fit_resident), ("stoker", fit_stoker)):
        model.load_state_dict(weights)
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        clock, begin = Clock(device), seconds_since_start()
        loss, updates, lines = fit(task, model, source, device, clock)
        found[contender] = {
            "ms per update": [seconds / UPDATES * 1e3 for seconds in clock.seconds_per_epoch(1)],
            "first epoch, s": clock.marks[0] - begin,
            "memory, MB": torch.cuda.max_memory_reserved() / 1e6 if device == "cuda" else None,
            "updates": updates,
            "loss": loss,
        }
        plan = lines  # of the last one, stoker
    return {
        "text": task.text,
        "contenders": found,
        "plan": plan,
        "refused": list(refusals(found, TOLERANCE if size == "full" else 1.0)),
    }


def refusals(found, tolerance):
    """Yields why a contender can't be compared with the plain loop."""
    loss = found["plain"]["loss"]
    for name, each in found.items():
        if each["updates"] != EPOCHS * UPDATES:
            yield f"{name} made {each['updates']} updates instead of {EPOCHS * UPDATES}"
        if not abs(each["loss"] / loss - 1) < tolerance:
            yield f"{name} ended at a loss of {each['loss']:.4f}, the plain loop at {loss:.4f}"


def fit_plain(task, model, source, device, clock):
    """The loop that one would write, with a `DataLoader`."""
    return run_loop(task, model, make_loader(task, source, device), device, clock)


def fit_resident(task, model, source, device, clock):
    """The same loop over batches that are on the device already."""
    batches = [move(batch, device) for batch in make_loader(task, source, device)]
    return run_loop(task, model, batches, device, clock)


def make_loader(task, source, device):
    from benchmarks._example_tasks import load_columns

    if task.columns is None:
        return source
    return load_columns(source, task.batch, shuffle=task.shuffle, pin_memory=device == "cuda")


def run_loop(task, model, loader, device, clock):
    """Trains with plain PyTorch; the loss is read once in an epoch."""
    model.train()
    update = make_update(task, model, device) if task.make_update is None else task.make_update(model)
    updates = 0
    for _ in range(EPOCHS):
        total = 0
        for batch in loader:
            total = total + update(move(batch, device))
            updates += 1
        loss = float(total) / len(loader)
        clock()
    return loss, updates, []


def make_update(task, model, device):
    """Forward, backward, clip and step, as a function of a batch."""
    import torch

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=task.lr, fused=True)

    def update(batch):
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16) if task.precision == "bf16" else nullcontext():
            loss = task.loss_of(model, batch)
        loss.backward()
        if task.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, task.clip_norm)
        optimizer.step()
        return loss.detach()

    return update


def move(batch, device):
    """A batch on the device, without waiting for it."""
    import torch
    from torch.utils._pytree import tree_map_only

    if hasattr(batch, "edge_index"):
        return batch.to(device, non_blocking=True)
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device, non_blocking=True), batch)


def fit_stoker(task, model, source, device, clock):
    """`fit`, without console output."""
    import stoker
    from stoker import data
    from stoker.callbacks import on

    options = {"lr": task.lr, "clip_norm": task.clip_norm, "precision": task.precision, "device": device, "seed": 0}
    learner = stoker.Learner(model, **options, **task.learner)
    if task.columns is not None:
        source = data.Loader(source, batch_size=task.batch, shuffle=0 if task.shuffle else None)
    fitted = learner.fit(source, epochs=EPOCHS, callbacks=[on(epoch_end=clock)], show=False)
    history = fitted.history
    names = ["train/loss"] if "train/loss" in history else ["train/critic", "train/generator"]
    return sum(history[name][-1] for name in names), fitted.updates, fitted.plan


def _parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--example", type=lambda text: text.split(","), default=[], help=f"of {', '.join(EXAMPLES)} (default: all)"
    )
    parser.add_argument("--limit", type=float, default=120, help="seconds for a task (default: 120)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes; writes a file only with --to")
    parser.add_argument("--to", type=Path, metavar="FILE", help="default: benchmarks/results/examples-DATE.json")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    check_names(parser, "example", arguments.example, EXAMPLES)
    return arguments


if __name__ == "__main__":
    main()
