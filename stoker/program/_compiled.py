"""A step as one compiled program: traced through the stations as they run, optimizer and metrics included."""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stoker.program._compiling import compiling
from stoker.program._convolutions import convolved, convolved_back, pooled_back
from stoker.program._made import Batch, Left, Made, NotYet
from stoker.program._masks import dropped
from stoker.program._plan import Plan
from stoker.program._reason import Cannot
from stoker.program._repeated import Repeated
from stoker.program._stations import Inputs, Stations
from stoker.program._tree import Opaque, Shape, matched, taken_apart, together, written_back

_OPTIONS = {
    "size_asserts": False,  # the tensors are always the same ones
    "triton.cudagraphs": False,  # the graph around it is ours
    "loop_ordering_after_fusion": False,  # asserts what does not hold, where an optimizer takes all parameters at once
}

_aten = torch.ops.aten
_OTHERWISE: dict[str, dict[Any, Callable[..., Any]]] = {  # than torch does it, by device
    "cpu": {_aten.native_dropout.default: dropped},
    "cuda": {
        _aten.convolution.default: convolved,
        _aten.convolution_backward.default: convolved_back,
        _aten._adaptive_avg_pool2d_backward.default: pooled_back,
    },
}

Program = Callable[[list[Tensor]], Sequence[Tensor]]  # takes all inputs in a list that is its own


@dataclass(slots=True)
class Trace:
    """A step as a graph of operations on tensors, and what is what among its inputs and outputs."""

    graph: torch.fx.GraphModule
    fixed: list[Tensor]  # the inputs that are the same in every run, before those of the batch
    after: Shape  # of the kept values that it leaves
    said: Shape
    left: int  # how many of its outputs are kept values; the others are said
    again: bool


def traced(stations: Stations, batch: Batch, kept: Shape, before: list[Tensor]) -> Trace:
    """What the stations do with such a batch, as a graph; nothing is computed, and all is as it was."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch.fx.experimental.proxy_tensor import make_fx

    inputs = stations.inputs()
    fixed = [*inputs.written, *inputs.rates, *before]
    counts = len(inputs.written), len(inputs.rates), len(before), len(batch.tensors)
    found: dict[str, Any] = {}

    def step(*flat: Tensor) -> list[Tensor]:
        written, rates, own, tensors = _cut(flat, counts)
        after, said = list[Tensor](), list[Tensor]()
        with stations.lent(Inputs(written, rates)), stations.on_device():
            stations.hold(together(kept, iter(own)))
            with torch.enable_grad():
                stations.run(together(batch.shape, iter(tensors)))
            stations.verdict.end()
            found["after"] = taken_apart(stations.kept(), after)
            found["again"] = matched(own, after, (kept, found["after"]))
            if found["again"]:
                written_back(own, after)
                after = []
            found["left"] = len(after)
            found["said"] = taken_apart(stations.said(), said)
        return [*after, *said]

    try:
        with torch.no_grad(), enable_python_dispatcher(), torch.autograd.set_multithreading_enabled(False), compiling():
            otherwise = _OTHERWISE.get(stations.verdict.poison.device.type)
            graph = make_fx(step, otherwise, tracing_mode="fake")(*fixed, *batch.tensors)
    except Opaque as error:
        raise Cannot(f"the step gives a {error}, which can't be taken apart into tensors") from None
    if made := stations.unsettled():
        raise NotYet(made)
    if any(node.target is torch.ops.aten._local_scalar_dense.default for node in graph.graph.nodes):
        raise Cannot("the step reads a value on the host, in the optimizer or in your own code (.item(), float())")
    return Trace(graph, fixed, **found)


def _compiled(graph: torch.fx.GraphModule, inputs: list[Tensor], *, exact: bool) -> Program:
    """The program without what torch wraps around it: nothing here needs its guards, which cost as much as it does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about torch
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    inside: list[Any] = []

    def inner(traced: torch.fx.GraphModule, examples: Any, **settings: Any) -> Any:
        found: Any = compile_fx_inner(traced, examples, **settings)
        inside.append(found.current_callable if _ends(traced) == _ends(graph) else None)
        return found

    # What requires gradients would be written to outside of the program, by torch's wrapper.
    plain = [tensor.detach() for tensor in inputs]
    # Kernels that are chosen by their time may be others in the next process, and add in another order.
    options: dict[str, Any] = {**_OPTIONS, "deterministic": exact}
    if inputs[0].device.type == "cpu":
        options["layout_optimization"] = False  # makes convolutions channels-last: slower, where threads are few
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole: Any = compile_fx(graph, plain, inner_compile=inner, config_patches=options)
    bare = inside[0] if len(inside) == 1 else None
    return bare if bare is not None else lambda tensors: whole(*tensors)


