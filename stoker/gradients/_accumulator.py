"""The gradients of one update from several micro-batches."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from stoker._dispatch import NoGrad
from stoker._select import Models, named_parameters
from stoker.distributed import is_dtensor, place_like
from stoker.errors import GradientsConsumed, InvalidArgument, StateMismatch, WrongType, did_you_mean
from stoker.gradients._gradients import Gradients, apply_to_values, as_number, as_scalar, merge_parameters

_add_all: Any = torch._foreach_add_  # pyright: ignore[reportPrivateImportUsage]
_STATE = ("reduce", "count", "weight", "weight_on_host", "parameters", "sums")


class Accumulator:
    """Adds gradients up, each with a weight, until `take` returns their weighted mean.

    Use as weight what the loss is a mean over (samples, tokens): then any split of a batch gives its gradients.

    >>> from torch import nn
    >>> model, accumulator = nn.Linear(1, 1, bias=False), Accumulator()
    >>> accumulator.add(Gradients({"weight": torch.tensor([[3.0]])}, model), weight=24)
    >>> accumulator.add(Gradients({"weight": torch.tensor([[6.0]])}, model), weight=12)
    >>> accumulator.take()["weight"]
    tensor([[4.]])

    A parameter that only some additions hold counts as zero in the others. `reduce="sum"` omits the division. The sums
    are allocated once for each parameter and written in place, 16-bit gradients in 32 bits.
    """

    __slots__ = ("_added", "_count", "_model", "_number", "_parameters", "_reduce", "_sums", "_tensor", "_tensor_used")

    def __init__(self, reduce: Literal["mean", "sum"] = "mean") -> None:
        if reduce not in ("mean", "sum"):
            raise InvalidArgument(f'reduce must be "mean" or "sum", got {reduce!r}')
        self._reduce: Literal["mean", "sum"] = reduce
        self._sums: dict[str, Tensor] = {}  # allocated once; a sum counts only if its name is in `_added`
        self._added: set[str] = set()  # the parameters with a gradient since the last `take`
        self._parameters: dict[str, nn.Parameter] = {}  # of all additions since the last `take`, in the model's order
        self._model: Models | None = None
        self._tensor: Tensor | None = None  # the sum of the weights if one of them is a tensor, allocated once
        self.reset()

    def reset(self) -> None:
        """Drops what was added; the memory of the sums is kept."""
        self._count = 0
        self._number: float = 0  # the sum of the weights, while all of them are numbers
        self._tensor_used = False
        self._added = set()
        self._sums = {name: total for name, total in self._sums.items() if total.layout == torch.strided}

    def __len__(self) -> int:
        """How many gradients have been added since the last `take`."""
        return self._count

    @property
    def reduction(self) -> Literal["mean", "sum"]:
        """What `take` returns."""
        return self._reduce

    @property
    def weight(self) -> float | Tensor:
        """The sum of the weights since the last `take`; a tensor if a weight was one. Later additions write to it."""
        return self._tensor if self._tensor_used and self._tensor is not None else self._number

    def add(self, grads: Gradients, weight: float | Tensor = 1) -> None:
        """Adds gradients, and consumes them. With a 0-d tensor as weight (a count of tokens) the host does not wait.

        With weight 0 nothing is added, even if the gradients are NaN because the loss is a mean over no tokens.
        """
        if not isinstance(grads, Gradients):
            raise WrongType(f"add takes Gradients, got {type(grads).__name__}; stoker.backward makes them")
        if isinstance(weight, Tensor):
            weight = as_scalar(weight.detach(), "a weight")
        elif not 0 <= as_number(weight, "a weight") < math.inf:
            raise InvalidArgument(f"a weight is a number of at least 0, got {weight!r}")
        parameters = grads._parameters
        if self._count and parameters is not self._parameters:
            parameters = merge_parameters(self._parameters, parameters, "than before")
        tensors = grads.use("Accumulator.add")
        if not self._count or len(grads._parameters) > len(self._parameters):
            self._model = grads._model
        self._parameters = parameters
        self._count += 1
        self._add_weight(weight)
        if isinstance(weight, Tensor):
            self._add_weighted(tensors, weight)
        elif weight:  # an infinite gradient times zero would be NaN
            self._add(tensors, weight)

    def _add_weight(self, weight: float | Tensor) -> None:
        """Adds to the number, or in place to the tensor as soon as a weight of the window was one."""
        if self._tensor_used and self._tensor is not None:
            is_wide = torch.result_type(self._tensor, weight) == self._tensor.dtype
            self._tensor = self._tensor.add_(weight) if is_wide else self._tensor + weight
        elif not isinstance(weight, Tensor):
            self._number += weight
        else:
            old, total = self._tensor, weight + self._number if self._number else weight
            is_alike = old is not None and (old.dtype, old.device) == (total.dtype, total.device)
            self._tensor = old.copy_(total) if old is not None and is_alike else total.clone()
            self._tensor_used, self._number = True, 0

    def _add_weighted(self, tensors: dict[str, Tensor], weight: Tensor) -> None:
        """Adds gradients with a weight on the device, where an infinite gradient times zero would be NaN too."""
        factors = {device: weight.to(device) for device in {tensor.device for tensor in tensors.values()}}
        is_zero = {device: factor == 0 for device, factor in factors.items()}
        weighted: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            values = widen(tensor.detach()) * factors[tensor.device]
            weighted[name] = apply_to_values(values, partial(torch.where, is_zero[tensor.device], 0))
        self._add(weighted, 1)

    def _add(self, tensors: dict[str, Tensor], weight: float) -> None:
        """Adds gradients times a number to their sums, in one call for all plain tensors."""
        totals, plain = list[Tensor](), list[Tensor]()
        with NoGrad():
            for name, gradient in tensors.items():
                tensor, total = widen(gradient), self._sums.get(name)
                if name not in self._added or total is None:
                    self._added.add(name)
                    if tensor.layout != torch.strided:
                        self._sums[name] = tensor * weight  # a new tensor, for later additions write to it
                        continue
                    if total is None or not _is_alike(total, tensor):
                        total = self._sums[name] = torch.zeros_like(tensor, requires_grad=False)
                    else:
                        total.zero_()
                if type(tensor) is Tensor and tensor.layout == total.layout == torch.strided:
                    totals.append(total)
                    plain.append(tensor)
                else:
                    total.add_(tensor, alpha=weight)
            if plain:
                _add_all(totals, plain, alpha=weight)

    def take(self) -> Gradients:
        """The mean (or sum) of what was added; the accumulator is empty afterwards."""
        if self._model is None or not self._count:
            raise GradientsConsumed("the accumulator is empty: add gradients before taking them")
        total = self.weight
        if not isinstance(total, Tensor) and total == 0:
            raise InvalidArgument(f"all {self._count} gradients in the accumulator had weight 0, so they have no mean")
        model, parameters = self._model, self._parameters
        is_mean = self._reduce == "mean"

        def divide(added: Tensor) -> Tensor:  # FSDP's offloaded gradients are on the CPU, and the weight is on the GPU
            return added / (total.to(added.device) if isinstance(total, Tensor) else total)

        tensors = {
            name: divide(added).to(parameters[name].dtype) if is_mean else added.to(parameters[name].dtype, copy=True)
            for name, added in self.take_sums()[1].items()
        }
        return Gradients._of(tensors, parameters, model)

    def take_sums(self) -> tuple[float | Tensor, dict[str, Tensor]]:
        """The weight and the sums by parameter, valid until the next `add`; the accumulator is empty afterwards."""
        weight, sums = self.weight, {name: self._sums[name] for name in self._parameters if name in self._added}
        self.reset()
        return weight, sums

    # --- for executors, which replay additions without running this code

    def tensors(self) -> list[Tensor]:
        """The tensors that additions write: the sums, and the weight if it is a tensor."""
        return [*self._sums.values(), *([] if self._tensor is None else [self._tensor])]

    @property
    def bookkeeping(self) -> tuple[int, float | None, frozenset[str]]:
        """What an addition changes in Python: the count, the weight (None if it is a tensor), the parameters added."""
        return self._count, None if self._tensor_used else self._number, frozenset(self._added)

    def set_bookkeeping(self, count: int, weight: float | None, added: frozenset[str]) -> None:
        """Sets what `bookkeeping` returned after an addition that was replayed."""
        self._count, self._added = count, set(added)
        self._tensor_used, self._number = weight is None, weight or 0

    def references(self) -> tuple[Any, ...]:
        """What `restore_references` puts back after tracing has replaced tensors by traced ones."""
        return self.bookkeeping, dict(self._sums), self._tensor, self._parameters, self._model

    def restore_references(self, references: tuple[Any, ...]) -> None:
        """Undoes what additions have changed since `references`, except for what they wrote into tensors."""
        bookkeeping, sums, self._tensor, self._parameters, self._model = references
        self.set_bookkeeping(*bookkeeping)
        self._sums = dict(sums)

    # --- saving

    def state_dict(self) -> dict[str, Any]:
        """What was added since the last `take`, as tensors and plain values; the tensors are not copies.

        >>> from torch import nn
        >>> model, accumulator, other = nn.Linear(1, 1, bias=False), Accumulator(), Accumulator()
        >>> accumulator.add(Gradients({"weight": torch.tensor([[3.0]])}, model), weight=2)
        >>> other.load_state_dict(accumulator.state_dict(), model)
        >>> len(other), other.take()["weight"]
        (1, tensor([[3.]]))

        The state of an empty accumulator names the parameters that have memory here.
        """
        weight = self.weight
        return {
            "reduce": self._reduce,
            "count": self._count,
            "weight": weight,
            "weight_on_host": isinstance(weight, Tensor) and weight.device.type == "cpu",
            "parameters": list(self._parameters if self._count else self._sums),
            "sums": {name: _pack(self._sums[name]) for name in self._sums if name in self._added},
        }

    def load_state_dict(self, state: Mapping[str, Any], model: Models) -> None:
        """Continues from a `state_dict` for gradients of `model`; what was in the accumulator is dropped.

        If the state does not match the model, nothing is changed, and a `StateMismatch` lists the differences.
        """
        own = named_parameters(model)
        sums, weight, count = _unpack_sums(state, own, self._reduce), state["weight"], state["count"]
        known = {name: own[name] for name in state["parameters"]}
        self._added = set(sums)
        if not count:
            sums = {name: widen(torch.zeros_like(each, requires_grad=False)) for name, each in known.items()}
        if isinstance(weight, Tensor):  # where it was: dividing by a number on the host rounds differently
            device = next((total.device for total in sums.values()), weight.device)
            self._tensor = weight.detach().to("cpu" if state["weight_on_host"] else device, copy=True)
        self._tensor_used = isinstance(weight, Tensor)
        self._number = 0 if isinstance(weight, Tensor) else weight
        self._count, self._sums, self._parameters, self._model = count, sums, known, model


def widen(tensor: Tensor) -> Tensor:
    """A tensor in the dtype of sums: 16-bit ones in 32 bits."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _is_alike(total: Tensor, tensor: Tensor) -> bool:
    """Whether a tensor can be written into the memory of an old sum, and lies in memory in the same order."""
    # Traced tensors have another class than the sums, so only DTensors are distinguished.
    if is_dtensor(total) != is_dtensor(tensor) or not total.layout == tensor.layout == torch.strided:
        return False
    if (total.shape, total.dtype, total.device) != (tensor.shape, tensor.dtype, tensor.device):
        return False
    strides = zip(tensor.shape, total.stride(), tensor.stride(), strict=True)
    return all(old == new for size, old, new in strides if size > 1)  # for one element, a stride may be anything


