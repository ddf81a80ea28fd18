"""A run of several processes resumes: to the same bits on as many processes, to the same numbers on any other count."""

import os
import shutil
import signal

import pytest
import torch

import stoker
from stoker import Callback, Checkpoint, NotFinite, callbacks, data, metrics, schedule
from tests.distributed.fits import learner, results_of, samples
from tests.distributed.processes import run
from tests.distributed.test_fit import differences
from tests.learner.fits import Net
from tests.learner.fits import learner as noisy_learner

EVERY = Checkpoint(every=4, keep_last=2, background=False)


def terminate(rank, epoch, batch, *, valid=False):
    """One rank gets SIGTERM after a batch, and none of the others does."""

    def send(ctx):
        if stoker.world().rank == rank and (ctx.epoch, ctx.batch_number) == (epoch, batch):
            os.kill(os.getpid(), signal.SIGTERM)

    return callbacks.on(valid_batch_end=send) if valid else callbacks.on(train_batch_end=send)


def exit_code_of(fit, **settings):
    """The code that a fit ends the process with."""
    with pytest.raises(SystemExit) as error:
        fit(**settings)
    return error.value.code


# --- other numbers of processes


def steady(run, mode, **settings):
    """Without dropout, in float64 and in windows of three batches: results do not depend on the number of ranks."""
    of = learner(
        accumulate=3,
        lr=schedule.cosine(1e-2, steps=12),
        metrics=[metrics.Accuracy(), metrics.AUROC(name="area")],
        ema=0.9,
        parallel=mode,
    )
    durable = {} if run is None else {"run": run, "checkpoint": EVERY, "resume": True}
    return of.fit(samples(117), epochs=3, batch_size=16, valid=samples(11), show=False, **durable, **settings)


def stop_runs(rank, size, folder):
    """Stops a run in each mode within an epoch and within an accumulation window."""
    for mode in ("auto", "fsdp"):
        stop = terminate(size - 1, 2, 4)
        assert exit_code_of(steady, run=f"{folder}/{mode}-{size}", mode=mode, callbacks=[stop]) == 143


def resume_runs(rank, size, folder):
    """Resumes every run in both modes."""
    found = {}
    for name in sorted(os.listdir(folder)):
        for mode in ("auto", "fsdp"):
            place = f"{folder}/../{size}/{mode}/{name}"
            if rank == 0:
                shutil.copytree(f"{folder}/{name}", place)
            stoker.barrier()
            fitted = steady(place, mode)
            texts = [event.text for event in fitted.record.events_of("warning")]
            found[f"{name} on {size} with {mode}"] = results_of(fitted), texts
    return found


@pytest.mark.soak
def test_a_run_resumes_with_another_number_of_processes_and_in_another_mode(tmp_path):
    whole = results_of(steady(None, "auto"))
    (tmp_path / "stopped").mkdir()
    for size in (1, 2):
        run(stop_runs, size, str(tmp_path / "stopped"))
    for size in (1, 2):
        first, *others = run(resume_runs, size, str(tmp_path / "stopped"))
        assert len(first) == 8
        for name, (found, texts) in first.items():
            assert differences(found, whole, name) == []
            before = int(name.split("-")[1][0])
            count = "none" if before == 1 else str(before)
            now = "none" if size == 1 else str(size)
            message = f"processes: {count} before, {now} now; the run continues with the new setting"
            assert (message in texts) == (before != size), texts
        for other in others:
            assert all(differences(other[name][0], first[name][0], name) == [] for name in first)


# --- as many processes: to the same bits


def noisy(run=None, *, accumulate=1, mode="auto", **settings):
    """With dropout, batch norm and random augmentation: every random number counts."""
    of = noisy_learner(Net, lr=schedule.cosine(1e-2, steps=40), accumulate=accumulate, parallel=mode, ema=0.9)
    durable = {} if run is None else {"run": run, "checkpoint": EVERY, "resume": True}
    settings_ = {"epochs": 3, "batch_size": 16, "valid": single(41), "show": False, **durable, **settings}
    shaken = data.Loader(single(100), batch_size=settings_.pop("batch_size"), shuffle=7, transform=shake)
    return of.fit(shaken, **settings_)


def single(count):
    x, y = samples(count)
    return x.float(), y


def shake(x, y):
    return x + 0.1 * torch.randn(x.shape), y


class InjectNaN(Callback):
    """One rank's part of a batch becomes NaN."""

    transient = True

    def __init__(self, rank, epoch, batch):
        self.place = rank, epoch, batch

    def on_train_batch_begin(self, ctx):
        if (stoker.world().rank, ctx.epoch, ctx.batch_number) == self.place:
            ctx.batch = ctx.batch[0] * torch.nan, ctx.batch[1]


class CopyRun(Callback):
    """Rank 0 copies the run directory: the state after a kill of all processes at that moment."""

    transient = True

    def __init__(self, run, to, epoch, batch):
        self.run, self.to, self.place = run, to, (epoch, batch)

    def on_train_batch_end(self, ctx):
        if stoker.world().rank == 0 and (ctx.epoch, ctx.batch_number) == self.place:
            shutil.copytree(self.run, self.to)


