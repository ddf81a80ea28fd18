"""GPT-2 124M: tokens a second, memory and start of `fit`, beside a loop in the manner of nanoGPT.

    python -m examples.records.gpt2                                     both, with tokens that are drawn by code
    python -m examples.records.gpt2 --tokens train.bin                  with a file of uint16 tokens, as nanoGPT has
    python -m examples.records.gpt2 --micro 32 --accumulate 1           one micro-batch to an update
    python -m examples.records.gpt2 --tiny --device cpu                 to see that everything runs

Each of the two trains in a process of its own, on the same batches, with the same optimizer and schedule: the losses
agree up to rounding. README.md says what is measured.
"""

import argparse
import json
import math
import statistics
import sys
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import stoker
from benchmarks._compare import check_target, peak_memory
from benchmarks._harness import ONE_THREAD, Clock, machine, run_tasks, use_one_thread, versions, write_json
from benchmarks._models import GPT
from benchmarks._workloads import token_rows
from benchmarks.gpu import gpu_name
from stoker import data, optim, schedule
from stoker.callbacks import on


@dataclass(frozen=True)
class Setup:
    """What both have to agree on; the numbers are nanoGPT's for GPT-2."""

    vocabulary: int = 50_304  # 50,257 rounded up to a multiple of 64
    length: int = 1024
    sizes: dict = field(default_factory=dict)  # of the model: depth, width, heads
    micro: int = 12  # sequences that are computed at once
    accumulate: int = 40  # micro-batches to an update: 491,520 tokens
    updates: int = 4  # in an epoch, after which the time is taken
    epochs: int = 4  # the first one is not timed
    peak: float = 6e-4
    warmup: int = 2000  # updates
    decay_updates: int = 600_000
    decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip_norm: float = 1.0
    tokens: str | None = None
    device: str = "cuda"
    compile: bool = True

    @property
    def batch(self):
        return self.micro * self.accumulate

    def model(self):
        torch.manual_seed(0)
        return GPT(self.vocabulary, self.length, **self.sizes).to(self.device)

    def windows(self):
        """The sequences of an epoch, each with the token after it: int16 [length + 1]."""
        needed = self.updates * self.batch * self.length + 1
        if self.tokens is None:
            rows, _ = token_rows(math.ceil(needed / self.length), self.length, self.vocabulary)
            tokens = rows.flatten()[:needed].to(torch.int32).numpy().astype(np.uint16).view(np.int16)
        else:
            tokens = np.memmap(self.tokens, dtype=np.int16, mode="r")[:needed]  # read when a batch needs it
        if len(tokens) < needed:
            raise SystemExit(f"{self.tokens} has {len(tokens)} tokens; an epoch needs {needed}")
        return data.windows(tokens, self.length + 1, stride=self.length)


TINY = Setup(
    vocabulary=128,
    length=16,
    sizes={"depth": 2, "width": 32, "heads": 2},
    micro=2,
    accumulate=2,
    warmup=2,
    compile=False,
)


def next_token_loss(model, tokens):
    """The mean over all tokens but the first of each sequence."""
    tokens = tokens.long() & 0xFFFF  # stored as int16, since torch has few operations for uint16
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def train_with_fit(setup, clock):
    """Returns the mean loss of the last epoch."""
    adamw = optim.AdamW(betas=setup.betas, weight_decay=setup.decay)
    without_decay = adamw.replace(weight_decay=0.0)
    learner = stoker.Learner(
        setup.model(),
        step=next_token_loss,
        optimizer={"*norm*": without_decay, "*.bias": without_decay, "*": adamw},
        lr=schedule.cosine(setup.peak, end=setup.peak / 10, warmup=setup.warmup, updates=setup.decay_updates),
        clip_norm=setup.clip_norm,
        precision="bf16",
        device=setup.device,
        compile=setup.compile,
        seed=0,
    )
    batches = data.Loader(setup.windows(), batch_size=setup.batch, shuffle=0)
    fitted = learner.fit(
        batches, micro_batch=setup.micro, epochs=setup.epochs, callbacks=[on(epoch_end=clock)], show=False
    )
    return fitted.history["train/loss"][-1]


