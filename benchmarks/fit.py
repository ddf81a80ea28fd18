"""`fit` beside the loops and libraries that people train with: the same toy in one run, as µs per update and ratios.

    make bench                                  every contender that is installed
    python -m benchmarks.fit keras ignite       some of them, beside the plain loops
    python -m benchmarks.fit --help             fewer rounds, no file

Every contender runs in processes of its own, one after the other and several times over, on one thread, with bars,
logs and checkpoints off. The time of an update is a difference: a long fit less a short one, so that what a library
does once, at its start, is not in it; `start` has that, and Python's own start and the imports with it. A contender
that does not make as many updates as the plain loop, or does not come to its loss, is refused.
"""

import argparse
import json
import statistics
import sys
import time
from importlib import import_module

from benchmarks._harness import BATCH, TOY, in_turn, installed, keep, one_thread, since_start, spread, toy

# name: (file and function in benchmarks/peers, the distribution it needs, what it is)
CONTENDERS = {
    "dataloader": ("plain.fit", "torch", "plain torch, DataLoader over a TensorDataset, loss.item()"),
    "indexing": ("plain.fit_indexing", "torch", "plain torch, indexing the tensors"),
    "stoker": ("stoker.fit", "stoker", "stoker, Learner.fit: loss, MAE"),
    "ignite": ("ignite.fit", "pytorch-ignite", "Ignite, create_supervised_trainer: loss, MAE"),
    "accelerate": ("accelerate.fit", "accelerate", "Accelerate, its parts in a plain loop, loss.item()"),
    "skorch": ("skorch.fit", "skorch", "skorch, NeuralNetRegressor: loss, MAE"),
    "lightning": ("lightning.fit", "lightning", "Lightning, Trainer: loss, MAE"),
    "keras": ("keras.fit", "keras", "Keras on torch, compile and fit: loss, MAE"),
}
PLAIN = ("dataloader", "indexing")  # always there: the ratios are to them
UPDATES = 1000 // BATCH  # in an epoch
EPOCHS = 100  # of the whole program
JUDGED = 10  # epochs after which the loss is compared: half way down, where a wrong rate of 10 % is 6 % of it
SHORT = 5  # epochs of the fit that is taken off; enough for what happens late, an optimizer's state say
SECONDS = 1.0  # of a round, about


def contender(name):
    """A contender's `fit`; its library is imported here."""
    file, function = CONTENDERS[name][0].split(".")
    return getattr(import_module(f"benchmarks.peers.{file}"), function)


def package_of(name):
    return CONTENDERS[name][1]


def why_left_out(name):
    """A line to print where a contender is not installed, else None."""
    if installed(package_of(name)) is None:
        return f"{name} is left out: {package_of(name)} is not installed (pip install '.[bench]')"
    return None


def measure(name, rounds):
    """What there is to know of a contender: times, start, frames, and whether it did the work."""
    one_thread()
    fit = contender(name)
    fit(EPOCHS)
    program = since_start()
    model, updates = fit(JUDGED)
    epochs = max(SHORT, round(SECONDS / _seconds(fit, EPOCHS) * EPOCHS))
    times = [(_seconds(fit, SHORT + epochs) - _seconds(fit, SHORT)) / (epochs * UPDATES) * 1e6 for _ in range(rounds)]
    return {
        "µs per update": times,
        "program, s": program,
        "start, s": program - EPOCHS * UPDATES * statistics.median(times) * 1e-6,
        "frames": frames_to_the_loss(fit),
        "updates": updates,
        "loss": mean_squared_error(model),
    }


def _seconds(fit, epochs):
    start = time.perf_counter()
    fit(epochs)
    return time.perf_counter() - start


def frames_to_the_loss(fit):
    """How many frames of somebody else's code stand between the call of `fit` and the user's loss.

    Of the last batch: the first time that Keras calls a loss is to learn shapes.
    """
    depth = None

    def loss(predictions, targets):
        nonlocal depth
        depth, frame = 0, sys._getframe(1)
        while frame.f_code is not fit.__code__:
            depth += frame.f_code.co_filename != fit.__code__.co_filename  # a training_step is the user's own
            frame = frame.f_back
        return (predictions - targets).square().mean()

    fit(1, loss)
    return depth


def mean_squared_error(model):
    import torch

    x, y, _ = toy()
    with torch.no_grad():
        return float((model(x) - y).square().mean())


def refusals(found):
    """The contenders that did other work than the plain loop, each with what differs."""
    plain = found["dataloader"]
    for name, each in found.items():
        if each["updates"] != plain["updates"]:
            yield f"{name} made {each['updates']} updates, the plain loop {plain['updates']}"
        if not abs(each["loss"] / plain["loss"] - 1) < 0.02:  # another order of the samples makes 0.5 %
            yield f"{name} came to a loss of {each['loss']:.4f}, the plain loop to {plain['loss']:.4f}"


def run(names, passes, rounds):
    """Every contender's numbers, the passes put together."""
    tasks = [(name, str(rounds)) for _ in range(passes) for name in names]
    found = {}
    for (name, _), results in in_turn("benchmarks.fit", tasks).items():
        first = results[0]  # what does not depend on the machine's mood
        found[name] = {key: first[key] for key in ("frames", "updates", "loss")}
        found[name]["µs per update"] = [each for result in results for each in result["µs per update"]]
        for key in ("start, s", "program, s"):
            found[name][key] = [result[key] for result in results]
    return found


def report(found):
    median = {name: statistics.median(each["µs per update"]) for name, each in found.items()}
    print(f"\n{TOY}; one thread; program: {EPOCHS} epochs and everything before")
    print(
        f"  {'':<58} {'µs/update':>9} {'spread':>15}  × DataLoader  × indexing  start, s  program, s  frames     loss"
    )
    for name, each in found.items():
        ratios = [median[name] / median[other] for other in PLAIN]
        start, program = (statistics.median(each[key]) for key in ("start, s", "program, s"))
        print(
            f"  {CONTENDERS[name][2]:<58}  {spread(each['µs per update'])}  {ratios[0]:12.2f}  {ratios[1]:10.2f}"
            f"  {start:8.2f}  {program:10.2f}  {each['frames']:6}  {each['loss']:7.4f}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("contenders", nargs="*", metavar="contender", help=f"of {', '.join(CONTENDERS)} (default: all)")
    parser.add_argument("--passes", type=int, default=3, help="processes for each contender (default: 3)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds in each process (default: 5)")
    parser.add_argument("--no-file", action="store_true", help="print only, keep nothing in benchmarks/results/")
    parser.add_argument("--measure", nargs=2, metavar=("CONTENDER", "ROUNDS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure[0], int(arguments.measure[1]))))
        return
    unknown = set(arguments.contenders) - set(CONTENDERS)
    if unknown:
        parser.error(f"no such contender: {', '.join(unknown)}; there are {', '.join(CONTENDERS)}")
    wanted = [name for name in CONTENDERS if not arguments.contenders or name in (*PLAIN, *arguments.contenders)]
    missing = {name: line for name in wanted if (line := why_left_out(name))}
    for line in missing.values():
        print(line)
    wanted = [name for name in wanted if name not in missing]
    found = run(wanted, arguments.passes, arguments.rounds)
    report(found)
    if refused := list(refusals(found)):
        sys.exit("not the same work, nothing kept: " + "; ".join(refused))
    if not arguments.no_file:
        keep("fit", {package_of(name): installed(package_of(name)) for name in wanted}, contenders=found)


if __name__ == "__main__":
    main()
