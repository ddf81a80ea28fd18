"""Callbacks: the hooks a class may define, `on` for single functions, and `Hooks`, which calls them."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from stoker.callbacks._context import Context
from stoker.errors import InvalidArgument, StateMismatch, StokerError, UnknownHook, WrongType, did_you_mean


class Callback:
    """Base class of callbacks: define the hooks that you need.

    >>> class Thermometer(Callback):
    ...     def on_epoch_end(self, ctx):
    ...         ctx.log("temperature", 36.6)
    >>> class Typo(Callback):
    ...     def on_epoch_ends(self, ctx): ...
    Traceback (most recent call last):
    stoker.errors.UnknownHook: Typo.on_epoch_ends is not a hook; did you mean 'on_epoch_end' or ...

    The hooks below are in the order in which they are called. They run under `torch.no_grad()`; a hook that changes
    the loss uses `with torch.enable_grad():`. `Context` describes `ctx`.

    A callback that counts something resets it in `on_fit_begin`, returns it from `state_dict` and restores it in
    `load_state_dict`. When a run is resumed, `ctx` has the position at which training continues, `on_fit_begin` is
    called, which may change the model, then the weights and the optimizer are loaded, and then `load_state_dict` is
    called. `state_dict` may be called after every batch. A callback that changes and
    has no `state_dict` causes a warning when the run is saved, unless it sets `transient = True`, which says that it
    may start from scratch in a resumed run.
    """

    transient: bool = False

    def on_fit_begin(self, ctx: Context) -> None:
        """Called first; the model is on its device."""

    def on_epoch_begin(self, ctx: Context) -> None:
        """Called when `ctx.epoch` has begun."""

    def on_train_begin(self, ctx: Context) -> None:
        """Called before the first training batch of the epoch."""

    def on_train_batch_begin(self, ctx: Context) -> None:
        """Called with `ctx.batch` on the device; it may be replaced."""

    def on_train_batch_after_pred(self, ctx: Context) -> None:
        """Called after the forward pass. With a `train_step`, `ctx.pred` is `output.predictions` if there are any."""

    def on_train_batch_after_loss(self, ctx: Context) -> None:
        """Called with `ctx.output` and `ctx.loss`, before the backward pass."""

    def on_train_batch_after_backward(self, ctx: Context) -> None:
        """Called with `ctx.grads`; they may be replaced."""

    def on_train_batch_after_step(self, ctx: Context) -> None:
        """Called after the optimizer step, if this batch ends an accumulation window."""

    def on_update(self, ctx: Context) -> None:
        """Called when an update is applied and counted in `ctx.update`."""

    def on_train_batch_end(self, ctx: Context) -> None:
        """Called at the end of the batch, after the metrics."""

    def on_train_end(self, ctx: Context) -> None:
        """Called after the last training batch of the epoch."""

    def on_valid_begin(self, ctx: Context) -> None:
        """Called before the first batch of a validation set.

        Up to `on_valid_end`, `ctx.model` is in eval mode, has the weights that are validated, and must not be switched.
        """

    def on_valid_batch_begin(self, ctx: Context) -> None:
        """Called with `ctx.batch` on the device; it may be replaced."""

    def on_valid_batch_after_pred(self, ctx: Context) -> None:
        """Called with `ctx.pred`."""

    def on_valid_batch_after_loss(self, ctx: Context) -> None:
        """Called with `ctx.output` and `ctx.loss`."""

    def on_valid_batch_end(self, ctx: Context) -> None:
        """Called at the end of the batch, after the metrics."""

    def on_valid_end(self, ctx: Context) -> None:
        """Called after the last batch of a validation set."""

    def on_validation(self, ctx: Context) -> None:
        """Called when all validation sets are done and their metrics are in the record."""

    def on_epoch_end(self, ctx: Context) -> None:
        """Called at the end of the epoch; its metrics are in the record."""

    def on_interrupt(self, ctx: Context) -> None:
        """Called after a signal, a deadline or a viewer has stopped the fit; `on_fit_end` follows."""

    def on_exception(self, ctx: Context) -> None:
        """Called when an exception leaves `fit`."""

    def on_fit_end(self, ctx: Context) -> None:
        """Called last. If an exception ends the fit, `on_exception` is called instead."""

    def state_dict(self) -> dict[str, Any]:
        """Returns what a checkpoint has to keep: tensors and plain values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned."""
        if state:
            name = type(self).__name__
            raise StateMismatch(
                f"the checkpoint has a state for {name} ({', '.join(state)}), but {name} does not define "
                "load_state_dict; define it next to state_dict"
            )

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for name in dir(cls):
            if name.startswith("on_") and name not in HOOK_NAMES and callable(getattr(cls, name)):
                hint = did_you_mean(name, HOOK_NAMES) or f"; the hooks are: {', '.join(HOOK_NAMES)}"
                raise UnknownHook(f"{cls.__name__}.{name} is not a hook{hint}")

    def __repr__(self) -> str:  # plain settings only: printing a tensor would wait for the device
        plain = (str, int, float, tuple, type(None))
        settings = [
            f"{name}={value!r}" for name, value in vars(self).items() if name[0] != "_" and type(value) in plain
        ]
        return f"{type(self).__name__}({', '.join(settings)})"


HOOK_NAMES: tuple[str, ...] = tuple(name for name in vars(Callback) if name.startswith("on_"))


def read_state(state: Mapping[str, Any], *, owner: str, **types: Any) -> list[Any]:
    """Returns the entries of a callback's saved state in the order of `types`; raises for other entries or types."""
    if not isinstance(state, Mapping) or set(state) != set(types):
        given = ", ".join(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise StateMismatch(f"the state of {owner} has the entries {', '.join(types)}; got {given or 'no entries'}")
    for name, kind in types.items():
        if not isinstance(state[name], kind):
            raise StateMismatch(f"the state of {owner} has the wrong type: {name!r} is a {type(state[name]).__name__}")
    return [state[name] for name in types]


class On(Callback):
    """The callback that `on` returns."""

    def __init__(self, functions: Mapping[str, Callable[[Context], object]]) -> None:
        vars(self).update({f"on_{name}": function for name, function in functions.items()})

    def __repr__(self) -> str:
        hooks = vars(self).items()
        names = [f"{hook.removeprefix('on_')}={getattr(function, '__name__', function)}" for hook, function in hooks]
        return f"on({', '.join(names)})"


def on(**functions: Callable[[Context], object]) -> Callback:
    """Makes a callback of functions, given by the names of their hooks without `on_`.

    >>> from stoker.callbacks import Context, Hooks
    >>> hooks = Hooks([on(fit_begin=lambda ctx: print("begin"), epoch_end=lambda ctx: print("epoch", ctx.epoch))])
    >>> hooks.fire("on_fit_begin", Context(model=torch.nn.Linear(1, 1)))
    begin
    """
    if not functions:
        raise InvalidArgument("on() takes at least one hook and its function: on(epoch_end=lambda ctx: ...)")
    known = [name.removeprefix("on_") for name in HOOK_NAMES]
    for name, function in functions.items():
        if name not in known:
            hint = did_you_mean(name.removeprefix("on_"), known) or f"; the hooks are: {', '.join(known)}"
            raise UnknownHook(f"on({name}=...): {name} is not a hook{hint}")
        if not callable(function):
            raise WrongType(f"on({name}=...) takes a function of ctx, got {type(function).__name__}")
    return On(functions)


class Hooks:
    """The callbacks of a fit; `fire` calls one hook of all of them, in the order of the list.

    >>> class Hello(Callback):
    ...     def on_fit_begin(self, ctx):
    ...         print("hello", ctx.epochs)
    >>> hooks = Hooks([Hello()])
    >>> hooks.fire("on_fit_begin", Context(model=torch.nn.Linear(2, 1), epochs=3))
    hello 3
    >>> hooks.has("on_train_batch_begin")
    False

    Which callbacks define a hook is determined once, here: firing a hook that none defines is a dict lookup (0.1 µs).
    """

    __slots__ = ("_methods", "_named", "stateful")

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self._named: dict[str, Callback] = {}  # by class name; the second one of a class is "CSV 2"
        counts: dict[str, int] = {}
        for callback in _check_callbacks(callbacks):
            name = type(callback).__name__
            counts[name] = counts.get(name, 0) + 1
            self._named[name if counts[name] == 1 else f"{name} {counts[name]}"] = callback
        self._methods: dict[str, list[tuple[Callback, Callable[[Context], object]]]] = {
            hook: [(callback, getattr(callback, hook)) for callback in self if _defines(callback, hook)]
            for hook in HOOK_NAMES
        }
        #: The callbacks that have a `state_dict`, by their names.
        self.stateful: Mapping[str, Callback] = {
            name: callback
            for name, callback in self._named.items()
            if type(callback).state_dict is not Callback.state_dict
        }

    def has(self, name: str) -> bool:
        """Returns whether any callback defines the hook."""
        return bool(self._methods_of(name))

    def listeners(self, name: str) -> list[Callback]:
        """Returns the callbacks that define the hook."""
        return [callback for callback, _ in self._methods_of(name)]

    @property
    def may_log(self) -> bool:
        """Whether there is a callback that is not stoker's own: it may log metrics of any name."""
        return any(map(_is_users, self))

    @property
    def may_change_model(self) -> bool:
        """Whether a callback that is not stoker's own has `on_fit_begin`: it may add modules and buffers there."""
        return any(map(_is_users, self.listeners("on_fit_begin")))

    def fire(self, name: str, ctx: Context) -> None:
        """Calls the hook of every callback; an exception gets a note that names the hook and the position."""
        methods = self._methods.get(name)
        if methods:
            with torch.no_grad():
                for callback, method in methods:
                    try:
                        method(ctx)
                    except Exception as error:
                        position = f"epoch {ctx.epoch}, batch {ctx.batch_number}"
                        error.add_note(f"in {type(callback).__name__}.{name}, {position}")
                        raise
        elif methods is None:
            self._methods_of(name)

    def load_states(self, states: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Restores each callback's state by its name in `stateful`; returns the names that no callback has."""
        for name, callback in self.stateful.items():
            if name not in states:
                continue
            try:
                callback.load_state_dict(states[name])
            except (LookupError, TypeError, AttributeError, ValueError) as error:
                if isinstance(error, StokerError):
                    raise
                raise StateMismatch(
                    f"the callback {name} can't load its saved state: {type(error).__name__}: {error}"
                ) from error
        return [name for name in states if name not in self.stateful]

    def __iter__(self) -> Iterator[Callback]:
        return iter(self._named.values())

    def __len__(self) -> int:
        return len(self._named)

    def _methods_of(self, name: str) -> list[tuple[Callback, Callable[[Context], object]]]:
        try:
            return self._methods[name]
        except KeyError:
            raise UnknownHook(f"{name!r} is not a hook{did_you_mean(name, HOOK_NAMES)}") from None


def _is_users(callback: Callback) -> bool:
    return isinstance(callback, On) or not type(callback).__module__.startswith("stoker.callbacks.")


def _defines(callback: Callback, name: str) -> bool:
    """Whether the class or the object replaces the empty method of `Callback`."""
    return getattr(getattr(callback, name), "__func__", None) is not getattr(Callback, name)


def _check_callbacks(callbacks: Iterable[Callback]) -> list[Callback]:
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Iterable):
        raise WrongType(f"callbacks takes a list, got {_name_of(callbacks)}; write callbacks=[...]")
    checked: list[Callback] = []
    for index, callback in enumerate(callbacks):
        name = _name_of(callback)
        if isinstance(callback, type) and issubclass(callback, Callback):
            raise WrongType(f"callbacks[{index}] is the class {name}; create one: {name}(...)")
        if not isinstance(callback, Callback):
            named = "name its hook: callbacks.on(epoch_end=...)"
            advice = named if callable(callback) else "inherit from stoker.Callback"
            if hasattr(sys.modules["stoker.callbacks"], name):  # another library's callback of the same name
                advice = f"use stoker.callbacks.{name}"
            raise WrongType(f"callbacks[{index}] is {name}, which is not a Callback; {advice}")
        if any(callback is other for other in checked):
            raise InvalidArgument(f"callbacks[{index}], {callback!r}, is in the list twice; remove one")
        checked.append(callback)
    return checked


def _name_of(value: object) -> str:
    return str(getattr(value, "__name__", type(value).__name__))
