"""Deterministic kernels inside a fit, and a warning where a saved run on a GPU has others."""

import re

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
    assert names_in(lambda: x[rows].sum().backward()) == []  # it sorts the rows
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


def backward_of(function, *shape):
    """A program that differentiates `function` of random numbers."""
    return lambda: function(torch.rand(*shape, requires_grad=True)).sum().backward()


ROWS = torch.tensor([0, 0, 1])
TARGETS = torch.zeros(2, dtype=torch.long)
# Every entry of torch's list of operations that are not deterministic: a program that runs it, and whether it adds up
# floating-point numbers in any order on a GPU. The others, with the reason:
IN_TORCHS_LIST = {
    **{
        f"torch.nn.{kind}{n}d": (None, "cuDNN chooses the algorithm")
        for kind in ("Conv", "ConvTranspose")
        for n in (1, 2, 3)
    },
    "torch.nn.ReplicationPad1d": (backward_of(nn.ReplicationPad1d(1), 1, 2, 4), True),
    "torch.nn.ReplicationPad2d": (backward_of(nn.ReplicationPad2d(1), 1, 2, 4, 4), True),
    "torch.nn.ReplicationPad3d": (backward_of(nn.ReplicationPad3d(1), 1, 2, 4, 4, 4), True),
    "torch.nn.ReflectionPad1d": (backward_of(nn.ReflectionPad1d(1), 1, 2, 4), True),
    "torch.nn.ReflectionPad2d": (backward_of(nn.ReflectionPad2d(1), 1, 2, 4, 4), True),
    "torch.nn.ReflectionPad3d": (backward_of(nn.ReflectionPad3d(1), 1, 2, 4, 4, 4), True),
    "torch.bmm": (None, "of sparse tensors"),
    "torch.Tensor.__getitem__": (backward_of(lambda x: x[ROWS], 4, 3), "on the CPU only"),
    "torch.Tensor.index_put": (
        lambda: torch.zeros(4).index_put((ROWS,), torch.ones(3), accumulate=True),
        "on the CPU only; one that assigns adds nothing up",
    ),
    "torch.Tensor.put_": (lambda: torch.zeros(4).put_(ROWS, torch.ones(3), accumulate=True), True),
    "torch.Tensor.scatter_add_": (lambda: torch.zeros(4).scatter_add_(0, ROWS, torch.ones(3)), True),
    "torch.gather": (backward_of(lambda x: x.gather(0, ROWS), 4), True),
    "torch.index_add": (lambda: torch.zeros(4).index_add(0, ROWS, torch.ones(3)), True),
    "torch.index_select": (backward_of(lambda x: x.index_select(0, ROWS), 4), True),
    "torch.repeat_interleave": (backward_of(lambda x: x.repeat_interleave(ROWS, 0), 3), True),
    "torch.Tensor.index_copy": (lambda: torch.zeros(4).index_copy(0, ROWS, torch.ones(3)), "it adds nothing up"),
    "torch.Tensor.scatter": (lambda: torch.zeros(4).scatter(0, ROWS, torch.ones(3)), "it adds nothing up"),
    "torch.Tensor.scatter_reduce": (lambda: torch.zeros(4).scatter_reduce(0, ROWS, torch.ones(3), "mean"), True),
    "torch.nn.MaxPool3d": (backward_of(nn.MaxPool3d(2), 1, 2, 4, 4, 4), True),
    "torch.nn.AvgPool3d": (backward_of(nn.AvgPool3d(2), 1, 2, 4, 4, 4), True),
    "torch.nn.AdaptiveAvgPool2d": (backward_of(nn.AdaptiveAvgPool2d(2), 1, 2, 4, 4), True),
    "torch.nn.AdaptiveAvgPool3d": (backward_of(nn.AdaptiveAvgPool3d(2), 1, 2, 4, 4, 4), True),
    "torch.nn.AdaptiveMaxPool2d": (backward_of(nn.AdaptiveMaxPool2d(2), 1, 2, 4, 4), True),
    "torch.nn.FractionalMaxPool2d": (backward_of(nn.FractionalMaxPool2d(2, output_size=2), 1, 2, 4, 4), True),
    "torch.nn.FractionalMaxPool3d": (backward_of(nn.FractionalMaxPool3d(2, output_size=2), 1, 2, 4, 4, 4), True),
    "torch.nn.MaxUnpool1d": (backward_of(lambda x: F.max_unpool1d(x, torch.tensor([[[0, 2]]]), 2), 1, 1, 2), True),
    "torch.nn.MaxUnpool2d": (backward_of(lambda x: F.max_unpool2d(x, torch.tensor([[[[0]]]]), 2), 1, 1, 1, 1), True),
    "torch.nn.MaxUnpool3d": (
        backward_of(lambda x: F.max_unpool3d(x, torch.tensor([[[[[0]]]]]), 2), 1, 1, 1, 1, 1),
        True,
    ),
    "torch.nn.functional.interpolate": (
        backward_of(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), 1, 2, 4, 4),
        True,
    ),
    "torch.nn.NLLLoss": (
        backward_of(lambda x: F.nll_loss(x, torch.zeros(2, 4, 4, dtype=torch.long)), 2, 3, 4, 4),
        True,
    ),
    "torch.nn.CTCLoss": (
        backward_of(
            lambda x: F.ctc_loss(x.log_softmax(2), torch.ones(2, 2, dtype=torch.long), (5, 5), (2, 2)), 5, 2, 4
        ),
        True,
    ),
    "torch.nn.EmbeddingBag": (backward_of(lambda x: F.embedding_bag(ROWS, x, TARGETS[:1], mode="max"), 4, 3), True),
    "torch.histc": (lambda: torch.histc(torch.rand(9)), "its sums are whole numbers"),
    "torch.bincount": (lambda: torch.bincount(ROWS, torch.rand(3)), True),
    "torch.median": (lambda: torch.rand(9).median(0), "it adds nothing up: any of several equal numbers is the median"),
    "torch.nn.functional.grid_sample": (
        backward_of(lambda x: F.grid_sample(x, torch.zeros(1, 2, 2, 2), align_corners=False), 1, 2, 4, 4),
        True,
    ),
    "torch.cumsum": (lambda: torch.rand(3).cumsum(0), True),
    "torch.Tensor.resize_": (None, "of quantised tensors"),
}


def test_the_operations_are_those_of_torchs_own_list():
    listed = set(re.findall(r"\* :\w+:`([\w.]+)`", torch.use_deterministic_algorithms.__doc__))
    assert listed == set(IN_TORCHS_LIST)
    for name, (program, is_found) in IN_TORCHS_LIST.items():
        if program is not None:
            assert bool(names_in(program)) is (is_found is True), name


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
def test_deterministic_attention_gives_the_same_bits_twice(tmp_path):
    def weights(path):
        torch.manual_seed(0)
        learner = stoker.Learner(Attention(), loss=F.mse_loss, seed=0, device="cuda", deterministic=True)
        fitted = learner.fit(sequences(), epochs=8, batch_size=32, run=path, checkpoint=Checkpoint(), show=False)
        assert not warnings_of(fitted)
        return fitted.model.state_dict()

    first, second = weights(tmp_path / "1"), weights(tmp_path / "2")
    assert all(torch.equal(first[name], second[name]) for name in first)
