import pytest
import torch

from stoker import StateMismatch, UnknownHook
from stoker.callbacks import MILESTONES, Callback, EarlyStopping


def test_the_milestones_in_their_order():
    train, valid = ("begin", "after_pred", "after_loss", "after_backward", "after_step"), ("begin", "after_pred")
    expected = ["fit_begin", "epoch_begin", "train_begin", *(f"train_batch_{each}" for each in train), "update"]
    expected += ["train_batch_end", "train_end", "valid_begin", *(f"valid_batch_{each}" for each in valid)]
    expected += ["valid_batch_after_loss", "valid_batch_end", "valid_end", "validation", "epoch_end", "interrupt"]
    assert [*MILESTONES] == [f"on_{name}" for name in [*expected, "exception", "fit_end"]]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("on_train_bacth_end", "on_train_batch_end"),
        ("on_batch_end", "on_train_batch_end"),
        ("on_epoch_start", "on_epoch_begin"),
        ("on_validation_end", "on_validation"),
    ],
)
def test_a_misspelt_milestone_is_refused_when_the_class_is_made(wrong, right):
    with pytest.raises(UnknownHook, match=rf"Mine\.{wrong} is no milestone; did you mean .*'{right}'"):
        type("Mine", (Callback,), {wrong: lambda self, ctx: None})


def test_where_nothing_is_near_all_milestones_are_listed():
    with pytest.raises(UnknownHook, match="is no milestone; the milestones are: on_fit_begin, .*, on_fit_end$"):
        type("Mine", (Callback,), {"on_zzz": lambda self, ctx: None})


def test_a_misspelt_milestone_that_is_inherited_is_seen_too():
    class Other:
        def on_epoch_ends(self, ctx): ...

    with pytest.raises(UnknownHook, match=r"Both\.on_epoch_ends"):
        type("Both", (Other, Callback), {})


def test_what_is_no_method_may_be_called_as_one_likes():
    class Mine(Callback):
        on_gpu = True

    assert Mine.on_gpu


def test_a_subclass_of_a_callback_is_a_callback():
    class Patient(EarlyStopping):
        def on_fit_end(self, ctx): ...

    assert repr(Patient(patience=3)).startswith("Patient(monitor='valid/loss', patience=3")


def test_state_without_a_way_back_is_refused():
    class Half(Callback):
        def state_dict(self):
            return {"count": 3}

    assert Callback().state_dict() == {}
    Callback().load_state_dict({})
    with pytest.raises(StateMismatch, match=r"saved state for Half \(count\), and Half has no load_state_dict"):
        Half().load_state_dict(Half().state_dict())


def test_the_repr_shows_plain_settings_only():
    class Mine(Callback):
        def __init__(self):
            self.width, self._hidden, self.weights = 3, 4, torch.ones(1000)

    assert repr(Mine()) == "Mine(width=3)"


def test_nothing_is_transient_unless_it_says_so():
    class Mine(Callback):
        transient = True

    assert not Callback.transient and not EarlyStopping().transient and Mine().transient
