"""Which hooks there are, who defines one, and how they are called."""

import traceback

import pytest
import torch

from stoker import InvalidArgument, StateMismatch, UnknownHook, WrongType
from stoker.callbacks import HOOK_NAMES, Callback, EarlyStopping, Hooks, on
from tests.callbacks.fits import context


class Trace(Callback):
    def __init__(self, name, seen):
        self.name, self._seen = name, seen

    def on_epoch_begin(self, ctx):
        self._seen.append((self.name, ctx.epoch))


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("on_train_bacth_end", "on_train_batch_end"),
        ("on_batch_end", "on_train_batch_end"),
        ("on_epoch_start", "on_epoch_begin"),
        ("on_validation_end", "on_validation"),
    ],
)
def test_a_misspelt_hook_is_an_error_when_the_class_is_defined(wrong, right):
    with pytest.raises(UnknownHook, match=rf"Mine\.{wrong} is not a hook; did you mean .*'{right}'"):
        type("Mine", (Callback,), {wrong: lambda self, ctx: None})


def test_an_unknown_hook_lists_all_hooks_and_may_be_inherited():
    class Other:
        def on_zzz(self, ctx): ...

    with pytest.raises(UnknownHook, match="Both.on_zzz is not a hook; the hooks are: on_fit_begin, .*, on_fit_end$"):
        type("Both", (Other, Callback), {})


def test_a_saved_state_needs_load_state_dict():
    class Half(Callback):
        def state_dict(self):
            return {"count": 3}

    assert Callback().state_dict() == {}
    Callback().load_state_dict({})
    with pytest.raises(StateMismatch, match=r"a state for Half \(count\), but Half does not define load_state_dict"):
        Half().load_state_dict(Half().state_dict())


def test_the_repr_shows_plain_settings_only():
    class Mine(Callback):
        def __init__(self):
            self.width, self._hidden, self.weights = 3, 4, torch.ones(1000)

    assert repr(Mine()) == "Mine(width=3)"


def test_who_defines_a_hook_is_known():
    first, second = Trace("a", []), on(update=lambda ctx: None)
    hooks = Hooks([first, second])
    assert {name for name in HOOK_NAMES if hooks.has(name)} == {"on_epoch_begin", "on_update"}
    assert hooks.listeners("on_update") == [second] and list(hooks) == [first, second] and len(hooks) == 2
    assert not any(Hooks().has(name) for name in HOOK_NAMES)


def test_an_exception_keeps_its_type_and_gets_a_note():
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


def test_firing_an_unknown_hook_is_an_error():
    with pytest.raises(UnknownHook, match="'on_epoch_ends' is not a hook; did you mean 'on_epoch_end'"):
        Hooks().fire("on_epoch_ends", context())


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([EarlyStopping], r"callbacks\[0\] is the class EarlyStopping; create one: EarlyStopping\(\.\.\.\)"),
        ([EarlyStopping(), print], r"callbacks\[1\] is print, which is not a Callback; .*on\(epoch_end=\.\.\.\)"),
        ([type("EarlyStopping", (), {})()], r"is EarlyStopping, which is not .*; use stoker\.callbacks\.EarlyStopping"),
        (["early"], r"callbacks\[0\] is str, which is not a Callback; inherit from stoker\.Callback"),
        (EarlyStopping(), r"callbacks takes a list, got EarlyStopping; write callbacks=\[\.\.\.\]"),
        (3, "callbacks takes a list, got int"),
    ],
)
def test_other_objects_are_rejected_with_advice(given, text):
    with pytest.raises(WrongType, match=text):
        Hooks(given)


def test_the_same_callback_twice_is_rejected():
    same = EarlyStopping()
    with pytest.raises(InvalidArgument, match=r"callbacks\[1\], EarlyStopping\(.*\), is in the list twice"):
        Hooks([same, same])
    assert list(Hooks([EarlyStopping(), EarlyStopping()]).stateful) == ["EarlyStopping", "EarlyStopping 2"]


def test_on_calls_functions_at_their_hooks():
    seen, ctx = [], context()
    callback = on(epoch_end=lambda ctx: seen.append(("end", ctx)), train_batch_end=lambda ctx: seen.append(("b", ctx)))
    hooks = Hooks([callback])
    for name in HOOK_NAMES:
        hooks.fire(name, ctx)
    assert isinstance(callback, Callback) and seen == [("b", ctx), ("end", ctx)]
    assert repr(on(epoch_end=print)) == "on(epoch_end=print)"
    with pytest.raises(ZeroDivisionError) as caught:
        Hooks([on(epoch_end=lambda ctx: 1 / 0)]).fire("on_epoch_end", context())
    assert caught.value.__notes__ == ["in On.on_epoch_end, epoch 0, batch 0"]


def test_on_rejects_wrong_names_and_values():
    with pytest.raises(UnknownHook, match=r"on\(epoch_ends=\.\.\.\): epoch_ends is not a hook; did you mean 'epoch_e"):
        on(epoch_ends=print)
    with pytest.raises(UnknownHook, match="on_epoch_end is not a hook; did you mean 'epoch_end'"):
        on(on_epoch_end=print)
    with pytest.raises(UnknownHook, match="zzz is not a hook; the hooks are: fit_begin, "):
        on(zzz=print)
    with pytest.raises(WrongType, match=r"on\(epoch_end=\.\.\.\) takes a function of ctx, got int"):
        on(epoch_end=3)
    with pytest.raises(InvalidArgument, match="takes at least one hook and its function"):
        on()
