"""Metrics read the outputs of models that compute their own loss, as their loss does; validation needs no loss."""

import math

import pytest
import torch
import torch.nn.functional as F
import torchmetrics
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score
from torch import nn

import stoker
from stoker import metrics

DRAW = torch.Generator().manual_seed(0)
TOKENS = torch.randint(5, (10, 6), generator=DRAW)
LABELS = TOKENS.masked_fill(torch.rand(10, 6, generator=DRAW) < 0.3, -100)
ROWS = {"input_ids": TOKENS, "labels": LABELS}


class Tokens(nn.Module):
    """Predicts each label, or the next one, from each token."""

    def __init__(self, shift: bool, classes: int = 7):
        super().__init__()
        self.body, self.head, self.shift = nn.Embedding(5, 8), nn.Linear(8, classes), shift

    def forward(self, input_ids, labels=None):
        logits, loss = self.head(self.body(input_ids)), None
        if labels is not None and self.shift:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        elif labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


def fit(model, rows=ROWS, **arguments):
    torch.manual_seed(0)
    given = {"metrics": [], "lr": 0.01, "seed": 0, **arguments}
    return stoker.Learner(model, **given).fit(rows, valid=rows, epochs=2, batch_size=4, show=False)


@pytest.mark.parametrize("classes", [7, 6], ids=["", "as many classes as tokens"])
@pytest.mark.parametrize("shift", [False, True])
def test_tokens_are_counted_as_the_loss_of_the_model_does(shift, classes):
    given = [
        metrics.Accuracy(),
        metrics.Perplexity(),
        torchmetrics.classification.MulticlassAccuracy(classes, average="micro"),
        metrics.as_metric(torchmetrics.text.Perplexity(), name="ppl"),
    ]
    if classes == 6 and not shift:  # a mapping does not say which dimension of [10, 6, 6] are the classes
        with pytest.raises(stoker.InvalidArgument, match="the classes can be dimension 1 or the last dimension"):
            fit(Tokens(shift, classes), metrics=given)
        return
    fitted = fit(Tokens(shift, classes), metrics=given)
    found = fitted.evaluate(ROWS, batch_size=3)
    with torch.no_grad():
        output = fitted.model(**ROWS)
    assert found["loss"] == pytest.approx(output["loss"].item(), rel=1e-5)
    logits, labels = (output["logits"][:, :-1], LABELS[:, 1:]) if shift else (output["logits"], LABELS)
    counted = labels != -100
    exact = accuracy_score(labels[counted], logits.argmax(-1)[counted])
    assert found["accuracy"] == pytest.approx(exact) == found["multiclass_accuracy"]
    assert math.log(found["perplexity"]) == pytest.approx(found["loss"], rel=1e-5)
    assert found["ppl"] == pytest.approx(found["perplexity"], rel=1e-5)
    assert fitted.history["valid/accuracy"][-1] == pytest.approx(exact)


def test_the_right_tokens_are_compared():
    """A model that repeats its input: without the shift, all of its predictions would be wrong."""

    class Repeats(Tokens):
        def forward(self, input_ids, labels=None):
            output = super().forward(input_ids, labels)
            return {**output, "logits": 0 * output["logits"] + F.one_hot(input_ids, 7).float()}

    same = {"input_ids": torch.arange(5).repeat(4, 2), "labels": torch.arange(5).repeat(4, 2).roll(1, 1)}
    assert fit(Repeats(shift=True), same, metrics=[metrics.Accuracy()]).evaluate(same)["accuracy"] == 1.0


def test_what_is_not_known_is_not_guessed():
    class Smooth(Tokens):
        def forward(self, input_ids, labels=None):
            logits = super().forward(input_ids)["logits"]
            return {"loss": logits.logsumexp(-1).mean(), "logits": logits, "other": logits[:, 0]}

    with pytest.raises(stoker.InvalidArgument, match="of the same position or of the next, and the loss does not show"):
        fit(Smooth(shift=True), metrics=[metrics.Accuracy()])
    with pytest.raises(stoker.InvalidArgument, match="not known which targets belong to this part of what the model"):
        fit(Smooth(shift=True), metrics=[metrics.Accuracy(of="other")])

    def step(model, batch):
        output = model(batch["input_ids"])
        targets = {"first": batch["input_ids"][:, 0], "all": batch["labels"]}
        predictions = {"first": output["other"], "all": output["logits"]}
        return {"loss": output["loss"], "predictions": predictions, "targets": targets}

    learner = stoker.Learner(Smooth(False), step=step, metrics=[metrics.Accuracy(of=name) for name in ("first", "all")])
    fitted = learner.fit(ROWS, epochs=1, batch_size=4, show=False)
    with torch.no_grad():
        chosen = fitted.model(TOKENS)["logits"].argmax(-1)
    counted, found = LABELS != -100, fitted.evaluate(ROWS, batch_size=3)
    assert found["first_accuracy"] == pytest.approx(accuracy_score(TOKENS[:, 0], chosen[:, 0]))
    assert found["all_accuracy"] == pytest.approx(accuracy_score(LABELS[counted], chosen[counted]))