def train_in_a_loop(setup, clock):
    """The same as a plain loop: model and loss compiled, the next micro-batch copied while this one is computed."""
    model, is_gpu = setup.model(), setup.device == "cuda"
    decayed = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": decayed, "weight_decay": setup.decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=setup.peak, betas=setup.betas, fused=True)
    loss_of = partial(next_token_loss, model)
    loss_of = torch.compile(loss_of) if setup.compile else loss_of
    windows, update, total = setup.windows(), 0, torch.zeros((), device=setup.device)

    def micro_batches(epoch):
        order = data.Loader(torch.arange(len(windows)), batch_size=setup.micro, shuffle=0).at(epoch=epoch)
        for rows in order:
            tokens = torch.stack([windows[int(row)] for row in rows])
            yield tokens.pin_memory().to(setup.device, non_blocking=True) if is_gpu else tokens

    for epoch in range(setup.epochs):
        batches, total = micro_batches(epoch), torch.zeros_like(total)
        tokens = next(batches)
        for _ in range(setup.updates):
            for _ in range(setup.accumulate):
                with torch.autocast(setup.device, torch.bfloat16):
                    loss = loss_of(tokens) / setup.accumulate
                tokens = next(batches, None)
                loss.backward()
                total += loss.detach()
            torch.nn.utils.clip_grad_norm_(model.parameters(), setup.clip_norm)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(setup, update)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            update += 1
        clock()
    return total.item() / setup.updates


def learning_rate(setup, update):
    if update < setup.warmup:
        return setup.peak * (update + 1) / (setup.warmup + 1)
    passed = min(1.0, (update - setup.warmup) / (setup.decay_updates - setup.warmup))
    return setup.peak * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * passed)))


# --- measuring

CONTENDERS = {"loop": train_in_a_loop, "stoker": train_with_fit}


def measure(name, setup):
    """Trains in this process, which `run_tasks` has started."""
    if setup.device == "cpu":
        use_one_thread()
    clock = Clock(setup.device)
    loss = CONTENDERS[name](setup, clock)
    seconds = clock.seconds_per_epoch(1)
    rates = [setup.updates * setup.batch * setup.length / each for each in seconds]
    start = clock.marks[0] - statistics.median(seconds)
    return {"tokens/s": rates, "start, s": start, "memory, MB": peak_memory(setup.device, "torch"), "loss": loss}


def report(name, found):
    memory = ", ".join(f"{megabytes:,.0f} MB {kind}" for kind, megabytes in found["memory, MB"].items())
    rates = found["tokens/s"]
    return (
        f"{name:<7} {statistics.median(rates):10,.0f} tokens/s (from {min(rates):,.0f} to {max(rates):,.0f}), "
        f"memory {memory}, start {found['start, s']:.1f} s, loss {found['loss']:.4f}"
    )


def check_bars(loop, stoker):
    """What the record has to keep to: at least as many tokens a second, and little more memory and time to start."""

    def least(found, quantity):
        return min(quantity(each) for each in found)

    def seconds(each):
        return 1 / statistics.median(each["tokens/s"])

    def memory(each):
        return next(reversed(each["memory, MB"].values()))  # on a GPU what torch has reserved

    yield check_target("time of a token relative to the loop", least(stoker, seconds) / least(loop, seconds), 1.0)
    yield check_target("memory relative to the loop", least(stoker, memory) / least(loop, memory), 1.05)
    own, other = (least(found, lambda each: each["start, s"]) for found in (stoker, loop))
    yield check_target("start relative to the loop", own / other, 1.2)


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse_arguments(arguments)
    setup = replace(TINY if options.tiny else Setup(), device=options.device, tokens=options.tokens)
    given = {name: getattr(options, name) for name in ("micro", "accumulate", "compile")}
    setup = replace(setup, **{name: value for name, value in given.items() if value is not None})
    if options.measure:
        print(json.dumps(measure(options.measure, setup)))
        return
    tasks = [(name, *arguments) for _ in range(options.passes) for name in CONTENDERS]
    environment = ONE_THREAD if setup.device == "cpu" else {}
    measured = {name: [] for name in CONTENDERS}
    for (name, *_), found, failure in run_tasks("examples.records.gpt2", tasks, environment=environment):
        if failure is not None:
            sys.exit(f"{name} failed:\n{failure}")
        measured[name].append(found)
        print(report(name, found), flush=True)
    print(*check_bars(**measured), sep="\n")
    if options.to:
        facts = {"machine": machine(), "gpu": gpu_name(), "versions": versions("torch", "stoker")}
        facts["setup"] = asdict(setup)
        write_json(options.to, {**facts, **measured})


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tokens", metavar="FILE", help="uint16 tokens; without it they are drawn")
    parser.add_argument("--micro", type=int, help="sequences that are computed at once (default: 12)")
    parser.add_argument("--accumulate", type=int, help="micro-batches to an update (default: 40)")
    parser.add_argument("--passes", type=int, default=1, help="processes for each of the two, in turn (default: 1)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="default: unless --tiny")
    parser.add_argument("--tiny", action="store_true", help="a small model")
    parser.add_argument("--to", type=Path, metavar="FILE", help="keeps the numbers as JSON")
    parser.add_argument("--measure", choices=CONTENDERS, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
