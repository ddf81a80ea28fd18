"""The defects that Burn's source shows (reference/burn.md, 12) and that could be had here: none is.

The numbers are those of that list. With the checkpoint issue come: 9 (resume by name), 10 (a stop saves), 11 (whole
files), 12 (background saves), and of 8, 13 and 17 what a file holds; with the distributed one 16 (several devices).
"""

import inspect
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import Record, SequenceOutput, callbacks, data, metrics, optim, schedule

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(63, 4, generator=GENERATOR)
Y = X.sum(1, keepdim=True) + 0.1 * torch.randn(63, 1, generator=GENERATOR)
CLASSES = torch.randint(0, 3, (63,), generator=GENERATOR)
LENGTHS = torch.randint(1, 7, (63,), generator=GENERATOR)
TOKENS = torch.randint(1, 5, (63, 6), generator=GENERATOR) * (torch.arange(6) < LENGTHS[:, None])  # 0 is padding


def linear(d_in=4, d_out=1):
    torch.manual_seed(0)
    return nn.Linear(d_in, d_out)


def learner(model=None, **settings):
    given = {"loss": nn.MSELoss(), "optimizer": optim.SGD(), "lr": 0.05, "seed": 0}
    return stoker.Learner(linear() if model is None else model, **{**given, **settings})


def classifier(**settings):
    return learner(linear(4, 3), **{"loss": nn.CrossEntropyLoss(), **settings})


