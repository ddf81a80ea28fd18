"""Everything that luz can do (reference/declarative.md, 9: the parity checklist), in Python's idiom, line by line.

What the checklist says about saved states comes with the checkpoint issue: model_checkpoint, auto_resume and
resume_from_checkpoint, save and load of a fitted object, partial restore, auto-resume after a crash.
Where luz says it in other words:

    setup                      Learner(...)                     set_opt_hparams     optim.Adam(betas=...).replace(...)
    c(min, max) epochs         EarlyStopping(warmup=min)        weight of a hook    its place in the list
    on_*_before_backward       on_*_after_loss                  step()              train_step, valid_step
    on_*_before_step           on_*_after_backward              set_optimizers      a mapping, or Objectives
    on_early_stopping          on_fit_end, ctx.stopping         model$predict       predict_step
    luz_metric_set             Metric(on="train"|"valid")       accelerator         data.moved, Loader(device=)
    keep_best_model            keep="best"                      lr_scheduler        lr=schedule
    gradient_clip              clip_norm, clip_value            mixed_precision     precision="bf16"|"fp16"
"""

import csv
import os
import re
import signal
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import stoker
from stoker import Callback, Objective, callbacks, data, metrics, optim, schedule

mpl.use("Agg")

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(80, 4, generator=GENERATOR)
Y = X.sum(1, keepdim=True) + 0.1 * torch.randn(80, 1, generator=GENERATOR)
CLASSES = (X.sum(1) > 0).long() + (X[:, 0] > 1).long()
YES = (Y > 0).float()


class Net(nn.Module):
    def __init__(self, d_hidden=8, d_out=1, dropout=0.0):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(4, d_hidden), nn.ReLU()), nn.Linear(d_hidden, d_out)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.head(self.dropout(self.body(x)))


def learner(model=Net, **settings):
    given = {"loss": nn.MSELoss(), "optimizer": optim.Adam(), "lr": 1e-2, "seed": 0}
    return stoker.Learner(model, **{**given, **settings})


def fit(source=(X, Y), *, model=Net, callbacks=(), epochs=2, valid=None, batch_size=None, keep="best", **settings):
    return learner(model, **settings).fit(
        source, valid=valid, epochs=epochs, batch_size=batch_size, callbacks=callbacks, keep=keep, show=False
    )


def watch(**functions):
    return callbacks.on(**functions)


# --- setup(class|instance), missing-loss/optimizer errors


def test_setup_takes_a_class_an_instance_and_a_function_that_makes_one():
    assert isinstance(fit(model=Net).model, Net)
    ready = Net()
    assert fit(model=ready).model is ready
    assert fit(model=lambda: Net(d_hidden=3)).model.head.in_features == 3


def test_no_loss_says_the_ways_to_give_one():
    with pytest.raises(stoker.InvalidArgument, match=r"(?s)Net.*loss=.*train_step"):
        fit(loss=None)


def test_no_optimizer_is_a_good_one():
    assert stoker.Learner(Net, loss=nn.MSELoss()).fit((X, Y), epochs=1, show=False).updates == 3


@pytest.mark.parametrize("wrong", [[optim.Adam(), optim.SGD()], "adam", optim.Adam, torch.optim.Adam])
def test_a_wrong_optimizer_says_what_is_expected(wrong):
    with pytest.raises(stoker.WrongType, match=r"optimizer.*(optim\.|mapping|SGD|Adam)"):
        fit(optimizer=wrong)


# --- hparams, opt hparams (merge)


def test_hparams_merge_and_leave_the_learner_as_it_was():
    base = learner().hparams(d_hidden=5)
    assert base.hparams(d_out=1).fit((X, Y), epochs=1, show=False).model.head.in_features == 5
    assert base.hparams(d_hidden=6).fit((X, Y), epochs=1, show=False).model.head.in_features == 6
    assert base.fit((X, Y), epochs=1, show=False).model.head.in_features == 5


def test_optimizer_hparams_merge():
    adam = optim.Adam(betas=(0.5, 0.9))
    assert adam.replace(eps=1e-3) == optim.Adam(betas=(0.5, 0.9), eps=1e-3)


def test_hparams_of_an_instance_are_refused():
    with pytest.raises(stoker.InvalidArgument, match="instance"):
        learner(Net()).hparams(d_hidden=3)


# --- fit with array, tensor, tuple, dataset, iterable, loader, fraction, min/max epochs, verbose


class Rows(IterableDataset):
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
        Rows(),
        DataLoader(TensorDataset(X, Y), batch_size=32),
        data.Loader((X, Y), batch_size=32),
    ],
    ids=["tensors", "arrays", "names", "dataset", "samples", "iterable", "DataLoader", "Loader"],
)
def test_fit_takes_every_kind_of_data(source):
    found = fit(source)
    assert (found.updates, len(found.history["train/loss"])) == (6, 2)
    assert found.evaluate(source)["loss"] > 0 and found.predict(source).shape == (80, 1)


