"""`export`: writes a model as ONNX or as a program of torch.export, checked against the model itself."""

import copy
import inspect
import io
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stoker._files import write_atomically
from stoker._tree import map_leaves, map_tensors, tensors_in
from stoker.errors import InvalidArgument, StateMismatch, WrongType, explain_missing

__all__ = ["export"]

Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # by place, or by name; one of them is empty
RunProgram = Callable[[Arguments], list[Tensor]]  # returns the tensors that the exported program returns


def export(
    model: nn.Module,
    sample: Any,
    path: str | os.PathLike[str],
    *,
    dynamic_batch: bool = True,
    check: bool = True,
    tolerance: float = 1e-3,
) -> Path:
    """Writes a model as ONNX (`.onnx`) or as a program of `torch.export` (`.pt2`), and returns the path.

    >>> path = export(nn.Linear(3, 1), torch.randn(2, 3), "model.pt2")
    >>> torch.export.load(path).module()(torch.ones(5, 3)).shape
    torch.Size([5, 1])

    `sample` is one batch of inputs: a tensor, a tuple for several arguments of `forward`, or a mapping of them by name;
    a `.pt2` file takes them in the same way.

    The file takes batches of any size, unless `dynamic_batch=False`. It holds a copy of the model in eval mode on the
    CPU; the model itself does not change.

    With `check`, the file is run on the sample and on a larger batch before it is put in place (ONNX by onnxruntime).
    If an output differs from the model's by more than `tolerance`, relative to the largest number, that is a
    `StateMismatch`. ONNX needs `stoker[onnx]`.
    """
    path = Path(path)
    if not isinstance(model, nn.Module):
        hint = "; pass fitted.model" if hasattr(model, "model") else ""
        raise WrongType(f"stoker.export takes a module, got {type(model).__name__}{hint}")
    if path.suffix not in (".onnx", ".pt2"):
        raise InvalidArgument(f"{str(path)!r}: expected a name that ends in .onnx (ONNX) or .pt2 (torch.export)")
    if path.suffix == ".onnx":
        _import_onnx()
    model = copy.deepcopy(model).cpu().eval()
    inputs = _arguments(model, sample)
    rows = {len(each) for each in tensors_in(inputs) if each.ndim}
    if len(rows) != 1 or rows == {0} or not all(each.ndim for each in tensors_in(inputs)):
        raise InvalidArgument(
            f"the tensors of the sample have {sorted(rows) or 'no'} rows; expected one batch, whose tensors all have "
            "the samples in their first dimension"
        )
    if dynamic_batch and rows == {1}:  # torch.export takes a size of 1 for a constant
        inputs = _repeat(inputs, 2)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # deprecations inside of torch's exporters
        program = _trace(model, inputs, dynamic_batch)
        content, run = (_to_onnx if path.suffix == ".onnx" else _to_pt2)(program, check)
        if check:
            for batch in [inputs, _repeat(inputs, 3)] if dynamic_batch else [inputs]:
                _compare(path, tensors_in(model(*batch[0], **batch[1])), run(batch), tolerance)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(content))
    return path


def _arguments(model: nn.Module, sample: Any) -> Arguments:
    """The sample as arguments of `forward`, by place or by name, on the CPU."""
    args, kwargs = tuple(sample) if isinstance(sample, tuple | list) else (sample,), {}
    if isinstance(sample, Mapping):
        args, kwargs = (), dict(sample)
    signature = inspect.signature(model.forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidArgument(f"the sample does not fit {type(model).__name__}.forward{signature}: {error}") from error
    if not tensors_in((args, kwargs)):
        raise InvalidArgument(f"the sample holds no tensor ({type(sample).__name__}); expected a batch of inputs")
    return map_tensors(lambda each: each.detach().cpu(), (args, kwargs))


def _repeat(inputs: Arguments, times: int) -> Arguments:
    return map_tensors(lambda each: torch.cat([each] * times), inputs)


def _trace(model: nn.Module, inputs: Arguments, dynamic_batch: bool) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch")
    args, kwargs = inputs
    shapes = map_leaves(lambda each: {0: batch} if isinstance(each, Tensor) else None, args or kwargs)
    try:
        return torch.export.export(model, args, kwargs=kwargs, dynamic_shapes=shapes if dynamic_batch else None)
    except Exception as error:  # whatever the model raises when it is traced
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        is_constant = dynamic_batch and ("onstraint" in str(error) or "specialized" in str(error))
        advice = (
            "its forward needs batches of one size; write sizes as x.shape[0] or -1 (not len(x)), or pass "
            "dynamic_batch=False"
            if is_constant
            else "torch.export needs a forward that calls torch only, without control flow that depends on values"
        )
        raise InvalidArgument(f"{type(model).__name__} cannot be exported: {reason.strip()}\n  {advice}") from error


def _to_pt2(program: torch.export.ExportedProgram, check: bool) -> tuple[bytes, RunProgram]:
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    content = buffer.getvalue()
    loaded = torch.export.load(io.BytesIO(content)).module() if check else None
    return content, lambda inputs: tensors_in(loaded(*inputs[0], **inputs[1])) if loaded is not None else []


def _to_onnx(program: torch.export.ExportedProgram, check: bool) -> tuple[bytes, RunProgram]:
    try:
        exported = torch.onnx.export(program, dynamo=True, verbose=False)
        assert exported is not None
        content = exported.model_proto.SerializeToString()
    except Exception as error:
        last = [line for line in str(error).splitlines() if line.strip()][-3:]
        raise InvalidArgument(
            f"the model cannot be written as ONNX: {' '.join(last)}\n  a .pt2 file has no such limits"
        ) from error

    def run(inputs: Arguments) -> list[Tensor]:
        import onnxruntime

        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]
        arrays = [each.numpy() for each in tensors_in(inputs)]
        return [torch.from_numpy(each) for each in session.run(None, dict(zip(names, arrays, strict=True)))]

    if check:
        text = 'the check of an ONNX file needs onnxruntime: pip install "stoker[onnx]", or pass check=False'
        with explain_missing(text):
            import onnxruntime  # noqa: F401
    return content, run


def _import_onnx() -> None:
    with explain_missing('ONNX files need onnx and onnxscript: pip install "stoker[onnx]"'):
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401


def _compare(path: Path, expected: list[Tensor], found: list[Tensor], tolerance: float) -> None:
    if [each.shape for each in expected] != [each.shape for each in found]:
        shapes = ", ".join(str(list(each.shape)) for each in found)
        expectation = ", ".join(str(list(each.shape)) for each in expected)
        raise StateMismatch(f"{path} returns the shapes {shapes}, the model {expectation}; nothing was written")
    for ours, theirs in zip(expected, found, strict=True):
        scale = max(1.0, float(ours.double().abs().max())) if ours.numel() else 1.0
        error = float((ours.double() - theirs.double()).abs().max()) if ours.numel() else 0.0
        if not error <= tolerance * scale:
            raise StateMismatch(
                f"{path} differs from the model by {error:.3g}, more than tolerance={tolerance:g} of {scale:.3g}; "
                "nothing was written. Random numbers in forward are one cause; check=False writes it anyway"
            )
