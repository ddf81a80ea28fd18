"""A step as one compiled program: traced through Python as it runs, optimizer and metrics included."""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stoker._tree import OpaqueValue, Structure, flatten, unflatten
from stoker.engine._batch import Batch
from stoker.engine._replayable import CannotReplay, pretend_compiling
from stoker.engine._step import LocalGradients, StepResult, TrainStep
from stoker.engine.executors._dropout import fast_dropout
from stoker.engine.executors._plan import Plan
from stoker.engine.executors._replay import FlatBatch, NewState, Program, Replay, detach_outputs
from stoker.engine.executors._small_convolutions import (
    adaptive_pool_backward,
    convolution,
    convolution_backward,
)

_INDUCTOR_OPTIONS = {
    "size_asserts": False,  # the tensors are always the same ones
    "triton.cudagraphs": False,  # the graph around the program is ours
    "loop_ordering_after_fusion": False,  # fails an assertion if an optimizer updates all parameters at once
}
_aten = torch.ops.aten
_REPLACEMENTS: dict[str, dict[Any, Callable[..., Any]]] = {  # faster forms of torch's operations, by device
    "cpu": {_aten.native_dropout.default: fast_dropout},
    "cuda": {
        _aten.convolution.default: convolution,
        _aten.convolution_backward.default: convolution_backward,
        _aten._adaptive_avg_pool2d_backward.default: adaptive_pool_backward,
    },
}

CompiledFunction = Callable[[list[Tensor]], Sequence[Tensor]]  # takes all inputs in a list that it may empty


