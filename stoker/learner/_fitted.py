"""`Fitted`: the result of a fit or of a run, and `load_for_inference`."""

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from stoker._text import pluralize
from stoker.checkpoint import load_model_state, model_state
from stoker.data import Loader
from stoker.distributed import World, as_parallel, data_world, join, propagate_failures, run_on_rank_zero
from stoker.engine import (
    ModelWithLoss,
    WeightCopy,
    check_state,
    evaluate,
    explain_bad_state,
    join_loss,
    predict,
    restore_weights,
    stop_streams_together,
    weights_of,
)
from stoker.errors import BadData, InvalidArgument, MissingFile, StateMismatch, WrongType
from stoker.learner._arguments import make_model
from stoker.learner._data import as_complete_loader, as_ordered_loader
from stoker.learner._prepare import (
    Prepared,
    choose_device,
    device_of,
    make_loss,
    make_metrics,
    make_steps,
    metrics_of_phase,
)
from stoker.learner._ranks import share_loader
from stoker.learner._resume import store_of
from stoker.learner._run import continue_fit, on_device
from stoker.metrics import Meter, Metric, takes_probabilities
from stoker.record import Best, History, Record, Run
from stoker.steps import OwnForward, Steps, named_parts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from stoker._figure import Size
    from stoker.checkpoint import Found
    from stoker.learner._learner import Learner
    from stoker.view.report import Evaluation, Kind


