"""A run's outcome back from its directory: the numbers by themselves, the weights into a model that the user makes."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stoker.checkpoint import Found, load_model_state, model_state
from stoker.distributed import data_world, joined
from stoker.errors import MissingFile, StateMismatch, WrongType
from stoker.engine import restore_weights, upgrade_state
from stoker.learner._outcome import Outcome
from stoker.learner._prepare import device_for, device_of, loss_on, metrics_of
from stoker.learner._resume import store_of
from stoker.learner._spec import Spec
from stoker.metrics import Metric
from stoker.record import Best, Record, Run
from stoker.steps import Supervised


def load_for_inference(run: str | os.PathLike[str], model: nn.Module) -> nn.Module:
    """Puts the weights that a run has kept (its best so far, where it validates) into a model, in evaluation mode.

    >>> import stoker
    >>> x = torch.randn(64, 3)
    >>> learner = stoker.Learner(nn.Linear(3, 1), loss=nn.MSELoss(), seed=0)
    >>> fitted = learner.fit((x, x.sum(1, keepdim=True)), epochs=2, run="runs/sum", show=False)
    >>> model = load_for_inference("runs/sum", nn.Linear(3, 1))
    >>> torch.equal(model.weight, fitted.model.weight)
    True

    The run may be over, killed or still going on: the newest whole checkpoint is read, and nothing is written.
    """
    if not isinstance(model, nn.Module):
        raise WrongType(f"load_for_inference puts weights into a model: give an instance, not {model!r}")
    state = newest(Run.open(run)).state
    put(model, state)
    return model.eval()


def outcome_in(run: str | os.PathLike[str], spec: Spec | nn.Module | None) -> Outcome:
    """What a run has come to; with a learner's spec (or a model), also the model with its weights."""
    opened = Run.open(run)
    found = newest(opened)
    assert found.saved is not None
    loop = found.state["progress"]
    model = spec.make_model() if isinstance(spec, Spec) else spec
    own = isinstance(spec, Spec)
    if model is not None:
        put(model, found.state)
    home = torch.device("cpu") if model is None else device_of(model)
    device = device_for(spec.device if own else None, model) if model is not None else home
    has_step = callable(getattr(model, "train_step", None))
    loss = loss_on(spec.loss, device) if own and not has_step else None
    numbers = [each for each in metrics_of(spec.metrics) if isinstance(each, Metric)] if own else []
    return Outcome(
        model=model,
        record=Record.open(opened.path),
        best=None if loop["best"] is None else Best(*loop["best"]),
        epochs=loop["epoch"],
        updates=loop["update"],
        stopped=found.saved.ended or "",
        supervised=None if has_step or model is None else Supervised(model, loss),
        metrics=[each for each in numbers if each.on != "train"],
        precision=str(found.state["identity"]["fixed"]["precision"]),
        device=device,
        home=home,
        run=opened.path,
        split=data_world(joined(device), spec.parallel) if own and spec.parallel.mesh is not None else None,
    )


def newest(run: Run) -> Found:
    """The newest whole checkpoint; an error where there is none that says what was found."""
    found = store_of(run).newest()
    if found.saved is None:
        why = "\n  ".join(["", *found.problems]) if found.problems else " It was not saved, or never came that far"
        raise MissingFile(f"there is no whole checkpoint in {str(Path(run.path))!r}.{why}")
    return found._replace(state=upgrade_state(found.state))


def put(model: nn.Module, state: Mapping[str, Any]) -> None:
    """The weights that a state would have given: the best, the average, what the optimizer means, or the last."""
    average = state["ema"] and {**state["ema"]["parameters"], **state["ema"]["buffers"]}
    kept = state["best_weights"] or average or state["eval_weights"]
    try:
        load_model_state(model, {**state["model"], **_modes(model)})
        if kept is not None:
            restore_weights(model, kept)
    except StateMismatch as error:
        raise StateMismatch(str(error).replace("this state doesn't", "the run's weights don't")) from None


def _modes(model: nn.Module) -> dict[str, Any]:
    """Which parts train and evaluate stays the model's own business."""
    own = model_state(model)
    return {name: own[name] for name in ("trainable", "evaluating")}
