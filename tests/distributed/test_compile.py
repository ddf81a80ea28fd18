"""compile=True with several processes: each compiles up to its gradients, with the results of one process."""

import pytest
import torch
from torch import nn

import stoker
from stoker import Checkpoint, metrics, schedule
from stoker.data import Loader
from stoker.errors import NotFinite
from tests.distributed.fits import Tokens, learner, results_of, samples
from tests.distributed.processes import run
from tests.distributed.test_fit import differences
from tests.distributed.test_resume import exit_code_of, terminate
from tests.executors.fits import interpret_graphs


def network():
    torch.manual_seed(0)
    norm = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    norm.register_buffer("seen", torch.zeros(()))
    return norm


def plain(**settings):
    """The last batch has one sample, so one rank has none."""
    of = learner(network(), metrics=[metrics.Accuracy(), metrics.AUROC(name="area")], clip_norm=0.1, **settings)
    return of.fit(samples(37), valid=samples(11), batch_size=12, epochs=3, show=False)


def windows(**settings):
    of = learner(network(), accumulate=2, lr=schedule.cosine(1e-2, steps=6), ema=0.9, **settings)
    return of.fit(samples(37), batch_size=8, epochs=2, show=False)


def tokens(**settings):
    """Can't be compiled: which tokens count depends on values."""
    return learner(Tokens(), loss=None, **settings).fit(Tokens.samples(), batch_size=4, epochs=1, show=False)


def shards(compile=False):
    """FSDP sends messages inside of the forward and backward pass, so its blocks are compiled."""
    return learner(network(), compile=compile, parallel="fsdp" if compile else "auto").fit(
        samples(37), valid=samples(11), batch_size=12, epochs=2, show=False
    )


def recomputed_shards(compile=False):
    parallel = stoker.Parallel(mode="fsdp", wrap=nn.Linear, recompute=True) if compile else "auto"
    of = learner(network(), compile=compile, parallel=parallel, accumulate=2)
    return of.fit(samples(37), batch_size=12, epochs=2, show=False)


FITS = (plain, windows, tokens, shards, recomputed_shards)


def both(rank, size):
    found = {}
    for fit in FITS:
        fitted = fit(compile=True)
        found[fit.__name__] = (
            results_of(fitted),
            fitted._prepared.fit.plan.mode,
            fitted._prepared.fit.plan.reason,
            fitted._prepared.fit.plan.notes,
        )
    return found


@pytest.mark.soak
def test_two_compiled_processes_give_what_one_eager_process_gives():
    expected = {fit.__name__: results_of(fit()) for fit in FITS}
    for found in run(both, 2):
        for name, (out, mode, why, _) in found.items():
            assert differences(out, expected[name], name) == []
            assert mode == ("compiled_backward" if name in ("plain", "windows") else "eager"), (name, why)
        assert "2 processes" not in found["tokens"][2], found["tokens"][2]
        assert found["plain"][2] == "2 processes add up their gradients between backward and step"
        assert any("compiled in" in note for note in found["plain"][3])
        assert "blocks of the sharded model are compiled" in found["shards"][3][0] and not found["shards"][2]


# --- a NaN on one rank


def fit_with_nan(rank, size, compile):
    x, y = samples(48)
    x[-1, 0] = float("nan")  # in the last batch, and in the share of the last rank
    model = network()
    with pytest.raises(NotFinite) as error:
        learner(model, compile=compile).fit(Loader((x, y), batch_size=8), epochs=2, show=False)
    return str(error.value), model.state_dict()


@pytest.mark.soak
def test_all_compiled_ranks_refuse_an_update_with_a_nan_on_one():
    text, weights = fit_with_nan(0, 1, compile=False)
    for found, theirs in run(fit_with_nan, 2, True):
        assert found == text.replace("gradient is not", "gradient of rank 1 is not")
        assert differences(theirs, weights, "weights") == []


# --- resuming


def cut_and_whole(rank, size, folder, parallel):
    if parallel == "ddp":
        interpret_graphs(pytest.MonkeyPatch())  # the test above runs the compiler

    def fit(name, **more):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 4))
        x, y = samples(64)
        durable = {"run": f"{folder}/{name}", "resume": True, "checkpoint": Checkpoint(every=3, background=False)}
        of = learner(model, compile=True, parallel=parallel)
        return of.fit((x.float(), y), batch_size=16, epochs=3, show=False, **durable, **more)

    # A callback on batches changes the program, so both fits have one.
    assert exit_code_of(fit, name="cut", callbacks=[terminate(1, 2, 2)]) == 143
    found = [fit(name, callbacks=[terminate(1, 9, 9)]) for name in ("cut", "whole")]
    mode = "compiled_backward" if parallel == "ddp" else "eager"  # the blocks are compiled
    assert [each._prepared.fit.plan.mode for each in found] == [mode] * 2
    return [results_of(each) for each in found]


@pytest.mark.soak
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_compiled_run_of_two_processes_resumes_to_the_same_bits(parallel, tmp_path):
    for cut, whole in run(cut_and_whole, 2, str(tmp_path), parallel):
        assert cut["history"] == whole["history"]
        assert all(torch.equal(value, whole["weights"][name]) for name, value in cut["weights"].items())


def sum_of_squares(predictions, targets):
    """Nothing says that it is a sum; stoker finds out in the first batch."""
    return (predictions - targets).square().sum()


def resumed_sum(rank, size, folder):
    """A resumed run whose steps are all compiled, and one that is not."""
    interpret_graphs(pytest.MonkeyPatch())
    x, _ = samples(64)

    def fit(name, epochs, **settings):
        of = learner(network(), loss=sum_of_squares, optimizer=stoker.optim.SGD(), lr=1e-3, **settings)
        data = (x, x[:, :4] * 2)
        return of.fit(data, batch_size=16, epochs=epochs, run=f"{folder}/{name}", resume=True, show=False)

    for epochs in (1, 3):
        compiled = fit("compiled", epochs, compile=True)
    return results_of(compiled), results_of(fit("eager", 3))


def test_a_resumed_compiled_run_adds_up_a_loss_that_is_a_sum(tmp_path):
    for compiled, eager in run(resumed_sum, 2, str(tmp_path)):
        assert differences(compiled["weights"], eager["weights"], "weights") == []


def test_the_plan_of_a_compiled_run_with_two_processes(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    plan = str(
        stoker.Learner(nn.Linear(6, 4).double(), loss=nn.CrossEntropyLoss(), compile=True).explain(samples(8), epochs=1)
    )
    assert "compiled up to the gradients" in plan
    assert "summed over the ranks after the backward pass, which is compiled" in plan


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
