"""Loading a run: its result, and its weights into a model."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stoker.checkpoint import Found, load_model_state, model_state
from stoker.distributed import as_parallel, data_world, joined
from stoker.engine import restore_weights, upgrade_state
from stoker.errors import MissingFile, StateMismatch, WrongType
from stoker.learner._arguments import make_model
from stoker.learner._fitted import Result
from stoker.learner._prepare import choose_device, device_of, loss_on_device, make_metrics
from stoker.learner._resume import store_of
from stoker.metrics import Metric
from stoker.record import Best, Record, Run
from stoker.steps import Supervised

if TYPE_CHECKING:
    from stoker.learner._learner import Learner


def load_for_inference(run: str | os.PathLike[str], model: nn.Module) -> nn.Module:
    """Loads the weights of a run (the best so far, if it validates) into a model, and sets evaluation mode.

    >>> import stoker
    >>> x = torch.randn(64, 3)
    >>> learner = stoker.Learner(nn.Linear(3, 1), loss=nn.MSELoss(), seed=0)
    >>> fitted = learner.fit((x, x.sum(1, keepdim=True)), epochs=2, run="runs/sum", show=False)
    >>> model = load_for_inference("runs/sum", nn.Linear(3, 1))
    >>> torch.equal(model.weight, fitted.model.weight)
    True

    The run may be finished, killed or still running: the newest complete checkpoint is read, and nothing is written.
    """
    if not isinstance(model, nn.Module):
        raise WrongType(f"load_for_inference takes a model instance to load weights into, got {model!r}")
    _load_weights(model, _newest_checkpoint(Run.open(run)).state)
    return model.eval()


def load_result(run: str | os.PathLike[str], learner: "Learner | nn.Module | None") -> Result:
    """Returns the result of a run; with a learner or a model, the model has its weights."""
    opened = Run.open(run)
    found = _newest_checkpoint(opened)
    assert found.saved is not None
    progress = found.state["progress"]
    own = None if isinstance(learner, nn.Module) else learner
    model = make_model(own.model) if own is not None else learner if isinstance(learner, nn.Module) else None
    home = device = torch.device("cpu")
    supervised = None
    if model is not None:
        _load_weights(model, found.state)
        home, device = device_of(model), choose_device(None if own is None else own.device, model)
        if not callable(getattr(model, "train_step", None)):
            supervised = Supervised(model, None if own is None else loss_on_device(own.loss, device))
    metrics = [] if own is None else make_metrics(own.metrics)
    parallel = None if own is None else as_parallel(own.parallel)
    return Result(
        model=model,
        record=Record.open(opened.path),
        best=None if progress["best"] is None else Best(*progress["best"]),
        epochs=progress["epoch"],
        updates=progress["update"],
        stopped=found.saved.ended or "",
        supervised=supervised,
        metrics=[each for each in metrics if isinstance(each, Metric) and each.on != "train"],
        precision=str(found.state["identity"]["fixed"]["precision"]),
        device=device,
        home=home,
        run=opened.path,
        split=None if parallel is None or parallel.mesh is None else data_world(joined(device), parallel),
    )


def _newest_checkpoint(run: Run) -> Found:
    found = store_of(run).newest()
    if found.saved is None:
        reason = "\n  ".join(["", *found.problems]) if found.problems else " It was not saved, or ended too early"
        raise MissingFile(f"there is no complete checkpoint in {str(run.path)!r}.{reason}")
    return found._replace(state=upgrade_state(found.state))


def _load_weights(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Loads the weights that `fit` would have returned: the best, the EMA, the optimizer's, or the last."""
    ema = state["average"] and {**state["average"]["parameters"], **state["average"]["buffers"]}
    chosen = state["best"] or ema or state["eval_weights"]
    own = model_state(model)
    modes = {name: own[name] for name in ("trainable", "evaluating")}  # these stay as they are in the model
    try:
        load_model_state(model, {**state["model"], **modes})
        if chosen is not None:
            restore_weights(model, chosen)
    except StateMismatch as error:
        raise StateMismatch(str(error).replace("the state does", "the weights of the run do")) from None
