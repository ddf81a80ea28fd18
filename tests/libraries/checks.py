"""A `Case` describes a model of another library; `test_models.py` compares all of them with plain PyTorch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import stoker
from stoker import Callback, Learner, data, optim
from stoker.data import move_batch

SEED, EPOCHS = 0, 2
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Case:
    """A small model with random weights, its data, and how it is trained."""

    make: Callable[[], nn.Module]
    rows: Any  # what `fit` is given
    loss: Callable[[nn.Module, Any], Tensor]  # of a batch, in a plain loop
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the learner: how it finds this loss
    batch_size: int | None = 4
    lr: float = 1e-2
    inputs: Any = None  # rows without targets; by default those with them
    predict: Callable[[nn.Module, Any], Any] | None = None  # the prediction for a batch of them; None if there is none
    count: Callable[[Any], Any] | None = None  # what the loss of a batch is a mean over; samples by default
    metrics_only: bool = False  # there is no loss in eval mode
    tolerance: float = 0.0  # of a view, compared with eval mode
    example: Any = None  # a batch for a summary; by default the first one
    resumed: Mapping[str, Any] = field(default_factory=dict)  # settings of the learner of a run that is resumed

    def model(self) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return self.make()

    def learner(self, **settings: Any) -> Learner:
        given = {"optimizer": optim.AdamW(), "lr": self.lr, "seed": SEED, "device": DEVICE}
        return Learner(self.model(), **given | dict(self.settings) | settings)

    def loader(self, *, inputs: bool = False) -> Any:
        rows = self.inputs if inputs and self.inputs is not None else self.rows
        return data.Loader(rows, batch_size=self.batch_size) if self.batch_size else rows

    def batches(self, *, inputs: bool = False) -> list[Any]:
        return [move_batch(batch, torch.device(DEVICE)) for batch in self.loader(inputs=inputs)]

    def fit(self, learner: Learner, **arguments: Any) -> stoker.Fitted:
        given = {"epochs": EPOCHS, "keep": "last", "show": False}
        return learner.fit(self.loader(), **given | arguments)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


def assert_same(one: Any, other: Any, *, tolerance: float = 0.0) -> None:
    """Compares all tensors and numbers of two structures."""
    left, right = (pytree.tree_leaves(plain(each)) for each in (one, other))
    assert len(left) == len(right) > 0
    for own, theirs in zip(left, right, strict=True):
        if isinstance(own, Tensor) and not tolerance:
            assert torch.equal(own.cpu(), theirs.cpu()), f"differ by {(own.cpu() - theirs.cpu()).abs().max()}"
        elif isinstance(own, Tensor):
            torch.testing.assert_close(own.cpu(), theirs.cpu(), atol=tolerance, rtol=tolerance)
        else:
            assert own == theirs


def plain(value: Any) -> Any:
    """Outputs of other libraries as dicts, lists and tuples."""
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def check_executors(case: Case, *, compile: bool = False) -> str:
    """A fit whose step is replayed has the bits of an eager one (compiled: up to rounding). Returns the plan.

    Both use deterministic kernels: a GPU gives other bits each time to a sum over the edges of a graph.
    """

    class Watcher(Callback):  # between forward and backward, so that the step runs eagerly
        transient = True

        def on_train_batch_after_loss(self, ctx: Any) -> None:
            pass

    settings: dict[str, Any] = {"deterministic": True}
    if compile:  # which draws other random numbers, and rounds otherwise
        make = case.make
        case = replace(case, make=lambda: _without_dropout(make()))
        settings["optimizer"] = optim.SGD()
    replayed = case.fit(case.learner(**settings, compile=compile))
    eager = case.fit(case.learner(**settings), callbacks=[Watcher()])
    assert_same(weights(replayed.model), weights(eager.model), tolerance=1e-5 if compile else 0.0)
    return "\n".join(map(str, replayed.plan))


def _without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model
