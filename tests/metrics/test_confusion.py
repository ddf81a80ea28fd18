import torch
from sklearn.metrics import confusion_matrix, multilabel_confusion_matrix

from stoker.metrics import ConfusionMatrix
from stoker.steps import ClassificationOutput, MultiLabelOutput
from tests.metrics.cases import value

LOSS = torch.tensor(0.0)
DRAW = torch.Generator().manual_seed(0)


def test_rows_are_what_is_and_columns_what_was_said():
    logits, targets = torch.randn(50, 4, generator=DRAW), torch.randint(3, (50,), generator=DRAW)  # class 3 never is
    expected = confusion_matrix(targets, logits.argmax(1), labels=range(4))
    assert value(ConfusionMatrix(), ClassificationOutput(LOSS, logits, targets)) == expected.tolist()
    weight = torch.randint(5, (50,), generator=DRAW)
    weighted = confusion_matrix(targets, logits.argmax(1), labels=range(4), sample_weight=weight)
    assert value(ConfusionMatrix(), ClassificationOutput(LOSS, logits, targets, weight)) == weighted.tolist()
    targets[::2] = -100
    kept = confusion_matrix(targets[1::2], logits.argmax(1)[1::2], labels=range(4))
    assert value(ConfusionMatrix(), ClassificationOutput(LOSS, logits, targets)) == kept.tolist()


def test_yes_and_no_and_labels():
    logits, targets = torch.randn(30, 3, generator=DRAW), torch.randint(2, (30, 3), generator=DRAW)
    expected = multilabel_confusion_matrix(targets, logits > 0)
    assert value(ConfusionMatrix(), MultiLabelOutput(LOSS, logits, targets)) == expected.tolist()
    single = value(ConfusionMatrix(), MultiLabelOutput(LOSS, logits[:, 0], targets[:, 0]))
    assert single == confusion_matrix(targets[:, 0], logits[:, 0] > 0).tolist()


def test_nothing_seen_is_an_empty_list():
    assert value(ConfusionMatrix()) == []
