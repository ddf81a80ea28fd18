"""How a fit begins: from the start, from a saved state, or where it ended in this process."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from stoker._select import named_parameters, set_train_mode
from stoker._text import format_size
from stoker.checkpoint import count_bytes, set_random_state
from stoker.engine._fit import Fit
from stoker.errors import BadFile, StokerError


class Kept(NamedTuple):
    """What `on_fit_begin` resets and `continue_` restores: states of callbacks, and the random generators."""

    callbacks: Mapping[str, Mapping[str, Any]]  # their states by name
    random: Mapping[str, Any]  # of `random_state`


def begin(fit: Fit, write_begin: Callable[[], None]) -> None:
    """Begins a new fit; `write_begin` writes its first event."""
    write_begin()
    _call_on_fit_begin(fit, is_new=True)
    _leave_out_frozen(fit, is_new=True)
    fit.checkpointer.begin(is_resumed=False)


def resume(fit: Fit, saved: Mapping[str, Any], write_begin: Callable[[], None]) -> None:
    """Continues a run from a saved state. Each part of it is loaded once, in this order.

    1. Identity and shapes. The learner has compared them before it calls this, with `check_state`, `check_shapes` and
       the settings of the fit, so that nothing is changed or written if they differ.
    2. The position, and what else `ctx` shows, with the reason if the run was stopping there. A signal that came before
       still stops it. `write_begin` then continues the record from there.
    3. `on_fit_begin`. It sees the position, as it does in a new fit, and may change the model: a state that was saved
       with a head or a buffer that it adds is loaded into such a model.
    4. Everything else that the checkpoint holds: weights, optimizer, averages, windows, totals. The loaded values
       replace those that the hook has set, but for a stop that it requested.
    5. The states of the callbacks, which `on_fit_begin` has reset.
    6. The random generators, last: all of the above may have drawn from them.

    An exception leaves the checkpoint as it is, and the next attempt resumes from it.
    """
    with explain_bad_state():
        fit.state.load_position(saved, fit.learning_rates)
    write_begin()
    _call_on_fit_begin(fit, is_new=False)
    with explain_bad_state():
        fit.state.load_rest(saved)
    _load_callbacks(fit, saved["callbacks"])
    with explain_bad_state():
        fit.state.load_valid_generators(saved["valid"])
        set_random_state(saved["random"])
    _continue(fit)


def continue_(fit: Fit, kept: Kept, write_begin: Callable[[], None]) -> None:
    """Continues a fit that has ended in this process, whose position and weights are still there: see `resume`."""
    write_begin()
    _call_on_fit_begin(fit, is_new=False)
    _load_callbacks(fit, kept.callbacks)
    set_random_state(kept.random)
    _continue(fit)


@contextmanager
def explain_bad_state() -> Iterator[None]:
    """Raises what unexpected values in a saved state cause as `BadFile`: somebody has changed it."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RuntimeError) as error:
        if isinstance(error, StokerError | torch.OutOfMemoryError):
            raise
        raise BadFile(f"the saved state can't be loaded: {type(error).__name__}: {error}") from error


def _load_callbacks(fit: Fit, states: Mapping[str, Mapping[str, Any]]) -> None:
    for name in fit.hooks.load_states(states):
        fit.ctx.note(f"the callback {name} is not there any more; its saved state is dropped")


def _continue(fit: Fit) -> None:
    """What depends on the loaded state: the curve, the copies of buffers, the loss, what is left out, resume points."""
    fit.recorder.resume(fit.state.totals)
    fit.step.host_guard.remember_buffers()
    fit.step.restore_loss_reduction()
    _leave_out_frozen(fit, is_new=False)
    fit.checkpointer.begin(is_resumed=True)


def _call_on_fit_begin(fit: Fit, *, is_new: bool) -> None:
    """Calls `model.train()` and `on_fit_begin`.

    If the fit continues, what the hook has set in `ctx` is replaced by the values from before the call, except for new
    entries of `ctx.state`.
    """
    ctx = fit.ctx
    state, lr_scale, lr, metrics = dict(ctx.state), ctx.lr_scale, ctx.lr, dict(ctx.metrics)
    _switch_to_training(fit, is_new=is_new)
    fit.hooks.fire("on_fit_begin", ctx)
    if not is_new:
        ctx.state = {**ctx.state, **state}
        ctx.lr_scale, ctx.lr, ctx.metrics = lr_scale, lr, metrics


def _switch_to_training(fit: Fit, *, is_new: bool) -> None:
    """Calls `model.train()`, as every training loop does. Only validations switch modes later, and switch them back."""
    model = fit.state.model
    in_eval_mode = [name for name, module in model.named_modules() if not module.training] if model.training else []
    set_train_mode(model)
    switched = [name for name in in_eval_mode if model.get_submodule(name).training]
    if switched and is_new:  # the modes of a resumed run are restored afterwards
        outermost: list[str] = []
        for name in switched:  # a module comes before those inside of it
            if not outermost or not name.startswith(f"{outermost[-1]}."):
                outermost.append(name)
        more = f" and {len(outermost) - 3} more" if len(outermost) > 3 else ""
        verb, them = ("trains", "it") if len(outermost) == 1 else ("train", "them")
        fit.ctx.note(
            f"{', '.join(outermost[:3])}{more} came in eval mode and {verb} now, as model.train() was called; to keep "
            f"{them} in eval mode, use stoker.freeze(model, {outermost[0]!r}, eval=True), or override train()"
        )


def _leave_out_frozen(fit: Fit, *, is_new: bool) -> None:
    """Chooses the frozen parameters that checkpoints and copies of the weights leave out.

    A run that continues leaves out what its checkpoint did, unless everything is to be saved from now on.
    """
    frozen, state, is_saved = fit.settings.frozen, fit.state, fit.checkpointer.is_active
    copies_weights = fit.settings.monitor is not None and state.keep_best
    if (frozen == "save" or is_new) and (is_saved or copies_weights):
        state.leave_out_frozen(frozen)
    if frozen == "auto" and state.left_out and is_saved and is_new:
        parameters = named_parameters(state.model)
        size = format_size(count_bytes({name: parameters[name] for name in state.left_out}))
        fit.ctx.note(
            f"checkpoints leave out {size} of frozen parameters: resume and load this run with a model that has them, "
            'or give Checkpoint(frozen="save")'
        )
