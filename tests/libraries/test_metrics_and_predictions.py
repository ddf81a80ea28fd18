"""Metrics and predictions on models of Transformers, torchvision and PyG: the numbers of the model's own loss."""

import math

import pytest
import torch
import torch.nn.functional as F
import torchmetrics
from sklearn.metrics import accuracy_score, f1_score
from torch import nn

import stoker
from stoker import BadData, data, metrics
from tests.libraries import test_transformers

pytestmark = pytest.mark.soak  # importing these libraries takes seconds

DRAW = torch.Generator().manual_seed(0)
WORDS, LENGTH = 31, 7
IDS = torch.randint(5, WORDS, (10, LENGTH), generator=DRAW)
LABELS = IDS.masked_fill(torch.rand(10, LENGTH, generator=DRAW) < 0.4, -100)
SMALL = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 16, "max_position_embeddings": 16}


def bert(kind, **config):
    import transformers

    return getattr(transformers, kind)(transformers.BertConfig(**SMALL, **config))


def gpt2():
    return test_transformers.gpt2(vocab_size=WORDS, n_positions=1024, n_embd=16, n_layer=1)


def t5():
    return test_transformers.t5(vocab_size=WORDS, d_model=16, d_kv=8, num_layers=1)


def fit_once(model, rows, **arguments):
    given = {"lr": 1e-3, "seed": 0, "metrics": [], **arguments}
    batch_size = None if isinstance(rows, data.Loader) else 4
    return stoker.Learner(model, **given).fit(rows, valid=rows, epochs=1, batch_size=batch_size, show=False)


TOKENS = {
    "BERT, masked": (lambda: bert("BertForMaskedLM"), LABELS),
    "BERT, a class for each token": (  # as many classes as tokens
        lambda: bert("BertForTokenClassification", num_labels=LENGTH),
        LABELS.where(LABELS < 0, LABELS % LENGTH),
    ),
    "GPT-2": (gpt2, LABELS),
    "T5": (t5, LABELS),
}


@pytest.mark.parametrize("name", TOKENS)
def test_token_metrics_agree_with_the_loss_of_the_model(name):
    make, labels = TOKENS[name]
    torch.manual_seed(0)
    model = make()
    classes = model.config.num_labels if "class" in name else WORDS
    given = [
        metrics.Accuracy(),
        metrics.Perplexity(),
        metrics.as_metric(torchmetrics.classification.MulticlassAccuracy(classes, average="micro"), name="accuracy_tm"),
        metrics.as_metric(torchmetrics.text.Perplexity(), name="perplexity_tm"),
    ]
    rows = {"input_ids": IDS, "labels": labels}
    fitted = fit_once(model, rows, metrics=given)
    found = fitted.evaluate(rows, batch_size=3)
    with torch.no_grad():
        output = fitted.model(**rows)
    assert found["loss"] == pytest.approx(output.loss.item(), rel=1e-5)
    assert math.log(found["perplexity"]) == pytest.approx(output.loss.item(), rel=1e-5)
    assert found["perplexity_tm"] == pytest.approx(found["perplexity"], rel=1e-5)
    logits, targets = (output.logits[:, :-1], labels[:, 1:]) if name == "GPT-2" else (output.logits, labels)
    counted = targets != -100
    exact = accuracy_score(targets[counted], logits.argmax(-1)[counted])
    assert found["accuracy"] == pytest.approx(exact) == found["accuracy_tm"]
    assert fitted.history["valid/accuracy"][-1] == pytest.approx(exact)

    answers = fitted.predict(rows, batch_size=3)
    assert type(answers) is type(output) and answers.loss is None and answers.get("past_key_values") is None
    torch.testing.assert_close(answers.logits, output.logits)


def test_label_is_passed_as_labels_and_another_name_is_an_error_that_says_so():
    """Datasets call the column `label`, and Transformers' collators rename it."""
    classes, rate = torch.arange(10) % 3, {"lr": 1e-2, "metrics": [metrics.Accuracy()]}
    found = []
    for name in ("labels", "label"):
        torch.manual_seed(0)
        fitted = fit_once(
            bert("BertForSequenceClassification", num_labels=3), {"input_ids": IDS, name: classes}, **rate
        )
        found.append((fitted.history["valid/loss"], fitted.history["valid/accuracy"]))
    assert found[0] == found[1]
    with pytest.raises(BadData, match=r"loss is None: .* has labels \(it has 'input_ids', 'y'\). Rename the column"):
        fit_once(bert("BertForSequenceClassification", num_labels=3), {"input_ids": IDS, "y": classes}, **rate)


