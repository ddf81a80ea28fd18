"""A weight of 8-bit integers, as libraries for quantised models have them: a subclass of Tensor around two tensors."""

import torch
from torch.utils import _pytree as pytree


class Int8Weight(torch.Tensor):
    """Rows of 8-bit integers with a scale each. Operations see its numbers as floats."""

    @staticmethod
    def __new__(cls, values, scales):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=scales.dtype, device=values.device)

    def __init__(self, values, scales):
        self.values, self.scales = values, scales

    @classmethod
    def quantise(cls, weight):
        scales = weight.detach().abs().amax(1, keepdim=True).clamp(min=1e-8) / 127
        return cls((weight.detach() / scales).round().to(torch.int8), scales)

    def __tensor_flatten__(self):
        return ["values", "scales"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Int8Weight(inner["values"], inner["scales"])

    def dequantise(self):
        return self.values.to(self.scales.dtype) * self.scales

    def __repr__(self):
        return f"Int8Weight({list(self.shape)})"

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        aten = torch.ops.aten
        if function in (aten.detach.default, aten.alias.default, aten.clone.default, aten._to_copy.default):
            own = args[0]
            kwargs.pop("dtype", None)
            make = function if function is not aten._to_copy.default else torch.Tensor.to
            device = kwargs.get("device")
            parts = [own.values, own.scales]
            parts = [each.to(device) for each in parts] if make is torch.Tensor.to else [make(each) for each in parts]
            return cls(*parts)
        if function.overloadpacket in (aten.copy_, aten.lerp_, aten._foreach_lerp_, aten._foreach_add_):
            raise NotImplementedError(f"{function} writes to a quantised weight")
        args, kwargs = pytree.tree_map_only(cls, cls.dequantise, (args, kwargs))
        return function(*args, **kwargs)
