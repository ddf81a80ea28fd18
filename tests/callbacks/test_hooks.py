import traceback

import pytest
import torch

from stoker import InvalidArgument, UnknownHook, WrongType
from stoker.callbacks import MILESTONES, Callback, EarlyStopping, Hooks, on
from tests.callbacks.fits import context


class Trace(Callback):
    def __init__(self, name, seen):
        self.name, self._seen = name, seen

    def on_epoch_begin(self, ctx):
        self._seen.append((self.name, ctx.epoch))


def test_callbacks_are_called_in_the_order_of_the_list():
    seen, ctx = [], context()
    hooks = Hooks([Trace("a", seen), Trace("b", seen), Trace("c", seen)])
    ctx.epoch = 7
    hooks.fire("on_epoch_begin", ctx)
    assert seen == [("a", 7), ("b", 7), ("c", 7)]


def test_wanted_is_what_somebody_has_a_method_for():
    class Inherits(Trace): ...

    hooks = Hooks([Inherits("a", []), on(update=lambda ctx: None)])
    assert {name for name in MILESTONES if hooks.wanted(name)} == {"on_epoch_begin", "on_update"}
    assert not any(Hooks().wanted(name) for name in MILESTONES)


def test_every_milestone_can_be_heard():
    heard = []

    def listener(name):
        return lambda self, ctx: heard.append(name)

    everything = type("Everything", (Callback,), {name: listener(name) for name in MILESTONES})()
    hooks, ctx = Hooks([everything]), context()
    for name in MILESTONES:
        hooks.fire(name, ctx)
    assert heard == list(MILESTONES)


def test_callbacks_run_without_gradients_and_leave_the_mode_as_it_was():
    modes = []
    Hooks([on(fit_begin=lambda ctx: modes.append(torch.is_grad_enabled()))]).fire("on_fit_begin", context())
    assert modes == [False] and torch.is_grad_enabled()


def test_an_exception_keeps_its_type_and_says_where_it_came_from():
    class Broken(Callback):
        def on_train_batch_end(self, ctx):
            raise ZeroDivisionError("boom")

    ctx = context()
    ctx.epoch, ctx.batch_number = 2, 5
    with pytest.raises(ZeroDivisionError, match="boom") as caught:
        Hooks([Broken()]).fire("on_train_batch_end", ctx)
    assert caught.value.__notes__ == ["in Broken.on_train_batch_end, epoch 2, batch 5"]
    assert "in Broken.on_train_batch_end, epoch 2, batch 5" in "".join(traceback.format_exception(caught.value))
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("ask", ["fire", "wanted"])
def test_an_unknown_milestone_is_an_error(ask):
    arguments = (context(),) if ask == "fire" else ()
    with pytest.raises(UnknownHook, match="'on_epoch_ends' is no milestone; did you mean 'on_epoch_end'"):
        getattr(Hooks(), ask)("on_epoch_ends", *arguments)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([EarlyStopping], r"callbacks\[0\] is the class EarlyStopping; make one of it: EarlyStopping\(\.\.\.\)"),
        ([EarlyStopping(), print], r"callbacks\[1\] is print, and no Callback; .*callbacks\.on\(epoch_end=\.\.\.\)"),
        (["early"], r"callbacks\[0\] is str, and no Callback; a callback inherits from stoker\.Callback"),
        (EarlyStopping(), "callbacks is a list, got EarlyStopping; put it into brackets"),
        (3, "callbacks is a list, got int"),
    ],
)
def test_what_is_no_callback_is_refused_with_advice(given, text):
    with pytest.raises(WrongType, match=text):
        Hooks(given)


def test_one_callback_twice_would_count_twice():
    same = EarlyStopping()
    with pytest.raises(InvalidArgument, match=r"callbacks\[1\], EarlyStopping\(.*\), is already in the list"):
        Hooks([same, same])
    assert len(Hooks([EarlyStopping(), EarlyStopping()])) == 2
    assert list(Hooks([same])) == [same]
