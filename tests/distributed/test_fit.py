"""The same script gives the same losses, metrics, predictions and weights on several processes as on one."""

import math
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import callbacks, data
from tests.distributed.fits import CASES, _fit, learner, network, results, results_of, samples
from tests.distributed.processes import run

MORE_PROCESSES = [("many", 4), ("overlapped", 2), ("fsdp", 3)]


@pytest.fixture(scope="module")
def alone():
    return results(0, 1, "auto", CASES)


@pytest.mark.parametrize(
    ("mode", "size"),
    [("auto", 2), *(pytest.param(*case, marks=pytest.mark.soak) for case in MORE_PROCESSES)],
)
def test_a_fit_gives_the_same_on_any_number_of_processes(alone, mode, size):
    for found in run(results, size, mode, list(CASES)):
        for name, expected in alone.items():
            assert differences(found[name], expected, name) == []


def differences(found, expected, where):
    """The places where two values differ by more than float64 rounding."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        return [each for key in expected for each in differences(found[key], expected[key], f"{where}: {key}")]
    if isinstance(expected, torch.Tensor):
        return differences(found.tolist(), expected.tolist(), where)
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected), where
        return [each for pair in zip(found, expected, strict=True) for each in differences(*pair, where)]
    if isinstance(expected, float):
        same = math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12) or (found != found and expected != expected)
        return [] if same else [f"{where}: {found}, expected {expected}"]
    return [] if found == expected else [f"{where}: {found!r}, expected {expected!r}"]


def test_the_step_of_a_sharded_model_runs_as_its_forward_pass(alone):
    """FSDP gathers parameters in `forward` only; a `train_step`, also one that yields, must be treated like it."""
    for found in run(results, 2, "fsdp", ["tokens", "objectives", "own_loss", "step_function"]):
        for name, outcome in found.items():
            assert differences(outcome, alone[name], name) == []


class Answer(NamedTuple):
    scores: torch.Tensor
    names: list[str]


class NamedAnswers(nn.Module):
    """Returns its predictions in a namedtuple."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(6, 4).double()

    def forward(self, x):
        return self.body(x)

    def predict_step(self, batch):
        scores = self(batch[0])
        return {"answer": Answer(scores, [f"class {each}" for each in scores.argmax(1).tolist()])}


def corners(rank, size, folder):
    """Everything around a fit, in one launch."""
    found = {}
    torch.manual_seed(rank)  # as users' processes do, who say nothing about seeds
    drawn = _fit(stoker.Learner(nn.Linear(6, 4).double(), loss=F.cross_entropy), samples(33), epochs=1)
    found["without a seed"] = results_of(drawn)
    masks = []
    noise = callbacks.on(train_batch_end=lambda ctx: masks.append(torch.rand(3).tolist()))
    of, before = learner(), torch.get_rng_state()
    _fit(of, samples(32), epochs=1, callbacks=[noise])
    assert torch.equal(torch.get_rng_state(), before)
    found["noise"] = masks
    more = _fit(learner(), samples(37), epochs=1).continue_(epochs=1, show=False)
    found["continued"] = results_of(more)
    fitted = _fit(learner(NamedAnswers()), samples(5), epochs=1)
    answer = fitted.predict(samples(5), batch_size=3)["answer"]
    assert type(answer) is Answer
    found["answer"] = answer.scores, answer.names
    found["curve"] = stoker.lr_find(learner(), samples(64), steps=20).suggestion
    found["report"] = str(more.report(f"{folder}/{size}/report.html", samples(5)))
    stream = data.Loader(Stream(), batch_size=8)
    found["stream"] = results_of(_fit(learner(), stream, batch_size=None))
    workers = data.Loader(samples(50), batch_size=8, shuffle=3, transform=doubled, workers=1)
    found["workers"] = results_of(_fit(learner(), workers, batch_size=None))
    return found


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(zip(*samples(27), strict=True))


