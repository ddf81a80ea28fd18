"""Lets torchvision be imported where its C++ library can't be loaded: beside a CPU build of torch, for example.

`import torchvision` (and with it timm, and the vision parts of transformers and peft) needs the operators of that
library. `declare` declares them, and gives those that tests and examples use (`nms`, `roi_align`) a Python kernel for
the CPU. It does nothing if the library can be loaded, and never imports torchvision.
"""

import importlib.util
import sys
import types
from pathlib import Path

import torch

_SCHEMAS = """
nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor
qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor
roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor
_roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width, int sampling_ratio, bool aligned) -> Tensor
qroi_align(Tensor input, Tensor rois, float input_scale, int input_zero_point, float rois_scale, int rois_zero_point, float spatial_scale, int pooled_height, int pooled_width, int sampling_ratio, bool aligned) -> Tensor
ps_roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, int sampling_ratio) -> (Tensor, Tensor)
_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, SymInt pooled_height, SymInt pooled_width, int sampling_ratio, SymInt batch_size, SymInt channels, SymInt height, SymInt width) -> Tensor
roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) -> (Tensor, Tensor)
_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, float spatial_scale, SymInt pooled_height, SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width) -> Tensor
ps_roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) -> (Tensor, Tensor)
_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, SymInt pooled_height, SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width) -> Tensor
deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask) -> Tensor
_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask) -> (Tensor, Tensor, Tensor, Tensor, Tensor)
"""  # noqa: E501

_library: torch.library.Library | None = None  # the declarations live as long as this object


def declare() -> None:
    """Declares torchvision's operators if torchvision is installed and its C++ library can't be loaded."""
    global _library
    spec = importlib.util.find_spec("torchvision") if "torchvision" not in sys.modules else None
    if _library or spec is None or spec.origin is None or _can_load(Path(spec.origin).parent / "_C.so"):
        return
    _library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS.strip().splitlines():
        _library.define(schema)
    _library.impl("nms", _nms, "CPU")
    _library.impl("roi_align", _roi_align, "CPU")
    _library.impl("_roi_align_backward", _roi_align_backward, "CPU")
    # stands for the module of torchvision that loads the library, and finds out whether there are operators
    extension = types.ModuleType("torchvision.extension")
    extension._has_ops = lambda: True
    extension._assert_has_ops = lambda: None
    extension._check_cuda_version = lambda: -1
    extension._load_library = lambda name: False
    sys.modules["torchvision.extension"] = extension


def _can_load(library: Path) -> bool:
    try:
        torch.ops.load_library(library)
    except OSError:
        return False
    return True


def _nms(dets, scores, iou_threshold):
    """Returns the indices of the boxes that overlap with no better box, best first."""
    x1, y1, x2, y2 = dets.unbind(1)
    areas = (x2 - x1) * (y2 - y1)
    remaining = scores.argsort(descending=True, stable=True)
    kept = []
    while len(remaining):
        best, remaining = remaining[0], remaining[1:]
        kept.append(best)
        width = (torch.minimum(x2[best], x2[remaining]) - torch.maximum(x1[best], x1[remaining])).clamp(min=0)
        height = (torch.minimum(y2[best], y2[remaining]) - torch.maximum(y1[best], y1[remaining])).clamp(min=0)
        both = width * height
        remaining = remaining[both / (areas[best] + areas[remaining] - both) <= iou_threshold]
    return torch.stack(kept) if kept else scores.new_zeros(0, dtype=torch.long)


def _roi_align(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned):
    samples, rows, columns, weights = _corners(
        rois, *input.shape[2:], spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned
    )
    values = input[samples, :, rows, columns]  # [K, PH, PW, S, C]
    return (values * weights.unsqueeze(-1)).sum(3).permute(0, 3, 1, 2).contiguous()


def _roi_align_backward(
    grad, rois, spatial_scale, pooled_height, pooled_width, batch_size, channels, height, width, sampling_ratio, aligned
):
    samples, rows, columns, weights = _corners(
        rois, height, width, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned
    )
    result = grad.new_zeros((batch_size, height, width, channels))
    values = grad.permute(0, 2, 3, 1).unsqueeze(3) * weights.unsqueeze(-1)
    result.index_put_((samples.expand_as(rows), rows, columns), values, accumulate=True)
    return result.permute(0, 3, 1, 2).contiguous()


def _corners(rois, height, width, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned):
    """Returns the pixels that each bin reads (four corners of every point), and their weights: [K, PH, PW, S]."""
    if sampling_ratio <= 0:
        raise NotImplementedError("this roi_align needs a fixed sampling_ratio, for example 2")
    samples = rois[:, 0].long()
    start = rois[:, 1:3] * spatial_scale - (0.5 if aligned else 0.0)
    size = rois[:, 3:5] * spatial_scale - (0.5 if aligned else 0.0) - start
    if not aligned:
        size = size.clamp(min=1.0)

    def along(axis, bins, limit):  # two pixels and two weights for every point: [K, bins, sampling_ratio, 2]
        points = (torch.arange(bins * sampling_ratio) + 0.5).to(rois.dtype) / sampling_ratio
        position = start[:, axis, None] + points * (size[:, axis, None] / bins)
        outside = (position < -1) | (position > limit)
        position = position.clamp(0, limit - 1)
        low = position.floor().long()
        high = (low + 1).clamp(max=limit - 1)
        fraction = position - low
        weights = torch.stack([1 - fraction, fraction], -1).masked_fill(outside.unsqueeze(-1), 0.0)
        shape = (len(rois), bins, sampling_ratio * 2)
        return torch.stack([low, high], -1).reshape(shape), weights.reshape(shape) / sampling_ratio

    columns, weights_x = along(0, pooled_width, width)
    rows, weights_y = along(1, pooled_height, height)
    shape = (len(rois), pooled_height, pooled_width, (2 * sampling_ratio) ** 2)
    spread_y = (slice(None), slice(None), None, slice(None), None)  # [K, PH, 1, 2s, 1]
    spread_x = (slice(None), None, slice(None), None, slice(None))  # [K, 1, PW, 1, 2s]
    full = (len(rois), pooled_height, pooled_width, 2 * sampling_ratio, 2 * sampling_ratio)
    return (
        samples[:, None, None, None],
        rows[spread_y].expand(full).reshape(shape),
        columns[spread_x].expand(full).reshape(shape),
        (weights_y[spread_y] * weights_x[spread_x]).reshape(shape),
    )
