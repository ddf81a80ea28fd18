"""Attributes that change during training but are in no state are reported."""

import random
from collections import deque

import numpy
import pytest
import torch
from torch import nn

import stoker
from stoker import callbacks
from stoker.callbacks import Callback
from stoker.checkpoint import Unsaved


class Keeps(Callback):
    def __init__(self, value):
        self.kept, self.setting = value, 3


class Answers(Keeps):
    def state_dict(self):
        return {}


class Passing(Keeps):
    transient = True


class Holds(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.kept, self.layer = value, nn.Linear(1, 1)


class Extra(Holds):
    def get_extra_state(self):
        return {}


class Fleeting(Holds):
    transient = True


def write_to(tensor):
    tensor.add_(1)
    return tensor


def append_to(items):
    items.append(1)
    return items


def draw_from(generator):
    generator.random() if not isinstance(generator, torch.Generator) else torch.rand((), generator=generator)
    return generator


CHANGES = {
    "int": (lambda: 0, lambda value: value + 1),
    "float": (lambda: 0.5, lambda value: float("nan")),
    "int-to-bool": (lambda: 1, lambda value: True),
    "tuple": (lambda: (1, 2), lambda value: (1, 3)),
    "list": (list, append_to),
    "nested": (lambda: {"a": [1]}, lambda value: {"a": [2]}),
    "deque": (lambda: deque([1]), append_to),
    "long": (lambda: list(range(500)), append_to),
    "written": (lambda: torch.zeros(2), write_to),
    "replaced": (lambda: torch.zeros(2), lambda value: torch.zeros(2)),
    "array": (lambda: numpy.zeros(3), lambda value: value + 1),
    "random": (lambda: random.Random(0), draw_from),
    "generator": (lambda: torch.Generator(), draw_from),
    "numpy-generator": (lambda: numpy.random.default_rng(0), draw_from),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("kind", [Keeps, Holds], ids=["callback", "module"])
def test_a_change_is_reported_once_by_name(kind, name):
    make, change = CHANGES[name]
    thing, other = kind(make()), nn.Linear(1, 1)
    unsaved = Unsaved(nn.Sequential(other, thing), []) if kind is Holds else Unsaved(other, [thing])
    assert unsaved.find_changes() == []
    thing.kept = change(thing.kept)
    (text,) = unsaved.find_changes()
    assert "changes `kept`, which is not in its state, so a resumed run starts with its first value" in text
    assert unsaved.find_changes() == []


@pytest.mark.parametrize("kind", [Answers, Passing, Extra, Fleeting], ids=lambda kind: kind.__name__)
def test_objects_with_a_state_of_their_own_are_skipped(kind):
    thing = kind(0)
    unsaved = Unsaved(thing, []) if isinstance(thing, nn.Module) else Unsaved(nn.Linear(1, 1), [thing])
    thing.kept = 1
    assert unsaved.find_changes() == []


def test_the_text_says_what_to_do():
    callback, model = Keeps(0), nn.ModuleDict({"body": Holds(0)})
    unsaved = Unsaved(model, [callback])
    del callback.kept
    callback.setting = 9
    model["body"].fresh = "new"
    assert unsaved.find_changes() == [
        "Holds ('body' in the model) changes `fresh`, which is not in its state, so a resumed run starts with its "
        "first value: make it a buffer, give the module get_extra_state and set_extra_state, or set transient = True "
        "in the class if that does no harm",
        "Keeps changes `kept`, `setting`, which is not in its state, so a resumed run starts with its first value: "
        "give the callback state_dict and load_state_dict, or set transient = True in the class if that does no harm",
    ]


def test_training_a_model_changes_nothing_outside_its_state():
    """Weights, buffers and modes are in the state; hooks and gradients do not count."""
    model = nn.Sequential(nn.Conv1d(1, 2, 1), nn.BatchNorm1d(2), nn.Dropout(), nn.Flatten(), nn.LSTM(4, 2))
    unsaved = Unsaved(model, [])
    optimizer = torch.optim.Adam(model.parameters())
    hook = model[0].register_forward_hook(lambda *_: None)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(3, 1, 2))[0].sum().backward()
        optimizer.step()
        model.eval() if model.training else model.train()
    model[0].weight.requires_grad_(False)
    assert unsaved.find_changes() == []
    hook.remove()
    model[2].p = 0.1
    assert "Dropout ('2' in the model) changes `p`" in unsaved.find_changes()[0]


def test_a_new_tensor_at_the_same_address_is_a_change():
    holds = Holds(torch.zeros(4))
    unsaved = Unsaved(holds, [])
    holds.kept = None
    holds.kept = torch.zeros(4)
    assert len(unsaved.find_changes()) == 1


def test_the_callbacks_of_stoker_have_complete_states(tmp_path):
    mine = [
        callbacks.EarlyStopping("train/loss", patience=9),
        callbacks.ReduceLROnPlateau("train/loss", patience=0, factor=0.5),
        callbacks.FreezeUntil("0", epoch=2),
        callbacks.StopOnTime(minutes=60),
        callbacks.MixUp(),
        callbacks.CSV(tmp_path / "epochs.csv"),
        callbacks.Profile(tmp_path / "trace", updates=(1, 2)),
        callbacks.on(epoch_begin=lambda ctx: None),
    ]
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    seen = []

    class Asks(Callback):
        transient = True

        def on_epoch_begin(self, ctx):
            self.unsaved = self.unsaved if ctx.epoch > 1 else Unsaved(ctx.model, mine)

        def on_epoch_end(self, ctx):
            seen.append(self.unsaved.find_changes())

    x = torch.randn(32, 3)
    learner = stoker.Learner(model, loss=nn.MSELoss(), optimizer=stoker.optim.SGD(), lr=1e-3)
    learner.fit((x, x[:, :1]), epochs=4, callbacks=[*mine, Asks()], show=False)
    assert seen == [[]] * 4
