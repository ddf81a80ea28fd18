"""Which numbers share a picture."""

from stoker.record._panels import matrices, panels


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


def test_the_cells_of_a_matrix_are_in_no_picture():
    whole = [f"valid/confusion/{row}/{column}" for row in range(11) for column in range(11)]
    label = [f"valid/confusion/3/{row}/{column}" for row in range(2) for column in range(2)]
    assert matrices([*whole, *label, "lr"]) == {"valid/confusion": 11, "valid/confusion/3": 2}
    assert panels([*whole, "lr"]) == {"lr": ["lr"]}
    torn = [*whole[:-1], "valid/recall/0/1", "0/0", "/0/1", "valid/a/²/³"]
    assert matrices(torn) == {} and "confusion" in panels(torn)
