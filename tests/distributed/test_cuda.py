"""Distributed training on a GPU: NCCL and FSDP2 with one process, and two processes that share the device."""

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn

import stoker
from stoker import Checkpoint, Parallel, callbacks, data, metrics
from stoker.engine import RunningTotals
from tests.distributed.fits import CASES, learner, network, results, results_of, samples, whole
from tests.distributed.processes import launched, run
from tests.distributed.test_fit import differences
from tests.distributed.test_resume import exit_code_of, noisy, steady, terminate

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module")
def alone():
    return launched(results, 1, "auto", list(CASES))[0]


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_a_world_of_one_process_gives_the_same(alone, mode):
    (found,) = launched(results, 1, mode, list(CASES))
    for name, expected in alone.items():
        assert differences(found[name], expected, name) == []


def test_two_processes_that_share_a_gpu_give_the_same(alone):
    for found in run(results, 2, "auto", list(CASES)):  # by gloo: NCCL wants a GPU for each
        for name, expected in alone.items():
            assert differences(found[name], expected, name) == []


def planned(rank, size, parallel):
    of = learner(parallel=parallel, device="cuda")
    lines = str(of.explain(samples(64), batch_size=16, epochs=1))
    fitted = of.fit(samples(64), batch_size=16, epochs=1, show=False)
    found = {name: (type(each).__name__, each.device.type) for name, each in fitted.model.named_parameters()}
    backend = dist.get_backend(fitted.model[0].weight.device_mesh.get_group()) if parallel != "ddp" else None
    return lines, fitted._prepared.fit.plan.mode, found, backend


@pytest.mark.parametrize(
    ("parallel", "where"),
    [
        ("fsdp", "cuda"),
        (Parallel(mode="fsdp", offload=True), "cpu"),
        (Parallel(mode="fsdp", wrap=nn.Linear, recompute=nn.Tanh, reshard=False), "cuda"),
    ],
    ids=["plain", "offload", "all of it"],
)
def test_the_plan_of_shards(parallel, where):
    ((lines, mode, found, backend),) = launched(planned, 1, parallel)
    assert "FSDP2" in lines and "the model is distributed over processes" in lines, lines
    assert mode == "eager" and backend == "cpu:gloo,cuda:nccl"
    assert set(found.values()) == {("DTensor", where)}


def test_one_replica_is_captured():
    ((lines, mode, _, _),) = launched(planned, 1, "ddp")
    assert mode == "captured", lines


def fit_in_half_precision(rank, size):
    half = Parallel(mode="fsdp", param_dtype="bf16", reduce_dtype="fp32")
    of = learner(network().float(), parallel=half, device="cuda", lr=0.03)
    x = samples(256)[0].float()
    return of.fit((x, x[:, :4].argmax(1)), batch_size=32, epochs=8, show=False).history["train/loss"]


def test_shards_compute_in_16_bits():
    (losses,) = launched(fit_in_half_precision, 1)
    assert losses[-1] < 0.9 * losses[0]


# --- synchronization


class ForbidSynchronization(callbacks.Callback):
    """From the second epoch on, a synchronization with the device during training raises an error."""

    def on_epoch_begin(self, ctx):
        if ctx.epoch >= 2:
            torch.cuda.set_sync_debug_mode("error")

    def on_train_end(self, ctx):
        torch.cuda.set_sync_debug_mode("default")


def fit_without_synchronization(rank, size, parallel):
    merge_ranks = RunningTotals.merge_ranks

    def merge_and_wait(totals, *args):
        torch.cuda.set_sync_debug_mode("default")  # at the end of an epoch the host waits for its metrics
        return merge_ranks(totals, *args)

    RunningTotals.merge_ranks = merge_and_wait
    of = learner(parallel=parallel, device="cuda", clip_norm=0.1, metrics=[metrics.Accuracy(), metrics.GradientNorm()])
    fitted = of.fit(samples(96), batch_size=8, epochs=4, callbacks=[ForbidSynchronization()], show=False)
    return results_of(fitted)