@dataclass(repr=False, eq=False)
class Fitted:
    """A trained model and its history; returned by `Learner.fit` and `Fitted.load`.

    - `model`: an ordinary module in eval mode, on the device that it came from. It has the best weights by the metric
      that `fit` monitors, by default the validation loss; with `keep="last"` or without validation, the last ones.
    - `loss`: the loss function; if it is a module with parameters, they were trained and kept with the model.
    - `best`: the best value of the monitored metric, with its epoch and update; None without validation.
    - `epochs`, `updates`: how many epochs were begun, and how many updates applied.
    - `stopped`: why the fit ended; "" for a run that has not.
    - `plan`: how the fit ran and why, in lines of text as in `Learner.explain`; [] if the run was loaded from disk.
    - `history`: the metrics of every epoch; `record`: all recorded events.
    """

    record: Record
    best: Best | None
    epochs: int
    updates: int
    stopped: str
    plan: list[str]
    _run: Path | None  # the run directory
    _model: nn.Module | None  # None for a run that was loaded without a model
    _steps: Steps | None
    _metrics: Sequence[Metric]
    _precision: str
    _device: torch.device
    _home: torch.device  # where the model is outside of `fit`
    _split: World | None  # the ranks among which a device mesh splits batches; None for all
    _prepared: Prepared | None = None  # what `continue_` needs

    @classmethod
    def of(cls, prepared: Prepared) -> Self:
        """The result of a fit that has ended."""
        fit = prepared.fit
        ctx, events = fit.ctx, fit.ctx.record.path
        return cls(
            record=ctx.record,
            best=ctx.best,
            epochs=ctx.epoch,
            updates=ctx.update,
            stopped=ctx.stopping or "",
            plan=fit.describe(),
            _run=None if events is None else events.parent,
            _model=fit.state.model,
            _steps=fit.step.steps,
            _metrics=fit.valid_metrics,
            _precision=fit.settings.precision,
            _device=fit.device,
            _home=prepared.home,
            _split=None if fit.parallel.mesh is None else fit.ranks.data_world,
            _prepared=prepared,
        )

    @classmethod
    def load(cls, run: str | os.PathLike[str], learner: "Learner | nn.Module | None" = None) -> Self:
        """Loads the result of a run without its data; with a learner or a model, also the weights.

        >>> import stoker
        >>> data = x, y = torch.randn(64, 3), torch.randn(64, 1)
        >>> learner = stoker.Learner(nn.Linear(3, 1), loss=nn.MSELoss(), seed=0)
        >>> fitted = learner.fit(data, epochs=2, run="runs/sum", show=False)
        >>> Fitted.load("runs/sum").history["train/loss"] == fitted.history["train/loss"]
        True
        >>> Fitted.load("runs/sum", learner).evaluate(data) == fitted.evaluate(data)
        True
        """
        from stoker.learner._learner import Learner

        if isinstance(learner, nn.Module):
            learner = Learner(learner)
        if learner is not None and not isinstance(learner, Learner):
            given = f"the class {learner.__name__}" if isinstance(learner, type) else type(learner).__name__
            raise WrongType(f"Fitted.load takes a run, and a learner or a model to load its weights into; got {given}")
        opened = Run.open(run)
        found = _newest_checkpoint(opened)
        assert found.saved is not None
        progress = found.state["progress"]
        with explain_bad_state():
            best = None if progress["best"] is None else Best(*progress["best"])
            precision = str(found.state["identity"]["fixed"]["precision"])
        model = steps = split = None
        home = device = torch.device("cpu")
        metrics: list[Metric] = []
        if learner is not None:
            model = make_model(learner.model)
            loss = make_loss(learner, model)
            _load_weights(model, found.state, loss)
            home, device = device_of(model), choose_device(learner.device, model)
            steps = make_steps(learner, model, loss)
            trained_by = [found.state["identity"]["fixed"][name] for name in ("loss", "train_step")]
            if isinstance(steps.train, OwnForward) and any(trained_by):
                steps = Steps(steps.split)  # it was trained with a loss function or a step that is not given here
            steps.load_loss_count(progress.get("loss_count"), device, is_sum=progress.get("loss_is_sum"))
            metrics = metrics_of_phase(make_metrics(learner.metrics), "valid")
            parallel = as_parallel(learner.parallel)
            split = None if parallel.mesh is None else data_world(join(device), parallel)
        return cls(
            record=Record.open(opened.path),
            best=best,
            epochs=progress["epoch"],
            updates=progress["update"],
            stopped=found.saved.ended or "",
            plan=[],
            _run=opened.path,
            _model=model,
            _steps=steps,
            _metrics=metrics,
            _precision=precision,
            _device=device,
            _home=home,
            _split=split,
        )

    @property
    def model(self) -> nn.Module:
        """The module, with the weights that were kept."""
        if self._model is None:
            raise InvalidArgument(
                "this run was loaded without a model: use Fitted.load(run, learner) or Fitted.load(run, model)"
            )
        return self._model

    @property
    def _known_steps(self) -> Steps:
        assert self._steps is not None, "there are steps if there is a model"
        return self._steps

    @property
    def loss(self) -> Any:
        """The loss, with the parameters that were kept if it has some; None if the model computes it."""
        return None if self._steps is None else self._steps.split.loss

    @property
    def history(self) -> History:
        """The metrics of every epoch."""
        return History(self.record)

    def evaluate(
        self, data: Any, *, metrics: Sequence[Any] | None = None, batch_size: int | None = None
    ) -> dict[str, Any]:
        """Returns the loss and the metrics on other data, by name; `metrics` replaces those of the fit.

        A confusion matrix is nested lists. If several processes trained together, all of them have to call it, and each
        gets the whole result.
        """
        model, world, split = self.model, *self._worlds()
        if metrics is not None:
            metrics = [metric for metric in make_metrics(metrics) if not isinstance(metric, Meter)]
        with propagate_failures(world), on_device(model, self.loss, self._device, self._home):
            loader = as_complete_loader(data, batch_size=batch_size)
            return evaluate(
                model,
                _share_batches(loader, world, split),
                sizes=loader.shared(split.rank, split.size).at(epoch=0).sizes(),
                steps=self._known_steps,
                metrics=self._metrics if metrics is None else metrics,
                device=self._device,
                precision=self._precision,
                world=split,
            )

    def predict(self, data: Any, *, batch_size: int | None = None) -> Any:
        """Returns the model's outputs for all samples, in their order, on the CPU, in the structure of one output.

        Raises `BadData` if there is not one prediction per sample: tensors need a row for each, lists an entry. The
        loss of a batch and caches of Transformers are left out. A `predict_step` says what the predictions are instead.
        The random generators are afterwards as before: if it draws, another call draws the same numbers.
        If several processes trained together, all of them have to call it, and each gets the whole result.
        """
        model, world, split = self.model, *self._worlds()
        with propagate_failures(world), on_device(model, self.loss, self._device, self._home):
            loader = as_ordered_loader(data, batch_size=batch_size)
            return predict(
                model,
                _share_batches(loader, world, split),
                sizes=loader.shared(split.rank, split.size).at(epoch=0).sizes(),
                steps=self._known_steps,
                device=self._device,
                precision=self._precision,
                world=split,
            )

    def continue_(
        self, *, epochs: int | None = None, updates: int | None = None, minutes: float | None = None, show: bool = True
    ) -> "Fitted":
        """Continues with the last weights (not the best), for that much longer, as if the last epoch had just ended.

        An epoch that was cut short (by `updates`, `minutes` or Ctrl-C) is not completed: the next one begins. For an
        exact continuation, give the fit a `run`, and call it again with `resume=True` and more epochs.
        """
        if self._prepared is None:
            raise InvalidArgument(
                "this run was loaded without its data: use fit(..., run=..., resume=True) to continue it"
            )
        try:
            continue_fit(self._prepared, epochs=epochs, updates=updates, minutes=minutes, show=show)
        finally:
            vars(self).update(vars(Fitted.of(self._prepared)))
        return self

    def plot(
        self,
        *names: str,
        kind: "Kind" = "curves",
        data: Any = None,
        labels: Sequence[str] | None = None,
        size: "Size" = "screen",
        ax: "Axes | None" = None,
    ) -> "Figure":
        """Draws the curves of the history, or "lr", "confusion" or "calibration"; needs matplotlib (`stoker[plot]`).

        "confusion" and "calibration" compare the model's predictions for `data` with the targets; `labels` are the
        names of the classes. Without data, a confusion matrix is the one that the fit recorded in its best epoch.
        `size` is "screen", "paper" or "slide"; `figure.savefig` writes vectors to paths that end in .pdf or .svg.
        """
        from stoker.view.report import plot

        evaluation = None if data is None else self._evaluate_predictions(data, labels)
        return plot(self.record, *names, kind=kind, evaluation=evaluation, size=size, ax=ax)

    def report(
        self, path: str | os.PathLike[str] = "report.html", data: Any = None, *, labels: Sequence[str] | None = None
    ) -> Path:
        """Writes a report as one HTML file; with `data`, also the model's errors and worst samples there."""
        from stoker.view.report import report_html, write_report

        evaluation = None if data is None else self._evaluate_predictions(data, labels)

        def write() -> Path:
            return write_report(path, report_html(self._run or self.record, evaluation))

        return run_on_rank_zero(join(self._device), write) or Path(path)

    def _worlds(self) -> tuple[World, World]:
        """All processes, and those among which a batch is split."""
        world = join(self._device)
        return world, world if self._split is None else self._split

    def _evaluate_predictions(self, data: Any, labels: Sequence[str] | None) -> "Evaluation":
        """Compares predictions with targets; only the inputs of the worst samples are kept in memory."""
        from stoker.view.report import evaluate_predictions

        steps = self._known_steps
        loader = as_ordered_loader(data, batch_size=None)
        predictions = self.predict(loader)
        found = named_parts(predictions)
        predictions = found.get("logits", found.get("predictions", predictions))
        targets = [steps.parts(batch).targets for batch in loader.at(epoch=0)]
        if not isinstance(predictions, Tensor) or not all(isinstance(target, Tensor) for target in targets):
            raise BadData(
                "plots and reports need predictions that are one tensor, and targets that are one tensor per batch; "
                "view.report.evaluate_predictions takes arrays"
            )
        evaluation = evaluate_predictions(
            predictions.double().numpy(),
            torch.cat(targets).cpu().numpy(),
            labels=labels,
            probabilities=False if "logits" in found else takes_probabilities(steps.split.loss),
        )
        worst = {sample.place for sample in evaluation.worst}
        inputs: dict[int, Any] = {}
        first = 0  # sample of the batch
        for batch in loader.at(epoch=0):
            parts = steps.parts(batch)
            after = first + len(parts.targets)
            shown = next(iter((*parts.args, *parts.kwargs.values())))  # the first input
            for number in worst.intersection(range(first, after)):
                value = shown[number - first]
                inputs[number] = value.cpu().numpy() if isinstance(value, Tensor) else str(value)
            first = after
        return evaluation.with_inputs(inputs)

    def __repr__(self) -> str:
        best, summary = self.best, self.record.summary()
        part = summary["part"]  # of an epoch that was cut short
        epochs = pluralize(summary["epochs"], "epoch") + (f" and {part[0]} of {part[1]} batches" if part else "")
        seconds = f" in {summary['seconds']:.3g} s" if self.record.events_of("end") else ""
        name = "a model" if self._model is None else type(self._model).__name__
        lines = [f"{name} fitted: {epochs}, {self.updates} updates{seconds}. {self.stopped or 'The run has not ended'}"]
        if best is not None:
            lines.append(f"best: {best.name} {best.value:.4g} in epoch {best.epoch}")
        last = {name: self.record.last(name) for name in self.record.columns}
        values = ", ".join(f"{name} {value:.4g}" for name, value in last.items() if value is not None)
        return "\n".join([*lines, f"last: {values}"] if last else lines)

    def _repr_html_(self) -> str:
        from stoker.view.report import fitted_html

        name = "" if self._model is None else type(self._model).__name__
        return fitted_html(self.record, title=name, stopped=self.stopped)


