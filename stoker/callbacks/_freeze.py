"""Training a part of the model later than the rest."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from stoker._select import Selector, describe, select
from stoker.callbacks._callback import Callback, read_state
from stoker.callbacks._context import Context
from stoker.errors import InvalidArgument, StateMismatch


class FreezeUntil(Callback):
    """Keeps the chosen parameters frozen before an epoch, and trains them from that epoch on.

    >>> FreezeUntil("backbone", epoch=3)
    FreezeUntil('backbone', epoch=3)

    Frozen ones get no gradient, so the optimizer leaves them and its state for them alone. What was frozen before the
    fit stays so, and however the fit ends, the model requires gradients where it did before. Buffers, such as a batch
    norm's running means, are not frozen.
    """

    def __init__(self, selector: Selector, *, epoch: int) -> None:
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 2:
            raise InvalidArgument(
                f"epoch is the first epoch that trains {describe(selector)}, at least 2; got {epoch!r}"
            )
        self.selector = selector
        self.epoch = epoch
        self._chosen: dict[str, nn.Parameter] = {}
        self._frozen: dict[str, nn.Parameter] = {}

    def on_fit_begin(self, ctx: Context) -> None:
        """Freezes what would train."""
        self._chosen = select(ctx.model, self.selector)
        if ctx.epoch < self.epoch:
            self._freeze([name for name, each in self._chosen.items() if each.requires_grad])

    def on_epoch_begin(self, ctx: Context) -> None:
        """Lets it train, from its epoch on."""
        if self._frozen and ctx.epoch >= self.epoch:
            self._thaw()
            ctx.note(f"{describe(self.selector)} trains from epoch {ctx.epoch} on")

    def on_exception(self, ctx: Context) -> None:
        """Leaves the model as it was found."""
        self._thaw()

    def on_fit_end(self, ctx: Context) -> None:
        """Leaves the model as it was found."""
        self._thaw()

    def state_dict(self) -> dict[str, Any]:
        """What is frozen now, and was not before the fit."""
        return {"frozen": list(self._frozen)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Answers for what was frozen: a model that was saved so comes back frozen, as if the user had done that."""
        (names,) = read_state(state, "frozen", who="FreezeUntil")
        unknown = [name for name in names if name not in self._chosen]
        if unknown:
            raise StateMismatch(
                f"{describe(self.selector)} does not choose {', '.join(unknown)} in this model, which was frozen by it "
                "when the state was saved"
            )
        self._freeze([*self._frozen, *names])

    def _freeze(self, names: list[str]) -> None:
        for name in names:
            self._frozen[name] = self._chosen[name]
            self._frozen[name].requires_grad_(False)

    def _thaw(self) -> None:
        for parameter in self._frozen.values():
            parameter.requires_grad_(True)
        self._frozen = {}

    def __repr__(self) -> str:
        return f"FreezeUntil({describe(self.selector)}, epoch={self.epoch})"
