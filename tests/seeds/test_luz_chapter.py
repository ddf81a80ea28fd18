"""The seed "Training with luz" (the book's chapter 14), feature by feature."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stoker
from stoker import Callback, callbacks, data, metrics, optim, schedule
from stoker.callbacks import HOOK_NAMES


class Net(nn.Module):
    def __init__(self, d_in, d_hidden, d_out):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d_in, d_hidden), nn.ReLU(), nn.Linear(d_hidden, d_out))

    def forward(self, x):
        return self.net(x)


GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(1000, 3, generator=GENERATOR)
Y = X @ torch.tensor([[0.2], [-1.3], [-0.5]]) + torch.randn(1000, 1, generator=GENERATOR)
DS = TensorDataset(X, Y)


def declared(**settings):
    given = {"loss": nn.MSELoss(), "optimizer": optim.Adam(), "lr": 1e-2, "metrics": [metrics.MAE()], "seed": 0}
    return stoker.Learner(Net, **{**given, **settings}).hparams(d_in=3, d_hidden=32, d_out=1)


# 14.3.1: three parts, "strictly not overlapping".
@pytest.fixture(scope="module")
def parts():
    return data.split(DS, [0.6, 0.2, 0.2], seed=0)


@pytest.fixture(scope="module")
def fitted(parts):
    return declared().fit(parts[0], valid=parts[1], epochs=10, batch_size=100, show=False)


# 14.2.1 and 14.2.3: "fit() also accepts a dataset, tensors, and even R objects": here arrays.
@pytest.mark.parametrize(
    "source",
    [
        lambda: DataLoader(DS, batch_size=100, shuffle=True),
        lambda: DS,
        lambda: (X, Y),
        lambda: (X.numpy(), Y.numpy()),
        lambda: {"x": X, "y": Y},
    ],
    ids=["dataloader", "dataset", "tensors", "arrays", "names"],
)
def test_fit_takes_a_loader_a_data_set_tensors_and_arrays(source):
    size = {} if isinstance(source(), DataLoader) else {"batch_size": 100}
    found = declared().fit(source(), epochs=3, show=False, **size)
    losses = found.history["train/loss"]
    assert found.updates == 30 and losses[-1] < losses[0]


# 14.2.2: "No changes to the model definition"; we "never actually instantiate a model object" ourselves.
def test_the_model_is_a_class_and_every_fit_makes_a_fresh_one():
    learner = declared()
    a, b = (learner.fit((X, Y), epochs=1, show=False).model for _ in range(2))
    assert a is not b and type(a) is Net and torch.equal(a.net[0].weight, b.net[0].weight)


# 14.2.3, set_hparams(): "easily try out different layer sizes".
def test_hparams_configure_the_model_and_merge():
    learner = declared()
    wider = learner.hparams(d_hidden=64)
    assert wider.fit((X, Y), epochs=1, show=False).model.net[0].out_features == 64
    assert learner.fit((X, Y), epochs=1, show=False).model.net[0].out_features == 32


# 14.2.3: "the loss function and the optimizer to use" in one call, data and epochs in the other; nothing else needed.
def test_two_calls_are_enough():
    learner = stoker.Learner(nn.Linear(3, 1), loss=nn.MSELoss(), optimizer=optim.Adam())
    assert learner.fit((X, Y), epochs=1, show=False).epochs == 1


# 14.2.3: "you should see output like: Epoch 1/200, Train metrics: Loss: 3.0343".
def test_every_epoch_is_printed_with_its_numbers(parts, capsys):
    found = declared().fit(parts[0], valid=parts[1], epochs=3, batch_size=100)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ")]
    assert [line.split()[1] for line in lines] == ["1/3", "2/3", "3/3"]
    for line, row in zip(lines, found.history, strict=True):
        for name in ("train/loss", "train/mae", "valid/loss", "valid/mae"):
            assert f"{row[name]:#.4g}" in line, (name, line)


def test_the_three_parts_share_no_sample(parts):
    rows = [{tuple(x.tolist()) for x, _ in part} for part in parts]
    assert [len(each) for each in rows] == [600, 200, 200] and len(set.union(*rows)) == 1000


# 14.3.1: "instruct luz to compute a suitable metric, and pass a reference to the validation data".
def test_metrics_are_computed_in_training_and_in_validation(fitted):
    assert set(fitted.history.columns) == {"train/loss", "train/mae", "valid/loss", "valid/mae"}


# "During validation, none of this happens": no weight changes.
def test_validation_does_not_train(parts):
    with_it = declared().fit(parts[0], valid=parts[1], epochs=2, batch_size=100, keep="last", show=False)
    without = declared().fit(parts[0], epochs=2, batch_size=100, show=False)
    assert all(torch.equal(a, b) for a, b in zip(with_it.model.parameters(), without.model.parameters(), strict=True))


# "The fitted object contains the history of metrics at the epoch level, and the fitted model itself".
def test_the_fitted_object_has_the_history_and_the_model(fitted):
    assert len(fitted.history["valid/mae"]) == 10 and isinstance(fitted.model, Net)
    assert fitted.history.to_pandas().shape == (10, 4)


# `fitted %>% predict(test_dl)`.
def test_predict_gives_the_predictions_of_the_test_set(fitted, parts):
    inputs = torch.stack([x for x, _ in parts[2]])
    found = fitted.predict(parts[2])
    assert found.shape == (200, 1)
    torch.testing.assert_close(found, stoker.valid(fitted.model)(inputs))
    torch.testing.assert_close(fitted.predict(DataLoader(parts[2], batch_size=64)), found)


# `fitted %>% evaluate(test_dl)`: loss and mae.
def test_evaluate_gives_the_loss_and_the_metrics_of_the_test_set(fitted, parts):
    scores, errors = fitted.evaluate(parts[2]), fitted.predict(parts[2]) - torch.stack([y for _, y in parts[2]])
    assert set(scores) == {"loss", "mae"}
    assert scores["loss"] == pytest.approx(errors.square().mean().item(), rel=1e-5)
    assert scores["mae"] == pytest.approx(errors.abs().mean().item(), rel=1e-5)


# 14.3.2: fit, epoch, train and valid, batches, and "specific milestones inside the innermost logic".
@pytest.mark.parametrize(
    "milestone",
    [
        "fit_begin",
        "fit_end",
        "epoch_begin",
        "epoch_end",
        "train_begin",
        "train_end",
        "valid_begin",
        "valid_end",
        "train_batch_begin",
        "train_batch_end",
        "valid_batch_begin",
        "valid_batch_end",
        "train_batch_after_loss",
        "train_batch_after_backward",
        "train_batch_after_step",
    ],
)
def test_a_callback_runs_at_every_milestone_of_the_chapter(milestone):
    assert f"on_{milestone}" in HOOK_NAMES
    seen = []
    hook = callbacks.on(**{milestone: lambda ctx: seen.append(ctx.epoch)})
    declared().fit((X[:64], Y[:64]), valid=(X[64:128], Y[64:128]), epochs=2, show=False, callbacks=[hook])
    assert len(seen) == (1 if "fit" in milestone else 4 if "batch" in milestone else 2)


# "Whatever logic you want": a callback of one's own.
def test_any_logic_can_be_a_callback():
    class Halve(Callback):
        def on_epoch_end(self, ctx):
            ctx.lr_scale /= 2

    learner = declared(metrics=[metrics.LearningRate()])
    found = learner.fit((X, Y), epochs=3, show=False, callbacks=[Halve()])
    assert found.history["lr"] == [1e-2, 5e-3, 2.5e-3]


# luz_callback_lr_scheduler(): "different schedulers, each following their own logic"; plateau schedulers included.
def test_learning_rate_schedulers_change_it_on_the_way():
    learner = declared(lr=schedule.one_cycle(1e-2, steps=30), metrics=[metrics.LearningRate()])
    rates = learner.fit((X, Y), epochs=3, batch_size=100, show=False).history["lr"]
    assert len(set(rates)) == 3
    flat = callbacks.ReduceLROnPlateau("train/loss", factor=0.5, patience=0, min_delta=1e6)
    learner = declared(metrics=[metrics.LearningRate()])
    found = learner.fit((X, Y), epochs=3, batch_size=100, callbacks=[flat], show=False)
    assert found.history["lr"] == [1e-2, 1e-2, 5e-3]


# luz_callback_early_stopping(patience = 10): "Early stopping at epoch 111 of 200".
def test_early_stopping_ends_training_where_the_model_no_longer_improves(parts, capsys):
    found = declared().fit(
        parts[0], valid=parts[1], epochs=200, batch_size=100, callbacks=[callbacks.EarlyStopping(patience=10)]
    )
    assert found.epochs < 200 and found.best.epoch == found.epochs - 10
    assert found.stopped.startswith(f"Early stopping at epoch {found.epochs} of 200")
    assert f"Early stopping at epoch {found.epochs} of 200" in capsys.readouterr().out


# "You may choose any other metric to base the decision on, and it may refer to the training set as well."
@pytest.mark.parametrize("monitor", ["valid/mae", "train/mae", "train/loss"])
def test_any_metric_of_any_set_can_be_monitored(parts, monitor):
    stop = callbacks.EarlyStopping(monitor, patience=2, min_delta=10.0)
    found = declared().fit(parts[0], valid=parts[1], epochs=20, batch_size=100, callbacks=[stop], show=False)
    assert found.epochs == 3 and monitor in found.stopped


# model_checkpoint(save_best_only = TRUE) comes with the next issue; what it is for is here: the best weights come back.
def test_the_best_weights_are_what_comes_back(parts):
    found = declared(lr=0.05).fit(parts[0], valid=parts[1], epochs=12, batch_size=100, show=False)
    assert found.evaluate(parts[1])["loss"] == pytest.approx(min(found.history["valid/loss"]), rel=1e-6)


# 14.3.3: evaluation mode, batch by batch to the device, and predictions back on the CPU for other tools.
def test_devices_are_no_business_of_the_user(fitted, parts):
    found = fitted.predict(parts[2])
    assert found.device.type == "cpu" and not found.requires_grad
    assert isinstance(found.numpy(), np.ndarray) and next(fitted.model.parameters()).device.type == "cpu"


# The appendix: the same by hand (device, train() and eval(), zero_grad, two loops): the same losses.
def test_the_fit_is_the_loop_of_the_appendix(parts):
    train, valid = ([torch.stack(column) for column in zip(*part, strict=True)] for part in parts[:2])
    torch.manual_seed(0)
    model = Net(3, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    train_losses, valid_losses = [], []
    for _ in range(3):
        model.train()
        losses = []
        for x, y in zip(train[0].split(100), train[1].split(100), strict=True):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        train_losses.append(np.mean(losses))
        model.eval()
        with torch.no_grad():
            valid_losses.append(nn.functional.mse_loss(model(valid[0]), valid[1]).item())
    loader = data.Loader(tuple(train), batch_size=100)
    found = declared(optimizer=optim.Adam(fused=False)).fit(loader, valid=tuple(valid), epochs=3, show=False)
    assert found.history["train/loss"] == pytest.approx(train_losses, rel=1e-6)
    assert found.history["valid/loss"] == pytest.approx(valid_losses, rel=1e-5)
