"""The milestones of training, as the methods of a class to inherit from."""

from collections.abc import Mapping
from typing import Any

from stoker.callbacks._context import Context
from stoker.errors import StateMismatch, UnknownHook, did_you_mean


class Callback:
    """Does something at milestones: inherit, and write the methods of those that you want.

    >>> class Warm(Callback):
    ...     def on_epoch_end(self, ctx):
    ...         ctx.log("temperature", 36.6)
    >>> class Typo(Callback):
    ...     def on_epoch_ends(self, ctx): ...
    Traceback (most recent call last):
    stoker.errors.UnknownHook: Typo.on_epoch_ends is no milestone; did you mean 'on_epoch_end' or ...

    The methods stand here in the order in which they come. They run without gradients (`with torch.enable_grad():`
    where one changes the loss), and what `ctx` offers is in `Context`. A callback that counts something resets it in
    `on_fit_begin`, gives it in `state_dict`, and takes it up in `load_state_dict`, which comes after `on_fit_begin`
    where a run is resumed (`ctx` then says where it goes on). `state_dict` may be asked after every batch. A callback
    that has none and changes all the same is warned about when the run is saved, unless it says `transient = True`:
    what it keeps does no harm when it starts anew.
    """

    transient: bool = False

    def on_fit_begin(self, ctx: Context) -> None:
        """Before anything; the model is on its device."""

    def on_epoch_begin(self, ctx: Context) -> None:
        """`ctx.epoch` has begun."""

    def on_train_begin(self, ctx: Context) -> None:
        """Before the first training batch of the epoch."""

    def on_train_batch_begin(self, ctx: Context) -> None:
        """`ctx.batch` is there, on the device, and may be replaced."""

    def on_train_batch_after_pred(self, ctx: Context) -> None:
        """`ctx.pred` is there; a model with a `train_step` of its own keeps it to itself."""

    def on_train_batch_after_loss(self, ctx: Context) -> None:
        """`ctx.output` and `ctx.loss` are there; nothing has been differentiated."""

    def on_train_batch_after_backward(self, ctx: Context) -> None:
        """`ctx.grads` are there, and may be replaced."""

    def on_train_batch_after_step(self, ctx: Context) -> None:
        """The parameters have changed; only where this batch ended an update."""

    def on_update(self, ctx: Context) -> None:
        """An update was applied and counted in `ctx.update`."""

    def on_train_batch_end(self, ctx: Context) -> None:
        """The batch is done, metrics included."""

    def on_train_end(self, ctx: Context) -> None:
        """After the last training batch of the epoch."""

    def on_valid_begin(self, ctx: Context) -> None:
        """Before the first batch of a validation set."""

    def on_valid_batch_begin(self, ctx: Context) -> None:
        """`ctx.batch` is there, on the device, and may be replaced."""

    def on_valid_batch_after_pred(self, ctx: Context) -> None:
        """`ctx.pred` is there."""

    def on_valid_batch_after_loss(self, ctx: Context) -> None:
        """`ctx.output` and `ctx.loss` are there."""

    def on_valid_batch_end(self, ctx: Context) -> None:
        """The batch is done, metrics included."""

    def on_valid_end(self, ctx: Context) -> None:
        """After the last batch of a validation set."""

    def on_validation(self, ctx: Context) -> None:
        """Every set is validated, and the record has the numbers."""

    def on_epoch_end(self, ctx: Context) -> None:
        """The epoch is done, and the record has its numbers."""

    def on_interrupt(self, ctx: Context) -> None:
        """Somebody pressed Ctrl-C; the end milestones still come."""

    def on_exception(self, ctx: Context) -> None:
        """An exception is on its way out of `fit`."""

    def on_fit_end(self, ctx: Context) -> None:
        """After everything."""

    def state_dict(self) -> dict[str, Any]:
        """What has to survive a pause: tensors and plain values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up what `state_dict` gave."""
        if state:
            name = type(self).__name__
            raise StateMismatch(
                f"there is a saved state for {name} ({', '.join(state)}), and {name} has no load_state_dict to take it "
                "up; write one next to its state_dict"
            )

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for name in dir(cls):
            if name.startswith("on_") and name not in MILESTONES and callable(getattr(cls, name)):
                hint = did_you_mean(name, MILESTONES) or f"; the milestones are: {', '.join(MILESTONES)}"
                raise UnknownHook(f"{cls.__name__}.{name} is no milestone{hint}")

    def __repr__(self) -> str:  # plain settings only: a tensor would wait for the device
        plain = (str, int, float, tuple, type(None))
        settings = [
            f"{name}={value!r}" for name, value in vars(self).items() if name[0] != "_" and type(value) in plain
        ]
        return f"{type(self).__name__}({', '.join(settings)})"


def read_state(state: Mapping[str, Any], *names: str, who: str) -> list[Any]:
    """The parts of a saved state, in the order of their names; other parts than these are a `StateMismatch`."""
    if not isinstance(state, Mapping) or set(state) != set(names):
        given = ", ".join(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise StateMismatch(f"the state of {who} has {', '.join(names)}; got {given or 'nothing'}")
    return [state[name] for name in names]


MILESTONES: tuple[str, ...] = tuple(name for name in vars(Callback) if name.startswith("on_"))
