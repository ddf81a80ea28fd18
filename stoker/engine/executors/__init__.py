"""How the training step runs: eagerly, recorded in CUDA graphs, or compiled.

`Executor` says what an executor does. All executors do the same to the same tensors, up to rounding in compiled
code. `CudaGraph` and `Compiled` replay steps: they look up the program for a batch in a `ProgramCache`, which makes a
missing one. A program may be replayed while `step_tensors`, the tensors that it refers to, are the same ones, and
`fingerprint_step` shows that nothing has changed that the step's Python depends on.

| `plan.mode`         | CPU        | GPU         |
|---------------------|------------|-------------|
| `eager`             | `Eager`    | `Eager`, or `DeferredEager` with several processes |
| `captured`          | –          | `CudaGraph` |
| `compiled`          | `Compiled` | `CudaGraph` of the compiled program |
| `compiled_backward` | `Compiled` | `Compiled` |
"""

import torch

from stoker.engine._plan import Plan
from stoker.engine._step import TrainStep
from stoker.engine.executors._executor import DeferredEager, Eager, Executor, SpanResult

__all__ = ["Executor", "SpanResult", "make_executor"]


def make_executor(step: TrainStep, plan: Plan, device: torch.device, *, is_saved: bool) -> Executor:
    """The executor for a plan. `is_saved`: the run is saved, and a resumed one has to give the same bits."""
    if plan.is_eager:
        return DeferredEager(step, device) if plan.defers_check else Eager(step)
    # Imported when needed: torch's compiler takes long to import.
    if plan.ends_with_gradients or device.type != "cuda":
        from stoker.engine.executors._compiled import Compiled

        return Compiled(step, plan, is_saved=is_saved)
    from stoker.engine.executors._cuda_graph import CudaGraph

    return CudaGraph(step, plan, device, is_saved=is_saved)
