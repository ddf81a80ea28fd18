"""optuna: searches for hyper-parameters that prune, and that can be stopped and continued.

    def objective(trial):
        config = suggest(trial, Training(), {"lr": (1e-4, 1e-1, "log"), "hidden": [32, 64, 128]})
        pruning = Pruning(trial)
        run = run_directory(trial, "runs/search")
        fitted = make_learner(config).fit(data, valid=0.2, epochs=20, callbacks=[pruning], run=run, resume=True)
        return pruning.result(fitted)

    study = optuna.create_study(study_name="digits", storage="sqlite:///search.db", load_if_exists=True)
    search(study, objective, trials=50)

Optuna is imported when a function needs it. If several processes train each model together (torchrun), all of them call
`search`; the objective then gets the trial on rank 0 and `None` on the others, and everything here accepts both.
"""

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stoker.callbacks import Callback, Context
from stoker.config import Config
from stoker.distributed import join
from stoker.errors import InvalidArgument, MissingFile, NoSuchMetric, did_you_mean, explain_missing
from stoker.learner import Fitted
from stoker.record import Direction, Follower

if TYPE_CHECKING:
    import optuna

__all__ = ["Pruning", "run_directory", "search", "suggest"]

_C = TypeVar("_C", bound=Config)

_RUN, _CONTINUES = "stoker:run", "stoker:continues"  # user attributes of a trial
_PRUNED = "Pruned by Optuna"


class Pruning(Callback):
    """Reports a metric to a trial of Optuna after every epoch, and stops the fit if the trial should be pruned.

    The metric is the one that `fit` monitors, unless `monitor` names another; `mode` ("min" or "max") says which values
    are better, if the metric does not. In a resumed run the epochs before are reported too, so that pruners see the
    whole curve. After the fit, return `result(fitted)` from the objective.
    """

    transient = True  # everything that it has reported is in the trial and in the record

    def __init__(
        self, trial: "optuna.trial.BaseTrial | None", monitor: str | None = None, *, mode: Direction | None = None
    ) -> None:
        if mode not in (None, "min", "max"):
            raise InvalidArgument(f'mode is "min", "max" or None (the metric\'s own); got {mode!r}')
        self.monitor = monitor
        self.mode: Direction | None = mode
        self._trial = trial
        self._reported: set[int] = set()  # epochs
        self._interrupted = False

    def on_fit_begin(self, ctx: Context) -> None:
        """Compares the direction of the metric with that of the study."""
        name, study = self.monitor or ctx.monitor or "valid/loss", getattr(self._trial, "study", None)
        better = self.mode or ctx.record.direction(name)
        if study is not None and better is not None and len(study.directions) == 1:
            direction = "minimize" if better == "min" else "maximize"
            if study.direction.name.lower() != direction:
                raise InvalidArgument(
                    f"the study has the direction {study.direction.name.lower()!r}, but {name!r} is better when it is "
                    f'{"smaller" if better == "min" else "larger"}: create_study(direction="{direction}")'
                )

    def on_epoch_end(self, ctx: Context) -> None:
        """Reports the epoch, and stops the fit if the trial should be pruned."""
        name, columns = self.monitor or ctx.monitor or "valid/loss", ctx.record.columns
        measured = {each.partition("/")[0] for each in columns}
        if name not in columns and name.partition("/")[0] in measured:
            raise _no_metric(name, columns)
        if self._report(name, ctx.record.rows) and self._trial is not None and self._trial.should_prune():
            ctx.stop(f"{_PRUNED} at epoch {ctx.epoch}: {name} {ctx.record.rows[ctx.epoch][name]:.4g}")

    def on_interrupt(self, ctx: Context) -> None:
        """Remembers that the trial is not complete."""
        self._interrupted = True

    def result(self, fitted: Fitted) -> float:
        """Returns the best value of the metric, which is what the study compares.

        Raises `optuna.TrialPruned` if the fit was pruned, and `KeyboardInterrupt` if it was interrupted (Ctrl-C stops a
        fit without an exception), so that the search stops too and `search` can continue the trial later.
        """
        if self._interrupted:
            raise KeyboardInterrupt(fitted.stopped)
        record = fitted.record
        declared = None if record.begin is None else record.begin.extra.get("monitor")
        name = self.monitor or declared or "valid/loss"
        if name not in record.columns:
            raise _no_metric(name, record.columns)
        self._report(name, record.rows)  # of a run that had ended before
        if fitted.stopped.startswith(_PRUNED):
            raise _import_optuna().TrialPruned(fitted.stopped)
        best = record.best(name) if self.mode is None else None
        if best is not None:
            return best.value
        values = [row[name] for row in record.rows.values() if not math.isnan(row.get(name, math.nan))]
        if self.mode is None and values:
            raise InvalidArgument(f'it is not known whether a larger {name!r} is better: Pruning(trial, mode="max")')
        return (min if self.mode == "min" else max)(values, default=math.nan)

    def _report(self, name: str, rows: Mapping[int, Mapping[str, float]]) -> bool:
        """Reports the epochs that were not reported yet; returns whether there were any."""
        new = [epoch for epoch, row in rows.items() if name in row and epoch not in self._reported]
        for epoch in new:
            if self._trial is not None:
                self._trial.report(rows[epoch][name], epoch)
        self._reported.update(new)
        return bool(new)


