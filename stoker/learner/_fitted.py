"""`Fitted`: the result of a fit or of a run, and `load_for_inference`."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from stoker.checkpoint import Found, load_model_state, model_state
from stoker.data import Loader
from stoker.distributed import World, as_parallel, data_world, joined, propagate_failures, run_on_rank_zero
from stoker.engine import RankSync, evaluate, predict, restore_weights, upgrade_state
from stoker.errors import BadData, InvalidArgument, MissingFile, StateMismatch, WrongType
from stoker.learner._arguments import make_model
from stoker.learner._data import as_loader, as_ordered_loader
from stoker.learner._prepare import Prepared, choose_device, device_of, loss_on_device, make_metrics
from stoker.learner._resume import store_of
from stoker.learner._run import continue_fit, on_device
from stoker.metrics import Meter, Metric
from stoker.record import Best, History, Record, Run
from stoker.steps import Supervised

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from stoker.learner._learner import Learner
    from stoker.view.report import Evaluation, Kind


@dataclass(frozen=True)
class Result:
    """What is known of a fit that has ended, or of a run directory; and how to evaluate its model."""

    model: nn.Module | None  # None for a run that was loaded without a model
    record: Record
    best: Best | None
    epochs: int
    updates: int
    stopped: str
    supervised: Supervised | None
    metrics: Sequence[Metric]
    precision: str
    device: torch.device
    home: torch.device  # where the model is outside of `fit`
    run: Path | None = None  # the run directory
    split: World | None = None  # the ranks among which a device mesh splits batches; None for all


class Fitted:
    """A trained model and its history; returned by `Learner.fit` and `Fitted.load`.

    `model` is an ordinary module with the best weights by validation loss (with `keep="last"` or without validation:
    the last ones), on the device that it came from. `best` says which epoch they are from.
    """

    __slots__ = ("_prepared", "_result")

    def __init__(self, result: Result, prepared: Prepared | None = None) -> None:
        self._result, self._prepared = result, prepared

    @classmethod
    def of(cls, prepared: Prepared) -> Self:
        """The result of a fit that has ended."""
        return cls(_result_of(prepared), prepared)

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

        if learner is not None and not isinstance(learner, Learner | nn.Module):
            given = f"the class {learner.__name__}" if isinstance(learner, type) else type(learner).__name__
            raise WrongType(f"Fitted.load takes a run, and a learner or a model to load its weights into; got {given}")
        return cls(_load_result(run, learner))

    @property
    def model(self) -> nn.Module:
        """The module, with the weights that were kept."""
        if self._result.model is None:
            raise InvalidArgument(
                "this run was loaded without a model: use Fitted.load(run, learner) or Fitted.load(run, model)"
            )
        return self._result.model

    @property
    def best(self) -> Best | None:
        """The best validation (epoch, update, value), or None without validation."""
        return self._result.best

    @property
    def epochs(self) -> int:
        """The number of epochs that were begun."""
        return self._result.epochs

    @property
    def updates(self) -> int:
        """The number of updates that were applied."""
        return self._result.updates

    @property
    def stopped(self) -> str:
        """Why the fit ended; "" for a run that has not."""
        return self._result.stopped

    @property
    def plan(self) -> list[str]:
        """How the fit ran and why, in lines of text as in `Learner.explain`; [] if the run was loaded from disk."""
        return [] if self._prepared is None else self._prepared.fit.describe()

    @property
    def history(self) -> History:
        """The metrics of every epoch."""
        return History(self._result.record)

    @property
    def record(self) -> Record:
        """All recorded events."""
        return self._result.record

    def evaluate(
        self, data: Any, *, metrics: Sequence[Any] | None = None, batch_size: int | None = None
    ) -> dict[str, float]:
        """Returns the loss and the metrics on other data, by name; `metrics` replaces those of the fit.

        If several processes trained together, all of them have to call it, and each gets the whole result.
        """
        model, result = self.model, self._result
        used = result.metrics if metrics is None else [m for m in make_metrics(metrics) if not isinstance(m, Meter)]
        world, split = self._worlds()
        with propagate_failures(world), on_device(model, result.device, result.home):
            return evaluate(
                model,
                _share_batches(as_loader(data, batch_size=batch_size), world, split),
                supervised=result.supervised,
                metrics=used,
                device=result.device,
                precision=result.precision,
                world=split,
            )

    def predict(self, data: Any, *, batch_size: int | None = None) -> Any:
        """Returns the model's outputs for all samples, in their order, on the CPU, in the structure of one output.

        If several processes trained together, all of them have to call it, and each gets the whole result.
        """
        model, result = self.model, self._result
        world, split = self._worlds()
        with propagate_failures(world), on_device(model, result.device, result.home):
            return predict(
                model,
                _share_batches(as_ordered_loader(data, batch_size=batch_size), world, split),
                supervised=result.supervised or Supervised(model, None),
                device=result.device,
                precision=result.precision,
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
            self._result = _result_of(self._prepared)
        return self

    def plot(
        self,
        *names: str,
        kind: "Kind" = "curves",
        data: Any = None,
        labels: Sequence[str] | None = None,
        ax: "Axes | None" = None,
    ) -> "Figure":
        """Draws the curves of the history, or "lr", "confusion" or "calibration"; needs matplotlib (`stoker[plot]`).

        "confusion" and "calibration" compare the model's predictions for `data` with the targets; `labels` are the
        names of the classes. Without data, a confusion matrix is the last one that the fit recorded.
        """
        from stoker.view.report import plot

        evaluation = None if data is None else self._evaluate_predictions(data, labels)
        return plot(self.record, *names, kind=kind, evaluation=evaluation, ax=ax)

    def report(
        self, path: str | os.PathLike[str] = "report.html", data: Any = None, *, labels: Sequence[str] | None = None
    ) -> Path:
        """Writes a report as one HTML file; with `data`, also the model's errors and worst samples there."""
        from stoker.view.report import report_html, write_report

        evaluation = None if data is None else self._evaluate_predictions(data, labels)

        def write() -> Path:
            return write_report(path, report_html(self._result.run or self.record, evaluation))

        return run_on_rank_zero(joined(self._result.device), write) or Path(path)

    def _worlds(self) -> tuple[World, World]:
        """All processes, and those among which a batch is split."""
        world = joined(self._result.device)
        return world, world if self._result.split is None else self._result.split

    def _evaluate_predictions(self, data: Any, labels: Sequence[str] | None) -> "Evaluation":
        """Compares predictions with targets; only the inputs of the worst samples are kept in memory."""
        from stoker.view.report import evaluate_predictions

        supervised = self._result.supervised or Supervised(self.model, None)
        loader = as_ordered_loader(data, batch_size=None)
        predictions = self.predict(loader)
        targets = [supervised.parts(batch).targets for batch in loader.at(epoch=0)]
        if not isinstance(predictions, Tensor) or not all(isinstance(each, Tensor) for each in targets):
            raise BadData(
                "plots and reports need predictions that are one tensor, and targets that are one tensor per batch; "
                "view.report.evaluate_predictions takes arrays"
            )
        found = evaluate_predictions(predictions.numpy(), torch.cat(targets).cpu().numpy(), labels=labels)
        wanted, inputs, first = {sample.place for sample in found.worst}, dict[int, Any](), 0
        for batch in loader.at(epoch=0):
            parts = supervised.parts(batch)
            after = first + len(parts.targets)
            shown = next(iter((*parts.args, *parts.kwargs.values())))  # the first input
            for place in wanted.intersection(range(first, after)):
                value = shown[place - first]
                inputs[place] = value.cpu().numpy() if isinstance(value, Tensor) else str(value)
            first = after
        return found.with_inputs(inputs)

    def __repr__(self) -> str:
        best, summary = self.best, self.record.summary()
        part = summary["part"]  # of an epoch that was cut short
        epochs = f"{self.epochs - 1} epochs and {part[0]} of {part[1]} batches" if part else f"{self.epochs} epochs"
        seconds = f" in {summary['seconds']:.3g} s" if self.record.events_of("end") else ""
        name = "a model" if self._result.model is None else type(self._result.model).__name__
        lines = [f"{name} fitted: {epochs}, {self.updates} updates{seconds}. {self.stopped or 'The run has not ended'}"]
        if best is not None:
            lines.append(f"best: {best.name} {best.value:.4g} in epoch {best.epoch}")
        last = {name: self.record.last(name) for name in self.record.columns}
        if last:
            lines.append(
                f"last: {', '.join(f'{name} {value:.4g}' for name, value in last.items() if value is not None)}"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from stoker.view.report import fitted_html

        name = "" if self._result.model is None else type(self._result.model).__name__
        return fitted_html(self.record, title=name, stopped=self.stopped)


def _share_batches(loader: Loader, world: World, split: World) -> Iterable[Any]:
    """This rank's share of every batch; all ranks have the same number of batches."""
    batches = loader.shared(split.rank, split.size).at(epoch=0)
    return RankSync(world, split, agree=False).stop_streams_together(loader, batches)


def _result_of(prepared: Prepared) -> Result:
    fit = prepared.fit
    ctx, events = fit.ctx, fit.ctx.record.path
    return Result(
        model=fit.state.model,
        record=ctx.record,
        best=ctx.best,
        epochs=ctx.epoch,
        updates=ctx.update,
        stopped=ctx.stopping or "",
        supervised=fit.step.supervised,
        metrics=fit.valid_metrics,
        precision=fit.settings.precision,
        device=fit.device,
        home=prepared.home,
        run=events.parent if events is not None else None,
        split=None if fit.parallel.mesh is None else fit.ranks.split,
    )


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
    return model.eval()


def _load_result(run: str | os.PathLike[str], learner: "Learner | nn.Module | None") -> Result:
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
        metrics=[each for each in metrics if not isinstance(each, Meter) and each.on != "train"],
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
