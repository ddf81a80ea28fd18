"""Declaring and fitting a model: what goes in, what comes out, and the messages for wrong arguments."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import stoker
from stoker import callbacks, data, metrics, optim, schedule
from tests.features.models import Net, X, Y, fit, learner, same_weights

# --- the model


def test_a_model_is_a_class_an_instance_or_a_function():
    first, second = fit(model=Net).model, fit(model=Net).model
    assert first is not second and type(first) is Net and same_weights(first, second)
    instance = Net()
    assert fit(model=instance).model is instance
    assert fit(model=lambda: Net(d_hidden=3)).model.head.in_features == 3


def test_the_seed_makes_a_fit_repeatable():
    first, second, other = (fit(model=lambda: Net(dropout=0.5), seed=seed) for seed in (0, 0, 1))
    assert first.history.to_dict() == second.history.to_dict()
    assert first.history["train/loss"] != other.history["train/loss"]


# --- the data


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


@pytest.mark.parametrize(
    "source",
    [
        (X, Y),
        (X.numpy(), Y.numpy()),
        {"x": X, "y": Y},
        TensorDataset(X, Y),
        list(zip(X, Y, strict=True)),
        Stream(),
        DataLoader(TensorDataset(X, Y), batch_size=32),
        data.Loader((X, Y), batch_size=32),
    ],
    ids=["tensors", "arrays", "mapping", "dataset", "samples", "stream", "DataLoader", "Loader"],
)
def test_fit_takes_every_kind_of_data(source):
    found = fit(source)
    assert (found.updates, len(found.history["train/loss"])) == (6, 2)
    assert found.evaluate(source)["loss"] > 0 and found.predict(source).shape == (80, 1)


class AutoEncoder(nn.Linear):
    def train_step(self, batch):
        x = batch[0] if isinstance(batch, tuple | list) else batch
        return F.mse_loss(self(x), x)


@pytest.mark.parametrize(
    "source", [X, X.numpy(), (X,), list(X), TensorDataset(X)], ids=["tensor", "array", "tuple", "list", "dataset"]
)
def test_the_batch_size_applies_to_every_kind_of_data_also_without_targets(source):
    sizes = []
    count = callbacks.on(
        train_batch_begin=lambda ctx: sizes.append(
            len(ctx.batch[0] if isinstance(ctx.batch, list | tuple) else ctx.batch)
        )
    )
    fit(source, model=AutoEncoder(4, 4), loss=None, epochs=1, batch_size=30, callbacks=[count])
    assert sizes == [30, 30, 20]


def test_batches_have_32_samples_shuffled_in_training_and_in_order_in_validation():
    seen = {"train": [], "valid": []}

    def note(ctx):
        seen[ctx.phase].append(ctx.batch[0])

    fit(valid=(X, Y), epochs=1, callbacks=[callbacks.on(train_batch_begin=note, valid_batch_begin=note)])
    assert [len(batch) for batch in seen["train"]] == [len(batch) for batch in seen["valid"]] == [32, 32, 16]
    assert torch.equal(torch.cat(seen["valid"]), X) and not torch.equal(torch.cat(seen["train"]), X)


def test_workers_do_not_change_the_result():
    alone, helped = (
        fit(data.Loader((X, Y), batch_size=16, shuffle=1, batcher=_stack, workers=count), epochs=1) for count in (0, 2)
    )
    assert same_weights(alone.model, helped.model)


def _stack(items):
    return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])


def test_a_fraction_is_held_out_at_random_by_the_seed():
    held_out = []
    for seed in (0, 0, 1):
        seen = {"train": [], "valid": []}

        def note(ctx, seen=seen):
            seen[ctx.phase] += map(tuple, ctx.batch[0].tolist())

        hook = callbacks.on(train_batch_begin=note, valid_batch_begin=note)
        fit(valid=0.25, epochs=1, seed=seed, callbacks=[hook])
        assert len(seen["train"]) == 60 and len({*seen["train"], *seen["valid"]}) == 80
        held_out.append(sorted(seen["valid"]))
    assert len(held_out[0]) == 20 and held_out[0] == held_out[1] != held_out[2]


def test_a_stream_of_unknown_length_is_read_to_its_end():
    found = fit(Stream(), accumulate=2)
    assert found.updates == 4  # 32, 32 and 16 samples: two windows an epoch


# --- how long


def test_validation_is_optional_and_may_come_every_few_updates():
    assert set(fit().history.columns) == {"train/loss"}
    found = learner().fit((X, Y), valid=(X, Y), epochs=2, batch_size=32, validate_every=2, show=False)
    assert [row["update"] for row in found.history.validations] == [2, 4, 6]


# --- what comes out


def test_every_epoch_is_printed_with_its_numbers_unless_show_is_false(capsys):
    found = learner(metrics=[metrics.MAE()]).fit((X, Y), valid=(X, Y), epochs=2)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ")]
    assert [line.split()[1] for line in lines] == ["1/2", "2/2"]
    for line, row in zip(lines, found.history, strict=True):
        assert all(f"{row[name]:#.4g}" in line for name in ("train/loss", "train/mae", "valid/loss", "valid/mae"))
    fit()
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_predict_keeps_the_order_of_the_data_without_dropout_and_on_the_cpu():
    found = fit(model=Net(dropout=0.5))
    expected = stoker.valid(found.model)(X)
    shuffled = data.Loader((X, Y), batch_size=16, shuffle=5)
    for source in ((X, Y), X, (X,), {"x": X}, DataLoader(TensorDataset(X, Y), batch_size=7), shuffled):
        predictions = found.predict(source)
        torch.testing.assert_close(predictions, expected)
        assert predictions.device.type == "cpu" and not predictions.requires_grad


def test_predict_and_evaluate_do_not_advance_a_loader():
    found, used, untouched = fit(), *(data.Loader((X, Y), batch_size=16, shuffle=5) for _ in range(2))
    found.evaluate(used)
    found.predict(used)
    fit(valid=used)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(used, untouched, strict=True))


def test_evaluate_gives_the_loss_and_metrics_of_the_whole_set():
    found = fit(metrics=[metrics.MAE(), metrics.RMSE()])
    scores, error = found.evaluate((X, Y)), found.predict((X, Y)) - Y
    assert set(scores) == {"loss", "mae", "rmse"}
    assert scores["loss"] == pytest.approx(error.square().mean().item(), rel=1e-5)
    assert scores["mae"] == pytest.approx(error.abs().mean().item(), rel=1e-5)
    assert set(found.evaluate((X, Y), metrics=[metrics.R2()])) == {"loss", "r2"}  # for this call only
    assert found.evaluate((X, Y)) == scores and "valid/r2" not in found.history.columns


def test_the_history_is_a_table_that_can_be_drawn():
    found = fit(valid=(X, Y), metrics=[metrics.MAE()], epochs=3)
    table = found.history.to_pandas()
    assert list(table.index) == [1, 2, 3]
    assert set(table.columns) == {"train/loss", "train/mae", "valid/loss", "valid/mae"}
    panels = found.plot().axes
    assert len(panels) == 2
    for axes, metric in zip(panels, ("loss", "mae"), strict=True):
        drawn = [list(line.get_ydata()) for line in axes.lines]
        assert found.history[f"train/{metric}"] in drawn and found.history[f"valid/{metric}"] in drawn


def test_a_printed_result_has_the_model_the_numbers_of_both_sets_and_the_time():
    found = fit(valid=(X, Y), metrics=[metrics.MAE()])
    for text in ("Net", "2 epochs", *(f"{name} {found.history[name][-1]:.4g}" for name in found.history.columns)):
        assert text in str(found)
    assert found.record.summary()["seconds"] > 0
    assert all(event.extra["seconds"] > 0 for event in found.record.events_of("epoch"))


def test_the_best_weights_come_back_unless_the_last_are_asked_for():
    rate = schedule.constant(0.01).then(schedule.constant(2.0), at=9)
    best, last = (fit(valid=(X, Y), lr=rate, optimizer=optim.SGD(), epochs=4, keep=keep) for keep in ("best", "last"))
    losses = best.history["valid/loss"]
    assert best.best.epoch < 4 and losses[-1] > min(losses)
    assert best.evaluate((X, Y))["loss"] == pytest.approx(min(losses), rel=1e-6)
    assert last.evaluate((X, Y))["loss"] == pytest.approx(losses[-1], rel=1e-6)


def test_a_run_directory_holds_config_log_and_numbers_and_is_not_overwritten(tmp_path):
    def start():
        return learner().fit((X, Y), valid=(X, Y), epochs=2, run=tmp_path / "run", config={"lr": 1e-2}, show=False)

    found = start()
    assert {"config.json", "events.jsonl", "run.json", "log.txt"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }
    assert stoker.Record.open(tmp_path / "run").series("valid/loss") == found.history["valid/loss"]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["seed"] == 0
    with pytest.raises(stoker.RunExists, match="run"):
        start()


# --- continuing in the same process


def test_a_fit_that_is_continued_is_one_long_fit():
    def make():
        torch.manual_seed(0)
        return Net(dropout=0.5)

    epochs = []
    note = callbacks.on(epoch_begin=lambda ctx: epochs.append(ctx.epoch))
    whole = fit(model=make(), epochs=4, batch_size=16)
    paused = fit(model=make(), epochs=2, batch_size=16, callbacks=[note])
    torch.rand(7)
    paused.continue_(epochs=2, show=False)
    assert same_weights(whole.model, paused.model) and paused.history["train/loss"] == whole.history["train/loss"]
    assert epochs == [1, 2, 3, 4] and (paused.epochs, paused.updates) == (4, 20)
    assert learner(paused.model).fit((X, Y), epochs=1, show=False).model is paused.model


# --- a learning rate to start with


def test_lr_find_gives_a_curve_a_plot_and_a_suggestion_and_changes_nothing():
    model, seen = Net(), []
    before = {name: each.clone() for name, each in model.state_dict().items()}
    hook = callbacks.on(train_batch_begin=lambda ctx: seen.append(ctx.update))
    curve = stoker.lr_find(learner(model), (X, Y), steps=50, start_lr=1e-6, end_lr=1.0, batch_size=20, callbacks=[hook])
    assert len(seen) >= len(curve.rates) == len(curve.losses) <= 50 and 1e-6 <= curve.suggestion <= 1.0
    assert curve.rates[1] / curve.rates[0] == pytest.approx(curve.rates[9] / curve.rates[8])
    assert curve.plot().axes[0].get_xscale() == "log"
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


# --- messages
