"""Requests, NaNs and errors of one rank: all ranks act on them after the same update."""

import os
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

import stoker
from stoker import BadData, Callback, Checkpoint, InvalidArgument, NotFinite, RunExists, StateMismatch, callbacks, optim
from stoker.record import Run, send_request
from tests.distributed.fits import learner, results_of, samples
from tests.distributed.processes import run
from tests.distributed.test_fit import differences
from tests.distributed.test_resume import InjectNaN


def fit(*hooks, data=None, batch_size=16, epochs=2, of=None, **settings):
    trained = learner(optimizer=optim.SGD()) if of is None else of
    return trained.fit(
        samples(96) if data is None else data,
        batch_size=batch_size,
        epochs=epochs,
        callbacks=hooks,
        show=False,
        **settings,
    )


def at(rank, epoch, batch, act, *, event="train_batch_end"):
    """A hook of one rank only."""

    def hook(ctx):
        if stoker.world().rank == rank and (ctx.epoch, ctx.batch_number) == (epoch, batch):
            act(ctx)

    return callbacks.on(**{event: hook})


def place(fitted):
    return fitted.epochs, fitted.updates, fitted.stopped


# --- stopping and saving


def fit_until_stopped(rank, size, folder):
    found = {}
    stop = at(1, 1, 3, lambda ctx: ctx.stop(f"rank {stoker.world().rank} has seen enough"))
    found["one"] = place(fit(stop))
    two = [at(each, 1, 3, lambda ctx: ctx.stop(f"requested by rank {stoker.world().rank}")) for each in (2, 1)]
    found["two"] = place(fit(*two))
    begin = callbacks.on(fit_begin=lambda ctx: ctx.stop("not today") if stoker.world().rank == 2 else None)
    found["begin"] = place(fit(begin))
    end = callbacks.on(epoch_end=lambda ctx: ctx.stop("one is enough") if stoker.world().rank == 2 else None)
    found["epoch"] = place(fit(end))
    after = callbacks.on(validation=lambda ctx: ctx.stop("validated") if stoker.world().rank == 1 else None)
    found["validation"] = place(fit(after, valid=samples(9), validate_every=4))
    early = callbacks.EarlyStopping("valid/loss", patience=1, min_delta=10.0)
    found["early"] = place(fit(early, valid=samples(9), epochs=9))
    ticks = iter(range(0, 100, 3))
    found["time"] = place(fit(callbacks.StopOnTime(seconds=5, clock=lambda: next(ticks) if rank == 1 else 0)))
    found["updates"] = place(fit(epochs=None, updates=7))
    found["minutes"] = place(fit(minutes=1e-9, epochs=None))[:2]
    return found


def test_all_ranks_stop_after_the_same_update():
    answers = run(fit_until_stopped, 3, "")
    assert answers[0] == {
        "one": (1, 4, "rank 1 has seen enough"),
        "two": (1, 4, "requested by rank 1"),
        "begin": (0, 0, "not today"),
        "epoch": (1, 6, "one is enough"),
        "validation": (1, 4, "validated"),
        "early": (2, 12, answers[0]["early"][2]),
        "time": (1, 3, "Time limit of 5 seconds reached at epoch 1, batch 2"),
        "updates": (2, 7, "Completed 7 updates"),
        "minutes": (1, 2),
    }
    assert answers[1] == answers[2] == answers[0]


def fit_and_save(rank, size, folder):
    path = Path(folder)
    every = Checkpoint(every=100, background=False, keep_last=9)
    save = at(1, 1, 3, lambda ctx: ctx.save("rank 1 wants it"))
    fit(save, run=path / "request", checkpoint=every)
    fit(at(2, 1, 2, lambda ctx: os.kill(os.getpid(), signal.SIGUSR1)), run=path / "signal", checkpoint=every)
    fit(run=path / "clock", checkpoint=Checkpoint(every="0.00001 minutes", keep_last=99), epochs=1)
    fit(run=path / "best", checkpoint=Checkpoint(every=4, keep_best="valid/loss", keep_last=9), valid=samples(9))
    request = at(0, 1, 2, lambda ctx: send_request(path / "control", "stop", by="a viewer"))
    stopped = fit(request, run=path / "control", epochs=400)
    stoker.barrier()
    events = {
        name: Run.open(path / name).record.events_of("checkpoint") for name in ("request", "signal", "clock", "best")
    }
    saved = {name: [(each.update, each.extra["reason"]) for each in found] for name, found in events.items()}
    return saved, stopped.stopped.split(", in")[0], stopped.updates


@pytest.mark.soak
def test_all_ranks_save_after_the_same_update_and_one_writes(tmp_path):
    answers = run(fit_and_save, 3, str(tmp_path))
    saved, stopped, updates = answers[0]
    assert saved["request"] == [(0, "the beginning"), (4, "rank 1 wants it"), (12, "the end")]
    assert saved["signal"] == [(0, "the beginning"), (3, "requested by SIGUSR1"), (12, "the end")]
    # Due after the first batch, agreed on after the second, done after the third.
    assert saved["clock"][1] == (3, "every 1e-05 minutes")
    assert [update for update, _ in saved["best"]][:4] == [0, 4, 6, 8]
    assert (stopped, updates) == ("Stop requested by a viewer", updates)
    assert updates < 2400
    assert answers[1:] == [answers[0]] * 2