@pytest.mark.parametrize("source", [X, X.numpy(), (X,)], ids=["tensor", "array", "tuple"])
def test_fit_takes_inputs_alone_where_the_step_needs_no_target(source):
    class Auto(nn.Linear):
        def train_step(self, batch):
            x = batch[0] if isinstance(batch, tuple | list) else batch
            return F.mse_loss(self(x), x)

    assert fit(source, model=Auto(4, 4), loss=None).updates == 6


def test_a_fraction_is_held_out_at_random_and_the_seed_is_recorded():
    held = []
    for seed in (0, 0, 1):
        rows = []
        fit(
            valid=0.25,
            epochs=1,
            seed=seed,
            callbacks=[watch(valid_batch_begin=lambda ctx, to=rows: to.extend(ctx.batch[0].tolist()))],
        )
        held.append(sorted(map(tuple, rows)))
    assert len(held[0]) == 20 and held[0] == held[1] != held[2]
    assert "seed 0" in str(fit(valid=0.25).record.events_of("begin")[0].extra["plan"])


def test_a_minimum_of_epochs():
    stop = callbacks.EarlyStopping("train/loss", patience=1, min_delta=1e6, warmup=5)
    assert fit(epochs=20, callbacks=[stop]).epochs == 6


def test_a_maximum_of_epochs():
    assert fit(epochs=3).stopped == "Completed 3 epochs"


def test_verbose_prints_and_silent_is_silent(capsys):
    learner().fit((X, Y), epochs=2)
    assert "epoch 2/2" in capsys.readouterr().out
    learner().fit((X, Y), epochs=2, show=False)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


# --- loader options + defaults (32, shuffle, drop_last train only)


def test_batches_have_32_samples_shuffled_in_training_and_in_order_in_validation():
    seen = {"train": [], "valid": []}

    def note(ctx):
        seen[ctx.phase].append(ctx.batch[0])

    fit(valid=(X, Y), epochs=1, callbacks=[watch(train_batch_begin=note, valid_batch_begin=note)])
    # nothing is dropped: a short batch counts for what it has, so there is no reason to
    assert [len(batch) for batch in seen["train"]] == [len(batch) for batch in seen["valid"]] == [32, 32, 16]
    assert torch.equal(torch.cat(seen["valid"]), X) and not torch.equal(torch.cat(seen["train"]), X)


def test_loader_options_go_to_the_loader():
    loader = data.Loader((X, Y), batch_size=30, shuffle=3, drop_last=True)
    assert fit(loader).updates == 4 and fit(batch_size=40).updates == 4


# --- predict (+custom predict, unstacked)


def test_predict_is_in_the_datas_order_without_dropout_and_on_the_cpu():
    found = fit(model=Net(dropout=0.5))
    expected = stoker.valid(found.model)(X)
    for source in ((X, Y), X, (X,), TensorDataset(X, Y), {"x": X}, DataLoader(TensorDataset(X, Y), batch_size=7)):
        predictions = found.predict(source)
        torch.testing.assert_close(predictions, expected)
        assert predictions.device.type == "cpu" and not predictions.requires_grad


def test_predict_is_in_the_datas_order_also_from_a_loader_that_shuffles():
    found = fit()
    loader = data.Loader((X, Y), batch_size=16, shuffle=5)
    torch.testing.assert_close(found.predict(loader), found.predict((X, Y)))


def test_predict_and_evaluate_leave_the_loader_where_it_was():
    found, loader, untouched = fit(), *(data.Loader((X, Y), batch_size=16, shuffle=5) for _ in range(2))
    found.evaluate(loader)
    found.predict(loader)
    fit(valid=loader)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(loader, untouched, strict=True))


def test_predict_asks_a_predict_step_where_the_model_has_one():
    class Embedding(Net):
        def predict_step(self, batch):
            return self.body(batch[0])

    assert fit(model=Embedding).predict((X, Y)).shape == (80, 8)


def test_predict_keeps_the_structure_that_the_model_gives():
    class Two(Net):
        def forward(self, x):
            return {"mean": super().forward(x), "parts": (x[:, 0], x[:, 1:])}

    found = fit(model=Two, loss=lambda answer, y: F.mse_loss(answer["mean"], y)).predict((X, Y), batch_size=16)
    assert found["mean"].shape == (80, 1) and torch.equal(found["parts"][0], X[:, 0])
    assert found["parts"][1].shape == (80, 3)


# --- evaluate (+metric override restored)


def test_evaluate_gives_named_numbers():
    found = fit(metrics=[metrics.MAE(), metrics.RMSE()])
    assert set(found.evaluate((X, Y))) == {"loss", "mae", "rmse"}