class Tagger(nn.Module):
    """A class for every token of a padded sequence."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Embedding(5, 8), nn.Linear(8, 5)

    def forward(self, tokens):
        return self.out(self.embed(tokens))

    def train_step(self, batch):
        (tokens,) = batch
        logits, mask = self(tokens), tokens != 0
        loss = F.cross_entropy(logits.movedim(-1, 1), tokens, ignore_index=0)
        return SequenceOutput(loss, logits, tokens, mask=mask)


# 1: a metric whose value at the end of an epoch was never written.
CLASS_METRICS = [
    metrics.Accuracy(),
    metrics.TopKAccuracy(2),
    metrics.Precision(),
    metrics.Recall(),
    metrics.FBeta(),
    metrics.AUROC(),
    metrics.AveragePrecision(),
    metrics.ConfusionMatrix(),
    metrics.Hamming(),
    metrics.Perplexity(),
]
NUMBER_METRICS = [metrics.MAE(), metrics.MSE(), metrics.RMSE(), metrics.R2()]


@pytest.mark.parametrize("metric", CLASS_METRICS, ids=lambda each: each.name)
def test_01_every_metric_of_classes_has_a_value_at_the_end_of_an_epoch(metric):
    found = classifier(metrics=[metric]).fit((X, CLASSES), valid=(X, CLASSES), epochs=1, show=False)
    for phase in ("train", "valid"):
        values = [found.history[name][0] for name in found.history.columns if name.startswith(f"{phase}/{metric.name}")]
        assert values and all(math.isfinite(value) for value in values)


@pytest.mark.parametrize("metric", NUMBER_METRICS, ids=lambda each: each.name)
def test_01_every_metric_of_numbers_has_a_value_at_the_end_of_an_epoch(metric):
    found = learner(metrics=[metric]).fit((X, Y), valid=(X, Y), epochs=1, show=False)
    assert all(math.isfinite(found.history[f"{phase}/{metric.name}"][0]) for phase in ("train", "valid"))


# 2: evaluation never computed rank metrics, and its state leaked from one set into the next.
def test_02_evaluation_computes_rank_metrics_and_leaks_nothing_from_set_to_set():
    found = classifier(metrics=[metrics.AUROC(), metrics.Accuracy()]).fit((X, CLASSES), epochs=2, show=False)
    first = found.evaluate((X[:40], CLASSES[:40]))
    other = found.evaluate((X[40:], CLASSES[40:]))
    assert math.isfinite(first["auroc"]) and first != other
    assert found.evaluate((X[:40], CLASSES[:40])) == first and found.evaluate((X[40:], CLASSES[40:])) == other


def test_02_several_validation_sets_do_not_mix():
    sets = {"near": (X[:40], CLASSES[:40]), "far": (X[40:], CLASSES[40:])}
    chosen = [metrics.AUROC(), metrics.Accuracy()]
    found = classifier(metrics=chosen).fit((X, CLASSES), valid=sets, epochs=1, keep="last", show=False)
    for name, each in sets.items():
        for metric, value in found.evaluate(each).items():
            assert found.history[f"{name}/{metric}"] == [pytest.approx(value, rel=1e-6)]


# 3: the rows of the tests were missing from the summary.
def test_03_the_summary_has_every_set(tmp_path):
    sets = {"near": (X[:40], Y[:40]), "far": (X[40:], Y[40:])}
    found = learner().fit((X, Y), valid=sets, epochs=2, run=tmp_path / "run", show=False)
    for record in (found.record, Record.open(tmp_path / "run")):
        assert set(record.summary()["last"]) == {"train/loss", "near/loss", "far/loss"}


# 4: off a terminal, no value of a metric was ever printed.
def test_04_off_a_terminal_the_values_are_printed(capsys):
    found = classifier(metrics=[metrics.Accuracy()]).fit((X, CLASSES), valid=(X, CLASSES), epochs=2)
    out = capsys.readouterr().out
    for row in found.history:
        assert all(
            f"{row[f'{phase}/{name}']:#.4g}" in out for phase in ("train", "valid") for name in ("loss", "accuracy")
        )


# 5: a short last batch counted like a full one, and padded batches like full ones.
@pytest.mark.parametrize("size", [63, 16, 5])
def test_05_a_short_last_batch_counts_for_its_samples(size):
    model = linear()
    found = learner(model, lr=0.0, metrics=[metrics.MSE()]).fit(
        (X, Y), valid=(X, Y), epochs=1, batch_size=size, show=False
    )
    expected = F.mse_loss(model(X), Y).item()
    for name in ("train/loss", "valid/loss", "train/mse", "valid/mse"):
        assert found.history[name] == [pytest.approx(expected, rel=1e-5)]


@pytest.mark.parametrize("size", [63, 16, 5])
def test_05_tokens_count_and_padding_does_not(size):
    model, chosen = Tagger(), [metrics.Accuracy(), metrics.Perplexity()]
    found = stoker.Learner(model, lr=0.0, metrics=chosen, seed=0).fit(
        (TOKENS,), valid=(TOKENS,), epochs=1, batch_size=size, show=False
    )
    logits, real = model(TOKENS).detach(), TOKENS != 0
    loss = F.cross_entropy(logits[real], TOKENS[real]).item()
    accuracy = (logits.argmax(-1) == TOKENS)[real].float().mean().item()
    for phase in ("train", "valid"):
        assert found.history[f"{phase}/loss"] == [pytest.approx(loss, rel=1e-5)]
        assert found.history[f"{phase}/perplexity"] == [pytest.approx(math.exp(loss), rel=1e-5)]
        assert found.history[f"{phase}/accuracy"] == [pytest.approx(accuracy)]


WEIGHTED = {
    "ignore_index": nn.CrossEntropyLoss(ignore_index=0),
    "class weights": nn.CrossEntropyLoss(weight=torch.tensor([0.1, 1.0, 5.0])),
}


@pytest.mark.parametrize("loss", WEIGHTED.values(), ids=WEIGHTED)
@pytest.mark.parametrize("size", [16, 5])
def test_05_a_loss_that_ignores_or_weighs_classes_is_their_mean_over_all_samples(loss, size):
    whole = learner(linear(4, 3), loss=loss, lr=0.0).fit(
        (X, CLASSES), valid=(X, CLASSES), epochs=1, batch_size=63, show=False
    )
    parts = learner(linear(4, 3), loss=loss, lr=0.0).fit(
        (X, CLASSES), valid=(X, CLASSES), epochs=1, batch_size=size, show=False
    )
    for name in ("train/loss", "valid/loss"):
        assert parts.history[name] == [pytest.approx(whole.history[name][0], rel=1e-5)]


# 6: accumulation summed, dropped what was left at the end of the epoch, and moved the schedule with every micro-batch.
def fit_in_parts(model, size, accumulate, loss=None, source=(X, Y)):
    loader = data.Loader(source, batch_size=size)
    settings = {} if loss is None else {"loss": loss}
    return learner(model, accumulate=accumulate, lr=0.5, **settings).fit(loader, epochs=2, show=False)


@pytest.mark.parametrize(("size", "accumulate"), [(16, 2), (8, 4), (10, 3), (5, 100)])
def test_06_accumulation_is_the_mean_over_the_samples_of_the_window(size, accumulate):
    parts = fit_in_parts(linear(), size, accumulate)
    whole = fit_in_parts(linear(), min(size * accumulate, 63), 1)
    assert parts.updates == whole.updates == 2 * -(-63 // min(size * accumulate, 63))
    torch.testing.assert_close(parts.model.weight, whole.model.weight, rtol=1e-5, atol=1e-6)


def test_06_accumulation_weighs_tokens_and_not_padding():
    models = []
    for size, accumulate in ((63, 1), (8, 8)):
        models.append(Tagger())
        stoker.Learner(models[-1], optimizer=optim.SGD(), lr=0.5, accumulate=accumulate, seed=0).fit(
            data.Loader((TOKENS,), batch_size=size), epochs=1, show=False
        )
    torch.testing.assert_close(models[1].out.weight, models[0].out.weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", WEIGHTED.values(), ids=WEIGHTED)
def test_06_accumulation_weighs_classes_as_the_loss_does(loss):
    parts = fit_in_parts(linear(4, 3), 8, 8, loss, (X, CLASSES))
    whole = fit_in_parts(linear(4, 3), 63, 1, loss, (X, CLASSES))
    torch.testing.assert_close(parts.model.weight, whole.model.weight, rtol=1e-5, atol=1e-6)


def test_06_the_schedule_counts_updates():
    rates = []
    look = callbacks.on(update=lambda ctx: rates.append(ctx.lr))
    line = schedule.linear(1e-2, 0.0, steps=8)
    learner(lr=line, accumulate=2).fit((X, Y), epochs=4, batch_size=16, show=False, callbacks=[look])
    assert rates == [line(update) for update in range(8)]


# 7: the norm was clipped tensor by tensor.
def test_07_clip_norm_is_the_norm_of_all_gradients_together():
    model, hand = (nn.Sequential(linear(4, 3), linear(3, 1)) for _ in range(2))
    learner(model, optimizer=optim.SGD(fused=False), clip_norm=0.1).fit(
        data.Loader((X, Y), batch_size=63), updates=1, show=False
    )
    F.mse_loss(hand(X), Y).backward()
    nn.utils.clip_grad_norm_(hand.parameters(), 0.1)
    torch.optim.SGD(hand.parameters(), lr=0.05).step()
    for ours, theirs in zip(model.parameters(), hand.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


# 8: what went on reused the order of the first epoch.
def test_08_a_fit_that_goes_on_walks_new_orders():
    orders = []
    look = callbacks.on(train_batch_begin=lambda ctx: orders.append(ctx.batch[0][:, 0].tolist()))
    found = learner().fit((X, Y), epochs=1, batch_size=63, show=False, callbacks=[look])
    found.continue_(epochs=1, show=False)
    assert len(orders) == 2 and orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])


# 10: a stop during validation cut it short, and still trained another batch.
@pytest.mark.parametrize("every", ["epoch", 2])
def test_10_a_stop_in_validation_finishes_it_and_trains_no_more(every):
    seen = []
    look = callbacks.on(
        train_batch_begin=lambda ctx: seen.append("train"),
        valid_batch_begin=lambda ctx: (seen.append("valid"), ctx.stop("enough")),
    )
    found = learner().fit(
        (X, Y), valid=(X, Y), epochs=5, batch_size=16, validate_every=every, show=False, callbacks=[look]
    )
    assert seen == ["train"] * (4 if every == "epoch" else 2) + ["valid"] * 4
    assert found.stopped == "enough" and found.best is not None


# 13: a name that was not there was taken for one that always improves; names held parameters.
def test_13_a_monitor_that_is_not_there_is_an_error():
    with pytest.raises(stoker.NoSuchMetric, match="valid/acuracy.*valid/accuracy"):
        classifier(metrics=[metrics.Accuracy()]).fit(
            (X, CLASSES), valid=(X, CLASSES), epochs=2, show=False, callbacks=[callbacks.EarlyStopping("valid/acuracy")]
        )


def test_13_the_best_is_found_without_registering_a_loss_and_names_can_be_chosen():
    found = classifier(metrics=[metrics.Precision(name="precision")]).fit(
        (X, CLASSES), valid=(X, CLASSES), epochs=2, show=False
    )
    assert found.best.name == "valid/loss" and "valid/precision" in found.history


# 14: the last model came back, not the best.
def test_14_the_best_model_comes_back():
    rate = schedule.constant(0.05).then(schedule.constant(3.0), at=8)
    found = learner(lr=rate).fit((X, Y), valid=(X, Y), epochs=4, batch_size=16, show=False)
    losses = found.history["valid/loss"]
    assert losses[-1] > 2 * min(losses)
    assert found.evaluate((X, Y))["loss"] == pytest.approx(min(losses), rel=1e-6)


# 15: a custom strategy registered early stopping and never asked it.
@pytest.mark.parametrize(
    "length", [{"epochs": 50}, {"updates": 200}, {"minutes": 5}], ids=["epochs", "updates", "minutes"]
)
@pytest.mark.parametrize("every", ["epoch", 2])
def test_15_early_stopping_is_asked_whatever_the_length_is_given_in(length, every):
    stop = callbacks.EarlyStopping(patience=2, min_delta=1e6)
    found = learner().fit(
        (X, Y), valid=(X, Y), batch_size=16, validate_every=every, show=False, callbacks=[stop], **length
    )
    assert found.epochs == 3 and found.stopped.startswith("Early stopping at epoch 3")


# 17: the GPU's numbers were text. Every meter gives numbers, which are in the history.
def test_17_meters_give_numbers():
    chosen = [
        metrics.MemoryUse(),
        metrics.CPUUse(),
        metrics.Throughput(),
        metrics.LearningRate(),
        metrics.GradientNorm(),
    ]
    found = learner(metrics=chosen).fit((X, Y), epochs=2, show=False)
    meters = [name for name in found.history.columns if "/loss" not in name]
    assert len(meters) >= 5 and all(isinstance(value, float) for name in meters for value in found.history[name])


# 18: validation was mandatory, and only at the end of an epoch.
def test_18_validation_is_optional_and_may_come_every_so_many_updates():
    assert set(learner().fit((X, Y), epochs=1, show=False).history.columns) == {"train/loss"}
    found = learner().fit((X, Y), valid=(X, Y), epochs=2, batch_size=16, validate_every=3, show=False)
    assert [row["update"] for row in found.history.validations] == [3, 6, 8]


# 19: AUROC made a tensor of n × n.
def test_19_auroc_of_many_samples_fits_in_memory():
    n = 200_000  # n × n bytes would be 37 GiB
    scores = torch.randn(n, generator=torch.Generator().manual_seed(0))
    output = stoker.MultiLabelOutput(torch.tensor(0.0), scores, (scores + torch.randn(n) > 0).long())
    metric = metrics.AUROC()
    assert 0.7 < metric.compute(metric.update(metric.init(torch.device("cpu")), output)) < 0.9


# 20: the summary showed minimum and maximum, whatever was better.
def test_20_the_best_is_what_the_metric_says_is_better():
    found = classifier(metrics=[metrics.Accuracy()]).fit((X, CLASSES), valid=(X, CLASSES), epochs=4, show=False)
    assert found.record.best("valid/accuracy").value == max(found.history["valid/accuracy"])
    assert found.record.best("valid/loss").value == min(found.history["valid/loss"]) == found.best.value


# 21: defaults differed from PyTorch's, and a learning rate above 1 was refused.
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "Adadelta"])
def test_21_defaults_are_pytorchs(name):
    theirs = inspect.signature(getattr(torch.optim, name)).parameters
    ours = vars(getattr(optim, name)())
    shared = [each for each in ours if each in theirs and each not in ("fused", "foreach")]
    assert shared
    for each in shared:
        assert ours[each] == theirs[each].default, each


def test_21_a_learning_rate_may_be_above_1():
    model, before = linear(), linear()
    learner(model, lr=3.0).fit(data.Loader((X, Y), batch_size=63), updates=1, show=False)
    slope = stoker.backward(F.mse_loss(before(X), Y), before)["weight"]
    torch.testing.assert_close(model.weight, before.weight - 3.0 * slope)
