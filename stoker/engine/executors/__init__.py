"""How the training step runs: eagerly, recorded in CUDA graphs, or compiled.

An executor has six methods (`Executor`). All executors do the same to the same tensors. Those that replay a step
(`Replay`) rely on two ideas: `TrainStep.tensors()` are the tensors that a step writes, always the same ones, and
`TrainStep.fingerprint()` changes if anything changes that the step's Python depends on. `Replay` also undoes what
recording a step changes on the host (`host_state`, `side_effects`).

| plan       | CPU        | GPU         |
|------------|------------|-------------|
| eager      | `Eager`    | `Eager`, or `DeferredEager` with several processes |
| captured   | –          | `CudaGraph` |
| compiled   | `Compiled` | `CudaGraph` of the compiled program |
| gradient   | `Compiled`, up to the gradients | `Compiled`, up to the gradients |
"""

from typing import Any

import torch

from stoker.engine._step import TrainStep
from stoker.engine.executors._executor import DeferredEager, Eager, Executor
from stoker.engine.executors._plan import Mode, Plan, choose_plan

__all__ = ["Executor", "Mode", "Plan", "choose_plan", "make_executor"]


def make_executor(step: TrainStep, plan: Plan, device: torch.device, *, exact: bool) -> Executor:
    """The executor for a plan. `exact`: the run is saved, and a resumed one has to give the same bits."""
    executor: Any
    if plan.mode == "eager":
        executor = DeferredEager(step, plan, device) if plan.defers_check else Eager(step, plan)
    elif plan.mode == "gradient" or device.type != "cuda":
        from stoker.engine.executors._compiled import Compiled

        executor = Compiled(step, plan, exact=exact)
    else:
        from stoker.engine.executors._cuda_graph import CudaGraph

        executor = CudaGraph(step, plan, device, exact=exact)
    return executor