def test_other_metrics_for_one_evaluation_leave_nothing_behind():
    found = fit(metrics=[metrics.MAE()])
    before = found.evaluate((X, Y))
    assert set(found.evaluate((X, Y), metrics=[metrics.R2()])) == {"loss", "r2"}
    assert found.evaluate((X, Y)) == before and "valid/r2" not in found.history.columns


# --- get_metrics table · plot · print


def test_the_history_is_a_tidy_table():
    found = fit(valid=(X, Y), metrics=[metrics.MAE()], epochs=3)
    table = found.history.to_pandas()
    assert list(table.index) == [1, 2, 3]
    assert set(table.columns) == {"train/loss", "train/mae", "valid/loss", "valid/mae"}
    assert [row["valid/mae"] for row in found.history] == list(table["valid/mae"])


def test_plot_has_a_panel_for_each_metric_with_both_sets():
    found = fit(valid=(X, Y), metrics=[metrics.MAE()], epochs=3)
    panels = found.plot().axes
    assert len(panels) == 2
    for axes, metric in zip(panels, ("loss", "mae"), strict=True):
        drawn = [list(line.get_ydata()) for line in axes.lines]
        assert found.history[f"train/{metric}"] in drawn and found.history[f"valid/{metric}"] in drawn


def test_print_says_the_numbers_and_the_model():
    found = fit(valid=(X, Y), metrics=[metrics.MAE()])
    for text in ("Net", "2 epochs", *(f"{name} {found.history[name][-1]:.4g}" for name in found.history.columns)):
        assert text in str(found)


def test_print_says_the_time():
    found = fit()
    assert found.record.summary()["seconds"] > 0
    assert all(each.extra["seconds"] > 0 for each in found.record.events_of("epoch"))
    assert re.search(r"\d (s|min|h|ms|µs)\b", str(found)), str(found)


# --- ctx fields of 1.4


def test_ctx_has_what_luz_has():
    seen = {}

    def look(ctx):
        seen.update({name: getattr(ctx, name) for name in (
            "device", "model", "optimizer", "epochs", "epoch", "batch_number", "batch", "pred", "loss", "output",
            "phase", "metrics", "record", "history", "lr", "seed", "update", "batches", "best",
        )})  # fmt: skip
        ctx.state["mine"] = ctx.epoch

    found = fit(callbacks=[watch(train_batch_end=look)], valid=(X, Y))
    assert seen["model"] is found.model and seen["epochs"] == 2 and seen["epoch"] == 2 and seen["batch_number"] == 3
    assert seen["batch"][0].shape == (16, 4) and seen["pred"].shape == (16, 1) and seen["loss"].ndim == 0
    assert seen["device"].type == "cpu" and seen["batches"] == 3 and seen["update"] == 6 and seen["phase"] == "train"
    assert isinstance(seen["optimizer"], optim.Optimizer) and seen["seed"] == 0 and seen["best"].epoch == 1


def test_ctx_takes_no_unknown_field_and_has_a_place_for_ones_own():
    def wrong(ctx):
        ctx.epcoh = 3

    with pytest.raises(AttributeError, match="epoch"):
        fit(callbacks=[watch(epoch_end=wrong)])
    seen = []
    fit(callbacks=[watch(fit_begin=lambda ctx: ctx.state.update(n=1), fit_end=lambda ctx: seen.append(ctx.state["n"]))])
    assert seen == [1]


def test_ctx_log_puts_a_number_into_the_table():
    found = fit(callbacks=[watch(epoch_end=lambda ctx: ctx.log("temperature", 30 + ctx.epoch))])
    assert found.history["temperature"] == [31.0, 32.0]


def test_a_hook_reads_the_metrics_of_earlier_epochs():
    seen = []
    fit(epochs=3, callbacks=[watch(epoch_end=lambda ctx: seen.append(len(ctx.history["train/loss"])))])
    assert seen == [1, 2, 3]


def test_the_batch_is_writable():
    seen = []

    def blank(ctx):
        ctx.batch = (torch.zeros_like(ctx.batch[0]), ctx.batch[1])

    fit(
        callbacks=[
            watch(train_batch_begin=blank, train_batch_after_pred=lambda ctx: seen.append(ctx.pred.std().item()))
        ]
    )
    assert seen and max(seen) < 1e-6


@pytest.mark.parametrize("phase", ["train", "valid"])
def test_the_prediction_is_writable_before_the_loss(phase):
    def perfect(ctx):
        with torch.enable_grad():
            ctx.pred = ctx.batch[1] + 0 * ctx.model.head.bias.sum()

    found = fit(valid=(X, Y), epochs=1, callbacks=[watch(**{f"{phase}_batch_after_pred": perfect})])
    assert found.history[f"{phase}/loss"] == [0.0]


