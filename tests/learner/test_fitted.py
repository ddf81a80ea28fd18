"""The result of a fit: metrics, model, predictions, plots, reports, the console, and continuing."""

import contextlib
import io
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

import stoker
from stoker import BadData, InvalidArgument, callbacks, data, metrics, optim, schedule
from stoker.record import Follower
from stoker.view.watch import page
from tests.learner.fits import Net, copy_state, learner, line, linear, same, samples


def fit(epochs, **settings):
    given = learner(lr=schedule.cosine(1e-2, updates=100), accumulate=3, **settings)
    return given.fit(samples(), valid=samples(), epochs=epochs, batch_size=16, keep="last", show=False)


@pytest.mark.parametrize("settings", [{}, {"ema": 0.9, "precision": "bf16"}, {"seed": None}])
def test_continuing_equals_the_longer_fit_bit_for_bit(settings):
    """Dropout, batch norm, a schedule, momentum and shuffling continue where they were."""
    torch.manual_seed(9)
    whole = fit(6, **settings)
    torch.manual_seed(9)
    parts = fit(2, **settings)
    torch.rand(5)  # numbers drawn in between do not matter
    state = torch.get_rng_state()
    parts = parts.continue_(epochs=1, show=False).continue_(epochs=3, show=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert same(whole.model, parts.model)
    for name in ("train/loss", "valid/loss"):
        assert whole.history[name] == parts.history[name]
    assert (parts.epochs, parts.updates, parts.stopped) == (6, whole.updates, "Completed 6 epochs")
    assert parts.best == whole.best


def test_continuing_starts_from_the_last_weights_and_returns_the_best():
    began = []
    watch = callbacks.on(train_begin=lambda ctx: began.append(copy_state(ctx.model)))
    end = callbacks.on(train_end=lambda ctx: began.append(copy_state(ctx.model)))
    given = linear(lr=lambda update: 0.1 if update < 4 else 1.5, model=nn.Linear(3, 1))
    result = given.fit(line(), valid=line(), epochs=2, batch_size=16, callbacks=[watch, end], show=False)
    best, last = copy_state(result.model), began[-1]
    assert result.best.epoch == 1 and not same(last, best)
    result.continue_(epochs=1, show=False)
    assert same(began[-2], last) and result.best.epoch == 1 and same(result.model, best)


def test_continuing_by_updates_and_minutes_after_a_stop():
    stop = callbacks.on(epoch_end=lambda ctx: ctx.stop("enough") if ctx.epoch == 1 else None)
    result = linear().fit(line(), epochs=5, batch_size=16, callbacks=[stop], show=False)
    assert result.stopped == "enough"
    assert result.continue_(updates=5, show=False).updates == 9
    assert result.stopped == "Completed 9 updates"
    result.continue_(minutes=1e-9, show=False)
    assert result.stopped.startswith("Stopped after ")
    result.continue_(minutes=60, updates=3, show=False)
    assert result.stopped == f"Completed {result.updates} updates"


def test_the_result_is_an_ordinary_module(tmp_path):
    result = learner(optimizer=optim.Adam()).fit(samples(), valid=0.2, epochs=1, show=False)
    assert type(result.model) is Net and not any(module.training for module in result.model.modules())
    x = samples()[0]
    assert torch.equal(result.model(x), result.predict(x)), "no dropout, also in what is exported"
    exported = torch.export.export(result.model, (x,)).module()
    torch.testing.assert_close(exported(x), result.predict(x))
    assert all(parameter.requires_grad and parameter.grad is None for parameter in result.model.parameters())
    torch.save(result.model.state_dict(), tmp_path / "weights.pt")
    Net().load_state_dict(torch.load(tmp_path / "weights.pt"))
    assert result.predict(samples()).device.type == "cpu"


@pytest.mark.parametrize("how", ["error", "continue_", "finished"])
def test_the_model_is_in_eval_mode_however_the_fit_ends(how, tmp_path):
    model = Net()

    def stop(ctx):
        assert ctx.model.training
        if how == "error":
            raise ValueError

    given, watch = learner(model), callbacks.on(train_batch_end=stop)
    with pytest.raises(ValueError) if how == "error" else contextlib.nullcontext():
        result = given.fit(samples(), epochs=1, run=tmp_path / "run", callbacks=[watch], show=False)
    if how == "continue_":
        result.continue_(epochs=1, show=False)
    if how == "finished":
        given.fit(samples(), epochs=1, run=tmp_path / "run", resume=True, callbacks=[watch], show=False)
    assert not any(module.training for module in model.modules())


def test_the_repr_says_how_the_fit_went():
    result = linear().fit(line(), valid=line(), epochs=2, show=False)
    text = repr(result).splitlines()
    assert re.fullmatch(r"Linear fitted: 2 epochs, 4 updates in \S+ s\. Completed 2 epochs", text[0])
    assert text[1].startswith("best: valid/loss ") and "in epoch 2" in text[1]
    assert all(f"{name} {result.history[name][-1]:.4g}" in text[2] for name in ("train/loss", "valid/loss"))
    page = result._repr_html_()
    assert "<pre" in page and "<img" in page and "<b>Linear</b> fitted: 2 epochs, 4 updates in " in page
    assert "Completed 2 epochs" in page and "<script" not in page


def test_the_repr_counts_the_batches_of_an_epoch_that_was_cut_short():
    result = linear().fit(line(), updates=5, batch_size=16, show=False)
    part = result.record.summary()["part"]
    assert part is not None and 0 < part[0] < part[1]
    assert f": {result.epochs - 1} epoch and {part[0]} of {part[1]} batches, 5 updates in " in repr(result)
    result.continue_(epochs=1, show=False)
    assert "batches" not in repr(result).splitlines()[0]


def test_an_epoch_without_its_validation_is_counted_nowhere(tmp_path, capsys):
    class Interrupt(stoker.Callback):
        def on_train_batch_end(self, ctx):
            if ctx.update == 8:
                signal.raise_signal(signal.SIGINT)

    run = {"run": tmp_path / "run", "callbacks": [Interrupt()]}
    fitted = linear().fit(line(), valid=line(), epochs=9, batch_size=16, **run)
    assert "fitted: 1 epoch and 4 of 4 batches, 8 updates" in repr(fitted)
    assert "\n1 epoch, 8 updates" in "".join(capsys.readouterr())
    follower = Follower(tmp_path / "run")
    follower.refresh()
    assert follower.summary["epochs"] == 1 and "epochs   1 of 9\n" in page([follower])


def test_the_record_can_be_plotted():
    result = learner(metrics=[metrics.LearningRate(), metrics.ConfusionMatrix(on="valid")]).fit(
        samples(), valid=samples(), epochs=2, show=False
    )
    assert [each.get_label() for each in result.plot("train/loss").axes[0].lines] == ["train/loss"]
    assert result.plot(kind="lr").axes[0].get_ylabel() == "Learning rate"
    assert result.plot(kind="confusion").axes[0].images
    with pytest.raises(InvalidArgument, match="calibration"):
        result.plot(kind="calibration")


def test_predictions_can_be_plotted():
    result = learner().fit(samples(), valid=0.2, epochs=2, show=False)
    x, y = samples()
    classes = len(result.predict(x)[0])
    labels = [f"class {number}" for number in range(classes)]
    axes = result.plot(kind="confusion", data=(x, y), labels=labels).axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == labels
    assert int(axes.images[0].get_array().sum()) in (len(y), classes)  # counts, or shares of each row
    assert result.plot(kind="calibration", data=data.Loader((x, y), batch_size=7, shuffle=3)).axes


def test_a_report_shows_the_run_the_errors_and_the_worst_samples(tmp_path):
    x, y = samples()
    result = learner().fit((x, y), valid=0.2, epochs=2, run=tmp_path / "run", config={"width": 8}, show=False)
    for each in (result, stoker.Fitted.load(tmp_path / "run", Net())):
        page = each.report(tmp_path / "new" / "page.html", (x, y)).read_text()
        assert "width" in page and "settings" in page.lower() and "Confusion" in page and "Worst samples" in page
    assert "width" in stoker.Fitted.load(tmp_path / "run").report(tmp_path / "bare.html").read_text()
    page = learner().fit((x, y), epochs=1, show=False).report(tmp_path / "memory.html").read_text()
    assert "train/loss" in page and "Worst" not in page


class Fixed(nn.Module):
    """Returns its input times one weight, which the fits below leave at 1."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs):
        return inputs * self.scale


def test_the_worst_samples_of_a_report_have_their_own_inputs(monkeypatch):
    """Sample 7 is predicted with confidence, and wrong."""
    y = torch.tensor([0, 1] * 5)
    x = nn.functional.one_hot(y, 2) * 4.0 + torch.arange(10.0)[:, None] / 100
    x[7] = torch.tensor([9.0, 0.0])
    found = []
    monkeypatch.setattr("stoker.view.report.plot", lambda record, *names, evaluation, **rest: found.append(evaluation))
    for source in ((x, y), {"target": y, "inputs": x}):
        given = stoker.Learner(Fixed(), loss=nn.CrossEntropyLoss(), lr=0.0)
        given.fit(source, epochs=1, show=False).plot(data=source, labels=["even", "odd"])
        evaluation = found.pop()
        assert evaluation.confusion.tolist() == [[5, 0], [1, 4]] and evaluation.labels == ["even", "odd"]
        worst = evaluation.worst[0]
        assert worst.place == 7 and worst.target == "odd" and worst.answer.startswith("even")
        assert all(np.array_equal(each.value, x[each.place]) for each in evaluation.worst)


def test_a_report_needs_predictions_and_targets_that_are_tensors():
    class Both(nn.Linear):
        def forward(self, x):
            return {"height": super().forward(x)}

    given = stoker.Learner(Both(3, 1), loss=lambda outputs, y: nn.functional.mse_loss(outputs["height"], y))
    result = given.fit(line(), epochs=1, show=False)
    with pytest.raises(BadData, match="need predictions that are one tensor"):
        result.plot(kind="confusion", data=line())


def test_the_console_shows_a_fit_unless_show_is_false():
    for show in (True, False):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            result = linear().fit(line(), valid=line(), epochs=2, show=show)
        lines = [line for line in out.getvalue().splitlines() if line.startswith("epoch ")]
        assert bool(out.getvalue()) == show and len(lines) == 2 * show
        for text, row in zip(lines, result.history, strict=show):
            assert all(f"{row[name]:#.4g}" in text for name in ("train/loss", "valid/loss"))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        result.continue_(epochs=1)
    assert "epoch 3/3" in out.getvalue()
    shown = out.getvalue()
    with contextlib.redirect_stdout(out):
        result.record.append(stoker.record.Event("note", text="after the fit"))
    assert out.getvalue() == shown, "the console has stopped listening"


def test_the_log_of_a_run_has_the_lines_of_the_console(tmp_path):
    warn = callbacks.on(epoch_end=lambda ctx: ctx.warn("hot") if ctx.epoch == 1 else None)
    linear().fit(line(), valid=0.25, epochs=2, run=tmp_path / "run", callbacks=[warn], show=False)
    text = (tmp_path / "run" / "log.txt").read_text()
    assert text.count("epoch 1/2  train loss") == text.count("epoch 2/2  train loss") == 1
    assert text.count("warning: hot") == 1
    assert text.count("Completed 2 epochs") == 1


@pytest.mark.parametrize("where", ["on_train_batch_end", "on_valid_end", "on_epoch_end"])
def test_a_callback_may_fit_another_model(where):
    """As if it was trained outside, and the outer fit has the same bits as without it."""
    inner = linear(model=lambda: nn.Linear(3, 1), seed=5)
    alone, inside = inner.fit(line(), epochs=2, show=False).model, []
    hook = callbacks.on(**{where[3:]: lambda ctx: inside.append(inner.fit(line(), epochs=2, show=False).model)})
    plain, outer = (
        learner().fit(samples(), valid=samples(40), epochs=2, callbacks=each, show=False) for each in ([], [hook])
    )
    assert same(plain.model, outer.model) and plain.history["valid/loss"] == outer.history["valid/loss"]
    assert inside and all(same(model, alone) for model in inside)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert same(inner.fit(line(), epochs=2, show=False).model, alone)


def test_two_fits_in_two_threads_do_not_mix():
    def work(rate):
        model = nn.Linear(3, 1)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        return linear(lr=rate, model=model, seed=None).fit(data.Loader(line(), batch_size=16), epochs=20, show=False)

    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(work, (0.01, 0.1)))
    for fitted, rate in zip(together, (0.01, 0.1), strict=True):
        alone = work(rate)
        assert same(fitted.model, alone.model) and fitted.history["train/loss"] == alone.history["train/loss"]