def test_a_loss_of_the_user_on_the_outputs_of_a_model_that_takes_labels():
    classes, balance = torch.arange(10) % 3, torch.tensor([1.0, 2.0, 8.0])
    rows = {"input_ids": IDS, "labels": classes}

    def loss(output, targets):
        return nn.functional.cross_entropy(output.logits, targets, weight=balance, label_smoothing=0.1)

    torch.manual_seed(0)
    model = bert("BertForSequenceClassification", num_labels=3)
    fitted = fit_once(model, rows, loss=loss, metrics=[metrics.Accuracy()])
    found = fitted.evaluate(rows, batch_size=3)
    with torch.no_grad():
        output = fitted.model(input_ids=IDS)
    assert found["loss"] == pytest.approx(loss(output, classes).item(), rel=1e-5)
    assert found["accuracy"] == pytest.approx((output.logits.argmax(1) == classes).double().mean().item())
    torch.testing.assert_close(fitted.predict(rows, batch_size=3).logits, output.logits)
    with pytest.raises(TypeError, match="must be Tensor") as caught:
        fit_once(model, rows, loss=nn.CrossEntropyLoss())
    assert any("lambda output, target: CrossEntropyLoss(output['logits'], target)" in n for n in caught.value.__notes__)


def test_sequences_have_classes_labels_or_numbers():
    torch.manual_seed(0)
    classes = torch.randint(3, (10,), generator=DRAW)
    rows = {"input_ids": IDS, "labels": classes}
    model = bert("BertForSequenceClassification", num_labels=3, output_hidden_states=True)
    fitted = fit_once(model, rows, metrics=[metrics.FBeta(), metrics.Accuracy()])
    with torch.no_grad():
        output = fitted.model(**rows)
    found = fitted.evaluate(rows, batch_size=3)
    assert found["f1_macro"] == pytest.approx(f1_score(classes, output.logits.argmax(1), average="macro"))
    answers = fitted.predict({"input_ids": IDS}, batch_size=3)  # without labels
    torch.testing.assert_close(answers.logits, output.logits)
    torch.testing.assert_close(answers.hidden_states, output.hidden_states)

    several = torch.randint(2, (10, 3), generator=DRAW).float()
    rows = {"input_ids": IDS, "labels": several}
    model = bert("BertForSequenceClassification", num_labels=3)
    fitted = fit_once(model, rows, metrics=[metrics.FBeta(task="multilabel")])
    with torch.no_grad():
        chosen = fitted.model(**rows).logits > 0
    exact = f1_score(several, chosen, average="macro", zero_division=0)
    assert fitted.evaluate(rows)["f1_macro"] == pytest.approx(exact)

    rows = {"input_ids": IDS, "labels": torch.randn(10, generator=DRAW)}
    found = fit_once(bert("BertForSequenceClassification", num_labels=1), rows, metrics=[metrics.MSE()]).evaluate(rows)
    assert found["mse"] == pytest.approx(found["loss"], rel=1e-5)


def test_generated_text_is_compared_by_metrics_of_strings():
    def words(rows):
        return [" ".join(f"w{number}" for number in row if number > 0) for row in rows.tolist()]

    def generate(model, batch):
        return words(model.generate(input_ids=batch["input_ids"], max_new_tokens=5, do_sample=False))

    def valid_step(model, batch):
        targets = [[text] for text in words(batch["labels"])]
        return {"loss": model(**batch).loss, "predictions": generate(model, batch), "targets": targets}

    torch.manual_seed(0)
    rows = {"input_ids": IDS, "labels": LABELS}
    bleu = torchmetrics.text.BLEUScore(n_gram=1)
    given = [metrics.as_metric(bleu, on="valid", name="bleu")]
    learner = stoker.Learner(gpt2(), valid_step=valid_step, predict_step=generate, metrics=given, lr=0.01, seed=0)
    fitted = learner.fit(rows, valid=rows, epochs=2, batch_size=4, monitor="valid/bleu", show=False)
    found, answers = fitted.evaluate(rows, batch_size=3), fitted.predict(rows, batch_size=5)
    assert answers == generate(fitted.model, rows)
    assert found["bleu"] == pytest.approx(bleu(answers, [[text] for text in words(LABELS)]).item()) == fitted.best.value
    assert found["loss"] == pytest.approx(fitted.model(**rows).loss.item(), rel=1e-5)  # a mean over tokens


