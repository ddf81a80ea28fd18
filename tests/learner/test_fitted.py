"""What comes out of a fit: numbers, the model, and more training."""

import math
import re

import pytest
import torch
from torch import nn

import stoker
from stoker import InvalidArgument, WrongType, callbacks, data, metrics, optim, schedule
from tests.engine.fits import Net, copied, learner, line, linear, same, samples


def fit(epochs, **settings):
    given = learner(lr=schedule.cosine(1e-2, steps=100), accumulate=3, **settings)
    return given.fit(samples(), valid=samples(), epochs=epochs, batch_size=16, keep="last", show=False)


@pytest.mark.parametrize("settings", [{}, {"ema": 0.9}, {"precision": "bf16"}, {"seed": None}])
def test_continuing_is_the_longer_fit_bit_for_bit(settings):
    """Dropout, batch norm, a schedule, momentum and shuffling all go on from where they were."""
    torch.manual_seed(9)
    whole = fit(6, **settings)
    torch.manual_seed(9)
    parts = fit(2, **settings)
    torch.rand(5)  # what is drawn in between is not the fit's
    state = torch.get_rng_state()
    parts = parts.continue_(epochs=1, show=False).continue_(epochs=3, show=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert same(whole.model, parts.model)
    for name in ("train/loss", "valid/loss"):
        assert whole.history[name] == parts.history[name]
    assert (parts.epochs, parts.updates, parts.stopped) == (6, whole.updates, "Completed 6 epochs")
    assert parts.best == whole.best


def test_continuing_goes_on_from_the_last_weights_and_gives_the_best():
    given = linear(lr=lambda update: 0.1 if update < 4 else 1.5, model=nn.Linear(3, 1))
    result = given.fit(line(), valid=line(), epochs=2, batch_size=16, show=False)
    best, last = copied(result.model), result._prepared.ending.last_weights
    assert result.best.epoch == 1 and not same(last, best)
    began = []
    watch = callbacks.on(train_begin=lambda ctx: began.append(copied(ctx.model)))
    result._prepared.fit.hooks = callbacks.Hooks([watch])
    result.continue_(epochs=1, show=False)
    assert same(began[0], last) and result.best.epoch == 1 and same(result.model, best)


def test_continuing_by_updates_and_minutes():
    result = linear().fit(line(), epochs=1, batch_size=16, show=False)
    assert result.continue_(updates=5, show=False).updates == 9
    assert result.stopped == "Completed 9 updates"
    result.continue_(minutes=1e-9, show=False)
    assert result.stopped.startswith("Stopped after ")
    result._prepared.fit.trained = 2 * 60 * 60.0  # seconds; so many minutes more are meant
    result.continue_(minutes=60, updates=3, show=False)
    assert result.stopped == f"Completed {result.updates} updates"
    result.continue_(minutes=1e-9, show=False)
    assert result.stopped == "Stopped after 120 minutes"


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({}, InvalidArgument, "say how long to train"),
        ({"epochs": -1}, InvalidArgument, "epochs must be above 0, got -1"),
        ({"epochs": 0.5}, WrongType, "epochs is a whole number"),
    ],
)
def test_continuing_for_how_long(given, error, text):
    with pytest.raises(error, match=text):
        linear().fit(line(), epochs=1, show=False).continue_(show=False, **given)


def test_continuing_in_the_same_run(tmp_path):
    result = linear().fit(line(), epochs=1, run=tmp_path / "run", show=False)
    result.continue_(epochs=2, show=False)
    record = stoker.Record.open(tmp_path / "run")
    assert len(record.series("train/loss")) == 3
    assert [event.extra["epochs"] for event in record.events_of("begin")] == [1, 3]
    assert record.summary()["state"] != "running"


def test_continuing_saves_in_the_same_run(tmp_path):
    result = linear().fit(line(), epochs=1, run=tmp_path / "run", show=False)
    result.continue_(epochs=2, show=False)
    again = stoker.Fitted.load(tmp_path / "run", nn.Linear(3, 1))
    assert (again.epochs, again.stopped) == (3, "Completed 3 epochs") and same(again.model, result.model)


def test_continuing_after_a_stop():
    stop = callbacks.on(epoch_end=lambda ctx: ctx.stop("enough") if ctx.epoch == 1 else None)
    result = linear().fit(line(), epochs=5, callbacks=[stop], show=False)
    assert result.stopped == "enough"
    assert result.continue_(epochs=2, show=False).stopped == "Completed 3 epochs"