@pytest.mark.parametrize("phase", ["train", "valid"])
def test_the_loss_is_writable_and_the_written_one_counts(phase):
    def double(ctx):
        with torch.enable_grad():
            ctx.loss = 2 * ctx.loss

    plain = fit(valid=(X, Y), epochs=1, lr=0.0)
    twice = fit(valid=(X, Y), epochs=1, lr=0.0, callbacks=[watch(**{f"{phase}_batch_after_loss": double})])
    assert twice.history[f"{phase}/loss"] == [pytest.approx(2 * plain.history[f"{phase}/loss"][0], rel=1e-6)]


def test_the_record_of_a_fit_is_not_for_writing():
    found = fit()
    with pytest.raises(AttributeError):
        found.history = {}
    with pytest.raises(TypeError):
        found.record.rows[1] = {}


# --- 25 hooks in the documented order


def test_the_hooks_come_in_the_documented_order():
    seen = []
    names = [name.removeprefix("on_") for name in callbacks.HOOK_NAMES]
    fit((X[:32], Y[:32]), valid=(X[32:64], Y[32:64]), epochs=2, callbacks=[
        watch(**{name: lambda ctx, name=name: seen.append(name) for name in names})
    ])  # fmt: skip
    train = ["begin", "after_pred", "after_loss", "after_backward", "after_step"]
    epoch = [
        "epoch_begin",
        "train_begin",
        *(f"train_batch_{each}" for each in train),
        "update",
        "train_batch_end",
        "train_end",
    ]
    epoch += [
        "valid_begin",
        *(f"valid_batch_{each}" for each in ("begin", "after_pred", "after_loss", "end")),
        "valid_end",
    ]
    epoch += ["validation", "epoch_end"]
    assert seen == ["fit_begin", *epoch, *epoch, "fit_end"]


def test_callbacks_run_without_gradients():
    seen = []
    fit(callbacks=[watch(train_batch_end=lambda ctx: seen.append(torch.is_grad_enabled()))])
    assert not any(seen)


def test_early_stopping_is_told_at_the_end():
    seen = []
    stop = callbacks.EarlyStopping("train/loss", patience=1, min_delta=1e6)
    fit(epochs=9, callbacks=[stop, watch(fit_end=lambda ctx: seen.append(ctx.stopping))])
    assert seen[0].startswith("Early stopping at epoch 2 of 9")


# --- weight ordering: the place in the list


def test_callbacks_run_in_the_order_of_the_list():
    seen = []
    fit(epochs=1, callbacks=[watch(epoch_end=lambda ctx, n=n: seen.append(n)) for n in (3, 1, 2)])
    assert seen == [3, 1, 2]


# --- custom step, loss, backward, set_optimizers (named, several)


def test_a_custom_step_for_training_and_validation():
    class Own(Net):
        def train_step(self, batch):
            return 3 * F.l1_loss(self(batch[0]), batch[1])

        def valid_step(self, batch):
            return F.l1_loss(self(batch[0]), batch[1])

    found = fit(model=Own, loss=None, lr=0.0, valid=(X, Y), epochs=1)
    assert found.history["train/loss"] == [pytest.approx(3 * found.history["valid/loss"][0], rel=1e-5)]


def test_a_loss_is_any_function_and_may_be_a_method():
    class Own(Net):
        def loss(self, predictions, targets):
            return F.huber_loss(predictions, targets) + 1e-3 * self.head.weight.square().sum()

    model = Own()
    assert fit(model=model, loss=model.loss).history["train/loss"][1] > 0


def test_a_backward_of_ones_own():
    """retain_graph, penalties on gradients, sign descent: the gradients are a value that may be replaced."""
    before = Net()
    start = before.head.weight.detach().clone()

    def signs(ctx):
        ctx.grads = ctx.grads.map(lambda name, tensor: tensor.sign())

    fit(
        model=before,
        optimizer=optim.SGD(),
        lr=0.25,
        epochs=1,
        batch_size=80,
        callbacks=[watch(train_batch_after_backward=signs)],
    )
    torch.testing.assert_close((before.head.weight - start).abs(), torch.full((1, 8), 0.25))


def test_several_optimizers_by_name_each_with_its_loss():
    class Two(Net):
        def train_step(self, batch):
            x, y = batch
            yield Objective("body", self.body(x).mean())
            yield Objective("head", F.mse_loss(self(x), y))

    seen = []
    found = fit(
        model=Two,
        loss=None,
        optimizer={"body": optim.SGD(), "head": optim.Adam()},
        lr={"body": 1e-3, "head": 1e-2},
        callbacks=[watch(train_batch_after_step=lambda ctx: seen.append(ctx.batch_number))],
    )
    assert {"train/body", "train/head"} <= set(found.history.columns) and len(seen) == 2 * 6