def doubled(x, y):
    return 2 * x + 0.01 * torch.randn(x.shape, dtype=x.dtype), y


@pytest.mark.soak
def test_predictions_reports_and_streams_are_the_same_on_two_processes(tmp_path):
    for size in (1, 2):
        (tmp_path / str(size)).mkdir()
    alone = corners(0, 1, str(tmp_path))
    first, second = run(corners, 2, str(tmp_path))
    for found in (first, second):
        for name in ("continued", "answer", "stream", "workers"):
            assert differences(found[name], alone[name], name) == []
    assert differences(second["without a seed"], first["without a seed"], "drawn") == []
    assert first["noise"] == alone["noise"]  # rank 0 draws as one process does
    assert not any(mask in first["noise"] for mask in second["noise"])
    assert first["curve"] == second["curve"]
    assert first["report"] == second["report"]
    assert (tmp_path / "2" / "report.html").exists()


def wrapped(rank, size, kind):
    """Trains a model that the user has distributed."""
    from torch.distributed.device_mesh import init_device_mesh

    model, parallel = network(), "auto"
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif kind == "replicas of shards":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
        parallel = stoker.Parallel(mode="fsdp", mesh=mesh)
    elif kind == "tensor, shards":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        parallel = stoker.Parallel(mode="fsdp", mesh=mesh)
    fitted = _fit(learner(model, parallel=parallel, clip_norm=0.1), samples(43), valid=samples(11))
    outcome = results_of(fitted)
    outcome["scores"] = fitted.evaluate(samples(7), batch_size=3)
    outcome["predictions"] = fitted.predict(samples(7)[0], batch_size=3)
    outcome["weights"] = {name.removeprefix("module."): value for name, value in outcome["weights"].items()}
    return outcome


def mesh_of(rank, size):
    """All ranks have the same rows and each has half of the layers; dropout is drawn as in one process."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    model, parallel = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4), nn.Dropout(0.5), nn.Linear(4, 4)).double(), "auto"
    if size > 1:
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
        parallel = stoker.Parallel(mesh=mesh)
    of = learner(model, parallel=parallel, optimizer=stoker.optim.SGD(foreach=False), lr=0.1)
    if rank == 0 and size > 1:  # called on one rank only
        assert "2 processes, this is rank 0; each has 1/1 of every batch" in of.explain(samples(32), epochs=2)
    return results_of(_fit(of, samples(32)))


@pytest.mark.soak
def test_ranks_with_the_same_rows_draw_the_same_dropout():
    expected = mesh_of(0, 1)
    for found in run(mesh_of, 2):
        assert differences(found, expected, "mesh") == []


KINDS = [("ddp", 2), ("replicas of shards", 4), ("tensor, shards", 4)]


@pytest.mark.parametrize(("kind", "size"), KINDS)
@pytest.mark.soak
def test_a_model_that_is_distributed_already_is_trained_as_it_is(kind, size):
    expected = wrapped(0, 1, "alone")
    for found in run(wrapped, size, kind):
        assert differences(found, expected, kind) == []


class Limited(nn.Module):
    """Runs out of memory if it gets more samples than fit; has a buffer, which ranks send each other."""

    def __init__(self, most):
        super().__init__()
        self.most, self.body = most, network()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if len(x) > self.most and self.training:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.seen += 1
        return self.body(x)


def run_out_of_memory(rank, size):
    """Rank 1 has less memory than the others."""
    fitted = _fit(learner(Limited(3 if rank == 1 else 100)), samples(97), micro_batch="auto", valid=samples(9, seed=6))
    return results_of(fitted)


@pytest.mark.soak
def test_a_rank_that_runs_out_of_memory_splits_its_share_alone():
    expected = results_of(_fit(learner(Limited(100)), samples(97), valid=samples(9, seed=6)))
    del expected["weights"]["seen"]  # counts forward passes
    for found in run(run_out_of_memory, 2):
        del found["weights"]["seen"]
        assert differences(found, expected, "fit") == []
