import pytest

from stoker import InvalidArgument, UnknownHook, WrongType
from stoker.callbacks import MILESTONES, Callback, Hooks, on
from tests.callbacks.fits import context


def test_functions_are_called_at_their_milestones():
    seen, ctx = [], context()
    callback = on(epoch_end=lambda ctx: seen.append(("end", ctx)), train_batch_end=lambda ctx: seen.append(("b", ctx)))
    hooks = Hooks([callback])
    for name in MILESTONES:
        hooks.fire(name, ctx)
    assert isinstance(callback, Callback) and seen == [("b", ctx), ("end", ctx)]


def test_a_failing_function_has_a_note():
    with pytest.raises(ZeroDivisionError) as caught:
        Hooks([on(epoch_end=lambda ctx: 1 / 0)]).fire("on_epoch_end", context())
    assert caught.value.__notes__ == ["in On.on_epoch_end, epoch 0, batch 0"]


def test_it_prints_as_it_is_written():
    assert repr(on(epoch_end=print)) == "on(epoch_end=print)"


def test_wrong_names_and_things_are_refused():
    with pytest.raises(
        UnknownHook, match=r"on\(epoch_ends=\.\.\.\): epoch_ends is no milestone; did you mean 'epoch_end'"
    ):
        on(epoch_ends=print)
    with pytest.raises(UnknownHook, match="on_epoch_end is no milestone; did you mean 'epoch_end'"):
        on(on_epoch_end=print)
    with pytest.raises(UnknownHook, match="zzz is no milestone; there are: fit_begin, "):
        on(zzz=print)
    with pytest.raises(WrongType, match=r"on\(epoch_end=\.\.\.\) takes a function of ctx, got int"):
        on(epoch_end=3)
    with pytest.raises(InvalidArgument, match="needs a milestone and a function"):
        on()