# --- all 16 callbacks of 1.6 + user-defined ones


def test_profile_times_the_fit_and_its_epochs():
    found = fit(epochs=3)
    assert len([each.extra["seconds"] for each in found.record.events_of("epoch")]) == 3
    assert found.record.events_of("end")[0].extra["seconds"] > 0


def test_train_valid_puts_the_model_into_the_right_mode():
    seen = set()

    class Watched(Net):
        def forward(self, x):
            seen.add((self.training, torch.is_grad_enabled()))
            return super().forward(x)

    fit(model=Watched, valid=(X, Y))
    assert seen == {(True, True), (False, False)}


def test_progress_is_told_while_an_epoch_runs():
    kinds = []
    fit(callbacks=[watch(fit_begin=lambda ctx: ctx.record.subscribe(lambda event: kinds.append(event.kind)))])
    assert "progress" in kinds


def test_an_interrupt_ends_cleanly_and_returns_a_fitted_object():
    seen = []
    press = watch(
        train_batch_end=lambda ctx: os.kill(os.getpid(), signal.SIGINT) if ctx.update == 4 else None,
        interrupt=lambda ctx: seen.append("interrupt"),
        epoch_end=lambda ctx: seen.append("epoch_end"),
        fit_end=lambda ctx: seen.append("fit_end"),
    )
    found = fit(valid=(X, Y), epochs=9, callbacks=[press])
    assert (found.epochs, found.updates) == (2, 4) and found.stopped.startswith("Interrupted in epoch 2")
    assert seen == ["epoch_end", "epoch_end", "interrupt", "fit_end"]
    assert found.best.epoch == 1 and found.evaluate((X, Y))["loss"] == pytest.approx(found.best.value, rel=1e-6)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_early_stopping_has_monitor_min_delta_patience_mode_and_baseline():
    stop = callbacks.EarlyStopping("train/loss", min_delta=0.01, patience=2, direction="min", baseline=0.0)
    assert fit(epochs=9, callbacks=[stop]).epochs == 2
    rising = callbacks.EarlyStopping("train/loss", patience=1, direction="max")
    assert fit(epochs=9, callbacks=[rising]).epochs == 2


def test_early_stopping_monitors_a_loss_by_its_objective():
    class One(Net):
        def train_step(self, batch):
            yield Objective("head", F.mse_loss(self(batch[0]), batch[1]))

    recipe = {"head": optim.Adam(), "*": optim.SGD()}
    stop = callbacks.EarlyStopping("train/head", patience=1, min_delta=1e6, direction="min")
    assert fit(model=One, loss=None, optimizer=recipe, epochs=9, callbacks=[stop]).epochs == 2


def test_a_loss_of_an_objective_has_a_direction_of_its_own():
    class One(Net):
        def train_step(self, batch):
            yield Objective("*", F.mse_loss(self(batch[0]), batch[1]))

    stop = callbacks.EarlyStopping("train/*", patience=1, min_delta=1e6)
    assert fit(model=One, loss=None, epochs=9, callbacks=[stop]).epochs == 2


def test_keep_best_model_and_its_opposite():
    rate = schedule.constant(0.01).then(schedule.constant(2.0), at=9)
    best = fit(valid=(X, Y), lr=rate, optimizer=optim.SGD(), epochs=4)
    last = fit(valid=(X, Y), lr=rate, optimizer=optim.SGD(), epochs=4, keep="last")
    losses = best.history["valid/loss"]
    assert best.best.epoch < 4 and best.evaluate((X, Y))["loss"] == pytest.approx(min(losses), rel=1e-6)
    assert last.evaluate((X, Y))["loss"] == pytest.approx(losses[-1], rel=1e-6)


def test_lr_schedulers_by_update_and_by_plateau():
    rates = []
    line = schedule.linear(1e-2, 1e-3, steps=6)
    fit(lr=line, callbacks=[watch(update=lambda ctx: rates.append(ctx.lr))])
    assert rates == [line(update) for update in range(6)]
    flat = callbacks.ReduceLROnPlateau("train/loss", factor=0.1, patience=1, min_delta=1e6)
    found = fit(epochs=5, metrics=[metrics.LearningRate()], callbacks=[flat])
    assert found.history["lr"] == pytest.approx([1e-2, 1e-2, 1e-2, 1e-3, 1e-3])


def test_csv_logger_writes_a_row_an_epoch_with_every_set(tmp_path):
    found = fit(valid=(X, Y), epochs=3, callbacks=[callbacks.CSV(tmp_path / "log.csv")])
    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert [float(row["valid/loss"]) for row in rows] == found.history["valid/loss"]