def suggest(trial: "optuna.trial.BaseTrial | None", config: _C, space: Mapping[str, Any]) -> _C:
    """Returns the config with some fields drawn by a trial of Optuna; dotted names are fields of nested configs.

    >>> import optuna
    >>> class Training(Config):
    ...     lr: float = 1e-3
    ...     hidden: int = 64
    >>> trial = optuna.trial.FixedTrial({"lr": 0.01, "hidden": 32})
    >>> suggest(trial, Training(), {"lr": (1e-4, 1e-1, "log"), "hidden": [32, 64]})
    Training(lr=0.01, hidden=32)

    A list holds choices. `(low, high)` is an interval, with `"log"` as a third entry on a logarithmic scale; it gives
    integers if both ends are integers and the field is not a float. `range(1, 9, 2)` gives 1, 3, 5 or 7.
    """
    values: dict[str, Any] = {}
    for name, choices in space.items():
        current: Any = config
        for part in name.split("."):
            if not hasattr(current, part):
                known = [each for each in vars(current) if each[0] != "_"] if hasattr(current, "__dict__") else []
                owner = type(current).__name__
                raise InvalidArgument(f"{name!r}: {owner} has no field {part!r}{did_you_mean(part, known)}")
            current = getattr(current, part)
        draw = _draw_function(name, choices, current)
        if trial is not None:
            values[name] = draw(trial)
    return config.replace(**join().broadcast_object(values))


def _draw_function(name: str, choices: Any, current: Any) -> "Callable[[optuna.trial.BaseTrial], Any]":
    if isinstance(choices, list) and choices:
        return lambda trial: trial.suggest_categorical(name, choices)
    if isinstance(choices, range) and choices and choices.step > 0:
        return lambda trial: trial.suggest_int(name, choices[0], choices[-1], step=choices.step)
    if isinstance(choices, tuple) and len(choices) in (2, 3) and choices[2:] in ((), ("log",)):
        low, high, log = choices[0], choices[1], len(choices) == 3
        if type(low) is int and type(high) is int and not isinstance(current, float):
            return lambda trial: trial.suggest_int(name, low, high, log=log)
        return lambda trial: trial.suggest_float(name, low, high, log=log)
    raise InvalidArgument(
        f'{name}={choices!r}: expected a list of choices, (low, high), (low, high, "log"), or a range that goes up'
    )


def run_directory(trial: "optuna.trial.Trial | None", root: str | os.PathLike[str]) -> Path:
    """Returns the run directory of a trial, `root/trial-0007`, or that of the interrupted trial that it continues."""
    name = None
    if trial is not None:
        name = trial.user_attrs.get(_RUN) or str(Path(root) / f"trial-{trial.number:04d}")
        trial.set_user_attr(_RUN, name)
    return Path(join().broadcast_object(name))


def search(
    study: "optuna.Study | None",
    objective: "Callable[[optuna.trial.Trial | None], Any]",
    *,
    trials: int,
    **options: Any,
) -> None:
    """Runs trials until the study has so many that are complete or pruned; call it again to continue a search.

    Trials that were interrupted or killed are run again with their parameters: if the objective uses `run_directory`
    and `resume=True`, from their last checkpoint. Several searches may share a study; they may run a few trials more.
    `options` are those of `study.optimize`, such as `timeout`, `catch` and `callbacks`.
    """
    world = join()
    if not world.is_first:
        while world.broadcast_object(None):
            try:
                objective(None)
            except Exception as error:  # rank 0 has the same one; there the study records it, or raises it
                if type(error).__name__ != "TrialPruned" and not isinstance(error, options.get("catch", ())):
                    raise
        return
    if study is None:
        raise InvalidArgument("search needs a study on rank 0; the other ranks pass None")
    optuna = _import_optuna()
    states = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)

    def run(trial: "optuna.trial.Trial") -> Any:
        world.broadcast_object(True)
        return objective(trial)

    try:
        if len(study.get_trials(deepcopy=False, states=states)) < trials:
            _requeue(study, optuna)
            limit = optuna.study.MaxTrialsCallback(trials, states=states)
            study.optimize(run, **{**options, "callbacks": [*options.get("callbacks", ()), limit]})
    finally:
        world.broadcast_object(False)


def _requeue(study: "optuna.Study", optuna: Any) -> None:
    """Queues trials again that were interrupted (failed by Ctrl-C) or whose process was killed (still running)."""
    state = optuna.trial.TrialState
    everything = study.get_trials(deepcopy=False)
    continued = {trial.user_attrs.get(_CONTINUES) for trial in everything}
    for trial in everything:
        if trial.state not in (state.RUNNING, state.FAIL) or trial.number in continued or _RUN not in trial.user_attrs:
            continue
        try:
            run = Follower(trial.user_attrs[_RUN])
            run.refresh()
        except MissingFile:
            continue
        if run.state != ("died" if trial.state == state.RUNNING else "stopped"):
            continue
        attributes = {_RUN: trial.user_attrs[_RUN], _CONTINUES: trial.number}
        study.enqueue_trial(trial.params, user_attrs=attributes)
        if trial.state == state.RUNNING:
            study.tell(trial.number, state=state.FAIL, skip_if_finished=True)


def _no_metric(name: str, known: Any) -> NoSuchMetric:
    listed = ", ".join(known) or "none"
    return NoSuchMetric(f"Pruning reports {name!r}, but there is no such metric{did_you_mean(name, known)} ({listed})")


def _import_optuna() -> Any:
    with explain_missing('stoker.optuna needs optuna: pip install "stoker[optuna]"'):
        import optuna
    return optuna