class Classes(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layer = nn.Linear(3, classes)

    def forward(self, x, labels=None):
        logits = self.layer(x)
        if logits.shape[1] > 1:
            loss = F.cross_entropy(logits, labels)
        else:
            loss = F.mse_loss(logits.squeeze(1), labels)
        return {"loss": loss, "logits": logits}


X = torch.randn(20, 3, generator=DRAW)


def test_classes_and_regressions():
    labels = torch.randint(3, (20,), generator=DRAW)
    rows = {"x": X, "labels": labels}
    fitted = fit(Classes(3), rows, metrics=[metrics.Accuracy(), metrics.AUROC(), metrics.FBeta()])
    with torch.no_grad():
        scores = fitted.model.layer(X).softmax(1)
    found = fitted.evaluate(rows)
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, scores.argmax(1)))
    assert found["auroc"] == pytest.approx(roc_auc_score(labels, scores, multi_class="ovr"))
    rows = {"x": X, "labels": X.sum(1)}
    fitted = fit(Classes(1), rows, metrics=[metrics.MSE(), metrics.R2()])
    found = fitted.evaluate(rows)
    assert found["mse"] == pytest.approx(found["loss"], rel=1e-5)
    assert found["r2"] == pytest.approx(r2_score(X.sum(1), fitted.model.layer(X).detach()), rel=1e-4)


def test_a_tuple_of_logits_and_loss():
    class Pair(Tokens):
        def forward(self, tokens, targets=None):
            output = super().forward(tokens, targets)
            return output["logits"], output["loss"]

    rows = (TOKENS, LABELS)
    fitted = fit(Pair(shift=True), rows, metrics=[metrics.Perplexity()])
    found = fitted.evaluate(rows, batch_size=3)
    assert math.log(found["perplexity"]) == pytest.approx(found["loss"], rel=1e-5)
    for source in (rows, TOKENS):
        logits, loss = fitted.predict(source, batch_size=3)
        torch.testing.assert_close(logits, fitted.model(TOKENS)[0].detach())
        assert loss is None


def test_plots_and_reports_read_logits_and_labels(tmp_path):
    rows = {"x": X, "labels": torch.arange(20) % 3}
    fitted = fit(Classes(3), rows, metrics=[metrics.ConfusionMatrix()])
    text = fitted.report(tmp_path / "report.html", rows).read_text()
    assert 'class="samples"' in text
    assert fitted.plot(kind="confusion", data=rows).axes
    tokens = fit(Tokens(shift=True))
    with pytest.raises(stoker.BadData, match="plots and reports need predictions that are one tensor"):
        tokens.report(tmp_path / "report.html", ROWS)


# --- validation without a loss