def _ends(graph: torch.fx.GraphModule) -> tuple[int, int]:
    """How many inputs and outputs a graph has; a wrapper is needed where it has more than it was traced with."""
    given = sum(node.op == "placeholder" for node in graph.graph.nodes)
    found = next(node.args[0] for node in reversed(graph.graph.nodes) if node.op == "output")
    return given, len(found) if isinstance(found, list | tuple) else 1


def _cut(flat: Sequence[Tensor], counts: Sequence[int]) -> list[list[Tensor]]:
    parts: list[list[Tensor]] = []
    start = 0
    for count in counts:
        parts.append(list(flat[start : start + count]))
        start += count
    return parts


class Programs:
    """Compiles steps."""

    __slots__ = ("_plan",)

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def compiled(self, stations: Stations, batch: Batch, kept: Shape, before: list[Tensor]) -> tuple[Trace, Program]:
        """The trace of a step, and the program that it became."""
        trace = traced(stations, batch, kept, before)
        again = "" if not self._plan.notes else " for another kind of batch"
        stations.tell(f"compiling the training step{again}: this takes a while, and less the next time")
        began = time.monotonic()
        program = _compiled(trace.graph, [*trace.fixed, *batch.tensors], exact=stations.exact)
        seconds = time.monotonic() - began
        self._plan.notes.append(f"compiled in {seconds:.1f} s{again}; nothing is compiled again while shapes stay")
        stations.tell(f"compiled in {seconds:.1f} s")
        return trace, program

    def prepared(self, stations: Stations, batch: Batch, kept: Shape, before: list[Tensor]) -> Callable[..., Left]:
        """A function that calls the program once, ready to be recorded: its kernels are loaded and tuned."""
        trace, program = self.compiled(stations, batch, kept, before)
        random = torch.cuda.get_rng_state(batch.tensors[0].device)
        with torch.no_grad():  # on copies: nothing of the training moves on
            program([*(tensor.clone() for tensor in trace.fixed), *batch.tensors])
        torch.cuda.set_rng_state(random, batch.tensors[0].device)

        def record(stations: Stations, batch: Batch, kept: Shape, before: list[Tensor]) -> Left:
            with torch.no_grad():
                found = program([*trace.fixed, *batch.tensors]) or ()
            after = before if trace.again else list(found[: trace.left])
            return Left(trace.after, after, together(trace.said, iter(found[trace.left :])), trace.again)

        return record

    def make(self, stations: Stations, batch: Batch, kept: Shape, before: list[Tensor]) -> Made:
        """A step whose every launch is one call of the program."""
        trace, program = self.compiled(stations, batch, kept, before)
        fixed, left = trace.fixed, trace.left

        def launch(tensors: list[Tensor]) -> None:
            with torch.no_grad():
                found = program([*fixed, *tensors])
            if found:
                made.after = (trace.after, list(found[:left]))
                made.said = together(trace.said, iter(found[left:]))

        said = together(trace.said, iter(())) if not _places(trace.said) else None
        made = Made(launch, before, (trace.after, before), said, trace.again)
        return made


def _places(shape: Shape) -> int:
    return int(shape.kind is Tensor) + sum(map(_places, shape.parts))


class Compiled(Repeated):
    """Calls compiled programs, and looks at once how each run went.

    Where all stations can't be one program, `narrower` gives those up to the gradients, which perhaps can.
    """

    __slots__ = ("_narrower", "_untold")

    def __init__(self, stations: Stations, plan: Plan, *, narrower: Callable[[], Stations] | None = None) -> None:
        super().__init__(stations, plan, Programs(plan))
        self._narrower, self._untold = narrower, False

    def settle(self) -> None:
        """Nothing is under way."""

    def _make(self, batch: Batch, kept: Shape, leaves: list[Tensor]) -> Made | None:
        made = super()._make(batch, kept, leaves)
        if made is not None and self._untold:
            self._untold = False
            self._stations.changed(self.plan)
        return made

    def _give_up(self, why: str) -> None:
        if self._narrower is None:
            super()._give_up(why)
            return
        self._stations, self._narrower, self._untold = self._narrower(), None, True
        self.plan.narrow("gradient", why)  # told when it has turned out so
        self._start_anew()

    def _after_launch(self) -> None:
        if self._stations.verdict.halted:
            self._fail()
