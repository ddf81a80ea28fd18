"""Which numbers share a picture."""

from stoker.record._panels import panels


def test_a_metric_of_all_sets_and_classes_is_one_picture():
    names = [
        "train/loss",
        "near/loss",
        "far/loss",
        "lr",
        "samples_per_second",
        "valid/recall/0",
        "train/recall/0",
        "lr/body.*",
    ]
    assert panels(names) == {
        "loss": ["train/loss", "near/loss", "far/loss"],
        "lr": ["lr", "lr/body.*"],
        "samples_per_second": ["samples_per_second"],
        "recall": ["valid/recall/0", "train/recall/0"],
    }