# --- losses that are not finite


def fit_with_nan(rank, size, folder):
    """NaN in the share of rank 1: the same update is refused everywhere, as with one process."""
    found = {}
    for name, settings in {"plain": {}, "window": {"accumulate": 2}, "shards": {"parallel": "fsdp"}}.items():
        skipping = learner(on_nan="skip", optimizer=optim.SGD(), **settings)
        fitted = fit(InjectNaN(size - 1, 1, 3), of=skipping)
        warnings = [event.text for event in fitted.record.events_of("warning")]
        found[name] = results_of(fitted), warnings
        with pytest.raises(NotFinite) as error:
            fit(InjectNaN(size - 1, 2, 3), of=learner(optimizer=optim.SGD(), **settings))
        found[name] += (str(error.value),)
    return found


def test_all_ranks_refuse_an_update_with_a_nan_on_one():
    alone = fit_with_nan(0, 1, "")
    for found in run(fit_with_nan, 2, ""):
        for name, (outcome, warnings, text) in found.items():
            assert differences(outcome, alone[name][0], name) == []
            assert warnings == alone[name][1]
            assert text == alone[name][2].replace("gradient is not", "gradient of rank 1 is not")


def skip_in_micro_batches(rank, size):
    """Rank 0 has two samples of five, and so one micro-batch; rank 1 has two micro-batches, and a NaN in one."""
    x, y = samples(35)
    x[13] = float("nan")
    loader = stoker.data.Loader((x, y), batch_size=5, shuffle=False)
    fitted = learner(on_nan="skip", optimizer=optim.SGD()).fit(loader, epochs=1, micro_batch=2, show=False)
    return fitted.updates, results_of(fitted)["weights"]


def test_ranks_with_different_numbers_of_micro_batches_skip_together():
    (updates, first), (_, second) = run(skip_in_micro_batches, 2)
    assert updates == 7 and all(each.isfinite().all() for each in first.values())
    assert all(torch.equal(each, second[name]) for name, each in first.items())


def fit_invalid(rank, size, folder):
    texts = []
    with pytest.raises(InvalidArgument) as error:
        fit(data=samples(96 + rank))
    texts.append(str(error.value))
    if rank == 0:
        Run.create(f"{folder}/taken").close()
    stoker.barrier()
    with pytest.raises(RunExists) as exists:
        fit(run=f"{folder}/taken")
    texts.append(str(exists.value))
    dataset = torch.utils.data.TensorDataset(*samples(32))
    with pytest.raises(InvalidArgument, match="pass its dataset"):
        fit(data=torch.utils.data.DataLoader(dataset, batch_size=8), batch_size=None)
    if rank == 0:  # explain needs no other rank
        learner().explain(samples(96), epochs=2, run=f"{folder}/taken")
    differing = {
        "run": {"run": None if rank else f"{folder}/new"},
        "checkpoint": {"run": f"{folder}/new", "checkpoint": Checkpoint(keep_last=rank + 1, deadline=2e9 + rank)},
        "validate_every": {"valid": samples(9), "validate_every": rank + 3},
        "lr": {"of": learner(lr=0.1 * (rank + 1))},
        "parallel.mode": {"of": learner(parallel=("ddp", "fsdp")[rank])},
        "the samples of train": {"data": samples(96, seed=rank)},
        "the samples of valid": {"valid": samples(9, seed=rank)},
    }
    for name, settings in differing.items():
        with pytest.raises(InvalidArgument, match=rf"rank {1 - rank} runs another training(.|\n)*\n  {name}: "):
            fit(**settings)
    assert not Path(folder, "new").exists()
    fitted = fit(epochs=1)
    with pytest.raises(InvalidArgument, match=r"\n  epochs: "):
        fitted.continue_(epochs=rank + 1, show=False)
    texts.append(fit(run=f"{folder}/new", checkpoint=Checkpoint(deadline=2e12 + rank)).stopped)
    return texts


