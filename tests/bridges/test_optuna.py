"""`stoker.optuna`: pruning, and searches that are stopped, killed and continued."""

import os
import signal
from pathlib import Path

import optuna
import pytest
import torch
from torch import nn

import stoker
from stoker.callbacks import on
from stoker.errors import InvalidArgument, NoSuchMetric
from stoker.optuna import Pruning, run_directory, search, suggest
from tests.distributed.processes import launched
from torture.processes import Child

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Training(stoker.Config):
    lr: float = 1e-2
    hidden: int = 4


def make_study(folder, **options):
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / "study.log")))
    options = {"sampler": optuna.samplers.RandomSampler(seed=0), "pruner": optuna.pruners.NopPruner(), **options}
    return optuna.create_study(study_name="test", storage=storage, load_if_exists=True, **options)


def fit_with_pruning(trial, config, epochs=4, **options):
    x = torch.linspace(-1, 1, 32)[:, None]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, config.hidden), nn.Tanh(), nn.Linear(config.hidden, 1))
    learner = stoker.Learner(model, loss=nn.MSELoss(), lr=config.lr, seed=0)
    pruning = Pruning(trial)
    callbacks = [*options.pop("callbacks", ()), pruning]
    fitted = learner.fit((x, x**2), valid=0.25, epochs=epochs, batch_size=8, callbacks=callbacks, show=False, **options)
    return pruning.result(fitted), fitted


def test_a_trial_that_is_worse_than_a_threshold_is_pruned_and_its_run_ends_in_order(tmp_path):
    study = make_study(tmp_path, pruner=optuna.pruners.ThresholdPruner(upper=0.0, n_warmup_steps=2))
    search(study, lambda trial: fit_with_pruning(trial, Training(), run=run_directory(trial, tmp_path))[0], trials=1)
    trial = study.trials[0]
    assert trial.state.name == "PRUNED" and sorted(trial.intermediate_values) == [1, 2]
    record = stoker.Record.open(tmp_path / "trial-0000")
    assert list(trial.intermediate_values.values()) == record.series("valid/loss")
    assert record.summary()["reason"].startswith("Pruned by Optuna at epoch 2") and not record.events_of("error")


def test_the_result_is_the_best_value_of_the_monitored_metric(tmp_path):
    study = make_study(tmp_path)
    fits = []
    search(study, lambda trial: (fits.append(fit_with_pruning(trial, Training())), fits[-1][0])[1], trials=2)
    assert [trial.value for trial in study.trials] == [fitted.best.value for _, fitted in fits]
    assert study.best_value == min(min(fitted.history["valid/loss"]) for _, fitted in fits)
    search(study, None, trials=2)  # nothing is left to do


class Optimizer(stoker.Config):
    lr: float = 0.1
    momentum: float | None = None


class Experiment(stoker.Config):
    optimizer: Optimizer = Optimizer()
    layers: int = 2
    name: str = "a"


def test_suggest_draws_a_config_of_the_right_types(tmp_path):
    space = {"optimizer.lr": (1, 10), "optimizer.momentum": (0.1, 0.9), "layers": range(1, 8, 3), "name": ["a", "b"]}
    study, drawn = make_study(tmp_path), []
    study.optimize(lambda trial: drawn.append(suggest(trial, Experiment(), space)) or 0.0, n_trials=20)
    assert {type(config.optimizer.lr) for config in drawn} == {float}
    assert all(1 <= config.optimizer.lr <= 10 and 0.1 <= config.optimizer.momentum <= 0.9 for config in drawn)
    assert {config.layers for config in drawn} == {1, 4, 7} and {config.name for config in drawn} == {"a", "b"}
    with pytest.raises(InvalidArgument, match="'layer': Experiment has no field 'layer'; did you mean 'layers'"):
        suggest(None, Experiment(), {"layer": [1]})
    with pytest.raises(InvalidArgument, match=r"expected a list of choices, \(low, high\)"):
        suggest(None, Experiment(), {"layers": {1, 2}})


SPACE = {"lr": (1e-3, 1e-1, "log"), "hidden": [2, 4, 8]}


def run_search(folder, kill_at=None, trials=4, send=signal.SIGKILL):
    """Three trials; in the second one the process gets a signal in the middle of epoch 3."""

    def stop(ctx):
        if study.trials[-1].number == 1 and ctx.update == kill_at:
            os.kill(os.getpid(), send)

    def objective(trial):
        config = suggest(trial, Training(), SPACE)
        run = run_directory(trial, folder / "runs")
        return fit_with_pruning(trial, config, run=run, resume=True, callbacks=[on(update=stop)])[0]

    study = make_study(folder)
    search(study, objective, trials=trials)


@pytest.mark.parametrize("send", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_search_that_was_stopped_continues_its_trial_from_its_checkpoint(tmp_path, send):
    (tmp_path / "whole").mkdir()
    run_search(tmp_path / "whole", trials=3)
    child = Child(run_search, tmp_path, 7, 3, send, prints=tmp_path / "printed.txt")
    assert child.wait() != 0
    assert next(trial.state.name for trial in make_study(tmp_path).trials) == "COMPLETE"
    run_search(tmp_path, trials=3)
    trials, whole = make_study(tmp_path).trials, make_study(tmp_path / "whole").trials
    assert [trial.state.name for trial in trials] == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    continued = trials[2]
    assert continued.params == trials[1].params and continued.value == whole[1].value
    assert continued.intermediate_values == whole[1].intermediate_values  # the epochs before the stop too
    resumed = stoker.Record.open(tmp_path / "runs" / "trial-0001")
    assert resumed.events_of("resume") and not (tmp_path / "runs" / "trial-0002").exists()
    run_search(tmp_path, trials=3)
    assert len(make_study(tmp_path).trials) == 4


def search_together(rank, size, folder):
    values = []

    def objective(trial):
        assert (trial is not None) == (rank == 0)
        config = suggest(trial, Training(), SPACE)
        values.append((config.lr, config.hidden))
        return fit_with_pruning(trial, config)[0]

    pruner = optuna.pruners.ThresholdPruner(upper=0.0, n_warmup_steps=2)
    study = make_study(Path(folder), pruner=pruner) if rank == 0 else None
    search(study, objective, trials=2)
    return values


def test_ranks_that_train_together_draw_and_prune_the_same_trials(tmp_path):
    first, second = launched(search_together, 2, str(tmp_path))
    assert first == second and len(first) == 2
    assert [trial.state.name for trial in make_study(tmp_path).trials] == ["PRUNED", "PRUNED"]


def test_wrong_directions_and_names_are_errors(tmp_path):
    study = make_study(tmp_path, direction="maximize")
    with pytest.raises(InvalidArgument, match=r"'maximize', but 'valid/loss' is better when it is smaller"):
        fit_with_pruning(study.ask(), Training())
    x = torch.linspace(-1, 1, 32)[:, None]
    learner = stoker.Learner(nn.Linear(1, 1), loss=nn.MSELoss(), seed=0)
    pruning = Pruning(optuna.trial.FixedTrial({}), "valid/acuracy")
    with pytest.raises(NoSuchMetric, match=r"reports 'valid/acuracy', but there is no such metric .*valid/loss"):
        learner.fit((x, x), valid=0.25, epochs=1, callbacks=[pruning], show=False)
