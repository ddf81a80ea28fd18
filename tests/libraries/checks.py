"""What every model of another library has to pass: a `Case` describes one, and checks compare it with plain PyTorch."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import stoker
from stoker import Callback, Checkpoint, Learner, data, optim
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


class StopAt(Callback):
    """Raises after an update, as a crash would."""

    transient = True

    def __init__(self, update: int) -> None:
        self.update = update

    def on_update(self, ctx: Any) -> None:
        if ctx.update == self.update:
            raise Crash


class Crash(Exception):
    pass


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


def assert_same(one: Any, other: Any, *, tolerance: float = 0.0) -> None:
    """Compares all tensors and numbers of two structures."""
    left, right = (pytree.tree_leaves(_plain(each)) for each in (one, other))
    assert len(left) == len(right) > 0
    for own, theirs in zip(left, right, strict=True):
        if isinstance(own, Tensor) and not tolerance:
            assert torch.equal(own.cpu(), theirs.cpu()), f"differ by {(own.cpu() - theirs.cpu()).abs().max()}"
        elif isinstance(own, Tensor):
            torch.testing.assert_close(own.cpu(), theirs.cpu(), atol=tolerance, rtol=tolerance)
        else:
            assert own == theirs


def _plain(value: Any) -> Any:
    """Outputs of other libraries as dicts, lists and tuples."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


# --- the checks


def check_view(case: Case, *, tolerance: float = 0.0) -> None:
    """`valid(model)` computes what `model.eval()` computes, and the model stays in training mode."""
    model, compute = case.model().to(DEVICE).train(), case.predict or case.loss
    batch = case.batches(inputs=case.predict is not None)[0]
    view = stoker.valid(model)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(SEED)
        found = compute(view, batch)
        assert model.training and all(module.training for module in model.modules())
        torch.manual_seed(SEED)
        assert_same(found, compute(model.eval(), batch), tolerance=tolerance)


def check_summary(case: Case, batch: Any = None) -> None:
    """A summary counts all parameters; `explain` describes the fit."""
    model = case.model()
    found = stoker.summary(model, next(iter(case.loader())) if batch is None else batch)
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert len(found.layers) > 1 and found.flops > 0
    text = case.learner().explain(case.loader(), epochs=EPOCHS)
    assert type(model).__name__ in text


def check_training(case: Case, *, tolerance: float = 0.0) -> None:
    """A fit has the weights of a plain loop."""
    model = case.model().to(DEVICE)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=case.lr, fused=True)
    model.train()
    torch.manual_seed(SEED)
    for _ in range(EPOCHS):
        for batch in case.batches():
            optimizer.zero_grad()
            case.loss(model, batch).backward()
            optimizer.step()
    fitted = case.fit(case.learner())
    assert_same(weights(fitted.model), weights(model), tolerance=tolerance)
    first = weights(case.model())
    assert any(not torch.equal(value, first[name]) for name, value in weights(fitted.model).items()), "nothing trained"


def check_resume(case: Case, folder: Path, **settings: Any) -> None:
    """A run that crashes inside an epoch and is resumed has the bits of one that was not interrupted."""
    valid = {} if case.metrics_only else {"valid": case.loader()}
    whole = case.fit(case.learner(**settings), **valid)
    run = {"run": folder / "run", "checkpoint": Checkpoint(every=2, frozen="fingerprint"), **valid}
    try:
        case.fit(case.learner(**settings), **run, callbacks=[StopAt(3)])
        raise AssertionError("it did not crash")
    except Crash:
        pass
    resumed = case.fit(case.learner(**settings), **run, resume=True)
    assert_same(weights(resumed.model), weights(whole.model))
    assert resumed.history["train/loss"] == whole.history["train/loss"]
    loaded = stoker.Fitted.load(folder / "run", case.learner(**settings))
    assert_same(weights(loaded.model), weights(whole.model))


def check_evaluation(case: Case) -> None:
    """`evaluate` has the mean over all samples (or tokens), and `predict` the outputs in the order of the data."""
    fitted = case.fit(case.learner(), epochs=1)
    assert not any(module.training for module in fitted.model.modules())
    model, batches = copy.deepcopy(fitted.model).to(DEVICE), case.batches()
    with torch.no_grad():
        if not case.metrics_only:
            losses = [(case.loss(model, batch).double(), count(case, batch)) for batch in batches]
            mean = sum(loss * size for loss, size in losses) / sum(size for _, size in losses)
            found = fitted.evaluate(case.loader())["loss"]
            assert abs(found - float(mean)) < 1e-6 * max(1.0, abs(float(mean)))
        if case.predict is not None:
            batches = case.batches(inputs=True)
            expected = [_plain(case.predict(model, batch)) for batch in batches]
            whole = pytree.tree_map(lambda *parts: torch.cat(parts), *expected)
            assert_same(_plain(fitted.predict(case.loader(inputs=True))), whole, tolerance=1e-6)


def count(case: Case, batch: Any) -> float:
    if case.count is not None:
        return float(case.count(batch))
    return len(pytree.tree_leaves(_plain(batch))[0])


def check_executors(case: Case, *, compile: bool = False) -> str:
    """A fit whose step is replayed has the bits of an eager one (compiled: up to rounding). Returns the plan."""

    class Watcher(Callback):  # between forward and backward, so that the step runs eagerly
        transient = True

        def on_train_batch_after_loss(self, ctx: Any) -> None:
            pass

    settings: dict[str, Any] = {}
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
