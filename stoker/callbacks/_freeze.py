"""Training a part of the model later than the rest."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from stoker._select import Selector, describe, select
from stoker.callbacks._callback import Callback, read_state
from stoker.callbacks._context import Context
from stoker.errors import InvalidArgument, StateMismatch


class FreezeUntil(Callback):
    """Freezes the selected parameters, and trains them from the given epoch on.

    >>> FreezeUntil("backbone", epoch=3)
    FreezeUntil('backbone', epoch=3)

    Frozen parameters get no gradient, so the optimizer changes neither them nor its state for them. Parameters that
    were frozen before the fit stay frozen. However the fit ends, every `requires_grad` is then as it was before.
    Buffers, such as the running statistics of a batch norm, are not frozen.
    """

    def __init__(self, selector: Selector, *, epoch: int) -> None:
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 2:
            raise InvalidArgument(
                f"epoch is the first epoch that trains {describe(selector)}, at least 2; got {epoch!r}"
            )
        self.selector = selector
        self.epoch = epoch
        self._selected: dict[str, nn.Parameter] = {}
        self._frozen: dict[str, nn.Parameter] = {}

    def on_fit_begin(self, ctx: Context) -> None:
        """Freezes the selected parameters that require gradients."""
        self._selected = select(ctx.model if ctx.optimizer is None else ctx.optimizer.model, self.selector)
        if ctx.epochs is not None and self.epoch > ctx.epochs:
            ctx.warn(f"{self!r} never trains these parameters: the fit has {ctx.epochs} epochs")
        if ctx.epoch < self.epoch:
            self._freeze(name for name, parameter in self._selected.items() if parameter.requires_grad)

    def on_epoch_begin(self, ctx: Context) -> None:
        """Unfreezes them at the given epoch."""
        if self._frozen and ctx.epoch >= self.epoch:
            self._unfreeze()
            ctx.note(f"{describe(self.selector)} trains from epoch {ctx.epoch} on")

    def on_exception(self, ctx: Context) -> None:
        """Unfreezes them."""
        self._unfreeze()

    def on_fit_end(self, ctx: Context) -> None:
        """Unfreezes them."""
        self._unfreeze()

    def state_dict(self) -> dict[str, Any]:
        """Returns the names of the parameters that this callback has frozen."""
        return {"frozen": list(self._frozen)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Freezes the named parameters, and again those that `on_fit_begin` froze.

        Loading the model has set every `requires_grad` to its value in the checkpoint.
        """
        (names,) = read_state(state, owner="FreezeUntil", frozen=list)
        unknown = [name for name in names if name not in self._selected]
        if unknown:
            raise StateMismatch(
                f"the checkpoint says that FreezeUntil froze {', '.join(unknown)}, but {describe(self.selector)} does "
                "not select that in this model; resume with the same model and selector"
            )
        self._freeze([*self._frozen, *names])

    def _freeze(self, names: Iterable[str]) -> None:
        for name in names:
            self._frozen[name] = self._selected[name]
            self._selected[name].requires_grad_(False)

    def _unfreeze(self) -> None:
        for parameter in self._frozen.values():
            parameter.requires_grad_(True)
        self._frozen = {}

    def __repr__(self) -> str:
        return f"FreezeUntil({describe(self.selector)}, epoch={self.epoch})"