def stop_and_resume(rank, size, folder):
    """Stops and resumes fits in many ways; returns the results, and those of uninterrupted fits."""
    ways = {
        "inside an epoch": (terminate(1, 2, 3), {}),
        "inside a window": (terminate(0, 2, 4), {"accumulate": 3}),
        "in one between updates": (terminate(0, 2, 2, valid=True), {"validate_every": 3}),
        "in shards": (terminate(1, 2, 3), {"mode": "fsdp", "accumulate": 2}),
    }
    found = {}
    for name, (stop, settings) in ways.items():
        place = f"{folder}/{name}"
        assert exit_code_of(noisy, run=place, callbacks=[stop], **settings) == 143
        found[name] = results_of(noisy(place, **settings)), results_of(noisy(**settings))
    whole = found["inside an epoch"][1]
    with pytest.raises(NotFinite, match="of rank 1 is not finite at epoch 2, batch 3: the batch"):
        noisy(f"{folder}/nan", callbacks=[InjectNaN(1, 2, 3)])
    stoker.barrier()  # rank 0 has written its last events
    saved = stoker.record.Run.open(f"{folder}/nan").record.events_of("checkpoint")[-1]
    assert (saved.extra["reason"], saved.epoch, saved.batch) == ("exception: NotFinite", 2, 2)
    stoker.barrier()
    found["after an exception of all"] = results_of(noisy(f"{folder}/nan")), whole
    noisy(f"{folder}/lived", callbacks=[CopyRun(f"{folder}/lived", f"{folder}/died", 2, 4)])
    found["after a kill of all"] = results_of(noisy(f"{folder}/died")), whole
    return found


@pytest.mark.soak
def test_a_run_resumes_to_the_same_bits_on_as_many_processes(tmp_path):
    answers = run(stop_and_resume, 2, str(tmp_path))
    for found in answers:
        for name, (again, whole) in found.items():
            assert to_lists(again) == to_lists(whole), name
            assert to_lists(again) == to_lists(answers[0][name][0]), name


def to_lists(outcome):
    return {**outcome, "weights": {name: value.tolist() for name, value in outcome["weights"].items()}}


def one_fails(rank, size, folder):
    def fail(ctx):
        if rank == 1 and (ctx.epoch, ctx.batch_number) == (2, 3):
            raise ValueError("the disk of this node is gone")

    noisy(f"{folder}/run", callbacks=[callbacks.on(train_batch_end=fail)])


def resume_after_failure(rank, size, folder):
    warnings = [event.text for event in stoker.record.Run.open(f"{folder}/run").record.events_of("error")]
    return results_of(noisy(f"{folder}/run")), results_of(noisy()), warnings


def test_a_run_resumes_after_an_exception_on_one_rank(tmp_path):
    with pytest.raises(AssertionError) as error:
        run(one_fails, 2, str(tmp_path))
    message = "rank 1 has failed: ValueError: the disk of this node is gone; its traceback is in its own output"
    assert f"PeerFailed: {message}" in str(error.value)
    for again, whole, errors in run(resume_after_failure, 2, str(tmp_path)):
        assert to_lists(again) == to_lists(whole)
        assert errors == [f"PeerFailed: {message}"]


# --- state of a single rank


class Smooth(Callback):
    """Scales the loss of this rank by a running mean of its losses."""

    def __init__(self):
        self.mean = 0.0

    def on_train_batch_after_loss(self, ctx):
        self.mean = 0.9 * self.mean + 0.1 * float(ctx.loss)
        ctx.state["mean"] = 0.5 * ctx.state.get("mean", 0.0) + 0.5 * float(ctx.loss)
        with torch.enable_grad():
            ctx.loss = ctx.loss * (1 + self.mean + ctx.state["mean"])

    def state_dict(self):
        return {"mean": self.mean}

    def load_state_dict(self, state):
        self.mean = state["mean"]


class Centered(torch.nn.Module):
    """A loss with a running mean."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4, dtype=torch.float64))

    def forward(self, scores, target):
        if torch.is_grad_enabled():
            self.mean.lerp_(scores.detach().mean(0), 0.1)
        return torch.nn.functional.cross_entropy(scores - self.mean, target)


def fit_in_parts(rank, size, folder):
    """Fits with state in callbacks and in the loss: 4 epochs at once, and 2 and 2."""
    found = []
    for name, epochs in (("whole", [4]), ("parts", [2, 4])):
        for count in epochs:
            loss = Centered()
            fitted = learner(loss=loss).fit(
                samples(97),
                epochs=count,
                batch_size=16,
                callbacks=[Smooth()],
                run=f"{folder}/{name}",
                resume=True,
                keep="last",
                show=False,
            )
        found.append((results_of(fitted)["weights"], loss.mean))
    return found


@pytest.mark.soak
def test_the_state_of_each_rank_resumes_as_its_own(tmp_path):
    answers = run(fit_in_parts, 2, str(tmp_path))
    for whole, parts in answers:
        assert all(torch.equal(whole[0][name], value) for name, value in parts[0].items())
        assert torch.equal(whole[1], parts[1])
    assert torch.equal(answers[0][0][1], answers[1][0][1])  # rank 0's, also at the end
