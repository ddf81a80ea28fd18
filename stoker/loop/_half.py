"""The stations of a batch up to its gradients; what is done with them comes after the program, as it is written."""

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from stoker.data import RowSelection
from stoker.gradients import Gradients
from stoker.loop._ask import Asked, asked
from stoker.loop._fit import Fit
from stoker.loop._lend import lent, slots_in
from stoker.loop._level import level_loss
from stoker.loop._stations import Mixed, Stations
from stoker.loop._update import added_up, flush, gradients_of, use
from stoker.program import Cannot, Inputs, detached

AFTER = ("on_train_batch_after_backward", "on_train_batch_after_step")  # hooks that come after the gradients


@contextmanager
def _by_itself(fit: Fit) -> Iterator[None]:
    """While it is open, this rank knows of no others: a program has no messages in it."""
    shared, fit.shared = fit.shared, None
    try:
        yield
    finally:
        fit.shared = shared


class Half(Stations):
    """One batch through the stations up to the gradients, which hooks or an optimizer of its own take from there."""

    __slots__ = ("_found", "_left")

    _found: Any  # what the last run in a program has found: the loss, its weight, its gradients by name
    _left: Any  # the same, of the run that is to be gone on with

    def __init__(self, fit: Fit) -> None:
        super().__init__(fit)
        self._found = self._left = None
        self._wanted = self._wanted or any(map(fit.hooks.has, AFTER))  # who takes gradients may look at all of it

    def run(self, given: Any) -> None:
        """All stations where nobody makes a program of them; else those up to the gradients."""
        fit, ctx = self._fit, self._fit.ctx
        if fit.verdict is None:
            super().run(given)
            return
        ctx.batch, ctx.loss_mix = given if isinstance(given, Mixed) else (given, None)
        if isinstance(given, RowSelection):
            ctx.batch = given.gather()
        with _by_itself(fit):
            for each in asked(fit):
                if each.part is not None:
                    raise Cannot("the step yields objectives, and each is to be stepped before the next is computed")
                grads, each = gradients_of(fit, each)
                self._found = each.loss.detach(), each.weight, dict(grads.items())
        if ctx.output is not None and not fit.refused:
            fit.tally.add(ctx.output, static=True)

    def rest(self) -> None:
        """The hooks, the window, the update and the average, with what the program has found."""
        fit, (loss, weight, tensors) = self._fit, self._left
        self._left, fit.refused = None, fit.ctx.is_padding
        super().rest()
        if fit.device.type == "cpu" and isinstance(weight, Tensor):
            weight = weight.item()  # as it is where nothing is compiled
        use(fit, *added_up(fit, Gradients._of(tensors, self._parameters, fit.model), Asked(None, loss, weight)))
        if not fit.ctx.accumulating:
            flush(fit)
        if fit.applied and fit.moved and fit.average is not None:
            fit.average.update()

    # --- what it reads and changes: nothing that is the update's

    def kept(self) -> dict[str, Any]:
        """Sums and states."""
        return {"tally": self._fit.tally.kept()}

    def hold(self, kept: Mapping[str, Any], *, own: bool = True) -> None:
        """Other tensors in their place."""
        self._fit.tally.hold(kept["tally"], own=own)

    def _written(self) -> dict[int, Tensor]:
        places = [table[name] for table, name in slots_in(self._modules)]
        return {id(tensor): tensor for tensor in (*places, *self.verdict.tensors())}

    @contextmanager
    def lent(self, inputs: Inputs) -> Iterator[None]:
        """Stand-ins in the place of the real tensors."""
        ctx = self._fit.ctx
        stand_ins = dict(zip(self._written(), inputs.written, strict=True))
        said = ctx.batch, ctx.pred, ctx.output, ctx.loss, ctx.grads
        try:
            with lent(self._fit, self._modules, self.verdict, stand_ins, update=False):
                yield
        finally:
            ctx.batch, ctx.pred, ctx.output, ctx.loss, ctx.grads = said

    def inputs(self) -> Inputs:
        """Every tensor that it reads."""
        return Inputs(list(self._written().values()), [])

    def set_rates(self) -> None:
        """The update's business."""

    def turn(self) -> Hashable:
        """What is not this rank's own batch counts for nothing; all else that differs is of no interest here."""
        return self._fit.model.training, self._fit.ctx.is_padding

    def alone(self) -> bool:
        """Never: the update happens between two runs."""
        return False

    # --- what it tells

    def said(self) -> tuple[Any, ...]:
        """What was found, and the outputs where anybody may look at them."""
        ctx, found, self._found = self._fit.ctx, self._found, None
        outputs = detached((ctx.batch, ctx.pred, ctx.output, ctx.loss)) if self._wanted else None
        return found, outputs

    def begin(self, said: tuple[Any, ...]) -> None:
        """A run changes no weight: what was marked before it is a whole state until the update.

        Of many ranks, each starts from the first one's buffers.
        """
        if self._fit.shared is not None:
            level_loss(self._fit)
            self._fit.shared.broadcast_buffers()

    def say(self, said: tuple[Any, ...]) -> None:
        """As after a run of the stations themselves, up to the gradients."""
        self._left, outputs = said
        if outputs is not None:
            ctx = self._fit.ctx
            ctx.batch, ctx.pred, ctx.output, ctx.loss = outputs

    def forget(self) -> None:
        """Lets go of the outputs of the last run."""
        super().forget()
        self._found = None