class SubstituteTensors(TorchDispatchMode):
    """Replaces tensors in every operation by others: the step's own tensors by the inputs of a trace.

    The step runs on its own modules, optimizer and totals, and nothing in it has to know that it is traced. autograd
    still sees the real parameters, so `backward` finds its leaves.
    """

    def __init__(self, table: dict[int, Tensor]) -> None:
        super().__init__()
        self._table = table

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = [self._substitute(each) for each in args]
        return func(*args, **{name: self._substitute(each) for name, each in (kwargs or {}).items()})

    def _substitute(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._table.get(id(value), value)
        if isinstance(value, list | tuple):
            return [self._substitute(each) for each in value]
        return value


@dataclass(slots=True)
class Trace:
    """A step as a graph of tensor operations."""

    graph: torch.fx.GraphModule
    fixed: list[Tensor]  # the inputs that are the same in every run; the tensors of the batch come after them
    outputs: Structure  # of what the step returns
    answer: Any  # what it returned, with tensors that mean nothing any more

    def rebuild(self, tensors: Sequence[Tensor]) -> Any:
        """What the step returns, with the tensors that a run has computed."""
        if not tensors and isinstance(self.answer, StepResult):  # nobody looks at the outputs
            return StepResult(self.answer.updated, self.answer.skipped)
        return _from_tree(self.answer, unflatten(self.outputs, tensors))


def trace(step: TrainStep, flat: FlatBatch, run: Callable[[Batch], Any]) -> Trace:
    """Traces `run(batch)`. Nothing is computed, and no tensor is written."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch.fx.experimental.proxy_tensor import make_fx

    fixed = step.tensors()
    state = step.host_state()
    found: dict[str, Any] = {}

    def function(*inputs: Tensor) -> list[Tensor]:
        table = {id(real): traced for real, traced in zip(fixed, inputs, strict=False)}
        with SubstituteTensors(table), torch.enable_grad():
            answer = run(flat.with_tensors(inputs[len(fixed) :]))
            step.flags.end_step()
        tensors, found["outputs"] = flatten(_as_tree(answer))
        found["answer"] = answer
        return tensors

    replacements = _REPLACEMENTS.get(step.device.type)
    try:
        with (
            torch.no_grad(),
            enable_python_dispatcher(),
            torch.autograd.set_multithreading_enabled(False),
            pretend_compiling(),
        ):
            graph = make_fx(function, replacements, tracing_mode="fake")(*fixed, *flat.tensors)
    except OpaqueValue as error:
        raise CannotReplay(f"the step returns a {error}, which can't be separated into tensors") from None
    if [id(each) for each in state.tensors()] != [id(each) for each in step.host_state().tensors()]:
        raise NewState
    if any(node.target is _aten._local_scalar_dense.default for node in graph.graph.nodes):
        raise CannotReplay(
            "the step reads a value on the host, in the optimizer or in your own code (.item(), float())"
        )
    return Trace(graph, fixed, **found)


def _as_tree(answer: StepResult | LocalGradients) -> Any:
    if isinstance(answer, LocalGradients):
        return answer.loss, answer.weight, answer.tensors, _as_tree(answer.result)
    return answer.loss, answer.batch, answer.pred, answer.output


def _from_tree(answer: StepResult | LocalGradients, tree: Any) -> Any:
    if isinstance(answer, LocalGradients):
        loss, weight, tensors, result = tree
        return LocalGradients(loss, weight, tensors, _from_tree(answer.result, result))
    loss, batch, pred, output = tree
    return replace(answer, loss=loss, batch=batch, pred=pred, output=output)


def compile_graph(graph: torch.fx.GraphModule, inputs: list[Tensor], *, exact: bool) -> CompiledFunction:
    """Compiles with inductor. `exact`: kernels are not chosen by their time, which may differ in the next process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's warnings about torch
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    inner_functions: list[Any] = []

    def compile_inner(traced: torch.fx.GraphModule, examples: Any, **settings: Any) -> Any:
        compiled: Any = compile_fx_inner(traced, examples, **settings)
        inner_functions.append(compiled.current_callable if _count_ends(traced) == _count_ends(graph) else None)
        return compiled

    # An input that requires gradients would be written outside of the program, by torch's wrapper.
    plain = [tensor.detach() for tensor in inputs]
    options: dict[str, Any] = {**_INDUCTOR_OPTIONS, "deterministic": exact}
    if inputs[0].device.type == "cpu":
        options["layout_optimization"] = False  # channels-last convolutions are slower with few threads
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole: Any = compile_fx(graph, plain, inner_compile=compile_inner, config_patches=options)
    # torch's wrapper checks its inputs, which takes as long as a small program; ours never change.
    inner = inner_functions[0] if len(inner_functions) == 1 else None
    return inner if inner is not None else lambda tensors: whole(*tensors)


def _count_ends(graph: torch.fx.GraphModule) -> tuple[int, int]:
    """The numbers of inputs and outputs of a graph."""
    inputs = sum(node.op == "placeholder" for node in graph.graph.nodes)
    outputs = next(node.args[0] for node in reversed(graph.graph.nodes) if node.op == "output")
    return inputs, len(outputs) if isinstance(outputs, list | tuple) else 1


def trace_and_compile(
    step: TrainStep, plan: Plan, flat: FlatBatch, run: Callable[[Batch], Any], *, exact: bool
) -> tuple[Trace, CompiledFunction]:
    """Traces and compiles a step, and tells how long that took."""
    traced = trace(step, flat, run)
    again = " for another kind of batch" if plan.notes else ""
    step.ctx.note(f"compiling the training step{again}: this takes a while, and less the next time")
    started = time.monotonic()
    compiled = compile_graph(traced.graph, [*traced.fixed, *flat.tensors], exact=exact)
    seconds = time.monotonic() - started
    plan.notes.append(f"compiled in {seconds:.1f} s{again}; nothing is compiled again while shapes stay the same")
    step.ctx.note(f"compiled in {seconds:.1f} s")
    return traced, compiled


class Compiled(Replay):
    """Calls a compiled program for each step, and checks at once whether its values were finite.

    If the whole step can't be compiled, or the plan says so, only the part up to the gradients is.
    """

    def __init__(self, step: TrainStep, plan: Plan, *, exact: bool) -> None:
        super().__init__(step, plan, exact=exact)
        self._has_unreported_fall_back = False  # the fall back is reported once the smaller program works

    @property
    def _only_gradients(self) -> bool:
        return self.plan.mode == "gradient"

    def _set_rates(self, lr: Any) -> None:
        if not self._only_gradients:
            super()._set_rates(lr)

    def _batch_fingerprint(self, batch: Batch, lr: Any) -> Any:
        if self._only_gradients:
            return self._step.state.model.training, batch.is_padding
        return super()._batch_fingerprint(batch, lr)

    def _record(self, flat: FlatBatch, lr: Any) -> Program:
        step = self._step

        def run(batch: Batch) -> Any:
            if self._only_gradients:
                computed = step.run_until_gradients(batch)
                result = detach_outputs(computed.result, wanted=step.wants_output)
                return computed._replace(result=result)
            return detach_outputs(step.run(batch, lr, sync=False), wanted=step.wants_output)

        traced, compiled = trace_and_compile(step, self.plan, flat, run, exact=self._exact)

        def launch(tensors: list[Tensor]) -> Any:
            with torch.no_grad():
                outputs = compiled([*traced.fixed, *tensors]) or ()
            return traced.rebuild(outputs)

        return Program(launch)

    def _make(self, flat: FlatBatch, lr: Any) -> Program | None:
        program = super()._make(flat, lr)
        if program is not None and self._has_unreported_fall_back:
            self._has_unreported_fall_back = False
            self._report_fall_back()
        return program

    def _disable(self, reason: str) -> None:
        if self._only_gradients or self._step.device.type != "cpu":
            super()._disable(reason)
            return
        self.plan.fall_back("gradient", reason)
        self._has_unreported_fall_back = True
        self._start_over()

    def _apply_host_effects(self, program: Program, batch: Batch) -> None:
        if not self._only_gradients:
            super()._apply_host_effects(program, batch)
            return
        self._log.add(batch)
        self._step.broadcast_buffers()  # every rank starts from the first one's running statistics

    def _after_launch(self) -> None:
        if not self._only_gradients and self._step.flags.found_nonfinite:
            self._last = None
            self._log.raise_first_bad()

    def _complete(self, answer: Any, batch: Batch, lr: Any) -> StepResult:
        step = self._step
        if isinstance(answer, LocalGradients):
            return step.apply_gradients(answer, batch, lr)
        if answer.updated and step.flags.weightless.item():
            answer.updated = False  # a batch of weight 0 is not an update
        return answer