class Uneven(torch.utils.data.IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(zip(*samples(self.count), strict=True))


class ChangeOneRate(Callback):
    """One rank changes its learning rate."""

    def on_train_batch_after_backward(self, ctx):
        if stoker.world().rank == 1 and (ctx.epoch, ctx.batch_number) == (2, 2):
            ctx.lr = 2 * ctx.lr


def fit_diverging(rank, size, folder):
    """Ranks that diverge: all of them raise, and none waits."""
    stream, texts = Uneven(40 + 16 * rank), []
    fitted = fit(epochs=1)
    for use in (
        lambda: fit(data=stream, batch_size=8),
        lambda: fit(valid=stream),
        lambda: fitted.evaluate(stream, batch_size=8),
        lambda: fitted.predict(stream, batch_size=8),
    ):
        with pytest.raises(BadData) as error:
            use()
        texts.append(str(error.value))
    with pytest.raises(StateMismatch) as other:
        fit(ChangeOneRate(), run=f"{folder}/alone", epochs=4)
    texts.append(str(other.value))
    x, y = samples(96)
    freeze = at(1, 2, 0, lambda ctx: ctx.model.requires_grad_(False), event="epoch_begin")
    with pytest.raises(InvalidArgument, match="rank 1 trains other parameters than rank 0 in epoch 2, for example "):
        fit(freeze)
    with pytest.raises(NotFinite, match="every update of epoch 1 was skipped"):
        fit(data=(x * float("nan"), y), of=learner(on_nan="skip"), run=f"{folder}/skipped")
    stoker.barrier()
    saved = Run.open(f"{folder}/skipped").record.events_of("checkpoint")
    texts.append([each.extra["reason"] for each in saved])
    return texts


@pytest.mark.soak
def test_errors_for_ranks_that_diverge(tmp_path):
    (*streams, weights, saved), second = run(fit_diverging, 2, str(tmp_path))
    assert [*streams, weights, saved] == second
    assert streams[0] == (
        "rank 0's stream ended after 5 batches, and rank 1's did not: every rank reads the same stream, and stoker "
        "gives each its share of it"
    )
    assert [text.startswith("rank 0's stream ended after ") for text in streams] == [True] * 4
    assert weights.startswith("rank 1 has other weights than rank 0 at the end of epoch 2: 0.weight and 5 more. Every ")
    assert saved == ["the beginning", "exception: NotFinite"]


def padding(rank, size, folder):
    seen = {"train": [], "valid": []}
    watch = callbacks.on(
        train_batch_end=lambda ctx: seen["train"].append(ctx.is_padding),
        valid_batch_end=lambda ctx: seen["valid"].append(ctx.is_padding),
        epoch_end=lambda ctx: seen.update(after=ctx.is_padding),
    )
    fit(watch, data=samples(3), batch_size=2, valid=samples(1), epochs=1)
    return seen


def test_a_hook_can_detect_a_padding_batch():
    assert run(padding, 2, "") == [
        {"train": [False, True], "valid": [True], "after": False},
        {"train": [False, False], "valid": [False], "after": False},
    ]


@pytest.mark.soak
def test_errors_are_raised_on_every_rank(tmp_path):
    (first, taken, stopped), (second, also, _) = run(fit_invalid, 2, str(tmp_path))
    assert stopped == "Completed 2 epochs"
    assert first.startswith("rank 1 runs another training than rank 0\n  samples: 97 there, 96 here")
    assert second.startswith("rank 0 runs another training than rank 1\n  samples: 96 there, 97 here")
    assert taken == also
    assert "already holds a run" in taken


# --- warnings and plans


class Warn(Callback):
    def on_train_batch_end(self, ctx):
        if stoker.world().rank == 1 and ctx.batch_number == 1 and ctx.epoch == 1:
            ctx.warn("this node is hot")

    def on_fit_end(self, ctx):
        ctx.warn("from all ranks")


def warn_and_explain(rank, size, folder):
    numbers = callbacks.CSV(f"{folder}/{rank}.csv")
    fitted = fit(Warn(), numbers, run=f"{folder}/run", checkpoint=False)
    stoker.barrier()
    log = Path(folder, "run", "log.txt").read_text()
    warnings = [event.text for event in Run.open(f"{folder}/run").record.events_of("warning")]
    dropping = learner(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.1)).double(), parallel="ddp")
    overlapped = stoker.Parallel(mode="ddp", bucket_mb=1e-5)
    lines = [dropping.explain(samples(20), epochs=1, batch_size=8)]
    lines.append(learner(parallel="fsdp").explain(samples(20), epochs=1))
    lines.append(learner(parallel=overlapped).explain(samples(20), epochs=1))
    lines.append(learner(accumulate=2, compile=True).explain(samples(20), epochs=1))
    return warnings, log.count("rank 1: this node is hot"), fitted.record.path is None, lines


@pytest.mark.soak
def test_rank_0_writes_and_names_the_rank_that_warned(tmp_path):
    answers = run(warn_and_explain, 2, str(tmp_path))
    for rank, (warnings, logged, in_memory, lines) in enumerate(answers):
        assert warnings == ["rank 1: this node is hot", "from all ranks"]
        assert (logged, in_memory) == (1, rank > 0)
        whole, sharded, overlapped, compiled = lines
        assert f"ranks      2 processes, this is rank {rank}; each has 1/2 of every batch" in whole
        assert "gradients  summed over the ranks in one message after the backward pass" in whole
        assert "gradients  summed over the ranks by DDP during the backward pass" in overlapped
        assert "batch norm each rank normalizes its share" in whole
        assert "dropout    differs between ranks" in whole
        assert "sharding   FSDP2, 3 blocks: each rank has 1/2" in sharded
        assert "gradients  accumulated on each rank, and summed over the ranks once per update" in compiled
        assert "2 processes add up their gradients between backward and step" in compiled
    assert (tmp_path / "0.csv").exists() and not (tmp_path / "1.csv").exists()
