"""What came out of a fit: the model with its best weights, how it went, and what it says to other data."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from torch import nn

from stoker.data import Loader
from stoker.distributed import World, failing, joined
from stoker.engine import RankSync, evaluate, predict
from stoker.errors import InvalidArgument, WrongType
from stoker.learner._data import in_order, loader
from stoker.learner._first import only_by_first
from stoker.learner._judge import judge
from stoker.learner._load import outcome_in
from stoker.learner._outcome import Outcome, outcome_of
from stoker.learner._prepare import Prepared, metrics_of
from stoker.learner._spec import Spec
from stoker.learner._start import continue_fit, on_device
from stoker.metrics import Metric
from stoker.record import Best, History, Record
from stoker.steps import Supervised

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from stoker.learner._learner import Learner
    from stoker.view.report import Evaluation, Kind


class Fitted:
    """A trained model and its history; `Learner.fit` gives it, and `Fitted.load` out of a run's directory.

    `model` is an ordinary module with the best weights by the validation loss (the last, where there was no validation
    or `keep="last"`), on the device that it came from. `best` says which epoch they are of.
    """

    __slots__ = ("_outcome", "_prepared")

    def __init__(self, outcome: Outcome, prepared: Prepared | None = None) -> None:
        self._outcome, self._prepared = outcome, prepared

    @classmethod
    def load(cls, run: str | os.PathLike[str], learner: "Learner | nn.Module | None" = None) -> Self:
        """What a run has come to, without its data; with the learner (or a model), also the model with its weights.

        >>> import stoker, torch
        >>> x = torch.randn(64, 3)
        >>> learner = stoker.Learner(nn.Linear(3, 1), loss=nn.MSELoss(), seed=0)
        >>> fitted = learner.fit((x, x.sum(1, keepdim=True)), epochs=2, run="runs/sum", show=False)
        >>> Fitted.load("runs/sum").history["train/loss"] == fitted.history["train/loss"]
        True
        >>> Fitted.load("runs/sum", learner).evaluate((x, x.sum(1, keepdim=True))) == fitted.evaluate(
        ...     (x, x.sum(1, keepdim=True))
        ... )
        True
        """
        spec = learner if isinstance(learner, nn.Module) else getattr(learner, "_spec", None)
        if learner is not None and not isinstance(spec, Spec | nn.Module):
            given = f"the class {learner.__name__}" if isinstance(learner, type) else type(learner).__name__
            raise WrongType(f"Fitted.load takes a run, and the learner or a model to put its weights into; got {given}")
        return cls(outcome_in(run, spec))

    @property
    def model(self) -> nn.Module:
        """The module itself, with the weights that were kept."""
        if self._outcome.model is None:
            raise InvalidArgument(
                "this run was loaded without its model, which is code: Fitted.load(run, learner) or (run, model)"
            )
        return self._outcome.model

    @property
    def best(self) -> Best | None:
        """The best validation: its epoch, update and value; None where there was no validation."""
        return self._outcome.best

    @property
    def epochs(self) -> int:
        """Epochs that were begun."""
        return self._outcome.epochs

    @property
    def updates(self) -> int:
        """Updates that were applied."""
        return self._outcome.updates

    @property
    def stopped(self) -> str:
        """Why the fit ended; empty for a run that has not."""
        return self._outcome.stopped

    @property
    def history(self) -> History:
        """The numbers of every epoch."""
        return History(self._outcome.record)

    @property
    def record(self) -> Record:
        """Everything that happened."""
        return self._outcome.record

    def evaluate(
        self, data: Any, *, metrics: Sequence[Any] | None = None, batch_size: int | None = None
    ) -> dict[str, float]:
        """The loss and the metrics on other data, by name; other `metrics` for this once.

        Where several processes trained together, all of them ask, and each has the whole answer.
        """
        model, outcome = self.model, self._outcome
        asked = outcome.metrics if metrics is None else [m for m in metrics_of(metrics) if isinstance(m, Metric)]
        world, split = self._worlds()
        with failing(world), on_device(model, outcome.device, outcome.home):
            return evaluate(
                model,
                _shares(loader(data, batch_size=batch_size), world, split),
                supervised=outcome.supervised,
                metrics=asked,
                device=outcome.device,
                precision=outcome.precision,
                world=split,
            )

    def predict(self, data: Any, *, batch_size: int | None = None) -> Any:
        """What the model says to each sample, in the data's order, on the CPU, in the structure that it gives.

        Where several processes trained together, all of them ask, and each has the whole answer.
        """
        model, outcome = self.model, self._outcome
        world, split = self._worlds()
        with failing(world), on_device(model, outcome.device, outcome.home):
            return predict(
                model,
                _shares(in_order(data, batch_size=batch_size), world, split),
                supervised=outcome.supervised or Supervised(model, None),
                device=outcome.device,
                precision=outcome.precision,
                world=split,
            )

    def continue_(
        self, *, epochs: int | None = None, updates: int | None = None, minutes: float | None = None, show: bool = True
    ) -> "Fitted":
        """Trains on with the last weights (not the best), for so much more, as if the last epoch had just ended.

        An epoch that was cut short (by `updates`, `minutes` or Ctrl-C) is not taken up again: the next one begins. To
        go on exactly, give the fit a `run` and fit it again with `resume=True` and more epochs.
        """
        if self._prepared is None:
            raise InvalidArgument("this run was loaded without its data: go on with fit(..., run=..., resume=True)")
        try:
            continue_fit(self._prepared, epochs=epochs, updates=updates, minutes=minutes, show=show)
        finally:
            self._outcome = outcome_of(self._prepared)
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

        The last two are of the model's answers to `data`, whose classes have these `labels`; without data, a confusion
        matrix is the one that the run recorded.
        """
        from stoker.view.report import plot  # what draws is loaded when something is to be drawn

        found = None if data is None else self._judged(data, labels)
        return plot(self.record, *names, kind=kind, evaluation=found, ax=ax)

    def report(
        self, path: str | os.PathLike[str] = "report.html", data: Any = None, *, labels: Sequence[str] | None = None
    ) -> Path:
        """Writes the fit as one HTML file; with `data`, also what the model gets wrong there, and its worst samples."""

        from stoker.view.report import report_html, write_report

        found = None if data is None else self._judged(data, labels)

        def write() -> Path:
            return write_report(path, report_html(self._outcome.run or self.record, found))

        return only_by_first(joined(self._outcome.device), write) or Path(path)

    def _worlds(self) -> tuple[World, World]:
        """All processes, and those among which a batch is split."""
        world = joined(self._outcome.device)
        return world, world if self._outcome.split is None else self._outcome.split

    def _judged(self, data: Any, labels: Sequence[str] | None) -> "Evaluation":
        supervised = self._outcome.supervised or Supervised(self.model, None)
        batches = in_order(data, batch_size=None)
        return judge(self.predict(batches), lambda: batches.at(epoch=0), supervised=supervised, labels=labels)

    def __repr__(self) -> str:
        best, ends = self.best, self.record.events_of("end")
        part = self.record.summary()["part"]  # of an epoch that a stop cut short
        whole = f"{self.epochs - 1} epochs and {part[0]} of {part[1]} batches" if part else f"{self.epochs} epochs"
        length = f"{whole}, {self.updates} updates"
        if ends:
            length += f" in {self.record.summary()['seconds']:.3g} s"
        name = "a model" if self._outcome.model is None else type(self._outcome.model).__name__
        lines = [f"{name} fitted: {length}. {self.stopped or 'The run is not over'}"]
        if best is not None:
            lines.append(f"best: {best.name} {best.value:.4g} in epoch {best.epoch}")
        last = {name: self.record.last(name) for name in self.record.columns}
        if last:
            numbers = [f"{name} {value:.4g}" for name, value in last.items() if value is not None]
            lines.append(f"last: {', '.join(numbers)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from stoker.view.report import fitted_html

        name = "" if self._outcome.model is None else type(self._outcome.model).__name__
        return fitted_html(self.record, title=name, stopped=self.stopped)


def _shares(batches: Loader, world: World, split: World) -> Iterable[Any]:
    """This process's share of every batch, in step with all others."""
    return RankSync(world, split, agree=False).keep_in_step(batches, batches.shared(split.rank, split.size).at(epoch=0))
