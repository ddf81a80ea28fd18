"""A model at a glance: its layers with their outputs, parameters, memory and operations, for one batch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from stoker._text import format_size
from stoker.errors import InvalidArgument
from stoker.steps._supervised import Supervised
from stoker.steps._valid import valid


@dataclass(frozen=True)
class Layer:
    """One module of a model, as it was called."""

    name: str
    kind: str
    output: str  # the shape, or the shapes
    parameters: int  # of its own, without its submodules'
    trainable: int
    flops: int  # with its submodules'
    output_bytes: int
    depth: int
    leaf: bool


@dataclass(frozen=True)
class Summary:
    """The layers of a model in the order of their calls, and the sums; prints as a table."""

    layers: tuple[Layer, ...]
    parameters: int
    trainable: int
    parameter_bytes: int
    activation_bytes: int  # of the leaves' outputs, which is about what training keeps
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
        sums = [
            f"parameters   {self.parameters:,} ({self.trainable:,} trainable), {format_size(self.parameter_bytes)}",
            f"activations  {format_size(self.activation_bytes)} for this batch",
            f"FLOPs        {self.flops:,} for one forward pass of this batch",
        ]
        return "\n".join([lines[0], rule, *lines[1:], rule, *sums])


def summary(model: nn.Module, batch: Any) -> Summary:
    """What a model is made of and what one batch costs; the batch is one of training's, with or without its target.

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

    It runs one forward pass on a view of the model, which changes nothing in it.
    """
    from torch.utils.flop_counter import FlopCounterMode  # where it is used: it is slow to import

    rows: dict[str, Layer] = {}
    order: list[str] = []
    counter = FlopCounterMode(display=False)
    parts = Supervised(model, None).inputs(batch)
    handles: list[Any] = []
    try:
        for name, module in model.named_modules():
            handles += _watched(name, module, counter, rows, order)
        with counter:
            valid(model)(*parts.args, **parts.kwargs)
    except TypeError as error:
        raise InvalidArgument(f"{type(model).__name__} can't be called with this batch: {error}") from error
    finally:
        for handle in handles:
            handle.remove()
    own = list(model.parameters())
    return Summary(
        layers=tuple(rows[name] for name in order if name in rows),
        parameters=sum(each.numel() for each in own),
        trainable=sum(each.numel() for each in own if each.requires_grad),
        parameter_bytes=sum(each.numel() * each.element_size() for each in own),
        activation_bytes=sum(layer.output_bytes for layer in rows.values() if layer.leaf),
        flops=counter.get_total_flops(),
    )


def _watched(name: str, module: nn.Module, counter: Any, rows: dict[str, Layer], order: list[str]) -> list[Any]:
    before: list[int] = []

    def enter(*_: Any) -> None:
        before.append(counter.get_total_flops())
        if name not in order:
            order.append(name)

    def leave(_module: nn.Module, _args: Any, output: Any) -> None:
        own = [each for each in module._parameters.values() if each is not None]
        tensors = _tensors(output)
        rows[name] = Layer(
            name=name,
            kind=type(module).__name__,
            output=", ".join(str(list(tensor.shape)) for tensor in tensors[:3]) + (", …" if len(tensors) > 3 else ""),
            parameters=sum(each.numel() for each in own),
            trainable=sum(each.numel() for each in own if each.requires_grad),
            flops=counter.get_total_flops() - before.pop(),
            output_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
            depth=name.count(".") + 1 if name else 0,
            leaf=not any(True for _ in module.children()),
        )

    return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for part in value.values() for tensor in _tensors(part)]
    if isinstance(value, tuple | list):
        return [tensor for part in value for tensor in _tensors(part)]
    return []
