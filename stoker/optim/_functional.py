"""Drives torch's functional optimizers: the state by parameter name, and the lists that torch's functions take."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from stoker.distributed import from_local, full_tensor, is_dtensor, place_like, to_local
from stoker.errors import InvalidArgument, UnsupportedGradient
from stoker.optim._algorithm import Algorithm, GradientGroup, Rate, State, StateLists, any_sparse


class _Batch(NamedTuple):
    """The parameters of one call and their state as lists."""

    parameters: list[Tensor]
    lists: dict[str, list[Any]]  # None where a parameter has no such state, or none yet
    has_complex: bool
    one_kind: bool  # one dtype and device, so that a fused kernel takes all of them at once
    has_shards: bool  # whether some are DTensors
    creates_state: bool  # whether the first update creates the state of some


class FunctionalRule:
    """Applies one of torch's functional optimizers to named parameters."""

    __slots__ = ("_accepts_sparse", "_algorithm", "_batches", "_fused", "_kind", "_parameters", "_state")

    def __init__(self, algorithm: Algorithm, parameters: Mapping[str, Tensor]) -> None:
        for name, parameter in parameters.items():
            if parameter.requires_grad and (problem := algorithm.parameter_problem(parameter)):
                raise InvalidArgument(f"{name!r} has shape {list(parameter.shape)}: {problem}")
        self._algorithm = algorithm
        self._kind = type(algorithm).__name__
        self._fused = bool(getattr(algorithm, "fused", False))
        self._accepts_sparse = algorithm.accepts_sparse and not self._fused
        self._parameters = parameters
        self._state: dict[str, State] = {}
        self._batches: dict[tuple[str, ...], _Batch] = {}  # by the names in a step, which rarely change

    def check(self, groups: list[GradientGroup]) -> None:
        """Raises if the gradients or learning rates are not supported; changes nothing."""
        for names, grads, lr in groups:
            if isinstance(lr, Tensor) and (problem := self._algorithm.tensor_lr_problem()):
                raise InvalidArgument(f"the learning rate of {self._algorithm.to_code()} is a tensor: {problem}")
            if not self._accepts_sparse and any_sparse(grads):
                name = next(name for name, grad in zip(names, grads, strict=True) if grad.is_sparse)
                raise UnsupportedGradient(
                    f"{self._kind} does not support the sparse gradient of {name!r}: use SGD or Adagrad (not fused), "
                    "optim.wrap(torch.optim.SparseAdam), or a dense gradient (nn.Embedding(..., sparse=False))"
                )

    def step(self, groups: list[GradientGroup], when: Tensor | None = None) -> None:
        """Updates all groups; nothing changes if `when` is False on the device."""
        with torch.no_grad():
            for names, grads, lr in groups:
                batch = self._batches.get(names)
                cached = batch is not None
                if batch is None:
                    batch = self._make_batch(names, lr)
                update = self._algorithm.update
                if when is not None:
                    update = partial(self._update_when, when, batch.creates_state)
                if batch.has_shards:
                    _update_shards(self._algorithm, update, batch, grads, lr)
                elif when is not None or not (
                    cached and batch.one_kind and type(lr) is float and self._update_fused(batch, grads, lr)
                ):
                    update(batch.parameters, grads, batch.lists, lr, has_complex=batch.has_complex)
                if self._fused:  # torch's fused kernels do not, so autograd would miss that the weights changed
                    increment_version(batch.parameters)
                if not cached:
                    self._store(names, batch)

    def _update_fused(self, batch: _Batch, grads: list[Tensor], lr: float) -> bool:
        dtype = batch.parameters[0].dtype
        return all(grad.dtype == dtype for grad in grads) and self._algorithm.update_fused(
            batch.parameters, grads, batch.lists, lr, None
        )

    def _update_when(
        self,
        when: Tensor,
        creates_state: bool,
        parameters: list[Tensor],
        grads: list[Tensor],
        state: StateLists,
        lr: Rate,
        *,
        has_complex: bool,
    ) -> None:
        """Updates if `when` is True on the device. Only a step that creates state waits for the device."""
        if creates_state and not _is_recording():
            if when.item():
                self._algorithm.update(parameters, grads, state, lr, has_complex=has_complex)
            return
        if self._fused and when.device.type == "cuda":
            skip = torch.logical_not(when, out=torch.empty((), dtype=torch.float32, device=when.device))  # one kernel
            if self._algorithm.update_fused(parameters, grads, state, lr, skip):
                return
        tensors = [*parameters, *(each for column in state.values() for each in column if each is not None)]
        before = [tensor.clone() for tensor in tensors]
        self._algorithm.update(parameters, grads, state, lr, has_complex=has_complex)
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(torch.where(when.to(tensor.device), tensor, old))

    @property
    def skips_on_device(self) -> bool:
        """Whether a step with `when` costs no more than one without."""
        return self._fused and type(self._algorithm).update_fused is not Algorithm.update_fused

    def _make_batch(self, names: tuple[str, ...], lr: Rate) -> _Batch:
        parameters: list[Tensor] = [self._parameters[name] for name in names]
        for name, parameter in zip(names, parameters, strict=True):
            if name not in self._state:
                self._state[name] = self._algorithm.create_state(parameter.detach(), lr)
        state_names = self._algorithm.state_names()
        return _Batch(
            parameters,
            lists={key: [self._state[name].get(key) for name in names] for key in state_names},
            has_complex=any(each.is_complex() for each in parameters),
            one_kind=self._fused and len({(each.device, each.dtype, type(each)) for each in parameters}) == 1,
            has_shards=any(map(is_dtensor, parameters)),
            creates_state=bool(state_names) and not all(self._state[name] for name in names),
        )

    def _store(self, names: tuple[str, ...], batch: _Batch) -> None:
        """Stores the state that a first update created, or the lists if they do not change any more."""
        if batch.creates_state:
            for position, name in enumerate(names):
                created = {key: column[position] for key, column in batch.lists.items()}
                if all(value is not None for value in created.values()):  # None if the device skipped the update
                    parameter = self._parameters[name]
                    self._state[name] = {key: _restore_complex(value, parameter) for key, value in created.items()}
        elif not batch.has_complex:  # torch replaces complex entries of the lists by real views, at every step
            self._batches[names] = batch

    # --- state

    def state_dict(self) -> dict[str, object]:
        """The state by parameter name: the tensors themselves, not copies."""
        return {name: dict(state) for name, state in self._state.items() if state}

    def parse_state(self, state: Any) -> tuple[dict[str, State], list[str]]:
        """Copies of the saved tensors, placed where this algorithm stores them, and one line per misfit."""
        if not isinstance(state, Mapping):
            return {}, [f"the state of {self._kind} is a {type(state).__name__}, expected a mapping"]
        parsed: dict[str, State] = {}
        problems: list[str] = []
        for name, saved in state.items():
            if name in self._parameters:
                parsed[name] = self._parse_parameter_state(name, saved, problems)
            else:
                problems.append(f"{name}: {self._kind} updates it in the saved state, not here")
        return parsed, problems

    def _parse_parameter_state(self, name: str, saved: Any, problems: list[str]) -> State:
        parameter = self._parameters[name].detach()
        names = self._algorithm.state_names()
        expected = self._algorithm.create_state(parameter, 0.0) or dict.fromkeys(names, parameter)
        if not isinstance(saved, Mapping) or set(saved) != set(expected):
            given = sorted(map(str, saved)) if isinstance(saved, Mapping) else f"a {type(saved).__name__}"
            problems.append(f"{name}: has {given}; {self._kind} with these settings has {sorted(expected)}")
            return {}
        parsed: State = {}
        for key, like in expected.items():
            value = saved[key]
            if isinstance(value, Tensor) and value.shape == like.shape and value.is_complex() == like.is_complex():
                parsed[key] = torch.empty_like(like).copy_(place_like(value.detach(), like))
            else:
                problems.append(f"{name}: {key} is {_describe(value)} in the saved state, {_describe(like)} here")
        return parsed

    def set_state(self, state: dict[str, State]) -> None:
        """Continues from a state of `parse_state` or `state_tensors`."""
        self._state = state
        self._batches.clear()

    def state_tensors(self) -> dict[str, State]:
        """The state by parameter name: what an update changes in place besides the parameters."""
        return self._state


