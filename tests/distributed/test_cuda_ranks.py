"""Several processes that train on CUDA devices: by NCCL with a device each, and by gloo on devices that they may share.

On the simulated device every process has a device of its own. On hardware NCCL wants a GPU for each process.
"""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from stoker import Parallel, metrics
from stoker.distributed import join
from tests.device import SIMULATED
from tests.distributed import test_reducer
from tests.distributed.fits import CASES, learner, results, results_of, samples
from tests.distributed.processes import launched, run
from tests.distributed.test_cuda import fit_in_half_precision, fit_with_nan, fit_without_synchronization
from tests.distributed.test_fit import differences
from tests.distributed.test_resume import one_fails, resume_after_failure, stop_and_resume, to_lists

pytestmark = pytest.mark.cuda

needs_two = pytest.mark.skipif(
    torch.cuda.device_count() == 1 and not SIMULATED, reason="NCCL wants a GPU for each process"
)
BACKENDS = [pytest.param(launched, marks=needs_two, id="nccl"), pytest.param(run, marks=pytest.mark.soak, id="gloo")]
both_backends = pytest.mark.parametrize("start", BACKENDS)


@pytest.fixture(scope="module")
def alone():
    return launched(results, 1, "auto", list(CASES))[0]


# --- results


@both_backends
@pytest.mark.parametrize("mode", ["auto", "overlapped", "fsdp"])
def test_two_processes_give_the_same_as_one(alone, start, mode):
    for found in start(results, 2, mode, list(CASES)):
        for name, expected in alone.items():
            assert differences(found[name], expected, name) == []


@needs_two
@pytest.mark.parametrize("mode", ["overlapped", "fsdp"])
def test_three_processes_give_the_same_as_one(alone, mode):
    names = ["plain", "short", "windows", "tokens", "objectives"]
    for found in launched(results, 3, mode, names):
        for name in names:
            assert differences(found[name], alone[name], name) == []


@both_backends
@pytest.mark.parametrize(
    "parallel",
    [
        Parallel(mode="fsdp", offload=True),
        Parallel(mode="fsdp", wrap=nn.Linear, reshard=False),
        Parallel(mode="fsdp", wrap=nn.Linear, recompute=nn.Tanh),
    ],
    ids=["offload", "no reshard", "recompute"],
)
def test_kinds_of_shards_give_the_same(alone, start, parallel):
    names = ["plain", "windows", "micro_batches"]
    for found in start(results, 2, parallel, names):
        for name in names:
            assert differences(found[name], alone[name], name) == []


@both_backends
def test_shards_compute_in_16_bits(start):
    one, other = start(fit_in_half_precision, 2)
    assert one == other and one[-1] < 0.9 * one[0]


def compiled(rank, size, compile):
    fits = {}
    for accumulate in (1, 3):
        rate = 2**-7  # exact in float32, in which a tensor on a GPU holds it
        of = learner(lr=rate, accumulate=accumulate, clip_norm=0.05, compile=compile, metrics=[metrics.Accuracy()])
        fitted = of.fit(samples(97), batch_size=16, epochs=2, valid=samples(11), show=False)
        fits[accumulate] = results_of(fitted)
    return fits, fitted._prepared.fit.plan.mode


@both_backends
def test_a_compiled_step_ends_with_the_gradients(start):
    ((expected, _),) = launched(compiled, 1, False)  # a whole compiled step rounds in other ways
    for found, mode in start(compiled, 2, True):
        assert mode == "compiled_backward"
        assert differences(found, expected, "compiled") == []


def planned(rank, size, parallel):
    of = learner(parallel=parallel, device="cuda")
    fitted = of.fit(samples(64), batch_size=16, epochs=1, show=False)
    fit = fitted._prepared.fit
    return fit.plan.mode, fit.plan.defers_check, fit.plan.reason, dist.get_backend()


@needs_two
@pytest.mark.parametrize("parallel", ["auto", "fsdp"])
def test_the_finite_check_of_an_eager_step_is_deferred(parallel):
    for mode, is_deferred, reason, backend in launched(planned, 2, parallel):
        assert (mode, is_deferred, backend) == ("eager", True, "cpu:gloo,cuda:nccl")
        assert ("2 processes add up" if parallel == "auto" else "the model is distributed") in reason


# --- gradients


def reduce_on_device(rank, size, modes):
    """The cases of test_reducer.py that take their tensors from `samples` and their model from `Net`."""
    host_samples, host_net = test_reducer.samples, test_reducer.Net

    def sharded(model, world):
        mesh = dist.device_mesh.init_device_mesh("cuda", (world.size,))
        for layer in (model.first, model.tied):
            dist.fsdp.fully_shard(layer, mesh=mesh)
        return dist.fsdp.fully_shard(model, mesh=mesh)

    test_reducer.samples = lambda: [each.cuda() for each in host_samples()]
    test_reducer.Net = lambda: host_net().cuda()
    test_reducer.sharded = sharded
    names = (
        "batch padding not_finite objectives buffers partly_used frozen windows an_empty_window different_objectives"
    )
    cases = [getattr(test_reducer, name) for name in names.split()]
    world = join()
    return {
        f"{case.__name__}, {mode}": case(world, mode)
        for case in cases
        for mode in test_reducer.CASES[case]
        if mode in modes
    }


@both_backends
@pytest.mark.parametrize("size", [2, 3])
def test_gradients_are_those_of_one_process(start, size):
    for found in start(reduce_on_device, size, ["ddp", "values", "fsdp"]):
        assert {name: value for name, value in found.items() if not value <= 1e-6} == {}


# --- synchronization


OVERLAPPED = Parallel(mode="ddp", bucket_mb=1e-5)


@needs_two
@pytest.mark.parametrize("parallel", ["auto", OVERLAPPED, "fsdp"], ids=["one bucket", "overlapped", "fsdp"])
def test_training_does_not_synchronise_with_the_device(parallel):
    (expected,) = launched(fit_without_synchronization, 1, "auto")
    for found in launched(fit_without_synchronization, 2, parallel):
        assert differences(found, expected, "several processes") == []


# --- NaN


@both_backends
@pytest.mark.parametrize("parallel", ["auto", OVERLAPPED, "fsdp"], ids=["one bucket", "overlapped", "fsdp"])
@pytest.mark.parametrize("batch", [2, 12])
def test_a_nan_of_one_rank_is_located_by_all(start, parallel, batch):
    for text, same in start(fit_with_nan, 2, parallel, batch):
        assert f"of rank 1 is not finite at epoch 1, batch {batch}" in text, text
        assert same


# --- resume


@both_backends
def test_a_run_resumes_to_the_same_bits(tmp_path, start):
    answers = start(stop_and_resume, 2, str(tmp_path))
    for found in answers:
        for name, (again, whole) in found.items():
            assert to_lists(again) == to_lists(whole), name
            assert to_lists(again) == to_lists(answers[0][name][0]), name


@both_backends
def test_a_run_resumes_after_an_exception_on_one_rank(tmp_path, start):
    with pytest.raises(AssertionError) as error:
        start(one_fails, 2, str(tmp_path))
    assert "PeerFailed: rank 1 has failed: ValueError: the disk of this node is gone" in str(error.value)
    for again, whole, _ in start(resume_after_failure, 2, str(tmp_path)):
        assert to_lists(again) == to_lists(whole)