def _share_batches(loader: Loader, world: World, split: World) -> Iterable[Any]:
    """This rank's share of every batch; all ranks have the same number of batches."""
    own = share_loader(loader, split)
    return stop_streams_together(world, own, own.at(epoch=0))


def load_for_inference(run: str | os.PathLike[str], model: nn.Module) -> nn.Module:
    """Loads the weights of a run (the best so far, if it validates) into a model, and sets evaluation mode.

    >>> import stoker
    >>> x = torch.randn(64, 3)
    >>> learner = stoker.Learner(nn.Linear(3, 1), loss=nn.MSELoss(), seed=0)
    >>> fitted = learner.fit((x, x.sum(1, keepdim=True)), epochs=2, run="runs/inference", show=False)
    >>> model = load_for_inference("runs/inference", nn.Linear(3, 1))
    >>> torch.equal(model.weight, fitted.model.weight)
    True

    The run may be finished, killed or still running: the newest complete checkpoint is read, and nothing is written.
    """
    if not isinstance(model, nn.Module):
        raise WrongType(f"load_for_inference takes a model instance to load weights into, got {model!r}")
    _load_weights(model, _newest_checkpoint(Run.open(run)).state)
    return model


def _newest_checkpoint(run: Run) -> "Found":
    found = store_of(run).newest()
    if found.saved is None:
        reason = "\n  ".join(["", *found.problems]) if found.problems else " It was not saved, or ended too early"
        raise MissingFile(f"there is no complete checkpoint in {str(run.path)!r}.{reason}")
    if found.problems:
        saved = found.saved
        lines = [f"a newer checkpoint of {str(run.path)!r} can't be used", *found.problems]
        lines.append(f"this is {saved.name} instead: epoch {saved.epoch}, update {saved.update}")
        warnings.warn("\n  ".join(lines), stacklevel=3)
    check_state(found.state)
    return found