def test_a_writer_of_events_gets_every_scalar_and_the_weights():
    """What tfevents does: scalars of every epoch, and histograms of weights, for a writer of the user's choice."""

    class Writer(Callback):
        def __init__(self):
            self.scalars, self.histograms = [], []

        def on_epoch_end(self, ctx):
            self.scalars += [(name, ctx.epoch, value) for name, value in ctx.metrics.items()]
            self.histograms += [(name, each.histc(8)) for name, each in ctx.model.named_parameters()]

    writer = Writer()
    found = fit(valid=(X, Y), metrics=[metrics.MAE()], callbacks=[writer])
    assert [value for name, _, value in writer.scalars if name == "valid/mae"] == found.history["valid/mae"]
    assert len(writer.scalars) == 2 * 4 and len(writer.histograms) == 2 * 4


@pytest.mark.parametrize("kind", [1.0, 2.0, float("inf")])
def test_gradient_clip_of_any_norm(kind):
    norms = []

    def clip(ctx):
        ctx.grads = ctx.grads.clip_norm(0.1, kind=kind)
        norms.append(ctx.grads.norm(kind).item())

    fit(callbacks=[watch(train_batch_after_backward=clip)])
    assert norms and max(norms) <= 0.1 + 1e-6
    model = Net()
    before = [each.detach().clone() for each in model.parameters()]
    fit(model=model, optimizer=optim.SGD(), lr=1.0, clip_norm=0.1, epochs=1, batch_size=80)
    moved = torch.cat([(a - b).flatten() for a, b in zip(model.parameters(), before, strict=True)])
    assert moved.norm().item() == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_trains_and_keeps_32_bit_weights(precision):
    found = fit(precision=precision, epochs=30)
    assert found.history["train/loss"][-1] < found.history["train/loss"][0] / 2
    assert all(each.dtype == torch.float32 for each in found.model.parameters())


def test_mixup_mixes_inputs_and_targets_with_an_alpha():
    seen = []
    look = watch(train_batch_begin=lambda ctx: seen.append(ctx.batch[0].clone()))
    fit(
        (X, CLASSES),
        model=Net(d_out=3),
        loss=nn.CrossEntropyLoss(),
        epochs=1,
        callbacks=[callbacks.MixUp(alpha=0.4), look],
    )
    rows = {tuple(row) for row in X.tolist()}
    assert any(tuple(row) not in rows for batch in seen for row in batch.tolist())


def test_a_callback_of_ones_own_inherits_another_and_keeps_a_state():
    class Loud(callbacks.EarlyStopping):
        def __init__(self):
            super().__init__("train/loss", patience=1, min_delta=1e6)
            self.said = []

        def on_epoch_end(self, ctx):
            super().on_epoch_end(ctx)
            self.said.append(ctx.epoch)

    loud = Loud()
    assert fit(epochs=9, callbacks=[loud]).epochs == 2 and loud.said == [1, 2] and loud.state_dict()["waited"] == 1


# --- 8 metrics + custom + metric sets


def test_the_metrics_of_luz():
    found = fit(
        (X, CLASSES), model=Net(d_out=3), loss=nn.CrossEntropyLoss(), metrics=[metrics.Accuracy(), metrics.AUROC()]
    )
    logits = found.predict(X)
    scores = found.evaluate((X, CLASSES))
    assert scores["accuracy"] == pytest.approx((logits.argmax(1) == CLASSES).float().mean().item())
    assert scores["auroc"] == pytest.approx(roc_auc_score(CLASSES, logits.softmax(1), multi_class="ovr"), abs=1e-6)

    found = fit(metrics=[metrics.MAE(), metrics.MSE(), metrics.RMSE()])
    error, scores = (found.predict(X) - Y).double(), found.evaluate((X, Y))
    assert scores["mae"] == pytest.approx(error.abs().mean().item(), rel=1e-5)
    assert (
        scores["rmse"]
        == pytest.approx(scores["mse"] ** 0.5)
        == pytest.approx(error.square().mean().sqrt().item(), rel=1e-5)
    )


def test_binary_metrics_from_logits_and_from_probabilities():
    chosen = [metrics.Accuracy(), metrics.Accuracy(threshold=1.0, name="strict"), metrics.AUROC()]
    found = fit((X, YES), loss=nn.BCEWithLogitsLoss(), metrics=chosen)
    logits, scores = found.predict(X), found.evaluate((X, YES))
    assert scores["accuracy"] == pytest.approx(((logits > 0) == (YES > 0.5)).float().mean().item())
    assert scores["strict"] == pytest.approx(((logits > 1) == (YES > 0.5)).float().mean().item())
    assert scores["auroc"] == pytest.approx(roc_auc_score(YES, logits))

    model = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
    chosen = [metrics.Accuracy(threshold=0.5), metrics.AUROC(bins=200, probabilities=True)]
    found = fit((X, YES), model=model, loss=nn.BCELoss(), metrics=chosen)
    likely, scores = found.predict(X), found.evaluate((X, YES))
    assert scores["accuracy"] == pytest.approx(((likely > 0.5) == (YES > 0.5)).float().mean().item())
    assert scores["auroc"] == pytest.approx(roc_auc_score(YES, likely), abs=0.01)


