"""An overview of a model: its layers with output shapes, parameters, memory and operations for one batch."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stoker._text import format_size, html_table, html_text
from stoker._tree import tensors_in
from stoker.errors import BadData, InvalidArgument
from stoker.steps._supervised import Supervised
from stoker.steps._valid import valid

_HEAD = ("layer", "kind", "output", "parameters", "FLOPs")


@dataclass
class Layer:
    """One module of a model, as it was called in a forward pass; of several calls, the last."""

    name: str
    kind: str
    parameters: int  # without those of submodules
    trainable: int
    leaf: bool
    output: str = ""  # the shape or shapes
    output_bytes: int = 0
    flops: int = 0  # with those of submodules

    @property
    def depth(self) -> int:
        """How many modules this one is inside of."""
        return self.name.count(".") + 1 if self.name else 0


@dataclass(frozen=True)
class Summary:
    """The layers of a model in the order of their calls, and the totals; prints as a table."""

    layers: tuple[Layer, ...]
    parameters: int
    trainable: int
    parameter_bytes: int
    activation_bytes: int  # of the outputs of leaf modules, about what training keeps in memory
    flops: int

    def __str__(self) -> str:
        rows = [_HEAD, *self._rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        rule = "─" * max(map(len, lines))
        return "\n".join([lines[0], rule, *lines[1:], rule, self._totals()])

    def _repr_html_(self) -> str:
        return f"<div>{html_table(_HEAD, self._rows())}{html_text(self._totals())}</div>"

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for layer in self.layers:
            label = "  " * layer.depth + (layer.name.rpartition(".")[2] or "(model)")
            frozen = " (frozen)" if layer.parameters and not layer.trainable else ""
            count = f"{layer.parameters:,}{frozen}" if layer.parameters else ""
            rows.append((label, layer.kind, layer.output, count, f"{layer.flops:,}" if layer.flops else ""))
        return rows

    def _totals(self) -> str:
        return (
            f"parameters   {self.parameters:,} ({self.trainable:,} trainable), {format_size(self.parameter_bytes)}\n"
            f"activations  {format_size(self.activation_bytes)} for this batch\n"
            f"FLOPs        {self.flops:,} for one forward pass of this batch"
        )


def summary(model: nn.Module, batch: Any) -> Summary:
    """The layers of a model and the cost of one batch, which is a training batch with or without its target.

    >>> print(summary(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(16, 4)))
    layer    kind        output   parameters  FLOPs
    ───────────────────────────────────────────────
    (model)  Sequential  [16, 2]              1,536
      0      Linear      [16, 8]  40          1,024
      1      ReLU        [16, 8]
      2      Linear      [16, 2]  18          512
    ───────────────────────────────────────────────
    parameters   58 (58 trainable), 232 B
    activations  1.2 kB for this batch
    FLOPs        1,536 for one forward pass of this batch

    It runs one forward pass on a view of the model; the model does not change.
    """
    from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count  # slow to import

    step = Supervised(model, None)
    try:
        parts = step.inputs(batch)
    except BadData:  # it is not clear whether the last part is an optional input: in a fit it is the target
        parts = step.parts(batch)
    parameters = list(model.parameters())
    trainable = {each.data_ptr() for each in parameters if each.requires_grad}  # the view's don't require gradients
    view = valid(model)  # its hooks leave the model alone
    layers: dict[str, Layer] = {}

    def count_attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return sdpa_flop_count(query, key, value)

    # torch counts the kernels of attention on a GPU only.
    on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    counter = FlopCounterMode(display=False, custom_mapping={on_cpu: count_attention})
    for name, module in view.named_modules():
        _record_calls(name, module, trainable, counter, layers)
    has_fastpath = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)  # one operation for all of attention, which is not counted
        with counter:
            view(*parts.args, **parts.kwargs)
    except TypeError as error:
        raise InvalidArgument(f"{type(model).__name__} can't be called with this batch: {error}") from error
    finally:
        torch.backends.mha.set_fastpath_enabled(has_fastpath)
    return Summary(
        layers=tuple(layers.values()),
        parameters=sum(parameter.numel() for parameter in parameters),
        trainable=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        parameter_bytes=sum(parameter.nbytes for parameter in parameters),
        activation_bytes=sum(layer.output_bytes for layer in layers.values() if layer.leaf),
        flops=counter.get_total_flops(),
    )


def _record_calls(name: str, module: nn.Module, trainable: set[int], counter: Any, layers: dict[str, Layer]) -> None:
    """Adds hooks that enter a module into `layers` when it is called, in the order of the first calls."""
    flops_before: list[int] = []  # a stack: a module may call itself

    def enter(*_: Any) -> None:
        flops_before.append(counter.get_total_flops())
        parameters = list(module.parameters(recurse=False))
        count = sum(parameter.numel() for parameter in parameters)
        count_trainable = sum(parameter.numel() for parameter in parameters if parameter.data_ptr() in trainable)
        is_leaf = next(module.children(), None) is None
        layers.setdefault(name, Layer(name, type(module).__name__, count, count_trainable, is_leaf))

    def leave(_module: nn.Module, _args: Any, output: Any) -> None:
        layer, tensors = layers[name], tensors_in(output)
        layer.flops = counter.get_total_flops() - flops_before.pop()
        layer.output = ", ".join(str(list(tensor.shape)) for tensor in tensors[:3]) + (
            ", …" if len(tensors) > 3 else ""
        )
        layer.output_bytes = sum(tensor.nbytes for tensor in tensors)

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave)