@explain_bad_state()
def _load_weights(model: nn.Module, state: Mapping[str, Any], loss: Any = None) -> None:
    """Loads the weights that `fit` would have returned (the best, the EMA, the optimizer's, or the last), for eval."""
    chosen = state["best"]
    weights = state["eval_weights"] if state["average"] is None else state["average"]["weights"]
    own = model_state(model)
    modes = {name: own[name] for name in ("trainable", "evaluating")}  # these stay as they are in the model
    try:
        load_model_state(model, {**state["model"], **modes}, resize_buffers=True)
        if isinstance(loss, nn.Module) and state["loss"] is not None:
            load_model_state(loss, state["loss"], resize_buffers=True)
        trained, extra = join_loss(model, loss), state["best_extra"] if state["best"] else None
        if chosen is None and weights is not None:
            chosen = {**weights_of(trained), **weights}
        if chosen is not None:
            if not isinstance(trained, ModelWithLoss) and state["loss"] is not None:
                of_loss = {f"loss.{name}" for name in (*state["loss"]["parameters"], *state["loss"]["buffers"])}
                chosen = {name: value for name, value in chosen.items() if name not in of_loss}
                extra = extra and {name: extra[name] for name in extra if name in own["extra"]}
            restore_weights(trained, WeightCopy(chosen, extra))
    except StateMismatch as error:
        raise StateMismatch(str(error).replace("the state does", "the weights of the run do")) from None
    model.eval()
