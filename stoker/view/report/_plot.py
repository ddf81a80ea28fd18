"""The pictures of a run, by what they show."""

from typing import TYPE_CHECKING, Literal

from stoker.errors import InvalidArgument
from stoker.record import History, Record, escape_label, figure_of, line_styles, new_figure, use_log_scale
from stoker.view.report._calibration import drawn
from stoker.view.report._confusion import confusion, confusions
from stoker.view.report._judged import Judged
from stoker.view.report._readable import Remembered

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Kind = Literal["curves", "lr", "confusion", "calibration"]


def plot(
    record: Record, *names: str, kind: Kind = "curves", judgement: Judged | None = None, ax: "Axes | None" = None
) -> "Figure":
    """Draws a run with matplotlib (`stoker[plot]`): its curves, its learning rate, its confusions or its calibration.

    >>> from stoker.record import Event
    >>> record = Record()
    >>> for update in (10, 20):
    ...     record.append(Event("log", epoch=1, update=update, values={"lr": 1 / update}))
    >>> plot(record, kind="lr").axes[0].lines[0].get_xdata().tolist()
    [10.0, 20.0]

    Names are of curves; see `History.plot`. A confusion matrix is the `judgement`'s (see `judged`), else the one
    that a `ConfusionMatrix` wrote into the record, of the best epoch. A calibration needs a judgement.
    """
    if kind == "curves":
        return History(record).plot(*names, ax=ax)
    if names:
        raise InvalidArgument(f"plot: names choose curves, and kind={kind!r} has none; leave out {', '.join(names)}")
    if kind == "lr":
        return _lr(record, ax)
    if kind == "confusion":
        return _confusion(record, judgement, ax)
    if kind == "calibration":
        if judgement is None or judgement.calibration is None:
            raise InvalidArgument(
                "plot: a calibration needs a classifier's answers to a data set: give fitted.plot data="
            )
        return drawn(judgement.calibration, ax=ax)
    raise InvalidArgument(f'plot: kind={kind!r}; expected "curves", "lr", "confusion" or "calibration"')


def _lr(record: Record, ax: "Axes | None") -> "Figure":
    run = Remembered(record)
    found = {name: run.points(name) for name in run.names if name.split("/")[0] == "lr"}
    if not found:
        raise InvalidArgument(
            "plot: no learning rate was recorded; add metrics.LearningRate() to the learner's metrics"
        )
    axes = new_figure(7, 3.2).subplots() if ax is None else ax
    for name, look in line_styles(found).items():
        axes.plot(found[name].update, found[name].value, color=look.color, label=escape_label(name))
    if use_log_scale(value for points in found.values() for value in points.value.tolist()):
        axes.set_yscale("log")
    axes.set(xlabel="update", ylabel="learning rate")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure_of(axes)


def _confusion(record: Record, judgement: Judged | None, ax: "Axes | None") -> "Figure":
    if judgement is not None and judgement.confusion is not None:
        return confusion(judgement.confusion, judgement.labels, ax=ax)
    recorded = list(confusions(Remembered(record)).values())
    if not recorded:
        raise InvalidArgument(
            "plot: the run has no confusion matrix; give fitted.plot data=, or add metrics.ConfusionMatrix(on='valid') "
            "to the learner's metrics"
        )
    return confusion(recorded[0], ax=ax)