class Finder(nn.Module):
    """Gives losses in training, and a dict for each sample in evaluation, as torchvision's detection models do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, rows, targets=None):
        y = self.layer(torch.stack(rows)).squeeze(1)
        if self.training:
            return {
                "loss_box": F.mse_loss(y, torch.stack([target["size"] for target in targets])),
                "loss_rpn": y.square().mean(),
            }
        return [{"size": each} for each in y]


class SizeError(torchmetrics.Metric):
    higher_is_better = False

    def __init__(self):
        super().__init__()
        self.add_state("found", default=[], dist_reduce_fx=None)

    def update(self, preds, target):
        self.found += [(one["size"] - other["size"]).abs() for one, other in zip(preds, target, strict=True)]

    def compute(self):
        return {"mean": torch.stack(self.found).mean(), "largest": torch.stack(self.found).max()}


SAMPLES = [(x, {"size": x.sum()}) for x in X]


def collate(samples):
    return [x for x, _ in samples], [target for _, target in samples]


def finder(**arguments):
    torch.manual_seed(0)
    source = stoker.data.Loader(SAMPLES, batch_size=6, collate_fn=collate)
    learner = stoker.Learner(Finder(), metrics=[metrics.as_metric(SizeError(), on="valid")], lr=0.1, seed=0)
    return learner.fit(source, valid=source, epochs=3, show=False, **arguments)


def test_a_model_without_a_loss_in_evaluation_is_validated_by_metrics():
    fitted = finder(monitor="valid/size_error/mean", mode="min")
    columns = set(fitted.history.columns)
    assert {"train/loss_box", "valid/size_error/mean", "valid/size_error/largest"} <= columns
    assert "valid/loss" not in columns
    values = fitted.history["valid/size_error/mean"]
    assert fitted.best.value == min(values) and fitted.best.name == "valid/size_error/mean"
    source = stoker.data.Loader(SAMPLES, batch_size=7, collate_fn=collate)
    found = fitted.evaluate(source)
    with torch.no_grad():
        sizes = fitted.model.layer(X).squeeze(1)
    assert found == {
        "size_error/mean": pytest.approx((sizes - X.sum(1)).abs().mean().item()),
        "size_error/largest": pytest.approx((sizes - X.sum(1)).abs().max().item()),
    }
    for batch_size in (1, 2, 3, 7):
        whole = stoker.data.Loader(SAMPLES, batch_size=batch_size, collate_fn=collate)
        inputs = stoker.data.Loader([x for x, _ in SAMPLES], batch_size=batch_size, collate_fn=list)  # without targets
        for source in (whole, inputs):
            answers = fitted.predict(source)
            torch.testing.assert_close(torch.stack([each["size"] for each in answers]), sizes)


def test_without_a_loss_and_a_monitor_the_fit_does_not_start():
    with pytest.raises(stoker.InvalidArgument, match=r"validation gives no loss .*fit\(monitor=.*size_error"):
        finder()
    assert "valid/size_error/mean" in finder(keep="last").history.columns


def test_a_valid_step_may_return_predictions_and_targets_without_a_loss():
    def find(model, batch):
        rows, targets = batch
        return {"predictions": model.eval()(rows), "targets": targets}

    source = stoker.data.Loader(SAMPLES, batch_size=6, collate_fn=collate)
    exact = finder(monitor="valid/size_error/mean").history["valid/size_error/mean"]

    def run(valid_step, **arguments):
        torch.manual_seed(0)
        given = [metrics.as_metric(SizeError(), on="valid")]
        learner = stoker.Learner(Finder(), valid_step=valid_step, metrics=given, lr=0.1, seed=0)
        return learner.fit(source, valid=source, epochs=3, show=False, **arguments)

    assert run(find, monitor="valid/size_error/mean").history["valid/size_error/mean"] == exact
    assert run(lambda model, batch: model(batch[0]), keep="last").history["valid/size_error/mean"] == exact
    with pytest.raises(stoker.InvalidArgument, match="validation gives no loss to choose the best weights by"):
        run(find)
    with pytest.raises(stoker.WrongType, match='or without a loss a mapping with "predictions" and "targets"'):
        run(lambda model, batch: "fine", keep="last")


def test_the_loss_of_a_valid_step_is_weighed_by_its_tokens(tmp_path):
    labels = LABELS.clone()
    labels[:5] = -100
    labels[0, 1] = 2
    rows = {"input_ids": TOKENS, "labels": labels}
    learner = stoker.Learner(Tokens(shift=True), valid_step=lambda model, batch: model(**batch), lr=0.0, seed=0)
    given = [metrics.Accuracy(), metrics.Perplexity()]
    fitted = learner.fit(rows, valid=rows, epochs=1, batch_size=4, run=tmp_path / "run", show=False)
    exact = fitted.model(**rows)["loss"].item()
    assert fitted.history["valid/loss"] == pytest.approx([exact])
    for result in (fitted, stoker.Fitted.load(tmp_path / "run", learner)):  # which has not seen a batch
        found = result.evaluate(rows, metrics=given, batch_size=3)
        assert found["loss"] == pytest.approx(exact) and math.log(found["perplexity"]) == pytest.approx(exact)
