"""The only place that knows of stoker: its compiled steps run node by node on the simulated device.

Inductor and triton have no code for the device. So `compile=True` traces a step as usual, and instead of a compiled
program the graph itself runs, in a CUDA graph as usual.
"""

from types import ModuleType
from typing import Any

MODULE = "stoker.engine.executors._compiled"


def run_graphs_node_by_node(module: ModuleType) -> None:
    """Replaces `compile_graph` of `MODULE`, which turns a graph of operations into a program."""
    compile_graph = module.compile_graph

    def interpret(graph: Any, inputs: Any, *, is_saved: Any) -> Any:
        if inputs[0].device.type != "cuda":
            return compile_graph(graph, inputs, is_saved=is_saved)
        return lambda tensors: graph(*tensors)

    module.compile_graph = interpret
