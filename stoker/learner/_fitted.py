"""What came out of a fit: the model with its best weights, how it went, and what it says to other data."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from stoker.learner._data import in_order, loader
from stoker.learner._prepare import metrics_of
from stoker.learner._start import go_on, on_device
from stoker.loop import Fit, evaluate, predict
from stoker.metrics import Metric
from stoker.record import Best, History, Record
from stoker.step import Supervised


class Fitted:
    """A trained model and its history; `Learner.fit` gives it.

    `model` is an ordinary module with the best weights by the validation loss (the last, where there was no validation
    or `keep="last"`), on the device that it came from. `best` says which epoch they are of.
    """

    __slots__ = ("_fit",)

    def __init__(self, fit: Fit) -> None:
        self._fit = fit

    @property
    def model(self) -> nn.Module:
        """The module itself, with the weights that were kept."""
        return self._fit.model

    @property
    def best(self) -> Best | None:
        """The best validation: its epoch, update and value; None where there was no validation."""
        return self._fit.ctx.best

    @property
    def epochs(self) -> int:
        """Epochs that were begun."""
        return self._fit.ctx.epoch

    @property
    def updates(self) -> int:
        """Updates that were applied."""
        return self._fit.ctx.update

    @property
    def stopped(self) -> str:
        """Why the fit ended."""
        return self._fit.ctx.stopping or ""

    @property
    def history(self) -> History:
        """The numbers of every epoch."""
        return History(self._fit.record)

    @property
    def record(self) -> Record:
        """Everything that happened."""
        return self._fit.record

    def evaluate(
        self, data: Any, *, metrics: Sequence[Any] | None = None, batch_size: int | None = None
    ) -> dict[str, float]:
        """The loss and the metrics on other data, by name; other `metrics` for this once."""
        fit = self._fit
        asked = fit.valid_metrics if metrics is None else [m for m in metrics_of(metrics) if isinstance(m, Metric)]
        with on_device(fit):
            return evaluate(
                fit.model,
                loader(data, batch_size=batch_size).at(epoch=0),
                supervised=fit.supervised,
                metrics=asked,
                device=fit.device,
                precision=fit.settings.precision,
            )

    def predict(self, data: Any, *, batch_size: int | None = None) -> Any:
        """What the model says to each sample, in the data's order, on the CPU, in the structure that it gives."""
        fit = self._fit
        with on_device(fit):
            return predict(
                fit.model,
                in_order(data, batch_size=batch_size).at(epoch=0),
                supervised=fit.supervised or Supervised(fit.model, None),
                device=fit.device,
                precision=fit.settings.precision,
            )

    def continue_(
        self, *, epochs: int | None = None, updates: int | None = None, minutes: float | None = None, show: bool = True
    ) -> "Fitted":
        """Trains on with the last weights (not the best), for so much more, as if the last epoch had just ended.

        An epoch that was cut short (by `updates`, `minutes` or Ctrl-C) is not taken up again: the next one begins.
        """
        go_on(self._fit, epochs=epochs, updates=updates, minutes=minutes, show=show)
        return self

    def plot(self, *names: str, ax: Any = None) -> Any:
        """The curves of the history; needs matplotlib."""
        return self.history.plot(*names, ax=ax)

    def __repr__(self) -> str:
        best = self.best
        seconds = sum(event.extra["seconds"] for event in self.record.events_of("end"))
        length = f"{self.epochs} epochs, {self.updates} updates in {seconds:.3g} s"
        lines = [f"{type(self.model).__name__} fitted: {length}. {self.stopped}"]
        if best is not None:
            lines.append(f"best: {best.name} {best.value:.4g} in epoch {best.epoch}")
        last = {name: self.record.last(name) for name in self.record.columns}
        lines.append("last: " + ", ".join(f"{name} {value:.4g}" for name, value in last.items() if value is not None))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return self.history._repr_html_()
