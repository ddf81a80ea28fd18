"""A step as one compiled program: traced through Python as it runs, optimizer and metrics included."""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stoker._tree import OpaqueValue, Structure, flatten, unflatten
from stoker.engine._batch import Batch
from stoker.engine._plan import Plan
from stoker.engine._replayable import CannotReplay, pretend_compiling
from stoker.engine._step import LocalGradients, StepResult, TrainStep
from stoker.engine._undo import undo_if_out_of_memory
from stoker.engine.executors._dropout import fast_dropout
from stoker.engine.executors._executor import Executor, SpanResult
from stoker.engine.executors._programs import (
    FlatBatch,
    HostState,
    NewState,
    Program,
    ProgramCache,
    detach_outputs,
    step_tensors,
)
from stoker.steps import SupervisedOutput

_INDUCTOR_OPTIONS = {
    "size_asserts": False,  # the tensors are always the same ones
    "triton.cudagraphs": False,  # the graph around the program is ours
    "loop_ordering_after_fusion": False,  # fails an assertion if an optimizer updates all parameters at once
}
_LONGEST_SPAN = 32  # updates, so that a signal is noticed soon
_SMALL_MODEL = 2**18  # elements of parameters and state; steps of larger models take longer than what surrounds them
_aten = torch.ops.aten
_ON_CPU = {_aten.native_dropout.default: fast_dropout}  # faster forms of torch's operations

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
        args = self._substitute(args)
        return func(*args, **{name: self._substitute(value) for name, value in (kwargs or {}).items()})

    def _substitute(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._table.get(id(value), value)
        if isinstance(value, list | tuple):
            return [self._substitute(part) for part in value]
        return value


@dataclass(slots=True)
class Trace:
    """A step as a graph of tensor operations."""

    graph: torch.fx.GraphModule
    fixed: list[Tensor]  # the inputs that are the same in every run; the tensors of the batch come after them
    outputs: Structure  # of what the step returns
    result: Any  # what it returned in the trace; its tensors have no values

    def rebuild(self, tensors: Sequence[Tensor]) -> Any:
        """What the step returns, with the tensors that a run has computed."""
        if not tensors and isinstance(self.result, StepResult):  # nobody looks at the outputs
            return StepResult(updated=self.result.updated, moved=self.result.moved, skipped=self.result.skipped)
        return _from_tree(self.result, unflatten(self.outputs, tensors))


def trace(step: TrainStep, flat: FlatBatch, lr: Any, *, whole: bool) -> Trace:
    """Traces a step, or its part up to the gradients. Nothing is computed, and no tensor is written."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch.fx.experimental.proxy_tensor import make_fx

    fixed = step_tensors(step, whole=whole)
    before = HostState(step).tensor_ids()
    found: dict[str, Any] = {}

    def function(*inputs: Tensor) -> list[Tensor]:
        table = {id(real): traced for real, traced in zip(fixed, inputs, strict=False)}
        with SubstituteTensors(table), torch.enable_grad():
            result = _run(step, flat.with_tensors(inputs[len(fixed) :]), lr, whole=whole)
        tensors, found["outputs"] = flatten(_as_tree(result))
        found["result"] = result
        return tensors

    replacements = _ON_CPU if step.device.type == "cpu" else {}
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
    if before != HostState(step).tensor_ids():
        raise NewState
    for node in graph.graph.nodes:
        if node.target is _aten.view.default:  # inductor may give the tensor other strides, which allow no such view
            node.target = _aten.reshape.default
    if any(node.target is _aten._local_scalar_dense.default for node in graph.graph.nodes):
        raise CannotReplay(
            "the step reads a value on the host, in the optimizer or in your own code (.item(), float())"
        )
    return Trace(graph, fixed, **found)


def _run(step: TrainStep, batch: Batch, lr: Any, *, whole: bool) -> StepResult | LocalGradients:
    if not whole:
        computed = step.compute_local_gradients(batch)
        return computed._replace(result=detach_outputs(computed.result, wanted=step.wants_output))
    result = detach_outputs(step.run(batch, lr, step.device_guard), wanted=step.wants_output)
    step.device_guard.end_step()
    return result


def _as_tree(result: StepResult | LocalGradients) -> Any:
    """The tensors of what a step returns, and plain values; a loss function among its outputs is left out."""
    if isinstance(result, LocalGradients):
        return result.loss, result.weight, result.tensors, _as_tree(result.result)
    output = result.output
    if isinstance(output, SupervisedOutput):
        output = replace(output, loss_function=None)
    return result.loss, result.batch, result.pred, output


def _from_tree(result: StepResult | LocalGradients, tree: Any) -> Any:
    """A result like the traced one, with the values of a tree that is like `_as_tree` of it."""
    if isinstance(result, LocalGradients):
        loss, weight, tensors, inner = tree
        return LocalGradients(loss, weight, tensors, _from_tree(result.result, inner))
    loss, batch, pred, output = tree
    if isinstance(result.output, SupervisedOutput):
        output.loss_function = result.output.loss_function
    return replace(result, loss=loss, batch=batch, pred=pred, output=output)


def compile_graph(graph: torch.fx.GraphModule, inputs: list[Tensor], *, is_saved: bool) -> CompiledFunction:
    """Compiles with inductor; `is_saved`: not by timing kernels, whose choice may differ in the next process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's warnings about torch
        from torch._functorch import config as functorch_config
        from torch._guards import TracingContext, tracing
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner
        from torch._subclasses import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # Without an environment of shapes inductor leaves its cache on disk alone. Ours stays empty.
    shapes = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    fake_mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    inner_functions: list[Any] = []

    def compile_inner(traced: torch.fx.GraphModule, examples: Any, **settings: Any) -> Any:
        compiled: Any = compile_fx_inner(traced, examples, **settings)
        inner_functions.append(compiled.current_callable if _count_ends(traced) == _count_ends(graph) else None)
        return compiled

    # An input that requires gradients would be written outside of the program, by torch's wrapper.
    plain = [fake_mode.from_tensor(tensor.detach(), static_shapes=True) for tensor in inputs]
    options: dict[str, Any] = {**_INDUCTOR_OPTIONS, "deterministic": is_saved}
    if inputs[0].device.type == "cpu":
        options["layout_optimization"] = False  # channels-last convolutions are slower with few threads
    # The other cache, of torch's wrapper, would not call `compile_inner`.
    no_wrapper_cache = functorch_config.patch(enable_autograd_cache=False)
    with torch.no_grad(), tracing(TracingContext(fake_mode)), no_wrapper_cache, warnings.catch_warnings():
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
    step: TrainStep, plan: Plan, flat: FlatBatch, lr: Any, *, whole: bool, is_saved: bool
) -> tuple[Trace, CompiledFunction]:
    """Traces and compiles a step, and tells how long that took."""
    traced = trace(step, flat, lr, whole=whole)
    again = " for another kind of batch" if any(note.startswith("compiled in") for note in plan.notes) else ""
    step.ctx.note(f"compiling the training step{again}: this takes a while, and less the next time")
    started = time.monotonic()
    compiled = compile_graph(traced.graph, [*traced.fixed, *flat.tensors], is_saved=is_saved)
    # One call loads and tunes the kernels, and shows that they work; nothing of the training moves.
    with torch.no_grad(), torch.random.fork_rng([step.device] if step.device.type == "cuda" else []):
        batch = [tensor.clone() for tensor in flat.tensors[: flat.changing]]
        with _restore_tensors(traced.fixed):
            compiled([*traced.fixed, *batch, *flat.tensors[flat.changing :]])
    seconds = time.monotonic() - started
    plan.notes.append(f"compiled in {seconds:.1f} s{again}; nothing is compiled again while shapes stay the same")
    step.ctx.note(f"compiled in {seconds:.1f} s")
    return traced, compiled