def test_a_custom_metric_as_a_class_as_a_function_and_from_torchmetrics():
    import torchmetrics

    class Bias(metrics.Metric):
        def init(self, device):
            return {"sum": torch.zeros((), device=device), "count": torch.zeros((), device=device)}

        def update(self, state, output):
            error = output.predictions - output.targets
            return {"sum": state["sum"] + error.sum(), "count": state["count"] + error.numel()}

        def compute(self, state):
            return {"signed": (state["sum"] / state["count"]).item(), "count": state["count"].item()}

    def close(predictions, targets):
        return ((predictions - targets).abs() < 1).float()

    found = fit(metrics=[Bias(), metrics.of(close, direction="max"), torchmetrics.MeanAbsoluteError()], valid=(X, Y))
    scores = found.evaluate((X, Y))
    assert {"loss", "bias/signed", "bias/count", "close", "mean_absolute_error"} == set(scores) and scores[
        "bias/count"
    ] == 80
    assert scores["mean_absolute_error"] == pytest.approx((found.predict(X) - Y).abs().mean().item(), rel=1e-5)
    assert found.record.direction("valid/close") == "max"


def test_metric_sets_for_one_phase():
    found = fit(valid=(X, Y), metrics=[metrics.MAE(on="train"), metrics.RMSE(on="valid"), metrics.MSE()])
    columns = set(found.history.columns)
    assert columns == {"train/loss", "train/mae", "train/mse", "valid/loss", "valid/rmse", "valid/mse"}


# --- accelerator alone


def test_device_handling_alone_for_a_loop_of_ones_own():
    model, loader = Net(), data.Loader((X, Y), batch_size=32, device="cpu")
    optimizer = optim.Adam().init(model)
    for x, y in loader:
        optimizer.step(stoker.backward(F.mse_loss(model(x), y), model), lr=1e-2)
    assert x.device.type == "cpu"

    @dataclass
    class Nested:
        parts: dict

    moved = data.moved(Nested({"a": [X], "b": "text"}), torch.device("meta"))
    assert moved.parts["a"][0].device.type == "meta" and moved.parts["b"] == "text"


# --- lr_finder (+ keep user opt hparams and callbacks)


def test_lr_find_gives_a_curve_a_plot_and_a_suggestion_and_touches_nothing():
    model = Net()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    found = learner(model)
    curve = stoker.lr_find(found, (X, Y), steps=50, start_lr=1e-6, end_lr=1.0, batch_size=20)
    assert len(curve.rates) == len(curve.losses) <= 50 and 1e-6 <= curve.suggestion <= 1.0
    assert curve.rates[1] / curve.rates[0] == pytest.approx(curve.rates[9] / curve.rates[8])
    assert curve.plot().axes[0].get_xscale() == "log"
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_lr_find_works_with_several_optimizers():
    found = learner(optimizer={"head": optim.SGD(), "*": optim.Adam()}, lr={"head": 1e-2, "*": 1e-3})
    assert stoker.lr_find(found, (X, Y), steps=20).suggestion > 0


def test_lr_find_takes_callbacks():
    seen = []
    stoker.lr_find(
        learner(), (X, Y), steps=20, callbacks=[watch(train_batch_begin=lambda ctx: seen.append(ctx.update))]
    )
    assert len(seen) >= 10


# --- save/load: weights (a fitted object and checkpoints come with the next issue)


def test_the_weights_of_a_fitted_model_are_saved_and_loaded(tmp_path):
    found = fit()
    path = stoker.save(found.model, tmp_path / "net")
    torch.testing.assert_close(stoker.valid(stoker.load(Net(), path))(X), found.predict(X))


# --- messages of 1.11


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1, 1.5])
def test_message_a_fraction_out_of_range(fraction):
    with pytest.raises(stoker.InvalidArgument, match="between 0 and 1"):
        fit(valid=fraction)


@pytest.mark.parametrize("source", [DataLoader(TensorDataset(X, Y), batch_size=8), data.Loader((X, Y), batch_size=8)])
def test_message_a_loader_cannot_be_split(source):
    with pytest.raises(stoker.InvalidArgument, match=r"can't be split.*data\.split"):
        fit(source, valid=0.2)


def test_message_options_given_with_a_loader():
    with pytest.raises(stoker.InvalidArgument, match="batch_size"):
        fit(DataLoader(TensorDataset(X, Y), batch_size=8), batch_size=16)


