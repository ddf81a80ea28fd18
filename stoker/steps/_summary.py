"""An overview of a model: its layers with output shapes, parameters, memory and operations for one batch."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from stoker._text import format_size
from stoker._tree import tensors_in
from stoker.errors import InvalidArgument
from stoker.steps._supervised import Supervised
from stoker.steps._valid import valid


@dataclass(frozen=True)
class Layer:
    """One module of a model, as it was called in a forward pass."""

    name: str
    kind: str
    output: str  # the shape or shapes
    parameters: int  # without those of submodules
    trainable: int
    flops: int  # with those of submodules
    output_bytes: int
    depth: int
    leaf: bool


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
        rows = [("layer", "kind", "output", "parameters", "FLOPs")]
        for layer in self.layers:
            label = "  " * layer.depth + (layer.name.rpartition(".")[2] or "(model)")
            frozen = " (frozen)" if layer.parameters and not layer.trainable else ""
            count = f"{layer.parameters:,}{frozen}" if layer.parameters else ""
            rows.append((label, layer.kind, layer.output, count, f"{layer.flops:,}" if layer.flops else ""))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        rule = "─" * max(map(len, lines))
        totals = [
            f"parameters   {self.parameters:,} ({self.trainable:,} trainable), {format_size(self.parameter_bytes)}",
            f"activations  {format_size(self.activation_bytes)} for this batch",
            f"FLOPs        {self.flops:,} for one forward pass of this batch",
        ]
        return "\n".join([lines[0], rule, *lines[1:], rule, *totals])


def summary(model: nn.Module, batch: Any) -> Summary:
    """The layers of a model and the cost of one batch, which is a training batch with or without its target.

    >>> import torch
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
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    calls: dict[str, _Call] = {}
    counter = FlopCounterMode(display=False)
    parts = Supervised(model, None).inputs(batch)
    view = valid(model)  # its hooks leave the model alone
    for name, module in view.named_modules():
        _record_calls(name, module, counter, calls)
    try:
        with counter:
            view(*parts.args, **parts.kwargs)
    except TypeError as error:
        raise InvalidArgument(f"{type(model).__name__} can't be called with this batch: {error}") from error
    own = list(model.parameters())
    trainable = {each.data_ptr() for each in own if each.requires_grad}  # the view's own don't require gradients
    layers = tuple(_layer(name, call, trainable) for name, call in calls.items())
    return Summary(
        layers=layers,
        parameters=sum(each.numel() for each in own),
        trainable=sum(each.numel() for each in own if each.requires_grad),
        parameter_bytes=sum(each.numel() * each.element_size() for each in own),
        activation_bytes=sum(layer.output_bytes for layer in layers if layer.leaf),
        flops=counter.get_total_flops(),
    )


@dataclass
class _Call:
    module: nn.Module
    flops: int = 0
    output: str = ""
    output_bytes: int = 0


def _record_calls(name: str, module: nn.Module, counter: Any, calls: dict[str, _Call]) -> None:
    """Adds hooks that enter the last call of a module into `calls`, in the order of the first calls."""

    before: list[int] = []  # a module may call itself

    def enter(*_: Any) -> None:
        before.append(counter.get_total_flops())
        calls.setdefault(name, _Call(module))

    def leave(_module: nn.Module, _args: Any, output: Any) -> None:
        call, tensors = calls[name], tensors_in(output)
        call.flops = counter.get_total_flops() - before.pop()
        call.output = ", ".join(str(list(tensor.shape)) for tensor in tensors[:3]) + (", …" if len(tensors) > 3 else "")
        call.output_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave)


def _layer(name: str, call: _Call, trainable: set[int]) -> Layer:
    parameters = list(call.module.parameters(recurse=False))
    return Layer(
        name=name,
        kind=type(call.module).__name__,
        output=call.output,
        parameters=sum(each.numel() for each in parameters),
        trainable=sum(each.numel() for each in parameters if each.data_ptr() in trainable),
        flops=call.flops,
        output_bytes=call.output_bytes,
        depth=name.count(".") + 1 if name else 0,
        leaf=next(call.module.children(), None) is None,
    )