def _pack(total: Tensor) -> dict[str, Any]:
    """A sum as tensors; not a copy. The entries of a sparse one keep their order, in which they are added up."""
    if total.layout == torch.strided:
        # Outermost dimension first: a norm adds up in the order of memory, and its last bit depends on that.
        return {"values": total, "order": sorted(range(total.ndim), key=total.stride, reverse=True)}
    if total.layout != torch.sparse_coo:
        raise StateMismatch(f"a gradient with the layout {total.layout} is being accumulated, and can't be saved")
    return {"values": total._values(), "indices": total._indices(), "coalesced": total.is_coalesced()}


def _unpack(saved: Mapping[str, Any], parameter: Tensor) -> Tensor:
    """Undoes `_pack`, as a copy on the parameter's device; raises if it is not a gradient of the parameter."""
    values: Tensor = place_like(saved["values"].detach(), parameter).to(parameter.device)
    if "order" not in saved:
        parts = saved["indices"].to(parameter.device, copy=True), values.clone(), parameter.shape
        return torch.sparse_coo_tensor(*parts, is_coalesced=bool(saved["coalesced"]), check_invariants=True)
    if values.shape != parameter.shape:
        raise ValueError(f"shape {list(values.shape)} in the state, {list(parameter.shape)} in the model")
    outermost_first = values.permute(saved["order"]).clone(memory_format=torch.contiguous_format)
    return outermost_first.permute([saved["order"].index(dimension) for dimension in range(values.ndim)])


