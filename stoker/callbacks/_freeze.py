"""Training a part of the model later than the rest."""

from torch import nn

from stoker._select import Selector, describe, select
from stoker.callbacks._callback import Callback
from stoker.callbacks._context import Context
from stoker.errors import InvalidArgument


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
        self._frozen: list[nn.Parameter] = []

    def on_fit_begin(self, ctx: Context) -> None:
        """Freezes what would train."""
        if ctx.epoch < self.epoch:
            self._frozen = [each for each in select(ctx.model, self.selector).values() if each.requires_grad]
            for parameter in self._frozen:
                parameter.requires_grad_(False)

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

    def _thaw(self) -> None:
        for parameter in self._frozen:
            parameter.requires_grad_(True)
        self._frozen = []

    def __repr__(self) -> str:
        return f"FreezeUntil({describe(self.selector)}, epoch={self.epoch})"
