"""Deterministic kernels inside a fit, and a warning where a saved run on a GPU has others."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import Callback, Checkpoint
from stoker.engine import check_deterministic
from stoker.engine._deterministic import AtomicOperations
from stoker.errors import InvalidArgument, WrongType
from tests.device import size


def settings():
    cudnn = torch.backends.cudnn
    return torch.get_deterministic_debug_mode(), cudnn.deterministic, cudnn.benchmark


class Watch(Callback):
    def __init__(self, *, fails=False):
        self.seen, self.fails = [], fails

    def on_train_batch_end(self, ctx):
        self.seen.append(settings())
        if self.fails:
            raise KeyError("stop")


def fit(model=None, *, watch=None, run=None, data=None, **learner):
    x = torch.randn(16, 3)
    learner = stoker.Learner(nn.Linear(3, 1) if model is None else model, loss=F.mse_loss, seed=0, **learner)
    watching = [] if watch is None else [watch]
    return learner.fit((x, x[:, :1]) if data is None else data, epochs=1, callbacks=watching, run=run, show=False)


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("fails", [False, True])
def test_the_settings_of_pytorch_change_inside_a_fit_only(mode, fails):
    torch.set_deterministic_debug_mode(mode)
    torch.backends.cudnn.benchmark = True
    before, watch = settings(), Watch(fails=fails)
    try:
        if fails:
            with pytest.raises(KeyError):
                fit(watch=watch, deterministic=True)
        else:
            fit(watch=watch, deterministic=True)
        assert settings() == before
        fit(watch=(plain := Watch()))
    finally:
        torch.set_deterministic_debug_mode(0)
        torch.backends.cudnn.benchmark = False
    assert watch.seen[0] == (2, True, False)
    assert plain.seen[0] == before


def test_an_operation_without_a_deterministic_kernel_is_refused_with_advice(monkeypatch):
    class Sum(nn.Linear):
        def forward(self, x):
            assert torch.are_deterministic_algorithms_enabled()  # what a GPU's kernel asks
            raise RuntimeError("cumsum_cuda_kernel does not have a deterministic implementation, but you set …")

    with pytest.raises(RuntimeError) as caught:
        fit(Sum(3, 1), deterministic=True)
    assert "Learner(deterministic=True) allows no operation without" in caught.value.__notes__[0]


def test_a_gpu_needs_fixed_workspaces_and_the_error_says_how(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with pytest.raises(InvalidArgument, match="CUBLAS_WORKSPACE_CONFIG=:4096:8.*before Python starts"):
        check_deterministic(torch.device("cuda"))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    check_deterministic(torch.device("cuda"))
    with pytest.raises(WrongType, match="deterministic is True or False, got 'yes'"):
        fit(deterministic="yes")


def names_in(function):
    with AtomicOperations() as operations:
        function()
    return operations.names


def test_operations_that_add_up_in_any_order_are_found_also_in_a_backward_pass():
    x, rows = torch.randn(6, 4, requires_grad=True), torch.tensor([0, 0, 1])
    assert names_in(lambda: x[rows].sum().backward()) == ["index_put"]
    assert names_in(lambda: x.index_select(0, rows).sum().backward()) == ["index_add"]
    assert names_in(lambda: x.gather(0, rows[:, None].expand(3, 4)).sum().backward()) == ["scatter_add"]
    assert names_in(lambda: x.cumsum(0).sum().backward()) == ["cumsum"]
    image = torch.randn(1, 2, 4, 4, requires_grad=True)
    resize = lambda mode: F.interpolate(image, scale_factor=2, mode=mode).sum().backward()  # noqa: E731
    assert names_in(lambda: resize("bilinear")) == ["upsample_bilinear2d_backward"]
    assert names_in(lambda: resize("nearest")) == []
    # Integers are exact, and so are assignments and matrix products.
    assert names_in(lambda: rows.clone().index_add_(0, rows, rows)) == []
    assert names_in(lambda: torch.zeros(3).index_put_((rows,), torch.ones(3))) == []
    assert names_in(lambda: (x @ x.T).sum().backward()) == []


# --- GPUs


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.head = nn.Linear(64, 192), nn.Linear(64, 1)

    def forward(self, x):
        q, k, v = self.project(x).view(len(x), -1, 3, 4, 16).permute(2, 0, 3, 1, 4)
        return self.head(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).mean(1))


def sequences():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, size(512, simulated=128), 64, generator=generator)
    return x, x.mean((1, 2))[:, None]


def warnings_of(fitted):
    return [event.text for event in fitted.record.events_of("warning") if "not to the same bits" in event.text]


@pytest.mark.cuda
@pytest.mark.needs_gpu("memory-efficient attention")
def test_a_saved_run_says_once_that_attention_is_not_deterministic(tmp_path):
    fitted = fit(Attention(), data=sequences(), run=tmp_path / "run", device="cuda")
    (warning,) = warnings_of(fitted)
    assert "attention_backward" in warning
    assert not warnings_of(fit(Attention(), data=sequences(), device="cuda"))  # nobody resumes it
    assert not warnings_of(fit(run=tmp_path / "linear", device="cuda"))


@pytest.mark.cuda
def test_deterministic_attention_gives_the_same_bits_twice(tmp_path, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    def weights(path):
        torch.manual_seed(0)
        learner = stoker.Learner(Attention(), loss=F.mse_loss, seed=0, device="cuda", deterministic=True)
        fitted = learner.fit(sequences(), epochs=8, batch_size=32, run=path, checkpoint=Checkpoint(), show=False)
        assert not warnings_of(fitted)
        return fitted.model.state_dict()

    first, second = weights(tmp_path / "1"), weights(tmp_path / "2")
    assert all(torch.equal(first[name], second[name]) for name in first)