def test_the_numbers_of_a_fit():
    result = learner(metrics=[metrics.Accuracy(on="valid")]).fit(
        samples(), valid=0.2, epochs=3, batch_size=20, show=False
    )
    assert (result.epochs, result.updates) == (3, 18)
    assert {"train/loss", "valid/loss", "valid/accuracy"} <= set(result.history.columns)
    assert "train/accuracy" not in result.history.columns
    assert len(result.history["valid/accuracy"]) == 3 and result.history is not None
    assert result.best.value == min(result.history["valid/loss"])
    with pytest.raises(stoker.NoSuchMetric, match="valid/accuracy"):
        result.history["valid/acuracy"]


def test_without_validation_there_is_no_best():
    result = linear().fit(line(), epochs=1, show=False)
    assert result.best is None


def test_it_says_what_it_is():
    result = linear().fit(line(), valid=line(), epochs=2, show=False)
    said = repr(result).splitlines()
    assert re.fullmatch(r"Linear fitted: 2 epochs, 4 updates in \S+ s\. Completed 2 epochs", said[0])
    assert said[1].startswith("best: valid/loss ") and "in epoch 2" in said[1]
    assert "train/loss" in said[2]
    shown = result._repr_html_()
    assert "<table" in shown and "<svg" in shown and "<b>Linear</b> fitted: 2 epochs, 4 updates in " in shown
    assert "Completed 2 epochs" in shown and "<script" not in shown


def test_plots_of_the_record():
    result = learner(metrics=[metrics.LearningRate(), metrics.ConfusionMatrix(on="valid")]).fit(
        samples(), valid=samples(), epochs=2, show=False
    )
    assert [each.get_label() for each in result.plot("train/loss").axes[0].lines] == ["train/loss"]
    assert result.plot(kind="lr").axes[0].get_ylabel() == "learning rate"
    assert result.plot(kind="confusion").axes[0].images
    with pytest.raises(InvalidArgument, match="a calibration needs a classifier's answers to a data set"):
        result.plot(kind="calibration")


def test_plots_of_the_models_answers():
    result = learner().fit(samples(), valid=0.2, epochs=2, show=False)
    x, y = samples()
    classes = len(result.predict(x)[0])
    labels = [f"class {number}" for number in range(classes)]
    axes = result.plot(kind="confusion", data=(x, y), labels=labels).axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == labels
    assert int(axes.images[0].get_array().sum()) in (len(y), classes)  # counts, or shares of each row
    assert result.plot(kind="calibration", data=data.Loader((x, y), batch_size=7, shuffle=3)).axes


def test_a_report(tmp_path):
    x, y = samples()
    result = learner().fit((x, y), valid=0.2, epochs=2, run=tmp_path / "run", config={"width": 8}, show=False)
    for each in (result, stoker.Fitted.load(tmp_path / "run", Net())):
        page = each.report(tmp_path / "new" / "page.html", (x, y)).read_text()
        assert "width" in page and "settings" in page.lower() and "Confusion" in page and "Worst samples" in page
    assert "width" in stoker.Fitted.load(tmp_path / "run").report(tmp_path / "bare.html").read_text()
    page = learner().fit((x, y), epochs=1, show=False).report(tmp_path / "memory.html").read_text()
    assert "train/loss" in page and "Worst" not in page


def test_the_train_loss_is_that_of_the_samples():
    """With a learning rate of 0 every batch meets the same weights: the epoch's number is the loss of the data."""
    model = nn.Linear(3, 1)
    result = linear(model=model, lr=0.0).fit(line(50), epochs=1, batch_size=16, show=False)
    x, y = line(50)
    assert result.history["train/loss"][0] == pytest.approx(nn.functional.mse_loss(model(x), y).item(), rel=1e-6)
    assert not math.isnan(result.history["train/loss"][0])


def test_an_ordinary_module_comes_out(tmp_path):
    result = learner(optimizer=optim.Adam()).fit(samples(), valid=0.2, epochs=1, show=False)
    assert type(result.model) is Net and result.model.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in result.model.parameters())
    torch.save(result.model.state_dict(), tmp_path / "weights.pt")
    Net().load_state_dict(torch.load(tmp_path / "weights.pt"))


def test_a_part_of_an_epoch_is_no_epoch():
    result = linear().fit(line(), updates=5, batch_size=16, show=False)
    part = result.record.summary()["part"]
    assert part is not None and 0 < part[0] < part[1]
    assert f": {result.epochs - 1} epochs and {part[0]} of {part[1]} batches, 5 updates in " in repr(result)
    result.continue_(epochs=1, show=False)
    assert "batches" not in repr(result).splitlines()[0]