def _unpack_sums(state: Mapping[str, Any], own: Mapping[str, Tensor], reduce: str) -> dict[str, Tensor]:
    """The sums in a state, by parameter; a `StateMismatch` lists everything that does not match."""
    lines: list[str] = []
    sums: dict[str, Tensor] = {}
    if not _is_state(state):
        lines.append(f"it is not the state of an Accumulator, which has {', '.join(_STATE)}")
        state = {"reduce": reduce, "parameters": [], "sums": {}}
    if state["reduce"] != reduce:
        lines.append(f"its reduce is {state['reduce']!r}, here it is {reduce!r}")
    for name in dict.fromkeys([*state["parameters"], *state["sums"]]):
        try:
            if name not in own:
                lines.append(f"{name}: not in the model{did_you_mean(name, own)}")
            elif name in state["sums"]:
                sums[name] = _unpack(state["sums"][name], own[name])
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            lines.append(f"{name}: {error}")
    if lines:
        raise StateMismatch("\n  ".join(["this state of an Accumulator does not match", *lines]))
    return sums


def _is_state(state: Any) -> bool:
    if not isinstance(state, Mapping) or set(state) != set(_STATE):
        return False
    weight, count = state["weight"], state["count"]
    is_number = weight.numel() == 1 if isinstance(weight, Tensor) else isinstance(weight, int | float)
    is_count = isinstance(count, int) and count >= 0
    return is_number and is_count and isinstance(state["parameters"], list) and isinstance(state["sums"], Mapping)
