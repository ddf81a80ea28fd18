"""An algorithm at work: its state by parameter name, and the lists that torch's functional forms take."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from stoker.distributed import is_dtensor
from stoker.errors import InvalidArgument, UnsupportedGradient
from stoker.optim._algorithm import Algorithm, Columns, Piece, Rate, State, any_sparse
from stoker.optim._sharded import update_sharded
from stoker.optim._state import moment


class _Batch(NamedTuple):
    """The parameters of one call and their state, side by side."""

    parameters: list[Tensor]
    columns: dict[str, list[Tensor]]
    has_complex: bool
    alike: bool  # of one type and device, so that a fused kernel takes all of them at once
    sharded: bool  # whether they are in parts on many processes, some at least


class FunctionalRule:
    """Drives one of torch's functional optimizers over named parameters."""

    __slots__ = ("_algorithm", "_batches", "_fused", "_kind", "_parameters", "_state", "_takes_sparse")

    def __init__(self, algorithm: Algorithm, parameters: Mapping[str, Tensor]) -> None:
        for name, parameter in parameters.items():
            if parameter.requires_grad and (reason := algorithm.refusal(parameter)):
                raise InvalidArgument(f"{name!r} has shape {list(parameter.shape)}: {reason}")
        self._algorithm = algorithm
        self._kind = type(algorithm).__name__
        self._takes_sparse = algorithm.takes_sparse and not getattr(algorithm, "fused", False)
        self._fused = bool(getattr(algorithm, "fused", False))
        self._parameters = parameters
        self._state: dict[str, State] = {}
        self._batches: dict[tuple[str, ...], _Batch] = {}  # by the names of a step; the same ones come every time

    def step(self, pieces: list[Piece], when: Tensor | None = None) -> None:
        """One update of every piece, each with its learning rate; where `when` is False on the device, none."""
        with torch.no_grad():
            for names, grads, lr in pieces:
                batch = self._batches.get(names)
                known = batch is not None
                if batch is None:
                    batch = self._batch(names, lr)
                update = self._algorithm.update if when is None else partial(self._update_when, when)
                if batch.sharded:
                    update_sharded(
                        self._algorithm, update, batch.parameters, grads, batch.columns, lr, batch.has_complex
                    )
                elif when is not None or not (
                    known and batch.alike and type(lr) is float and self._at_once(batch, grads, lr)
                ):
                    update(batch.parameters, grads, batch.columns, lr, has_complex=batch.has_complex)
                if self._fused:  # torch's fused kernels forget to: a graph over old weights would go unnoticed
                    increment_version(batch.parameters)
                if not known:
                    self._settle(names, batch)

    def _at_once(self, batch: _Batch, grads: list[Tensor], lr: float) -> bool:
        same = batch.parameters[0].dtype
        return all(grad.dtype == same for grad in grads) and self._algorithm.at_once(
            batch.parameters, grads, batch.columns, lr
        )

    def _update_when(
        self,
        when: Tensor,
        parameters: list[Tensor],
        grads: list[Tensor],
        state: Columns,
        lr: Rate,
        *,
        has_complex: bool,
    ) -> None:
        """An update that the device decides about: nothing waits for it, but where it makes state."""
        if not _is_recorded() and any(each is None for column in state.values() for each in column):
            if when.item():
                self._algorithm.update(parameters, grads, state, lr, has_complex=has_complex)
            return
        on_gpu = self._fused and when.device.type == "cuda"
        if on_gpu:
            skip = torch.logical_not(when, out=torch.empty((), dtype=torch.float32, device=when.device))  # in one go
            if self._algorithm.skippable(parameters, grads, state, lr, skip):
                return
        held = [*parameters, *(each for column in state.values() for each in column if each is not None)]
        before = [tensor.clone() for tensor in held]
        self._algorithm.update(parameters, grads, state, lr, has_complex=has_complex)
        for tensor, old in zip(held, before, strict=True):
            tensor.copy_(torch.where(when.to(tensor.device), tensor, old))

    @property
    def skips(self) -> bool:
        """Whether an update that the device decides against costs no more than one that it makes."""
        return self._fused and type(self._algorithm).skippable is not Algorithm.skippable

    def _batch(self, names: tuple[str, ...], lr: Rate) -> _Batch:
        parameters: list[Tensor] = [self._parameters[name] for name in names]
        for name, parameter in zip(names, parameters, strict=True):
            if name not in self._state:
                self._state[name] = self._algorithm.fresh(parameter.detach(), lr)
        columns: dict[str, list[Any]] = {
            kept: [self._state[name].get(kept) for name in names] for kept in self._algorithm.keeps()
        }
        kinds = {(each.device, each.dtype, type(each)) for each in parameters}
        has_complex, sharded = any(each.is_complex() for each in parameters), any(map(is_dtensor, parameters))
        return _Batch(parameters, columns, has_complex, self._fused and len(kinds) == 1, sharded)

    def _settle(self, names: tuple[str, ...], batch: _Batch) -> None:
        """Keeps state that the first update made; and the lists, from when on they no longer change."""
        if any(each is None for column in batch.columns.values() for each in column):
            return  # nothing was made: the device has decided against it
        if self._algorithm.keeps() and not all(self._state[name] for name in names):
            for position, name in enumerate(names):
                made = {kept: column[position] for kept, column in batch.columns.items()}
                self._state[name] = {kept: _as_stored(value, self._parameters[name]) for kept, value in made.items()}
        elif not batch.has_complex:  # torch replaces complex entries of the lists by real views: new ones every step
            self._batches[names] = batch

    def check(self, pieces: list[Piece]) -> None:
        """Refuses gradients that the algorithm can't take, before anything has changed."""
        for names, grads, lr in pieces:
            if isinstance(lr, Tensor) and (reason := self._algorithm.rate_refusal()):
                raise InvalidArgument(f"the learning rate of {self._algorithm.spelled()} is a tensor: {reason}")
            if not self._takes_sparse and any_sparse(grads):
                name = next(name for name, grad in zip(names, grads, strict=True) if grad.is_sparse)
                raise UnsupportedGradient(
                    f"{self._kind} can't take the sparse gradient of {name!r}: use SGD or Adagrad (not "
                    "fused), optim.wrap(torch.optim.SparseAdam), or a dense gradient (nn.Embedding(..., sparse=False))"
                )

    def state_dict(self) -> dict[str, object]:
        """What is kept, by parameter name: the tensors themselves, not copies."""
        return {name: dict(state) for name, state in self._state.items() if state}

    def prepared(self, state: Any) -> tuple[dict[str, State], list[str]]:
        """Copies, each where this algorithm keeps it (counters on the host, moments beside the parameter)."""
        if not isinstance(state, Mapping):
            return {}, [f"the state of {self._kind} is no mapping"]
        ready: dict[str, State] = {}
        lines: list[str] = []
        for name, kept in state.items():
            if name in self._parameters:
                ready[name] = self._placed(name, kept, lines)
            else:
                lines.append(f"{name}: {self._kind} steps it in the state, not here")
        return ready, lines

    def _placed(self, name: str, kept: Any, lines: list[str]) -> State:
        """The state of one parameter, as it is kept here; what does not fit is left out and gets a line."""
        parameter = self._parameters[name]
        blank = parameter.detach()
        expected = self._algorithm.fresh(blank, 0.0) or dict.fromkeys(self._algorithm.keeps(), blank)
        if not isinstance(kept, Mapping) or set(kept) != set(expected):
            given = sorted(map(str, kept)) if isinstance(kept, Mapping) else type(kept).__name__
            lines.append(f"{name}: holds {given}; {self._kind} with these settings keeps {sorted(expected)}")
            return {}
        placed: State = {}
        for key, like in expected.items():
            fitting = moment(kept[key], like)
            if isinstance(fitting, str):
                lines.append(f"{name}: {key} {fitting}")
            else:
                placed[key] = fitting
        return placed

    def take_up(self, ready: dict[str, State]) -> None:
        """Goes on from a prepared state."""
        self._state = ready
        self._batches.clear()

    def tensors(self) -> dict[str, State]:
        """The state itself, by parameter name: what an update changes in place beside the parameters."""
        return self._state

    def twin(self, parameters: Mapping[str, Tensor], state: dict[str, State]) -> "FunctionalRule":
        """The same algorithm at work on other tensors."""
        other = FunctionalRule(self._algorithm, {})
        other._parameters, other._state = {name: parameters[name] for name in self._parameters}, state
        return other


def _is_recorded() -> bool:
    """Whether what happens now is the making of a program, in which nothing can be read."""
    return torch.compiler.is_compiling() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def _as_stored(value: Tensor, parameter: Tensor) -> Tensor:
    """State that an update made, complex where its parameter is: torch may leave real views in its lists."""
    if parameter.is_complex() and not value.is_complex() and value.shape == (*parameter.shape, 2):
        return torch.view_as_complex(value)
    return value