def test_several_losses_need_a_step_that_says_what_belongs_together():
    positions = {"start_positions": torch.arange(10) % 7, "end_positions": torch.arange(10) * 3 % 7}
    rows = {"input_ids": IDS, **positions}
    with pytest.raises(stoker.InvalidArgument, match="not known which targets belong to this part"):
        fit_once(bert("BertForQuestionAnswering"), rows, metrics=[metrics.Accuracy(of="end_logits")])

    def step(model, batch):
        output = model(**batch)
        predictions = {"start": output.start_logits, "end": output.end_logits}
        targets = {name: batch[f"{name}_positions"] for name in predictions}
        return {"loss": output.loss, "predictions": predictions, "targets": targets}

    fitted = fit_once(bert("BertForQuestionAnswering"), rows, step=step, metrics=[metrics.Accuracy(of="end")])
    with torch.no_grad():
        chosen = fitted.model(**rows).end_logits.argmax(1)
    assert fitted.evaluate(rows)["end_accuracy"] == pytest.approx(accuracy_score(positions["end_positions"], chosen))


def test_batches_padded_to_different_lengths_need_a_predict_step():
    samples = [{"input_ids": row[: 3 + n % 3], "labels": row[: 3 + n % 3]} for n, row in enumerate(IDS)]

    def pad(rows):
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        ids, labels = (
            nn.utils.rnn.pad_sequence(columns[name], batch_first=True, padding_value=value)
            for name, value in (("input_ids", 0), ("labels", -100))
        )
        return {"input_ids": ids, "attention_mask": (labels >= 0).long(), "labels": labels}

    def rows_of_each(model, batch):
        logits = model(**batch).logits
        return [row[: int(mask.sum())] for row, mask in zip(logits, batch["attention_mask"], strict=True)]

    def loader(batch_size):
        return data.Loader(samples, batch_size=batch_size, collate_fn=pad)

    torch.manual_seed(0)
    fitted = fit_once(bert("BertForMaskedLM"), loader(2), metrics=[metrics.Perplexity()])
    exact = fitted.evaluate(loader(10))  # one batch
    assert fitted.evaluate(loader(2)) == pytest.approx(exact, rel=1e-5)
    with pytest.raises(BadData, match=r"the output\['logits'\] has other shapes in other batches .*predict_step"):
        fitted.predict(loader(2))
    fitted = fit_once(fitted.model, loader(2), predict_step=rows_of_each)
    one, two = fitted.predict(loader(1)), fitted.predict(loader(4))
    assert [len(row) for row in one] == [len(row["input_ids"]) for row in samples]
    torch.testing.assert_close(one, two)


# --- torchvision