def test_sharded_training_does_not_synchronise_with_the_device():
    (found,) = launched(fit_without_synchronization, 1, "fsdp")
    (expected,) = launched(fit_without_synchronization, 1, "auto")
    assert differences(found, expected, "shards") == []


def fit_with_nan(rank, size, parallel, batch):
    x, y = samples(96)
    x[8 * (batch - 1) + 5] = float("nan")
    model, before = network(), {}

    def keep(ctx):
        if ctx.batch_number == batch - 1:
            before.update({name: whole(each).cpu() for name, each in ctx.model.state_dict().items()})

    loader = data.Loader((x, y), batch_size=8)
    with pytest.raises(stoker.NotFinite) as error:
        learner(model, parallel=parallel, device="cuda").fit(
            loader, epochs=1, callbacks=[callbacks.on(train_batch_end=keep)], show=False
        )
    return str(error.value), all(
        torch.equal(whole(each).cpu(), before[name]) for name, each in model.state_dict().items()
    )


@pytest.mark.parametrize("batch", [2, 5, 11, 12])
def test_a_nan_is_located_although_it_is_checked_late(batch):
    for found in (launched(fit_with_nan, 1, "fsdp", batch), run(fit_with_nan, 2, "auto", batch)):
        for text, same in found:
            assert f"at epoch 1, batch {batch}" in text and "the batch" in text, text
            assert same


# --- checkpoints


def left(rank, size, folder):
    for mode in ("auto", "fsdp"):
        assert exit_code_of(steady, run=f"{folder}/{mode}", mode=mode, callbacks=[terminate(0, 2, 4)]) == 143


def gone_on(rank, size, folder, before, mode):
    return results_of(steady(f"{folder}/{before}", mode))


@pytest.mark.parametrize("mode", ["auto", "fsdp"])
@pytest.mark.parametrize("before", ["auto", "fsdp"])
def test_a_run_resumes_sharded_or_not(tmp_path, before, mode):
    launched(left, 1, str(tmp_path))
    (found,) = launched(gone_on, 1, str(tmp_path), before, mode)
    (whole,) = launched(gone_on, 1, str(tmp_path), "none", "auto")
    assert differences(found, whole, f"{before} to {mode}") == []


def cut(rank, size, folder):
    assert exit_code_of(noisy, run=f"{folder}/run", mode="fsdp", callbacks=[terminate(0, 2, 3)]) == 143


def whole_and_rest(rank, size, folder):
    """A run that was resumed, and one that was not interrupted; both with the weights as one file."""
    found = {name: noisy(f"{folder}/{name}", mode="fsdp") for name in ("run", "uncut")}
    for name, fitted in found.items():
        stoker.save(fitted.model, f"{folder}/{name}.safetensors")
    return {name: results_of(fitted) for name, fitted in found.items()}


def test_a_sharded_run_resumes_to_the_same_bits_and_is_saved_as_one_file(tmp_path):
    launched(cut, 1, str(tmp_path))
    (found,) = launched(whole_and_rest, 1, str(tmp_path))
    one, other = found["run"], found["uncut"]
    assert one["history"] == other["history"]
    assert all(torch.equal(value, other["weights"][name]) for name, value in one["weights"].items())
    files = [load_file(tmp_path / f"{name}.safetensors") for name in ("run", "uncut")]
    assert files[0].keys() == one["weights"].keys()
    assert all(torch.equal(files[0][name], files[1][name]) for name in files[0])


def in_background(rank, size, folder):
    """Checkpoints that are written while the shards train on."""
    of = learner(network(), parallel="fsdp", device="cuda")
    keep = Checkpoint(every=2, keep_last=3)
    fitted = of.fit(samples(200), batch_size=8, epochs=2, run=f"{folder}/run", checkpoint=keep, show=False)
    return fitted.updates


def test_shards_are_saved_in_the_background(tmp_path):
    (updates,) = launched(in_background, 1, str(tmp_path))
    assert updates == 50
    fitted = stoker.Fitted.load(tmp_path / "run", network())
    assert fitted.updates == 50 and type(next(fitted.model.parameters())) is nn.Parameter
