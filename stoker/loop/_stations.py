"""All stations of one batch as a function of tensors, which a program runs in its own way."""

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stoker._select import named_parameters
from stoker.data import RowSelection
from stoker.errors import NotFinite
from stoker.gradients import Accumulator
from stoker.loop._ask import asked
from stoker.loop._fit import Fit
from stoker.loop._lend import lent, settled_in, slots_in
from stoker.loop._mark import mark_before
from stoker.loop._pins import Surroundings, heard, pins_of
from stoker.loop._rates import Rates, names_in
from stoker.loop._state import loss_of
from stoker.loop._tally import is_static
from stoker.loop._update import differentiate, flush
from stoker.program import Inputs, Plan, Verdict, copied, detached


class Mixed(NamedTuple):
    """A batch whose loss is to be shared with other targets."""

    batch: Any
    mix: Any


class Stations:
    """One batch through all stations of a fit."""

    __slots__ = (
        "_fit",
        "_grows",
        "_losses",
        "_made",
        "_modules",
        "_parameters",
        "_rates",
        "_wanted",
        "verdict",
    )

    def __init__(self, fit: Fit) -> None:
        self._fit = fit
        self.verdict = Verdict(fit.device)
        self._collect()
        self._losses: list[str] = [] if fit.supervised is None else ["loss"]  # that a step gives
        self._grows = not all(map(is_static, fit.train_metrics))  # some metric is brought up to date outside
        self._wanted = self._grows or fit.heard
        self._rates = Rates(fit.device)  # as tensors, where they change
        self._made = ""  # what the last run on the device made that was not there

    def _collect(self) -> None:
        fit, loss = self._fit, loss_of(self._fit)
        averaged = [] if fit.average is None else list(fit.average.model.modules())
        self._modules = [*fit.model.modules(), *averaged, *(() if loss is None else loss.modules())]
        self._parameters = named_parameters(fit.model)

    # --- running

    def run(self, given: Any) -> None:
        """Batch, forward, loss, gradients, update, metrics."""
        fit, ctx = self._fit, self._fit.ctx
        if isinstance(given, RowSelection):
            ctx.batch = given.gather()
        elif isinstance(given, Mixed):
            ctx.batch, ctx.loss_mix = given
        else:
            ctx.batch = given
        for each in asked(fit):
            differentiate(fit, each)
        if not ctx.accumulating:
            flush(fit)  # of an objective that this batch did not yield, and earlier ones of the window did
        if ctx.output is not None and not fit.refused:
            fit.tally.add(ctx.output, static=None if fit.verdict is None else True)
        if fit.applied and fit.moved and fit.average is not None:
            fit.average.update(None if fit.verdict is None else fit.verdict.allowed)

    @contextmanager
    def unread(self) -> Iterator[None]:
        """While it is open, no station reads a value."""
        fit = self._fit
        fit.verdict, fit.rates_held = self.verdict, self._rates.tensors
        try:
            yield
        finally:
            fit.verdict = fit.rates_held = None

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """The same, and what the optimizer has made meanwhile is undone."""
        fit = self._fit
        state, losses = [dict(rule) for rule in fit.optimizer.state_tensors()], set(fit.tally.losses)
        try:
            with self.unread():
                yield
        finally:
            self._losses = fit.tally.losses or self._losses
            self._made = "losses" if {*self._losses} != losses else ""
            if _keys(fit.optimizer.state_tensors()) != _keys(state):
                self._made = "state"
                fit.optimizer.replace_state(state)

    @property
    def exact(self) -> bool:
        """Whether another process has to come to the same bits."""
        return self._fit.saver is not None

    @property
    def begun(self) -> bool:
        """Whether an update has been applied."""
        return self._fit.ctx.update > 0

    def unsettled(self) -> str:
        """What the last run on the device has made that was not there before: "state" of the optimizer, "losses"."""
        made, self._made = self._made, ""
        return made

    def ready(self) -> None:
        """The sums as tensors, and this update's learning rates where the device finds them."""
        fit = self._fit
        self._losses = fit.tally.losses or self._losses
        fit.tally.as_tensors(self._losses)
        self.set_rates()

    def set_rates(self) -> None:
        """This update's learning rates, where they are tensors and have changed."""
        if not self._fit.steady:
            self._rates.set(self._fit.ctx.lr)

    def alone(self) -> bool:
        """Whether nobody looks between two batches, and this one's rates are those of the one before."""
        fit = self._fit
        unseen = not (self._wanted or fit.saver is not None)
        return unseen and (fit.steady or fit.ctx.lr == self._rates.last)

    def settle_in(self) -> None:
        """The optimizer's state away from the device and back: then it lies close together, in memory of its own."""
        settled_in(self._fit.optimizer)

    def rest(self) -> None:
        """Metrics whose state grows, with copies: what a program leaves is written over by its next run."""
        fit = self._fit
        if self._grows and fit.ctx.output is not None and not fit.refused:
            fit.tally.add(copied(fit.ctx.output), static=False)

    # --- what it reads and changes

    def kept(self) -> dict[str, Any]:
        """Sums, states and windows."""
        fit = self._fit
        return {
            "tally": fit.tally.kept(),
            "norms": list(fit.norms.values()),
            "windows": {part: self._held(window) for part, window in fit.accumulators.items()},
        }

    def _held(self, window: Accumulator) -> tuple[int, float | Tensor, dict[str, Tensor]]:
        """A window; where it is compiled, all open ones are alike: one program for all but its first and last batch."""
        count, weight, sums = window.held
        if not self._fit.settings.compile or count == 0:
            return count, weight, sums
        if not isinstance(weight, Tensor):
            weight = torch.full((), weight, dtype=torch.float64, device=self._fit.device)
        return 1, weight, sums

    def hold(self, kept: Mapping[str, Any], *, own: bool = True) -> None:
        """Other tensors in their place: a program's own, which are changed in place, or those that stood there."""
        fit = self._fit
        fit.tally.hold(kept["tally"], own=own)
        fit.norms = dict(zip(fit.norms, kept["norms"], strict=True))
        for part, held in kept["windows"].items():
            fit.accumulators[part].hold(held, self._parameters, fit.model)

    def inputs(self) -> Inputs:
        """Every tensor that a step writes in place, each once, and the rates."""
        return Inputs(list(self._written().values()), self._rates.all())

    def _written(self) -> dict[int, Tensor]:
        kept = self._fit.optimizer.state_tensors()
        states = [tensor for rule in kept for state in rule.values() for tensor in state.values() if tensor is not None]
        places = [table[name] for table, name in slots_in(self._modules)]
        return {id(tensor): tensor for tensor in (*places, *states, *self.verdict.tensors())}

    @contextmanager
    def lent(self, inputs: Inputs) -> Iterator[None]:
        """Stand-ins in the place of the real tensors, wherever stations find them."""
        fit, ctx = self._fit, self._fit.ctx
        stand_ins = dict(zip(self._written(), inputs.written, strict=True))
        said = ctx.batch, ctx.pred, ctx.output, ctx.loss, ctx.grads, ctx.accumulating
        rates, done = self._rates.tensors, (fit.applied, fit.refused, fit.mark)
        self._rates.tensors = self._rates.like(inputs.rates)
        try:
            with lent(fit, self._modules, self.verdict, stand_ins):
                parameters, self._parameters = self._parameters, named_parameters(fit.model)
                try:
                    yield
                finally:
                    self._parameters = parameters
        finally:
            self._rates.tensors, (fit.applied, fit.refused, fit.mark) = rates, done
            ctx.batch, ctx.pred, ctx.output, ctx.loss, ctx.grads, ctx.accumulating = said

    def turn(self) -> Hashable:
        """Whether the window stays open, and rates that are numbers."""
        fit, lr = self._fit, self._fit.ctx.lr
        rate = None if not fit.steady else tuple(lr.values()) if isinstance(lr, Mapping) else lr
        return fit.ctx.accumulating, rate, None if fit.steady else names_in(lr), fit.model.training

    def pins(self) -> Any:
        """Attributes of the modules and the identity of every tensor that is written in place."""
        return pins_of(self._modules, self._written().values(), *self._others())

    def surroundings(self) -> Surroundings:
        """The modules and the generators around a step."""
        return Surroundings(self._fit.model, loss_of(self._fit), self._others())

    def _others(self) -> list[Any]:
        """What a step calls and is no module: a loss that is a function, a transform of batches."""
        step = self._fit.supervised
        loss = None if step is None or isinstance(step.loss, nn.Module) else step.loss
        return [each for each in (loss, self._fit.train.batch_transform) if each is not None]

    def obstacle(self) -> str:
        """Why the step can't be a program any more: modules are looked at anew, and somebody may listen to them."""
        self._collect()
        return next(iter(heard(self._fit.model)), "")

    # --- what it tells

    def said(self) -> tuple[Any, ...]:
        """What was done, and the outputs where anybody may look at them."""
        fit, ctx = self._fit, self._fit.ctx
        outputs = None
        if self._wanted:
            outputs = detached((ctx.batch, ctx.pred, ctx.output, ctx.loss))
        return fit.applied, ctx.accumulating, outputs

    def forget(self) -> None:
        """Lets go of the outputs of the last run, and of their graph."""
        ctx = self._fit.ctx
        ctx.pred = ctx.output = ctx.loss = ctx.grads = None

    def begin(self, said: tuple[Any, ...]) -> None:
        """A run that changes the weights: what was marked before it is no whole state any more."""
        if said is None or said[0]:
            self._fit.mark = None

    def say(self, said: tuple[Any, ...]) -> None:
        """As after a run of the stations themselves."""
        fit, ctx = self._fit, self._fit.ctx
        fit.applied, ctx.accumulating, outputs = said
        if outputs is not None:
            outputs = copied(outputs) if fit.heard and fit.device.type != "cpu" else outputs
            ctx.batch, ctx.pred, ctx.output, ctx.loss = outputs
        if fit.applied and fit.device.type == "cpu":
            fit.applied = not self.verdict.empty.item()  # a batch of nothing is no update

    def place(self) -> tuple[Any, ...]:
        """Where the loop stands."""
        ctx = self._fit.ctx
        return ctx.epoch, ctx.batch_number, ctx.update, ctx.lr, ctx.accumulating, ctx.is_padding

    def left_at(self, place: tuple[Any, ...]) -> None:
        """The last whole state is that before a run that was not finite, wherever the loop has come since."""
        mark_before(self._fit, *place[:2])

    def fail(self, given: Any, place: tuple[Any, ...]) -> None:
        """Runs a batch again whose numbers were not finite, where they are looked at: it raises."""
        fit, ctx = self._fit, self._fit.ctx
        self.forget()
        self.left_at(place)
        ctx.epoch, ctx.batch_number, ctx.update, ctx.lr, ctx.accumulating, ctx.is_padding = place
        fit.applied = fit.refused = False
        fit.accumulators.clear()
        fit.searching = True
        self.run(given)
        fit.common = fit.shared is not None  # every rank is here
        raise NotFinite(
            f"the loss or a gradient was not finite at epoch {place[0]}, batch {place[1]}; run again for the search, "
            "they were: something in the step does not compute the same twice"
        )

    def tell(self, text: str) -> None:
        """A note in the record and the console."""
        self._fit.ctx.note(text)

    def changed(self, plan: Plan) -> None:
        """What was planned has turned out otherwise: told loudly where it was asked for."""
        if self._fit.settings.compile:
            self._fit.ctx.warn(plan.complaint)


def _keys(state: list[dict[str, Any]]) -> list[dict[str, list[str]]]:
    return [{name: [key for key in own if own[key] is not None] for name, own in rule.items()} for rule in state]