def detector():
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
    from torchvision.models.detection.rpn import AnchorGenerator
    from torchvision.ops import MultiScaleRoIAlign

    class Backbone(nn.Sequential):
        out_channels = 8

    few = {f"rpn_{when}_nms_top_n_{phase}": 10 for when in ("pre", "post") for phase in ("train", "test")}
    return FasterRCNN(
        Backbone(nn.Conv2d(3, 8, 3, stride=4, padding=1), nn.ReLU()),
        rpn_anchor_generator=AnchorGenerator(((8, 16),), ((1.0,),)),
        box_roi_pool=MultiScaleRoIAlign(["0"], 3, 2),
        box_head=nn.Sequential(nn.Flatten(), nn.Linear(72, 16), nn.ReLU()),
        box_predictor=FastRCNNPredictor(16, 3),
        min_size=32,
        max_size=32,
        box_detections_per_img=4,
        **few,
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Encountered more than 100 detections")
def test_a_detector_is_validated_by_metrics_alone(tmp_path):
    from torchmetrics.detection import MeanAveragePrecision

    boxes = {"boxes": torch.tensor([[2.0, 2.0, 12.0, 12.0]]), "labels": torch.tensor([1])}
    samples = [(torch.rand(3, 32, 32, generator=DRAW), boxes) for _ in range(7)]

    def loader(batch_size):
        return data.Loader(
            samples, batch_size=batch_size, collate_fn=lambda rows: tuple(map(list, zip(*rows, strict=True)))
        )

    def run(epochs, resume=False):
        torch.manual_seed(0)
        learner = stoker.Learner(
            detector(), metrics=[metrics.as_metric(MeanAveragePrecision(), on="valid", name="map")], seed=0
        )
        settings = {"monitor": "valid/map/map_50", "mode": "max", "run": tmp_path / "run", "resume": resume}
        return learner.fit(loader(3), valid=loader(3), epochs=epochs, show=False, **settings)

    run(1)
    fitted = run(2, resume=True)
    values = fitted.history["valid/map/map_50"]
    assert len(values) == 2 and fitted.best.value == max(values) and "valid/loss" not in fitted.history.columns
    assert {"train/loss", "train/loss_classifier", "train/loss_objectness"} <= set(fitted.history.columns)
    answers = fitted.predict(loader(2))
    with torch.no_grad():
        exact = fitted.model([image for image, _ in samples])
    assert len(answers) == 7
    torch.testing.assert_close(answers, [dict(each) for each in exact])
    alone = MeanAveragePrecision()
    alone.update(exact, [target for _, target in samples])
    found, expected = fitted.evaluate(loader(2)), alone.compute()
    for name in ("map", "map_50", "mar_100"):
        assert found[f"map/{name}"] == pytest.approx(expected[name].item())


def test_parts_of_a_segmentation():
    from torchvision.models.segmentation.fcn import FCN, FCNHead

    class Backbone(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Conv2d(3, 8, 3, padding=1)

        def forward(self, x):
            return {"out": self.layer(x)}

    def loss(predictions, targets):
        return F.cross_entropy(predictions["out"], targets)

    torch.manual_seed(0)
    images, pixels = torch.rand(6, 3, 8, 8), torch.randint(3, (6, 8, 8))
    fitted = fit_once(FCN(Backbone(), FCNHead(8, 3)), (images, pixels), loss=loss, metrics=[metrics.IoU(of="out")])
    with torch.no_grad():
        chosen = fitted.model(images)["out"].argmax(1)
    iou = torchmetrics.classification.MulticlassJaccardIndex(3)
    assert fitted.evaluate((images, pixels))["out_iou_macro"] == pytest.approx(iou(chosen, pixels).item(), rel=1e-5)
    assert torch.equal(fitted.predict(images)["out"].argmax(1), chosen)


# --- PyG


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # when PyG is imported
def test_graphs_have_one_answer_each():
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GCNConv, global_mean_pool

    class Graphs(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = GCNConv(3, 8), nn.Linear(8, 2)

        def forward(self, graphs):
            features = self.conv(graphs.x, graphs.edge_index).relu()
            return self.head(global_mean_pool(features, graphs.batch)), features

    def make(nodes):
        x = torch.randn(nodes, 3, generator=DRAW)
        edges = torch.stack([torch.arange(nodes), torch.arange(nodes).roll(1)])
        return Data(x=x, edge_index=edges, y=torch.tensor([nodes % 2]))

    graphs = [make(3 + n % 4) for n in range(9)]

    def loader(batch_size):
        return data.Loader(graphs, batch_size=batch_size, collate_fn=Batch.from_data_list)

    def step(model, graphs):
        logits, _ = model(graphs)
        return stoker.ClassificationOutput(F.cross_entropy(logits, graphs.y), logits, graphs.y)

    torch.manual_seed(0)
    model = Graphs()
    steps = {"step": step, "predict_step": lambda model, graphs: model(graphs)[0], "metrics": [metrics.Accuracy()]}
    fitted = fit_once(model, loader(4), **steps)
    with torch.no_grad():
        exact, _ = fitted.model(Batch.from_data_list(graphs))
    torch.testing.assert_close(fitted.predict(loader(4)), exact)
    targets = torch.cat([graph.y for graph in graphs])
    assert fitted.evaluate(loader(4))["accuracy"] == pytest.approx(accuracy_score(targets, exact.argmax(1)))
    nodes = fit_once(model, loader(4), **{**steps, "predict_step": lambda model, graphs: model(graphs)[1]})
    with pytest.raises(
        BadData, match="predict returns one prediction per sample, but for a batch of 4 samples the output"
    ):
        nodes.predict(loader(4))