@contextmanager
def _restore_tensors(tensors: list[Tensor]) -> Iterator[None]:
    """Restores the values afterwards, from copies on the host: a GPU may have no room for two optimizer states."""
    writable = [tensor for tensor in tensors if 0 not in tensor.stride()]  # an expanded tensor can't be written
    before = [tensor.detach().to("cpu", copy=True) for tensor in writable]
    try:
        yield
    finally:
        for tensor, value in zip(writable, before, strict=True):
            tensor.data.copy_(value)  # .data: autograd need not know, since nothing has changed


class Compiled(Executor):
    """Calls a compiled program for each step, and checks at once whether its values were finite.

    If the whole step can't be compiled, or the plan says so, only the part up to the gradients is. `is_saved`: a
    resumed run has to give the same bits.
    """

    def __init__(self, step: TrainStep, plan: Plan, *, is_saved: bool) -> None:
        super().__init__(step)
        self._plan, self._is_saved = plan, is_saved
        self._programs = ProgramCache(step, plan, self._compile)
        self._window: list[Program] = []  # programs of the batches so far in the open accumulation window
        self._windows: dict[int, list[Program]] = {}  # the programs of a whole update, by the id of the first

    def run(self, batch: Batch, lr: Any) -> StepResult:
        """Runs one batch by its program; eagerly if it has none."""
        step = self._step
        found = self._find(batch, lr)
        if found is None:
            self._window.clear()
            return self._programs.run_eagerly(batch, lr)
        program, tensors = found
        if self._plan.ends_with_gradients:
            if step.synchronizes_buffers(batch):
                step.synchronize_buffers()  # every rank starts from the first one's running statistics
            with undo_if_out_of_memory(step.state) if step.settings.micro_batch == "auto" else nullcontext():
                local = program.launch(tensors)
            return step.apply_local_gradients(local, batch, lr, step.host_guard)
        if self._is_saved:
            step.note_weights_changed()
        for change in program.window_changes:
            change.apply(step)
        result = program.launch(tensors)
        if step.device_guard.found_nonfinite:
            self._diagnose(batch)
        if result.updated and step.device_guard.weightless.item():
            result.updated = False  # a batch of weight 0 is not an update
        self._note_program(program, batch, result)
        return result

    def run_span(self, first: Batch, rows: Tensor, rates: Sequence[Any]) -> SpanResult:
        """Calls the programs of an update again and again, and reads after each call whether its values were finite.

        The programs of a window begin and end with empty accumulators, so `window_changes` are left out.
        """
        step, guard = self._step, self._step.device_guard
        found = None if step.wants_output else self._find(first, rates[0])
        window = None if found is None else self._windows.get(id(found[0]))
        if window is None:  # the next batches run one by one until their programs are known
            self.longest_span = 1
            return SpanResult(0, 0)
        if self._is_saved:
            step.note_weights_changed()
        nonfinite, weightless, accumulate = guard.nonfinite.numpy(), guard.weightless.numpy(), len(window)
        rate_indices = [_index_of(rate, window[0].fixed) for rate in step.rates.all()]
        stacked = None if all(each == rates[0] for each in rates) else step.rates.stack(rates)
        batches = updates = 0
        with torch.no_grad():
            for own in rows.unbind():
                program = window[batches % accumulate]
                inputs = [*program.fixed, own, *program.columns]
                if stacked is not None:
                    for index, rate in zip(rate_indices, stacked[updates], strict=True):
                        inputs[index] = rate
                assert program.function is not None
                program.function(inputs)
                batches += 1
                if nonfinite.item() != 0:
                    break
                if batches % accumulate == 0:
                    if weightless.item():
                        break  # it is not an update, so that later ones have other learning rates
                    updates += 1
        if nonfinite.item() != 0:
            self._diagnose(first.later(rows[batches - 1], batches - 1))
        step.rates.set(rates[max(updates - 1, 0)])
        return SpanResult(batches, updates)

    def _diagnose(self, batch: Batch) -> NoReturn:
        self._step.device_guard.clear()
        self._programs.invalidate()
        self._step.diagnose(batch)

    def _note_program(self, program: Program, batch: Batch, result: StepResult) -> None:
        """Remembers which programs make an update, so that the next updates can run in a span (`longest_span`)."""
        if self._step.settings.micro_batch is not None or self._step.wants_output:
            return
        self._window.append(program)
        if not batch.closes_window:
            return
        window, self._window = self._window, []
        first, accumulate = window[0], self._step.settings.accumulate
        is_small = sum(map(Tensor.numel, first.fixed)) <= _SMALL_MODEL
        is_alike = all(each.source is first.source and each.size == first.size for each in window)
        if result.updated and is_small and first.source is not None and is_alike and len(window) == accumulate:
            self._windows[id(first)] = window
            self.longest_span = _LONGEST_SPAN

    def invalidate(self) -> None:
        """Looks before the next step whether its program still fits."""
        self._window.clear()
        self._step.refresh()
        self._programs.invalidate()

    def free_memory(self) -> bool:
        """Looks for programs again: undoing a step has replaced tensors that they write."""
        self._windows.clear()
        self.invalidate()
        return super().free_memory()

    def close(self) -> None:
        """Frees the programs."""
        self._windows.clear()
        self._programs.clear()

    def _find(self, batch: Batch, lr: Any) -> tuple[Program, list[Tensor]] | None:
        """The program for a batch; if the whole step can't be compiled, of its part up to the gradients."""
        try:
            return self._programs.find(batch, lr)
        except CannotReplay as error:
            reason = str(error)
        if self._plan.ends_with_gradients or self._step.device.type != "cpu":
            self._programs.disable(reason)
            return None
        self._plan.fall_back("compiled_backward", reason)
        self._programs.clear()
        self.longest_span = 1
        found = self._find(batch, lr)
        if not self._programs.is_disabled:
            self._programs.report_fall_back()
        return found

    def _compile(self, flat: FlatBatch, lr: Any) -> Program:
        whole = not self._plan.ends_with_gradients
        traced, compiled = trace_and_compile(self._step, self._plan, flat, lr, whole=whole, is_saved=self._is_saved)

        def launch(tensors: list[Tensor]) -> Any:
            with torch.no_grad():
                return traced.rebuild(compiled([*traced.fixed, *tensors]) or ())

        return Program(launch, function=compiled, fixed=traced.fixed)


def _index_of(tensor: Tensor, tensors: Sequence[Tensor]) -> int:
    return next(index for index, each in enumerate(tensors) if each is tensor)
