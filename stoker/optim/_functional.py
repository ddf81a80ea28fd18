"""An algorithm at work: its state by parameter name, and the lists that torch's functional forms take."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stoker.errors import InvalidArgument, StateMismatch, UnsupportedGradient
from stoker.optim._algorithm import Algorithm, Piece, Rate, State, any_sparse


class _Batch(NamedTuple):
    """The parameters of one call and their state, side by side."""

    parameters: list[Tensor]
    columns: dict[str, list[Tensor]]
    has_complex: bool


class FunctionalRule:
    """Drives one of torch's functional optimizers over named parameters."""

    __slots__ = ("_algorithm", "_batches", "_parameters", "_state")

    def __init__(self, algorithm: Algorithm, parameters: Mapping[str, nn.Parameter]) -> None:
        for name, parameter in parameters.items():
            if parameter.requires_grad and (reason := algorithm.refusal(parameter)):
                raise InvalidArgument(f"{name!r} has shape {list(parameter.shape)}: {reason}")
        self._algorithm = algorithm
        self._parameters = parameters
        self._state: dict[str, State] = {}
        self._batches: dict[tuple[str, ...], _Batch] = {}  # by the names of a step; the same ones come every time

    def step(self, pieces: list[Piece]) -> None:
        """One update of every piece, each with its learning rate."""
        with torch.no_grad():
            for names, grads, lr in pieces:
                batch = self._batches.get(names)
                known = batch is not None
                if batch is None:
                    batch = self._batch(names, lr)
                self._algorithm.update(batch.parameters, grads, batch.columns, lr, has_complex=batch.has_complex)
                if not known:
                    self._settle(names, batch)

    def _batch(self, names: tuple[str, ...], lr: Rate) -> _Batch:
        parameters: list[Tensor] = [self._parameters[name] for name in names]
        for name, parameter in zip(names, parameters, strict=True):
            if name not in self._state:
                self._state[name] = self._algorithm.fresh(parameter.detach(), lr)
        columns: dict[str, list[Any]] = {
            kept: [self._state[name].get(kept) for name in names] for kept in self._algorithm.keeps()
        }
        return _Batch(parameters, columns, any(parameter.is_complex() for parameter in parameters))

    def _settle(self, names: tuple[str, ...], batch: _Batch) -> None:
        """Keeps state that the first update made; and the lists, from when on they no longer change."""
        if batch.has_complex:
            return  # torch replaces complex entries of the lists by real views: they are made anew for each step
        if all(self._state[name] for name in names) or not self._algorithm.keeps():
            self._batches[names] = batch
            return
        for position, name in enumerate(names):
            self._state[name] = {kept: column[position] for kept, column in batch.columns.items()}

    def check(self, pieces: list[Piece]) -> None:
        """Refuses gradients that the algorithm can't take, before anything has changed."""
        if self._algorithm.takes_sparse:
            return
        for names, grads, _ in pieces:
            if any_sparse(grads):
                name = next(name for name, grad in zip(names, grads, strict=True) if grad.is_sparse)
                raise UnsupportedGradient(
                    f"{type(self._algorithm).__name__} can't take the sparse gradient of {name!r}: use SGD or Adagrad, "
                    "optim.wrap(torch.optim.SparseAdam), or a dense gradient (nn.Embedding(..., sparse=False))"
                )

    def state_dict(self) -> dict[str, object]:
        """What is kept, by parameter name: the tensors themselves, not copies."""
        return {name: dict(state) for name, state in self._state.items() if state}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Takes copies, each where this algorithm keeps it (counters on the host, moments beside the parameter)."""
        loaded: dict[str, State] = {}
        for name, kept in state.items():
            if not isinstance(kept, Mapping):
                raise StateMismatch(f"the state of {name!r} is no mapping")
            loaded[name] = self._placed(name, kept)
        self._state = loaded
        self._batches.clear()

    def _placed(self, name: str, kept: Mapping[str, Any]) -> State:
        parameter = self._parameters[name]
        expected = self._algorithm.fresh(torch.empty_like(parameter, device="meta", requires_grad=False), 0.0)
        names = set(expected) or set(self._algorithm.keeps())
        if set(kept) != names:
            raise StateMismatch(
                f"the state of {name!r} holds {sorted(kept)}; {type(self._algorithm).__name__} with these settings "
                f"keeps {sorted(names)}"
            )
        placed: State = {}
        for key, value in kept.items():
            on_host = key in expected and expected[key].device.type == "cpu" and parameter.device.type != "cpu"
            placed[key] = value.detach().clone().to("cpu" if on_host else parameter.device)
        return placed