def test_message_data_that_is_none():
    with pytest.raises(stoker.StokerError, match="object"):
        fit(object())


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        ([callbacks.EarlyStopping], r"the class EarlyStopping; make one of it"),
        ([lambda ctx: None], r"callbacks\.on\(epoch_end"),
        ([3], r"inherits from stoker\.Callback"),
        (callbacks.EarlyStopping(), r"callbacks=\["),
    ],
    ids=["class", "function", "number", "no list"],
)
def test_message_not_a_callback(wrong, advice):
    with pytest.raises(stoker.WrongType, match=advice):
        fit(callbacks=wrong)


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        ([metrics.MAE], r"write MAE\(\)"),
        (["mae"], r"write metrics\.MAE\(\)"),
        ([F.l1_loss], r"metrics\.of\(l1_loss\)"),
        ([3], "no metric"),
        (metrics.MAE(), r"metrics=\["),
    ],
    ids=["class", "name", "function", "number", "no list"],
)
def test_message_not_a_metric(wrong, advice):
    with pytest.raises(stoker.WrongType, match=advice):
        fit(metrics=wrong)


def test_message_an_error_in_a_callback_keeps_its_type_and_says_where():
    class Broken(Callback):
        def on_valid_batch_end(self, ctx):
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        fit(valid=(X, Y), callbacks=[Broken()])
    note = "".join(caught.value.__notes__)
    assert "Broken.on_valid_batch_end" in note and "epoch 1" in note and "batch 1" in note


@pytest.mark.parametrize("phase", ["train", "valid"])
def test_message_an_error_in_a_metric_says_which_and_where(phase):
    def broken(predictions, targets):
        raise ZeroDivisionError("mine")

    metric = metrics.of(broken, name="my_metric").replace(on=phase)
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        fit(valid=(X, Y), metrics=[metric])
    note = "".join(caught.value.__notes__)
    assert "my_metric" in note and phase in note and "epoch 1" in note and "batch 1" in note


def test_message_a_monitored_metric_that_is_several_numbers():
    stop = callbacks.EarlyStopping("valid/recall")
    with pytest.raises(stoker.NoSuchMetric, match="valid/recall/0"):
        fit((X, CLASSES), model=Net(d_out=3), loss=nn.CrossEntropyLoss(), valid=(X, CLASSES),
            metrics=[metrics.Recall(average="none")], callbacks=[stop])  # fmt: skip


def test_message_two_metrics_of_one_name():
    with pytest.raises(stoker.InvalidArgument, match="mae"):
        fit(metrics=[metrics.MAE(), metrics.MAE()])


# --- luz, 1.13: what its users asked for


def test_a_fitted_model_is_trained_on():
    found = fit(valid=(X, Y))
    found.continue_(epochs=2, show=False)
    assert (found.epochs, found.updates, len(found.history)) == (4, 12, 4)
    again = learner(found.model).fit((X, Y), epochs=1, show=False)
    assert again.model is found.model


def test_sample_weights_and_class_weights_count():
    weight = torch.tensor([1.0, 0.0]).repeat(40)
    weighted = fit(
        {"x": X, "y": Y, "weight": weight},
        lr=0.0,
        epochs=1,
        metrics=[metrics.MAE()],
        valid={"x": X, "y": Y, "weight": weight},
    )
    half = fit((X[::2], Y[::2]), lr=0.0, epochs=1, metrics=[metrics.MAE()], valid=(X[::2], Y[::2]))
    for name in ("train/loss", "train/mae", "valid/loss", "valid/mae"):
        assert weighted.history[name] == [pytest.approx(half.history[name][0], rel=1e-5)]
    balanced = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    model = Net(d_out=3)
    found = fit((X, CLASSES), model=model, loss=balanced, lr=0.0, epochs=1, valid=(X, CLASSES))
    assert found.history["valid/loss"] == [pytest.approx(balanced(model(X), CLASSES).item(), rel=1e-5)]


def test_lbfgs_is_for_a_loop_of_ones_own_and_fit_says_so():
    model = nn.Linear(4, 1)
    optimizer = optim.wrap(torch.optim.LBFGS, max_iter=20).init(model)
    loss = optimizer.minimize(lambda: F.mse_loss(model(X), Y), lr=1.0)
    assert F.mse_loss(model(X), Y) < loss / 10
    with pytest.raises(stoker.StokerError, match=r"minimize\(closure"):
        fit(optimizer=optim.wrap(torch.optim.LBFGS), epochs=1)


def test_a_stream_of_unknown_length_is_trained_to_its_end():
    class Stream(IterableDataset):
        def __iter__(self):
            yield from zip(X[:50], Y[:50], strict=True)

    found = fit(Stream(), epochs=2, accumulate=2)
    assert found.updates == 2  # 32 and 18 samples make one update
    assert np.isfinite(found.history["train/loss"]).all()
