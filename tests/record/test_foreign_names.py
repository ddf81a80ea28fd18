import pytest

from stoker.record._foreign_names import Named, spelled


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("train_loss", "train/loss"),
        ("val_loss", "valid/loss"),
        ("val/loss/0", "valid/loss/0"),
        ("Validation.top-5", "valid/top-5"),
        ("eval/f1", "valid/f1"),
        ("Loss/train", "train/Loss"),
        ("acc_val", "valid/acc"),
        ("valid/loss", "valid/loss"),
        ("value_loss", "value_loss"),
        ("trainable", "trainable"),
        ("val", "val"),
        ("loss_step", "loss_step"),
        ("lr", "lr"),
    ],
)
def test_a_name_is_spelled_as_here(old, new):
    assert spelled([old]) == {old: Named(new)}


def test_numbers_on_the_way_are_known_by_their_counterpart():
    assert spelled(["loss_step", "loss_epoch", "num_step", "running/train/loss", "train/loss"]) == {
        "loss_step": Named("loss", running=True),
        "loss_epoch": Named("loss"),
        "num_step": Named("num_step"),
        "running/train/loss": Named("train/loss", running=True),
        "train/loss": Named("train/loss"),
    }


@pytest.mark.parametrize("other", ["valid/loss", "eval_loss"])
@pytest.mark.parametrize("turned", [False, True])
def test_two_names_never_become_one(other, turned):
    names = [other, "val_loss"] if turned else ["val_loss", other]
    found = spelled(names)
    assert list(found) == names and len(set(found.values())) == 2
    assert Named("valid/loss") in found.values()