def _is_recording() -> bool:
    """Whether this call is traced or captured, so that no value can be read."""
    return torch.compiler.is_compiling() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def _restore_complex(value: Tensor, parameter: Tensor) -> Tensor:
    """Makes created state complex for a complex parameter: torch may leave real views in its lists."""
    if parameter.is_complex() and not value.is_complex() and value.shape == (*parameter.shape, 2):
        return torch.view_as_complex(value)
    return value


def _describe(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


# --- sharded parameters


def _update_shards(
    algorithm: Algorithm, update: Callable[..., None], batch: _Batch, grads: list[Tensor], lr: Rate
) -> None:
    """Each process updates its shards, or whole parameters if an element's update depends on the others."""
    if algorithm.needs_whole_parameter:
        for position, (parameter, grad) in enumerate(zip(batch.parameters, grads, strict=True)):
            own = {key: column[position] for key, column in batch.lists.items()}
            _update_whole(update, parameter, grad, own, lr)
        return
    local = {key: [each if each is None else to_local(each) for each in column] for key, column in batch.lists.items()}
    parameters, local_grads = ([to_local(each) for each in column] for column in (batch.parameters, grads))
    update(parameters, local_grads, local, lr, has_complex=batch.has_complex)
    for key, column in batch.lists.items():
        for position, parameter in enumerate(batch.parameters):
            created = local[key][position]
            if column[position] is None and created is not None:
                column[position] = from_local(created, parameter)


def _update_whole(
    update: Callable[..., None], parameter: Tensor, grad: Tensor, state: dict[str, Tensor | None], lr: Rate
) -> None:
    """Gathers one parameter; every process computes the same update and stores its own part."""
    whole = {key: [value if value is None else full_tensor(value)] for key, value in state.items()}
    updated = full_tensor(parameter)
    update([updated], [full_tensor(grad)], whole, lr, has_complex=parameter.is_complex())
    for tensor, new in ((parameter, updated), *((state[key], whole[key][0]) for key in state)):
        if is_dtensor(tensor):
            to_local(tensor).copy_(to_local(place_like(new, tensor)))
